"""Clients in languages other than Python can have a lane.

They set the lane in their client.id, and get exactly the records of this lane.
"""

from collections.abc import Iterator

import pytest

from tests.clients.comparing import count_of
from tests.clients.dataset import PARTITIONS, Expected
from tests.clients.lanes import assert_lanes
from tests.clients.programs import COOPERATIVE, PROGRAMS
from tests.clients.runner import Run, Ways, assert_same_records
from tools.gateway import GatewayProcess
from tools.kafka import Cluster

pytestmark = pytest.mark.clients
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


@pytest.mark.parametrize("name", ["java", "platformatic"])
def test_a_client_without_a_lane_reads_as_always(name: str, ways: Ways, expected: Expected) -> None:
    """A client without a lane reads all records, even if other clients have lanes.

    Both clients of the test use Fetch with topic ids; platformatic supports only these versions.
    """
    program = PROGRAMS[name]()
    with (
        Run(program, ways.direct, assign=PARTITIONS) as direct,
        Run(program, ways.gateway, assign=PARTITIONS) as gateway,
    ):
        for run in (direct, gateway):
            run.wait_records(count_of(program, expected, "read_uncommitted"), seconds=90)
            run.stop()
        assert_same_records(direct, gateway)
        assert gateway.errors() == direct.errors()
