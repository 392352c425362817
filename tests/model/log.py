"""Topics and partitions with their logs. The model never reads the contents of batches."""

from dataclasses import dataclass, field
from itertools import takewhile

INDEX_INTERVAL = 4096
"""The number of bytes between two entries of a segment's sparse offset index (``index.interval.bytes``)."""


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    last_offset: int
    data: bytes


@dataclass(slots=True)
class Segment:
    """Consecutive batches of a log. A read ends at the end of a segment."""

    base_offset: int
    batches: list[Batch] = field(default_factory=list)
    index: list[tuple[int, int]] = field(default_factory=list)
    """The offset index: for some batches, the last offset of the batch and the position of the batch."""
    unindexed: int = 0

    @property
    def size(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    def position(self, offset: int) -> int:
        """Return the position of the batch that contains `offset`, or of the next batch."""
        return sum(len(b.data) for b in takewhile(lambda b: b.last_offset < offset, self.batches))

    def append(self, batch: Batch) -> None:
        if self.unindexed > INDEX_INTERVAL:
            self.index.append((batch.last_offset, self.size))
            self.unindexed = 0
        self.batches.append(batch)
        self.unindexed += len(batch.data)


@dataclass(slots=True)
class Partition:
    """A partition of the modelled broker.

    It is a replica, or only the metadata of a replica on another broker.
    """

    leader: int
    leader_epoch: int = 0
    hosted: bool = True
    log_start: int = 0
    segments: list[Segment] = field(default_factory=lambda: [Segment(0)])
    log_end: int = 0
    high_watermark: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """The first offset of each open transaction, by producer id."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """The aborted transactions. Each has the producer id, the first offset, and the offset of the abort
    marker."""
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """(leader epoch, its first offset), ascending."""
    preferred: dict[str, int] = field(default_factory=dict)
    """Rack of a consumer -> its preferred replica."""
    error: int = 0
    """The error code with which every read fails, set by tests. 0 for no error."""

    @property
    def last_stable_offset(self) -> int:
        return min([self.high_watermark, *self.open.values()])

    def append(
        self, data: bytes, *, count: int = 1, producer: int | None = None, replicated: bool = True
    ) -> int:
        """Append a batch of `count` records.

        If `producer` is given, the batch belongs to this producer's transaction.

        Returns:
            The base offset of the batch.
        """
        base = self.log_end
        self.segments[-1].append(Batch(base, base + count - 1, data))
        self.log_end = base + count
        if producer is not None:
            self.open.setdefault(producer, base)
        if replicated:
            self.high_watermark = self.log_end
        return base

    def end_transaction(self, producer: int, *, commit: bool, marker: bytes = b"marker") -> None:
        offset = self.append(marker)
        first = self.open.pop(producer)
        if not commit:
            self.aborted.append((producer, first, offset))

    def roll(self) -> None:
        """Start a new segment."""
        self.segments.append(Segment(self.log_end))

    def delete_records(self, before: int) -> None:
        """Move the log start offset up to `before`, like a DeleteRecords request.

        -1 means the high watermark.
        """
        self.log_start = max(self.log_start, self.high_watermark if before < 0 else before)

    def move_leader(self, leader: int, epoch: int) -> None:
        self.leader, self.leader_epoch = leader, epoch
        self.epochs.append((epoch, self.log_end))

    def end_of_epoch(self, wanted: int) -> tuple[int, int] | None:
        """Return the largest epoch not above `wanted` and its end offset (KIP-320). None if `wanted` is above
        all epochs.
        """
        later = [entry for entry in self.epochs if entry[0] > wanted]
        if wanted == self.epochs[-1][0]:
            return wanted, self.log_end
        if not later:
            return None
        earlier = [entry[0] for entry in self.epochs if entry[0] <= wanted]
        return (earlier[-1] if earlier else wanted), later[0][1]


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: bytes
    partitions: dict[int, Partition]
    zstd: bool = False
    """Whether ``compression.type`` of the topic is zstd."""
