"""Key ranges that a client declares in its client.id, and lanes that the operator has named in a file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.declared import MAX_RANGES, Declared, NamedLane, declared, named_lanes
from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.ranges import FULL, RangeError
from tests.features.cooperative.batch import suffix


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


def test_lanes_are_read_by_name() -> None:
    document = {
        "billing": {
            "blue": {"orders": {"0": [[8, 9], [0, 3]], "1": []}},
            "red": {"orders": {"0": [[4, 7]]}, "returns": {"0": [[0, 9]]}},
        },
        "audit": {"all": {"orders": {"0": []}}},
    }
    assert named_lanes(json.dumps(document)) == {
        "blue": NamedLane(b"billing", {(b"orders", 0): ((0, 3), (8, 9)), (b"orders", 1): FULL}),
        "red": NamedLane(b"billing", {(b"orders", 0): ((4, 7),), (b"returns", 0): ((0, 9),)}),
        "all": NamedLane(b"audit", {(b"orders", 0): FULL}),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "it is not JSON"),
        ('{"g": %s}' % ("9" * 5000), "a number has thousands of digits"),
        ('{"g":' * 100_000, "its tables are nested too deeply"),
        ('{"g": {"a": {"t": {"2147483648": []}}}}', "lane a, topic t: 2147483648 is not the number of"),
        ('{"g": {"a": {"t": {"%s": []}}}}' % ("9" * 5000), "lane a, topic t: 9999"),
        ("[]", "it: [] is not a table"),
        ('{"g": 1}', "g: 1 is not a table"),
        ('{"g": {"a": []}}', "lane a: [] is not a table"),
        ('{"g": {"a": {"t": []}}}', "lane a, topic t: [] is not a table"),
        ('{"g": {"a.b": {}}}', "lane 'a.b': a name has 1 to 64 characters"),
        ('{"g": {"a": {}}, "h": {"a": {}}}', "two groups have a lane a: give one of them another name"),
        (
            '{"g": {"a": {"t": {"x": []}}}}',
            "lane a, topic t: x is not the number of a partition; put a topic with dots into quotes",
        ),
        ('{"g": {"a": {"t": {"0": 5}}}}', "lane a, t-0: give a list of ranges"),
        ('{"g": {"a": {"t": {"0": [5]}}}}', "lane a, t-0: 5 is not a range"),
        ('{"g": {"a": {"t": {"0": [["0", "9"]]}}}}', "lane a, t-0: ['0', '9'] is not a range"),
        ('{"g": {"a": {"t": {"0": [[0, true]]}}}}', "lane a, t-0: [0, True] is not a range"),
        (
            '{"g": {"a": {"t": {"0": [[9, 5]]}}}}',
            "lane a on t-0: the low end of the range 9-5 is above its high end",
        ),
        ('{"g": {"a": {"t": {"0": [[0, 4294967296]]}}}}', "lane a on t-0: the range 0-100000000 is not"),
        ('{"g": {"a": {"t": {"0": [[0, 5], [5, 6]]}}}}', "lane a on t-0: the range 5-6 overlaps"),
        ('{"g": {"a": {"t": {"0": []}}, "b": {"t": {"0": [[0, 1]]}}}}', "lanes a, b on t-0: the range"),
    ],
)
def test_lanes_that_can_not_be(text: str, told: str) -> None:
    with pytest.raises(RangeError) as raised:
        named_lanes(text)
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize("text", ['{"g": %s}', '{"g": {"a": {"t": {"0": [%s]}}}}'])
def test_tables_nested_to_any_depth_are_refused_in_a_short_message(text: str) -> None:
    """Versions of Python differ in the depth that they read."""
    for depth in (*range(900, 1000), 5_000, *range(9_000, 10_000, 100)):
        with pytest.raises(RangeError) as raised:
            named_lanes(text % ("[" * depth + "]" * depth))
        assert len(str(raised.value)) < 200
