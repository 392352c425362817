"""The records of one partition in a Fetch response, for each lane of the partition."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from proxy.cooperative.batches import (
    HEADER_BYTES,
    MAGIC_AT,
    BatchError,
    Header,
    check_magic,
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
