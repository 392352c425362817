"""Cuts one direction of a connection into frames: a length of 4 bytes, then as many bytes. Sans-IO."""

from typing import Final

from proxy.protocol.api import LENGTH_BYTES

_ANY: Final = 1


def frame_size(data: bytes | bytearray, at: int = 0) -> int:
    """Return the size of the frame that begins at an offset, with its length field, which must be there."""
    return LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES])


def is_frame(data: bytes) -> bool:
    """Whether these bytes are one whole frame, as in nearly every read."""
    return len(data) == LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES])


class Framer:
    """The received bytes of one direction, cut into frames.

    `next` returns a frame, or what has come of it. The caller either keeps a part until more of it has come
    (`need`, `keep`), or uses it at once and gets the rest in chunks, as they come (`left`).
    """

    __slots__ = ("_at", "data", "left", "need")

    def __init__(self) -> None:
        self.data: bytes | bytearray = b""
        """What was received; empty once all of it was returned. Before `_at` it is not of use any more."""
        self._at = 0
        """Offset of the first byte that was not returned."""
        self.left = 0
        """Bytes of the current frame that are still to be returned, in chunks; 0 between two frames."""
        self.need = _ANY
        """With fewer bytes the next frame is not worth a look: its beginning was looked at and kept."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} bytes left={self.left} need={self.need}>"

    def __len__(self) -> int:
        return len(self.data) - self._at

    @property
    def ready(self) -> bool:
        """Whether there is something to look at: a chunk, or enough of the next frame."""
        size = len(self.data) - self._at
        return size > 0 if self.left else size >= self.need

    @property
    def idle(self) -> bool:
        """Whether nothing is kept, between two frames."""
        return not (self.data or self.left)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if not self.data:
            self.data = data
            return
        size = len(self.data) - self._at + len(data)
        if isinstance(self.data, bytes):
            # With enough for the next frame, one copy brings it together: `next` returns it as it is.
            kept = self.data[self._at :] if self._at else self.data
            self.data, self._at = kept + data if size >= self.need else bytearray(kept) + data, 0
            return
        if self._at:
            del self.data[: self._at]
            self._at = 0
        self.data += data

    def peek(self, size: int) -> bytes:
        """Return the first bytes that were not returned yet, at most so many."""
        return bytes(self.data[self._at : self._at + size])

    def next(self) -> bytes:
        """Return the next chunk of the current frame; between two frames, what has come of the next one."""
        data, at = self.data, self._at
        end = size = len(data)
        self.need = _ANY
        if self.left:
            end = min(size, at + self.left)
            self.left -= end - at
        elif size - at >= LENGTH_BYTES:
            end = min(size, at + frame_size(data, at))
        if end == size:
            self.data, self._at = b"", 0
        else:
            self._at = end
        piece = data if end - at == size else data[at:end]
        return bytes(piece) if isinstance(piece, bytearray) else piece

    def keep(self, data: bytes) -> None:
        """Keep a frame, or the part of one, that `next` has returned; it is returned again."""
        self.data = bytearray(data) + self.data[self._at :] if self.data else data
        self._at = 0

    def rest(self) -> bytes:
        """Return everything that was received and not returned, whatever it is."""
        data = bytes(self.data[self._at :])
        self.data, self._at, self.need = b"", 0, _ANY
        return data
