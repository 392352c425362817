"""Values written to typed columns are read back unchanged, also from a slice.

The schema of the columns is made from dataclasses.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.measure.limits import VersionFigures
from replay.measure.sums import FetchSums
from replay.measure.typed import Packed, codec, struct_field


class Point(NamedTuple):
    at: int
    name: str


class Sizes(TypedDict):
    bytes: int
    ratio: float


@dataclass(slots=True, kw_only=True)
class Part:
    key: bytes
    kind: Literal["a", "b"] = "a"
    points: list[Point] = field(default_factory=list)


@dataclass(slots=True)
class Whole:
    named: dict[str, Part] = field(default_factory=dict)
    pairs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    sizes: Sizes | None = None
    stop: int | None = None
    most: tuple[Part, ...] = ()
    done: bool = False
    _own: int = 0


TEXT, NUMBERS = st.text(max_size=3), st.integers(-(1 << 63), (1 << 63) - 1)
POINTS = st.builds(Point, NUMBERS, TEXT)
PARTS = st.builds(
    Part, key=st.binary(max_size=3), kind=st.sampled_from("ab"), points=st.lists(POINTS, max_size=3)
)
WHOLES = st.builds(
    Whole,
    named=st.dictionaries(TEXT, PARTS, max_size=2),
    pairs=st.dictionaries(st.tuples(TEXT, NUMBERS), st.lists(NUMBERS, max_size=2), max_size=2),
    numbers=st.sets(NUMBERS, max_size=3),
    counts=st.dictionaries(TEXT, NUMBERS, max_size=2).map(Counter),
    sizes=st.none() | st.builds(Sizes, bytes=NUMBERS, ratio=st.floats(allow_nan=False)),
    stop=st.none() | NUMBERS,
    most=st.lists(PARTS, max_size=2).map(tuple),
    done=st.booleans(),
)


@given(values=st.lists(st.none() | WHOLES, max_size=6), begin=st.integers(0, 6), end=st.integers(0, 6))
def test_values_come_back_whole_and_in_a_slice(values: list[Whole | None], begin: int, end: int) -> None:
    column = codec(Whole | None)
    array = column.write(values)

    assert array.type == column.type
    assert column.read(array) == values
    assert column.read(array[begin : max(begin, end)]) == values[begin : max(begin, end)]
    array.validate(full=True)


@given(st.lists(st.none() | WHOLES, max_size=4), st.integers(0, 3), st.integers(0, 4))
def test_packed_values_come_back_whole_and_in_a_slice(
    values: list[Whole | None], begin: int, end: int
) -> None:
    packed = Packed(Whole)
    written = packed.write(values)
    assert written.type == packed.type == pa.binary()
    assert packed.read(written) == values
    assert packed.read(written[begin:end]) == values[begin:end]


def test_the_schema_is_that_of_the_dataclass() -> None:
    assert str(codec(Part).type) == (
        "struct<key: binary, kind: string, points: list<item: struct<at: int64, name: string>>>"
    )
    assert "_own" not in str(codec(Whole).type)


def test_a_field_of_a_struct_is_read_alone() -> None:
    array = codec(Whole | None).write([Whole(stop=3), None, Whole()])

    assert codec(int | None).read(struct_field(array, "stop")) == [3, None, None]


@pytest.mark.parametrize("kind", [object, int | str, Any])
def test_other_types_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError):
        codec(kind)


def test_sums_of_times_are_at_most_an_integer_of_64_bits() -> None:
    """A capture whose clock jumps by decades, on several connections, has larger sums."""
    lasted, starved = FetchSums(lasted=2**62), VersionFigures(starved_ns=2**62)
    for _ in range(2):
        lasted.merge(FetchSums(lasted=2**62))
        starved.add(VersionFigures(starved_ns=2**62))

    assert codec(FetchSums).read(codec(FetchSums).write([lasted]))[0].lasted == 2**63 - 1
    assert codec(VersionFigures).read(codec(VersionFigures).write([starved]))[0].starved_ns == 2**63 - 1
