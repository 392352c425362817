"""Tests of the map of positions (key hash -> offset) in a commit.

They show how commits change the map, its text form, and how invalid texts are handled.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.positions import (
    MOST_CHARACTERS,
    Committed,
    Plan,
    Positions,
    committed_metadata,
    read_committed,
    to_text,
    utf16_units,
)
from proxy.features.cooperative.ranges import KeyRanges

TOP = SPACE - 1
HALF = SPACE // 2
LOW, HIGH = ((0, HALF - 1),), ((HALF, TOP),)
MAPS = st.builds(
    lambda bounds, offsets: Positions([0, *sorted(bounds)], offsets[: len(bounds) + 1]),
    st.sets(st.integers(1, TOP), max_size=8),
    st.lists(st.integers(0, 1 << 62), min_size=9, max_size=9),
)


@st.composite
def key_ranges(draw: st.DrawFn) -> KeyRanges:
    """Return one to three ranges that do not overlap."""
    bounds = sorted(draw(st.sets(st.integers(0, TOP), min_size=2, max_size=6)))
    return tuple(zip(bounds[::2], bounds[1::2], strict=False))


def test_the_text_of_the_specification() -> None:
    two = Positions([0, HALF], [3777, 4356])
    assert two.encoded() == "fg1:AQHBHQIAAAAAAIAAAADDBA"
    assert read_committed(3777, "fg1:AQHBHQIAAAAAAIAAAADDBA") == Committed(two, "")


def test_two_lanes_commit() -> None:
    """Case C23: two members commit different offsets for their lanes of one partition.

    The broker gets the lower offset. Each member gets its own offset back.
    """
    both = Positions.all_at(0).moved(LOW, 500).moved(HIGH, 300)
    assert (both.base, both.lowest(LOW), both.lowest(HIGH)) == (300, 500, 300)
    back = read_committed(300, committed_metadata(both, "")).positions
    assert back == both


@given(MAPS, key_ranges(), st.integers(0, 1 << 62), st.integers(0, TOP))
def test_a_commit_moves_its_ranges_alone(
    positions: Positions, ranges: KeyRanges, offset: int, hashed: int
) -> None:
    """Case C25: a commit changes only the positions of the member's ranges, even to a lower offset."""
    moved = positions.moved(ranges, offset)
    mine = any(low <= hashed <= high for low, high in ranges)
    assert moved.at(hashed) == (offset if mine else positions.at(hashed))
    assert moved.lowest(ranges) == offset
    assert moved.base == min(moved.at(start) for start in moved.starts)
    assert all(one != two for one, two in zip(moved.offsets, moved.offsets[1:], strict=False))


@given(MAPS, st.text(max_size=20), st.sampled_from(["", "\0"]))
def test_it_can_be_read_back(positions: Positions, own: str, end: str) -> None:
    """Case C27: the position map and the application's metadata are unchanged after writing and reading.

    A NUL at the end, which confluent-kafka writes, is kept.
    """
    own += end
    text = committed_metadata(positions, own)
    if len(positions.starts) == 1:
        assert text == own
        return
    assert read_committed(positions.base, text) == Committed(positions, own)
    if not own:
        assert read_committed(positions.base, text + "\0") == Committed(positions, "")


@pytest.mark.parametrize("own", ["", "mine", "with ; in it", "fg2:AQ", "fg1", "\0"])
def test_other_metadata_is_the_applications(own: str) -> None:
    assert read_committed(7, own) == Committed(Positions.all_at(7), own)


@pytest.mark.parametrize("end", ["", ";", ";mine", "\0", "x" * 4080])
def test_what_an_application_says_is_never_a_map(end: str) -> None:
    """Metadata of the application is never read as a map of positions, even if it looks like one.

    If it were read as a map, a member could commit offsets for keys of other members.
    """
    own = "fg1:AQHBHQIAAAAAAIAAAADDBA" + end
    for positions in (Positions.all_at(3777), Positions([0, HALF], [3777, 3778])):
        text = committed_metadata(positions, own)
        fits = positions if utf16_units(text) <= MOST_CHARACTERS else Positions.all_at(3777)
        assert read_committed(3777, text) == Committed(fits, own)


def test_a_map_beyond_all_offsets_does_not_count() -> None:
    """A position map with an offset above 63 bits is ignored, because no offset of a log can be so high."""
    text = Positions([0, HALF], [5, 1 << 63]).encoded()
    assert read_committed(5, text).positions == Positions.all_at(5)


def test_a_map_of_very_many_members_is_made_coarser_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map with very many steps is shortened in few rounds.

    Before the fix, steps were merged one by one. This took seconds, and no client was served meanwhile.
    """
    times: list[Positions] = []
    encoded = Positions.encoded

    def counted(self: Positions, plan: Plan | None = None) -> str:
        times.append(self)
        return encoded(self, plan)

    monkeypatch.setattr(Positions, "encoded", counted)
    steps = range(4000)
    offsets = [10**9 + (step * 7919) % 10007 for step in steps]
    wide = Positions([step << 16 for step in steps], offsets)
    fitted = wide.fitted(4095)
    assert len(times) < 50
    assert 3900 < len(fitted.encoded()) <= 4095
    assert fitted.base == wide.base


@given(MAPS.filter(lambda positions: len(positions.starts) > 1), st.integers(0, 1 << 62))
def test_a_map_counts_beside_its_own_offset_alone(positions: Positions, offset: int) -> None:
    """Case C29: a map of positions is ignored if it belongs to another offset than that of the commit."""
    if offset != positions.base:
        text = committed_metadata(positions, "")
        assert read_committed(offset, text).positions == Positions.all_at(offset)


def test_a_map_of_another_hash_does_not_count() -> None:
    written = Positions([0, HALF], [5, 9]).written()
    for number in (1, 2):
        text = "fg1:" + to_text(bytes((1, number)) + written)
        assert (read_committed(5, text).positions == Positions.all_at(5)) == (number != 1)


@given(st.text(max_size=60), st.integers(0, 1 << 62))
def test_any_text_is_read(text: str, offset: int) -> None:
    positions = read_committed(offset, "fg1:" + text).positions
    assert positions.base == offset


@given(st.integers(0, 22), st.integers(0, 255))
def test_a_damaged_map_is_none_or_of_its_offset(place: int, value: int) -> None:
    text = list("fg1:AQHBHQIAAAAAAIAAAADDBA")
    text[place + 3] = chr(value)
    assert read_committed(3777, "".join(text)).positions.base == 3777


@given(MAPS, st.integers(30, 120), st.integers(0, TOP))
def test_what_does_not_fit_gets_lower_and_never_higher(positions: Positions, most: int, hashed: int) -> None:
    """Case C28: if a map is too long, it is shortened. Its positions may get lower, but never higher."""
    fitted = positions.fitted(most)
    assert fitted.at(hashed) <= positions.at(hashed)
    assert fitted.base == positions.base
    assert len(fitted.encoded()) <= most or len(fitted.starts) == 1


def test_most_steps_that_fit() -> None:
    """A map of 510 steps with differences of 10^3 fits, as in the specification. With 30 more characters of
    metadata, the map is shortened.
    """
    width = SPACE // 512
    offsets = [10**9 + (step * 613) % 1000 for step in range(510)]
    offsets[7] = 10**9
    full = Positions([step * width for step in range(510)], offsets)
    text = committed_metadata(full, "")
    assert utf16_units(text) <= MOST_CHARACTERS
    assert read_committed(full.base, text).positions == full
    text = committed_metadata(full, "x" * 30)
    assert utf16_units(text) <= MOST_CHARACTERS
    assert text.endswith(";" + "x" * 30)


@pytest.mark.parametrize("own", ["x" * 4100, "\N{GRINNING FACE}" * 2048])
def test_the_applications_metadata_is_never_cut(own: str) -> None:
    """If the application's own metadata is too long, it is not cut.

    The broker refuses it (error 12), as without fetchgate.
    """
    assert committed_metadata(Positions([0, HALF], [1, 2]), own) == own
