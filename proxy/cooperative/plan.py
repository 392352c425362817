"""Assigns lanes: a pure function of a group's members, their earlier lanes, and the partitions.

A topic with at most as many subscribers as partitions keeps the assignment of the leading client. In a topic
with more subscribers, each gets one partition. The numbers of members of two partitions differ by at most
one. The hashes of a partition are cut into equal parts, in the order in which the members held them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from proxy.cooperative.key_hash import SPACE
from proxy.cooperative.positions import TopicPartition
from proxy.cooperative.ranges import FULL, KeyRange, KeyRanges, overlap, within

Lanes: TypeAlias = dict[TopicPartition, KeyRanges]
"""The lanes of one member."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member as the leader of its group sees it."""

    member_id: bytes
    topics: frozenset[bytes]
    """The topics to which it subscribes."""
    planned: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first hash of each partition in its last planned lanes."""
    held: Mapping[TopicPartition, KeyRanges] = field(default_factory=dict)
    """Its present lanes. Its client may keep its position in them."""
    owned: frozenset[TopicPartition] = frozenset()
    """The partitions that its client continues to process during a rebalance (incremental rebalancing)."""
    unknown: bool = False
    """Whether this process does not know its lanes."""
    keeps: bool = False
    """Whether its client keeps its position and unprocessed records in a partition that it had and gets
    again."""


def plan(
    members: Sequence[Joined], assigned: Mapping[bytes, Sequence[TopicPartition]], *, shares: bool
) -> dict[bytes, Lanes]:
    """Return the lanes of each member, by member id.

    Args:
        members: all joined members.
        assigned: the leading client's assignment, by member id. No partition has two members. With
            incremental rebalancing it leaves out a partition that moves to another member but is not released
            yet.
        shares: whether partitions may be shared. If not, the assignment does not change.
    """
    lanes: dict[bytes, Lanes] = {member.member_id: {} for member in members}
    partitions: dict[bytes, set[int]] = {}
    for places in (*assigned.values(), *(member.owned for member in members)):
        for topic, partition in places:
            partitions.setdefault(topic, set()).add(partition)
    shared = {
        topic: numbers
        for topic, numbers in partitions.items()
        if shares and len(numbers) < sum(topic in member.topics for member in members)
    }
    for member_id, places in assigned.items():
        for place in places:
            if place[0] not in shared and member_id in lanes:
                lanes[member_id][place] = FULL
    for topic in sorted(shared):
        subscribers = [member for member in members if topic in member.topics]
        for number, sharing in _spread(topic, sorted(shared[topic]), subscribers).items():
            for member, part in zip(sharing, cut(len(sharing)), strict=True):
                lanes[member.member_id][topic, number] = (part,)
    return lanes


def at_once(member: Joined, lanes: Lanes, members: Sequence[Joined]) -> Lanes:
    """Return the lanes that a member gets at once. It has to join again for its other lanes.

    A client may keep its position in a partition that it had and gets again. With incremental rebalancing it
    does, and some clients always do. In its new ranges, it would never read the records before that position.
    So it first gets nothing of such a partition, and then begins from the committed offset.

    With incremental rebalancing, a client also continues to process records of ranges that it has lost, and
    commits them later. So it keeps a partition only with the same ranges, and nobody gets ranges that another
    member still has. The same applies to a client that `keeps` unprocessed records, except that it processes
    nothing while it joins.
    """
    if member.unknown:
        return {}
    return {
        place: ranges
        for place, ranges in lanes.items()
        if _goes_on(member, place, ranges)
        and not any(
            other is not member and place in other.owned and overlap(ranges, other.held.get(place, FULL))
            for other in members
        )
    }


def _goes_on(member: Joined, place: TopicPartition, ranges: KeyRanges) -> bool:
    """Return whether a client may have these ranges at any position in the partition."""
    if place in member.owned or (member.keeps and place in member.held):
        return ranges == member.held.get(place)
    return place not in member.held or within(ranges, member.held[place])


def cut(parts: int) -> list[KeyRange]:
    """Cut the space of hashes into equal parts, in order."""
    bounds = [number * SPACE // parts for number in range(parts + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _spread(topic: bytes, numbers: Sequence[int], members: Sequence[Joined]) -> dict[int, list[Joined]]:
    """Give each member one partition. It is the one that it held, if the numbers of members stay equal."""
    least, more = divmod(len(members), len(numbers))
    found: dict[int, list[Joined]] = {number: [] for number in numbers}
    left: list[Joined] = []
    for member in sorted(members, key=lambda member: _order(topic, member)):
        held = next((number for number in numbers if (topic, number) in member.planned), None)
        room = least if held is None or more <= 0 else least + 1
        if held is None or len(found[held]) >= room:
            left.append(member)
        else:
            found[held].append(member)
            more -= len(found[held]) > least
    for member in left:
        number = min(numbers, key=lambda number: (len(found[number]), number))
        found[number].append(member)
    return {
        number: sorted(sharing, key=lambda member: _order(topic, member, number))
        for number, sharing in found.items()
    }


def _order(topic: bytes, member: Joined, number: int | None = None) -> tuple[int, bytes]:
    """Return a sort key: the hashes that a member held, of one partition or of any.

    Members without hashes come last.
    """
    starts = [
        start
        for (held, partition), start in member.planned.items()
        if held == topic and number in {None, partition}
    ]
    return min(starts, default=SPACE), member.member_id
