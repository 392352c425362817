"""One direction of a TCP connection: turns runs of segments, in capture order, into a stream with gaps.

The missing bytes of a gap may have been captured late. So the runs after a gap wait for them. The wait ends
when either direction has sent `WINDOW` more bytes, when more than `_MAX_WAITING` runs wait, or when the other
direction has taken `TURNS` more turns and `LATE` ns have passed. A turn is one or more runs after a run of
this direction. If the other side continues for so long, it has received the missing bytes: they were sent,
but not captured.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Protocol

WINDOW: Final = 4 << 20
TURNS: Final = 16
LATE: Final = 250_000_000
"""The longest delay with which a packet is captured, in ns. It also covers taps with other clocks."""
START_TURNS: Final = 2
"""Without a SYN, the start of a stream is unknown. After the other direction has taken this many turns, over
`LATE`, the stream starts at the lowest sequence number captured until then."""
_MAX_WAITING: Final = 4096
_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000
FAR_AHEAD: Final = 1 << 30
_FAR_BEHIND: Final = 1 << 28


class Sink(Protocol):
    """Receives the bytes of a TCP stream in order."""

    def begin(self, sequence: int, *, whole: bool) -> None:
        """Note the first byte's sequence number. `whole`: the SYN before it was captured."""

    def data(self, view: memoryview, time: int, end_time: int, ack: int, end: int) -> None:
        """Read the next bytes. `ack` is -1 if there is none. `end` is the sequence number after the bytes."""

    def gap(self, size: int, end: int, *, cut: bool) -> None:
        """Note that bytes up to sequence number `end` are missing. `cut`: because of the snap length."""


@dataclass(slots=True)
class PayloadRun:
    """The payload of consecutive segments. The snap length may have cut its end."""

    start: int
    payload: memoryview
    missing: int
    time: int
    end_time: int
    ack: int
    packets: int
    turn: int = 0
    """How many turns the other direction had taken before this run; `turn_bytes`: how many bytes it had sent.
    Both count only while runs of this direction wait."""
    turn_bytes: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.payload) + self.missing


class Reassembly:
    """Puts the runs of one direction in order. If a byte was captured twice, only one copy is used."""

    __slots__ = (
        "_fin",
        "_isn",
        "_limit",
        "_next",
        "_origin",
        "_others_bytes",
        "_others_runs",
        "_position",
        "_settled",
        "_waiting",
        "_waiting_bytes",
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
        """The sequence number of the byte at `_position`. -1 while it is unknown."""
        self._origin = -1
        """The sequence number of the stream's byte 0."""
        self._position = 0
        self._settled = False
        self._limit = START_TURNS
        self._waiting: list[PayloadRun] = []
        self._waiting_bytes = 0
        self._others_runs = 0
        self._others_bytes = 0
        self.reordered_segments = 0
        self.repeated_segments = 0
        self.repeated_bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether captured bytes wait, because earlier ones are missing or the start is unknown."""
        return bool(self._waiting)

    def syn(self, sequence: int) -> bool:
        """Note a SYN with this sequence number. Return False if it begins another connection."""
        first = sequence + 1 & _MASK
        if self._isn >= 0 or self._settled:
            return sequence == self._isn or (self._isn < 0 and first == self._origin)
        if self._origin >= 0:
            position = distance(first, self._origin)
            if not self._waiting[0].start - WINDOW <= position <= self._waiting[0].start:
                return False
            self._position = position
        self._isn = sequence
        self._next = first
        self._settle(whole=True)
        self._drain()
        return True

    def push(  # once for every row: keywords would cost as much as the work itself
        self,
        sequence: int,
        payload: memoryview,
        missing: int,
        time: int,
        end_time: int,
        ack: int,
        packets: int,
    ) -> bool:
        """Add the next run. Return False if its sequence number is too far away for this connection."""
        if sequence == self._next and not self._waiting:
            size = len(payload)
            self._position += size + missing
            end = sequence + size & _MASK
            self._next = end + missing & _MASK
            if size:
                self.sink.data(payload, time, end_time, ack, end)
            if missing:
                self.sink.gap(missing, self._next, cut=True)
            return True
        return self._place(sequence, PayloadRun(0, payload, missing, time, end_time, ack, packets))

    def skip(self, size: int) -> None:
        """Move past the next bytes. They were captured in order, and no run waits."""
        self._advance(size)

    @property
    def next(self) -> int:
        """The sequence number of the next byte of the stream; -1 if unknown."""
        return self._next

    def fits(self, sequence: int) -> bool:
        """Return whether a segment without payload can belong to this connection."""
        reference = self._next if self._settled else self._origin
        return reference < 0 or -_FAR_BEHIND <= distance(sequence, reference) <= FAR_AHEAD

    def fin(self, sequence: int) -> None:
        """Note a FIN without payload. The stream ends at its sequence number."""
        self._fin = sequence

    def other_spoke(self, size: int, time: int, *, turned: bool) -> None:
        """Note a run of the other direction. `turned`: the run before it was of this direction."""
        self._others_runs += turned
        self._others_bytes += size
        while self._waiting and self._overdue(self._waiting[0], time):
            self._give_up_waiting()

    def finish(self) -> None:
        while self._waiting:
            self._give_up_waiting()
        if self._settled and self._fin >= 0:
            hole = distance(self._fin, self._next)
            if 0 < hole <= FAR_AHEAD:
                self._advance(hole)
                self.sink.gap(hole, self._next, cut=False)

    def _place(self, sequence: int, run: PayloadRun) -> bool:
        if self._origin < 0:
            self._origin = sequence
        reference = self._next if self._settled else self._origin
        away = distance(sequence, reference)
        if not -_FAR_BEHIND <= away <= FAR_AHEAD:
            return False
        run.start = self._position + away if self._settled else away
        if self._settled and run.start <= self._position:
            self._at_position(run)
        else:
            self._wait(run)
        return True

    def _at_position(self, run: PayloadRun) -> None:
        if self._waiting and run.end > self._position:
            self.reordered_segments += run.packets
        self._deliver(run)
        self._drain()

    def _wait(self, run: PayloadRun) -> None:
        waiting = self._waiting
        at = bisect_left(waiting, run.start, key=_start)
        if at < len(waiting) and waiting[at].start == run.start and waiting[at].end >= run.end:
            self.repeated_segments += run.packets
            self.repeated_bytes += len(run.payload)
            return
        if at < len(waiting):
            self.reordered_segments += run.packets
        run.turn, run.turn_bytes = self._others_runs, self._others_bytes
        waiting.insert(at, run)
        self._waiting_bytes += len(run.payload)
        while self._waiting_bytes > WINDOW or len(waiting) > _MAX_WAITING:
            self._give_up_waiting()

    def _overdue(self, run: PayloadRun, time: int) -> bool:
        turns = self._others_runs - run.turn
        return (turns >= self._limit and abs(time - run.time) > LATE) or (
            self._others_bytes - run.turn_bytes > WINDOW
        )

    def _give_up_waiting(self) -> None:
        first = self._waiting[0]
        if self._settled:
            hole = first.start - self._position
            self._advance(hole)
            self.sink.gap(hole, self._next, cut=False)
        else:
            self._position = first.start
            self._next = self._origin + first.start & _MASK
            self._settle(whole=False)
        self._drain()

    def _settle(self, *, whole: bool) -> None:
        self._settled = True
        self._limit = TURNS
        self._origin = self._next
        self.sink.begin(self._next, whole=whole)

    def _drain(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].start <= self._position:
            run = waiting.pop(0)
            self._waiting_bytes -= len(run.payload)
            self._deliver(run)

    def _deliver(self, run: PayloadRun) -> None:
        """Deliver the bytes of a run after the current position, at which or before which it begins."""
        known = self._position - run.start
        if run.start < run.end <= self._position:
            self.repeated_segments += run.packets
        payload = run.payload[known:] if known else run.payload
        self.repeated_bytes += min(known, len(run.payload))
        missing = max(min(run.missing, run.end - self._position), 0)
        self._advance(len(payload))
        if payload:
            self.sink.data(payload, run.time, run.end_time, run.ack, self._next)
        if missing:
            self._advance(missing)
            self.sink.gap(missing, self._next, cut=True)

    def _advance(self, size: int) -> None:
        self._position += size
        self._next = self._next + size & _MASK


def _start(run: PayloadRun) -> int:
    return run.start


def distance(sequence: int, reference: int) -> int:
    """Return how far a sequence number is after `reference`. Sequence numbers wrap around."""
    return (sequence - reference + _HALF & _MASK) - _HALF
