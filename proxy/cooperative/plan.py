"""Who has which lane: a pure function of a group's members, what they held, and the partitions.

A topic with at most as many subscribers as partitions keeps the assignment of the client that leads the
group. A topic with more gives one partition to each subscriber. As many share each partition, or one more,
and its hashes are cut into equal parts, in the order in which they held them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from proxy.cooperative.key_hash import SPACE
from proxy.cooperative.positions import TopicPartition
from proxy.cooperative.ranges import FULL, KeyRange, KeyRanges, overlap, within

Lanes: TypeAlias = dict[TopicPartition, KeyRanges]
"""What one member has."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member as the leader of its group sees it."""

    member_id: bytes
    topics: frozenset[bytes]
    """That it subscribes to."""
    planned: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first hash of what it was to have of partitions in the last plan."""
    held: Mapping[TopicPartition, KeyRanges] = field(default_factory=dict)
    """What it has: its client may go on from where it is."""
    owned: frozenset[TopicPartition] = frozenset()
    """What its client goes on to process while the group rebalances (incremental rebalancing)."""
    unknown: bool = False
    """It may have anything: this process does not know."""
    keeps: bool = False
    """Its client goes on where it is in what it had and gets again, with the records that it has in hand."""


def plan(
    members: Sequence[Joined], assigned: Mapping[bytes, Sequence[TopicPartition]], *, shares: bool
) -> dict[bytes, Lanes]:
    """Return the lanes of each member, by member id.

    Args:
        members: all that have joined.
        assigned: what the leading client has assigned to each: no partition to two members. With incremental
            rebalancing it leaves out what some member still has and another one is to get.
        shares: partitions may be shared; otherwise the assignment stays as it is.
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
    """Return the lanes that a member gets at once; it joins again for the others.

    A client may keep its position in a partition that it had and gets again (incremental rebalancing; some do
    always). It would never read what lies before that of ranges that are new to it. So it first gets nothing
    of such a partition, and then begins from the committed offset. With incremental rebalancing it also goes
    on with records of ranges that are not its own any more, and does not commit them before. So it keeps a
    partition only with the same ranges, and nobody gets what another one still has. A client that `keeps`
    what it has in hand does so too; it processes nothing while it joins.
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
    """Whether a client may have these ranges, wherever it is in the partition."""
    if place in member.owned or (member.keeps and place in member.held):
        return ranges == member.held.get(place)
    return place not in member.held or within(ranges, member.held[place])


def cut(parts: int) -> list[KeyRange]:
    """Cut the space of hashes into equal parts, in order."""
    bounds = [number * SPACE // parts for number in range(parts + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _spread(topic: bytes, numbers: Sequence[int], members: Sequence[Joined]) -> dict[int, list[Joined]]:
    """Give each member one partition: the one that it held, as far as all get equally many members."""
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
    """Sort members by what they held, of one partition or of any; those that held nothing come last."""
    starts = [
        start
        for (held, partition), start in member.planned.items()
        if held == topic and number in {None, partition}
    ]
    return min(starts, default=SPACE), member.member_id
