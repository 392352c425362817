"""Cuts the bytes of one direction of a connection into frames. Sans-IO.

A frame is a length of 4 bytes, followed by this number of bytes.
"""

from dataclasses import dataclass
from typing import Final

from proxy.protocol.api import LENGTH_BYTES

_ANY: Final = 1


def frame_size(data: bytes | bytearray, at: int = 0) -> int:
    """Return the size of a frame with its length field, which must be complete."""
    return LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES])


def is_frame(data: bytes) -> bool:
    """Return whether some bytes are exactly one frame, as nearly every read is."""
    return len(data) == LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES])


@dataclass(slots=True, eq=False)
class Framer:
    """Cuts the received bytes of one direction into frames.

    `next` returns a frame, or the part of it that was received. The caller can put a part back with `keep`,
    and set in `need` how many bytes to wait for. Or the caller uses the part at once, and sets in `left` how
    many bytes of the frame are missing. Then `next` returns these in chunks as they arrive.
    """

    data: bytes | bytearray = b""
    """The received bytes. Bytes before `_at` are already returned. Empty if all are."""
    _at: int = 0
    left: int = 0
    """The bytes of the current frame that `next` has not returned yet. The caller sets it, and `next`
    counts it down. 0 between two frames."""
    need: int = _ANY
    """How many bytes of the next frame must have arrived before `next` is called again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} bytes left={self.left} need={self.need}>"

    def __len__(self) -> int:
        return len(self.data) - self._at

    @property
    def ready(self) -> bool:
        """Whether to call `next`: there is a chunk, or `need` bytes of the next frame have arrived."""
        size = len(self.data) - self._at
        return size > 0 if self.left else size >= self.need

    @property
    def idle(self) -> bool:
        return not (self.data or self.left)

    def feed(self, data: bytes) -> None:
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
        """Return the next bytes, at most `size`. They stay in the buffer."""
        return bytes(self.data[self._at : self._at + size])

    def next(self) -> bytes:
        """Return the next chunk of the current frame, or the next frame or its received part."""
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
        """Put back what `next` has returned. `next` will return it again."""
        self.data = bytearray(data) + self.data[self._at :] if self.data else data
        self._at = 0

    def rest(self) -> bytes:
        """Return all remaining bytes, even if they are no frames. The buffer is then empty."""
        data = bytes(self.data[self._at :])
        self.data, self._at, self.need = b"", 0, _ANY
        return data
