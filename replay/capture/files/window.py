"""The stretch of a capture that is in memory, and the columns that are made of it."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[Any]

SIZE = 16 << 20
"""Bytes of a capture that are in memory at a time; more than the longest record."""
_SLACK = 128
"""Readable bytes behind the end, so that a fixed-size header can be gathered before its length is checked."""


NO_LINK = -1
"""The link type of packets whose interface the file does not describe (pcapng)."""


class Readable(Protocol):
    """What a window is filled from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill `buffer` as far as there is something; 0 at the end."""


class Window:
    """A buffer that moves over a file: `data[begin:end]` is what has been read and not yet been used."""

    def __init__(self, offset: int, size: int = SIZE) -> None:
        """`offset`: place in the file of the first byte that will be read."""
        # Unlike a bytearray, it isn't filled with zeros first, which would cost more than a small file does.
        self.data = np.empty(size + _SLACK, np.uint8).data
        self.begin = 0
        self.end = 0
        self._base = offset
        self._size = size

    def __repr__(self) -> str:
        return f"<Window {self.offset(self.begin)}..{self.offset(self.end)}>"

    def offset(self, place: int) -> int:
        """Tell the place in the file of `data[place]`."""
        return self._base + place

    def fill(self, stream: Readable, most: int = SIZE) -> bool:
        """Read on, up to `most` bytes more; False at the end of the file."""
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
        """Gather one `dtype` from each place; places up to `end` can be asked for."""
        kind = np.dtype(dtype)
        raw = np.ndarray(len(self.data) - kind.itemsize + 1, f"V{kind.itemsize}", self.data, 0, (1,))
        found: Column = raw[places].view(kind)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Captured packets, a row each."""

    at: Column
    """Where the packet's bytes begin in the window."""
    captured: Column
    """Bytes that there are of it."""
    length: Column
    """Bytes it had on the wire."""
    time: Column
    """Nanoseconds since 1970."""
    offset: Column
    """Where its record begins in the file."""
    link: Column
    """Link type."""
