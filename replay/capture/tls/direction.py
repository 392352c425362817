"""One direction of a TLS connection: turns captured bytes with gaps into application data with gaps.

If bytes of a TLS record are missing, the record is unreadable. After a gap, the next record is found by its
header. Only one sequence number decrypts this record, so its number is certain. From the number follows how
many records were lost, and how many bytes of application data. If no record can be found, the rest of the
direction is lost.
"""

from collections.abc import Callable
from typing import Final, Protocol

from replay.capture.tls.hello import (
    APPLICATION_DATA,
    CHANGE_CIPHER_SPEC,
    HANDSHAKE,
    HEADER,
    MOST_BODY,
    record_size,
)
from replay.capture.tls.keys import Opener

_KEY_UPDATE: Final = 24
_NEXT: Final = bytes([APPLICATION_DATA, 3, 3])
"""The first bytes of an encrypted record."""
_MOST_HANDSHAKE: Final = 64
"""The maximum number of handshake records before the first record that can be decrypted."""
_MOST_TRIES: Final = 512
"""The maximum number of sequence numbers that are tried after a gap. One try costs up to 10 microseconds."""


class PlaintextReceiver(Protocol):
    """Receives the contents of the records of one direction."""

    def decrypted(self, view: memoryview, time: int, end_time: int) -> None:
        """Process data of one record, which began and ended in bytes captured at these times."""

    def lacks(self, size: int, *, cut: bool) -> None:
        """Note that application data is missing. `cut`: the snap length cut its records."""

    def unread(self, size: int, *, partial: bool) -> None:
        """Note captured bytes that can't be decrypted. `partial` means that they are an incomplete record."""


class TlsDirection:
    """Decrypts the TLS records of one direction of a connection.

    `on_clear` gets handshake messages that are not encrypted. `on_lost` is called when nothing more can be
    read.
    """

    def __init__(
        self, receiver: PlaintextReceiver, on_clear: Callable[[bytes], None], on_lost: Callable[[], None]
    ) -> None:
        self.opener: Opener | None = None
        """None until the keys are known."""
        self.started = False
        """Whether a record was decrypted. If so, the keys are certainly right."""
        self.lost = False
        self.renegotiated = False
        """Whether the rest of the connection can't be decrypted, because new keys were negotiated."""
        self.seen_bytes = 0
        """Captured bytes, including those of TLS itself."""
        self._receiver = receiver
        self._on_clear = on_clear
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._time = 0
        self._number = 0
        self._skipped = 0
        self._padded = False
        self._hole = 0
        """If bytes are missing: the number of bytes since the last readable record. Otherwise 0."""
        self._missing = 0
        """How many of the bytes in `_hole` are missing."""
        self._cut = False
        self._tries = 0

    def data(self, view: memoryview, time: int, end_time: int) -> None:
        self.seen_bytes += len(view)
        at = 0 if self._hole or self.lost else self._follow(view, time, end_time)
        if self.lost:
            if at < len(view):
                self._receiver.unread(len(view) - at, partial=False)
        elif self._hole:
            self._search(view[at:], time, end_time)

    def gap(self, size: int, *, cut: bool) -> None:
        if self.lost:
            self._receiver.lacks(size, cut=cut)
            return
        if not self._hole:
            self._tries = _MOST_TRIES
        self._hole += len(self._buffer) + size
        self._missing += size
        self._cut |= cut
        self._buffer.clear()

    def finish(self) -> None:
        """End this direction. Bytes of an incomplete record count as unread."""
        if self._hole:
            self._lose()
        elif self._buffer and not self.lost:
            self._receiver.unread(len(self._buffer), partial=True)
            self._buffer.clear()

    def _follow(self, view: memoryview, time: int, end_time: int) -> int:
        """Read complete TLS records that follow one another. Return how many bytes were used."""
        at, end, buffer = 0, len(view), self._buffer
        while at < end and not self.lost:
            if buffer:
                size = record_size(buffer, 0) if len(buffer) >= HEADER else HEADER
                piece = view[at : at + max(size - len(buffer), 0)]
                buffer += piece
                at += len(piece)
                if len(buffer) == size > HEADER:
                    record = memoryview(bytes(buffer))
                    buffer.clear()
                    self._record(record, self._time, end_time)
                elif len(buffer) >= HEADER and not record_size(buffer, 0):
                    self._lose()
            elif end - at < HEADER or at + (size := record_size(view, at)) > end:
                buffer += view[at:]
                self._time = time
                return end
            elif size:
                self._record(view[at : at + size], time, end_time)
                at += size
            else:
                self._lose()
        return at

    def _record(self, record: memoryview, time: int, end_time: int) -> None:
        if self.opener is None:
            if record[0] == HANDSHAKE:
                self._on_clear(bytes(record[HEADER:]))
            elif record[0] == APPLICATION_DATA:  # the ServerHello was not captured
                self._lose(len(record))
            return
        if record[0] == CHANGE_CIPHER_SPEC:
            if self.started:  # TLS 1.2: other keys follow; in TLS 1.3 none comes so late
                self.renegotiated = True
                self._lose(len(record))
            return
        opened = self.opener.open(self._number, record)
        if opened is not None:
            self._deliver(*opened, time, end_time)
            return
        self._skipped += 1
        if self.started or self._skipped > _MOST_HANDSHAKE:
            self._lose(len(record))

    def _deliver(self, kind: int, content: memoryview, padding: int, time: int, end_time: int) -> None:
        self.started = True
        self._number += 1
        self._padded |= padding > 0
        if kind == APPLICATION_DATA:
            if content:
                self._receiver.decrypted(content, time, end_time)
        elif kind == HANDSHAKE and self.opener is not None and content[:1] == bytes([_KEY_UPDATE]):
            updated = self.opener.updated()
            if updated is not None:
                self.opener, self._number = updated, 0

    def _search(self, view: memoryview, time: int, end_time: int) -> None:
        buffer = self._buffer
        if len(buffer) < len(_NEXT):
            self._time = time
        buffer += view
        while self._hole:
            place = buffer.find(_NEXT)
            self._pass(place if place >= 0 else max(len(buffer) - len(_NEXT) + 1, 0))
            if place < 0 or len(buffer) < HEADER:
                return
            size = record_size(buffer, 0)
            if size > len(buffer):
                return
            if size and self._found(memoryview(bytes(buffer[:size])), end_time):
                rest = memoryview(bytes(buffer[size:]))
                buffer.clear()
                used = self._follow(rest, time, end_time)
                if used < len(rest):
                    self._receiver.unread(len(rest) - used, partial=False)
                return
            if self.opener is None or self._tries <= 0:
                self._lose()
                return
            self._pass(1)

    def _pass(self, size: int) -> None:
        """Skip `size` bytes of the buffer. They count as unreadable until the next readable record."""
        del self._buffer[:size]
        self._hole += size

    def _found(self, record: memoryview, end_time: int) -> bool:
        """Try each possible sequence number. If one is right, deliver the record and what is missing."""
        opener = self.opener
        if opener is None or self._padded:
            return False
        least = -(-self._hole // (HEADER + MOST_BODY)) if self.started else 0
        most = self._hole // opener.overhead
        for lost in range(least, min(most, least + self._tries) + 1):
            self._tries -= 1
            opened = opener.open(self._number + lost, record)
            if opened is None:
                continue
            # Of a handshake it is not known how much was lost. Some is enough: then a frame is searched.
            size = self._hole - lost * opener.overhead if self.started else self._missing if lost else 0
            if size:
                self._receiver.lacks(size, cut=self._cut)
            self._number += lost
            self._hole = self._missing = 0
            self._cut = False
            self._deliver(*opened, self._time, end_time)
            return True
        return False

    def _lose(self, used: int = 0) -> None:
        """Give up this direction. The last `used` captured bytes were read already; count them as unread."""
        self.lost = True
        if self._missing:
            self._receiver.lacks(self._missing, cut=self._cut)
        unread = self._hole - self._missing + len(self._buffer) + used
        if unread:
            self._receiver.unread(unread, partial=False)
        self._hole = self._missing = 0
        self._buffer.clear()
        self._on_lost()
