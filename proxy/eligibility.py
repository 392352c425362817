"""Which fetches may go through the session, and why the others pass as they are. Sans-IO."""

from typing import Final

from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest
from proxy.session.handler import FetchSessionHandler
from proxy.session.savings import Savings, Sessions

ONE_PARTITION: Final = "one partition"
NATIVE: Final = "native session"
_BUSY: Final = "session busy"
_CATCHING_UP: Final = "catching up"
_MEMORY: Final = "memory"
_RESTING: Final = "resting"
PASSING_REASONS: Final = frozenset({_BUSY, _CATCHING_UP, _MEMORY, _RESTING})
"""Reasons that pass by themselves: the session stays."""
_FENCING_VERSION: Final = 9


class Eligibility:
    """What one connection has shown of itself and of its broker.

    Args:
        sessions: the switch of the process.
    """

    __slots__ = ("_native", "_sessions", "features", "floods", "given", "large", "never", "off", "savings")

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._native = False
        self.savings = Savings()
        self.features: Features | None = None
        """What the broker's ApiVersions told; None until then."""
        self.floods = False
        """The client asks for a session with each fetch and uses none."""
        self.given = 0
        """The session that the broker gave for a (0, 0) of the client's own."""
        self.large = False
        """The last answer was large: the client is catching up."""
        self.never = ""
        """Why no fetch of this connection may go through a session any more."""
        self.off = False
        """The last fetch was kept out by the switch, or for good: a session held is to be closed."""

    def unfit(
        self, request: FetchRequest, client_id: str, handler: FetchSessionHandler, *, busy: bool, now: float
    ) -> str:
        """Return why a fetch does not go through the session, or nothing.

        Args:
            request: the fetch.
            client_id: whose it is.
            handler: the connection's session; it takes over one that a flooding client left behind.
            busy: a fetch of the session is outstanding.
            now: the time, in seconds.
        """
        self.off = False
        if self._is_native(request) or (request.session_epoch == 0 and not self._flooding(handler)):
            return NATIVE
        if off := self.never or ("" if self._sessions.allowed(client_id) else "sessions off"):
            self.off = True
            return off
        if request.odd:
            return request.odd
        if request.partitions < 2 and not (handler.established and request.partitions):
            return ONE_PARTITION
        return self._unfit_broker(request) or self._unfit_now(busy=busy, now=now)

    def _is_native(self, request: FetchRequest) -> bool:
        """Whether the client was ever seen to use sessions; kafka-go says with (-1, -1) that it does not."""
        session_id, epoch = request.session_id, request.session_epoch
        if session_id > 0 or epoch > 0 or epoch < SESSIONLESS_EPOCH or (session_id < 0 and epoch == 0):
            self._native = True
        return self._native

    def _flooding(self, handler: FetchSessionHandler) -> bool:
        """Whether (0, 0) comes from a client that asks for a session each time and uses none.

        The first one passes, for a native client begins so too. If the broker gave it an id and the next
        fetch is (0, 0) all the same, it was not meant; the id is taken over, so that no session stays behind.
        """
        if not self.floods and self.given:
            self.floods = True
            handler.session_id = self.given
        return self.floods

    def _unfit_broker(self, request: FetchRequest) -> str:
        features = self.features
        if features is None:
            return "broker not known yet"
        if not features.has_sessions:
            return "broker without sessions"
        return "" if features.keeps_leader_epoch or not _fences(request) else "leader epochs"

    def _unfit_now(self, *, busy: bool, now: float) -> str:
        if busy:
            return _BUSY
        if self.large:
            return _CATCHING_UP
        if self._sessions.crowded:
            return _MEMORY
        return _RESTING if self.savings.resting(now) else ""


def _fences(request: FetchRequest) -> bool:
    """Whether any entry carries a leader epoch for the broker to check (v9 and later)."""
    listing = request.listing
    if listing is None or request.layout.version < _FENCING_VERSION:
        return False
    epochs = listing.entries.view(listing.layout.request_fields)["epoch"]
    return bool((epochs >= 0).any())
