"""Short windows of routes in rounds. Routes are compared within a round: a busy machine is so for all."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Rounds: TypeAlias = Mapping[str, Sequence[T]]


def turned(names: Sequence[str], by: int) -> list[str]:
    """Return the routes in the order of a round: each comes first in turn, every other time backward."""
    step = -1 if by % 2 else 1
    return [names[(by + step * place) % len(names)] for place in range(len(names))]


def medians(rounds: Rounds[Any], what: str) -> dict[str, float]:
    """Return the median of a figure for each route."""
    return {name: median(getattr(each, what) for each in windows) for name, windows in rounds.items()}


def beside(rounds: Rounds[Any], against: str, what: str) -> dict[str, float]:
    """Return for each route the median ratio to another route's figure in the same round."""
    return compared(rounds, against, lambda own, other: getattr(own, what) / getattr(other, what))


def beyond(rounds: Rounds[Any], against: str, what: str) -> dict[str, float]:
    """Return for each route the median difference to another route's figure in the same round."""
    return compared(rounds, against, lambda own, other: getattr(own, what) - getattr(other, what))


def compared(rounds: Rounds[T], against: str, how: Callable[[T, T], float]) -> dict[str, float]:
    """Return for each route the median of a comparison with another route in the same round."""
    return {
        name: median(how(own, other) for own, other in zip(windows, rounds[against], strict=True))
        for name, windows in rounds.items()
    }


def without(values: Mapping[str, float], *names: str) -> dict[str, float]:
    """Return the values of all routes except some."""
    return {name: value for name, value in values.items() if name not in names}
