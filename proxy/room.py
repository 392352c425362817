"""Room for clients: whether one more may come. Sans-IO."""

from typing import Final

from structlog.typing import FilteringBoundLogger

from proxy.account import no_room
from proxy.recent import Note

ROOM_AGAIN: Final = 0.9
"""Below this share of --max-connections it is said again when they are reached ..."""
AGAIN_SECONDS: Final = 5.0
"""... but not sooner: clients may come and go about the limit."""


class Room:
    """That there is no room is said once until there is again.

    Args:
        log: where it is told.
        note: keeps it for those who look at the gateway.
    """

    def __init__(self, log: FilteringBoundLogger, note: Note) -> None:
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
