"""Counts the records in a connection's fetch responses by the hashes of their keys. Sans-IO.

It reads batches like the gateway for cooperative groups, with the same codecs and limits. The codecs need the
extra `cooperative`. So this module is imported only with ``--cooperative``.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Final

from proxy.features.cooperative.batches import (
    HEADER_BYTES,
    MAGIC_AT,
    BatchError,
    Header,
    check_magic,
    read_header,
    read_keys,
)
from proxy.features.cooperative.key_hash import murmur2_of
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Reason
from replay.measure.spread import Delivered, TopicCounts, stretches
from replay.simulate.outcome import Outcome

_MOST_STRETCHES: Final = 256


class Offsets:
    """The offsets of a partition that were counted, as ordered intervals.

    Only a log that is compacted or has transactions has many. If there are too many, the lowest two are
    joined, and the gap between them counts as counted.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __repr__(self) -> str:
        return f"<Offsets {[*zip(self._starts, self._ends, strict=True)]}>"

    def has(self, first: int, end: int) -> bool:
        """Return whether all offsets from `first` up to `end` (exclusive) were added."""
        at = bisect_right(self._starts, first) - 1
        return at >= 0 and end <= self._ends[at]

    def add(self, first: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        low, high = bisect_left(ends, first), bisect_right(starts, end)
        if low < high:
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [first], [end]
        if len(starts) > _MOST_STRETCHES:
            del starts[1], ends[0]


class KeyLog:
    """Counts the records of one connection. A batch counts once, even if it is fetched again."""

    def __init__(self, members: int) -> None:
        self._split = stretches(members)
        self._counted: defaultdict[tuple[str, str, int], Offsets] = defaultdict(Offsets)
        self.delivered = Delivered()

    def __repr__(self) -> str:
        return f"<KeyLog topics={len(self.delivered.topics)} groups={sorted(self.delivered.groups)}>"

    def add(self, outcome: Outcome) -> None:
        request, response = outcome.request, outcome.response
        if request is None or response is None:
            self.delivered.unread += outcome.exchange.response_bytes
            return
        if request.unsupported_reason == Reason.NOT_A_CONSUMER or response.walk.error_code:
            return
        ids = response.layout.topic_ids
        names = {
            key: ("id", key.hex()) if ids else ("topic", key.decode(errors="replace"))
            for key, _ in response.walk.elements
        }
        for run in response.walk.runs:
            numbers = run.entries.view(response.layout.response_fields)["partition"]
            self.delivered.topic(names[run.key]).partitions.update(numbers.tolist())
        with_records = []
        for entry in response.walk.entries:
            if not entry.error_code:
                self.delivered.topic(names[entry.key]).partitions.add(entry.partition)
            if entry.records:
                with_records.append(entry)
        if not with_records:
            return
        frame = b"".join(outcome.exchange.response)
        walk = FetchResponseWalk(response.layout, request.isolation_level, keep=False, spans=True)
        walk.feed(frame)
        for entry, (start, end) in zip(with_records, walk.record_spans or [], strict=True):
            self._add_records(names[entry.key], entry.partition, memoryview(frame)[start:end])

    def _add_records(self, name: tuple[str, str], partition: int, records: memoryview) -> None:
        counted = self._counted[*name, partition]
        at, size = 0, len(records)
        while at + MAGIC_AT < size:
            try:
                check_magic(records[at + MAGIC_AT])
                if at + HEADER_BYTES > size:
                    return
                header = read_header(records, at)
            except BatchError:
                self.delivered.unread += size - at
                return
            end = at + header.size
            if end > size:  # it is incomplete here, and is fetched again
                return
            begins, ends = header.base_offset, header.last_offset + 1
            if header.has_keys and not counted.has(begins, ends):
                try:
                    self._add_batch(self.delivered.topic(name), partition, records[at:end], header)
                    counted.add(begins, ends)
                except BatchError:
                    self.delivered.unread += header.size
            at = end

    def _add_batch(self, topic: TopicCounts, partition: int, batch: Buffer, header: Header) -> None:
        _, at, keys, ends = read_keys(batch, header, self._split)
        found: dict[bytes | int, list[int]] = {}
        for key, end in zip(keys, ends, strict=True):
            count = found.get(key)
            if count is None:
                found[key] = [1, end - at]
            else:
                count[0] += 1
                count[1] += end - at
            at = end
        topic.partitions.add(partition)
        if partition not in topic.records:
            topic.records[partition] = [0] * len(self._split.starts)
            topic.sizes[partition] = [0] * len(self._split.starts)
        by_step, sizes = topic.records[partition], topic.sizes[partition]
        hashes = murmur2_of([key for key in found if isinstance(key, bytes)])
        for key, (records, size) in found.items():
            if isinstance(key, bytes):
                topic.keys.add(partition, hashes[key], records, size)
                step = self._split.step_of(hashes[key])
            else:
                step = key
            by_step[step] += records
            sizes[step] += size
