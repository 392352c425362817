"""The partition table has the same contents as a dict, after adding, forgetting, finding and ordering
partitions.
"""

from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import Listing
from proxy.protocol.fetch_response import PartitionResponse
from proxy.session.partitions import MAX_LOOKUP, PartitionTable
from tests.examples import examples
from tests.frames import SESSION_VERSIONS, Want, entry, fetch, fetch_response, parsed, walked, wire_key

Key: TypeAlias = tuple[str, int]

KEYS = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 9))


def listing(version: int, *wants: tuple[str, int] | tuple[str, int, int]) -> Listing:
    found = parsed(fetch(version, *wants)).listing
    assert found is not None
    return found


def every(what: Listing) -> "np.typing.NDArray[np.intp]":
    return np.arange(len(what))


def filled(version: int, *wants: tuple[str, int]) -> PartitionTable:
    table = PartitionTable(LAYOUTS[version], 0)
    what = listing(version, *wants)
    assert table.add(what, every(what))
    table.place(table.locate(what))
    return table


class TableAgainstDict(RuleBasedStateMachine):
    """A table, and a dict of its expected contents: partition -> the entry that was added last."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 11
        self.table = PartitionTable(LAYOUTS[self.version], 0)
        self.held: dict[Key, int] = {}
        self.placed: dict[Key, int] = {}
        self.told: dict[Key, bytes] = {}
        """For each partition, the broker's last answer about it, if this answer is stored."""
        self.followed: list[int] = []
        """A column that follows the order of the table's rows. It holds the number with which each row was
        created.
        """
        self.table.arranged = self.follow

    @rule(wants=st.lists(KEYS, min_size=1, max_size=8, unique=True), offset=st.integers(0, 99))
    def add(self, wants: list[Key], offset: int) -> None:
        new = [place for place, key in enumerate(wants) if key not in self.held]
        what = listing(self.version, *((*key, offset) for key in wants))
        if new:
            assert self.table.add(what, np.array(new))
        self.held |= {wants[place]: offset for place in new}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        rows = [self.table.row(wire_key(self.version, name), index) for name, index in gone]
        self.table.forget(np.array(rows))
        self.held = {key: offset for key, offset in self.held.items() if key not in gone}
        self.told = {key: told for key, told in self.told.items() if key not in gone}
        self.placed = {key: place for key, place in self.placed.items() if key not in gone}

    @rule(wants=st.lists(KEYS, max_size=12, unique=True))
    def locate(self, wants: list[Key]) -> None:
        found = self.table.locate(listing(self.version, *wants)).tolist()
        singly = [self.table.row(wire_key(self.version, name), index) for name, index in wants]
        assert found == singly
        assert [row >= 0 for row in found] == [key in self.held for key in wants]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        wants = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        assert self.table.place(self.table.locate(listing(self.version, *wants))) == len(wants)
        self.placed = {key: place for place, key in enumerate(wants)}

    @precondition(lambda self: self.held)
    @rule(data=st.data(), high=st.integers(0, 255), error=st.sampled_from([0, 0, 6]))
    def take_entry(self, data: st.DataObject, high: int, error: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        name = wire_key(self.version, key[0])
        fixed = key[1].to_bytes(4) + error.to_bytes(2) + bytes([high]) * 24
        answered = PartitionResponse(
            name, key[1], error, 0, 0, fixed, ends_empty=True, records=0, redirects=False
        )
        self.table.apply_entry(answered, self.table.row(name, key[1]))
        if error:
            self.told.pop(key, None)
        else:
            self.told[key] = fixed

    @rule()
    def forget_responses(self) -> None:
        self.table.forget_responses()
        self.told = {}

    def follow(self, order: "np.typing.NDArray[np.intp]") -> None:
        self.followed += range(len(self.followed), len(order))
        self.followed = [self.followed[row] for row in order]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def arrange(self, data: st.DataObject) -> None:
        wants = data.draw(st.permutations(sorted(self.held)))
        what = listing(self.version, *wants)
        rows = self.table.locate(what)
        self.followed += range(len(self.followed), 1 + max(rows.tolist()))
        before = [self.followed[row] for row in rows]
        self.table.arrange(rows)
        assert self.table.locate(what).tolist() == list(range(len(wants)))
        assert self.followed[: len(wants)] == before
        self.placed = {key: place for place, key in enumerate(wants)}

    @invariant()
    def holds_what_it_should(self) -> None:
        assert self.table.size == len(self.held)
        rows = {key: self.table.row(wire_key(self.version, key[0]), key[1]) for key in self.held}
        assert len(set(rows.values())) == len(rows)
        for (name, index), row in rows.items():
            sent = listing(self.version, (name, index, self.held[name, index]))
            assert self.table.requests[row].tobytes() == sent.entries[0].tobytes()
            assert self.table.key(int(self.table.topic[row])) == wire_key(self.version, name)
            assert self.table.partitions(np.array([row])).tolist() == [index]

    @invariant()
    def knows_what_is_placed(self) -> None:
        rows = {key: self.table.row(wire_key(self.version, key[0]), key[1]) for key in self.held}
        places = {key: int(self.table.position[row]) for key, row in rows.items()}
        assert {key: place for key, place in places.items() if place >= 0} == self.placed
        assert set(self.table.unplaced().tolist()) == {rows[key] for key in rows if key not in self.placed}

    @invariant()
    def fills_in_what_was_told_and_nothing_else(self) -> None:
        rows = {key: self.table.row(wire_key(self.version, key[0]), key[1]) for key in self.held}
        known = {row for row in range(len(self.table.known)) if self.table.known[row]}
        assert known == {rows[key] for key in self.told}
        for key, fixed in self.told.items():
            assert self.table.cached_entries[rows[key]].tobytes()[: len(fixed)] == fixed
        assert set(self.table.unknown().tolist()) == set(rows.values()) - known


TestTableAgainstDict = TableAgainstDict.TestCase
TestTableAgainstDict.settings = examples(20, stateful_step_count=25)


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_rows_are_found_at_every_version(version: int) -> None:
    table = filled(version, ("a", 0), ("b", 5), ("a", 7))
    rows = table.locate(listing(version, ("a", 7), ("b", 5), ("a", 0), ("b", 4), ("c", 0))).tolist()
    assert rows == [2, 1, 0, -1, -1]
    assert table.rows(wire_key(version, "a"), np.array([7, 8, 0], np.uint32)).tolist() == [2, -1, 0]
    assert table.row(wire_key(version, "a"), -1) == table.row(wire_key(version, "x"), 0) == -1
    assert repr(table) == f"<PartitionTable partitions=3 topics=2 v{version}>"


def test_one_topic_is_looked_up_without_its_span_being_checked_twice() -> None:
    """A list with one topic is looked up in a faster way, and an unknown partition in the normal way.

    Both ways find the same rows.
    """
    table = filled(11, ("a", 0), ("a", 1))
    assert table.locate(listing(11, ("a", 1), ("a", 0))).tolist() == [1, 0]
    assert table.locate(listing(11, ("a", 1), ("a", 9))).tolist() == [1, -1]
    assert table.locate(listing(11, ("b", 0), ("b", 1))).tolist() == [-1, -1]


def test_a_topic_that_comes_in_two_elements_is_one() -> None:
    """Trap 48: a topic with two elements is stored as one topic."""
    table = filled(12, ("a", 0), ("b", 0), ("a", 1))
    assert len(table.numbers) == 2
    assert table.locate(listing(12, ("a", 0), ("a", 1), ("b", 0))).tolist() == [0, 2, 1]


def test_rows_are_used_again_without_what_they_held() -> None:
    table = filled(11, ("a", 0), ("a", 1))
    table.known[:] = True
    table.refused[:] = 3
    table.cached_entries[0] = np.void(b"\x01" * table.layout.response_entry)
    table.forget(np.array([0]))
    assert (table.size, table.known[0], table.position[0]) == (1, False, -1)
    what = listing(11, ("b", 3))
    table.add(what, every(what))
    row = table.row(b"b", 3)
    assert (row, table.known[row], table.refused[row]) == (0, False, 0)
    blank = bytes(table.layout.aborted) + table.layout.empty_ends[0]
    assert table.cached_entries[row].tobytes() == blank
    assert table.row(b"a", 0) == -1


@pytest.mark.parametrize("isolation", [0, 1])
def test_images_begin_blank(isolation: int) -> None:
    table = PartitionTable(LAYOUTS[16], isolation)
    what = listing(16, ("a", 0))
    table.add(what, every(what))
    assert table.cached_entries[0].tobytes() == bytes(30) + LAYOUTS[16].empty_ends[isolation]


def test_sparse_partitions_are_refused_and_nothing_changes() -> None:
    """Partitions with very high numbers are refused, and the table does not change.

    Looking up partitions takes 4 bytes for each number up to the highest one. The number 2^31-1 would take 8
    GiB.
    """
    table = filled(11, ("a", 0), ("a", 1))
    lookup = len(table._lookup)
    for far in (2**31 - 1, MAX_LOOKUP + 100):
        what = listing(11, ("b", 0), ("a", far))
        assert not table.add(what, every(what))
    assert (table.size, len(table._lookup), len(table.numbers)) == (2, lookup, 1)
    assert table.locate(listing(11, ("a", 0), ("a", 1), ("b", 0))).tolist() == [0, 1, -1]


def test_a_negative_partition_is_a_far_one() -> None:
    what = listing(11, ("a", -1))
    table = filled(11, ("a", 0))
    assert table.locate(what).tolist() == [-1]
    assert not table.add(what, every(what))


def test_what_is_forgotten_comes_to_outweigh_what_is_held() -> None:
    """A table reports when most of its memory belongs to forgotten topics. Here a client lists new topics all
    the time.
    """
    table = filled(11, ("held", 0))
    count = 0
    while not table.bloated:
        what = listing(11, (f"t{count}", 0))
        table.add(what, every(what))
        table.forget(table.locate(what).astype(np.intp))
        count += 1
    assert 1_000 < count < 2_000
    assert table.size == 1
    assert len(table.topic) < 10


def test_another_session_knows_nothing() -> None:
    table = filled(11, ("a", 0))
    table.known[0], table.refused[0] = True, 3
    table.forget_responses()
    assert (bool(table.known[0]), int(table.refused[0]), table.size) == (False, 0, 1)
    assert table.unknown().tolist() == [0]


@given(st.lists(KEYS, min_size=1, max_size=30))
@examples(50)
def test_place_tells_repetitions(wants: list[Key]) -> None:
    table = filled(13, *dict.fromkeys(wants))
    rows = table.locate(listing(13, *wants))
    assert table.place(rows) == len(set(wants))


def test_many_partitions_cost_columns() -> None:
    """200,000 partitions take at most 110 bytes each. They are stored in columns, not as objects."""
    count = 200_000
    layout = LAYOUTS[16]
    entries = np.zeros(count, layout.request_item)
    entries.view(layout.request_fields)["partition"] = np.arange(count)
    what = Listing(layout, [bytes(16)], [count], entries)
    table = PartitionTable(layout, 0)
    assert table.add(what, every(what))
    columns = (table.requests, table.cached_entries, table.known, table.refused, table.topic, table.position)
    assert sum(column.nbytes for column in (*columns, table._lookup)) / count <= 110
    assert table.locate(what).tolist() == list(range(count))


def test_who_is_behind_follows_requests_responses_and_rows() -> None:
    """With read_committed, a partition counts as behind while its offset is below the last stable offset.

    This changes with requests, responses, errors, and when rows are forgotten or moved.
    """
    wants: list[Want] = [("t", number, number) for number in range(10)]
    what = listing(12, *wants)
    for isolation, behind in ((0, set[int]()), (1, {0, 1, 2, 3, 4})):
        table = PartitionTable(what.layout, isolation)
        assert table.add(what, every(what))
        data = [entry(number, 5, aborted=() if isolation else None) for number in range(10)]
        (run,) = walked(fetch_response(12, ("t", data)), 12, isolation).runs
        table.apply_run(run, every(what))
        assert table.behind == behind
    moved = listing(12, ("t", 3, 9)).entries
    table.alter_row(3, moved.tobytes())
    assert table.behind == {0, 1, 2, 4}
    (news,) = walked(fetch_response(12, ("t", [entry(3, 12, aborted=(), records=b"r")])), 12, 1).entries
    table.apply_entry(news, 3)
    assert table.behind == {0, 1, 2, 3, 4}
    (gone,) = walked(fetch_response(12, ("t", [entry(4, error=6)])), 12, 1).entries
    table.apply_entry(gone, 4)
    assert table.behind == {0, 1, 2, 3}
    table.alter(np.array([0, 1]), listing(12, ("t", 0, 5), ("t", 1, 1)).entries)
    assert table.behind == {1, 2, 3}
    table.forget(np.array([1]))
    assert table.behind == {2, 3}
    table.arrange(np.array([9, 8, 7, 6, 5, 4, 3, 2, 0]))
    assert table.behind == {6, 7}
    table.forget_responses()
    assert table.behind == set()


OFFSETS = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@given(OFFSETS, OFFSETS)
@examples(50)
def test_one_row_is_weighed_as_many_are(offset: int, stable: int) -> None:
    """Offsets may be negative: a broker that knows no last stable offset sends -1 (FetchResponse.json)."""
    what = listing(12, ("t", 0, offset))
    table = PartitionTable(what.layout, 1)
    assert table.add(what, every(what))
    table.known[0] = True
    for _ in range(2):
        table.describe(0, bytes(14) + stable.to_bytes(8, signed=True))
        assert table.behind == ({0} if offset < stable else set())
        table.alter(every(what), what.entries)
        assert table.behind == ({0} if offset < stable else set())
        table.alter_row(0, what.entries[0].tobytes())
