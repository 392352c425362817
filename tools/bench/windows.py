"""Short windows of several routes, one of each in every round: what they gave, and beside each other."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

Rounds: TypeAlias = Mapping[str, Sequence[object]]
"""The windows of each route, in order; every route has one in every round."""


def medians(rounds: Rounds, what: str) -> dict[str, float]:
    """Give the median of a figure for each route."""
    return {name: median(getattr(each, what) for each in windows) for name, windows in rounds.items()}


def beside(rounds: Rounds, against: str, what: str) -> dict[str, float]:
    """Give for each route the median of ratios of a figure to another route's in the same round."""
    return {
        name: median(
            getattr(own, what) / getattr(other, what)
            for own, other in zip(windows, rounds[against], strict=True)
        )
        for name, windows in rounds.items()
    }
