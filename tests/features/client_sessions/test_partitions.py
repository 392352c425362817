"""Tests of `SessionPartitions`: the partitions of a client's session, stored as numpy columns."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.client_sessions.partitions import SessionPartitions
from proxy.protocol.fetch_layout import LAYOUTS, FetchLayout
from proxy.protocol.fetch_request import MAX_TOPICS, FetchRequest, Listing, parse_fetch_request
from tests.examples import examples
from tests.model.wire import FetchPartition, FetchTopic, encode_request
from tests.model.wire import FetchRequest as ModelRequest

Wanted = tuple[str, int, int]
"""A topic, a partition number and a fetch offset."""


def listing(wanted: Sequence[Wanted], version: int = 12, epoch: int = -1) -> Listing:
    """Build the listing of a fetch. Each partition is in its own topic element."""
    topics = tuple(
        FetchTopic(
            topic=topic,
            topic_id=topic.encode().ljust(16),
            partitions=(FetchPartition(partition=index, fetch_offset=offset, current_leader_epoch=epoch),),
        )
        for topic, index, offset in wanted
    )
    frame = encode_request(ModelRequest(version=version, client_id="", topics=topics))
    request: FetchRequest = parse_fetch_request(
        len(frame).to_bytes(4) + frame, version, 15 if version >= 12 else 14
    )
    assert request.listing is not None
    return request.listing


def keys(version: int, topic: str) -> bytes:
    return topic.encode().ljust(16) if version >= 13 else topic.encode()


def content(partitions: SessionPartitions, layout: FetchLayout) -> list[Wanted]:
    """Return the topic, partition and fetch offset of all rows, in the order of a full fetch."""
    elements, entries = partitions.listed(layout)
    data = np.frombuffer(entries, layout.request_item).view(layout.request_fields)
    return [
        (key.decode().rstrip(), int(row["partition"]), int(row["offset"]))
        for key, start, end in elements
        for row in data[start:end]
    ]


def holding(*wanted: Wanted, version: int = 12) -> SessionPartitions:
    partitions = SessionPartitions(LAYOUTS[version])
    partitions.update(listing(wanted, version))
    return partitions


def row_of(held: SessionPartitions, key: bytes, partition: int) -> int:
    return int(held.rows([(key, 1)], np.array([partition & 0xFFFF_FFFF]))[0])


def test_rows_stand_in_the_order_of_the_first_request() -> None:
    held = holding(("b", 3, 1), ("a", 7, 2), ("b", 1, 3))

    assert content(held, LAYOUTS[12]) == [("b", 3, 1), ("a", 7, 2), ("b", 1, 3)]
    elements, _ = held.listed(LAYOUTS[12])
    assert [(key, end - start) for key, start, end in elements] == [(b"b", 1), (b"a", 1), (b"b", 1)]
    assert repr(held) == "<SessionPartitions partitions=3 topics=2 v12>"


def test_nothing_is_held_of_an_empty_request() -> None:
    held = holding()

    elements, entries = held.listed(LAYOUTS[12])
    assert (len(held), elements, bytes(entries)) == (0, [], b"")
    assert row_of(held, b"a", 0) == -1
    held.forget([(b"a", np.array([0], ">u4").tobytes())])
    held.move_to_end([])


def test_topics_that_are_mixed_much_are_listed_one_after_the_other() -> None:
    """If topics alternate often, a full fetch lists all partitions of a topic together.

    Otherwise the name of the topic would be repeated at each change: up to 253 bytes for an entry of 32
    bytes.
    """
    count = MAX_TOPICS // 2 + 1
    mixed = [(topic, number, 0) for number in range(count) for topic in ("b", "a", "c")]
    held = holding(*mixed[:MAX_TOPICS])
    held.update(listing(mixed[MAX_TOPICS:], 12))

    for first in mixed[:7]:
        listed = content(held, LAYOUTS[12])
        assert sorted(listed) == sorted(mixed)
        assert len(held.listed(LAYOUTS[12])[0]) == 3
        # Who is first in the session's order is first here, and each in its topic.
        assert listed[0] == first
        assert [each for each in listed if each[0] == "b"] == [
            entry for entry in [*mixed[mixed.index(first) :], *mixed[: mixed.index(first)]] if entry[0] == "b"
        ]
        held.move_to_end([0])


def test_topics_that_are_mixed_a_little_stay_in_the_order_of_the_session() -> None:
    """If topics alternate only a few times, a full fetch keeps the order of the session.

    Under a response limit, the order decides which partition gets records (KIP-227).
    """
    mixed = [(topic, number, 0) for number in range(MAX_TOPICS // 2) for topic in ("b", "a")]

    assert content(holding(*mixed), LAYOUTS[12]) == mixed


def test_listed_twice_first_place_last_values() -> None:
    """Section 2.3: a partition that is listed twice keeps its first position, and gets its last values."""
    held = holding(("a", 0, 1), ("b", 0, 2), ("a", 0, 3))

    assert content(held, LAYOUTS[12]) == [("a", 0, 3), ("b", 0, 2)]


def test_a_delta_changes_known_ones_in_place_and_appends_new_ones() -> None:
    """Section 2.3: an incremental fetch changes known partitions in place, and appends new partitions."""
    held = holding(("a", 0, 0), ("a", 1, 0))
    held.high_watermarks[:] = 5

    held.update(listing([("b", 2, 9), ("a", 1, 8), ("b", 0, 7), ("b", 2, 6)]))

    assert content(held, LAYOUTS[12]) == [("a", 0, 0), ("a", 1, 8), ("b", 2, 6), ("b", 0, 7)]
    assert held.high_watermarks.tolist() == [5, 5, -1, -1]
    assert held.log_starts.tolist() == [-1, -1, -1, -1]


def test_what_is_forgotten_leaves_the_others_in_their_order() -> None:
    """Section 2.3: when partitions are forgotten, the remaining partitions keep their order.

    Unknown partitions in the list to forget are ignored.
    """
    held = holding(("a", 0, 0), ("b", 1, 1), ("a", 2, 2))

    held.forget([(b"a", np.array([0, 5, 0], ">u4").tobytes()), (b"c", np.array([1], ">u4").tobytes())])

    assert content(held, LAYOUTS[12]) == [("b", 1, 1), ("a", 2, 2)]
    assert [row_of(held, b"a", index) for index in (0, 2)] == [-1, 1]


def test_who_had_records_goes_to_the_end() -> None:
    """Section 2.5: partitions with records move to the end of the session, in the order of the response."""
    held = holding(*(("a", index, index) for index in range(6)))

    held.move_to_end([3, 1])
    assert [index for _, index, _ in content(held, LAYOUTS[12])] == [0, 2, 4, 5, 3, 1]
    held.move_to_end([4, 5])
    assert [index for _, index, _ in content(held, LAYOUTS[12])] == [0, 2, 4, 5, 3, 1]
    held.move_to_end([5, 5])
    assert [row_of(held, b"a", index) for index in range(6)] == [0, 5, 1, 4, 2, 3]


def test_rows_are_found_in_any_order() -> None:
    held = holding(("a", 5, 0), ("a", 3, 0), ("b", 3, 0))

    def rows(topic: bytes, *partitions: int) -> list[int]:
        found: list[int] = held.rows([(topic, len(partitions))], np.array(partitions, ">u4")).tolist()
        return found

    assert rows(b"a", 5, 3) == [0, 1]
    assert rows(b"a", 3, 9, 5) == [1, -1, 0]
    assert rows(b"b", 3) == [2]
    assert rows(b"c", 3, 2**32 - 1) == [-1, -1]
    both = held.rows([(b"a", 2), (b"b", 1), (b"a", 1)], np.array([5, 3, 3, 5], ">u4"))
    assert both.tolist() == [0, 1, 2, 0]


def test_more_may_be_looked_for_than_is_held() -> None:
    held = holding(("a", 5, 0), ("a", 3, 0))

    assert held.rows([(b"a", 4)], np.array([5, 3, 3, 3], ">u4")).tolist() == [0, 1, 1, 1]
    held.forget([(b"a", np.array([3, 3, 3, 3], ">u4").tobytes())])
    assert content(held, LAYOUTS[12]) == [("a", 5, 0)]


def test_partition_numbers_may_be_any() -> None:
    held = holding(("a", 2**31 - 1, 1), ("a", -1, 2), ("a", 0, 3), ("b", -(2**31), 4))

    assert [row_of(held, b"a", index) for index in (2**31 - 1, -1, 0)] == [0, 1, 2]
    assert row_of(held, b"b", -(2**31)) == 3


@pytest.mark.parametrize(("narrow", "wide"), [(7, 9), (7, 12), (11, 12), (9, 12)])
def test_versions_with_more_fields_and_with_fewer(narrow: int, wide: int) -> None:
    """Case 20: a client may change the Fetch version within a session.

    Fields that the new version lacks keep their values.
    """
    held = SessionPartitions(LAYOUTS[narrow])
    held.update(listing([("a", 0, 4), ("a", 1, 5)], narrow))
    held.update(listing([("a", 1, 6)], wide, epoch=3))

    for version in (narrow, wide):
        first, second = listing([("a", 0, 4)], version), listing([("a", 1, 6)], version, epoch=3)
        expected = first.entries.tobytes() + second.entries.tobytes()
        assert bytes(held.listed(LAYOUTS[version])[1]) == expected
    held.update(listing([("a", 0, 9)], narrow))
    assert held.layout.request_entry == LAYOUTS[wide].request_entry
    assert content(held, LAYOUTS[wide]) == [("a", 0, 9), ("a", 1, 6)]


def test_topics_that_were_forgotten_are_not_kept_for_ever() -> None:
    """Forgotten topics are removed from memory.

    So a hostile client can't fill the memory by adding and forgetting topics.
    """
    held = holding(("stays", 0, 0), ("stays too", 1, 1))
    for number in range(500):
        held.update(listing([(f"t{number}", 1, 1)]))
        held.forget([(f"t{number}".encode(), np.array([1], ">u4").tobytes())])

    assert "topics=" in repr(held)
    assert int(repr(held).split("topics=")[1].split()[0]) < 80
    assert content(held, LAYOUTS[12]) == [("stays", 0, 0), ("stays too", 1, 1)]
    assert [row_of(held, b"stays", 0), row_of(held, b"stays too", 1), row_of(held, b"t3", 1)] == [0, 1, -1]


NAMES = st.sampled_from(["a", "b", "c"])
WANTED = st.tuples(NAMES, st.integers(0, 4), st.integers(0, 99))
STEP = st.one_of(
    st.tuples(st.just("update"), st.lists(WANTED, max_size=6)),
    st.tuples(st.just("forget"), st.lists(st.tuples(NAMES, st.integers(0, 4)), max_size=4)),
    st.tuples(st.just("move"), st.lists(st.integers(0, 14), max_size=4)),
)


@given(version=st.sampled_from([7, 9, 12, 16]), steps=st.lists(STEP, max_size=12))
@examples(300)
def test_any_history_is_that_of_an_insertion_ordered_map(
    version: int, steps: list[tuple[str, list[tuple[str, int, int] | tuple[str, int] | int]]]
) -> None:
    held, plain = SessionPartitions(LAYOUTS[version]), dict[tuple[str, int], int]()
    for kind, what in steps:
        if kind == "update":
            wanted = [item for item in what if isinstance(item, tuple) and len(item) == 3]
            held.update(listing(wanted, version))
            plain.update({(topic, index): offset for topic, index, offset in wanted})
        elif kind == "forget":
            gone = [item for item in what if isinstance(item, tuple) and len(item) == 2]
            held.forget([(keys(version, topic), np.array([index], ">u4").tobytes()) for topic, index in gone])
            for item in gone:
                plain.pop(item, None)
        else:
            rows = [row for row in dict.fromkeys(what) if isinstance(row, int) and row < len(plain)]
            moved = [list(plain)[row] for row in rows]
            held.move_to_end(rows)
            for key in moved:
                plain[key] = plain.pop(key)
        expected = [(*key, offset) for key, offset in plain.items()]
        assert content(held, LAYOUTS[version]) == expected
        for row, (topic, index, _) in enumerate(expected):
            assert row_of(held, keys(version, topic), index) == row
