"""A map from each hash of a partition's keys to the next offset of that hash.

A cooperative group commits this map instead of one offset. The committed offset in Kafka is the lowest offset
of the map. The map itself is in the metadata of the commit (`committed_metadata`). A consumer that uses only
the committed offset reads some records again, but misses none.

If several members share a partition, what each of them has committed is also in its slot (see `slots`). The
map then has the `Plan` of the generation in which it was made.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Self, TypeAlias

from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.ranges import KeyRanges

MOST_CHARACTERS: Final = 4095
"""The maximum length of the metadata, in UTF-16 units: Kafka's default of offset.metadata.max.bytes, minus
one for the NUL that confluent-kafka appends."""
_STEP_CHARACTERS: Final = 18
"""The maximum number of base64 characters that one step needs. They hold the step's first hash, and up to 9
bytes of its offset."""
_HIGHEST: Final = 2**63 - 1
_PREFIX: Final = "fg1:"
_FORMAT: Final = b"\1\1"
"""The format of a map, and its hash function: murmur2."""
_PLANNED: Final = b"\2\1"
"""The same for a map with a plan. Earlier versions ignore it, so all hashes have the committed offset."""
PLAN_BYTES: Final = 8
_OWN: Final = ";"
"""The separator between the map and the application's own metadata."""


TopicPartition: TypeAlias = tuple[bytes, int]
"""A topic's name and a partition number."""


class Plan(NamedTuple):
    """What the members of a generation have in common, if they share partitions."""

    id: int
    """A number of 64 bits that no other plan has."""
    slots: int
    """How many slots the members have (see `slots`), numbered from 0 on."""


class Positions:
    """An immutable map from all hashes to their next offsets.

    The map consists of steps: intervals of hashes with the same offset. The first step begins with hash 0.
    Neighbouring steps have different offsets.
    """

    __slots__ = ("offsets", "starts")

    def __init__(self, starts: Sequence[int], offsets: Sequence[int]) -> None:
        steps = [place for place in range(len(starts)) if not place or offsets[place] != offsets[place - 1]]
        self.starts = tuple(starts[place] for place in steps)
        self.offsets = tuple(offsets[place] for place in steps)

    @classmethod
    def all_at(cls, offset: int) -> Self:
        return cls((0,), (offset,))

    def __repr__(self) -> str:
        return f"<Positions base={self.base} steps={len(self.starts)}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Positions):
            return NotImplemented
        return (self.starts, self.offsets) == (other.starts, other.offsets)

    def __hash__(self) -> int:
        return hash((self.starts, self.offsets))

    @property
    def base(self) -> int:
        """The lowest offset of the map. All records before this offset are processed."""
        return min(self.offsets)

    def at(self, hashed: int) -> int:
        return self.offsets[bisect_right(self.starts, hashed) - 1]

    def lowest(self, ranges: KeyRanges) -> int:
        """Return the lowest next offset in some key ranges: their owner begins to fetch there."""
        return min(offset for low, high in ranges for offset in self._within(low, high))

    def highest(self, ranges: KeyRanges) -> int:
        return max(offset for low, high in ranges for offset in self._within(low, high))

    def at_least(self, other: "Positions", ranges: KeyRanges) -> "Positions":
        """Return a map with the higher offset of the two maps within the ranges, and this map's elsewhere."""
        return self._changed(ranges, other, lambda start: max(self.at(start), other.at(start)))

    def moved(self, ranges: KeyRanges, offset: int) -> "Positions":
        """Return the map after the owner of key ranges has committed an offset. It may be a lower one."""
        return self.within(Positions.all_at(offset), ranges)

    def within(self, other: "Positions", ranges: KeyRanges) -> "Positions":
        """Return a map with another map's offsets within the ranges, and this map's offsets elsewhere."""
        return self._changed(ranges, other, other.at)

    def _changed(self, ranges: KeyRanges, other: "Positions", offset: Callable[[int], int]) -> "Positions":
        ends = {bound for low, high in ranges for bound in (low, high + 1)} - {SPACE}
        owned = sorted(ranges)
        lows = [low for low, _ in owned]
        highs = list(accumulate((high for _, high in owned), max))
        # Both maps may have steps of their own. Between these hashes, no offset changes.
        starts, offsets = sorted({0, *self.starts, *other.starts, *ends}), []
        for start in starts:
            place = bisect_right(lows, start) - 1
            inside = place >= 0 and start <= highs[place]
            offsets.append(offset(start) if inside else self.at(start))
        return Positions(starts, offsets)

    def fitted(self, most: int, plan: Plan | None = None) -> "Positions":
        """Return this map, or a coarser one whose text has at most `most` characters.

        A map with only one step may be longer. Neighbouring steps with the smallest loss are merged, and get
        the lower offset of the two steps. So some records may be read again, but none is lost.
        """
        found = self
        while len(found.starts) > 1 and (over := len(found.encoded(plan)) - most) > 0:
            found = found._merged(max(over // _STEP_CHARACTERS, 1))
        return found

    def _merged(self, number: int) -> "Positions":
        # A step is in one pair at most. Both steps of a pair get the lower of their offsets.
        sizes = [high - low for low, high in pairwise([*self.starts, SPACE])]
        losses = [
            (one - two) * sizes[place] if one > two else (two - one) * sizes[place + 1]
            for place, (one, two) in enumerate(pairwise(self.offsets))
        ]
        offsets = list(self.offsets)
        taken: set[int] = set()
        for place in sorted(range(len(losses)), key=losses.__getitem__):
            if place in taken or place + 1 in taken:
                continue
            taken |= {place, place + 1}
            offsets[place] = offsets[place + 1] = min(offsets[place : place + 2])
            if len(taken) == 2 * number:
                break
        return Positions(self.starts, offsets)

    def encoded(self, plan: Plan | None = None) -> str:
        """Return the map as text for the metadata of a commit, with a plan if there is one."""
        head = _FORMAT
        if plan is not None:
            head = _PLANNED + plan.id.to_bytes(PLAN_BYTES) + write_uvarint(plan.slots)
        return _PREFIX + to_text(head + self.written())

    def written(self) -> bytes:
        """Return the steps as bytes, for `read_steps`."""
        base = self.base
        parts = [write_uvarint(base), write_uvarint(len(self.starts))]
        for start, offset in zip(self.starts, self.offsets, strict=True):
            parts += [start.to_bytes(4), write_uvarint(offset - base)]
        return b"".join(parts)

    def _within(self, low: int, high: int) -> Iterable[int]:
        return self.offsets[bisect_right(self.starts, low) - 1 : bisect_right(self.starts, high)]


class Committed(NamedTuple):
    """The data that Kafka stores for a partition of the group: the map, and the application's metadata."""

    positions: Positions
    metadata: str
    plan: Plan | None = None


def committed_metadata(
    positions: Positions, own: str, most: int = MOST_CHARACTERS, plan: Plan | None = None
) -> str:
    """Return the metadata to commit with the offset `positions.base`: up to `most` UTF-16 units.

    If the map does not fit, it is stored less exactly, with fewer steps. A map with only one step and without
    a plan is left out, because the offset says the same. The application's `own` metadata is never shortened.
    If it alone exceeds the limit, the result does, too, and the broker may refuse the commit (error 12).
    """
    beside = _OWN + own if own else ""
    left = most - utf16_units(beside)
    found = positions.fitted(left, plan)
    if (len(found.starts) == 1 and plan is None) or len(text := found.encoded(plan)) > left:
        return without_map(own)
    return text + beside


def without_map(own: str) -> str:
    """Return the metadata for a commit without a map. It is marked if it could be mistaken for a map."""
    return _PREFIX + _OWN + own if own.startswith(_PREFIX) else own


def read_committed(offset: int, metadata: str) -> Committed:
    """Parse the data that Kafka stores for a partition of the group.

    The map is ignored if its lowest offset is not the committed offset. In that case a tool has reset the
    offset, a mirror has translated it, or a client without the gateway has committed. The map is also ignored
    if it can't be read or has another hash function. Without a map, all hashes have the committed offset.
    """
    own = metadata
    if metadata.startswith(_PREFIX):
        encoded, _, own = metadata.partition(_OWN)
        # confluent-kafka appends a NUL to the metadata, and needs it back.
        found = _decoded(encoded.removeprefix(_PREFIX).rstrip("\0"))
        if found is not None and found[0].base == offset:
            return Committed(found[0], own, found[1])
    return Committed(Positions.all_at(offset), own)


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 units, as brokers count it (offset.metadata.max.bytes)."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _decoded(text: str) -> tuple[Positions, Plan | None] | None:
    try:
        data, at, plan = from_text(text), len(_FORMAT), None
        if data.startswith(_PLANNED):
            end = at + PLAN_BYTES
            slots, at = read_uvarint(data, end)
            plan = Plan(int.from_bytes(data[end - PLAN_BYTES : end]), slots)
        elif not data.startswith(_FORMAT):
            return None
        positions, at = read_steps(data, at)
    except (ValueError, IndexError):  # the text is no valid base64, or not ASCII, or incomplete
        return None
    return (positions, plan) if at == len(data) else None


def read_steps(data: bytes, at: int) -> tuple[Positions, int]:
    """Read a map that `Positions.written` has made. Return it, and where it ends.

    Raises:
        ValueError: it is not such a map.
        IndexError: it is cut off.
    """
    base, at = read_uvarint(data, at)
    count, at = read_uvarint(data, at)
    starts, offsets = [], []
    for _ in range(count):
        starts.append(int.from_bytes(data[at : at + 4]))
        more, at = read_uvarint(data, at + 4)
        offsets.append(base + more)
    ascend = starts[:1] == [0] and all(low < high for low, high in pairwise(starts))
    if not ascend or min(offsets) != base or max(offsets) > _HIGHEST:
        raise ValueError("the ranges do not cover all hashes")
    return Positions(starts, offsets), at


def to_text(data: bytes) -> str:
    """Return bytes as text for the metadata of a commit."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def from_text(text: str) -> bytes:
    """Return the bytes of a text of `to_text`. Raise ValueError if it is not base64."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def write_uvarint(value: int) -> bytes:
    """Encode a number of up to 63 bits as a varint: 7 bits per byte, the lowest bits first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint. Return its value, and where it ends. Raise IndexError if it is cut off."""
    value = shift = 0
    while data[at] & 0x80 and shift < 63:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
