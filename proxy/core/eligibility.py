"""Which fetches may go through the session, and why the others pass as they are. Sans-IO."""

from typing import Final

from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest
from proxy.session.handler import FetchSessionHandler

ONE_PARTITION: Final = "one partition"
NATIVE: Final = "native session"
_BUSY: Final = "session busy"
_CATCHING_UP: Final = "catching up"
_MEMORY: Final = "memory"
_RESTING: Final = "resting"
PASSING_REASONS: Final = frozenset({_BUSY, _CATCHING_UP, _MEMORY, _RESTING})
"""Reasons that pass by themselves: the session stays."""
_FENCING_VERSION: Final = 9

WINDOW_SECONDS: Final = 10.0
"""Within each such window the sum must not be negative."""
MAX_REST_WINDOWS: Final = 64
ALIKE_FETCHES: Final = 2
"""So many fetches in a row must be worth a delta before a session is asked for."""


class Savings:
    """The running sum of one connection, and what follows from it."""

    __slots__ = ("_alike", "_balance", "_rest", "_rests_until", "_window_ends")

    def __init__(self) -> None:
        self._balance = 0
        self._window_ends = 0.0
        self._rest = 1
        self._rests_until = 0.0
        self._alike = 0

    def __repr__(self) -> str:
        return f"<Savings balance={self._balance} rest={self._rest}>"

    def promising(self, worth: bool) -> bool:
        """Note whether a fetch would have been worth a delta; tell whether enough in a row were."""
        self._alike = self._alike + 1 if worth else 0
        return self._alike >= ALIKE_FETCHES

    def resting(self, now: float) -> bool:
        """Whether sessions cost more than they saved of late, and fetches go without for a while."""
        return now < self._rests_until

    def settle(self, saved: int, now: float) -> bool:
        """Add what one exchange through the session saved (bytes, negative if it cost more).

        Returns:
            True if sessions rest from now on: this window's sum turned negative. Each time in a row doubles
            the rest; a window that ends with something saved ends the row.
        """
        if now >= self._window_ends:
            if self._balance > 0:
                self._rest = 1
            self._balance = 0
            self._window_ends = now + WINDOW_SECONDS
        self._balance += saved
        if self._balance >= 0:
            return False
        self.rest(now)
        return True

    def rest(self, now: float) -> None:
        """Have fetches go without sessions for a while, longer each time in a row."""
        self._rests_until = now + self._rest * WINDOW_SECONDS
        self._rest = min(2 * self._rest, MAX_REST_WINDOWS)
        self._balance = 0


class SessionLimits:
    """The switch for sessions and the broker slots that one gateway takes, shared by its connections.

    Args:
        max_sessions: slots that may be held at brokers at one time.
        on: whether fetches are turned into sessions at all.
        off_for: client ids whose fetches pass as they are.
        slots: those that each process of the gateway holds or asks for; all see the same.
        own: the place in `slots` of this process, which alone changes it.
    """

    __slots__ = ("_own", "_slots", "crowded", "max_sessions", "off_for", "on")

    def __init__(
        self,
        *,
        max_sessions: int,
        on: bool = True,
        off_for: frozenset[str] = frozenset(),
        slots: "list[int] | memoryview[int] | None" = None,
        own: int = 0,
    ) -> None:
        self.max_sessions = max_sessions
        self.on = on
        self.off_for = off_for
        self.crowded = False
        """The process holds as many bytes of responses as it may: fetches go without sessions, so that their
        responses stream."""
        self._slots = [0] if slots is None else slots
        self._own = own

    def __repr__(self) -> str:
        return f"<Sessions held={self.held}/{self.max_sessions} on={self.on}>"

    @property
    def held(self) -> int:
        """Give the slots that the gateway holds or asks for."""
        return sum(self._slots)

    def allowed(self, client_id: str) -> bool:
        """Whether fetches of this client may go through a session now."""
        return self.on and client_id not in self.off_for

    def take(self) -> bool:
        """Take a slot if one is left.

        It is taken first and then seen whether it is one too many: of two processes that ask for the last one
        at the same time both may go without, never both have it.
        """
        self._slots[self._own] += 1
        if self.held <= self.max_sessions:
            return True
        self.release()
        return False

    def release(self) -> None:
        """Give a slot back."""
        self._slots[self._own] -= 1


class Eligibility:
    """What one connection has shown of itself and of its broker.

    Args:
        sessions: the switch of the process.
    """

    __slots__ = ("_native", "_sessions", "features", "floods", "given", "large", "never", "off", "savings")

    def __init__(self, sessions: SessionLimits) -> None:
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
        """The last response was large: the client is catching up."""
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
        if request.not_plain:
            return request.not_plain
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
