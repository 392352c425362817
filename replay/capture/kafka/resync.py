"""Finds the start of a frame in a stream after bytes that were not captured.

Bytes are buffered while they are searched, at most `LIMIT`. A header alone does not prove the start of a
frame, see `Plausibility`. The search prefers to miss a frame: then its bytes count as unframed. A wrong frame
would make the results wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

LIMIT: Final = 4 << 20
_SMALLEST_HEADER: Final = 8


class Plausibility(Enum):
    """The result of the test whether a frame begins at a certain place in the bytes."""

    HERE = auto()
    """A frame certainly begins here. The proof is a header after its end, or a sender that waits after its
    end, or the frame's contents."""
    WAIT = auto()
    """More bytes are needed to decide."""
    NO = auto()


@dataclass(slots=True)
class BufferedRun:
    """A buffered run, or a gap if it has no payload."""

    start: int
    size: int
    payload: memoryview | None
    time: int
    end_time: int
    turned: bool = False
    """Whether the other direction sent something before this run."""


class Judge(Protocol):
    """An object that recognises the frames of one direction."""

    @property
    def overlap(self) -> int:
        """The number of bytes at the end of the buffer in which an incomplete header may begin."""

    def candidates(self, buffer: bytearray, start: int) -> Iterable[int]:
        """Return the places from `start` on at which a frame may begin."""

    def judge(self, search: "Search", at: int, *, boundary: bool) -> Plausibility:
        """Return whether a frame begins at a place."""


class Search:
    """The buffered bytes in which the start of a frame is searched."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._runs: list[BufferedRun] = []
        self._holes: list[tuple[int, int]] = []
        self._looked = 0
        self._size = 0
        """The number of buffered bytes at the last search for candidates."""
        self._turned = -1
        self._exhausted = False
        """Whether `LIMIT` bytes were searched in vain. Nothing is buffered then until the direction changes.
        """
        self._open: list[int] = []
        self.buffer = bytearray()
        """The buffered bytes, with zeros for gaps."""
        self.row_starts: set[int] = set()
        """The places where the sender continued after the other side had sent bytes."""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def buffered(self) -> list[BufferedRun]:
        return self._runs

    def data(self, view: memoryview, time: int, end_time: int, *, turned: bool) -> None:
        self._exhausted = self._exhausted and not turned
        if self._exhausted:
            self.dropped += len(view)
            return
        at = len(self.buffer)
        if turned:
            self.row_starts.add(at)
        self._runs.append(BufferedRun(at, len(view), view, time, end_time, turned))
        self.buffer += view
        self._bound()

    def gap(self, size: int) -> None:
        if self._exhausted:
            return
        if size > LIMIT:
            self._drop()
            return
        at = len(self.buffer)
        self._runs.append(BufferedRun(at, size, None, 0, 0))
        self._holes.append((at, at + size))
        self.buffer += bytes(size)
        if self._looked >= at - self._judge.overlap:
            self._looked = at + size  # no frame begins in a gap, and a gap may be large
        self._bound()

    def look(self, *, boundary: bool) -> int:
        """Return where a frame begins, or -1. `boundary`: the sender stopped here, to wait or at its end."""
        if self._exhausted:
            return -1
        size = len(self.buffer)
        if boundary and self._turned == size:
            return -1
        if boundary:
            self._turned = size
        if size > self._size:
            self._open += self._new_candidates()
            self._size = size
        still_open = []
        for at in self._open:
            verdict = self._judge.judge(self, at, boundary=boundary)
            if verdict is Plausibility.HERE:
                return at
            if verdict is Plausibility.WAIT:
                still_open.append(at)
        self._open = still_open
        return -1

    def is_whole(self, start: int, end: int) -> bool:
        return not self._holes or not any(hole < end and start < stop for hole, stop in self._holes)

    def head(self, at: int, most: int) -> bytes:
        """Return the bytes from a place to the next gap, up to a maximum."""
        end = at + most
        if self._holes:
            end = min(end, max(min((hole for hole, stop in self._holes if stop > at), default=end), at))
        return bytes(self.buffer[at:end])

    def split(self, place: int) -> list[BufferedRun]:
        rest = []
        for run in self._runs:
            known = place - run.start
            if known < run.size:
                if known > 0:
                    run.payload = None if run.payload is None else run.payload[known:]
                    run.size -= known
                rest.append(run)
        return rest

    def seen_before(self, place: int) -> int:
        seen = (run for run in self._runs if run.payload is not None and run.start < place)
        return sum(min(run.size, place - run.start) for run in seen)

    def _new_candidates(self) -> list[int]:
        start, self._looked = self._looked, max(len(self.buffer) - self._judge.overlap, 0)
        found = dict.fromkeys(self._judge.candidates(self.buffer, start))
        return [at for at in found if at not in self._open and self.is_whole(at, at + _SMALLEST_HEADER)]

    def _bound(self) -> None:
        if len(self.buffer) > LIMIT:
            self._exhausted = True
            self._drop()

    def _drop(self) -> None:
        self.dropped += self.seen_before(len(self.buffer))
        self._runs, self._holes, self._open = [], [], []
        self._looked, self._size, self._turned = 0, 0, -1
        self.buffer = bytearray()
        self.row_starts = set()
