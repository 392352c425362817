"""Slots: what each member has committed of the partitions that it shares with others.

The map of a partition (see `positions`) has the offsets of all members, and each of them writes all of it. So
a commit would put back what others have committed since its map was read: through another gateway, or through
this one, if the broker takes the commit of a killed member only after the next one. So each member has a
*slot* for itself: the committed offset of one partition of another topic, the topic of slots, in the same
group. Only its metadata is used. The offset itself is -1 in __consumer_offsets, which tools from Kafka 3.0 on
show as no offset. In a topic that was made for slots it is 0, the end of an empty partition.

A commit of a member writes its slot and the map in one request. The coordinator accepts all of it or nothing,
and only from a member of the present generation. So a slot is never written by a member that its group has
removed, and no commit is lost that a member was told of. The map then has the latest offsets of all members
as far as they were known: it is for consumers without a gateway, and it can only be too low.

Each generation has a `Plan`. A slot is valid for a partition if it has the same plan as the partition's map.
So what tools and consumers without a gateway commit makes slots invalid, as they write no plan.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from proxy.features.cooperative.positions import (
    MOST_CHARACTERS,
    PLAN_BYTES,
    Committed,
    Positions,
    TopicPartition,
    from_text,
    read_steps,
    read_uvarint,
    to_text,
    write_uvarint,
)
from proxy.features.cooperative.ranges import KeyRanges

MAX_SLOTS: Final = 1024
"""The largest number of slots that is read. A group of more members has no slots."""
_PREFIX: Final = "fgs1:"
_HASH_BYTES: Final = 4


class Stored(NamedTuple):
    """What a slot has of one partition, in the plan with this id."""

    plan: int
    ranges: KeyRanges
    """The key ranges of the member that has written the slot."""
    positions: Positions
    """The committed offset of each hash within the ranges. Other hashes have any offset."""


Slot = dict[TopicPartition, Stored]
"""The content of a slot."""


class Seat(NamedTuple):
    """The slot of a member in a generation: its number, of how many slots, in the plan with this id."""

    plan: int
    slots: int
    number: int
    places: frozenset[TopicPartition]
    """The partitions that several members share. Of the member's partitions these are in its slot."""
    several: bool = False
    """Whether the members are behind several gateways."""


def narrowed(positions: Positions, ranges: KeyRanges) -> Positions:
    """Return a map with as few steps as possible outside the ranges."""
    return Positions.all_at(positions.lowest(ranges)).within(positions, ranges)


def slot_metadata(slot: Slot, most: int = MOST_CHARACTERS) -> str:
    """Return the text of a slot, with up to `most` UTF-16 units.

    The last partitions are the most important ones: if not all have room, the first are left out. Of these
    the maps are then used alone.
    """
    parts = [_written(place, stored) for place, stored in slot.items()]
    while parts and len(text := _PREFIX + to_text(b"".join(parts))) > most:
        del parts[0]
    return text if parts else _PREFIX


def read_slot(text: str) -> Slot:
    """Return the content of a slot. It is empty if the text is none of a slot."""
    if not text.startswith(_PREFIX):
        return {}
    found: Slot = {}
    try:
        data, at = from_text(text.removeprefix(_PREFIX).rstrip("\0")), 0
        while at < len(data):
            at = _read(data, at, found)
    except (ValueError, IndexError):
        return {}
    return found


def resolved(place: TopicPartition, committed: Committed, slots: Mapping[int, Slot]) -> Positions:
    """Return the committed offset of each hash of a partition, from its map and the slots of its plan."""
    positions, plan = committed.positions, committed.plan
    if plan is None:
        return positions
    for number, slot in slots.items():
        stored = slot.get(place)
        if number < plan.slots and stored is not None and stored.plan == plan.id:
            positions = positions.within(stored.positions, stored.ranges)
    return positions


def _written(place: TopicPartition, stored: Stored) -> bytes:
    topic, partition = place
    ranges = b"".join(bound.to_bytes(_HASH_BYTES) for one in stored.ranges for bound in one)
    return b"".join(
        (
            stored.plan.to_bytes(PLAN_BYTES),
            write_uvarint(len(topic)),
            topic,
            write_uvarint(partition),
            write_uvarint(len(stored.ranges)),
            ranges,
            stored.positions.written(),
        )
    )


def _read(data: bytes, at: int, found: Slot) -> int:
    """Read one partition of a slot into `found`. Return where it ends."""
    plan, at = _number(data, at, PLAN_BYTES), at + PLAN_BYTES
    size, at = read_uvarint(data, at)
    topic, at = data[at : at + size], at + size
    partition, at = read_uvarint(data, at)
    count, at = read_uvarint(data, at)
    bounds = [_number(data, at + number * _HASH_BYTES, _HASH_BYTES) for number in range(2 * count)]
    ranges = tuple(zip(bounds[::2], bounds[1::2], strict=True))
    positions, at = read_steps(data, at + 2 * count * _HASH_BYTES)
    if all(low <= high for low, high in ranges):
        found[topic, partition] = Stored(plan, ranges, positions)
    return at


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size])


def seats(
    plan: int, members: Iterable[bytes], places: Iterable[TopicPartition], *, several: bool = False
) -> dict[bytes, Seat]:
    """Return the seat of each member of a group, by member id. Several members share each of the `places`."""
    order, shared = sorted(members), frozenset(places)
    return {
        member_id: Seat(plan, len(order), number, shared, several) for number, member_id in enumerate(order)
    }
