"""Limits the buffered bytes of the process, and decides which brokers wait at the limit. Sans-IO.

An expanded response is buffered until it is complete, because its length and its counts come first. Bytes
that a client does not read are buffered too: in the process, and by the system for its two sockets. `Budget`
limits all of these, `RequestBudget` limits requests. Above the limit, fetches use no session, and their
responses are forwarded in pieces. So fetchgate need not reduce ``max_bytes``, as KIP-74 does to save memory.
"""

from math import inf
from typing import Final, Protocol

STALL_SECONDS: Final = 30.0
"""See `Budget.stalled`."""
SILENT_SECONDS: Final = 4.0
"""The time without progress, in seconds, after which a client counts as not reading."""
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
        """Whether clients that read nothing held less than the limit at the last call of `stalled`. If so,
        one connection always continues."""

    def __repr__(self) -> str:
        return f"<Budget {self.total} of {self.limit}, {len(self._holders)} hold, {len(self._waiting)} wait>"

    @property
    def over(self) -> bool:
        return self.total > self.limit

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def update(self, holder: Holder, buffered: int, *, may_wait: bool = True) -> None:
        """Set the number of bytes that a connection buffers, then call `settle`.

        `may_wait`: the response is incomplete and large. Small responses do not wait, because buffering them
        costs less than the delay.
        """
        self.total += buffered - self._holders.get(holder, (0, False))[0]
        if buffered:
            self._holders[holder] = buffered, may_wait
        else:
            self._holders.pop(holder, None)
            self._released.discard(holder)
        self.settle()

    def stalled(self, now: float) -> Holder | None:
        """Return a connection to close, because it made no progress for `STALL_SECONDS`, or None.

        Its broker has stopped in the middle of a response, or its client does not read. It is the one with
        the most buffered bytes. None is closed while no connection waits and memory is not short. Call this
        method every few seconds.
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
        # Connections that have stopped waiting begin anew.
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
        """Decide which connections must wait. Also call this when a connection's `can_go_on` changes."""
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

    The memory is used for incomplete requests, and for the partitions that fetches list. The server sets the
    limit: one of `REQUESTS_PART` parts of --max-inflight-bytes. Responses have a separate limit, because
    clients that stop in the middle of a request must not make brokers wait. If there is no room, a fetch is
    forwarded as it arrives, without a session.
    """

    __slots__ = ("limit", "total")

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self.total = 0

    def __repr__(self) -> str:
        return f"<RequestBudget {self.total} of {self.limit}>"

    def reserve(self, size: int) -> bool:
        if self.total + size > self.limit:
            return False
        self.total += size
        return True

    def release(self, size: int) -> None:
        self.total -= size
