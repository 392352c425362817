"""What the user has selected, and how each key changes it. Sans-IO."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from proxy.dashboard.snapshot import Client

SORTS: Final[dict[str, Callable[[Client], str | float]]] = {
    "client": lambda client: client.client_id,
    "software": lambda client: client.software,
    "v": lambda client: client.version,
    "parts": lambda client: client.partitions,
    "epoch": lambda client: client.epoch,
    "incr": lambda client: client.incremental,
    "left out": lambda client: client.left_out,
    "saved": lambda client: client.saved,
    "error": lambda client: client.last_error,
}
"""The columns by which clients can be sorted, in the order of the table."""
_ASCENDING: Final = frozenset({"client", "software"})
_MAX_FILTER: Final = 40
ENTER: Final = frozenset("\r\n")
ERASE: Final = frozenset("\x7f\x08")
ESCAPE: Final = "\x1b"
CONTROL_C: Final = "\x03"
CONTROL_U: Final = "\x15"
_SEQUENCE: Final = re.compile(r"\x1b[\[O][0-?]*[ -/]*[@-~]|(.)", re.DOTALL)
"""A control sequence, or one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How the screen should look."""

    sort: str = "saved"
    reverse: bool = False
    """The opposite of the column's usual order."""
    filter: str = ""
    """Only clients whose id, software, address or broker contains this."""
    typing: bool = False
    """Keys are now letters of the filter."""
    paused: bool = False
    help: bool = False
    groups: bool = False
    """The page of cooperative groups, in place of clients and brokers."""
    quit: bool = False

    @property
    def descending(self) -> bool:
        """Whether large values come first."""
        return (self.sort not in _ASCENDING) != self.reverse


def press(choice: Selection, key: str) -> Selection:
    """Return the selection after a key; a key without a meaning changes nothing."""
    if key == CONTROL_C:
        return replace(choice, quit=True)
    if choice.typing:
        return _typed(choice, key)
    if choice.help and key == ESCAPE:
        return replace(choice, help=False)
    if choice.groups and key == ESCAPE:
        return replace(choice, groups=False)
    action = _KEYS.get(key)
    return action(choice) if action is not None else choice


def split_keys(text: str) -> list[str]:
    """Split a terminal's input into keys; arrows and the like are sequences without a meaning here."""
    return [key for key in _SEQUENCE.split(text) if key]


def picked(clients: tuple[Client, ...], choice: Selection) -> list[Client]:
    """Return the clients that match the filter, sorted; equal ones by id and address."""
    wanted = choice.filter.casefold()
    found = [
        client
        for client in clients
        if wanted in f"{client.client_id}\n{client.software}\n{client.address}\n{client.broker}".casefold()
    ]
    found.sort(key=lambda client: (client.client_id, client.address))
    found.sort(key=SORTS[choice.sort], reverse=choice.descending)
    return found


def _typed(choice: Selection, key: str) -> Selection:
    if key in ENTER:
        return replace(choice, typing=False)
    if key == ESCAPE:
        return replace(choice, typing=False, filter="")
    if key in ERASE:
        return replace(choice, filter=choice.filter[:-1])
    if key == CONTROL_U:
        return replace(choice, filter="")
    if key.isprintable() and len(choice.filter) < _MAX_FILTER:
        return replace(choice, filter=choice.filter + key)
    return choice


def _next_sort(choice: Selection, step: int) -> Selection:
    names = list(SORTS)
    return replace(choice, sort=names[(names.index(choice.sort) + step) % len(names)], reverse=False)


_KEYS: Final[dict[str, Callable[[Selection], Selection]]] = {
    "s": lambda choice: _next_sort(choice, 1),
    "S": lambda choice: _next_sort(choice, -1),
    "r": lambda choice: replace(choice, reverse=not choice.reverse),
    "/": lambda choice: replace(choice, typing=True, help=False),
    ESCAPE: lambda choice: replace(choice, filter=""),
    "p": lambda choice: replace(choice, paused=not choice.paused),
    " ": lambda choice: replace(choice, paused=not choice.paused),
    "g": lambda choice: replace(choice, groups=not choice.groups),
    "h": lambda choice: replace(choice, help=not choice.help),
    "?": lambda choice: replace(choice, help=not choice.help),
    "q": lambda choice: replace(choice, quit=True),
    **{str(place): partial(replace, sort=name, reverse=False) for place, name in enumerate(SORTS, 1)},
}
"""What keys do outside the filter; `proxy.dashboard.view` explains them to the user."""
