"""How many bytes of responses the process may hold, and which brokers wait when it is too many. Sans-IO.

Requests that are kept until they are whole have as much for themselves: see `RequestBudget`.

An expanded response can't be streamed: its length and counts stand first and depend on which entries the
broker left out. It is held until it is complete.

KIP-74's remedy for short memory, to ask brokers for less (``max_bytes``), is not used: over the limit fetches
go without a session, and their responses pass in pieces, however large they are, so that less of them would
not free a byte. A client's ``max_bytes`` stays what it asked for.
"""

from typing import Final, Protocol

STALL_SECONDS: Final = 30.0
"""How long bytes may lie still while others wait for them."""


class Holder(Protocol):
    """A connection as the budget sees it."""

    buffered_changed_at: float
    """When the number of its held bytes last changed."""

    @property
    def can_go_on(self) -> bool:
        """Tell whether reading its broker would bring the held response further."""

    def wait_for_budget(self, waits: bool, /) -> None:
        """Stop reading the broker, or read it again."""

    def report_buffered(self) -> None:
        """Tell the budget what is held now."""


class Budget:
    """Bytes held over all connections, against one limit.

    Over the limit, brokers whose responses are held are not read, except that of the connection which has
    held longest and whose client takes its responses: one always goes on, so that all do, one after the
    other. An response that is complete but lies in the write buffer of a client that does not read counts as
    well; when such responses alone reach the limit all wait, until the clients read or are given up.
    """

    __slots__ = ("_holders", "_waiting", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: dict[Holder, int] = {}  # in the order in which they began to hold
        self._waiting: set[Holder] = set()

    def __repr__(self) -> str:
        return f"<Budget {self.total} of {self.limit}, {len(self._holders)} hold, {len(self._waiting)} wait>"

    @property
    def over(self) -> bool:
        """Tell whether more is held than may be."""
        return self.total > self.limit

    @property
    def waiting(self) -> int:
        """Give the number of connections whose brokers are not read."""
        return len(self._waiting)

    def update(self, holder: Holder, held: int) -> None:
        """Take note of what a connection holds now, and say who waits."""
        self.total += held - self._holders.get(holder, 0)
        if held:
            self._holders[holder] = held
        else:
            self._holders.pop(holder, None)
        self.settle()

    def stalled(self, now: float) -> Holder | None:
        """Name the connection to give up: others wait, it does not, and it lay still for `STALL_SECONDS`.

        Its broker stopped in mid-response, or its client does not read.
        """
        if not self._waiting:
            return None
        for holder in list(self._holders):
            holder.report_buffered()
        free = (holder for holder in self._holders if holder not in self._waiting)
        return next((holder for holder in free if now - holder.buffered_changed_at >= STALL_SECONDS), None)

    def settle(self) -> None:
        """Say who waits; to be called as well when a connection can go on again, or no more."""
        if not self.over and not self._waiting:
            return
        able = [holder for holder in self._holders if holder.can_go_on] if self.over else []
        # Responses that are complete but not taken must leave room, or each that goes on adds one more to
        # them.
        lying = self.total - sum(self._holders[holder] for holder in able)
        waiting = set(able[1:] if lying < self.limit else able)
        for holder in self._waiting - waiting:
            holder.wait_for_budget(False)
        for holder in waiting - self._waiting:
            holder.wait_for_budget(True)
        self._waiting = waiting


class RequestBudget:
    """Bytes that fetches may take which are kept until they are whole, over all connections.

    They are apart from those of responses: clients that stop in the middle of a request must hold up no
    broker. Whose fetch finds no room loses nothing but its saving: it passes as it comes.
    """

    __slots__ = ("limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0

    def __repr__(self) -> str:
        return f"<Collecting {self.total} of {self.limit}>"

    def reserve(self, size: int) -> bool:
        """Take room for so many bytes if there is as much."""
        if self.total + size > self.limit:
            return False
        self.total += size
        return True

    def release(self, size: int) -> None:
        """Give room back."""
        self.total -= size
