"""Medians of short windows of several routes, with one window for each in every round."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

Rounds: TypeAlias = Mapping[str, Sequence[object]]
"""The windows of each route, in the order of rounds."""


def medians(rounds: Rounds, what: str) -> dict[str, float]:
    """Return the median of a figure for each route."""
    return {name: median(getattr(each, what) for each in windows) for name, windows in rounds.items()}


def beside(rounds: Rounds, against: str, what: str) -> dict[str, float]:
    """Return for each route the median ratio of a figure to that of another route in the same round."""
    return {
        name: median(
            getattr(own, what) / getattr(other, what)
            for own, other in zip(windows, rounds[against], strict=True)
        )
        for name, windows in rounds.items()
    }
