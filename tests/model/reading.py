"""Reads the partitions of a fetch in the order of the request, within the byte limits of KIP-74."""

from dataclasses import dataclass

from tests.model.log import Partition, Segment
from tests.model.primitives import Tags
from tests.model.releases import Release
from tests.model.wire import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    PartitionData,
    current_leader_tag,
    diverging_epoch_tag,
)

UNKNOWN_SERVER_ERROR = -1
OFFSET_OUT_OF_RANGE = 1
NOT_LEADER_OR_FOLLOWER = 6
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
HINTED = (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH)
"""If an entry has one of these errors, it also has the new leader (KIP-951)."""


@dataclass(slots=True)
class Allowance:
    """The number of bytes that a fetch may still return."""

    limit: int
    first: bool
    """True until the first batch was returned. The first batch is returned completely, whatever its size (v3
    and later).
    """

    def spend(self, size: int) -> None:
        if size > 0:
            self.first = False
            self.limit = max(0, self.limit - size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state and limits for the reads of one fetch.

    They come from the fetch's fields, the Kafka release and the broker.
    """

    request: FetchRequest
    release: Release
    node_id: int
    in_session: bool
    """Whether the fetch is incremental. Old brokers ignore the leader epoch of a fetch in a session."""

    def read(self, partition: Partition, entry: FetchPartition, allowance: Allowance) -> PartitionData:
        """Read one partition. Subtract the size of the returned records from `allowance`."""
        error = self._refusal(partition, entry, allowance)
        if error:
            tags = self.leader_hint(partition) if error in HINTED else ()
            return PartitionData(partition_index=entry.partition, error_code=error, tags=tags)
        preferred = self._preferred(partition)
        if preferred != -1:
            return self._entry(partition, entry, preferred_read_replica=preferred)
        diverging = self._divergence(partition, entry)
        if diverging is not None:
            return self._entry(partition, entry, tags=(diverging_epoch_tag(*diverging),))
        records, aborted = self._records(partition, entry, allowance)
        allowance.spend(len(records))
        return self._entry(partition, entry, records=records, aborted=aborted)

    def leader_hint(self, partition: Partition) -> Tags:
        leader = (partition.leader, partition.leader_epoch)
        return (current_leader_tag(*leader),) if self.request.version >= 16 and leader != (-1, -1) else ()

    def _entry(
        self,
        partition: Partition,
        entry: FetchPartition,
        *,
        records: bytes = b"",
        aborted: tuple[AbortedTransaction, ...] | None = None,
        preferred_read_replica: int = -1,
        tags: Tags = (),
    ) -> PartitionData:
        tells_lso = self.release.tells_lso_always or self.request.isolation_level == 1
        return PartitionData(
            partition_index=entry.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset if tells_lso else -1,
            log_start_offset=partition.log_start,
            records=records,
            aborted=aborted,
            preferred_read_replica=preferred_read_replica,
            tags=tags,
        )

    def _refusal(self, partition: Partition, entry: FetchPartition, allowance: Allowance) -> int:
        """Return the error code with which the read of this partition fails, or 0 if it does not fail."""
        if partition.error:
            return partition.error
        fenced = self.release.fences_in_sessions or not self.in_session
        epoch = entry.current_leader_epoch if fenced else -1
        if partition.hosted and epoch >= 0 and epoch != partition.leader_epoch:
            return FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else UNKNOWN_LEADER_EPOCH
        serves = partition.leader == self.node_id or self.request.version >= 11
        if not partition.hosted or not serves:
            return NOT_LEADER_OR_FOLLOWER
        if self._preferred(partition) != -1 or self._divergence(partition, entry) is not None:
            return 0
        unknown_epoch = entry.last_fetched_epoch >= 0 and not partition.end_of_epoch(entry.last_fetched_epoch)
        if unknown_epoch or not partition.log_start <= entry.fetch_offset <= partition.log_end:
            return OFFSET_OUT_OF_RANGE
        negative = min(entry.partition_max_bytes, allowance.limit) < 0
        return UNKNOWN_SERVER_ERROR if negative else 0

    def _preferred(self, partition: Partition) -> int:
        if self.request.version < 11 or partition.leader != self.node_id:
            return -1
        return partition.preferred.get(self.request.rack_id, -1)

    def _divergence(self, partition: Partition, entry: FetchPartition) -> tuple[int, int] | None:
        """Return the epoch and end offset where the reader's log begins to differ.

        None if it does not (KIP-595).
        """
        end = partition.end_of_epoch(entry.last_fetched_epoch) if entry.last_fetched_epoch >= 0 else None
        if end is None or entry.fetch_offset < partition.log_start:
            return None
        return end if end[0] < entry.last_fetched_epoch or end[1] < entry.fetch_offset else None

    def _records(
        self, partition: Partition, entry: FetchPartition, allowance: Allowance
    ) -> tuple[bytes, tuple[AbortedTransaction, ...] | None]:
        committed = self.request.isolation_level == 1
        upper = partition.last_stable_offset if committed else partition.high_watermark
        upper = partition.log_end if self.request.replica >= 0 else upper
        if entry.fetch_offset >= upper:
            return b"", () if committed else None
        segment = next(
            s for s in partition.segments if s.batches and s.batches[-1].last_offset >= entry.fetch_offset
        )
        want = min(entry.partition_max_bytes, allowance.limit)
        batch = next(b for b in segment.batches if b.last_offset >= entry.fetch_offset)
        if allowance.first:
            want = max(want, len(batch.data))
        elif 0 < want < len(batch.data) and (self.request.version >= 3 or not self.release.cuts_batches):
            return b"", None  # the broker puts an empty read in its place and loses the aborted list with it
        start = segment.position(entry.fetch_offset)
        visible = b"".join(b.data for b in segment.batches if b.base_offset < upper)
        records = visible[start : start + want]
        return records, self._aborted(partition, entry, segment, start + len(records)) if committed else None

    @staticmethod
    def _aborted(
        partition: Partition, entry: FetchPartition, segment: Segment, end_position: int
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that may overlap the records that were read.

        The end offset of these records is known only roughly, because the offset index is sparse.
        """
        later = [other.base_offset for other in partition.segments if other.base_offset > segment.base_offset]
        indexed = [offset for offset, position in segment.index if position >= end_position]
        upper = indexed[0] if indexed else min(later, default=partition.log_end)
        return tuple(
            AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first, last in partition.aborted
            if last >= entry.fetch_offset and first < upper
        )
