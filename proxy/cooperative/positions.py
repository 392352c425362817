"""How far each hash of a partition is done: what a cooperative group commits in place of one offset.

Kafka keeps the lowest offset as the committed one, and the rest in the metadata beside it (`OffsetCommit`,
`committed_metadata`). So whoever reads Kafka's offset alone reads some records again, and misses none.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Self, TypeAlias

from proxy.cooperative.key_hash import SPACE
from proxy.cooperative.ranges import KeyRanges

MURMUR2, BY_OFFSET = 1, 2
"""The hashes of a map."""
MOST_CHARACTERS: Final = 4095
"""What a broker takes by default (offset.metadata.max.bytes counts UTF-16 units), but for the NUL that
confluent-kafka puts at the end."""
_STEP_CHARACTERS: Final = 18
"""What a step takes at most: its start, and up to 9 bytes of its offset, in base64."""
_HIGHEST: Final = 2**63 - 1
_PREFIX: Final = "fg1:"
_FORMAT: Final = 1
_OWN: Final = ";"
"""Before the application's own metadata."""


TopicPartition: TypeAlias = tuple[bytes, int]
"""A topic and a partition."""


class Positions:
    """The next offset of every hash: steps in order of hashes, of which the first begins with 0.

    A map is never changed. Neighbours have different offsets.

    Args:
        starts: the first hash of each step.
        offsets: its next offset.
        kind: `MURMUR2` or `BY_OFFSET`.
    """

    __slots__ = ("kind", "offsets", "starts")

    def __init__(self, starts: Sequence[int], offsets: Sequence[int], kind: int = MURMUR2) -> None:
        steps = [place for place in range(len(starts)) if not place or offsets[place] != offsets[place - 1]]
        self.starts = tuple(starts[place] for place in steps)
        self.offsets = tuple(offsets[place] for place in steps)
        self.kind = kind

    @classmethod
    def all_at(cls, offset: int, kind: int = MURMUR2) -> Self:
        """Return the map of a partition that was committed as a whole."""
        return cls((0,), (offset,), kind)

    def __repr__(self) -> str:
        return f"<Positions base={self.base} steps={len(self.starts)}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Positions):
            return NotImplemented
        return (self.starts, self.offsets, self.kind) == (other.starts, other.offsets, other.kind)

    def __hash__(self) -> int:
        return hash((self.starts, self.offsets, self.kind))

    @property
    def base(self) -> int:
        """The lowest offset: all before it are done, whatever their hash."""
        return min(self.offsets)

    def at(self, hashed: int) -> int:
        """Return the next offset of a hash."""
        return self.offsets[bisect_right(self.starts, hashed) - 1]

    def lowest(self, ranges: KeyRanges) -> int:
        """Return the lowest offset within ranges: where their owner begins to fetch."""
        return min(offset for low, high in ranges for offset in self._within(low, high))

    def highest(self, ranges: KeyRanges) -> int:
        """Return the highest offset within ranges."""
        return max(offset for low, high in ranges for offset in self._within(low, high))

    def at_least(self, other: "Positions", ranges: KeyRanges) -> "Positions":
        """Return the map that is as high as another one within ranges, or higher."""
        bounds = {0, *self.starts, *other.starts}
        for low, high in ranges:
            bounds |= {low, high + 1} - {SPACE}
        starts = sorted(bounds)
        offsets = [
            max(self.at(start), other.at(start))
            if any(low <= start <= high for low, high in ranges)
            else self.at(start)
            for start in starts
        ]
        return Positions(starts, offsets, self.kind)

    def moved(self, ranges: KeyRanges, offset: int) -> "Positions":
        """Return the map after the owner of these ranges committed an offset, lower ones as well."""
        bounds = {0, *self.starts}
        for low, high in ranges:
            bounds |= {low, high + 1} - {SPACE}
        starts = sorted(bounds)
        owned = sorted(ranges)
        lows = [low for low, _ in owned]
        offsets = []
        for start in starts:
            place = bisect_right(lows, start) - 1
            offsets.append(offset if place >= 0 and start <= owned[place][1] else self.at(start))
        return Positions(starts, offsets, self.kind)

    def fitted(self, most: int) -> "Positions":
        """Return a map of at most so many characters, with no step higher than it is here.

        The neighbours are merged that lose least, to the lower offset: records are read again, never lost.
        """
        found = self
        while len(found.starts) > 1 and (over := len(found.encoded()) - most) > 0:
            found = found._merged(max(over // _STEP_CHARACTERS, 1))
        return found

    def _merged(self, number: int) -> "Positions":
        """Return the map with so many pairs of neighbours merged, or as many as have no step in common."""
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
        return Positions(self.starts, offsets, self.kind)

    def encoded(self) -> str:
        """Return the map as text."""
        base = self.base
        parts = [bytes((_FORMAT, self.kind)), _uvarint(base), _uvarint(len(self.starts))]
        for start, offset in zip(self.starts, self.offsets, strict=True):
            parts += [start.to_bytes(4), _uvarint(offset - base)]
        return _PREFIX + urlsafe_b64encode(b"".join(parts)).decode().rstrip("=")

    def _within(self, low: int, high: int) -> Iterable[int]:
        return self.offsets[bisect_right(self.starts, low) - 1 : bisect_right(self.starts, high)]


class Committed(NamedTuple):
    """What Kafka holds of a partition, taken apart."""

    positions: Positions
    metadata: str
    """The application's own."""


def committed_metadata(positions: Positions, own: str, most: int = MOST_CHARACTERS) -> str:
    """Return the metadata to commit beside `positions.base`.

    Args:
        positions: the map. It gets coarser if it does not fit.
        own: the application's own metadata, which is never cut.
        most: UTF-16 units at most. If `own` alone has more, it goes alone: the broker refuses it (error 12).
    """
    beside = _OWN + own if own else ""
    left = most - utf16_units(beside)
    found = positions.fitted(left)
    if len(found.starts) == 1 or len(text := found.encoded()) > left:
        return without_map(own)
    return text + beside


def without_map(own: str) -> str:
    """Return the metadata to commit without a map: what the application gives is never taken for one."""
    return _PREFIX + _OWN + own if own.startswith(_PREFIX) else own


def read_committed(offset: int, metadata: str, kind: int = MURMUR2) -> Committed:
    """Read what Kafka holds of a partition.

    A map counts only if it fits to the offset beside it. After a reset by a tool, by a mirror that translates
    offsets, or by a plain client's commit it does not: then all hashes are at that offset.

    Args:
        offset: the committed offset.
        metadata: what is beside it.
        kind: the hash of the group.
    """
    own = metadata
    if metadata.startswith(_PREFIX):
        encoded, _, own = metadata.partition(_OWN)
        # confluent-kafka ends what it commits with a NUL, and needs it back.
        positions = _decoded(encoded.removeprefix(_PREFIX).rstrip("\0"), kind)
        if positions is not None and positions.base == offset:
            return Committed(positions, own)
    return Committed(Positions.all_at(offset, kind), own)


def utf16_units(text: str) -> int:
    """Return the length of a text as a broker counts it (offset.metadata.max.bytes)."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _decoded(text: str, kind: int) -> Positions | None:
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if data[:2] != bytes((_FORMAT, kind)):
            return None
        base, at = _read_uvarint(data, 2)
        count, at = _read_uvarint(data, at)
        starts, offsets = [], []
        for _ in range(count):
            starts.append(int.from_bytes(data[at : at + 4]))
            more, at = _read_uvarint(data, at + 4)
            offsets.append(base + more)
    except (ValueError, IndexError):  # not base64, not ASCII, or cut off
        return None
    if max(offsets, default=0) > _HIGHEST:
        return None
    ascend = starts[:1] == [0] and all(low < high for low, high in pairwise(starts))
    if at != len(data) or not ascend or min(offsets) != base or len(starts) != len(offsets):
        return None
    return Positions(starts, offsets, kind)


def _uvarint(value: int) -> bytes:
    """Write an offset, which may have 63 bits: 7 bits per byte, the low ones first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80 and shift < 63:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
