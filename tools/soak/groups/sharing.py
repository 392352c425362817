"""Tells how much of a run was shared: a group that shares nothing passes all other checks, too."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

TURNS: Final = 4
"""Members share a partition in a second with so many turns. A rebalance alone makes one."""
MUST_SHARE: Final = 0.1
"""The least share of records: the rest comes in rebalances, or while one member is left."""


class Handled(NamedTuple):
    """A record that a member has processed."""

    at: float
    place: Hashable
    member: Hashable
    gateway: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many of a group's records were processed while members shared their partition."""

    records: int = 0
    across: int = 0
    """The members were behind different gateways."""
    within: int = 0
    """All of them were behind one gateway."""

    def __str__(self) -> str:
        return (
            f"{self.records} records processed, while members shared the partition across gateways "
            f"{self.across}, within one gateway {self.within}"
        )

    def shares(self, gateways: int) -> bool:
        """Return whether the group has shared its partitions: with several gateways, across gateways."""
        shared = self.across if gateways > 1 else self.within
        return shared > MUST_SHARE * self.records


def sharing(handled: Iterable[Handled]) -> Sharing:
    """Return how much of what the members of a group processed was shared."""
    by_second: dict[tuple[Hashable, int], list[Handled]] = defaultdict(list)
    for each in sorted(handled, key=lambda each: each.at):
        by_second[each.place, int(each.at)].append(each)
    records = across = within = 0
    for some in by_second.values():
        records += len(some)
        if sum(one.gateway != other.gateway for one, other in pairwise(some)) >= TURNS:
            across += len(some)
        elif sum(one.member != other.member for one, other in pairwise(some)) >= TURNS:
            within += len(some)
    return Sharing(records, across, within)
