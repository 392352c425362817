"""A received frame in few pieces, whatever the sizes of the reads, with views of any span."""

from bisect import bisect_right
from typing import Final

from proxy.protocol.primitives import Buffer

_SMALL: Final = 1 << 14
"""Reads below this many bytes are joined. Each piece costs Python objects and an item of a vectored write."""
_JOINED: Final = 1 << 16
"""The size of a piece of joined reads."""


class Received:
    """The bytes of one frame so far.

    Large reads are kept as they are. Small ones are copied once, into pieces of `_JOINED` bytes: 50 MB in
    reads of one TCP segment each would otherwise be 36,000 pieces.
    """

    __slots__ = ("_small", "_small_size", "_starts", "_views", "settled", "size")

    def __init__(self, *chunks: bytes) -> None:
        self._starts: list[int] = []
        self._views: list[memoryview] = []
        self._small: list[bytes] = []
        self._small_size = 0
        self.size = 0
        """The number of bytes so far."""
        self.settled = 0
        """How many of these are in pieces that do not change any more."""
        for chunk in chunks:
            self.append(chunk)

    def __repr__(self) -> str:
        return f"<Received {self.size} bytes in {len(self._views)} pieces>"

    def append(self, chunk: bytes) -> None:
        """Add the next bytes."""
        size = len(chunk)
        self.size += size
        if size < _SMALL:
            self._small.append(chunk)
            self._small_size += size
            if self._small_size >= _JOINED:
                self._settle()
            return
        if self._small:
            self._settle()
        self._add(chunk)

    def keep(self, piece: Buffer) -> None:
        """Add the next bytes as a separate piece, whatever its size."""
        if self._small:
            self._settle()
        self.size += len(piece)
        self._add(piece)

    def span(self, start: int, end: int) -> list[memoryview]:
        """Return a span of the frame as views. The cost depends only on the pieces within the span."""
        if end > self.settled:
            self._settle()
        starts, views = self._starts, self._views
        number = bisect_right(starts, start) - 1
        if number < 0 or end <= start:
            return []
        at = starts[number]
        first = views[number][start - at : end - at]
        missing = end - start - len(first)
        if not missing:
            return [first]
        found = [first]
        while missing > 0 and (number := number + 1) < len(views):
            found.append(views[number][:missing])
            missing -= len(found[-1])
        return found

    def _settle(self) -> None:
        """Make one piece of the collected small reads."""
        if self._small:
            small, self._small, self._small_size = self._small, [], 0
            self._add(b"".join(small))

    def _add(self, piece: Buffer) -> None:
        self._starts.append(self.settled)
        self._views.append(memoryview(piece))
        self.settled += len(piece)
