"""Recognises frames that list the same entries as an earlier frame, rotated. Sans-IO.

librdkafka rotates the list of partitions with each fetch, and the broker responds in the same order. The rest
of the fetch does not change. If nothing is new, the rest of the response does not change either.
"""

from proxy.protocol.api import REQUEST_START_BYTES, RESPONSE_START_BYTES
from proxy.protocol.fetch_layout import PARTITION_BYTES
from proxy.protocol.fetch_request import FetchRequest
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.outcome import head_size


class Turned:
    """A template of a frame. Frames match if only their start and the rotation of their entries differ.

    Frames are compared from `begin` on, the offset after the correlation id. The entries are from `start` to
    `end`, of `item` bytes each. An entry begins with its partition, and no partition is listed twice.
    """

    __slots__ = ("_after", "_at", "_before", "_begin", "_circle", "_item", "_listed", "_start", "size")

    def __init__(self, frame: bytes, begin: int, start: int, end: int, item: int) -> None:
        self.size = len(frame)
        self._begin, self._start, self._item = begin, start, item
        self._before, self._after = frame[begin:start], frame[end:]
        self._listed = end - start
        """The size of all entries in bytes."""
        self._circle = 2 * frame[start:end]
        self._at = 0
        """Where the first entry of the last matching frame begins, as an offset in `_circle`."""

    def matches(self, frame: bytes) -> bool:
        if (
            len(frame) != self.size
            or not frame.startswith(self._before, self._begin)
            or not frame.endswith(self._after)
        ):
            return False
        at = self._place(frame)
        if at < 0 or not frame.startswith(self._circle[at : at + self._listed], self._start):
            return False
        self._at = at
        return True

    def _place(self, frame: bytes) -> int:
        """Return the position of a frame's first entry in the template's circle of entries, or -1."""
        circle, start, item, last = self._circle, self._start, self._item, self._at
        # Usually this entry was the first or the second one of the last frame.
        for at in (last, (last + item) % self._listed):
            if frame.startswith(circle[at : at + PARTITION_BYTES], start):
                return at
        at = -1
        while (at := circle.find(frame[start : start + item], at + 1)) % item:
            if at < 0:
                break
        return at


def turned_request(request: FetchRequest) -> Turned | None:
    """Return a template of a fetch. Return None if its entries are not contiguous, or not supported."""
    if request.block is None:
        return None
    start, end = request.block
    return Turned(request.frame, REQUEST_START_BYTES, start, end, request.layout.request_entry)


def turned_response(response: CapturedResponse) -> Turned | None:
    """Return a template of a response that has only empty entries of one topic. None for any other."""
    walk, item = response.walk, response.layout.response_entry
    if len(walk.elements) != 1 or len(walk.runs) != 1 or walk.entries or response.cut:
        return None
    key, count = walk.elements[0]
    start = head_size(response.layout) + response.layout.prefix_size(key, count)
    return Turned(b"".join(response.pieces), RESPONSE_START_BYTES, start, start + count * item, item)
