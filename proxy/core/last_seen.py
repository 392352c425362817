"""What a connection has seen last, so that frames which repeat it need not be parsed again. Sans-IO.

The fetches of a client differ in their correlation ids and in the contents of their entries. All else stays
the same. With hundreds of connections, or with fetches of a thousand partitions, a few comparisons in place
of parsing save the gateway most of its work.
"""

from copy import copy
from typing import Final

from proxy.protocol.api import REQUEST_CORRELATION_ID, REQUEST_START_BYTES, RESPONSE_START_BYTES
from proxy.protocol.fetch_request import MAX_AROUND, FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk

_MAX_RESPONSE: Final = 512
_MAX_FORM: Final = 2 * MAX_AROUND + 512
_KIND_BYTES: Final = REQUEST_CORRELATION_ID.start
"""Length, API key and version of a request."""


class LastSeen:
    """The last fetch whose entries stand in one place, the last small response, and the last empty one."""

    __slots__ = (
        "_after",
        "_before",
        "_empty",
        "_kind",
        "_partitions",
        "_response",
        "_sent",
        "_version",
        "changes",
        "form",
        "size",
    )

    def __init__(self) -> None:
        self.form: FetchRequest | None = None
        """The last fetch without its frame, if its entries stand in one place."""
        self.size = 0
        """Bytes of its frame."""
        self._kind = b""
        self._before = b""
        self._after = b""
        self._sent = b"", b"", b""
        """Like the three before, of that fetch as it was sent."""
        self.changes = False
        """Stages changed that fetch before it was sent."""
        self._response = b""
        self._version = -1
        self._partitions = 0
        self._empty: tuple[bytes, FetchResponseWalk] | None = None

    def request(self, frame: bytes) -> FetchRequest | None:
        """Return a fetch if only its correlation id and its entries differ from the last one, else None."""
        return self.form.with_frame(frame) if self.form is not None and self.matches(frame) else None

    def matches(self, frame: bytes) -> bool:
        """Whether a fetch differs from the last one only in its correlation id and its entries."""
        form = self.form
        if form is None or not self.surrounds(frame):
            return False
        if not form.layout.flexible:
            return True
        size = form.layout.request_entry
        start, count = form.topics.blocks[0]
        return frame[start + size - 1 : start + count * size : size].count(0) == count  # no entry has tags

    def surrounds(self, frame: bytes) -> bool:
        """Whether a fetch is like the last one around its entries. These are not looked at."""
        return (
            len(frame) == self.size
            and frame.startswith(self._kind)
            and frame.startswith(self._before, REQUEST_START_BYTES)
            and frame.endswith(self._after)
        )

    def note_request(self, request: FetchRequest) -> None:
        """Keep the form of a fetch, without its entries, if they stand in one place."""
        block, frame = request.block, request.frame
        start, end = block or (0, 0)
        # What is kept is bounded: a client with sessions of its own may forget topics at any length.
        if block is None or len(frame) - (end - start) > _MAX_FORM:
            self.form, self.changes = None, False
            return
        self.form = request.with_frame(b"")
        self.size = len(frame)
        self._sent = self._kind, self._before, self._after = _around(frame, start, end)
        self.changes = False

    def note_sent(self, sent: FetchRequest) -> None:
        """Note what stages made of the last fetch. Its entries must be the same, at the same offset."""
        form = self.form
        if form is None:
            return
        start, end = form.block or (0, 0)
        around = _around(sent.frame, start, end)
        if around != self._sent:
            self._sent = around
            self.changes = around != (self._kind, self._before, self._after)
            # A `Rotation` knows its fetches by their topics, and would send what is around the old ones.
            form.topics = sent.topics = copy(form.topics)

    def as_sent(self, frame: bytes) -> bytes:
        """Return a fetch that is like the last one around its entries, changed as stages changed that one."""
        kind, before, after = self._sent
        entries = frame[REQUEST_START_BYTES + len(self._before) : self.size - len(self._after)]
        return b"".join((kind, frame[REQUEST_CORRELATION_ID], before, entries, after))

    def response(self, frame: bytes, version: int) -> int:
        """Return how many partitions a response names if it repeats the last one, else -1."""
        known = self._response
        alike = len(frame) == RESPONSE_START_BYTES + len(known) and frame.endswith(known)
        return self._partitions if alike and version == self._version else -1

    def note_response(self, frame: bytes, version: int, walk: FetchResponseWalk) -> None:
        """Keep a response if nothing in it has to be read each time."""
        special = walk.record_bytes or walk.tags or walk.session_id or walk.error_code or walk.moved
        if not special and len(frame) <= _MAX_RESPONSE:
            self._response, self._version, self._partitions = (
                frame[RESPONSE_START_BYTES:],
                version,
                walk.partitions,
            )

    @property
    def repeatable(self) -> bytes | None:
        """What follows the correlation id in the session's last empty response, if that says nothing else."""
        return self._empty[0] if self._empty is not None and self._empty[1].repeatable else None

    def empty(self, frame: bytes) -> FetchResponseWalk | None:
        """Return the walk over the session's last empty response if the frame repeats it, else None."""
        if self._empty is None:
            return None
        known, walk = self._empty
        return walk if len(frame) == RESPONSE_START_BYTES + len(known) and frame.endswith(known) else None

    def note_empty(self, frame: bytes, walk: FetchResponseWalk) -> None:
        """Keep a response of the session if it is walked to its end and names no partition."""
        if walk.done and not walk.partitions and not walk.error_code and len(frame) <= _MAX_RESPONSE:
            self._empty = frame[RESPONSE_START_BYTES:], walk


def _around(frame: bytes, start: int, end: int) -> tuple[bytes, bytes, bytes]:
    """Return what is around the correlation id and the entries of a fetch."""
    return frame[:_KIND_BYTES], frame[REQUEST_START_BYTES:start], frame[end:]
