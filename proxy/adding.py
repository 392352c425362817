"""Adds up dataclasses field by field, so that a new count needs no code for its sum."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, Final, Self

ADDS: Final = "adds"
"""The key in the metadata of a field whose values are not simply added: ``field(metadata={ADDS: max})``. The
function gets two values and returns the result. It may change and return the first value."""


class Figures:
    """The base of dataclasses with counts of connections or processes. Their values can be added up."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        """Add the figures of `other` to this object. `other` does not change.

        Numbers are added. Dicts are added key by key, and lists of numbers position by position. Other lists
        are joined. Other objects must have an ``add`` method. A field with `ADDS` is added by the function
        that it names. A value of `other` that is None is skipped.
        """
        numbers, sums = _fields_of(type(self))  # type: ignore[arg-type] # a class can be hashed
        for name in numbers:
            if more := getattr(other, name):
                setattr(self, name, getattr(self, name) + more)
        for name, own in sums:
            if more := getattr(other, name):
                setattr(self, name, own(getattr(self, name), more))


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Callable[[Any, Any], Any]], ...]]:
    """Return the names of the plain integer fields, and all other fields with the functions to add them."""
    numbers = tuple(one.name for one in fields(kind) if one.type is int and not one.metadata)
    others = (one for one in fields(kind) if one.name not in numbers)
    return numbers, tuple((one.name, one.metadata.get(ADDS, _sum)) for one in others)


def _sum(mine: Any, more: Any) -> Any:
    """Return the sum of two values that have the same type."""
    if isinstance(more, Figures):
        mine = type(more)() if mine is None else mine
        mine.add(more)
    elif isinstance(more, Counter):
        mine.update(more)
    elif isinstance(more, int | float):
        return mine + more
    elif isinstance(more, dict):
        for key, value in more.items():
            mine[key] = _sum(mine[key] if key in mine else type(value)(), value)
    elif isinstance(more, list):
        if mine and more and _is_of_numbers(more):
            return [a + b for a, b in zip(mine, more, strict=True)]
        return mine + more
    else:
        mine.add(more)
    return mine


def _is_of_numbers(values: list[Any]) -> bool:
    return isinstance(values[0], int | float)
