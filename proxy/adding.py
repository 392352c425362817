"""Adds up dataclasses field by field, so that a new count needs no code for its sum."""

from collections import Counter
from dataclasses import fields
from functools import cache
from typing import Any, Self


class Figures:
    """The base of dataclasses with counts of connections. Their values can be added up."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        """Add numbers and sets, Counters key by key, lists position by position, `Figures` field by field."""
        numbers, sums = _fields_of(type(self))  # type: ignore[arg-type] # a class can be hashed
        for name in numbers:
            if more := getattr(other, name):
                setattr(self, name, getattr(self, name) + more)
        for name in sums:
            if more := getattr(other, name):
                setattr(self, name, _sum(getattr(self, name), more))


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the plain integer fields, and of all other fields."""
    numbers = tuple(one.name for one in fields(kind) if one.type is int)
    return numbers, tuple(one.name for one in fields(kind) if one.name not in numbers)


def _sum(mine: Any, more: Any) -> Any:
    if isinstance(more, list):
        return [a + b for a, b in zip(mine, more, strict=True)]
    if isinstance(more, Figures):
        mine.add(more)
    elif isinstance(more, Counter | set):
        mine.update(more)
    else:
        mine += more
    return mine
