"""What a process knows of its brokers: which can't be reached, and which accept requests but do not respond.

Each problem is logged when it begins and when it ends, not once per client. `called` returns the name of a
broker for messages.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from proxy.addresses import LOOPED, Address
from proxy.logger import Logger
from proxy.telemetry.history import Note
from proxy.telemetry.totals import NodeId

NOT_ASKED: Final = "the bootstrap has not been asked yet"
UNTRIED_SECONDS: Final = 180.0
"""An unreachable broker is forgotten if nobody has tried to reach it for this long: it may no longer exist.
Clients that need a broker retry every few seconds. The alert for unreachable brokers waits longer."""
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
class _Debt:
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


class Reachability:
    """The brokers that this process can't reach, and the reasons. The latest attempt decides.

    `bootstrap` is empty in transparent mode.
    """

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        log: Logger,
        note: Note,
        called: Callable[[NodeId], str],
    ) -> None:
        self.bootstrap = bootstrap
        """The bootstrap addresses. The address that has responded last comes first."""
        self.answered = not bootstrap
        """Whether the bootstrap has answered the gateway's question for its brokers, if only by requiring
        authentication. True from the start in transparent mode."""
        self.failures = Counter[NodeId]()
        """Failed attempts to connect."""
        self.since: dict[NodeId, float] = {}
        """For unreachable brokers, the time in seconds of the first failed attempt since the last success."""
        self._attempts: dict[NodeId, tuple[float, str]] = {}
        """The time of the last attempt to connect in seconds, and why it failed ("" if it did not)."""
        self._log = log
        self._note = note
        self._called = called
        if bootstrap:
            self._failed(None, NOT_ASKED)

    def __repr__(self) -> str:
        return f"<Reachability answered={self.answered} {self.now()}>"

    def of(self, node_id: NodeId) -> str:
        """Return the reason why a broker can't be reached, or "" if it can be or no attempt is known."""
        return self._attempts.get(node_id, (0.0, ""))[1]

    def now(self) -> dict[NodeId, str]:
        """Return why each unreachable broker can't be reached. The bootstrap comes first."""
        ids = sorted(self._attempts, key=lambda node_id: (node_id is not None, node_id or 0))
        return {node_id: reason for node_id in ids if (reason := self.of(node_id))}

    def connected(self, node_id: NodeId, address: Address) -> None:
        """Note that an address has responded. If it is a bootstrap address, it is tried first from now on."""
        if node_id is None and self.bootstrap[0] != address:
            rest = tuple(other for other in self.bootstrap if other != address)
            self.bootstrap = (address, *rest)
        if node_id is None and not self.answered:
            return  # the gateway is not ready before the bootstrap has answered its question for the brokers
        if self.reached(node_id):
            self._log.info(
                "broker reachable again", broker=_name(node_id, self._called), address=str(address)
            )
            self._note("reachable again", f"{self._called(node_id)} is reachable again at {address}")

    def reached(self, node_id: NodeId) -> bool:
        """Note a successful attempt. Return True if the broker was unreachable before."""
        before = self.of(node_id)
        self._attempts[node_id] = (monotonic(), "")
        self.since.pop(node_id, None)
        return before != ""

    def unreachable(self, node_id: NodeId, reason: str) -> None:
        if node_id == LOOPED:
            return
        self.failures[node_id] += 1
        if not self._failed(node_id, reason):
            return
        if node_id is None:
            self._log.warning("bootstrap unreachable, trying again", reason=reason)
            self._note("unreachable", f"the bootstrap is unreachable: {reason}", warning=True)
        else:
            self._log.warning(
                "broker unreachable, connections of its clients are closed",
                broker=_name(node_id, self._called),
                reason=reason,
            )
            self._note("unreachable", f"{self._called(node_id)} is unreachable: {reason}", warning=True)

    def _failed(self, node_id: NodeId, reason: str) -> bool:
        # Whether the broker was reachable, or the reason has changed.
        before, now = self.of(node_id), monotonic()
        self._attempts[node_id] = (now, reason)
        self.since.setdefault(node_id, now)
        return before != reason

    def forget(self, now: float) -> None:
        """Forget unreachable brokers to which nobody has tried to connect for a while.

        The bootstrap is never forgotten, because the gateway itself always tries to reach it again.
        """
        before = now - UNTRIED_SECONDS
        for node_id, (at, reason) in list(self._attempts.items()):
            if reason and at < before and node_id is not None:
                del self._attempts[node_id], self.since[node_id]
                self._log.info(
                    "unreachable broker forgotten, no client tries to reach it",
                    broker=_name(node_id, self._called),
                )

    def bootstrap_responded(self, address: Address) -> bool:
        """Note that a bootstrap address has answered the question for its brokers.

        Return whether this is the first time.
        """
        first, self.answered = not self.answered, True
        if first:
            self.reached(None)
        self.connected(None, address)
        return first


class HungBrokers:
    """The brokers that accept requests but do not respond. Such a broker may keep its connections open.

    A client may give up before `HUNG_SECONDS` and send its request again, many times. So a response counts as
    late until the broker sends bytes, even if no client waits for it any more.
    """

    def __init__(self, log: Logger, note: Note, called: Callable[[NodeId], str]) -> None:
        self._debts: dict[NodeId, _Debt] = {}
        self._log = log
        self._note = note
        self._called = called
        self._told: dict[NodeId, float] = {}
        """The start of the silence in seconds, for each broker whose silence has been logged."""

    def __repr__(self) -> str:
        return f"<HungBrokers {self._debts}>"

    def look(self, found: Mapping[NodeId, Owed], now: float) -> None:
        """Note the outstanding requests of all brokers. A broker that is not in `found` has none."""
        for node_id in {*self._debts, *found}:
            debt = self._debts.setdefault(node_id, _Debt(asked_at=now))
            owed = found.get(node_id, Owed())
            owed.responded_at = max(owed.responded_at, debt.owed.responded_at)
            debt.owed = owed
            debt.settle()
            if owed.outstanding:
                debt.asked_at = now
        before, self._told = self._told, self.hung(now)
        for node_id, since in self._told.items():
            if node_id not in before:
                self._hangs(node_id, now - since)
        for node_id, since in before.items():
            if node_id not in self._told:
                self._responds(node_id, now - since)

    def hung(self, now: float) -> dict[NodeId, float]:
        """Return the brokers that hang, and since when a response of each is late."""
        return {
            node_id: debt.since
            for node_id, debt in self._debts.items()
            if debt.since is not None and now - debt.since > HUNG_SECONDS
        }

    def outstanding(self, node_id: NodeId) -> int:
        return self._debts[node_id].owed.outstanding if node_id in self._debts else 0

    def _hangs(self, node_id: NodeId, seconds: float) -> None:
        outstanding = self.outstanding(node_id)
        self._log.warning(
            "broker does not respond, its clients wait",
            broker=_name(node_id, self._called),
            seconds=int(seconds),
            outstanding=outstanding,
        )
        text = f"{self._called(node_id)} has not responded for {int(seconds)} s"
        self._note("no response", f"{text} (outstanding requests: {outstanding})", warning=True)

    def _responds(self, node_id: NodeId, seconds: float) -> None:
        self._log.info(
            "broker responds again", broker=_name(node_id, self._called), after_seconds=int(seconds)
        )
        self._note("responds again", f"{self._called(node_id)} responds again, after {int(seconds)} s")

    def forget(self, now: float) -> None:
        """Forget brokers to which nobody has sent requests for a while."""
        before = now - UNTRIED_SECONDS
        for node_id in [node_id for node_id, debt in self._debts.items() if debt.asked_at < before]:
            del self._debts[node_id]
            if self._told.pop(node_id, None) is not None:
                name = _name(node_id, self._called)
                self._log.info("hung broker forgotten, no client asks it", broker=name)


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _name(node_id: NodeId, called: Callable[[NodeId], str]) -> int | str:
    """Return the name of a broker in log lines: its id, or its address in transparent mode."""
    if node_id is None:
        return "bootstrap"
    name = called(node_id)
    return node_id if name == f"broker {node_id}" else name
