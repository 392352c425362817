"""Puts the two directions of a connection into one order: the order in which client and broker acted.

An ACK number shows which bytes its sender had received (RFC 9293, 3.4). So a piece of one direction comes
after all bytes of the other direction that it acknowledges, even if these were captured later, by another
tap, or with another clock. If neither of two pieces acknowledges the other, they keep their captured order.
Times follow this order, too. See `Clocks`.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from replay.capture.files.window import Column
from replay.capture.kafka.reassembly import FAR_AHEAD, distance

MOST_BYTES: Final = 8 << 20
"""The maximum of bytes that wait because they acknowledge bytes of the other direction that have not come
yet. Above this, the acknowledged bytes count as not captured."""
_MOST_PIECES: Final = 1 << 16
_STEP: Final = 1_000_000_000
"""A clock was set back if a time is this many ns or more before the previous one. Such a time is not raised
to the previous one."""
_LOOSER: Final = 10_000
"""Clocks may drift apart by one ns in this many ns (100 ppm). So a difference measured earlier becomes less
exact with time."""
_UNKNOWN: Final = 1 << 62
_NONE: Final = np.iinfo(np.int64)


class OrderedReceiver(Protocol):
    """Receives one direction in pieces, in order with the pieces of the other direction."""

    def begin(self) -> None:
        """Record that the stream was captured from its first byte on (its SYN was captured)."""

    def data(self, view: memoryview, time: int, end_time: int) -> None:
        """Read the next bytes, with the times of the run's first and last packet (see `Clocks`)."""

    def gap(self, size: int, *, cut: bool) -> None:
        """Record that the next `size` bytes are missing. `cut` means that the snap length cut them."""


@dataclass(slots=True)
class _WaitingRun:
    """A run that waits for bytes which it acknowledges, or a gap (without a payload) after such a run."""

    payload: memoryview | None
    size: int
    """The size of a gap."""
    cut: bool
    time: int
    end_time: int
    ack: int
    end: int


class Clocks:
    """Estimates how far apart the clocks are with which the two directions were captured.

    A response can't come before its request. The next request can't come before the response that it
    acknowledges. So each change of direction gives a limit for the difference of the clocks. The smallest
    difference within all limits is used. If both directions were captured with one clock, the smallest
    difference is 0, and nothing is corrected. The difference used may be too small, by at most the shortest
    round trip.
    """

    __slots__ = ("_at", "_least", "_most", "ahead", "last", "speaker")

    def __init__(self) -> None:
        self.ahead = 0
        """How far the clock of the second direction is ahead of the clock of the first one, in ns."""
        self.last = 0
        """Time of the last packet so far, in ns since 1970."""
        self.speaker: OrderedDirection | None = None
        self._least = -_UNKNOWN
        self._most = _UNKNOWN
        self._at = 0
        """The time of the last change of direction, by the clock of the first direction."""

    def turn(self, before: int, time: int, *, second: bool) -> None:
        """Compare a packet's captured time with `before`, that of the last packet which it acknowledges."""
        first = before if second else time
        looser = abs(first - self._at) // _LOOSER
        self._at = first
        if second:
            self._least, self._most = self._least - looser, min(self._most + looser, time - before)
        else:
            self._least, self._most = max(self._least - looser, before - time), self._most + looser
        self.ahead = sorted((self._least, 0, self._most))[1]

    def tell(self, stream: "OrderedDirection", time: int, end_time: int) -> tuple[int, int]:
        """Return times by the first direction's clock. They go back only if it was set back (`_STEP`)."""
        if stream.second:
            time, end_time = time - self.ahead, end_time - self.ahead
        earliest = self.last + (self.speaker is not stream)
        if time < earliest < time + _STEP:
            time = earliest
        self.last = end_time = max(time, end_time)
        self.speaker = stream
        return time, end_time

    def tell_turns(self, stream: "OrderedDirection", begin: Column, end: Column) -> tuple[Column, Column]:
        """Do what `turn` and `tell` do, for turns of the two directions, as columns.

        The columns have the captured times of the first and the last packet of each turn, in ns since 1970.
        The first turn is of `stream`. The other direction was the last to send.

        Return the times up to the first turn whose times have to be corrected, or one turn less, so that the
        number of turns is even.
        """
        second = (np.arange(len(begin)) % 2 == 0) == stream.second
        before = np.append(stream.other.last_time, end[:-1])
        first = np.where(second, before, begin)
        looser = np.cumsum(np.abs(np.diff(first, prepend=self._at)) // _LOOSER)
        # Each turn makes all earlier limits looser. So limits are compared as they were without that.
        lower = np.where(second, _NONE.min, before - begin + looser)
        upper = np.where(second, begin - before - looser, _NONE.max)
        least = np.maximum(np.maximum.accumulate(lower), self._least) - looser
        most = np.minimum(np.minimum.accumulate(upper), self._most) + looser
        ahead = np.sort([least, np.zeros_like(least), most], axis=0)[1]
        begin, end = begin - np.where(second, ahead, 0), end - np.where(second, ahead, 0)
        late = begin <= np.append(self.last, end[:-1])
        count = (int(late.argmax()) if late.any() else len(late)) // 2 * 2
        if count:
            self._at, self._least, self._most, self.ahead, self.last = (
                int(column[count - 1]) for column in (first, least, most, ahead, end)
            )
            self.speaker = stream.other
        return begin[:count], end[:count]


class OrderedDirection:
    """One direction: releases the pieces of `reassembly.Reassembly` when it is their turn."""

    __slots__ = (
        "_clocks",
        "closed_time",
        "closing",
        "fin_at",
        "first_time",
        "last_time",
        "other",
        "position",
        "queue",
        "queued_bytes",
        "receiver",
        "second",
    )

    other: "OrderedDirection"

    def __init__(self, receiver: OrderedReceiver, clocks: Clocks, *, second: bool) -> None:
        self.receiver = receiver
        self.second = second
        self.closed_time = 0
        """The time of this direction's FIN or RST. 0 if there was none."""
        self._clocks = clocks
        self.closing = -1
        """The ACK number of this direction's FIN or RST. -1 if there was none."""
        self.fin_at = -1
        self.position = -1
        """Sequence number after the last released byte; -1 if unknown."""
        self.last_time = 0
        """Captured time of the last released byte, or of the SYN."""
        self.first_time = 0
        """The captured time of the first piece that has an ACK number."""
        self.queue: deque[_WaitingRun] = deque()
        self.queued_bytes = 0

    @property
    def waiting(self) -> bool:
        return bool(self.queue)

    @property
    def idle(self) -> bool:
        """Whether a piece with an ACK number has come, no piece waits, and there was no FIN or RST."""
        return not (self.queue or self.closed_time) and self.closing < 0 and self.first_time > 0

    def skip(self, end: int, end_time: int) -> None:
        """Pass over released bytes up to the sequence number `end`. `end_time` is their captured time."""
        self.position, self.last_time = end, end_time

    def begin(self, sequence: int, *, whole: bool) -> None:
        self.position = sequence
        if whole:
            self.receiver.begin()

    def open(self, time: int, ack: int) -> None:
        """Note a SYN. If it acknowledges a SYN of the other direction, the other stream begins there."""
        if self.last_time:
            return
        if ack >= 0 and self.other.position < 0:
            self.other.position = ack
        self.last_time = time
        if answered := self.other.first_time:
            self._clocks.turn(time, answered, second=self.other.second)

    def data(  # once for every row: keywords would cost as much as the work itself
        self, view: memoryview, time: int, end_time: int, ack: int, end: int
    ) -> None:
        if self.queue or self._is_early(ack):
            # Copied, for a view keeps the memory of all that was read with it.
            self.queue.append(_WaitingRun(memoryview(bytes(view)), 0, False, time, end_time, ack, end))
            self.queued_bytes += len(view)
        else:
            self._out(view, time, end_time, ack, end)

    def gap(self, size: int, end: int, *, cut: bool) -> None:
        if self.queue:
            self.queue.append(_WaitingRun(None, size, cut, 0, 0, -1, end))
        else:
            self.position = end
            self.receiver.gap(size, cut=cut)

    def fin(self, sequence: int) -> None:
        """Note the end of the stream. Its FIN is acknowledged like a byte (RFC 9293, 3.4)."""
        self.fin_at = sequence

    def close(self, time: int, ack: int) -> None:
        """Note a FIN or RST. It comes after the bytes that it acknowledges, as a piece of payload does."""
        if not self.closed_time:
            self.closed_time = time - self._clocks.ahead if self.second else time
            self.closing = ack
            if ack >= 0 and not self._is_early(ack):
                self.close_after_last()

    def _is_early(self, ack: int) -> bool:
        """Return whether `ack` acknowledges bytes of the other direction that were not released yet."""
        other = self.other
        if ack < 0 or ack == other.position:
            return False
        if other.position < 0:
            return True  # its first packet tells whether the capture has what was acknowledged
        ahead = distance(ack, other.position)
        return 0 < ahead <= FAR_AHEAD and not (ahead == 1 and other.position == other.fin_at)

    def _out(self, view: memoryview, time: int, end_time: int, ack: int, end: int) -> None:
        clocks, other = self._clocks, self.other
        if clocks.speaker is not self and ack == other.position and other.last_time:
            clocks.turn(other.last_time, time, second=self.second)
        if not self.first_time and ack >= 0:
            self.first_time = time
        if other.position < 0:
            other.position = ack  # it sent nothing for long: what was acknowledged before is not captured
        self.position = end
        self.last_time = end_time
        self.receiver.data(view, *clocks.tell(self, time, end_time))
        if self.closed_time:
            self.close_after_last()
        if other.closing >= 0 and distance(other.closing, end) >= 0:
            other.close_after_last()

    def close_after_last(self) -> None:
        """Set the time of the FIN or RST to that of the last piece, if that is later."""
        if self._clocks.last - self.closed_time < _STEP:
            self.closed_time = max(self.closed_time, self._clocks.last)

    def is_next(self) -> bool:
        return bool(self.queue) and not self._is_early(self.queue[0].ack)

    def next_time(self) -> int:
        return self.queue[0].time - (self._clocks.ahead if self.second else 0)

    def release_first(self) -> None:
        piece = self.queue.popleft()
        if piece.payload is None:
            self.position = piece.end
            self.receiver.gap(piece.size, cut=piece.cut)
        else:
            self.queued_bytes -= len(piece.payload)
            self._out(piece.payload, piece.time, piece.end_time, piece.ack, piece.end)


def release(one: OrderedDirection, another: OrderedDirection, *, everything: bool = False) -> None:
    """Release all pieces whose turn has come.

    With `everything`, all are released. Bytes that they waited for count as not captured.
    """
    pair = one, another
    while waiting := [stream for stream in pair if stream.queue]:
        ready = [stream for stream in waiting if stream.is_next()]
        # Two directions that wait for each other: ACK numbers that can't be. Times decide.
        if not ready and not everything and len(waiting) < len(pair) and not _too_much(waiting[0]):
            return
        min(ready or waiting, key=OrderedDirection.next_time).release_first()


def _too_much(stream: OrderedDirection) -> bool:
    return stream.queued_bytes > MOST_BYTES or len(stream.queue) > _MOST_PIECES
