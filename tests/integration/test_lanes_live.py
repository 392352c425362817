"""Clients that declare lanes in their client.id, with three brokers and topics with all kinds of records."""

from collections.abc import Iterator

import pytest

from tests.clients.dataset import Expected
from tests.clients.lanes import assert_lanes
from tests.clients.runner import Program, Ways
from tools.gateway import GatewayProcess
from tools.kafka import Cluster

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.clients.fixtures"]


@pytest.fixture(scope="module")
def cluster_gateway(cluster: Cluster) -> Iterator[GatewayProcess]:
    with GatewayProcess(cluster.bootstrap, "--cooperative", "billing") as gateway:
        yield gateway


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_each_lane_gets_its_records_in_their_order(
    program: Program, ways: Ways, expected: Expected, isolation: str
) -> None:
    """Each of four clients gets the records of a quarter of the keys, in order (cases C16, C22).

    It gets no other records.
    """
    if isolation == "read_committed" and not program.transactions:
        pytest.skip(f"{program.name} knows no read_committed")
    assert_lanes(program, ways, expected, isolation)
