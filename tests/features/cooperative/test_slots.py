"""Slots: their text, and which of them count for a partition."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.positions import (
    MOST_CHARACTERS,
    Committed,
    Plan,
    Positions,
    TopicPartition,
    committed_metadata,
    read_committed,
    utf16_units,
)
from proxy.features.cooperative.ranges import KeyRanges
from proxy.features.cooperative.slots import (
    Seat,
    Slot,
    Stored,
    narrowed,
    read_slot,
    resolved,
    seats,
    slot_metadata,
)

HALF = SPACE // 2
LOW: KeyRanges = ((0, HALF - 1),)
HIGH: KeyRanges = ((HALF, SPACE - 1),)
ORDERS: TopicPartition = b"orders", 0
PLAN = Plan(0x0102_0304_0506_0708, 2)

OFFSETS = st.integers(0, 2**63 - 1)
MAPS = st.dictionaries(st.integers(1, SPACE - 1), OFFSETS, max_size=5).flatmap(
    lambda steps: OFFSETS.map(
        lambda first: Positions([0, *sorted(steps)], [first, *(steps[start] for start in sorted(steps))])
    )
)
RANGES = st.lists(st.integers(0, SPACE - 1), min_size=2, max_size=6, unique=True).map(
    lambda bounds: tuple(zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False))
)
PLACES = st.tuples(st.binary(min_size=1, max_size=20), st.integers(0, 2**31 - 1))
SLOTS = st.dictionaries(PLACES, st.builds(Stored, st.integers(0, 2**63 - 1), RANGES, MAPS), max_size=5)


def test_the_bytes_of_a_slot() -> None:
    slot: Slot = {ORDERS: Stored(PLAN.id, LOW, Positions.all_at(300))}
    assert slot_metadata(slot) == "fgs1:AQIDBAUGBwgGb3JkZXJzAAEAAAAAf____6wCAQAAAAAA"
    assert read_slot(slot_metadata(slot)) == slot
    assert read_slot(slot_metadata(slot) + "\0") == slot


@given(SLOTS)
def test_what_is_written_is_read(slot: Slot) -> None:
    assert read_slot(slot_metadata(slot, most=10**6)) == slot


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_any_text_is_read(text: str) -> None:
    for stored in read_slot("fgs1:" + text).values():
        assert all(low <= high for low, high in stored.ranges)


def test_a_slot_without_room_for_all_keeps_the_last_partitions() -> None:
    slot: Slot = {(b"t", number): Stored(PLAN.id, LOW, Positions.all_at(number)) for number in range(500)}
    text = slot_metadata(slot)
    assert utf16_units(text) <= MOST_CHARACTERS
    kept = read_slot(text)
    assert 50 < len(kept) < 500
    assert list(kept) == list(slot)[-len(kept) :]


@given(MAPS, MAPS, RANGES)
def test_a_slot_says_what_its_member_has_and_nothing_else(
    theirs: Positions, ours: Positions, of: KeyRanges
) -> None:
    committed = Committed(theirs, "", PLAN)
    found = resolved(ORDERS, committed, {1: {ORDERS: Stored(PLAN.id, of, narrowed(ours, of))}})
    for hashed in {0, SPACE - 1, *found.starts, *(bound for one in of for bound in one)}:
        inside = any(low <= hashed <= high for low, high in of)
        assert found.at(hashed) == (ours if inside else theirs).at(hashed)


def test_slots_of_another_plan_or_beyond_the_number_do_not_count() -> None:
    """Case C58: what a tool or a consumer without a gateway commits has no plan."""
    stored = Stored(PLAN.id, LOW, Positions.all_at(900))
    theirs = Positions.all_at(300)
    other = Stored(PLAN.id + 1, LOW, Positions.all_at(900))
    assert resolved(ORDERS, Committed(theirs, "", PLAN), {0: {ORDERS: other}}) == theirs
    assert resolved(ORDERS, Committed(theirs, "", PLAN), {2: {ORDERS: stored}}) == theirs
    assert resolved(ORDERS, read_committed(300, ""), {0: {ORDERS: stored}}) == theirs
    assert resolved(ORDERS, Committed(theirs, "", PLAN), {0: {ORDERS: stored}}).at(0) == 900


def test_a_map_that_claims_any_number_of_slots_costs_no_more_than_the_slots_that_were_read() -> None:
    """Anyone who may commit for the group can write such a map."""
    plan = Plan(PLAN.id, 2**63)
    stored = Stored(PLAN.id, LOW, Positions.all_at(900))
    text = committed_metadata(Positions.all_at(300), "", plan=plan)
    found = resolved(ORDERS, read_committed(300, text), {1: {ORDERS: stored}})
    assert (found.at(0), found.at(HALF)) == (900, 300)


def test_a_map_with_a_plan_is_there_with_one_step_as_well() -> None:
    text = committed_metadata(Positions.all_at(300), "own", plan=PLAN)
    assert read_committed(300, text) == Committed(Positions.all_at(300), "own", PLAN)
    assert read_committed(301, text).plan is None  # a tool has set another offset


def test_each_member_has_a_slot_of_its_own() -> None:
    given = seats(7, [b"b", b"c", b"a"], [ORDERS])
    across = frozenset([ORDERS])
    assert given == {b"a": Seat(7, 3, 0, across), b"b": Seat(7, 3, 1, across), b"c": Seat(7, 3, 2, across)}
