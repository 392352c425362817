"""Limits the bytes that the process buffers, and decides which brokers wait at the limit. Sans-IO.

An expanded response can't be streamed: its length and its counts stand first, and they depend on the entries
that the broker left out. So it is buffered until it is whole. What a client does not read is buffered too: in
the process, and by the system for its two sockets. `Budget` is for all of these. Requests that are buffered
until they are whole have a limit of their own: see `RequestBudget`.

KIP-74 saves memory by requesting less from brokers (``max_bytes``). That would not help here: over the limit,
fetches go without a session, and their responses are forwarded in pieces, whatever their size. A client's
``max_bytes`` never changes.
"""

from typing import Final, Protocol

STALL_SECONDS: Final = 30.0
"""The longest time without progress of a connection for which others wait, or while memory is short."""
SILENT_SECONDS: Final = 4.0
"""After so long without progress a client is taken for one that does not read."""
REQUESTS_PART: Final = 4
"""Incomplete requests may take this part of what responses may: a quarter."""


class Holder(Protocol):
    """A connection, for the budget."""

    buffered_changed_at: float
    """When it last made progress: its response grew, or its client read something."""

    @property
    def can_go_on(self) -> bool:
        """Whether reading its broker would complete the buffered response."""

    def wait_for_budget(self, waits: bool, /) -> None:
        """Stop reading the broker, or resume."""

    def report_buffered(self) -> None:
        """Report to the budget how many bytes are buffered now."""


class Budget:
    """The buffered bytes of all connections, with one limit.

    Over the limit, brokers of connections with a large incomplete response are not read. The exception is the
    connection that has buffered longest and whose client reads its responses. So one always goes on, and all
    do in turn. If what clients do not read reaches the limit alone, all wait until those clients read or are
    closed. Slow clients that do read let one go on all the same.

    A connection that makes no progress for `STALL_SECONDS` is closed, if it is the reason that others wait or
    that memory is short; the one that holds most goes first. The time of one that has waited starts again.
    """

    __slots__ = ("_holders", "_reads_on", "_released", "_waiting", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[Holder, tuple[int, bool]] = {}  # in the order in which they began to buffer
        """Bytes, and whether it may be made to wait."""
        self._waiting: set[Holder] = set()
        self._released: set[Holder] = set()
        """Those that waited and go on since `stalled` was last called."""
        self._reads_on = False
        """What lies at the limit is read by its clients, if slowly."""

    def __repr__(self) -> str:
        return f"<Budget {self.total} of {self.limit}, {len(self._holders)} hold, {len(self._waiting)} wait>"

    @property
    def over(self) -> bool:
        """Whether more is buffered than the limit."""
        return self.total > self.limit

    @property
    def waiting(self) -> int:
        """The number of connections whose brokers are not read."""
        return len(self._waiting)

    def update(self, holder: Holder, buffered: int, *, may_wait: bool = True) -> None:
        """Set the number of bytes that a connection buffers, then `settle`.

        Args:
            holder: the connection.
            buffered: all its bytes.
            may_wait: a response is incomplete and large. A small one costs less than it delays.
        """
        self.total += buffered - self._holders.get(holder, (0, False))[0]
        if buffered:
            self._holders[holder] = buffered, may_wait
        else:
            self._holders.pop(holder, None)
            self._released.discard(holder)
        self.settle()

    def stalled(self, now: float) -> Holder | None:
        """Return the connection to close: it made no progress for `STALL_SECONDS` at the cost of others.

        Its broker stopped in the middle of a response, or its client does not read. Call this every few
        seconds.
        """
        for holder in list(self._holders):
            holder.report_buffered()
        lies = sum(
            size
            for holder, (size, _) in self._holders.items()
            if not holder.can_go_on and now - holder.buffered_changed_at >= SILENT_SECONDS
        )
        self._reads_on = lies < self.limit
        self.settle()
        for holder in self._released:
            holder.buffered_changed_at = now
        self._released.clear()
        if not (self._waiting or self.over):
            return None
        silent = (
            holder
            for holder in self._holders
            if holder not in self._waiting and now - holder.buffered_changed_at >= STALL_SECONDS
        )
        return max(silent, key=lambda holder: self._holders[holder][0], default=None)

    def settle(self) -> None:
        """Decide which connections wait. Call it too when a connection's `can_go_on` changes."""
        if not self.over and not self._waiting:
            return
        able: list[Holder] = []
        unread = self.total
        if self.over:
            for holder, (size, may_wait) in self._holders.items():
                if may_wait and holder.can_go_on:
                    able.append(holder)
                    unread -= size
        # Whole responses that no client reads must leave room. Else each connection that goes on adds one.
        waiting = set(able[1:] if unread < self.limit or self._reads_on else able)
        released = self._waiting - waiting
        self._released |= released & self._holders.keys()
        self._released -= waiting
        for holder in released:
            holder.wait_for_budget(False)
        for holder in waiting - self._waiting:
            holder.wait_for_budget(True)
        self._waiting = waiting


class RequestBudget:
    """The bytes that all connections reserve for fetch requests.

    These are requests that are buffered until they are whole, and what is remembered of the partitions that
    fetches list. They are apart from responses: clients that stop in the middle of a request must not make
    brokers wait. A fetch that gets no room is forwarded as it comes, without a session.
    """

    __slots__ = ("limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0

    def __repr__(self) -> str:
        return f"<RequestBudget {self.total} of {self.limit}>"

    def reserve(self, size: int) -> bool:
        """Reserve bytes; return False if there is no room for them."""
        if self.total + size > self.limit:
            return False
        self.total += size
        return True

    def release(self, size: int) -> None:
        """Release bytes that were reserved."""
        self.total -= size
