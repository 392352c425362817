"""Limits the bytes that the process buffers, and decides which brokers wait at the limit. Sans-IO.

An expanded response can't be streamed: its length and its counts stand first, and they depend on the entries
that the broker left out. So it is buffered until it is whole. `Budget` is for these responses. Requests that
are buffered until they are whole have a limit of the same size: see `RequestBudget`.

KIP-74 saves memory by requesting less from brokers (``max_bytes``). That would not help here: over the limit,
fetches go without a session, and their responses are forwarded in pieces, whatever their size. A client's
``max_bytes`` never changes.
"""

from typing import Final, Protocol

STALL_SECONDS: Final = 30.0
"""The longest time without progress of a connection for which others wait."""


class Holder(Protocol):
    """A connection, for the budget."""

    buffered_changed_at: float
    """When its number of buffered bytes last changed."""

    @property
    def can_go_on(self) -> bool:
        """Whether reading its broker would complete the buffered response."""

    def wait_for_budget(self, waits: bool, /) -> None:
        """Stop reading the broker, or resume."""

    def report_buffered(self) -> None:
        """Report to the budget how many bytes are buffered now."""


class Budget:
    """The buffered bytes of all connections, with one limit.

    Over the limit, brokers of connections with buffered bytes are not read. The exception is the connection
    that has buffered longest and whose client reads its responses. So one always goes on, and all do in turn.
    A whole response in the write buffer of a client that does not read counts too. If such responses alone
    reach the limit, all connections wait until those clients read or are closed.
    """

    __slots__ = ("_holders", "_waiting", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[Holder, int] = {}  # in the order in which they began to buffer
        self._waiting: set[Holder] = set()

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

    def update(self, holder: Holder, buffered: int) -> None:
        """Set the number of bytes that a connection buffers, then `settle`."""
        self.total += buffered - self._holders.get(holder, 0)
        if buffered:
            self._holders[holder] = buffered
        else:
            self._holders.pop(holder, None)
        self.settle()

    def stalled(self, now: float) -> Holder | None:
        """Return the connection to close: it made no progress for `STALL_SECONDS` while others wait for it.

        Its broker stopped in the middle of a response, or its client does not read.
        """
        if not self._waiting:
            return None
        for holder in list(self._holders):
            holder.report_buffered()
        free = (holder for holder in self._holders if holder not in self._waiting)
        return next((holder for holder in free if now - holder.buffered_changed_at >= STALL_SECONDS), None)

    def settle(self) -> None:
        """Decide which connections wait. Call it too when a connection's `can_go_on` changes."""
        if not self.over and not self._waiting:
            return
        able = [holder for holder in self._holders if holder.can_go_on] if self.over else []
        # Whole responses that no client reads must leave room. Else each connection that goes on adds one.
        unread = self.total - sum(self._holders[holder] for holder in able)
        waiting = set(able[1:] if unread < self.limit else able)
        for holder in self._waiting - waiting:
            holder.wait_for_budget(False)
        for holder in waiting - self._waiting:
            holder.wait_for_budget(True)
        self._waiting = waiting


class RequestBudget:
    """The bytes that all connections reserve for fetch requests which are buffered until they are whole.

    They are apart from those of responses: clients that stop in the middle of a request must not make brokers
    wait. A fetch that gets no room is forwarded as it comes, without a session.
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
