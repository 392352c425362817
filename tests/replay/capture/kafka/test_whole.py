"""A connection that is read at once gives the same events as if it were read row by row."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.api import ApiKey
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.kafka.whole import MOST, Events, WholeConnections
from tests.examples import examples
from tests.replay.capture.kafka import test_stretches
from tests.replay.capture.kafka.test_stretches import MS, OPENING, Conversation, fetch
from tests.replay.capture.packets_of import Row, batch, joined, read_sorted
from tests.replay.capture.talk import request, response

FIRST = 100
"""The correlation id of the first fetch. No other bytes of the responses have this value."""


@contextmanager
def counted() -> Iterator[list[bool]]:
    """Note in the list, for each connection that could be whole, whether it was read at once."""
    taken: list[bool] = []

    def read(self: WholeConnections, number: int, key: bytes) -> Events | None:
        found = unchanged(self, number, key)
        taken.append(found is not None)
        return found

    unchanged = WholeConnections.read
    with patch.object(WholeConnections, "read", read):
        yield taken


def assert_same(rows: Sequence[Row], ports: frozenset[int] = frozenset()) -> bool:
    """Compare both ways. Return whether the connection was read at once."""
    with counted() as taken:
        test_stretches.assert_same(rows, ports=ports)
    return taken == [True]


def talk(*said: dict[str, Any], opened: bool = True) -> Conversation:
    """Return a conversation that began before the capture.

    With `opened`, it has a Metadata request first, since the other responses have no valid contents.
    """
    found = Conversation()
    if opened:
        exchange(found, request(ApiKey.METADATA, 1, OPENING, bytes(4)), response(OPENING))
    for step in said:
        found.step(**step)
    return found


def ticks(times: int, *, pieces: int = 1) -> list[dict[str, Any]]:
    return test_stretches.ticks(times, pieces=pieces, start=FIRST)


def exchange(found: Conversation, asked: bytes, told: bytes) -> Conversation:
    found.say(asked, client=True)
    found.say(told, client=False)
    return found


def versions(correlation_id: int) -> bytes:
    return request(ApiKey.API_VERSIONS, 3, correlation_id, b"\0\4rdk\0061.2.3\0")


@pytest.mark.parametrize("exchanges", [1, 2, 20, MOST - 1])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("ports", [frozenset(), frozenset({9092}), frozenset({1, 2})])
def test_requests_and_responses_in_turn_are_read_at_once(
    exchanges: int, pieces: int, ports: frozenset[int]
) -> None:
    assert assert_same(talk(*ticks(exchanges, pieces=pieces)).rows, ports)


def test_the_opening_of_a_client_is_read_at_once() -> None:
    found = exchange(Conversation(), versions(1), response(1))
    for number in range(2, 5):
        exchange(found, request(ApiKey.METADATA, 1, number, bytes(4)), response(number, bytes(5_000)))
    exchange(found, fetch(5), response(5))

    assert assert_same(found.rows)
    *exchanges, end = read_sorted([found.rows])
    assert isinstance(end, ConnectionEnd)
    assert (end.software, end.client_id) == ("rdk 1.2.3", "me")
    assert [one.number for one in exchanges if isinstance(one, Exchange)] == list(range(5))


def test_fetches_from_the_first_one_on_are_read_at_once() -> None:
    topic = b"\0\2tt"
    found = Conversation()
    for number in range(7, 10):
        told = response(number, bytes(10) + (1).to_bytes(4) + topic + bytes(4))
        exchange(found, fetch(number, body=topic + bytes(4)), told)
    assert assert_same(found.rows)


def test_others_in_the_batch_do_not_matter() -> None:
    rows = talk(*ticks(3)).rows
    lone = [replace(one, connection=b"\4\0" + one.connection[2:]) for one in rows[:2]]
    last = [replace(one, connection=b"\4\xff" + one.connection[2:]) for one in rows]
    with counted() as taken:
        found = read_sorted([[*lone, *rows, *last]])
    assert taken == [False, True, True]
    known = [event for part in (lone, rows, last) for event in Connections(plain=True).read([batch(part)])]
    assert [*map(joined, found)] == [*map(joined, known)]


def late(rows: list[Row]) -> list[Row]:
    return [*rows[:4], replace(rows[4], time=rows[3].time), *rows[5:]]


def unacknowledged(rows: list[Row]) -> list[Row]:
    return [replace(rows[0], ack=rows[0].ack - 1), *rows[1:]]


@pytest.mark.parametrize(
    "rows",
    {
        "one exchange does not show the client": talk().rows,
        "a response comes first": talk(*ticks(3)).rows[1:],
        "the last response is missing": talk(*ticks(3)).rows[:-1],
        "too many exchanges": talk(*ticks(MOST)).rows,
        "a SYN": talk({"kind": "syn", "number": FIRST}, *ticks(3), opened=False).rows,
        "a FIN": talk(*ticks(3), {"kind": "fin", "number": FIRST}).rows,
        "an RST": talk(*ticks(3), {"kind": "rst", "number": FIRST}).rows,
        "a second connection": talk(*ticks(3), {"kind": "syn", "number": FIRST}, *ticks(3)).rows,
        "a packet that came twice": talk(*ticks(3), {"kind": "again", "number": FIRST}).rows,
        "packets in another order": talk(*ticks(3), {"kind": "swapped", "number": FIRST}, *ticks(2)).rows,
        "a lost response": talk(
            *ticks(2),
            {"kind": "lost response", "number": FIRST + 2},
            *test_stretches.ticks(2, start=FIRST + 3),
        ).rows,
        "two requests in a row": talk(*ticks(2), {"kind": "pipelined", "number": FIRST + 2}).rows,
        "a request in two rows": talk(
            {"kind": "split", "number": FIRST}, *test_stretches.ticks(2, start=FIRST + 1)
        ).rows,
        "cut bytes": talk(*ticks(2), {"kind": "cut", "number": FIRST + 2}).rows,
        "another correlation id": talk(*ticks(2), {"kind": "wrong number", "number": FIRST + 2}).rows,
        "equal correlation ids": talk(*ticks(2), *test_stretches.ticks(1, start=FIRST + 1)).rows,
        "ids that do not ascend": talk({"kind": "other", "number": FIRST + 1}).rows,
        "another version": exchange(
            talk(), request(ApiKey.METADATA, 2, OPENING + 1), response(OPENING + 1)
        ).rows,
        "a client without an id": talk(
            {"kind": "renamed", "number": FIRST}, *test_stretches.ticks(2, start=FIRST + 1)
        ).rows,
        "times that do not ascend": late(talk(*ticks(3)).rows),
        "an ACK of other bytes": unacknowledged(talk(*ticks(3)).rows),
        "a Produce": exchange(
            talk(*ticks(2)),
            request(ApiKey.PRODUCE, 7, FIRST + 2, b"\xff\xff\0\1" + bytes(8)),
            response(FIRST + 2),
        ).rows,
        "a SaslHandshake": exchange(
            talk(*ticks(2)), request(ApiKey.SASL_HANDSHAKE, 1, FIRST + 2, b"\0\5PLAIN"), response(FIRST + 2)
        ).rows,
        "two requests in the first response": exchange(
            exchange(Conversation(), request(3, 1, 0, bytes(4)), response(0, fetch(7) + fetch(8))),
            fetch(1),
            response(1),
        ).rows,
        "two requests in the first request": exchange(
            exchange(Conversation(), request(3, 1, 0, fetch(7) + fetch(8)), response(0)),
            fetch(1),
            response(1),
        ).rows,
        "a first response that is no fetch response": talk(*ticks(3), opened=False).rows,
        "a fetch response without topics": exchange(
            exchange(Conversation(), fetch(0), response(0, bytes(14))), fetch(1), response(1)
        ).rows,
        "the id of a fetch in the first response": exchange(
            exchange(Conversation(), request(3, 1, 0, bytes(4)), response(0, b"\0\0\0\1" * 9)),
            fetch(1),
            response(1),
        ).rows,
    }.items(),
    ids=lambda item: item[0],
)
def test_what_needs_more_is_read_row_by_row(rows: tuple[str, list[Row]]) -> None:
    assert not assert_same(rows[1])


def test_a_batch_may_end_within_the_bytes_that_are_looked_at() -> None:
    """A response with a wrong correlation id, at the end of a batch, is not read at once.

    The request has the id 4, and also ends with the number 4. The length of the response is 4, too. So an id
    that is read at a wrong place would seem to be right.
    """
    found = exchange(Conversation(), request(ApiKey.METADATA, 1, 3, bytes(4)), response(3))
    found.say(request(ApiKey.METADATA, 1, 4, (4).to_bytes(4)), client=True)
    found.say(response(77, b""), client=False)
    assert not assert_same(found.rows)


def test_the_ports_of_brokers_name_the_client() -> None:
    rows = talk(*ticks(3)).rows
    low, high = (int.from_bytes(rows[0].connection[at : at + 2]) for at in (5, 11))
    client = low if rows[0].from_low else high
    assert not assert_same(rows, frozenset({client}))


@examples(100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2, 3, 10, 18]),
            st.integers(0, 16),
            st.binary(max_size=40),
            st.sampled_from([MS, 300 * MS]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([0, 1, 0x7FFF_FFF0]),
)
def test_any_bodies_are_read_alike(said: list[tuple[int, int, bytes, int]], start: int) -> None:
    found = Conversation()
    for number, (key, version, body, after) in enumerate(said, start):
        found.say(request(key, version, number, body), client=True, after=after)
        found.say(response(number, body), client=False)
    assert_same(found.rows)
