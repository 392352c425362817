"""Offsets of a partition without records for a lane, so that they are not fetched again.

A client that gets no record requests the same offset again. Instead of inventing a record, the gateway
requests the next offsets from the broker.
"""

from dataclasses import dataclass

from proxy.cooperative.batches import Header, placeholder
from proxy.cooperative.filtered import Filtered, LaneRecords


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
