"""What is known to hold nothing for a lane of a partition, so that it is not fetched again.

A client whose lane got nothing of a response asks for the same offset again. Instead of an invented record,
the gateway asks the broker for what comes after.
"""

from dataclasses import dataclass

from proxy.cooperative.batches import Header, placeholder
from proxy.cooperative.filtered import Filtered, LaneRecords


@dataclass(slots=True)
class Scan:
    """Offsets from `low` to the one before `high` hold no record for the lane, and no end of a transaction.

    An end is kept for a client that loses the response and asks for it again.
    """

    low: int = -1
    high: int = -1
    leader_epoch: int = -1
    """Of the last batch there. With `high` as fetch offset it is last_fetched_epoch (KIP-595): the client's
    own would be that of an earlier batch, which the broker takes for a divergence."""
    dropped: Header | None = None
    """The last batch there without a record for the lane."""

    def after(self, offset: int) -> int:
        """Return the offset to ask the broker for when a client asks for one."""
        return self.high if self.low <= offset < self.high else offset

    def learn(self, offset: int, found: Filtered, lane: LaneRecords) -> None:
        """Note a response.

        Args:
            offset: what the client asked for.
            found: the response.
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
        """Forget it: the log or the lane is not the same any more (errors 1, 3, 6, 74, 75, 100, 103 ...)."""
        self.low = self.high = self.leader_epoch = -1
        self.dropped = None

    def placeholder(self, offset: int) -> bytes:
        """Return a batch that moves a client from an offset to `high`, without data; b"" where none is due.

        Clients of Fetch v12 and later take it. So their lag and the end of the partition are right.

        Args:
            offset: the end of the last batch that the client gets with it, or what it asks for: no two
                batches may end alike, see `split_records`.
        """
        if self.dropped is None or not self.low <= offset < self.high:
            return b""
        return placeholder(offset, self.high - 1, self.dropped)
