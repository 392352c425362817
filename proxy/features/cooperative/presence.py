"""Whether a process may serve a member, and how far it has sent the member's partitions.

Several processes may serve one address: gateways behind a load balancer, or an old and a new process during a
restart. A member's connection to its coordinator may then reach another process than its fetches. The process
in which the member has synced last knows its lanes. Any other one has earlier lanes, or none. Two rules keep
records from being lost:

- A process stops serving a member soon after the member's connection to its coordinator has ended there, and
  when it learns that the member has joined elsewhere (`Presence`).
- A process accepts commits only up to the offsets that it has itself sent in this generation, from the
  committed offset on (`Progress`).

So a commit never covers a record that the member did not get. One case is left: the process with the earlier
lanes does not see the end of the coordinator connection (half-open), and a response of the other one is lost
with a fetch connection that goes to the first one and back, all within a session timeout.
"""

from math import inf
from typing import Final

ABSENT_SECONDS: Final = 3.0
"""How long a member is served after its connection to the coordinator has ended, in seconds. Clients connect
anew and send a heartbeat within this time, so that an error of the coordinator costs no pause."""
AWAY_SECONDS: Final = 6.0
"""How long a member fetches here without its connection to the coordinator, before it is reported. It is
reported within ten seconds of the end of this connection (`ABSENT_SECONDS`)."""
SEEN_SECONDS: Final = 60.0
"""How long a member is reported after its last fetch, and how often its connection is closed."""


class Presence:
    """Where a member's connection to its coordinator is.

    It is the connection of the last JoinGroup, or of the last heartbeat that the coordinator accepted.
    """

    __slots__ = (
        "_closed_at",
        "_ended_at",
        "_fetched_at",
        "_here",
        "_missed_from",
        "alone_from",
        "joining",
        "since",
    )

    def __init__(self) -> None:
        self._here: object = None
        self._ended_at = -inf
        self.since = inf
        """Since when the member joins and sends heartbeats in this process, without a gap, in seconds."""
        self.alone_from = inf
        """The time from which on no other process serves the member, in seconds."""
        self.joining = False
        """Whether the member has joined on this connection, and has no assignment yet."""
        self._missed_from = inf
        """When the member first fetched while its connection was not here, in seconds."""
        self._fetched_at = self._closed_at = -inf

    def joins(self, connection: object, now: float, others_seconds: float) -> None:
        """Note that the member joins. Other processes may still serve it for `others_seconds`."""
        if not self.is_on(connection):
            self.since, self.alone_from = now, now + others_seconds
        self.beats(connection)
        self.joining = True

    def beats(self, connection: object) -> None:
        """Note that the coordinator has accepted a heartbeat of the member's generation."""
        self._here, self._ended_at, self._missed_from = connection, inf, inf

    def ends(self, connection: object, now: float) -> None:
        if self.is_on(connection):
            self._here, self._ended_at, self.joining = None, now, False

    def is_on(self, connection: object) -> bool:
        return connection is self._here

    def is_here(self, now: float) -> bool:
        """Return whether this process may serve the member."""
        return now <= self._ended_at + ABSENT_SECONDS

    def fetches(self, now: float) -> None:
        self._fetched_at = now
        if not self.is_here(now):
            self._missed_from = min(self._missed_from, now)

    def is_away(self, now: float) -> bool:
        """Return whether the member fetches here, while its connection to the coordinator is elsewhere."""
        return self._missed_from + AWAY_SECONDS <= now <= self._fetched_at + SEEN_SECONDS

    def closes(self, now: float) -> bool:
        """Return whether to close a connection of a member that is away: the next may reach its process."""
        if not self.is_away(now) or now < self._closed_at + SEEN_SECONDS:
            return False
        self._closed_at = now
        return True
