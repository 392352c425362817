"""Room for clients: whether one more may come, and whether there are descriptors for it. Sans-IO."""

from typing import Final

from structlog.typing import FilteringBoundLogger

from proxy.account import no_room
from proxy.recent import Note

ROOM_AGAIN: Final = 0.9
"""Below this share of --max-connections it is said again when they are reached ..."""
AGAIN_SECONDS: Final = 5.0
"""... but not sooner: clients may come and go about the limit."""

CALM_SECONDS: Final = 60.0
"""How long it is told that there was no file descriptor."""
NO_DESCRIPTOR: Final = "no file descriptor is left for more clients; see ulimit -n"


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


class Descriptors:
    """That no file descriptor is left is said once until there were some for a while.

    Event loops don't tell: uvloop closes the clients for which there is none without a word.

    Args:
        log: where it is told.
        note: keeps it for those who look at the gateway.
    """

    def __init__(self, log: FilteringBoundLogger, note: Note) -> None:
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
