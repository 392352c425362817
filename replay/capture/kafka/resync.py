"""Finding where a frame begins in a stream of which the start, or a stretch, was not seen.

Bytes are held while they are searched, at most `LIMIT`. A place is taken for the start of a frame only when
more than its own header speaks for it, see `Plausibility`: a frame that is not found is counted, a wrong one
would be believed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

LIMIT: Final = 4 << 20
_SMALLEST_HEADER: Final = 8


class Plausibility(Enum):
    """What is known of a place where a frame may begin."""

    HERE = auto()
    """A frame begins here: another header stands where it ends, or the sender waits there, or what is in it
    shows what it is."""
    WAIT = auto()
    NO = auto()


@dataclass(slots=True)
class Held:
    """A run that is held; without payload: a gap."""

    start: int
    size: int
    payload: memoryview | None
    time: int
    end_time: int
    turned: bool = False
    """The other direction spoke before it."""


class Judge(Protocol):
    """Knows what frames of one direction look like."""

    @property
    def overlap(self) -> int:
        """Bytes at the end of the buffer that a header may begin in and go on after."""

    def candidates(self, buffer: bytearray, start: int) -> Iterable[int]:
        """Give the places from `start` on at which a frame may begin."""

    def judge(self, search: "Search", at: int, *, boundary: bool) -> Plausibility:
        """Tell what is known of a place."""


class Search:
    """The bytes that are searched."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._held: list[Held] = []
        self._holes: list[tuple[int, int]] = []
        self._looked = 0
        self._turned = -1
        self._exhausted = False
        """So much came without a turn, and in vain, that nothing more is held until the next one."""
        self._open: list[int] = []
        self.buffer = bytearray()
        """What is held, with zeros for gaps."""
        self.row_starts: set[int] = set()
        """Places at which the sender began to speak."""
        self.dropped = 0
        """Captured bytes that were let go."""

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def held(self) -> list[Held]:
        """What is held, in order."""
        return self._held

    def data(self, view: memoryview, time: int, end_time: int, *, turned: bool) -> None:
        """Hold the next bytes; `turned`: the other direction spoke before them."""
        self._exhausted = self._exhausted and not turned
        if self._exhausted:
            self.dropped += len(view)
            return
        at = len(self.buffer)
        if turned:
            self.row_starts.add(at)
        self._held.append(Held(at, len(view), view, time, end_time, turned))
        self.buffer += view
        self._bound()

    def gap(self, size: int) -> None:
        """Note that the next bytes are missing."""
        if self._exhausted:
            return
        if size > LIMIT:
            self._let_go()
            return
        at = len(self.buffer)
        self._held.append(Held(at, size, None, 0, 0))
        self._holes.append((at, at + size))
        self.buffer += bytes(size)
        self._bound()

    def look(self, *, boundary: bool) -> int:
        """Look for the start of a frame; return its place, or -1.

        Args:
            boundary: the sender has stopped here, to wait for the other side or for good.
        """
        if self._exhausted:
            return -1
        size = len(self.buffer)
        if boundary and self._turned == size:
            return -1
        if boundary:
            self._turned = size
        self._open += self._new_candidates()
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
        """Tell whether no gap lies in a stretch."""
        return not any(hole < end and start < stop for hole, stop in self._holes)

    def head(self, at: int, most: int) -> bytes:
        """Return the bytes from a place on, up to `most`, or to the next gap."""
        stop = min((hole for hole, stop in self._holes if stop > at), default=len(self.buffer))
        return bytes(self.buffer[at : min(at + most, max(stop, at))])

    def split(self, place: int) -> list[Held]:
        """Return what is held from `place` on."""
        rest = []
        for run in self._held:
            known = place - run.start
            if known < run.size:
                if known > 0:
                    run.payload = None if run.payload is None else run.payload[known:]
                    run.size -= known
                rest.append(run)
        return rest

    def seen_before(self, place: int) -> int:
        """Count the captured bytes that were held up to `place`."""
        seen = (run for run in self._held if run.payload is not None and run.start < place)
        return sum(min(run.size, place - run.start) for run in seen)

    def _new_candidates(self) -> list[int]:
        start, self._looked = self._looked, max(len(self.buffer) - self._judge.overlap, 0)
        found = self._judge.candidates(self.buffer, start)
        return [at for at in found if at not in self._open and self.is_whole(at, at + _SMALLEST_HEADER)]

    def _bound(self) -> None:
        if len(self.buffer) > LIMIT:
            self._exhausted = True
            self._let_go()

    def _let_go(self) -> None:
        self.dropped += self.seen_before(len(self.buffer))
        self._held, self._holes, self._open = [], [], []
        self._looked, self._turned = 0, -1
        self.buffer = bytearray()
        self.row_starts = set()
