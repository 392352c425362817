"""What an idle connection remembers of its client stays small, whatever that client has sent."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.steady import MAX_FORMS, MAX_PREFIX
from proxy.protocol.api import FIRST_FLEXIBLE, ApiKey
from proxy.protocol.fetch_request import MAX_AROUND
from proxy.protocol.primitives import encode_uvarint
from tests.frames import fetch, framed
from tests.playbook import full, request, response

HEARTBEAT, PRODUCE = ApiKey.HEARTBEAT, ApiKey.PRODUCE
CONNECTION_BYTES = 32_768
"""docs/deploy.md: what a connection takes at worst, beside the partitions of its fetches."""


def tagged(asked: bytes, size: int) -> bytes:
    """A request with header v2, whose header has a tag of a size."""
    end = 14 + int.from_bytes(asked[12:14])
    assert asked[end] == 0
    return framed(asked[4:end] + b"\x01\x05" + encode_uvarint(size) + bytes(size) + asked[end + 1 :])


def kinds(number: int) -> Iterator[tuple[int, int]]:
    """So many kinds of requests whose responses pass, each with header v2."""
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
    """Bytes that a connection takes after a conversation."""

    def once() -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        connection = Connection(sessions=SessionLimits(max_sessions=10), resolve=None)
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
    """Requests of many kinds, each with a header of 200 kB."""
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
    """The most of each kind that is remembered."""
    exchange(connection, request(HEARTBEAT, 0, 1, b"", b"c" * MAX_AROUND), response(1))
    for number, (key, version) in enumerate(kinds(64), 1):
        asked = tagged(request(key, version, number, b"\0"), MAX_PREFIX - 8)
        exchange(connection, asked, response(number, b"\0\0"))
        if len(connection.steady._forms) == MAX_FORMS:
            break
    else:
        pytest.fail("fewer kinds are remembered")
    wants = [("t" * 249, number) for number in range(3)]
    around = "r" * (MAX_AROUND - 10)
    for number in (1, 2):
        asked = fetch(12, *wants, correlation=number, client="c" * (MAX_AROUND - 40), rack_id=around)
        exchange(connection, asked, full(12, wants, correlation_id=number))
    assert connection.session_table is not None


@pytest.mark.parametrize(
    "play",
    [
        asks_much,
        fetches_with_a_large_header,
        produces_with_a_large_transactional_id,
        asks_what_is_remembered,
    ],
)
def test_an_idle_connection_takes_some_kilobytes(play: Callable[[Connection], None]) -> None:
    assert kept(play) < CONNECTION_BYTES


def test_a_fetch_with_a_large_header_is_read_all_the_same() -> None:
    connection = Connection(sessions=SessionLimits(max_sessions=10), resolve=None)
    fetches_with_a_large_header(connection)
    exchange(connection, fetch(12, ("t", 0), correlation=3), full(12, [("t", 0)], correlation_id=3))
    assert connection.tally.client.partitions_requested == 3
    assert connection.client_id == "c"
