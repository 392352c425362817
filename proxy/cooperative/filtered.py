"""The records of one partition in a Fetch response, for each lane of the partition.

A client that gets no record requests the same offset again. Instead of inventing a record, the gateway
requests the next offsets from the broker: a `Scan` has the offsets without records for a lane.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from proxy.cooperative.batches import (
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
from proxy.cooperative.ranges import Split
from proxy.protocol.primitives import Buffer


@dataclass(slots=True)
class LaneRecords:
    """The records of one lane."""

    batches: list[bytes] = field(default_factory=list)
    """Complete batches, in order."""
    last_kept: int = -1
    """The offset of its last record, or -1 without a record."""
    end: int = -1
    """The offset after its last batch, or -1 without a batch."""
    last_marker: int = -1
    """The offset of the last end of a transaction, or -1 without one. All lanes get these."""
    records: int = 0
    untouched: int = 0
    """How many of `batches` are unchanged."""
    dropped: Header | None = None
    """The last batch without a record for this lane, if it comes after all batches of the lane."""


@dataclass(slots=True)
class Filtered:
    """The lanes' shares of a response."""

    lanes: list[LaneRecords]
    end: int = -1
    """The offset after the last complete batch, or -1 without one. All lanes are served up to it."""
    leader_epoch: int = -1
    """The epoch of that batch."""
    batches: int = 0
    records: int = 0
    """The number of complete batches, and of records in them."""
    alone: bytes = b""
    """The header of an incomplete batch, if it is the only one. It shows the client that its limit is too
    small."""

    def of(self, lane: LaneRecords) -> "Filtered":
        """Return the shares with only one lane."""
        return replace(self, lanes=[lane])


def split_records(
    records: Buffer, split: Split, least: Sequence[int], offsets: Sequence[int], *, recompress: bool = True
) -> Filtered:
    """Split the records of a partition.

    An incomplete batch at the end (KIP-74) goes to no lane, because some clients would read the records
    before the cut, and their owners are unknown. The next fetch returns the batch completely. If it is the
    only batch, its header is kept.

    No lane gets a batch that ends before its fetch offset. A broker never sends one, and some clients then
    skip an offset: Sarama for each batch that it already has, KafkaJS for each such response.

    Args:
        records: the records of the response.
        split: the lanes.
        least: for each step of the split, the lowest offset to keep. It is the fetch offset of its lane, or
            the committed offset of its hashes.
        offsets: the fetch offset of each lane.
        recompress: whether to compress changed batches with their codec. If not, they are not compressed.

    Raises:
        BatchError: a batch can't be split, so no lane may get it. The text has its offset.
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
            shares = split_batch(records[at : at + header.size], header, split, least, recompress=recompress)
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
    """Return the offset after the last complete batch, or -1 without one. Only headers are read."""
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


@dataclass(slots=True)
class Scan:
    """Offsets from `low` to `high` - 1, without a record for the lane and without an end of a transaction.

    A client that has lost a response requests such an end again.
    """

    low: int = -1
    high: int = -1
    leader_epoch: int = -1
    """The epoch of the last batch in this range. A fetch from `high` sends it as last_fetched_epoch
    (KIP-595). With the client's own, older epoch, the broker would report a divergence."""
    dropped: Header | None = None
    """The last batch in this range without a record for the lane."""

    def after(self, offset: int) -> int:
        """Return the fetch offset for the broker, for a client's fetch offset."""
        return self.high if self.low <= offset < self.high else offset

    def learn(self, offset: int, found: Filtered, lane: LaneRecords) -> None:
        """Update the scan from a response.

        Args:
            offset: the client's fetch offset.
            found: the split response.
            lane: the lane's share of it.
        """
        low = max(offset, lane.last_kept + 1, lane.last_marker + 1)
        if found.end <= low:
            return
        if not self.low <= low <= self.high:
            self.low, self.high, self.dropped = low, low, None
        self.dropped = lane.dropped or self.dropped
        if found.end > self.high:
            self.high, self.leader_epoch = found.end, found.leader_epoch

    def forget(self) -> None:
        """Forget the scan, because the log or the lane has changed (errors 1, 3, 6, 74, 75, 100, 103 ...)."""
        self.low = self.high = self.leader_epoch = -1
        self.dropped = None

    def placeholder(self, offset: int) -> bytes:
        """Return a batch without data that moves a client from an offset to `high`, or b"" if none is needed.

        Clients of Fetch v12 and later accept it. So they see their lag and the end of the partition.

        Args:
            offset: the end of the last batch in the response, or the fetch offset if there is none. No two
                batches may have the same end: see `split_records`.
        """
        if self.dropped is None or not self.low <= offset < self.high:
            return b""
        return placeholder(offset, self.high - 1, self.dropped)
