"""Finds brokers that do not respond. Such a broker may keep its connections open. Sans-IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.telemetry.totals import NodeId

HUNG_SECONDS: Final = 10.0
"""How late a response must be for the broker to count as hung. Garbage collection, a disk or an election may
take some seconds. Clients give up after 30 seconds (request.timeout.ms): the problem is reported before."""


@dataclass(slots=True, kw_only=True)
class Owed:
    """The requests without a response at one broker, summed over all connections at one moment."""

    outstanding: int = 0
    late_since: float | None = None
    """Since when the oldest response is late, in seconds. None if it is not late."""
    responded_at: float = 0.0
    """When the last bytes came from the broker, in seconds."""


@dataclass(slots=True, kw_only=True)
class Debt:
    """How late a broker's responses are, over time."""

    owed: Owed = field(default_factory=Owed)
    since: float | None = None
    """Since when a response is late, even if its client has given up. None if no response is late."""
    asked_at: float = 0.0
    """When the broker last had a request without a response, in seconds."""

    def settle(self) -> None:
        """Set since when a response is late. A broker that has sent bytes after this time has responded."""
        if self.since is not None and self.owed.responded_at > self.since:
            self.since = None
        self.since = _earlier(self.since, self.owed.late_since)


class Unanswered:
    """Finds brokers that do not respond.

    A client may give up before `HUNG_SECONDS` and send its request again, many times. So a response counts as
    late until the broker sends bytes, even if no client waits for it any more.
    """

    __slots__ = ("debts",)

    def __init__(self) -> None:
        self.debts: dict[NodeId, Debt] = {}

    def __repr__(self) -> str:
        return f"<Unanswered {self.debts}>"

    def look(self, found: Mapping[NodeId, Owed], now: float) -> None:
        """Note the outstanding requests of all brokers. A broker that is not in `found` has none."""
        for node_id in {*self.debts, *found}:
            debt = self.debts.setdefault(node_id, Debt(asked_at=now))
            owed = found.get(node_id, Owed())
            owed.responded_at = max(owed.responded_at, debt.owed.responded_at)
            debt.owed = owed
            debt.settle()
            if owed.outstanding:
                debt.asked_at = now

    def forget(self, before: float) -> None:
        """Forget the brokers that have had no outstanding request since `before`."""
        for node_id in [node_id for node_id, debt in self.debts.items() if debt.asked_at < before]:
            del self.debts[node_id]

    def hung(self, now: float) -> dict[NodeId, float]:
        """Return the brokers that hang, and since when a response of each is late."""
        return {
            node_id: debt.since
            for node_id, debt in self.debts.items()
            if debt.since is not None and now - debt.since > HUNG_SECONDS
        }

    def outstanding(self, node_id: NodeId) -> int:
        return self.debts[node_id].owed.outstanding if node_id in self.debts else 0


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)
