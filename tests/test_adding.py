"""The counts of every class are added up field by field."""

from collections import Counter
from dataclasses import dataclass, field

from proxy.adding import Figures


@dataclass(slots=True)
class Inner(Figures):
    count: int = 0


@dataclass(slots=True)
class Outer(Figures):
    number: float = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    kinds: list[int] = field(default_factory=lambda: [0, 0])
    inner: Inner = field(default_factory=Inner)


def outer(by: int) -> Outer:
    return Outer(by, Counter(a=by), [by, 2 * by], Inner(by))


def test_every_kind_is_added_and_the_other_one_stays() -> None:
    total = Outer()
    one, two = outer(1), outer(10)
    for part in (one, two, Outer()):
        total.add(part)

    assert total == Outer(11, Counter(a=11), [11, 22], Inner(11))
    assert (one, two) == (outer(1), outer(10))
