"""Fetch responses of one entry that differ only in its offsets and records. Sans-IO."""

from typing import Final

from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES
from proxy.protocol.fetch_layout import HIGH_WATERMARK, FetchLayout
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import ProtocolError, read_uvarint

_NO_ABORTED: Final = {True: (b"\0", b"\1"), False: (b"\xff\xff\xff\xff", b"\0\0\0\0")}
"""By whether a layout is flexible: null, and none."""
ENTRY_HEAD: Final = 512
"""More bytes than stand before the records of a response of one entry: a topic's name has at most 249."""


class EntryForm:
    """A fetch response of one entry: all is the same but its offsets and its records.

    Args:
        layout: that of the version.
        frame: such a response, up to its records at least.
        at: where the entry stands in it.
    """

    __slots__ = ("_at", "_end", "_ends_at", "_flexible", "_head", "_records_at", "_tail", "version")

    def __init__(self, layout: FetchLayout, frame: bytes, at: int) -> None:
        self.version = layout.version
        self._at = at
        self._head = frame[RESPONSE_START_BYTES : at + HIGH_WATERMARK.start]
        self._ends_at = at + layout.aborted
        aborted = 1 if layout.flexible else LENGTH_BYTES
        self._records_at = self._ends_at + aborted + (4 if layout.version >= 11 else 0)
        self._end = frame[self._ends_at : self._records_at]
        self._tail = b"\0\0\0" if layout.flexible else b""
        self._flexible = layout.flexible

    def records(self, frame: bytes) -> int:
        """Return how many bytes of records a response of this form has, -1 if it has another form."""
        if not frame.startswith(self._head, RESPONSE_START_BYTES) or not frame.startswith(
            self._end, self._ends_at
        ):
            return -1
        at = self._records_at
        if self._flexible:
            if frame[at : at + 1] < b"\x80":  # of one byte: no records, or few
                size, at = frame[at] if at < len(frame) else 0, at + 1
            else:
                try:
                    size, at = read_uvarint(frame, at)
                except ProtocolError:
                    return -1
            size -= size > 0
        else:
            size = max(int.from_bytes(frame[at : at + LENGTH_BYTES], signed=True), 0)
            at += LENGTH_BYTES
        return size if at + size + len(self._tail) == len(frame) and frame.endswith(self._tail) else -1

    def of(self, frame: bytes) -> bytes:
        """Return the entry of a response of this form."""
        # The empty tags of the topic element and of the body follow it.
        return frame[self._at : len(frame) - 2] if self._flexible else frame[self._at :]


def entry_form(request: FetchRequest, frame: bytes, walk: FetchResponseWalk) -> EntryForm | None:
    """Return the form of a whole response, if it has one entry and nothing that may change its shape.

    Args:
        request: the fetch.
        frame: the response to it, or its first `ENTRY_HEAD` bytes.
        walk: the walk over that.
    """
    layout = request.layout
    if walk.partitions != 1 or walk.tags or not request.topics.keys:
        return None
    element = layout.count(1) + layout.prefix(request.topics.keys[0], 1)
    begins = RESPONSE_START_BYTES + layout.flexible + layout.response_head
    at = begins + len(element)
    ends = frame[at + layout.aborted :]
    # Without header tags, and without aborted transactions: null or none.
    if frame[begins:at] != element or not ends.startswith(_NO_ABORTED[layout.flexible]):
        return None
    return EntryForm(layout, frame, at)
