"""Text from peers, made safe for a terminal. Sans-IO."""


def printable(text: str) -> str:
    r"""Escape unprintable characters: controls, bidirectional overrides, lone surrogates.

    Peers choose names, and a terminal may obey such characters. They are escaped as in Python: "\x1b[2J".
    """
    return text if text.isprintable() else "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
