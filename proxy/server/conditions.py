"""What a process needs to serve clients: free connections and file descriptors. Sans-IO.

Each class here logs a problem once when it begins, not once per client, except `Repeated`: it logs problems
of single clients, and logs the same problem of a client again after some minutes.
"""

from collections.abc import Mapping
from typing import Final

from proxy.logger import Logger
from proxy.telemetry.history import Note
from proxy.telemetry.logs import BURST, WINDOW
from proxy.telemetry.status import limit_reached

BELOW_LIMIT: Final = 0.9
"""The number of connections must fall below this share of the limit before the warning is repeated."""
WARN_AGAIN_SECONDS: Final = 5.0
"""The shortest time between two warnings about --max-connections. The number of clients may go up and down
near the limit."""
CALM_SECONDS: Final = 60.0
"""How long the status still shows a lack of file descriptors after it has ended."""
NO_DESCRIPTOR: Final = "no file descriptor is left for more clients; raise the limit (ulimit -n)"
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
