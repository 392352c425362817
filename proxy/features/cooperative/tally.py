"""Figures of cooperative groups and their members. Sans-IO. It does not need the optional packages."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.ranges import KeyRanges

STATES: Final = {
    "declared": "its client.id names its lane",
    "shares": "it has lanes from its group, or whole partitions, or none",
    "plain": "it has whole partitions from its client's own assignor (outsider, assignor)",
    "frozen": "it gets no records until it has joined again",
    "away": "it fetches here, but its connection to the coordinator reaches another process",
}
"""The values of `MemberSeen.state`, each with its meaning. So have the other words in metrics."""
RECORDS: Final = {"kept": "for the member", "filtered": "left out: they belong to another member"}
BATCHES: Final = {
    "untouched": "all of its records are for the member",
    "thinned": "some are left out",
    "dropped": "all are left out",
    "placeholder": "an empty batch, which moves the client forward",
}
COMMITS: Final = {"ok": "the broker accepted it", "error": "the broker refused it"}
DETACHED: Final = {"full": "there was no room", "wait": "it did not ask"}


class GroupNotice(StrEnum):
    """The kinds of events about a group or a client that are logged."""

    REFUSED = "client refused"
    """A client does not get the lane that it declares."""
    EXCLUSIVE = "group shares no partition"
    SLOT = "slot refused"
    """A broker has refused a member's slot (`proxy.features.cooperative.slots`)."""
    AWAY = "member joins elsewhere"
    """A member fetches here, and its connection to the coordinator reaches another process."""
    REBALANCED = "group rebalanced"


Tell: TypeAlias = Callable[[GroupNotice, str, str], None]
"""A function that logs an event. Its arguments: the event, then the client's host or the group's name, then a
reason or description."""


@dataclass(slots=True)
class FilterTally:
    """The counts of filtered records, over all members of the groups in this process."""

    records: Counter[str] = field(default_factory=Counter)
    """How many records members got or did not get. The keys are in `RECORDS`. Partitions of which a member
    gets all records are not counted."""
    batches: Counter[str] = field(default_factory=Counter)
    """The numbers of batches, without those partitions. The keys say how they were changed: see `BATCHES`."""
    upstream_bytes: int = 0
    """Bytes of records that brokers have sent for fetches of members, in all partitions."""
    client_bytes: int = 0
    """Bytes of records that were sent to members. Partitions of which a member gets all records are not
    counted."""
    skipped_offsets: int = 0
    """Offsets that the gateway did not request again, because they have no record for the lane."""
    commits: Counter[str] = field(default_factory=Counter)
    """The number of the broker's responses to commits for key ranges. The keys: ``ok``, or ``error`` if the
    broker has returned an error. A commit that is repeated without its map counts twice."""
    refused: Counter[int] = field(default_factory=Counter)
    """Partitions for which the gateway itself returned an error, by error code."""
    exclusive: Counter[str] = field(default_factory=Counter)
    """How often a group stopped sharing partitions, or got another reason for it. The keys are the reasons
    (`GroupSeen.exclusive`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSeen:
    """A member's part of a partition, for the figures of the gateway."""

    topic: str
    partition: int
    ranges: KeyRanges
    position: int | None
    """The lane's committed offset: all its records before this offset are committed. None if this process
    does not know the offset."""
    lag: int | None
    """The number of offsets from `position` to the end of the partition, minus skipped offsets. None if
    unknown."""
    across: bool = False
    """Whether members behind other gateways have the other key ranges of the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A member of a cooperative group, for the figures of the gateway."""

    client_id: str
    host: str
    state: str
    """One of `STATES`."""
    lanes: list[LaneSeen]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """A cooperative group, for the figures of the gateway."""

    name: str
    exclusive: str
    """The reason why the group shares no partition, a key of `EXCLUSIVE`. Empty if it may share."""
    members: list[MemberSeen]

    def lags(self) -> list[int]:
        return [lane.lag for member in self.members for lane in member.lanes if lane.lag is not None]

    def unowned(self) -> int:
        """Return the number of gaps in partitions of which some member has a lane.

        A gap is an interval of hashes that no lane covers. Nobody gets the records in a gap at present.
        Partitions that are shared across gateways are left out, as members behind others have the rest.
        """
        by_place: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for lane in (lane for member in self.members for lane in member.lanes):
            if not lane.across:
                by_place.setdefault((lane.topic, lane.partition), []).extend(lane.ranges)
        gaps = 0
        for ranges in by_place.values():
            end = 0
            for low, high in sorted(ranges):
                gaps += low > end
                end = max(end, high + 1)
            gaps += end < SPACE
        return gaps


@dataclass(slots=True)
class Cooperative:
    """The figures of all cooperative groups of a gateway."""

    tally: FilterTally = field(default_factory=FilterTally)
    reader_fetches: int = 0
    """The number of partitions in the gateway's fetches for members, see `SharedFetches.fetches`."""
    buffered_bytes: int = 0
    """How many bytes of shares are stored for members."""
    detached: Counter[str] = field(default_factory=Counter)
    """How often members had to fetch for themselves, by reason, see `SharedFetches.detached`."""
    groups: list[GroupSeen] = field(default_factory=list)
    """The groups, sorted by name."""
