"""Conditions for serving: the connection limit, file descriptors, and reachable brokers. Sans-IO.

Each class logs a condition once when it begins, not for each affected client.
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
"""The warning about --max-connections is repeated only after the number of connections fell below this
share of the limit ..."""
WARN_AGAIN_SECONDS: Final = 5.0
"""... and after this many seconds, because the number of clients may vary near the limit."""
CALM_SECONDS: Final = 60.0
"""How long the status reports that file descriptors ran out."""
NO_DESCRIPTOR: Final = "no file descriptor is left for more clients; raise the limit (ulimit -n)"
NOT_ASKED: Final = "the bootstrap has not been asked yet"
AGAIN_SECONDS: Final = 300.0
"""How long the same problem of a client is not logged again. A client may retry each second for days."""
MAX_CLIENTS: Final = 1000
"""How many problems of clients are remembered. The oldest is dropped first."""
MAX_WORDS: Final = 1000
"""How many characters of a client and of a reason are kept, because clients choose part of them."""
LINES: Final = BURST // 2
"""How many of these lines are written in `WINDOW` seconds. Any interval of this length has at most twice
as many, so `proxy.telemetry.logs.Throttle` drops none. Otherwise a dropped line would be remembered as
written."""
UNTRIED_SECONDS: Final = 180.0
"""An unreachable broker is forgotten after this time without an attempt, because it may not exist any
more. Clients that need it retry every few seconds. The alert waits longer than this."""


class ConnectionLimit:
    """Enforces ``--max-connections``. It logs once per episode.

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
        """Return whether one more client is accepted.

        Args:
            connected: the number of connected clients.
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
    """Remembers that the process ran out of file descriptors. It logs once per episode.

    Args:
        log: takes the warning.
        note: adds it to the recent events.
    """

    def __init__(self, log: Logger, note: Note) -> None:
        self.problem = ""
        """A text if descriptors ran out recently, otherwise ""."""
        self._log = log
        self._note = note
        self._none_at = 0.0

    def update(self, *, left: bool, now: float) -> None:
        """Record whether there are enough descriptors for one more client.

        Args:
            left: whether there are.
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
    """Logs each problem of a client at most once in `AGAIN_SECONDS`.

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
        """How many lines were written in this window, and how many were suppressed since the last line."""

    def happens(self, client: str, reason: str, now: float, *, shown: str = "") -> bool:
        """Record a problem. Return whether it was logged.

        Args:
            client: the key that identifies a client, for example its host.
            reason: the problem, in words.
            now: in seconds.
            shown: the client's name in the log, if `client` is not a name.
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
    """The brokers that one process can't reach, with the reasons. It logs only changes.

    Args:
        bootstrap: the bootstrap addresses. In transparent mode there are none.
        log: takes the changes.
        note: adds them to the recent events.
        called: returns a broker's name for people.
    """

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        log: Logger,
        note: Note,
        called: Callable[[NodeId], str],
    ) -> None:
        self.bootstrap = bootstrap
        """The bootstrap addresses. The one that responded last comes first."""
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
        """Record that an address responded. If it is a bootstrap address, it is tried first from now on."""
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
        """Forget the unreachable brokers that nobody tries to reach any more. `now` is in seconds."""
        for node_id in self.unreachable_brokers.forget(now - UNTRIED_SECONDS):
            self._log.info("unreachable broker forgotten, no client tries to reach it", broker=node_id)

    def bootstrap_responded(self, address: Address) -> bool:
        """Record that a bootstrap address has named its brokers. Return whether it is the first time."""
        first, self.answered = not self.answered, True
        if first:
            self.unreachable_brokers.reached(None, monotonic())
        self.connected(None, address)
        return first


class HungBrokers:
    """The brokers that do not respond. It logs the beginning and the end of each silence.

    Args:
        log: takes the changes.
        note: adds them to the recent events.
        called: returns a broker's name for people.
    """

    def __init__(self, log: Logger, note: Note, called: Callable[[NodeId], str]) -> None:
        self.unanswered = Unanswered()
        self._log = log
        self._note = note
        self._called = called
        self._told: dict[NodeId, float] = {}
        """The brokers whose silence was logged, each with the start of its silence."""

    def look(self, found: Mapping[NodeId, Owed], now: float) -> None:
        """Process the responses that brokers owe now. A broker that is not in `found` owes none."""
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
        """Forget the brokers to which nobody sends requests any more. `now` is in seconds."""
        self.unanswered.forget(now - UNTRIED_SECONDS)
        for node_id in self._told.keys() - self.unanswered.hung(now).keys():
            del self._told[node_id]
            self._log.info("hung broker forgotten, no client asks it", broker=_name(node_id))


def _name(node_id: NodeId) -> int | str:
    return "bootstrap" if node_id is None else node_id
