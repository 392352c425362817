"""A fetch that only rotates its list is processed in a faster way, with the same result.

The same result means the same delta, table and response as in the usual way.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.fetch_request import FetchRequest, Listing, build_fetch_request
from proxy.protocol.fetch_response import Received
from proxy.session.decision import Rotated
from proxy.session.expand import Expansion, expand
from proxy.session.handler import FetchSessionHandler, SessionResult
from proxy.session.partitions import is_rotation
from proxy.session.rotation import Rotation
from proxy.session.state import Action
from tests.frames import SESSION_VERSIONS, Want, entry, fetch, fetch_response, parsed, walked
from tests.session.handling import send

CORRELATION = b"\0\0\0\1"


def listed(request: FetchRequest) -> Listing:
    assert request.listing is not None
    return request.listing


@dataclass
class Way:
    """A client's session for one topic. Its fetches are processed in the usual or in the faster way."""

    version: int
    count: int
    offsets: dict[int, int] = field(default_factory=dict)
    handler: FetchSessionHandler = field(default_factory=FetchSessionHandler)
    rotation: Rotation | None = None

    def fetch(self, first: int, **fields: Any) -> FetchRequest:
        numbers = [(first + at) % self.count for at in range(self.count)]
        wants: list[Want] = [("t", number, self.offsets.get(number, 0)) for number in numbers]
        return parsed(fetch(self.version, *wants, **fields))

    def establish(self) -> "Way":
        assert self.handler.learn_listing(listed(self.fetch(0)), 0)
        self.handler.ask_full()
        data = [entry(number, 5) for number in range(self.count)]
        self.handler.handle(walked(fetch_response(self.version, ("t", data), session_id=7), self.version))
        assert self.handler.has_session
        return self

    def by_columns(self, request: FetchRequest) -> bytes:
        """Process a fetch in the usual way, which reads its entries into columns.

        Return the request to the broker.
        """
        session = self.handler.pair
        delta = send(self.handler, request)
        self.rotation = self.handler.rotation
        return build_fetch_request(request, request.layout, session, delta.topics, delta.forgotten_topics)

    def answered(self, response: bytes, chunk: int = 1 << 20) -> tuple[SessionResult, Received]:
        result = self.handler.handle(walked(response, self.version), empties=False)
        assert result.action is Action.EXPAND
        return result, Received(*(response[at : at + chunk] for at in range(0, len(response), chunk)))

    def expanded(
        self, request: FetchRequest, result: SessionResult, received: Received, throttle: int, tags: bytes
    ) -> bytes:
        table = self.handler.table
        assert table is not None
        rows = table.locate(listed(request))
        table.place(rows)
        what = Expansion(
            layout=request.layout,
            listing=listed(request),
            table=table,
            rows=rows,
            entries=result.entries,
            entry_rows=result.rows,
            entry_bytes=result.size,
            late=result.late,
            starved=[],
            received=received,
            correlation_id=CORRELATION,
            throttle_time_ms=throttle,
            tags=tags,
        )
        pieces, size = expand(what)
        assert sum(map(len, pieces)) == size
        return b"".join(pieces)


def ready(version: int, count: int) -> tuple[Way, Rotation]:
    """Return a client's session that already uses the faster way, and its `Rotation`."""
    way = Way(version, count).establish()
    way.by_columns(way.fetch(0))
    way.answered(fetch_response(version, session_id=7))
    assert way.rotation is not None
    return way, way.rotation


steps = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.dictionaries(st.integers(0, 11), st.integers(0, 3), max_size=4),
        st.dictionaries(
            st.integers(0, 11), st.sampled_from([0, 1, 40, 5_000, -3, -6, -29, -100]), max_size=4
        ),
        st.sampled_from([1 << 20, 50, 7]),
    ),
    min_size=1,
    max_size=6,
)


@given(st.sampled_from(SESSION_VERSIONS), st.integers(2, 12), steps)
def test_both_ways_lead_to_the_same_bytes(version: int, count: int, script: list[Any]) -> None:
    """The usual and the faster way of processing a fetch give the same bytes.

    This holds for any changed offsets and any change in the broker's responses.
    """
    slow = ready(version, count)[0]
    fast, rotation = ready(version, count)
    request = slow.fetch(0)
    rotation = Rotation(request, rotation.table)
    ill: list[int] = []
    for start, moves, changes, chunk in script:
        first = start % count
        slow.offsets |= {number % count: offset for number, offset in moves.items()}
        request = slow.fetch(first)
        request.topics = rotation.topics
        told = slow.by_columns(request)
        frame = request.frame
        assert rotation.first(frame) == first
        altered = rotation.altered(frame, first)
        if altered is None:  # something that was not suspected: the columns take over
            assert fast.by_columns(request) == told
        else:
            delta = rotation.delta(frame, altered, fast.handler.pair)
            assert delta == told
            fast.handler.rotation = rotation
            assert fast.handler.ask(request, Rotated(delta, first, altered))
        # A partition with an error is in every response, and once more when it is well again.
        records = dict.fromkeys(ill, 0) | {number % count: size for number, size in changes.items()}
        ill = [number for number, size in records.items() if size < 0]
        data = [
            # A session of v13 or later leaves itself when error 3 comes new (trap 8).
            entry(number, error=29 if version >= 13 and size == -3 else -size)
            if size < 0
            else entry(number, 5 + size, records=bytes(size))
            for number, size in records.items()
        ]
        elements = [("t", data)] if data else []
        response = fetch_response(version, *elements, session_id=7, throttle_time_ms=3)
        tags = b"\0" if version >= 12 else b""
        expected = slow.expanded(request, *slow.answered(response, chunk), 3, tags)
        result, received = fast.answered(response, chunk)
        pairs = list(zip(result.rows, result.entries, strict=True))
        expansion = rotation.expand(
            first,
            pairs,
            received,
            entry_bytes=result.size,
            correlation_id=CORRELATION,
            throttle_time_ms=3,
            tags=tags,
        )
        assert b"".join(expansion[0]) == expected
        assert expansion[1] == len(expected)
        rotation.suspect(result.news)
        same = (slow.handler.table, fast.handler.table)
        assert same[0] is not None
        assert same[1] is not None
        assert same[0].requests.tobytes() == same[1].requests.tobytes()
        assert same[0].cached_entries.tobytes() == same[1].cached_entries.tobytes()


def test_what_was_suspected_and_moved_is_found_in_the_order_of_the_fetch() -> None:
    way, rotation = ready(16, 6)
    rotation.suspect([5, 1, 3])
    way.offsets = {1: 9, 5: 9}
    for first, rows in ((0, [1, 5]), (2, [5, 1]), (5, [5, 1])):
        request = way.fetch(first)
        entries = listed(request).entries
        told = [(row, entries[(row - first) % 6].tobytes()) for row in rows]
        assert rotation.altered(request.frame, first) == told
    rotation.suspect([1])
    assert rotation.altered(way.fetch(0).frame, 0) is None
    rotation.suspect(range(17))
    assert rotation.altered(way.fetch(0).frame, 0) is None


def test_another_list_of_the_same_size_is_not_known() -> None:
    rotation = ready(16, 4)[1]
    rotation.suspect([0, 1, 2, 3])
    shuffled = parsed(fetch(16, ("t", 0), ("t", 2), ("t", 1), ("t", 3))).frame
    assert rotation.altered(shuffled, rotation.first(shuffled)) is None
    twice = parsed(fetch(16, ("t", 0), ("t", 1), ("t", 1), ("t", 3))).frame
    assert rotation.altered(twice, rotation.first(twice)) is None
    assert rotation.first(parsed(fetch(16, ("t", 9), ("t", 1), ("t", 2), ("t", 3))).frame) == -1


def rotations(way: Way, *numbers: int, topic: str = "t") -> Rotation | None:
    """Process a fetch of the given partitions in the usual way.

    Return the rotation that the fetch prepares, if any.
    """
    way.by_columns(parsed(fetch(16, *((topic, number) for number in numbers))))
    way.answered(fetch_response(16, session_id=7))
    return way.rotation


def test_a_circle_in_the_order_of_the_table_is_known_at_once() -> None:
    way, _ = ready(16, 4)
    for numbers in ((0, 1, 2, 3), (3, 0, 1, 2), (2, 3, 0, 1)):
        assert rotations(way, *numbers) is not None


def test_another_circle_is_known_when_it_came_twice() -> None:
    way, _ = ready(16, 4)
    table = way.handler.table
    assert table is not None
    told: list[list[int]] = []
    table.arranged = lambda order: told.append(order.tolist())
    assert rotations(way, 0, 1, 3, 2) is None
    assert rotations(way, 2, 3, 1, 0) is None
    assert rotations(way, 0, 2, 3, 1) is not None  # a turn of the last one
    assert told == [[0, 2, 3, 1]]
    assert [table.row(b"t".ljust(16, b"\0"), number) for number in range(4)] == [0, 3, 1, 2]
    assert rotations(way, 1, 0, 2, 3) is not None
    assert len(told) == 1


def test_fewer_and_more_partitions_make_another_circle() -> None:
    way, _ = ready(16, 4)
    assert rotations(way, 0, 1, 3) is None
    assert rotations(way, 3, 0, 1) is not None
    way.by_columns(parsed(fetch(16, ("t", 0), ("t", 2), ("t", 1), ("t", 3))))
    way.answered(fetch_response(16, ("t", [entry(2, 5)]), session_id=7))
    assert way.rotation is None
    assert rotations(way, 1, 3, 0, 2) is not None
    two = parsed(fetch(16, ("t", 0), ("u", 0)))
    way.by_columns(two)
    assert way.rotation is None


def test_a_list_that_no_table_can_hold_leaves_no_rotation_of_the_last_one() -> None:
    way, _ = ready(16, 4)
    sparse = listed(parsed(fetch(16, ("t", 0), ("t", 2**31 - 1))))
    assert way.handler.learn_listing(sparse, 0) is False
    assert (way.handler.table, way.handler.rotation) == (None, None)


def test_records_are_not_copied() -> None:
    way, rotation = ready(16, 4)
    way.by_columns(way.fetch(0))
    response = fetch_response(16, ("t", [entry(1, 9, records=bytes(100_000))]), session_id=7)
    result, received = way.answered(response)
    told = list(zip(result.rows, result.entries, strict=True))
    expansion = rotation.expand(
        2,
        told,
        received,
        entry_bytes=result.size,
        correlation_id=CORRELATION,
        throttle_time_ms=0,
        tags=b"\0",
    )
    views = [piece for piece in expansion[0] if isinstance(piece, memoryview)]
    assert sum(map(len, views)) > 100_000
    assert all(view.obj is response for view in views)
    assert not any(view.obj is rotation.table.cached_bytes.obj for view in views)


@given(st.lists(st.integers(-1, 5), max_size=6))
def test_is_rotation(numbers: list[int]) -> None:
    straight = list(range(len(numbers)))
    turns = [straight[at:] + straight[:at] for at in straight]
    assert is_rotation(np.array(numbers, np.int32)) is (numbers in turns)
