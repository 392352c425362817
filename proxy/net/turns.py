"""Shares the event loop among links: first by client host, then by connection.

In each turn, the event loop reads all sockets that have bytes. If 140 connections of one client are busy, a
turn takes as long as the work for all of them, and each other client waits so long. So if a turn has taken
`TURN_SECONDS`, links that have had `SHARE_SECONDS` are not read any more. They wait here, and go on in the
order of what they have used (start-time fair queueing). A link that uses little is always read.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import thread_time
from typing import Final, Generic, Protocol, TypeVar

TURN_SECONDS: Final = 0.001
"""The work in a turn of the event loop after which links have to wait."""
SHARE_SECONDS: Final = 0.00025
"""The work after which a link waits for its next turn while others wait, too."""
_Item = TypeVar("_Item")


class Flow(Protocol):
    """A link, as far as it shares the event loop."""

    client_host: str
    busy_period: int
    """The busy period of `spent` and `used`."""
    spent: float
    """The work for the link since its last turn, in seconds."""
    used: float
    """The work for the link in the busy period, in seconds. It counts as at most a turn less than that of
    others."""

    def wait(self) -> None:
        """Do not read the sockets until it is this link's turn: see `Turns.add`."""

    def take_turn(self) -> None:
        """Process some bytes that were received already, and read the sockets again."""


class _Order(Generic[_Item]):
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Item]] = []
        self._number = count()
        self.used = 0.0
        """The most that an item had used when it was taken. It must not go back when an item has used less,
        or all others would wait until that item has used as much."""
        self._turn, self._limit = 0, 0.0
        """What an item may have used at most to be taken in a turn."""

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, item: _Item, used: float) -> None:
        heappush(self._heap, (used, next(self._number), item))

    def take(self, turn: int) -> _Item | None:
        # An item that has used much more than the first of this turn waits: the first may be added again.
        if not self._heap:
            return None
        used = self._heap[0][0]
        if turn != self._turn:
            self._turn, self._limit = turn, used + SHARE_SECONDS
        if used > self._limit:
            return None
        self.used = max(self.used, used)
        return heappop(self._heap)[2]


class Turns:
    """The turns of one event loop.

    `call_soon` calls a function in the event loop's next turn. `clock` returns the CPU time of the thread in
    seconds: what other processes take is nobody's work.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = thread_time
    ) -> None:
        self._call_soon, self._clock = call_soon, clock
        self._work = 0.0
        """The work while the loop was not busy, since the last turn, in seconds."""
        self._is_busy = self._is_scheduled = False
        self._number = self._busy_period = 0
        self._hosts = _Order[str]()
        self._links: dict[str, _Order[Flow]] = {}
        """The links that wait, by host. All hosts of a busy period are kept."""

    def __repr__(self) -> str:
        return f"<Turns busy={self._is_busy} hosts={len(self._links)}>"

    def spend(self, flow: Flow, seconds: float) -> None:
        """Note work for a link. If the loop is busy and the link has used its share, let it wait.

        A busy period begins with a turn that takes too long. It ends with one in which nobody waits.
        """
        if not self._is_busy:
            self._work += seconds
            if self._work < TURN_SECONDS:
                return
            self._is_busy = True
            self._busy_period += 1
            self._schedule()
        links = self._joined(flow)
        flow.spent += seconds
        flow.used += seconds
        if flow.used >= links.used + SHARE_SECONDS:
            flow.wait()

    def add(self, flow: Flow) -> None:
        """Call `take_turn` of a link when it is its turn. Do not add it again before that."""
        links = self._joined(flow)
        if not links:
            self._hosts.add(flow.client_host, self._hosts.used + flow.spent)
        links.add(flow, flow.used)
        self._schedule()

    def _joined(self, flow: Flow) -> _Order[Flow]:
        # A link joins this busy period. What it has not used while it needed nothing is lost, except for a
        # turn.
        if flow.busy_period != self._busy_period:
            flow.busy_period, flow.spent, flow.used = self._busy_period, 0.0, 0.0
        links = self._links.get(flow.client_host)
        if links is None:
            links = self._links[flow.client_host] = _Order()
        flow.used = max(flow.used, links.used - TURN_SECONDS)
        return links

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._go_on)

    def _go_on(self) -> None:
        # Links go on until they have probably used a turn.
        self._is_scheduled = False
        self._number += 1
        left = TURN_SECONDS
        while left > 0 and (flow := self._next()) is not None:
            # It will read again about what it has read before.
            spent, flow.spent = flow.spent, 0.0
            began = self._clock()
            flow.take_turn()
            left -= max(self._clock() - began, spent)
        if self._hosts or left < TURN_SECONDS:  # a link that went on may have to wait again
            self._schedule()
        else:
            self._is_busy, self._work = False, 0.0
            self._links.clear()

    def _next(self) -> Flow | None:
        host = self._hosts.take(self._number)
        if host is None:
            return None
        links = self._links[host]
        flow = links.take(self._number)
        if links:
            self._hosts.add(host, self._hosts.used + (0.0 if flow is None else flow.spent))
        return flow
