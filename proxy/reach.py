"""Where the bootstrap is, and which brokers can't be reached: told once until it is different."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from structlog.typing import FilteringBoundLogger

from proxy.account import Troubles
from proxy.books import NodeId
from proxy.recent import Note
from proxy.routing import LOOPED, Address

NOT_ASKED: Final = "the bootstrap was not asked yet"
UNTRIED_SECONDS: Final = 180.0
"""A broker that nobody has tried for so long since it was not reached is forgotten: it may be gone, or never
was there. Clients that want it try every few seconds; the alert on it waits longer than this."""


class Reach:
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
        log: FilteringBoundLogger,
        note: Note,
        called: Callable[[NodeId], str],
    ) -> None:
        self.bootstrap = bootstrap
        """Those that answered stand first."""
        self.troubles = Troubles()
        self.answered = not bootstrap
        """The bootstrap has told its brokers, or there is none to ask."""
        if bootstrap:
            self.troubles.failed(None, NOT_ASKED, monotonic())
        self._log = log
        self._note = note
        self._called = called

    def __repr__(self) -> str:
        return f"<Reach answered={self.answered} {self.troubles}>"

    def connected(self, node_id: NodeId, address: Address) -> None:
        """Take note that an address answered; bootstrap addresses that did are tried first from now on."""
        if node_id is None and self.bootstrap[0] != address:
            rest = tuple(other for other in self.bootstrap if other != address)
            self.bootstrap = (address, *rest)
        if node_id is None and not self.answered:
            return  # it is not ready before it has told its brokers
        if self.troubles.reached(node_id, monotonic()):
            who = "bootstrap" if node_id is None else node_id
            self._log.info("broker reachable again", broker=who, address=str(address))
            self._note("reachable again", f"{self._called(node_id)} is reachable again at {address}")

    def unreachable(self, node_id: NodeId, reason: str) -> None:
        """Take note that none did."""
        if node_id == LOOPED or not self.troubles.failed(node_id, reason, monotonic()):
            return
        if node_id is None:
            self._log.warning("bootstrap unreachable, trying again", reason=reason)
            self._note("unreachable", f"the bootstrap is unreachable: {reason}", warning=True)
        else:
            self._log.warning("broker unreachable, its clients are closed", broker=node_id, reason=reason)
            self._note("unreachable", f"{self._called(node_id)} is unreachable: {reason}", warning=True)

    def forget(self, now: float) -> None:
        """Forget brokers that were not reached and that nobody tries any more; `now` in seconds."""
        for node_id in self.troubles.forget(now - UNTRIED_SECONDS):
            self._log.info("unreachable broker not tried any more, forgotten", broker=node_id)

    def told(self, address: Address) -> bool:
        """Take note that a bootstrap address has told its brokers; tell whether it is the first time."""
        first, self.answered = not self.answered, True
        if first:
            self.troubles.reached(None, monotonic())
        self.connected(None, address)
        return first
