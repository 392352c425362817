"""Reads the values of options that are words, numbers and lists, or that differ by client. Sans-IO."""

from collections.abc import Callable
from typing import TypeVar

from proxy.addresses import MAX_INT32, whole_number
from proxy.text.units import word

_Value = TypeVar("_Value")
_Word = TypeVar("_Word", bound=str)


def left_out(value: _Value, why: str) -> Callable[[str], _Value]:
    """Return a parser for transparent mode that accepts only an empty text, for which it returns `value`."""

    def parse(text: str) -> _Value:
        if text:
            raise ValueError(f"leave it out with --transparent: {why}")
        return value

    return parse


def one_of(*words: _Word) -> Callable[[str], _Word]:
    """Return a parser that accepts words in upper or lower case, and synonyms of ``on`` and ``off``."""
    known = {each.lower(): each for each in words}

    def parse(text: str) -> _Word:
        if (found := known.get(word(text))) is None:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return found

    return parse


def whole(lowest: int, highest: int = MAX_INT32) -> Callable[[str], int]:
    """Return a parser of whole numbers from `lowest` to `highest`."""

    def parse(text: str) -> int:
        if (number := whole_number(text, lowest, highest)) is None:
            raise ValueError(f"{text!r} must be an integer from {lowest} to {highest}")
        return number

    return parse


def listed(text: str) -> list[str]:
    """Return the items of a list with commas."""
    return [item for item in (part.strip() for part in text.split(",")) if item]


def by_client(text: str, read: Callable[[str], _Value], metavar: str = "SIZE") -> dict[str, _Value]:
    """Read a list of values, such as ``SIZE`` and ``ID=SIZE``. Return them by client id, "" for all others.

    `metavar` is the kind of the values, for the error message.
    """
    found: dict[str, _Value] = {}
    for item in listed(text):
        client_id, _, written = (part.strip() for part in item.rpartition("="))
        value = read(written)
        if client_id in found:
            whose = f"client id {client_id}" if client_id else "all clients"
            raise ValueError(f"{text!r} has two values for {whose}; give one, and ID={metavar} for others")
        found[client_id] = value
    return found
