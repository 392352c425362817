"""Clients in other languages than Python get the same records directly and through the gateway."""

import pytest

from tests.clients.comparing import Pair, assert_sessions, count_of, read_whole
from tests.clients.dataset import Expected
from tests.clients.programs import PROGRAMS
from tests.clients.runner import Program, Ways, assert_same_records
from tools.gateway import GatewayProcess

pytestmark = pytest.mark.clients
pytest_plugins = ["tests.clients.fixtures"]


@pytest.fixture(scope="module", params=PROGRAMS)
def foreign(request: pytest.FixtureRequest) -> Program:
    """Return the consumer program of a client in another language than Python. Each has its turn."""
    return PROGRAMS[request.param]()


@pytest.fixture(scope="module", params=["read_uncommitted", "read_committed"])
def isolation(request: pytest.FixtureRequest) -> str:
    level: str = request.param
    return level


@pytest.fixture(scope="module")
def pair(
    foreign: Program, ways: Ways, cluster_gateway: GatewayProcess, expected: Expected, isolation: str
) -> Pair:
    return read_whole(foreign, ways, cluster_gateway, expected, isolation, commands=False)


def test_every_record_is_the_same_in_the_same_order(
    foreign: Program, pair: Pair, expected: Expected, isolation: str
) -> None:
    assert_same_records(pair.direct, pair.gateway)
    assert len(pair.gateway.of("record")) == count_of(foreign, expected, isolation)


def test_no_error_is_told(pair: Pair) -> None:
    assert [pair.direct.errors(), pair.gateway.errors()] == [[], []]


def test_fetches_become_a_session_where_the_client_has_none(foreign: Program, pair: Pair) -> None:
    assert_sessions(foreign.sessions, pair.fetches)
