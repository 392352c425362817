"""What members of cooperative groups got, in figures, and who they are. Sans-IO; needs none of the libraries.

One process has these of the groups that it serves. They can be pickled: with ``--workers`` they are added up.
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
"""Of a member (`MemberSeen.state`)."""
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
"""Why a group shares nothing (`GroupSeen.exclusive`), in words."""


class Told(StrEnum):
    """What happens to a group or to one of its clients, as the log names it."""

    REFUSED = "client refused"
    """It does not get the lane that it declares."""
    EXCLUSIVE = "group shares no partition"
    REBALANCED = "group rebalanced"


Tell: TypeAlias = Callable[[Told, str, str], None]
"""Takes what happened, to whom (the host of a client, or the name of a group), and why or how."""


@dataclass(slots=True)
class FilterTally(Figures):
    """What the filter has counted, for all members."""

    records: Counter[str] = field(default_factory=Counter)
    """By what became of them: `RECORDS`."""
    batches: Counter[str] = field(default_factory=Counter)
    """The same: `BATCHES`."""
    upstream_bytes: int = 0
    """Bytes of records that came from brokers."""
    client_bytes: int = 0
    """Bytes of records that went to members."""
    skipped_offsets: int = 0
    """Offsets that were not fetched again, as nothing there was for the lane."""
    commits: Counter[str] = field(default_factory=Counter)
    """Commits for key ranges: ``ok``, and ``error`` of the broker."""
    refused: Counter[int] = field(default_factory=Counter)
    """Partitions that were answered with an error of the gateway's own, by Kafka's number."""
    exclusive: Counter[str] = field(default_factory=Counter)
    """How many times a group has begun to share nothing, by reason (`GroupSeen.exclusive`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSeen:
    """What a member has of a partition."""

    topic: str
    partition: int
    ranges: KeyRanges
    position: int | None
    """The offset up to which all of its records are committed; None: not known to this process."""
    lag: int | None
    """Offsets from there to the end of the partition, without those that are known to have nothing for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A member of a cooperative group."""

    client_id: str
    host: str
    state: str
    """``declared``: its client.id says its lane; ``shares``: its group gave it lanes; ``plain``: its group
    shares nothing; ``frozen``: it gets nothing until it has joined again."""
    lanes: list[LaneSeen]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """A cooperative group, as the process sees it that serves its members."""

    name: str
    exclusive: str
    """Why it shares nothing, empty if it may: ``outsider``, ``instances``, ``client_id`` or ``assignor``."""
    members: list[MemberSeen]

    def lags(self) -> list[int]:
        """Return the lags of all lanes of which they are known."""
        return [lane.lag for member in self.members for lane in member.lanes if lane.lag is not None]

    def unowned(self) -> int:
        """Return how many gaps the lanes leave in partitions of which some member has a part.

        Nobody reads the records of these keys.
        """
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
    """All that a process, or a gateway, tells of its cooperative groups."""

    tally: FilterTally = field(default_factory=FilterTally)
    reader_fetches: int = 0
    """Fetches for several members that went upstream, by partition."""
    buffered_bytes: int = 0
    """What is put aside for members."""
    detached: Counter[str] = field(default_factory=Counter)
    """Members that went on to fetch for themselves: no room (``full``), or they did not ask (``wait``)."""
    groups: list[GroupSeen] = field(default_factory=list, metadata={ADDS: _by_name})
    """By name; each group is served by one process."""
