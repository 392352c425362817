"""Logs of the records that members of a group have handled. A log is kept when its member is killed.

A log is a file that is mapped into memory. Each handled record has an entry of four 64-bit numbers in the
machine's byte order: the offset, the key, and the begin and end of the work on the record (ns of the
monotonic clock, which all processes of a machine share). The key is a number; in the record itself, it is
written in decimal digits. Entries with a negative key are events: `COMMITTED`, `ASSIGNED`, `SUBSCRIBED`. An
offset has the number of its partition in the bits from `PARTITION_BIT` on.
"""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

_ENTRY: Final = struct.Struct("=4q")
_DTYPE: Final = np.dtype([("offset", "i8"), ("key", "i8"), ("began", "i8"), ("ended", "i8")])
PARTITION_BIT: Final = 40
COMMITTED: Final = -1
"""Marks an event in the log: the broker has accepted the member's commit of the entry's `offset`."""
ASSIGNED: Final = -2
"""Marks an event: the member now has `offset` partitions, or parts of them."""
SUBSCRIBED: Final = -3
Entries: TypeAlias = npt.NDArray[Any]


class WorkLog:
    """A log file that can be written to."""

    def __init__(self, path: Path, entries: int) -> None:
        with path.open("wb") as file:
            file.truncate(entries * _ENTRY.size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._at = 0

    def add(self, offset: int, key: int, began: int, ended: int) -> None:
        """Add an entry."""
        _ENTRY.pack_into(self._map, self._at, offset, key, began, ended)
        self._at += _ENTRY.size


def read(path: Path) -> Entries:
    """Return the entries that a log has so far. The member may still be writing to the log."""
    if not path.exists() or not path.stat().st_size:
        return np.empty(0, _DTYPE)
    entries = np.fromfile(path, _DTYPE)
    written: Entries = entries[entries["ended"] != 0]
    return written


def records(entries: Entries) -> Entries:
    """Return only the entries of records, without the entries of events."""
    return entries[entries["key"] >= 0]


def last(entries: Entries, kind: int) -> int | None:
    """Return the `offset` of the last entry of a kind (`COMMITTED`, `ASSIGNED`), or None."""
    found = entries[entries["key"] == kind]
    return int(found["offset"][-1]) if len(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """The work of all members of a group."""

    records: int
    again: tuple[int, ...]
    """The offsets of records that were handled more than once, one for each repetition."""
    disordered: int
    """The number of records that were first handled after a record with the same key and a higher offset."""
    together: int


def handled(members: Sequence[Entries]) -> Handled:
    """Count the records that a group has handled, and those handled wrongly (`Handled`)."""
    every = np.concatenate([records(each) for each in members])
    every = every[np.argsort(every["began"], kind="stable")]
    first = np.zeros(len(every), bool)
    first[np.unique(every["offset"], return_index=True)[1]] = True
    by_key = every[np.argsort(every["key"], kind="stable")]
    same = by_key["key"][1:] == by_key["key"][:-1]
    return Handled(
        records=int(first.sum()),
        again=tuple(sorted(every["offset"][~first].tolist())),
        disordered=_disordered(every[first]),
        together=int((same & (by_key["began"][1:] < by_key["ended"][:-1])).sum()),
    )


def _disordered(first: Entries) -> int:
    """Count the entries whose offset is lower than that of an earlier entry with the same key."""
    by_key = first[np.argsort(first["key"], kind="stable")]
    starts = np.flatnonzero(np.r_[True, by_key["key"][1:] != by_key["key"][:-1]])
    return sum(
        int((offsets < np.maximum.accumulate(offsets)).sum())
        for offsets in np.split(by_key["offset"], starts[1:])
    )


def rewound(entries: Entries) -> int:
    """Count the records that a member handled after it had handled a later record of the same key."""
    return _disordered(records(entries))


def rate(members: Sequence[Entries], began: int, ended: int) -> float:
    """Return the records per second that members finished in a time span in ns."""
    done = sum(
        int(((each["ended"] > began) & (each["ended"] <= ended)).sum()) for each in map(records, members)
    )
    return done / (ended - began) * 1e9
