"""Split the records of one partition in a Fetch response into a part for each lane.

A client that gets no record requests the same offset again. So if a response has no record for its lane, the
gateway remembers the range of these offsets (`Scan`), and requests the offsets after it from the broker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from proxy.features.cooperative.batches import (
    HEADER_BYTES,
    MAGIC_AT,
    BatchError,
    Header,
    check_magic,
    placeholder,
    read_header,
    records_of,
    split_batch,
)
from proxy.features.cooperative.ranges import Split
from proxy.protocol.primitives import Buffer


@dataclass(slots=True)
class LaneRecords:
    """The records of one lane in a response."""

    batches: list[bytes] = field(default_factory=list)
    """Complete and in order."""
    last_kept: int = -1
    """The offset of the lane's last record, or -1 if there is none."""
    end: int = -1
    """The offset after the lane's last batch, or -1 if there is none."""
    last_marker: int = -1
    """The offset of the last transaction marker, or -1 if there is none. Every lane gets these markers."""
    records: int = 0
    untouched: int = 0
    """How many of `batches` are the broker's own batches, unchanged."""
    dropped: Header | None = None
    """The header of the last batch without a record for this lane. None if there is none, or if the lane got
    a later batch."""


@dataclass(slots=True)
class Filtered:
    """The records of a partition in one response, split by lane."""

    lanes: list[LaneRecords]
    end: int = -1
    """The offset after the last complete batch, or -1. All lanes are split up to this offset."""
    leader_epoch: int = -1
    """The leader epoch of the last complete batch."""
    batches: int = 0
    records: int = 0
    """The number of records in the complete batches."""
    alone: bytes = b""
    """The header of an incomplete batch, if the response has no other batch. It shows the client that its
    limit is too small."""

    def of(self, lane: LaneRecords) -> "Filtered":
        return replace(self, lanes=[lane])


def split_records(records: Buffer, split: Split, least: Sequence[int], offsets: Sequence[int]) -> Filtered:
    """Split the records of a partition into a part for each lane, from its fetch offset in `offsets` on.

    An incomplete batch at the end (KIP-74) is in no lane. Its records can't be assigned to lanes, and some
    clients would read the records before the cut. The next fetch returns the complete batch. If the response
    has no other batch, the header is kept in `alone`.

    A batch that ends before a lane's fetch offset is not in this lane. Brokers never send such a batch.
    Sarama would skip an offset for each of them, and KafkaJS for each response with one.

    For each step of the split, `least` is the lowest offset to keep: the fetch offset of the step's lane, or
    the committed offset of the step's hashes if that is higher.

    Raises:
        BatchError: a batch can't be split, so no lane may get it. The message has the offset of the batch.
    """
    found = Filtered([LaneRecords() for _ in split.lanes])
    records = memoryview(records)
    at, size = 0, len(records)
    while at + MAGIC_AT < size:
        try:
            check_magic(records[at + MAGIC_AT])
            if at + HEADER_BYTES > size:
                break
            header = read_header(records, at)
            if at + header.size > size:
                break
            shares = split_batch(records[at : at + header.size], header, split, least)
        except BatchError as error:
            offset = int.from_bytes(records[at : at + 8], signed=True)
            raise BatchError(f"the batch at offset {offset}: {error}") from None
        for lane, offset, (share, last) in zip(found.lanes, offsets, shares, strict=True):
            if share is None:
                lane.dropped = header
            elif header.last_offset >= offset:
                lane.batches.append(share)
                lane.end = header.last_offset + 1
                lane.last_kept, lane.dropped = max(last, lane.last_kept), None
                if header.is_marker:
                    lane.last_marker = header.last_offset
                lane.records += records_of(share)
                lane.untouched += records_of(share) == header.records
        found.end, found.leader_epoch = header.last_offset + 1, header.leader_epoch
        found.batches += 1
        found.records += header.records
        at += header.size
    if found.end < 0 and size:
        found.alone = bytes(records[:HEADER_BYTES])
    return found


def end_of(records: Buffer) -> int:
    """Return the offset after the last complete batch, or -1. Only the headers are read."""
    at, size, end = 0, len(records), -1
    while at + HEADER_BYTES <= size:
        try:
            header = read_header(records, at)
        except BatchError:
            break
        if at + header.size > size:
            break
        end = header.last_offset + 1
        at += header.size
    return end


@dataclass(frozen=True, slots=True)
class Scan:
    """A range of offsets, `low` to `high` - 1, without records for the lane and without transaction markers.

    The range begins after the lane's last record and after the last transaction marker. So a client that has
    lost a response gets its records and markers when it sends the fetch again.
    """

    low: int = -1
    high: int = -1
    leader_epoch: int = -1
    """The epoch of the last batch in this range. A fetch from `high` sends it as last_fetched_epoch
    (KIP-595). If it sent the client's own, older epoch, the broker would report a divergence."""
    dropped: Header | None = None
    """The header of the last batch in this range that has no record for the lane."""

    def after(self, offset: int) -> int:
        """Return the offset to request from the broker if the client requests `offset`."""
        return self.high if self.low <= offset < self.high else offset

    def learned(self, offset: int, found: Filtered, lane: LaneRecords) -> "Scan":
        """Return the range extended by the result of a response to a fetch from the client's `offset`."""
        low = max(offset, lane.last_kept + 1, lane.last_marker + 1)
        if found.end <= low:
            return self
        before = self if self.low <= low <= self.high else Scan(low, low)
        dropped = lane.dropped or before.dropped
        if found.end <= before.high:
            return replace(before, dropped=dropped)
        return Scan(before.low, found.end, found.leader_epoch, dropped)

    def placeholder(self, offset: int) -> bytes:
        """Return a batch without data that moves a client from an offset to `high`, or b"" if none is needed.

        Clients of Fetch v12 and later accept such a batch. It shows them their lag and the end of the
        partition. `offset` is the end of the last batch in the response, or the fetch offset if there is
        none: no two batches may have the same end (see `split_records`).
        """
        if self.dropped is None or not self.low <= offset < self.high:
            return b""
        return placeholder(offset, self.high - 1, self.dropped)


NO_SCAN: Final = Scan()
