"""One direction of a TCP connection: runs of segments in capture order in, its byte stream with gaps out.

A hole is waited for, since what fills it may have been captured late, but never for long: until `WINDOW`
bytes came after it in this direction, or as many or `TURNS` runs came in the other one, which would not go
on as it does had the bytes not arrived.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

WINDOW: Final = 4 << 20
TURNS: Final = 16
START_TURNS: Final = 2
"""Where no SYN was seen: runs of the other direction until the lowest sequence number counts as the start."""
_MAX_HELD: Final = 4096
_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000
_FAR_AHEAD: Final = 1 << 30
_FAR_BEHIND: Final = 1 << 28


class Sink(Protocol):
    """Takes the stream."""

    def begin(self) -> None:
        """The stream is seen from its first byte on (its SYN was captured)."""

    def turn(self) -> None:
        """What comes next was captured after something of the other direction."""

    def data(self, view: memoryview, time: int, end_time: int) -> None:
        """The next bytes; times are those of the run's first and last packet."""

    def gap(self, size: int, *, cut: bool) -> None:
        """The next `size` bytes are missing; `cut`: by the snap length."""


@dataclass(slots=True)
class Run:
    """Payload of consecutive segments, and what the snap length cut off at its end."""

    start: int
    """Position in the stream."""
    payload: memoryview
    missing: int
    time: int
    end_time: int
    packets: int
    turn: int = 0
    """How many runs, and bytes, the other direction had when this one came."""
    turn_bytes: int = 0

    @property
    def end(self) -> int:
        """Position after it."""
        return self.start + len(self.payload) + self.missing


class Reassembly:
    """Puts one direction in order. Where copies differ, the first one counts."""

    __slots__ = (
        "_fin",
        "_held",
        "_held_bytes",
        "_isn",
        "_limit",
        "_next",
        "_origin",
        "_others_bytes",
        "_others_runs",
        "_position",
        "_settled",
        "_turn",
        "reordered_segments",
        "repeated_bytes",
        "repeated_segments",
        "sink",
    )

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._isn = -1
        self._fin = -1
        self._next = -1
        """Sequence number at `_position`, -1 while it is not known."""
        self._origin = -1
        """Sequence number of position 0."""
        self._position = 0
        self._settled = False
        self._limit = START_TURNS
        self._held: list[Run] = []
        self._held_bytes = 0
        self._others_runs = 0
        self._turn = 0
        """`Run.turn` of what was handed on last."""
        self._others_bytes = 0
        self.reordered_segments = 0
        self.repeated_segments = 0
        self.repeated_bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether runs are held back because of a hole before them."""
        return bool(self._held)

    def syn(self, sequence: int) -> bool:
        """Take a SYN; return False if it begins another connection than the one seen so far."""
        first = sequence + 1 & _MASK
        if self._isn >= 0 or self._settled:
            return sequence == self._isn or (self._isn < 0 and first == self._origin)
        if self._origin >= 0:
            position = _distance(first, self._origin)
            if not self._held[0].start - WINDOW <= position <= self._held[0].start:
                return False
            self._position = position
        self._isn = sequence
        self._next = first
        self._settle()
        self.sink.begin()
        self._drain()
        return True

    def push(  # once for every row: keywords would cost as much as the work itself
        self, sequence: int, payload: memoryview, missing: int, time: int, end_time: int, packets: int
    ) -> bool:
        """Take the next run captured; return False if it lies so far off that it is another connection's."""
        if sequence == self._next and not self._held:
            size = len(payload)
            self._position += size + missing
            self._next = sequence + size + missing & _MASK
            if size:
                self.sink.data(payload, time, end_time)
            if missing:
                self.sink.gap(missing, cut=True)
            return True
        return self._place(sequence, Run(0, payload, missing, time, end_time, packets))

    def fits(self, sequence: int) -> bool:
        """Tell whether a segment without payload can be this connection's."""
        reference = self._next if self._settled else self._origin
        return reference < 0 or -_FAR_BEHIND <= _distance(sequence, reference) <= _FAR_AHEAD

    def fin(self, sequence: int) -> None:
        """Take a FIN without payload: the stream goes as far as its sequence number."""
        self._fin = sequence

    def other_spoke(self, size: int, *, turned: bool) -> None:
        """Note a run of the other direction; `turned`: the first since one of this direction."""
        self._others_runs += turned
        self._others_bytes += size
        while self._held and self._overdue(self._held[0]):
            self._give_up_waiting()

    def finish(self) -> None:
        """Nothing more will come: what is still missing is a gap."""
        while self._held:
            self._give_up_waiting()
        if self._settled and self._fin >= 0:
            hole = _distance(self._fin, self._next)
            if 0 < hole <= _FAR_AHEAD:
                self._advance(hole)
                self.sink.gap(hole, cut=False)

    def _place(self, sequence: int, run: Run) -> bool:
        if self._origin < 0:
            self._origin = sequence
        reference = self._next if self._settled else self._origin
        distance = _distance(sequence, reference)
        if not -_FAR_BEHIND <= distance <= _FAR_AHEAD:
            return False
        run.start = self._position + distance if self._settled else distance
        if self._settled and run.start <= self._position:
            self._at_position(run)
        else:
            self._hold(run)
        return True

    def _at_position(self, run: Run) -> None:
        if self._held and run.end > self._position:
            self.reordered_segments += run.packets
        self._deliver(run)
        self._drain()

    def _hold(self, run: Run) -> None:
        held = self._held
        at = bisect_left(held, run.start, key=_start)
        if at < len(held) and held[at].start == run.start and held[at].end >= run.end:
            self.repeated_segments += run.packets
            self.repeated_bytes += len(run.payload)
            return
        if at < len(held):
            self.reordered_segments += run.packets
        run.turn, run.turn_bytes = self._others_runs, self._others_bytes
        held.insert(at, run)
        self._held_bytes += len(run.payload)
        while self._held_bytes > WINDOW or len(held) > _MAX_HELD:
            self._give_up_waiting()

    def _overdue(self, run: Run) -> bool:
        return self._others_runs - run.turn >= self._limit or self._others_bytes - run.turn_bytes > WINDOW

    def _give_up_waiting(self) -> None:
        first = self._held[0]
        if self._settled:
            hole = first.start - self._position
            self._advance(hole)
            self.sink.gap(hole, cut=False)
        else:
            self._position = first.start
            self._next = self._origin + first.start & _MASK
            self._settle()
        self._drain()

    def _settle(self) -> None:
        self._settled = True
        self._limit = TURNS
        self._origin = self._next

    def _drain(self) -> None:
        held = self._held
        while held and held[0].start <= self._position:
            run = held.pop(0)
            self._held_bytes -= len(run.payload)
            if run.turn != self._turn:
                self._turn = run.turn
                self.sink.turn()
            self._deliver(run)

    def _deliver(self, run: Run) -> None:
        """Hand on what of a run lies beyond the position; it begins there or before."""
        known = self._position - run.start
        if run.start < run.end <= self._position:
            self.repeated_segments += run.packets
        payload = run.payload[known:] if known else run.payload
        self.repeated_bytes += min(known, len(run.payload))
        missing = max(min(run.missing, run.end - self._position), 0)
        self._advance(len(payload) + missing)
        if payload:
            self.sink.data(payload, run.time, run.end_time)
        if missing:
            self.sink.gap(missing, cut=True)

    def _advance(self, size: int) -> None:
        self._position += size
        self._next = self._next + size & _MASK


def _start(run: Run) -> int:
    return run.start


def _distance(sequence: int, reference: int) -> int:
    """Return how far a sequence number lies after another one, by the shorter way round."""
    return (sequence - reference + _HALF & _MASK) - _HALF
