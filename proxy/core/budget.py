"""Limits the buffered bytes of the process, and decides which brokers wait at the limit. Sans-IO.

An expanded response can't be streamed. Its length and its counts come first, and they depend on the entries
that the broker left out. So the response is buffered until it is complete. Bytes that a client does not read
are buffered too: in the process, and by the system for its two sockets. `Budget` limits all of these.
Requests have their own limit, see `RequestBudget`.

KIP-74 saves memory by requesting less from brokers (``max_bytes``). That would not help here: above the
limit, fetches do not use a session, and their responses are forwarded in pieces, whatever their size. So the
memory limit changes no client's ``max_bytes``.
"""

from math import inf
from typing import Final, Protocol

STALL_SECONDS: Final = 30.0
"""The time without progress, in seconds, after which a connection is closed if other connections wait because
of it, or if memory is short."""
SILENT_SECONDS: Final = 4.0
"""The time without progress after which a client counts as not reading, in seconds."""
REQUESTS_PART: Final = 4
"""The limit for requests (`RequestBudget`) is the limit for responses divided by this number."""


class Holder(Protocol):
    """A connection that holds buffered bytes: the attributes and methods that the budget uses."""

    buffered_changed_at: float
    """The time, in seconds, when the buffered response last grew or the client last read some bytes."""

    @property
    def can_go_on(self) -> bool:
        """Whether more bytes of the buffered response would arrive if the gateway read from the broker."""

    def wait_for_budget(self, waits: bool, /) -> None:
        """Stop reading from the broker if `waits` is true, otherwise read again."""

    def report_buffered(self) -> None:
        """Report the number of buffered bytes to the budget now."""


class Budget:
    """The buffered bytes of all connections, with one limit.

    Above the limit, the gateway stops reading from brokers whose connections have a large incomplete
    response. Only the connection that has buffered longest continues, if its client reads its responses. So
    the connections complete their responses one after another. Bytes that clients do not read may fill the
    whole limit. Then all connections wait until these clients read or are closed. If these clients read
    slowly, one connection still continues.

    A connection without progress for `STALL_SECONDS` is closed if other connections wait because of it, or if
    memory is short. The connection with the most buffered bytes is closed first. When a connection stops
    waiting, its `STALL_SECONDS` start again.
    """

    __slots__ = ("_holders", "_reads_on", "_released", "_waiting", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[Holder, tuple[int, bool]] = {}  # in the order in which they began to buffer
        """For each connection: the number of its buffered bytes, and whether the budget may let it wait."""
        self._waiting: set[Holder] = set()
        self._released: set[Holder] = set()
        """The connections that have stopped waiting since the last call of `stalled`."""
        self._reads_on = False
        """Whether clients that read nothing (for `SILENT_SECONDS`) hold fewer bytes than the limit, at the
        last call of `stalled`. If so, one connection continues even if the bytes that clients have not read
        reach the limit."""

    def __repr__(self) -> str:
        return f"<Budget {self.total} of {self.limit}, {len(self._holders)} hold, {len(self._waiting)} wait>"

    @property
    def over(self) -> bool:
        """Whether the number of buffered bytes is above the limit."""
        return self.total > self.limit

    @property
    def waiting(self) -> int:
        """The number of connections whose brokers the gateway does not read at present."""
        return len(self._waiting)

    def update(self, holder: Holder, buffered: int, *, may_wait: bool = True) -> None:
        """Set the number of bytes that a connection buffers, then call `settle`.

        Args:
            holder: the connection.
            buffered: the number of all buffered bytes of the connection.
            may_wait: whether the response is incomplete and large. Small responses do not wait, because
                buffering them costs less than the delay.
        """
        self.total += buffered - self._holders.get(holder, (0, False))[0]
        if buffered:
            self._holders[holder] = buffered, may_wait
        else:
            self._holders.pop(holder, None)
            self._released.discard(holder)
        self.settle()

    def stalled(self, now: float) -> Holder | None:
        """Return a connection to close, because it made no progress for `STALL_SECONDS`.

        Return None if there is no such connection, or if no connection waits and memory is not short. The
        broker of the returned connection has stopped in the middle of a response, or the client does not
        read. Call this method every few seconds.
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
        """Decide which connections must wait because of the memory limit.

        Also call this method when a connection's `can_go_on` changes.
        """
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
    """The bytes that all connections have reserved for requests.

    The memory is used for incomplete requests, for the partitions that fetches list, and for produce requests
    that may be retried. Responses have a separate limit, because clients that stop in the middle of a request
    must not make brokers wait. If there is no room, a fetch is forwarded as it arrives, without a session.
    """

    __slots__ = ("limit", "total")

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self.total = 0

    def __repr__(self) -> str:
        return f"<RequestBudget {self.total} of {self.limit}>"

    def reserve(self, size: int) -> bool:
        """Reserve memory for the bytes of a request. Return False if the limit leaves no room for them."""
        if self.total + size > self.limit:
            return False
        self.total += size
        return True

    def release(self, size: int) -> None:
        """Release reserved memory, in bytes."""
        self.total -= size
