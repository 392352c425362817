"""Tests that an idle connection uses little memory, independent of the client's earlier requests."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from proxy.core.budget import RequestBudget
from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.core.plans import MAX_PLANS, MAX_PREFIX
from proxy.protocol.api import FIRST_FLEXIBLE, ApiKey
from proxy.protocol.fetch_request import MAX_AROUND
from proxy.protocol.primitives import encode_uvarint
from proxy.session.partitions import MAX_FORGOTTEN
from tests.connections import connect
from tests.frames import Want, fetch, framed
from tests.playbook import Playbook, api_versions, full, request, response

HEARTBEAT, PRODUCE = ApiKey.HEARTBEAT, ApiKey.PRODUCE
CONNECTION_BYTES = 32_768
"""The maximum memory of a connection in bytes, not counting the partitions of its fetches
(docs/users/run.md)."""


def tagged(asked: bytes, size: int) -> bytes:
    """Build a request with header v2, with a tag of this size in the header."""
    end = 14 + int.from_bytes(asked[12:14])
    assert asked[end] == 0
    return framed(asked[4:end] + b"\x01\x05" + encode_uvarint(size) + bytes(size) + asked[end + 1 :])


def kinds(number: int) -> Iterator[tuple[int, int]]:
    """Return different (API key, version) pairs with header v2, whose responses are forwarded unchanged."""
    unlike = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.SASL_AUTHENTICATE, PRODUCE}
    passing = [key for key in FIRST_FLEXIBLE if key not in unlike and key not in (3, 10, 18)]
    for count in range(number):
        key = passing[count % len(passing)]
        yield key, FIRST_FLEXIBLE[key] + count // len(passing)


def exchange(connection: Connection, asked: bytes, told: bytes) -> None:
    connection.receive_client(asked, 0.0)
    assert b"".join(map(bytes, connection.drain_broker())) == asked
    connection.receive_broker(told, 0.0)
    assert b"".join(map(bytes, connection.drain_client())) == told
    connection.drain_events()


def kept(play: Callable[[Connection], None]) -> int:
    """Return how much memory a connection uses after a conversation, in bytes."""

    def once() -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        connection = connect(sessions=SessionLimits(max_sessions=10), resolve=None)
        play(connection)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    once()  # what is made once for all connections
    tracemalloc.start()
    try:
        once()
        return once()
    finally:
        tracemalloc.stop()


def asks_much(connection: Connection) -> None:
    """Send requests of 64 kinds, each with a header of 200 kB."""
    for number, (key, version) in enumerate(kinds(64), 1):
        asked = tagged(request(key, version, number, b"\0"), 200_000)
        exchange(connection, asked, response(number, b"\0\0"))


def fetches_with_a_large_header(connection: Connection) -> None:
    for number in (1, 2):
        asked = tagged(fetch(12, ("t", 0), correlation=number), 900_000)
        exchange(connection, asked, full(12, [("t", 0)], correlation_id=number))


def produces_with_a_large_transactional_id(connection: Connection) -> None:
    for version in range(3, 9):
        body = (30_000).to_bytes(2) + b"t" * 30_000 + b"\xff\xff" + bytes(30)
        exchange(connection, request(PRODUCE, version, 7, body), response(7, bytes(30)))


def asks_what_is_remembered(connection: Connection) -> None:
    """Send as many kinds of requests as the gateway remembers, each with the largest header that it
    remembers.
    """
    exchange(connection, request(HEARTBEAT, 0, 1, b"", b"c" * MAX_AROUND), response(1))
    for number, (key, version) in enumerate(kinds(64), 1):
        asked = tagged(request(key, version, number, b"\0"), MAX_PREFIX - 8)
        exchange(connection, asked, response(number, b"\0\0"))
        if len(connection.state.plans.requests) == MAX_PLANS:
            break
    else:
        pytest.fail("fewer kinds are remembered")
    wants = [("t" * 249, number) for number in range(3)]
    around = "r" * (MAX_AROUND - 10)
    for number in (1, 2):
        asked = fetch(12, *wants, correlation=number, client="c" * (MAX_AROUND - 40), rack_id=around)
        exchange(connection, asked, full(12, wants, correlation_id=number))
    assert connection.session_table is not None


def goes_on(connection: Connection) -> None:
    """Process all waiting bytes."""
    while connection.state.goes_on:
        connection.go_on(0.0)


def asks_at_once(connection: Connection) -> None:
    """Let the gateway remember requests, then send as many further requests as may be in flight."""
    asks_what_is_remembered(connection)
    numbers = range(MAX_IN_FLIGHT)
    connection.receive_client(b"".join(request(HEARTBEAT, 0, number) for number in numbers), 0.0)
    goes_on(connection)
    connection.receive_broker(b"".join(response(number) for number in numbers), 0.0)
    goes_on(connection)
    assert len(connection.drain_broker()) == len(connection.drain_client()) == MAX_IN_FLIGHT
    connection.shrink()
    exchange(connection, request(HEARTBEAT, 0, 7), response(7))


@pytest.mark.slow
@pytest.mark.parametrize(
    "play",
    [
        asks_much,
        asks_at_once,
        fetches_with_a_large_header,
        produces_with_a_large_transactional_id,
        asks_what_is_remembered,
    ],
)
def test_an_idle_connection_takes_some_kilobytes(play: Callable[[Connection], None]) -> None:
    assert kept(play) < CONNECTION_BYTES


def test_a_fetch_with_a_large_header_is_read_all_the_same() -> None:
    connection = connect(sessions=SessionLimits(max_sessions=10), resolve=None)
    fetches_with_a_large_header(connection)
    exchange(connection, fetch(12, ("t", 0), correlation=3), full(12, [("t", 0)], correlation_id=3))
    assert connection.tally.client.partitions_requested == 3
    assert connection.client_id == "c"


# Partitions


LISTS: dict[str, list[Want]] = {
    "one topic": [("t", number) for number in range(6_000)],
    "2,000 topics": [(f"t{name}", number) for name in range(400) for number in range(15)],
    "long names": [(f"t{name}".ljust(249, "x"), 0) for name in range(500)],
    "a high number": [("t", 0), ("t", 100_000)],
    "mixed topics": [(f"t{name}", number) for number in range(2) for name in range(1_000)],
}


@pytest.mark.slow
@pytest.mark.parametrize("wants", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("version", [4, 12])
def test_what_fetches_list_is_remembered_within_a_budget(version: int, wants: list[Want]) -> None:
    """The memory for the partition lists of all connections together has a limit.

    Beyond the limit, fetches are forwarded unchanged.
    """
    budget = RequestBudget(1_500_000)
    connections: list[Connection] = []
    versions, fetched = api_versions("4.3"), fetch(version, *wants, correlation=3)
    told = full(version, wants, correlation_id=3)

    def once() -> None:
        connection = connect(sessions=SessionLimits(max_sessions=0), resolve=None, request_budget=budget)
        exchange(connection, *versions)
        exchange(connection, fetched, told)
        connections.append(connection)

    once()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(7):
            once()
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < budget.limit + len(connections) * CONNECTION_BYTES
    assert budget.total <= budget.limit
    left = [connection for connection in connections if connection.tally.passthrough == {"memory": 1}]
    assert left or len(wants) < 6_000
    assert all(connection.session_table is None for connection in left)
    for connection in connections:
        connection.ended()
    assert not budget.total


def test_a_session_grows_within_the_budget() -> None:
    """A fetch whose partitions exceed the memory limit does not use the session.

    The next fetch with fewer partitions uses the session again.
    """
    few: list[Want] = [("t", number) for number in range(40)]
    many: list[Want] = [("t", number) for number in range(400)]
    play = Playbook(request_budget=RequestBudget(30_000)).established(12, few)
    play.exchange(fetch(12, *many, correlation=4), full(12, many, correlation_id=4))
    assert play.connection.tally.passthrough["memory"] == 1
    assert play.connection.session_partitions == 40
    play.client(fetch(12, *few, correlation=5))
    assert len(play.takes_broker()) < 100


def test_names_that_were_forgotten_are_in_the_budget() -> None:
    budget = RequestBudget(1_000_000)
    connection = connect(sessions=SessionLimits(max_sessions=0), resolve=None, request_budget=budget)
    exchange(connection, *api_versions("4.3"))
    for number in range(MAX_FORGOTTEN // 1_000):
        wants: list[Want] = [(f"{number}-{name}".ljust(249, "x"), 0) for name in range(1_000)]
        exchange(connection, fetch(12, *wants, correlation=3), full(12, wants, correlation_id=3))
        assert budget.total <= budget.limit
    assert connection.tally.passthrough["memory"]
