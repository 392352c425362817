"""Measures how evenly keys would be distributed over the members of a cooperative group. Sans-IO.

Records are counted by intervals of hashes. For the chosen number of members, a member's share of a partition
is the sum of some intervals (see `stretches`). Keys are not stored. Hashes of keys are not in any output.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeAlias

from proxy.features.cooperative.key_hash import MASK
from proxy.features.cooperative.plan import Joined, Lanes, cut, plan
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import Split
from replay.report.model import CooperativeRow, HottestKey, SpreadShare

MOST_KEYS: Final = 1024
"""The maximum number of keys of a topic that are counted separately. The same key in two partitions counts as
two keys. With more keys, some counts include several keys."""
_APART: Final = 0x9E3779B1
"""A factor that makes the hashes of a key differ by partition. The same key in two partitions may belong to
two members."""

TopicName: TypeAlias = tuple[str, str]
"""A topic in one of two forms: `("topic", name)` or `("id", hexadecimal digits of the topic id)`."""


@cache
def stretches(members: int) -> Split:
    """Return a split whose steps are the intervals of hashes for which records are counted.

    Any range that the gateway may assign, with this many members, consists of whole intervals.
    """
    shared_by = {
        parts for among in range(1, members + 1) for parts in (members // among, -(-members // among))
    }
    return Split((), cuts=[low for parts in shared_by for low, _ in cut(parts)])


@dataclass(slots=True, repr=False)
class KeyCounts:
    """Counts records and bytes by the hashes of keys.

    With more than `MOST_KEYS` keys, fewer leading bits of the hash are used, and one count may include
    several keys. So the largest count is never below that of the hottest key. The order of adding and merging
    makes no difference.
    """

    counts: dict[int, list[int]] = field(default_factory=dict)
    """The number of records and of their bytes, by the leading bits of the key's hash."""
    shift: int = 0
    """The number of trailing bits of the hash that are ignored."""

    def __repr__(self) -> str:
        return f"<KeyCounts keys={len(self.counts)} shift={self.shift}>"

    def add(self, partition: int, hashed: int, records: int, size: int) -> None:
        self._add((hashed ^ partition * _APART & MASK) >> self.shift, records, size)
        self._fit()

    def merge(self, other: "KeyCounts") -> None:
        self._coarsen(max(self.shift, other.shift))
        for key, (records, size) in other.counts.items():
            self._add(key >> self.shift - other.shift, records, size)
        self._fit()

    def _add(self, key: int, records: int, size: int) -> None:
        count = self.counts.setdefault(key, [0, 0])
        count[0] += records
        count[1] += size

    def _fit(self) -> None:
        while len(self.counts) > MOST_KEYS:
            self._coarsen(self.shift + 1)

    def _coarsen(self, shift: int) -> None:
        if shift == self.shift:
            return
        before, self.counts = self.counts, {}
        for key, (records, size) in before.items():
            self._add(key >> shift - self.shift, records, size)
        self.shift = shift


@dataclass(slots=True)
class TopicCounts:
    """The records of one topic."""

    partitions: set[int] = field(default_factory=set)
    """The numbers of all partitions in the responses, also of those without records, but not of those that
    only had errors."""
    records: dict[int, list[int]] = field(default_factory=dict)
    """The numbers of records. For each partition there is one number for each interval of hashes."""
    sizes: dict[int, list[int]] = field(default_factory=dict)
    """The uncompressed sizes in bytes of the records in `records`, in the same form."""
    keys: KeyCounts = field(default_factory=KeyCounts)

    def merge(self, other: "TopicCounts") -> None:
        self.partitions |= other.partitions
        for mine, others in ((self.records, other.records), (self.sizes, other.sizes)):
            for partition, counts in others.items():
                before = mine.get(partition)
                mine[partition] = [*map(sum, zip(before, counts, strict=True))] if before else counts.copy()
        self.keys.merge(other.keys)


@dataclass(slots=True)
class Delivered:
    """The records that brokers sent to clients."""

    groups: set[str] = field(default_factory=set)
    """The names of the consumer groups in the clients' requests."""
    topics: dict[TopicName, TopicCounts] = field(default_factory=dict)
    unread: int = 0
    """Bytes of responses and batches that could not be read."""

    def topic(self, name: TopicName) -> TopicCounts:
        return self.topics.setdefault(name, TopicCounts())

    def merge(self, other: "Delivered") -> None:
        self.groups |= other.groups
        for name, counts in other.topics.items():
            self.topic(name).merge(counts)
        self.unread += other.unread


def spread_row(
    members: int, delivered: Delivered, *, group: str | None = None, client_id: str | None = None
) -> CooperativeRow:
    """Return how evenly the keys of a group, or of a client id, would be distributed over its members."""
    topics = {f"{kind}:{name}": counts for (kind, name), counts in delivered.topics.items()}
    lanes = _lanes(members, {name: counts.partitions for name, counts in topics.items()})
    partitions = [counts.partitions for counts in topics.values()]
    starts = stretches(members).starts
    shares = [[0, 0] for _ in lanes]
    for share, own in zip(shares, lanes, strict=True):
        for (name, partition), ranges in own.items():
            counts = topics[name.decode()]
            for low, high in ranges if partition in counts.records else ():
                among = slice(bisect_left(starts, low), bisect_left(starts, high + 1))
                share[0] += sum(counts.records[partition][among])
                share[1] += sum(counts.sizes[partition][among])
    records, size = (sum(column) for column in zip(*shares, strict=True))
    spread = [SpreadShare(records=_part(one, records), bytes=_part(part, size)) for one, part in shares]
    hottest = _hottest([counts.keys for counts in topics.values()], records, size)
    return CooperativeRow(
        group=group,
        client_id=client_id,
        records=records,
        bytes=size,
        records_without_key=records
        - sum(count for one in topics.values() for count, _ in one.keys.counts.values()),
        unread_bytes=delivered.unread,
        partitions=sum(map(len, partitions)),
        shared_partitions=sum(len(numbers) for numbers in partitions if len(numbers) < members),
        spread=spread if records else [],
        evenness=SpreadShare(
            records=members * max(share["records"] for share in spread),
            bytes=members * max(share["bytes"] for share in spread),
        )
        if records
        else None,
        hottest_key=hottest,
        bound=1 / hottest["records"] if hottest else None,
    )


def _part(count: int, whole: int) -> float:
    return count / whole if whole else 0.0


def _hottest(topics: Iterable[KeyCounts], records: int, size: int) -> HottestKey | None:
    topics = [keys for keys in topics if keys.counts]
    if not topics:
        return None
    counts = [count for keys in topics for count in keys.counts.values()]
    return HottestKey(
        records=max(count for count, _ in counts) / records,
        bytes=max(part for _, part in counts) / size,
        exact=not any(keys.shift for keys in topics),
    )


def _lanes(members: int, topics: Mapping[str, Iterable[int]]) -> list[Lanes]:
    """Return the ranges that the gateway's plan would give to each member.

    Topics with fewer partitions than members are shared by key. The partitions of other topics are assigned
    by the leading client. This client is assumed to use Kafka's RangeAssignor.
    """
    names = [b"%02d" % number for number in range(members)]
    assigned: dict[bytes, list[TopicPartition]] = {name: [] for name in names}
    for topic, numbers in topics.items():
        partitions = sorted(numbers)
        each, more = divmod(len(partitions), members)
        begin = 0
        for place, name in enumerate(names):
            end = begin + each + (place < more)
            assigned[name] += [(topic.encode(), number) for number in partitions[begin:end]]
            begin = end
    subscribed = frozenset(topic.encode() for topic in topics)
    lanes = plan([Joined(name, subscribed) for name in names], assigned, shares=True)
    return [lanes[name] for name in names]
