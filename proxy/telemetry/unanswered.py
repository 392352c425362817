"""The brokers that owe responses, and since when. A broker that hangs closes no connection. Sans-IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.telemetry.totals import NodeId

HUNG_SECONDS: Final = 10.0
"""A broker is in trouble if a response is later than this. Garbage collection, a disk or an election may
delay one by some seconds. Clients give up after 30 (request.timeout.ms), so the trouble is reported
earlier."""


@dataclass(slots=True, kw_only=True)
class Owed:
    """The unanswered requests of a broker, summed over all connections at one time."""

    outstanding: int = 0
    """The number of unanswered requests."""
    late_since: float | None = None
    """Since when the oldest of them has been late, in seconds. None if it is not late."""
    responded_at: float = 0.0
    """When the last bytes came from the broker, in seconds."""

    def add(self, other: "Owed") -> None:
        """Add the unanswered requests of other connections."""
        self.outstanding += other.outstanding
        self.late_since = _earlier(self.late_since, other.late_since)
        self.responded_at = max(self.responded_at, other.responded_at)


@dataclass(slots=True, kw_only=True)
class Debt:
    """The late responses of a broker over time."""

    owed: Owed = field(default_factory=Owed)
    since: float | None = None
    """Since when a response has been late, even if its client has given up. None if none is late."""
    asked_at: float = 0.0
    """When a request was last seen outstanding."""

    def settle(self) -> None:
        """Forget responses that were late before the broker last responded, unless still outstanding."""
        if self.since is not None and self.owed.responded_at > self.since:
            self.since = None
        self.since = _earlier(self.since, self.owed.late_since)


class Unanswered:
    """The brokers that owe responses.

    A client may give up before `HUNG_SECONDS`, retry, and so on. So a response stays late until bytes come
    from the broker, even if no client waits for it any more.
    """

    __slots__ = ("debts",)

    def __init__(self) -> None:
        self.debts: dict[NodeId, Debt] = {}
        """By broker."""

    def __repr__(self) -> str:
        return f"<Unanswered {self.debts}>"

    def look(self, found: Mapping[NodeId, Owed], now: float) -> None:
        """Update with the unanswered requests of all brokers at a time in seconds.

        Brokers not in `found` have none.
        """
        for node_id in {*self.debts, *found}:
            debt = self.debts.setdefault(node_id, Debt(asked_at=now))
            owed = found.get(node_id, Owed())
            owed.responded_at = max(owed.responded_at, debt.owed.responded_at)
            debt.owed = owed
            debt.settle()
            if owed.outstanding:
                debt.asked_at = now

    def forget(self, before: float) -> None:
        """Forget the brokers without a request since this time."""
        for node_id in [node_id for node_id, debt in self.debts.items() if debt.asked_at < before]:
            del self.debts[node_id]

    def hung(self, now: float) -> dict[NodeId, float]:
        """Return since when each broker in trouble has been late, as of `now`."""
        return {
            node_id: debt.since
            for node_id, debt in self.debts.items()
            if debt.since is not None and now - debt.since > HUNG_SECONDS
        }

    def outstanding(self, node_id: NodeId) -> int:
        """Return the number of unanswered requests of a broker."""
        return self.debts[node_id].owed.outstanding if node_id in self.debts else 0

    def add(self, other: "Unanswered") -> None:
        """Merge the findings of another process."""
        for node_id, theirs in other.debts.items():
            ours = self.debts.setdefault(node_id, Debt())
            ours.owed.add(theirs.owed)
            ours.since = _earlier(ours.since, theirs.since)
            ours.asked_at = max(ours.asked_at, theirs.asked_at)
            ours.settle()


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)
