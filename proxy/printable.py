"""Makes text from clients and brokers safe for a terminal. Sans-IO."""


def printable(text: str) -> str:
    r"""Escape unprintable characters: control characters, bidirectional overrides, lone surrogates.

    Clients choose some names, and terminals obey such characters. They are escaped as in Python: "\x1b[2J".
    """
    return text if text.isprintable() else "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
