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
