"""Room for clients: whether one more may come, and whether there are descriptors for it. Sans-IO."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from proxy.addresses import LOOPED, Address
from proxy.logger import Logger
from proxy.telemetry.history import Note
from proxy.telemetry.status import Unreachable, no_room
from proxy.telemetry.totals import NodeId

ROOM_AGAIN: Final = 0.9
"""Below this share of --max-connections it is said again when they are reached ..."""
AGAIN_SECONDS: Final = 5.0
"""... but not sooner: clients may come and go about the limit."""

CALM_SECONDS: Final = 60.0
"""How long it is told that there was no file descriptor."""
NO_DESCRIPTOR: Final = "no file descriptor is left for more clients; see ulimit -n"


class ConnectionLimit:
    """That there is no room is said once until there is again.

    Args:
        log: where it is told.
        note: keeps it for those who look at the gateway.
    """

    def __init__(self, log: Logger, note: Note) -> None:
        self._log = log
        self._note = note
        self._crowded = False
        self._said_at = 0.0

    def for_one_more(self, connected: int, most: int, now: float) -> bool:
        """Tell whether one more client is taken.

        Args:
            connected: clients that are.
            most: ``--max-connections``.
            now: in seconds.
        """
        if connected < ROOM_AGAIN * most and now - self._said_at >= AGAIN_SECONDS:
            self._crowded = False
        if connected < most:
            return True
        if not self._crowded:
            self._crowded = True
            self._said_at = now
            self._log.warning("no room for more clients, they are closed", max_connections=most)
            self._note("limit", f"no room: {no_room(most)}", warning=True)
        return False


class Descriptors:
    """That no file descriptor is left is said once until there were some for a while.

    Event loops don't tell: uvloop closes the clients for which there is none without a word.

    Args:
        log: where it is told.
        note: keeps it for those who look at the gateway.
    """

    def __init__(self, log: Logger, note: Note) -> None:
        self.problem = ""
        """That there was none of late, in words."""
        self._log = log
        self._note = note
        self._none_at = 0.0

    def seen(self, *, left: bool, now: float) -> None:
        """Take note whether there are enough for one more client.

        Args:
            left: there are.
            now: in seconds.
        """
        if left:
            if now - self._none_at >= CALM_SECONDS:
                self.problem = ""
            return
        self._none_at = now
        if not self.problem:
            self.problem = NO_DESCRIPTOR
            self._log.warning("no file descriptor is left for more clients", remedy="see ulimit -n")
            self._note("descriptors", NO_DESCRIPTOR, warning=True)


NOT_ASKED: Final = "the bootstrap was not asked yet"
UNTRIED_SECONDS: Final = 180.0
"""A broker that nobody has tried for so long since it was not reached is forgotten: it may be gone, or never
was there. Clients that want it try every few seconds; the alert on it waits longer than this."""


class Reachability:
    """What one process knows of it.

    Args:
        bootstrap: its addresses; none in transparent mode.
        log: where changes are told.
        note: keeps them for those who look at the gateway.
        called: names a broker for people.
    """

    def __init__(
        self,
        bootstrap: tuple[Address, ...],
        log: Logger,
        note: Note,
        called: Callable[[NodeId], str],
    ) -> None:
        self.bootstrap = bootstrap
        """Those that answered stand first."""
        self.unreachable_brokers = Unreachable()
        self.answered = not bootstrap
        """The bootstrap has told its brokers, or there is none to ask."""
        if bootstrap:
            self.unreachable_brokers.failed(None, NOT_ASKED, monotonic())
        self._log = log
        self._note = note
        self._called = called

    def __repr__(self) -> str:
        return f"<Reachability answered={self.answered} {self.unreachable_brokers}>"

    def connected(self, node_id: NodeId, address: Address) -> None:
        """Take note that an address answered; bootstrap addresses that did are tried first from now on."""
        if node_id is None and self.bootstrap[0] != address:
            rest = tuple(other for other in self.bootstrap if other != address)
            self.bootstrap = (address, *rest)
        if node_id is None and not self.answered:
            return  # it is not ready before it has told its brokers
        if self.unreachable_brokers.reached(node_id, monotonic()):
            who = "bootstrap" if node_id is None else node_id
            self._log.info("broker reachable again", broker=who, address=str(address))
            self._note("reachable again", f"{self._called(node_id)} is reachable again at {address}")

    def unreachable(self, node_id: NodeId, reason: str) -> None:
        """Take note that none did."""
        if node_id == LOOPED or not self.unreachable_brokers.failed(node_id, reason, monotonic()):
            return
        if node_id is None:
            self._log.warning("bootstrap unreachable, trying again", reason=reason)
            self._note("unreachable", f"the bootstrap is unreachable: {reason}", warning=True)
        else:
            self._log.warning("broker unreachable, its clients are closed", broker=node_id, reason=reason)
            self._note("unreachable", f"{self._called(node_id)} is unreachable: {reason}", warning=True)

    def forget(self, now: float) -> None:
        """Forget brokers that were not reached and that nobody tries any more; `now` in seconds."""
        for node_id in self.unreachable_brokers.forget(now - UNTRIED_SECONDS):
            self._log.info("unreachable broker not tried any more, forgotten", broker=node_id)

    def told(self, address: Address) -> bool:
        """Take note that a bootstrap address has told its brokers; tell whether it is the first time."""
        first, self.answered = not self.answered, True
        if first:
            self.unreachable_brokers.reached(None, monotonic())
        self.connected(None, address)
        return first
