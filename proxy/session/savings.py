"""Law 6: never dearer than the wire. Who gets a session, and when it rests.

A request can be judged before it goes, an answer can't: so what sessions cost is added up against what the
full forms would have cost, window by window, and a session that costs more rests. The switch and the slots
that all connections of a process share are here as well.
"""

from typing import Final

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


class Sessions:
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
        """The process holds as many bytes of answers as it may: fetches go without sessions, so that their
        answers stream."""
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
