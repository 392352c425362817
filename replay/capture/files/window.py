"""The part of a capture in memory, and the columns made of it."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[Any]

SIZE = 16 << 20
"""Bytes of a capture in memory at a time. No record is longer."""
_SLACK = 128
"""How many bytes after the end of the window may be read. A header of fixed size is read before its length is
checked."""


NO_LINK = -1
"""The link type of packets whose interface the file does not describe (pcapng)."""


class Readable(Protocol):
    """A stream that a window reads from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read bytes into `buffer`, which need not become full. Return their number; 0 at the end."""


class FileWindow:
    """A buffer over a file, at first at `offset`. `data[begin:end]` was read, and is not used yet."""

    def __init__(self, offset: int, size: int = SIZE) -> None:
        # A bytearray would be filled with zeros first, which takes longer than reading a small file.
        self.data = np.empty(size + _SLACK, np.uint8).data
        self.begin = 0
        self.end = 0
        self._base = offset
        self._size = size

    def __repr__(self) -> str:
        return f"<Window {self.offset(self.begin)}..{self.offset(self.end)}>"

    def offset(self, place: int) -> int:
        return self._base + place

    def fill(self, stream: Readable, most: int = SIZE) -> bool:
        """Read up to `most` more bytes. Return False at the end of the file."""
        view = self.data
        left = self.end - self.begin
        view[:left] = bytes(view[self.begin : self.end])
        self._base += self.begin
        self.begin, self.end = 0, left
        wanted = min(left + most, self._size)
        while self.end < wanted:
            got = stream.readinto(view[self.end : wanted])
            if not got:
                return False
            self.end += got
        return True

    def blocks(self, places: Column, dtype: npt.DTypeLike) -> Column:
        """Read a value of type `dtype` at each place. No place may be above `self.end`."""
        kind = np.dtype(dtype)
        raw = np.ndarray(len(self.data) - kind.itemsize + 1, f"V{kind.itemsize}", self.data, 0, (1,))
        found: Column = raw[places].view(kind)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Captured packets, one row each."""

    at: Column
    """Where the packet's bytes begin in the window."""
    captured: Column
    length: Column
    """How many bytes each packet had on the wire."""
    time: Column
    """Nanoseconds since 1970."""
    offset: Column
    """The offset in the file at which each packet's record begins."""
    link: Column
