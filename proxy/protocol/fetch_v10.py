"""Sends fetches of v10 as v11, and turns the responses back into v10. Sans-IO.

Followers answer fetches from v11 on. A fetch of v10 gets NOT_LEADER_OR_FOLLOWER from them. In v11, a request
ends with the client's rack, and each entry of a response has a preferred read replica before its records
(KIP-392). All else is the same. Both versions know zstd (KIP-110), so records are the same, too.
"""

from collections import deque
from typing import Final

from proxy.protocol.api import API_VERSION, LENGTH_BYTES
from proxy.protocol.fetch_layout import ABORTED_BYTES, LAYOUTS, RACK_VERSION
from proxy.protocol.fetch_response import NO_ABORTED, FetchResponseWalk
from proxy.protocol.primitives import Buffer

RAISED: Final = 10
"""The version of Fetch that can be sent as v11."""
_LAYOUT: Final = LAYOUTS[RACK_VERSION]
_NO_RACK: Final = b"\x00\x00"
_REPLICA_BYTES: Final = 4
_COUNT_BYTES: Final = 4
RACK_BYTES: Final = len(_NO_RACK)
"""How much longer a fetch becomes, in bytes."""


def raised(frame: bytes) -> bytes:
    """Return a complete fetch of v10 as a fetch of v11 with an empty rack."""
    size = len(frame) - LENGTH_BYTES + len(_NO_RACK)
    start, end = API_VERSION.start, API_VERSION.stop
    version = RACK_VERSION.to_bytes(2)
    return b"".join((size.to_bytes(4), frame[LENGTH_BYTES:start], version, frame[end:], _NO_RACK))


class LoweredResponse:
    """Turns a response of v11 into v10 while it arrives.

    The length of the response depends on its number of entries. So nothing is ready before the last topic
    element has begun. Records are not copied.
    """

    __slots__ = ("_begins", "_cuts", "_pieces", "_walk", "buffered")

    def __init__(self, isolation_level: int) -> None:
        self._walk = FetchResponseWalk(_LAYOUT, isolation_level, keep=True)
        self._pieces = deque[memoryview]()
        self._begins = 0
        """The offset of `_pieces` in the response of v11."""
        self._cuts = deque[int]()
        """The offsets of preferred read replicas that were not cut out yet."""
        self.buffered = 0

    @property
    def redirects(self) -> bool:
        """Whether a preferred read replica that was cut out has named a broker."""
        return self._walk.redirects

    def feed(self, pieces: list[Buffer]) -> list[Buffer]:
        """Process the next bytes of the response. Return the bytes of v10 that are ready now.

        Raises:
            ProtocolError: the bytes do not match a response of v11.
        """
        walk = self._walk
        for piece in pieces:
            self._pieces.append(memoryview(piece))
            self.buffered += len(piece)
            if not walk.skip_records(len(piece)):
                walk.feed(bytes(piece))
        self._find_cuts()
        if not walk.counted:
            return []
        ready: list[Buffer] = []
        if not self._begins:
            size = int.from_bytes(b"".join(self._take(LENGTH_BYTES)))
            entries = sum(max(count, 0) for _, count in walk.elements)
            ready.append((size - entries * _REPLICA_BYTES).to_bytes(LENGTH_BYTES))
        while self._cuts:
            ready += self._take(self._cuts[0])
            self._take(self._cuts.popleft() + _REPLICA_BYTES)
        return ready + self._take(walk.offset)

    def _find_cuts(self) -> None:
        walk, aborted_at, size = self._walk, _LAYOUT.aborted + _COUNT_BYTES, _LAYOUT.response_entry
        cuts = [
            entry.start + aborted_at + max(entry.aborted - NO_ABORTED, 0) * ABORTED_BYTES
            for entry in walk.entries
        ]
        for run in walk.runs:
            cuts += range(run.start + aborted_at, run.start + len(run.entries) * size, size)
        self._cuts.extend(sorted(cuts))
        walk.entries.clear()
        walk.runs.clear()

    def _take(self, end: int) -> list[Buffer]:
        taken: list[Buffer] = []
        pieces = self._pieces
        while self._begins < end:
            piece = pieces.popleft()
            if len(piece) > (left := end - self._begins):
                pieces.appendleft(piece[left:])
                piece = piece[:left]
            if piece:
                taken.append(piece)
            self._begins += len(piece)
            self.buffered -= len(piece)
        return taken
