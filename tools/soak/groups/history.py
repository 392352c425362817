"""Reads what the members of a group did, from the lines that their programs print."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Did:
    """One action of a member."""

    at: int
    kind: str
    partition: int = -1
    offset: int = -1
    key: str = ""


@dataclass(slots=True)
class MemberLife:
    """One process of a group member, from its start to its end."""

    name: str
    did: list[Did] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    killed_at: int = 0
    stopped: list[tuple[int, int, dict[int, int]]] = field(default_factory=list)
    """Begin and end of each stop or cut, and the ends of the logs at its begin."""
    gateway: int = 0


def read(lines: Iterable[str]) -> tuple[list[Did], list[str]]:
    """Read the output lines of a member's program. Return the member's actions and its errors."""
    did: list[Did] = []
    errors: list[str] = []
    for line in lines:
        kind, at, *words = line.split()
        if kind == "error":
            errors.append(" ".join(words))
        elif kind == "record":
            did.append(Did(int(at), kind, int(words[0]), int(words[1]), words[2]))
        elif kind == "committed":
            did.append(Did(int(at), kind, int(words[0]), int(words[1])))
        else:
            did.append(Did(int(at), kind))
    return did, errors
