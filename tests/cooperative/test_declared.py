"""Tests of key ranges that a client declares in its client.id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cooperative.declared import MAX_RANGES, Declared, declared, suffix
from proxy.cooperative.key_hash import SPACE
from proxy.cooperative.ranges import RangeError


@pytest.mark.parametrize(
    ("client_id", "expected"),
    [
        (b"billing", None),
        (b"", None),
        (b"kr-0-1", None),
        (b"billing.kr-00000000-3fffffff", Declared(b"billing", ((0, 0x3FFFFFFF),))),
        (b"b.kr-80000000-bfffffff-0-3fffffff", Declared(b"b", ((0, 0x3FFFFFFF), (0x80000000, 0xBFFFFFFF)))),
        (b".kr-0-ffffffff", Declared(b"", ((0, SPACE - 1),))),
        (b"billing.lane-blue_2", Declared(b"billing", lane="blue_2")),
    ],
)
def test_what_is_declared(client_id: bytes, expected: Declared | None) -> None:
    assert declared(client_id) == expected


@pytest.mark.parametrize(
    ("client_id", "told"),
    [
        (b"my.kr-0-1.other", "write ranges as .kr-LOW-HIGH"),  # a library added to it
        (b"b.kr-0-1.lane-blue", "write ranges as .kr-LOW-HIGH"),
        (b"b.kr-", "write ranges as .kr-LOW-HIGH, in lower-case hexadecimal digits"),
        (b"b.kr-0", "write ranges as .kr-LOW-HIGH"),
        (b"b.kr-0-1-2", "write ranges as .kr-LOW-HIGH"),
        (b"b.kr-0-3FFFFFFF", "write ranges as .kr-LOW-HIGH"),
        (b"b.kr-0-1ffffffff", "write ranges as .kr-LOW-HIGH"),
        (b"b.kr-5-4", "the low end of the range 5-4 is above its high end"),
        (b"b.kr-0-10-10-20", "the range 10-20 overlaps another one, which ends with 10"),
        (b"b.lane-", "the name of a lane has 1 to 64 characters"),
        (b"b.lane-a.b", "the name of a lane has 1 to 64 characters"),
        (b"b.lane-" + b"a" * 65, "the name of a lane has 1 to 64 characters"),
    ],
)
def test_what_can_not_be_read_is_refused(client_id: bytes, told: str) -> None:
    with pytest.raises(RangeError) as raised:
        declared(client_id)
    assert told in str(raised.value)
    assert str(raised.value).startswith(f"client.id {client_id.decode()}: ")


def test_ranges_have_a_limit() -> None:
    """A client.id may have at most 64 ranges, because each may need an entry in the group's commits."""
    ranges = [(number * 2, number * 2) for number in range(MAX_RANGES + 1)]
    assert declared(b"b" + suffix(tuple(ranges[:-1])).encode()) == Declared(b"b", tuple(ranges[:-1]))
    with pytest.raises(RangeError, match="more than 64 ranges"):
        declared(b"b" + suffix(tuple(ranges)).encode())


@given(
    st.sets(st.integers(0, SPACE - 1), min_size=2, max_size=6), st.from_regex("[a-z]{0,9}", fullmatch=True)
)
def test_what_is_written_is_read(bounds: set[int], own_id: str) -> None:
    ends = sorted(bounds)
    ranges = tuple(zip(ends[::2], ends[1::2], strict=False))
    assert declared((own_id + suffix(ranges)).encode()) == Declared(own_id.encode(), ranges)
