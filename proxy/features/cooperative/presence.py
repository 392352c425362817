"""Whether a process may serve a member.

Several processes may serve one address: gateways behind a load balancer, or an old and a new process during a
restart. A member's connection to its coordinator may then reach another process than its fetches. The process
in which the member has synced last knows its lanes. Any other one has earlier lanes, or none. Two rules keep
records from being lost:

- A process stops serving a member soon after the member's connection to its coordinator has ended there, and
  when it learns that the member has joined elsewhere (`Presence`).
- A process accepts commits only up to the offsets that it has itself sent in this generation, from the
  committed offset on (`progress.Progress`).

So a commit never covers a record that the member did not get. One case is left: the process with the earlier
lanes does not see the end of the coordinator connection (half-open), and a response of the other one is lost
with a fetch connection that goes to the first one and back, all within a session timeout.
"""

from dataclasses import dataclass
from enum import Enum
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


class State(Enum):
    """What this process knows of a member in its group. It decides whether the member gets records."""

    DECLARED = "declared"
    """The member's lane is declared in its client.id. No group assigns lanes to this member."""
    UNKNOWN = "unknown"
    """This process has not seen the member join, so it may have joined before this process knew it. The
    member gets no records until it has joined again."""
    FROZEN = "frozen"
    """The member is joining, or its group may have continued without the member. The member gets no records
    until its next SyncGroup."""
    ASSIGNED = "assigned"
    """The member has its assignment from SyncGroup, and gets its records."""
    BROKERS = "assigned by brokers"
    """A broker assigns whole partitions to the member (KIP-848)."""


@dataclass(slots=True, eq=False)
class Presence:
    """What this process knows of a member in its group, and of the connection to its coordinator.

    It is the connection of the last JoinGroup, or of the last heartbeat that the coordinator accepted.
    """

    state: State = State.UNKNOWN
    epoch: int = 0
    """A number that changes whenever the member's lanes change, and when the member is frozen. If a fetch was
    sent in an earlier epoch, its response has no records for the member."""
    session_seconds: float = 0.0
    rebalance_seconds: float = inf
    """The time that the coordinator gives the member to join again in a rebalance."""
    settled_at: float = -inf
    """The last time at which the group certainly was in no rebalance, in seconds."""
    expires_at: float = 0.0
    """The time from which on the coordinator may have removed the member from its group, in seconds."""
    since: float = inf
    """Since when the member joins and sends heartbeats in this process, without a gap, in seconds."""
    alone_from: float = inf
    """The time from which on no other process serves the member, in seconds."""
    joining: bool = False
    """Whether the member has joined on this connection, and has no assignment yet."""
    _here: object = None
    _ended_at: float = -inf
    _missed_from: float = inf
    """When the member first fetched while its connection was not here, in seconds."""
    _fetched_at: float = -inf
    _closed_at: float = -inf

    @property
    def frozen(self) -> bool:
        return self.state in {State.UNKNOWN, State.FROZEN}

    @property
    def has_coordinator(self) -> bool:
        """Whether the member's group assigns its lanes, in this process or another one."""
        return self.state not in {State.DECLARED, State.BROKERS}

    def freeze(self) -> None:
        """Give the member no records until its next SyncGroup."""
        self.state = State.FROZEN
        self.epoch += 1

    def joins_elsewhere(self) -> None:
        """Note that another process knows the member's lanes. To get records here, it has to join again."""
        self.freeze()
        self.state = State.UNKNOWN

    def joins(self, connection: object, now: float, others_seconds: float) -> None:
        """Note that the member joins. Other processes may still serve it for `others_seconds`."""
        if not self.is_on(connection):
            self.since, self.alone_from = now, now + others_seconds
        self.beats(connection)
        self.joining = True
        self.freeze()

    def synced(self, now: float) -> None:
        """Note that the member has an assignment. The group certainly knew it at this time."""
        self.state, self.joining = State.ASSIGNED, False
        self.epoch += 1
        self.confirm(now)

    def beats(self, connection: object) -> None:
        """Note that the coordinator has accepted a heartbeat of the member's generation."""
        self._here, self._ended_at, self._missed_from = connection, inf, inf

    def ends(self, connection: object, now: float) -> None:
        if self.is_on(connection):
            self._here, self._ended_at, self.joining = None, now, False

    def confirm(self, now: float, *, settled: bool = True) -> None:
        """Note that the group knew the member at this time, and start the session timeout anew."""
        if settled:
            self.settled_at = max(self.settled_at, now)
        # In a rebalance the coordinator removes a member that does not join in time, although it sends
        # heartbeats. The rebalance began after `settled_at`.
        until = min(now + self.session_seconds, self.settled_at + self.rebalance_seconds)
        self.expires_at = max(self.expires_at, until)

    def lives(self, now: float) -> bool:
        """Return whether the member is still in the group at time `now`, as far as the gateway can tell."""
        return not self.frozen and now <= self.expires_at

    def gets(self, epoch: int, now: float) -> bool:
        """Return whether the member still gets the records that it requested when its epoch was `epoch`."""
        if self.state is State.ASSIGNED and not (now <= self.expires_at and self.is_here(now)):
            return False  # its lanes may already belong to other members, or it may have other lanes
        return not self.frozen and epoch == self.epoch

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
