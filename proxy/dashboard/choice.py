"""What the user has selected, and how each key changes it. Sans-IO."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from proxy.dashboard.rows import ASCENDING, OF_CLIENT, SORTS

_MAX_FILTER: Final = 40
ENTER: Final = frozenset("\r\n")
ERASE: Final = frozenset("\x7f\x08")
ESCAPE: Final = "\x1b"
CONTROL_C: Final = "\x03"
CONTROL_U: Final = "\x15"
_SEQUENCE: Final = re.compile(r"(\x1b[\[O][0-?]*[ -/]*[@-~])|(.)", re.DOTALL)
_NAMED: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
}
_WHEEL: Final = re.compile(r"\x1b\[<6([45]);\d+;\d+M")
"""Matches a step of the mouse wheel, in xterm's SGR mode (1006): buttons 64 and 65."""
_TURN: Final = 3
_FAR: Final = 1 << 30
_SORT_STEPS: Final = {"s": 1, "S": -1}
_DIGITS: Final = "123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the user has chosen to see."""

    sort: str = "bytes/s"
    reverse: bool = False
    filter: str = ""
    """Only clients are shown whose id, software, address or broker contains this text."""
    cursor: str = ""
    """The key of the marked row. If this is empty, or the row is gone, the first row is marked."""
    brokers: bool = False
    """Whether the marked row is in the table of brokers, not in that of clients."""
    expanded: frozenset[str] = frozenset()
    """The keys of the client rows of which each connection has a row of its own."""
    opened: str = ""
    """The key of the client, connection or broker whose page is open."""
    groups: bool = False
    first: int = 0
    """The first visible line of a page that does not fit on the screen."""
    typing: bool = False
    paused: bool = False
    help: bool = False
    quit: bool = False

    @property
    def descending(self) -> bool:
        return (self.sort not in ASCENDING) != self.reverse

    @property
    def paged(self) -> bool:
        """Whether a page is open in place of the tables."""
        return self.help or self.groups or bool(self.opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The rows and lines on the screen that keys can move through."""

    keys: Sequence[str] = ()
    """The keys of the rows in the table that has the marked row."""
    lines: int = 0
    page: int = 1
    """By how many rows or lines the keys for a page move. So many lines of an open page fit on the screen."""
    sorts: Sequence[str] = tuple(SORTS)
    """The columns by which the rows can be sorted, in the order of the table."""


def press(choice: Selection, key: str, listed: Listed) -> Selection:
    """Return the selection after a key press. Unknown keys change nothing."""
    if key == CONTROL_C:
        return replace(choice, quit=True)
    if choice.typing:
        return _typed(choice, key)
    steps = _STEPS.get("page down" if key == " " and choice.paged else key)
    if steps is not None:
        return _moved(choice, steps(max(listed.page, 1)), listed)
    if key in ENTER and not choice.paged:
        return replace(choice, opened=_marked(choice, listed), first=0)
    if key == "x" and not choice.paged and (marked := _marked(choice, listed)).startswith(OF_CLIENT):
        return replace(choice, expanded=choice.expanded ^ {marked})
    if key == "p" and choice.help:  # on the help page the user would not see that the screen is frozen
        return choice
    if key in _SORT_STEPS:
        return _next_sort(choice, _SORT_STEPS[key], listed.sorts)
    if key in _DIGITS[: len(listed.sorts)]:
        return replace(choice, sort=listed.sorts[_DIGITS.index(key)], reverse=False)
    action = _KEYS.get(key)
    return action(choice) if action is not None else choice


def split_keys(text: str) -> list[str]:
    """Split what a terminal has sent into keys: letters, or names such as `up`. Drop unknown sequences."""
    keys: list[str] = []
    for sequence, letter in _SEQUENCE.findall(text):
        if letter:
            keys.append(letter)
        elif turned := _WHEEL.fullmatch(sequence):
            keys += ["up" if turned[1] == "4" else "down"] * _TURN
        elif sequence in _NAMED:
            keys.append(_NAMED[sequence])
    return keys


def place_of(choice: Selection, keys: Sequence[str]) -> int:
    """Return the position of the marked row. 0 if the row is gone."""
    return keys.index(choice.cursor) if choice.cursor in keys else 0


def _marked(choice: Selection, listed: Listed) -> str:
    return listed.keys[place_of(choice, listed.keys)] if listed.keys else ""


def _moved(choice: Selection, by: int, listed: Listed) -> Selection:
    if choice.paged:
        return replace(choice, first=max(0, min(choice.first + by, listed.lines - listed.page)))
    if not listed.keys:
        return choice
    place = max(0, min(place_of(choice, listed.keys) + by, len(listed.keys) - 1))
    return replace(choice, cursor=listed.keys[place])


def _typed(choice: Selection, key: str) -> Selection:
    if key in ENTER:
        return replace(choice, typing=False)
    if key == ESCAPE:
        return replace(choice, typing=False, filter="")
    if key in ERASE:
        return replace(choice, filter=choice.filter[:-1])
    if key == CONTROL_U:
        return replace(choice, filter="")
    if len(key) == 1 and key.isprintable() and len(choice.filter) < _MAX_FILTER:
        return replace(choice, filter=choice.filter + key)
    return choice


def _next_sort(choice: Selection, step: int, names: Sequence[str]) -> Selection:
    return replace(choice, sort=names[(names.index(choice.sort) + step) % len(names)], reverse=False)


def _back(choice: Selection) -> Selection:
    if choice.help:
        return replace(choice, help=False, first=0)
    if choice.paged:
        return replace(choice, opened="", groups=False, first=0)
    return replace(choice, filter="")


_STEPS: Final[dict[str, Callable[[int], int]]] = {
    "up": lambda _: -1,
    "k": lambda _: -1,
    "down": lambda _: 1,
    "j": lambda _: 1,
    "page up": lambda page: -page,
    "page down": lambda page: page,
    "home": lambda _: -_FAR,
    "end": lambda _: _FAR,
}
"""For each movement key, a function from `Listed.page` to the number of rows or lines to move by."""
_KEYS: Final[dict[str, Callable[[Selection], Selection]]] = {
    "r": lambda choice: replace(choice, reverse=not choice.reverse),
    "/": lambda choice: replace(choice, typing=True, help=False, groups=False, opened="", first=0),
    "\t": lambda choice: replace(choice, brokers=not choice.brokers, cursor=""),
    ESCAPE: _back,
    "p": lambda choice: replace(choice, paused=not choice.paused),
    " ": lambda choice: replace(choice, paused=not choice.paused),
    "g": lambda choice: replace(choice, groups=not choice.groups, opened="", help=False, first=0),
    "h": lambda choice: replace(choice, help=not choice.help, first=0),
    "?": lambda choice: replace(choice, help=not choice.help, first=0),
    "q": lambda choice: replace(choice, quit=True),
}
"""The keys that `press` does not process itself. `proxy.dashboard.view` explains them to the user."""
