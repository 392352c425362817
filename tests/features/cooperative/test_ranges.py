"""Tests of key ranges: which ranges are valid, and how ranges of members divide the space of key hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative import ranges
from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.ranges import NOBODY, KeyRanges, RangeError, Split

TOP = SPACE - 1


@pytest.mark.parametrize(
    ("lanes", "starts", "owners"),
    [
        ([((0, TOP),)], [0], [0]),
        ([((5, 5),)], [0, 5, 6], [NOBODY, 0, NOBODY]),
        ([((0, 9),), ((10, TOP),)], [0, 10], [0, 1]),
        ([((10, TOP),), ((0, 9),)], [0, 10], [1, 0]),
        ([((0, 9), (20, 29)), ((10, 19),)], [0, 10, 20, 30], [0, 1, 0, NOBODY]),
        ([((0, 9), (10, 19))], [0, 20], [0, NOBODY]),
        ([((0, 9),), ((30, TOP),)], [0, 10, 30], [0, NOBODY, 1]),
    ],
)
def test_steps(lanes: list[KeyRanges], starts: list[int], owners: list[int]) -> None:
    split = Split(lanes)
    assert (split.starts, split.owners) == (starts, owners)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (((5, 4),), "the low end of the range 5-4 is above its high end"),
        (((-1, 4),), "the range -1-4 is not within 0-ffffffff"),
        (((0, SPACE),), "the range 0-100000000 is not within 0-ffffffff"),
        (((0, 16), (16, 20)), "the range 10-14 overlaps another one, which ends with 10"),
        (((0, 16), (3, 4)), "the range 3-4 overlaps another one, which ends with 10"),
    ],
)
def test_ranges_that_can_not_be(found: KeyRanges, told: str) -> None:
    with pytest.raises(RangeError) as raised:
        Split([found])
    assert str(raised.value) == told


def test_lanes_must_not_overlap() -> None:
    with pytest.raises(RangeError, match="overlaps"):
        Split([((0, 9),), ((9, 20),)])


@given(st.lists(st.integers(0, TOP), unique=True, max_size=9), st.integers(0, TOP))
def test_every_hash_has_one_step(bounds: list[int], hashed: int) -> None:
    starts = [0, *sorted(set(bounds) - {0})]
    ends = [start - 1 for start in starts[1:]] + [TOP]
    split = Split([(pair,) for pair in zip(starts, ends, strict=True)])
    low, high = split.lanes[split.owners[split.step_of(hashed)]][0]
    assert low <= hashed <= high


def test_keys_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_CACHED_BYTES", 2 * ranges._KEY_BYTES)
    split = Split([((0, TOP // 2),), ((TOP // 2 + 1, TOP),)])
    for number in range(10):
        keys = [b"key", b"%d" % number]
        assert split.steps_of([*keys, 1, 0]) == [*(split.step_of(murmur2(key)) for key in keys), 1, 0]
        assert len(split._steps) <= 2 + 3
