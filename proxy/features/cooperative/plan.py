"""Assigns lanes to members.

The result depends only on the members, their earlier lanes, the assignment of the leading client, and whether
the group shares.

If a topic has at most as many subscribers as partitions, the assignment of the leading client does not
change. If it has more subscribers, each subscriber gets one partition, alone or with others. The numbers of
members per partition differ by at most one. The hashes of a partition are divided into equal parts. The
members keep the order of their earlier parts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import FULL, KeyRange, KeyRanges, overlap, within

Lanes: TypeAlias = dict[TopicPartition, KeyRanges]
"""The lanes of one member."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member that has joined its group, with the data that the leader needs for the plan."""

    member_id: bytes
    topics: frozenset[bytes]
    planned: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For each partition, the first hash that was planned for the member last time."""
    held: Mapping[TopicPartition, KeyRanges] = field(default_factory=dict)
    """The lanes that the member has now. In these partitions, its client possibly keeps its position."""
    owned: frozenset[TopicPartition] = frozenset()
    """The partitions that the client continues to process during a rebalance (incremental rebalancing)."""
    unknown: bool = False
    """Whether the process does not know which lanes the member has."""
    keeps: bool = False
    """Whether the client keeps its position and unprocessed records in a partition that is taken and assigned
    again."""


def sharable(
    members: Sequence[Joined], assigned: Mapping[bytes, Sequence[TopicPartition]]
) -> dict[bytes, set[int]]:
    """Return the topics with more subscribers than partitions, each with its partitions."""
    partitions: dict[bytes, set[int]] = {}
    for places in (*assigned.values(), *(member.owned for member in members)):
        for topic, partition in places:
            partitions.setdefault(topic, set()).add(partition)
    return {
        topic: numbers
        for topic, numbers in partitions.items()
        if len(numbers) < sum(topic in member.topics for member in members)
    }


def plan(
    members: Sequence[Joined],
    assigned: Mapping[bytes, Sequence[TopicPartition]],
    *,
    shares: bool,
    but: Collection[bytes] = (),
) -> dict[bytes, Lanes]:
    """Return the lanes of each member, by member id. Partitions of the topics `but` are not shared.

    No partition is twice in `assigned`, the assignment of the leading client. With incremental rebalancing, a
    partition that moves to another member is missing until it is released. If the group does not share, each
    member gets its assignment as whole partitions.
    """
    lanes: dict[bytes, Lanes] = {member.member_id: {} for member in members}
    shared = sharable(members, assigned) if shares else {}
    for topic in but:
        shared.pop(topic, None)
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
    """Return the lanes that a member may have now. To get its other planned lanes, it has to join again.

    A partition can be taken from a client and assigned again. The client may then continue from its earlier
    position. With incremental rebalancing it does, and some clients always do. If its key ranges are new, it
    would never read the records before this position. So the member first loses the partition. Then it gets
    the partition with the new ranges, and begins from the committed offset.

    With incremental rebalancing, a client also continues to process records of key ranges that it has lost,
    and commits them later. So it keeps a partition only if the ranges are the same, and no other member gets
    ranges that it still has. A client that `keeps` unprocessed records also keeps a partition only if the
    ranges are the same. But it processes nothing while it joins, so others may get its ranges at once.
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
    if place in member.owned or (member.keeps and place in member.held):
        return ranges == member.held.get(place)
    return place not in member.held or within(ranges, member.held[place])


def cut(parts: int) -> list[KeyRange]:
    """Divide the range of all hashes into `parts` equal ranges, in order."""
    bounds = [number * SPACE // parts for number in range(parts + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _spread(topic: bytes, numbers: Sequence[int], members: Sequence[Joined]) -> dict[int, list[Joined]]:
    """Give each member one partition. If possible, it is the partition that the member had before.

    It is not possible if the numbers of members per partition would then differ by more than one.
    """
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
    """Return a sort key: the first hash that was planned for a member. Members without one come last."""
    starts = [
        start
        for (held, partition), start in member.planned.items()
        if held == topic and number in {None, partition}
    ]
    return min(starts, default=SPACE), member.member_id
