"""Tests of lanes (sets of key ranges) that the operator has named in a file."""

import json

import pytest

from proxy.cooperative.declared import NamedLane, named_lanes
from proxy.cooperative.ranges import FULL, RangeError


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
        ('{"g":' * 5000, "its tables are nested too deeply"),
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
