"""Reading rows in columns finds the same exchanges as reading them one by one.

The state of the connection after the rows is also the same.
"""

import struct
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.capture.kafka.connection import CapturedConnection
from replay.capture.kafka.exchange import Exchange
from replay.capture.kafka.exchanges import Connections, Event
from replay.capture.kafka.pairing import Pairing
from replay.capture.packets.tcp import FIN, RST, SYN
from tests.examples import examples
from tests.replay.capture.packets_of import NAMES, Row, batch, by_connection, packets, read_sorted, row
from tests.replay.capture.talk import ID, framed, request, response

MS = 1_000_000
OPENING = 0x7654_3210
"""The correlation id of the first request. No other bytes have this value."""
_DEAD = {"_end_time", "_time", "_size", "_correlation_id", "_head_time"}
"""Values of a frame that are not read after its end."""


def fetch(correlation_id: int, version: int = 11, client_id: bytes = ID, body: bytes = b"") -> bytes:
    return request(1, version, correlation_id, bytes(17) + body, client_id)


def ticks(times: int, *, pieces: int = 1, start: int = 0) -> list[dict[str, Any]]:
    return [{"kind": "fetch", "number": start + number, "pieces": pieces} for number in range(times)]


def state(of: object) -> dict[str, Any]:
    """Return the numbers, bytes, texts and flags of an object, and the lengths of its lists."""
    slots = (name for each in type(of).__mro__ for name in getattr(each, "__slots__", ()))
    names = {*getattr(of, "__dict__", ()), *slots} - _DEAD
    values = {name: getattr(of, name) for name in sorted(names) if hasattr(of, name)}
    kept = {name: value for name, value in values.items() if isinstance(value, int | bytes | str)}
    return kept | {name: len(value) for name, value in values.items() if isinstance(value, list | deque)}


def states(connection: CapturedConnection) -> list[dict[str, Any]]:
    """Return the state of a connection and of its directions."""
    of_sides = [(side.stream, side.reassembly, side.framing) for side in (connection._low, connection._high)]
    parts = [connection, connection._end, connection._clocks, connection._pairing]
    return [state(part) for part in [*parts, *(part for side in of_sides for part in side)]]


def parts(rows: Sequence[Row], cuts: Iterable[int]) -> Iterator[Sequence[Row]]:
    """Divide rows into batches."""
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    return (rows[begin:end] for begin, end in pairwise(edges))


def plain(event: Event) -> Any:
    values = asdict(replace(event, response=[]) if isinstance(event, Exchange) else event)
    return values | {"response": b"".join(event.response)} if isinstance(event, Exchange) else values


def assert_same(rows: Sequence[Row], cuts: Iterable[int] = (), ports: frozenset[int] = frozenset()) -> int:
    """Read the rows one by one, in columns, and as `measure` does. Check that this gives the same exchanges.

    One by one and in columns, check that the states are the same, too. Return how many exchanges were found
    in columns.
    """
    one, other = Connections(ports=ports, plain=True), Connections(ports=ports)
    events: list[Event] = []
    with patch.object(Pairing, "take", autospec=True, side_effect=Pairing.take) as taken:
        for part in parts(rows, cuts):
            known = [*one.feed(batch(part))]
            events += known
            assert [*map(plain, other.feed(batch(part)))] == [*map(plain, known)]
            for key, connection in other._open.items():
                for after, expected in zip(states(connection), states(one._open[key]), strict=True):
                    assert after.items() ^ expected.items() == set()
    ended = [*one.end()]
    assert [*map(plain, other.end())] == [*map(plain, ended)]
    found = read_sorted(parts(rows, cuts), ports)
    assert by_connection(found) == by_connection(events + ended)
    return sum(len(call.args[2]) // 2 for call in taken.call_args_list)


class Conversation:
    """Makes the rows of one connection from steps."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.next = {True: 0xFFFF_F000, False: 2000}
        self.time = 1_000_000_000
        self.ahead = 0
        """How far the broker's clock is ahead, in nanoseconds."""

    def say(self, payload: bytes, *, client: bool, pieces: int = 1, after: int = MS, **more: Any) -> None:
        size = -(-len(payload) // pieces)
        for at in range(0, len(payload), size):
            self.segment(payload[at : at + size], client=client, after=after if not at else 0, **more)

    def segment(
        self,
        payload: bytes = b"",
        *,
        client: bool,
        after: int = MS,
        lost: bool = False,
        cut: int = 0,
        flags: int = 0,
    ) -> None:
        self.time += after
        kept = payload[: len(payload) - cut]
        one = row(
            client=client,
            sequence=self.next[client],
            payload=kept,
            flags=flags,
            missing=len(payload) - len(kept),
            time=self.time + (0 if client else self.ahead),
            ack=self.next[not client],
        )
        self.rows += [] if lost else [one]
        taken = len(payload) + bool(flags & SYN) + bool(flags & FIN)
        self.next[client] = self.next[client] + taken & 0xFFFF_FFFF

    def step(
        self,
        kind: str,
        number: int,
        after: int = MS,
        pieces: int = 1,
        version: int = 11,
        size: int = 6,
        wait: int = MS,
    ) -> None:
        asked, told = fetch(number, version), response(number, bytes(size))
        if kind == "fetch":
            self.say(asked, client=True, after=after)
            self.say(told, client=False, pieces=pieces, after=wait)
        elif kind == "split":
            self.say(asked, client=True, pieces=2, after=after)
            self.say(told, client=False)
        elif kind == "pipelined":
            self.say(asked + fetch(number + 1), client=True, after=after)
            self.say(told + response(number + 1), client=False, pieces=pieces)
        elif kind == "other":
            self.say(request(3, 1, number, b"\0" * 4), client=True, after=after)
            self.say(told, client=False)
        elif kind == "renamed":
            self.say(fetch(number, version, framed(b"")[2:] + b""), client=True, after=after)
            self.say(told, client=False)
        elif kind == "acks 0":
            self.say(request(0, 7, number, b"\xff\xff\0\0" + b"\0" * 8), client=True, after=after)
        elif kind == "wrong number":
            self.say(asked, client=True, after=after)
            self.say(response(number + 7), client=False)
        elif kind in {"lost request", "lost response"}:
            self.say(asked, client=True, after=after, lost=kind == "lost request")
            self.say(told, client=False, lost=kind == "lost response")
        elif kind == "cut":
            self.say(asked, client=True, after=after)
            self.say(told, client=False, cut=3)
        elif kind == "again":
            self.rows += self.rows[-2:]
        elif kind == "swapped":
            self.rows[-2:] = reversed(self.rows[-2:])
        elif kind == "clocks":
            self.ahead = size * MS
        elif kind in {"fin", "rst"}:
            self.segment(client=True, flags=FIN if kind == "fin" else RST)
        else:
            self.next = {True: 7_000 + number, False: 9_000_000 + number}
            self.segment(client=True, flags=SYN)
            self.segment(client=False, flags=SYN)


KINDS = (
    *(
        "fetch",
        "split",
        "pipelined",
        "other",
        "renamed",
        "acks 0",
        "wrong id",
        "lost request",
        "lost response",
    ),
    *("cut", "again", "swapped", "clocks", "fin", "rst", "syn"),
)
odd = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "number": st.integers(-3, 40),
        "after": st.sampled_from([0, 1, MS, 300 * MS, 3_000 * MS, -MS, -2_000 * MS]),
        "pieces": st.integers(1, 3),
        "version": st.integers(0, 18),
        "size": st.integers(0, 40),
        "wait": st.sampled_from([0, 1, MS, 2 * MS]),
    }
)
stretch = st.builds(ticks, st.integers(1, 12), pieces=st.integers(1, 3), start=st.integers(0, 30))
steps = st.lists(st.one_of(stretch, stretch, odd.map(lambda one: [one])), min_size=1, max_size=12)


@examples(200)
@given(
    said=steps,
    cuts=st.lists(st.integers(0, 200), max_size=4),
    forced=st.booleans(),
    begins=st.sampled_from(["", "syn", "opened"]),
    dropped=st.integers(0, 3),
    flags=st.sampled_from([0, SYN, FIN, RST]),
)
def test_any_conversation_is_read_alike(
    *,
    said: list[list[dict[str, Any]]],
    cuts: list[int],
    forced: bool,
    begins: str,
    dropped: int,
    flags: int,
) -> None:
    talk = Conversation()
    if begins == "syn":
        talk.step("syn", 0)
    if begins == "opened":
        talk.step("other", OPENING)
    for step in (step for each in said for step in each):
        talk.step(**step)
    if flags:
        talk.segment(client=True, flags=flags)
    assert_same(talk.rows[dropped:], cuts, frozenset({9092}) if forced else frozenset())


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_settled_connection_takes_all_that_is_whole(pieces: int) -> None:
    talk = Conversation()
    talk.step("syn", 0)
    for step in ticks(40, pieces=pieces):
        talk.step(**step)
    assert assert_same(talk.rows, [20 * (1 + pieces)]) >= 40 - 5


def test_with_clocks_apart_only_what_has_to_be_corrected_is_read_row_by_row() -> None:
    """If clocks differ, only responses whose times have to be corrected are read row by row.

    These are the responses whose round trip is the shortest so far: here every tenth one.
    """
    talk = Conversation()
    talk.ahead = -50 * MS
    talk.step("syn", 0)
    for step in ticks(60):
        talk.step(**step, wait=MS - step["number"] if step["number"] % 10 == 0 else 5 * MS)
    assert assert_same(talk.rows) >= 30


def test_a_null_client_id_is_read_row_by_row() -> None:
    talk = Conversation()
    talk.step("syn", 0)
    for number in range(20):
        talk.say(fetch(number, client_id=struct.pack(">h", -1)), client=True)
        talk.say(response(number), client=False)
    assert assert_same(talk.rows) == 0


def _lose(rows: list[Row], share: float, chance: Random) -> list[Row]:
    return [one for one in rows if chance.random() >= share]


@examples(30)
@given(
    st.sampled_from(NAMES[:2]),
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 0.002, 0.02]),
    st.sampled_from([0, MS // 10, -60 * MS]),
    st.sampled_from([0, 0, 3]),
)
def test_real_connections_are_read_alike(name: str, seed: int, lost: float, apart: int, late: int) -> None:
    chance = Random(seed)
    rows = [one if one.from_low else replace(one, time=one.time + apart) for one in packets(name)]
    counts = Counter(one.connection for one in rows)
    key = chance.choice(sorted(key for key, count in counts.items() if 8 * count > len(rows)))
    own = _lose([one for one in rows if one.connection == key][:400], lost, chance)
    own = [one for _, one in sorted(enumerate(own), key=lambda pair: pair[0] + chance.random() * late)]
    assert_same(own, [chance.randrange(400) for _ in range(3)])


def test_connections_in_one_batch_are_read_alike() -> None:
    rows = sorted(packets("librdkafka-100p"), key=lambda one: one.connection)
    assert assert_same(rows, range(0, len(rows), 1500)) > 100
