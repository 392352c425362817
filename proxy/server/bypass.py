"""Finds processes that run as the gateway's user. In transparent mode their connections are not redirected.

It finds only processes that `/proc` shows, and leaves out those that are known to be in another network
namespace. In a pod each container has a `/proc` of its own.
"""

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

MAX_SCANNED: Final = 20_000
"""How many processes are examined at most. This takes a fraction of a second."""
MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherProcess:
    number: int
    name: str
    parent: int
    user: int
    """The effective user id of the process, which owns its connections."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        facts: dict[str, str] = {}
        for line in (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            facts[key] = value.strip()
            if key == "Uid":
                break
        return cls(
            number=int(folder.name),
            name=facts["Name"],
            parent=int(facts["PPid"]),
            user=int(facts["Uid"].split()[1]),
        )


def passing_by(proc: Path = Path("/proc")) -> str:
    """Return a warning with the other programs that run as the gateway's user, or "" if there are none.

    The warning does not list gateways, nor the processes that have started this gateway. Without a readable
    /proc, there is no warning.
    """
    try:
        own = _OtherProcess.read(Path(proc, str(os.getpid())))
        others = [process for process in _others(proc, own) if _same_network(proc, process, own)]
    except (OSError, ValueError, KeyError):
        return ""  # /proc is missing or unreadable
    if not others:
        return ""
    named = ", ".join(f"{process.name} ({process.number})" for process in others[:MAX_NAMED])
    more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
    return (
        f"the gateway's user {_user_name(own.user)} also runs {named}{more}; the rules do not redirect their"
        " connections; give the gateway a user of its own"
    )


def _others(proc: Path, own: _OtherProcess) -> Iterator[_OtherProcess]:
    found: dict[int, _OtherProcess] = {}
    for folder in _folders(proc):
        try:
            process = _OtherProcess.read(folder)
        except (OSError, ValueError, KeyError):
            continue  # the process has ended
        found[process.number] = process
    gateway = _program(proc, own)
    started_by = {process.number for process in _line(own, found)}
    for process in found.values():
        if process.user != own.user or process.number in started_by:
            continue
        # A process without a command line is a kernel thread, or has ended.
        if _program(proc, process) not in ([], gateway):
            yield process


def _line(process: _OtherProcess, found: dict[int, _OtherProcess]) -> list[_OtherProcess]:
    line = [process]
    while (parent := found.get(line[-1].parent)) is not None and parent not in line:
        line.append(parent)
    return line


def _program(proc: Path, process: _OtherProcess) -> list[bytes]:
    """Return the command line before subcommand and options: the same for all gateways."""
    try:
        words = Path(proc, str(process.number), "cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []
    options = next((place for place, word in enumerate(words) if word.startswith(b"--")), len(words))
    return words[: options - 1] if options > 1 else words


def _folders(proc: Path) -> Iterator[Path]:
    with os.scandir(proc) as entries:
        for scanned, entry in enumerate(entry for entry in entries if entry.name.isdecimal()):
            if scanned >= MAX_SCANNED:
                return
            yield Path(entry.path)


def _same_network(proc: Path, process: _OtherProcess, own: _OtherProcess) -> bool:
    try:
        networks = {str(Path(proc, str(each.number), "ns/net").readlink()) for each in (process, own)}
    except PermissionError:
        return True  # its network namespace is not readable
    except OSError:
        return False  # the process has ended
    return len(networks) == 1


def _user_name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return str(user)
