"""What a process needs to serve clients: free connections, file descriptors, and reachable brokers. Sans-IO.

Each class here logs a problem once when it begins, not once per client, except `Repeated`: it logs problems
of single clients, and logs the same problem of a client again after some minutes.
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
"""The number of connections must fall below this share of the limit before the warning is repeated."""
WARN_AGAIN_SECONDS: Final = 5.0
"""The shortest time between two warnings about --max-connections. The number of clients may go up and down
near the limit."""
CALM_SECONDS: Final = 60.0
"""How long the status still shows a lack of file descriptors after it has ended."""
NO_DESCRIPTOR: Final = "no file descriptor is left for more clients; raise the limit (ulimit -n)"
NOT_ASKED: Final = "the bootstrap has not been asked yet"
AGAIN_SECONDS: Final = 300.0
"""How long the same problem of a client is not logged again. A client may retry each second for days."""
LOGIN_AGAIN_SECONDS: Final = 60.0
"""How long the same refused authentication of a client is not logged again."""
MAX_CLIENTS: Final = 1000
"""How many problems of clients are remembered. Above that, the oldest is forgotten."""
MAX_WORDS: Final = 1000
"""How many characters of a client's name and of a reason are kept. Clients choose parts of these texts."""
LINES: Final = BURST // 2
"""The most problems of clients that are logged in a window of `WINDOW` seconds. This is half of `BURST`,
because an interval of `proxy.telemetry.logs.Throttle` can overlap two of these windows. So the throttle drops
no line that is remembered here as logged, unless other code logs the same event."""
UNTRIED_SECONDS: Final = 180.0
"""An unreachable broker is forgotten if nobody has tried to reach it for this long: it may no longer exist.
Clients that need a broker retry every few seconds. The alert for unreachable brokers waits longer."""


class ConnectionLimit:
    """Enforces ``--max-connections``. It warns once each time the limit is reached, not for each client."""

    def __init__(self, log: Logger, note: Note) -> None:
        self._log = log
        self._note = note
        self._warned = False
        self._warned_at = 0.0

    def admits(self, connected: int, limit: int, now: float) -> bool:
        """Return whether one more client is accepted. `now` is in seconds."""
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
    """Remembers for a while that the process ran out of file descriptors. It warns once each time."""

    def __init__(self, log: Logger, note: Note) -> None:
        self.problem = ""
        """What to report if file descriptors ran out recently, otherwise ""."""
        self._log = log
        self._note = note
        self._none_at = 0.0

    def update(self, *, left: bool, now: float) -> None:
        """Note whether file descriptors are left for one more client. `now` is in seconds."""
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


class _FewLines:
    """Limits the lines in the log to `LINES` in a window of `WINDOW` seconds."""

    def __init__(self) -> None:
        self._window = -WINDOW
        self._lines = 0

    def allows(self, now: float) -> bool:
        if now - self._window >= WINDOW:
            self._window, self._lines = now, 0
        if self._lines >= LINES:
            return False
        self._lines += 1
        return True


class Repeated:
    """Logs the same problem of a client at most once in `again_seconds`. `event` is the message."""

    def __init__(self, log: Logger, event: str, again_seconds: float = AGAIN_SECONDS) -> None:
        self._log = log
        self._event = event
        self._again = again_seconds
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """When each problem was logged, and how often it has happened since. By client and reason, the oldest
        first."""
        self._few = _FewLines()
        self._suppressed = 0

    def happens(
        self,
        client: str,
        reason: str,
        now: float,
        *,
        shown: str = "",
        fields: Mapping[str, object] | None = None,
    ) -> bool:
        """Record a problem. Return whether it was logged.

        `client` is what identifies the client, for example its host; `shown` is its name in the log, if
        `client` is not a name. `now` is in seconds.
        """
        key = client[:MAX_WORDS], reason[:MAX_WORDS]
        at, more = self._told.get(key, (-self._again, 0))
        if now - at < self._again:
            self._told[key] = at, more + 1
            return False
        if not self._few.allows(now):
            self._suppressed += 1
            return False
        self._told.pop(key, None)
        if len(self._told) >= MAX_CLIENTS:
            del self._told[next(iter(self._told))]
        self._told[key] = now, 0
        since = {"more_since_the_last_line": more, "suppressed": self._suppressed}
        self._suppressed = 0
        told = {name: number for name, number in since.items() if number}
        who = {"client": shown or key[0], **(fields or {}), "reason": key[1]}
        self._log.warning(self._event, **who, **told)
        return True


class NewClients:
    """Logs each client once, with its first connection. It is new if its id, its software or its host is."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._known: set[tuple[str, str, str]] = set()
        self._few = _FewLines()

    def named(self, client_id: str, software: str, host: str, now: float) -> None:
        client = client_id, software, host
        if client in self._known or len(self._known) >= MAX_CLIENTS:
            return
        if not self._few.allows(now):
            return  # its next connection is logged
        self._known.add(client)
        self._log.info("new client", client_id=client_id, software=software, host=host)
        if len(self._known) == MAX_CLIENTS:
            self._log.info("further new clients are not logged", logged=MAX_CLIENTS)


class Reachability:
    """The brokers that this process can't reach, and the reasons. Only changes are logged.

    `bootstrap` is empty in transparent mode. `called` returns the name of a broker for messages.
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
        self.unreachable_brokers = UnreachableBrokers()
        self.answered = not bootstrap
        """Whether the bootstrap has answered the gateway's question for its brokers, if only by requiring
        authentication. True from the start in transparent mode."""
        self.failures = Counter[NodeId]()
        if bootstrap:
            self.unreachable_brokers.failed(None, NOT_ASKED, monotonic())
        self._log = log
        self._note = note
        self._called = called

    def __repr__(self) -> str:
        return f"<Reachability answered={self.answered} {self.unreachable_brokers}>"

    def connected(self, node_id: NodeId, address: Address) -> None:
        """Note that an address has responded. If it is a bootstrap address, it is tried first from now on."""
        if node_id is None and self.bootstrap[0] != address:
            rest = tuple(other for other in self.bootstrap if other != address)
            self.bootstrap = (address, *rest)
        if node_id is None and not self.answered:
            return  # the gateway is not ready before the bootstrap has answered its question for the brokers
        if self.unreachable_brokers.reached(node_id, monotonic()):
            self._log.info(
                "broker reachable again", broker=_name(node_id, self._called), address=str(address)
            )
            self._note("reachable again", f"{self._called(node_id)} is reachable again at {address}")

    def unreachable(self, node_id: NodeId, reason: str) -> None:
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
                "broker unreachable, connections of its clients are closed",
                broker=_name(node_id, self._called),
                reason=reason,
            )
            self._note("unreachable", f"{self._called(node_id)} is unreachable: {reason}", warning=True)

    def forget(self, now: float) -> None:
        """Forget unreachable brokers to which nobody has tried to connect for a while."""
        for node_id in self.unreachable_brokers.forget(now - UNTRIED_SECONDS):
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
            self.unreachable_brokers.reached(None, monotonic())
        self.connected(None, address)
        return first


class HungBrokers:
    """The brokers that accept requests but do not respond. Start and end of each silence are logged.

    `called` returns the name of a broker for messages.
    """

    def __init__(self, log: Logger, note: Note, called: Callable[[NodeId], str]) -> None:
        self.unanswered = Unanswered()
        self._log = log
        self._note = note
        self._called = called
        self._told: dict[NodeId, float] = {}
        """The start of the silence in seconds, for each broker whose silence has been logged."""

    def look(self, found: Mapping[NodeId, Owed], now: float) -> None:
        """Find brokers that do not respond.

        `found` has the outstanding responses of each broker. If a broker is missing there, it has none.
        """
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
        self.unanswered.forget(now - UNTRIED_SECONDS)
        for node_id in self._told.keys() - self.unanswered.hung(now).keys():
            del self._told[node_id]
            self._log.info("hung broker forgotten, no client asks it", broker=_name(node_id, self._called))


def _name(node_id: NodeId, called: Callable[[NodeId], str]) -> int | str:
    """Return the name of a broker in log lines: its id, or its address in transparent mode."""
    if node_id is None:
        return "bootstrap"
    name = called(node_id)
    return node_id if name == f"broker {node_id}" else name
