"""The counts of every class are added up field by field."""

from collections import Counter
from dataclasses import dataclass, field

from proxy.adding import ADDS, Figures
from proxy.core.histograms import Distribution


@dataclass(slots=True)
class Inner(Figures):
    count: int = 0


@dataclass(slots=True)
class Outer(Figures):
    number: float = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    kinds: list[int] = field(default_factory=lambda: [0, 0])
    names: list[str] = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    by_key: dict[int, Inner] = field(default_factory=dict)
    largest: int = field(default=0, metadata={ADDS: max})
    values: Distribution = field(default_factory=lambda: Distribution((1,)))
    lists: dict[int, list[int]] = field(default_factory=dict)


def outer(by: int) -> Outer:
    made = Outer(
        by, Counter(a=by), [by, 2 * by], [str(by)], Inner(by), Inner(by), {by: Inner(by), 0: Inner(by)}, by
    )
    made.values.note([by])
    return made


def test_every_kind_is_added_and_the_other_one_stays() -> None:
    total = Outer()
    one, two = outer(1), outer(10)
    for part in (one, two, Outer()):
        total.add(part)

    assert (total.number, total.by_reason, total.kinds) == (11, {"a": 11}, [11, 22])
    assert (total.names, total.inner, total.maybe) == (["1", "10"], Inner(11), Inner(11))
    assert total.by_key == {0: Inner(11), 1: Inner(1), 10: Inner(10)}
    assert (total.largest, total.values.counts, total.values.total) == (10, [1, 1], 11)
    assert (one.by_reason, one.kinds, one.maybe, one.by_key[0]) == ({"a": 1}, [1, 2], Inner(1), Inner(1))


def test_lists_are_added_by_key() -> None:
    """A key that one side lacks, or whose list is empty there, adds nothing."""
    total, one = Outer(lists={1: [1, 2], 3: []}), Outer(lists={1: [10, 20], 2: [5, 6], 3: [7]})
    total.add(one)
    total.add(Outer(lists={1: [], 4: []}))
    assert total.lists == {1: [11, 22], 2: [5, 6], 3: [7], 4: []}
    total.add(Outer(lists={2: [1, 1]}))
    assert one.lists[2] == [5, 6]
