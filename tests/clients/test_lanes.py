"""Clients in other languages that declare lanes in their client.id."""

from collections.abc import Iterator

import pytest

from tests.clients.dataset import Expected
from tests.clients.lanes import assert_lanes
from tests.clients.programs import COOPERATIVE, PROGRAMS
from tests.clients.runner import Ways
from tools.gateway import GatewayProcess
from tools.kafka import Cluster

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
pytest_plugins = ["tests.clients.fixtures"]


@pytest.fixture(scope="module")
def cluster_gateway(cluster: Cluster) -> Iterator[GatewayProcess]:
    with GatewayProcess(cluster.bootstrap, "--cooperative", "billing") as gateway:
        yield gateway


@pytest.mark.parametrize("name", COOPERATIVE)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_each_lane_gets_its_records_in_their_order(
    name: str, ways: Ways, expected: Expected, isolation: str
) -> None:
    assert_lanes(PROGRAMS[name](), ways, expected, isolation)
