"""Text of peers, made safe for a terminal. Sans-IO."""


def printable(text: str) -> str:
    r"""Escape characters that can't be printed: controls, bidirectional overrides, lone surrogates.

    Peers choose names, and a terminal may obey them. They are written as Python escapes them: "\x1b[2J".
    """
    return text if text.isprintable() else "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
