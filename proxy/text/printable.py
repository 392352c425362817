"""Makes text from clients and brokers safe for a terminal, and short enough for a message. Sans-IO."""

from typing import Final

_END: Final = 300


def printable(text: str) -> str:
    r"""Escape what terminals obey in names that clients choose, as Python does: "\x1b[2J".

    These are control characters, bidirectional overrides and lone surrogates.
    """
    return text if text.isprintable() else "".join(_escaped(character) for character in text)


def brief(text: str) -> str:
    """Cut the middle out of a text that is too long for a message."""
    return text if len(text) <= 2 * _END else f"{text[:_END]} ... {text[-_END:]}"


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
