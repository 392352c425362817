"""Figures of cooperative groups and their members. Sans-IO, without the libraries of the extra.

Each process has the figures of the groups that it serves. With ``--workers`` they are pickled and added up.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from proxy.adding import ADDS, Figures
from proxy.cooperative.murmur2 import SPACE
from proxy.cooperative.ranges import KeyRanges

STATES: Final = ("declared", "shares", "plain", "frozen")
"""The values of `MemberSeen.state`."""
RECORDS: Final = ("kept", "filtered")
BATCHES: Final = ("untouched", "thinned", "dropped", "placeholder")
COMMITS: Final = ("ok", "error")
DETACHED: Final = ("full", "wait")
EXCLUSIVE: Final = {
    "outsider": "a member is not behind this gateway, or does not assign partitions as consumers do",
    "instances": "its members are behind several gateways",
    "client_id": "a client.id does not begin with the group's name and a dot, or two members share one",
    "assignor": "its assignor gives out something else than partitions",
}
"""The values of `GroupSeen.exclusive`, in words."""


class GroupNotice(StrEnum):
    """The log lines about a group or one of its clients."""

    REFUSED = "client refused"
    """The client does not get its declared lane."""
    EXCLUSIVE = "group shares no partition"
    REBALANCED = "group rebalanced"


Tell: TypeAlias = Callable[[GroupNotice, str, str], None]
"""Called with the event, the client's host or the group's name, and a reason or description."""


@dataclass(slots=True)
class FilterTally(Figures):
    """Counts of all members."""

    records: Counter[str] = field(default_factory=Counter)
    """Records by their handling, see `RECORDS`."""
    batches: Counter[str] = field(default_factory=Counter)
    """Batches by their handling, see `BATCHES`."""
    upstream_bytes: int = 0
    """Bytes of records from brokers."""
    client_bytes: int = 0
    """Bytes of records for members."""
    skipped_offsets: int = 0
    """Offsets that were not fetched again, because they had no record for the lane."""
    commits: Counter[str] = field(default_factory=Counter)
    """Commits for key ranges: ``ok``, or ``error`` from the broker."""
    refused: Counter[int] = field(default_factory=Counter)
    """Partitions for which the gateway itself responded with an error, by error code."""
    exclusive: Counter[str] = field(default_factory=Counter)
    """How often a group has begun to share nothing, by reason (`GroupSeen.exclusive`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSeen:
    """A member's part of a partition."""

    topic: str
    partition: int
    ranges: KeyRanges
    position: int | None
    """The offset up to which all its records are committed. None if this process does not know it."""
    lag: int | None
    """The number of offsets up to the end of the partition, without those known to have no record for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A member of a cooperative group."""

    client_id: str
    host: str
    state: str
    """``declared``: its client.id declares its lane. ``shares``: its group gave it lanes. ``plain``: its
    group shares nothing. ``frozen``: it gets nothing until it has joined again."""
    lanes: list[LaneSeen]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """A cooperative group."""

    name: str
    exclusive: str
    """The reason why it shares nothing, a key of `EXCLUSIVE`. Empty if it may share."""
    members: list[MemberSeen]

    def lags(self) -> list[int]:
        """Return all known lags of lanes."""
        return [lane.lag for member in self.members for lane in member.lanes if lane.lag is not None]

    def unowned(self) -> int:
        """Return how many gaps the lanes leave in shared partitions. Nobody reads the records in them."""
        by_place: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for member in self.members:
            for lane in member.lanes:
                by_place.setdefault((lane.topic, lane.partition), []).extend(lane.ranges)
        gaps = 0
        for ranges in by_place.values():
            end = 0
            for low, high in sorted(ranges):
                gaps += low > end
                end = max(end, high + 1)
            gaps += end < SPACE
        return gaps


def _by_name(mine: list[GroupSeen], more: list[GroupSeen]) -> list[GroupSeen]:
    return sorted([*mine, *more], key=lambda group: group.name)


@dataclass(slots=True)
class Cooperative(Figures):
    """The figures of all cooperative groups of a process, or of a gateway."""

    tally: FilterTally = field(default_factory=FilterTally)
    reader_fetches: int = 0
    """See `SharedFetches.fetches`."""
    buffered_bytes: int = 0
    """How many bytes are stored for members."""
    detached: Counter[str] = field(default_factory=Counter)
    """See `SharedFetches.detached`."""
    groups: list[GroupSeen] = field(default_factory=list, metadata={ADDS: _by_name})
    """The groups by name. One process serves each group."""
