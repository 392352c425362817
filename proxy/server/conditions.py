"""Conditions for serving: the connection limit, file descriptors, and which brokers are reachable. Sans-IO.

Each class logs a condition once when it begins, not again for each client that it concerns.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from proxy.addresses import LOOPED, Address
from proxy.logger import Logger
from proxy.telemetry.history import Note
from proxy.telemetry.logs import BURST, WINDOW
from proxy.telemetry.status import UnreachableBrokers, limit_reached
from proxy.telemetry.totals import NodeId
from proxy.telemetry.unanswered import Owed, Unanswered

BELOW_LIMIT: Final = 0.9
"""The warning about --max-connections is repeated only after their number fell below this share ..."""
WARN_AGAIN_SECONDS: Final = 5.0
"""... and after so many seconds: the number of clients may go up and down near the limit."""
CALM_SECONDS: Final = 60.0
"""How long the status reports that file descriptors ran out."""
NO_DESCRIPTOR: Final = "no file descriptor is left for more clients; raise the limit (ulimit -n)"
NOT_ASKED: Final = "the bootstrap has not been asked yet"
AGAIN_SECONDS: Final = 300.0
"""How long before the same problem of a client is logged again: it may try each second, for days."""
MAX_CLIENTS: Final = 1000
"""How many problems of clients are remembered; the oldest is dropped first."""
MAX_WORDS: Final = 1000
"""How many characters of a client and of a reason are kept: clients choose part of them."""
LINES: Final = BURST // 2
"""How many of these lines are written in `WINDOW` seconds. Any such time has at most twice as many, so
`proxy.telemetry.logs.Throttle` drops none: a dropped line would be remembered as written."""
UNTRIED_SECONDS: Final = 180.0
"""How long nobody tries to connect to an unreachable broker before it is forgotten: it may be removed, or
never have existed. Clients that want it try every few seconds; the alert on it waits longer than this."""


class ConnectionLimit:
    """Enforces ``--max-connections``; logs once per episode.

    Args:
        log: takes the warning.
        note: adds it to the recent events.
    """

    def __init__(self, log: Logger, note: Note) -> None:
        self._log = log
        self._note = note
        self._warned = False
        self._warned_at = 0.0

    def admits(self, connected: int, limit: int, now: float) -> bool:
        """Tell whether one more client is accepted.

        Args:
            connected: the number of clients that are connected.
            limit: ``--max-connections``.
            now: in seconds.
        """
        if connected < BELOW_LIMIT * limit and now - self._warned_at >= WARN_AGAIN_SECONDS:
            self._warned = False
        if connected < limit:
            return True
        if not self._warned:
            self._warned = True
            self._warned_at = now
            self._log.warning(
                "connection limit reached, further connections are closed", max_connections=limit
            )
            self._note("limit", f"connection limit reached: {limit_reached(limit)}", warning=True)
        return False


class Descriptors:
    """Remembers that the process ran out of file descriptors; logs once per episode.

    Args:
        log: takes the warning.
        note: adds it to the recent events.
    """

    def __init__(self, log: Logger, note: Note) -> None:
        self.problem = ""
        """Says that descriptors ran out recently; empty when there were enough."""
        self._log = log
        self._note = note
        self._none_at = 0.0

    def update(self, *, left: bool, now: float) -> None:
        """Record whether there are enough descriptors for one more client.

        Args:
            left: True if there are.
            now: in seconds.
        """
        if left:
            if now - self._none_at >= CALM_SECONDS:
                self.problem = ""
            return
        self._none_at = now
        if not self.problem:
            self.problem = NO_DESCRIPTOR
            self._log.warning(
                "no file descriptor is left for more clients", remedy="raise the limit (ulimit -n)"
            )
            self._note("descriptors", NO_DESCRIPTOR, warning=True)


class Repeated:
    """Logs problems of clients, each of them once in `AGAIN_SECONDS`.

    Args:
        log: takes the warnings.
        event: the words of each line.
    """

    def __init__(self, log: Logger, event: str) -> None:
        self._log = log
        self._event = event
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """By client and reason, oldest first: when it was logged, and how often it happened since then."""
        self._window = -WINDOW
        self._lines = self._suppressed = 0
        """How many lines were written in this window; how many were suppressed since the last one."""

    def happens(self, client: str, reason: str, now: float, *, shown: str = "") -> bool:
        """Record a problem; tell whether it was logged.

        Args:
            client: the key that identifies a client, for example its host.
            reason: the problem, in words.
            now: in seconds.
            shown: names the client in the log, if `client` does not.
        """
        key = client[:MAX_WORDS], reason[:MAX_WORDS]
        at, more = self._told.get(key, (-AGAIN_SECONDS, 0))
        if now - at < AGAIN_SECONDS:
            self._told[key] = at, more + 1
            return False
        if now - self._window >= WINDOW:
            self._window, self._lines = now, 0
        if self._lines >= LINES:
            self._suppressed += 1
            return False
        self._lines += 1
        self._told.pop(key, None)
        if len(self._told) >= MAX_CLIENTS:
            del self._told[next(iter(self._told))]
        self._told[key] = now, 0
        since = {"more_since_the_last_line": more, "suppressed": self._suppressed}
        self._suppressed = 0
        told = {name: number for name, number in since.items() if number}
        self._log.warning(self._event, client=shown or key[0], reason=key[1], **told)
        return True


class Reachability:
    """Knows which brokers one process can't reach, and why; logs only changes.

    Args:
        bootstrap: the bootstrap addresses; none in transparent mode.
        log: takes the changes.
        note: adds them to the recent events.
        called: names a broker as people read it.
    """

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        log: Logger,
        note: Note,
        called: Callable[[NodeId], str],
    ) -> None:
        self.bootstrap = bootstrap
        """The address that responded last comes first."""
        self.unreachable_brokers = UnreachableBrokers()
        self.answered = not bootstrap
        """The bootstrap has named its brokers, or there is no bootstrap."""
        self.failures = Counter[NodeId]()
        """Failed attempts to reach a broker."""
        if bootstrap:
            self.unreachable_brokers.failed(None, NOT_ASKED, monotonic())
        self._log = log
        self._note = note
        self._called = called

    def __repr__(self) -> str:
        return f"<Reachability answered={self.answered} {self.unreachable_brokers}>"

    def connected(self, node_id: NodeId, address: Address) -> None:
        """Record that an address responded; a bootstrap address that did is tried first from now on."""
        if node_id is None and self.bootstrap[0] != address:
            rest = tuple(other for other in self.bootstrap if other != address)
            self.bootstrap = (address, *rest)
        if node_id is None and not self.answered:
            return  # the gateway is not ready before the bootstrap has named its brokers
        if self.unreachable_brokers.reached(node_id, monotonic()):
            self._log.info("broker reachable again", broker=_name(node_id), address=str(address))
            self._note("reachable again", f"{self._called(node_id)} is reachable again at {address}")

    def unreachable(self, node_id: NodeId, reason: str) -> None:
        """Record that no address of a broker responded."""
        if node_id == LOOPED:
            return
        self.failures[node_id] += 1
        if not self.unreachable_brokers.failed(node_id, reason, monotonic()):
            return
        if node_id is None:
            self._log.warning("bootstrap unreachable, trying again", reason=reason)
            self._note("unreachable", f"the bootstrap is unreachable: {reason}", warning=True)
        else:
            self._log.warning(
                "broker unreachable, connections of its clients are closed", broker=node_id, reason=reason
            )
            self._note("unreachable", f"{self._called(node_id)} is unreachable: {reason}", warning=True)

    def forget(self, now: float) -> None:
        """Forget the unreachable brokers that nobody tries to reach any more; `now` in seconds."""
        for node_id in self.unreachable_brokers.forget(now - UNTRIED_SECONDS):
            self._log.info("unreachable broker forgotten, no client tries to reach it", broker=node_id)

    def bootstrap_responded(self, address: Address) -> bool:
        """Record that a bootstrap address has named its brokers; tell whether it is the first time."""
        first, self.answered = not self.answered, True
        if first:
            self.unreachable_brokers.reached(None, monotonic())
        self.connected(None, address)
        return first


class HungBrokers:
    """Knows which brokers do not respond; logs when that begins and ends.

    Args:
        log: takes the changes.
        note: adds them to the recent events.
        called: names a broker as people read it.
    """

    def __init__(self, log: Logger, note: Note, called: Callable[[NodeId], str]) -> None:
        self.unanswered = Unanswered()
        self._log = log
        self._note = note
        self._called = called
        self._told: dict[NodeId, float] = {}
        """The brokers whose silence has been logged, and since when they are silent."""

    def look(self, found: Mapping[NodeId, Owed], now: float) -> None:
        """Process the responses that brokers owe now; a broker that is not in `found` owes none."""
        self.unanswered.look(found, now)
        before, self._told = self._told, self.unanswered.hung(now)
        for node_id, since in self._told.items():
            if node_id not in before:
                self._hangs(node_id, now - since)
        for node_id, since in before.items():
            if node_id not in self._told:
                self._responds(node_id, now - since)

    def _hangs(self, node_id: NodeId, seconds: float) -> None:
        outstanding = self.unanswered.outstanding(node_id)
        self._log.warning(
            "broker does not respond, its clients wait",
            broker=_name(node_id),
            seconds=int(seconds),
            outstanding=outstanding,
        )
        text = f"{self._called(node_id)} has not responded for {int(seconds)} s"
        self._note("no response", f"{text} (outstanding requests: {outstanding})", warning=True)

    def _responds(self, node_id: NodeId, seconds: float) -> None:
        self._log.info("broker responds again", broker=_name(node_id), after_seconds=int(seconds))
        self._note("responds again", f"{self._called(node_id)} responds again, after {int(seconds)} s")

    def forget(self, now: float) -> None:
        """Forget the brokers to which nobody sends requests any more; `now` in seconds."""
        self.unanswered.forget(now - UNTRIED_SECONDS)
        for node_id in self._told.keys() - self.unanswered.hung(now).keys():
            del self._told[node_id]
            self._log.info("hung broker forgotten, no client asks it", broker=_name(node_id))


def _name(node_id: NodeId) -> int | str:
    return "bootstrap" if node_id is None else node_id
