"""Makes text from clients and brokers safe for a terminal, and short enough for a message. Sans-IO."""

from typing import Final

_END: Final = 300
"""How many characters at each end of a long text are shown."""


def printable(text: str) -> str:
    r"""Escape unprintable characters: control characters, bidirectional overrides, lone surrogates.

    Clients choose some names, and terminals obey such characters. They are escaped as in Python: "\x1b[2J".
    """
    return text if text.isprintable() else "".join(_escaped(character) for character in text)


def brief(text: str) -> str:
    """Cut the middle out of a text that is too long for a message."""
    return text if len(text) <= 2 * _END else f"{text[:_END]} ... {text[-_END:]}"


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
