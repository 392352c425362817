"""What is known to hold nothing for a lane of a partition, so that it is not fetched again.

A client whose lane got nothing of a response asks for the same offset again. Instead of an invented record,
the gateway asks the broker for what comes after.
"""

from dataclasses import dataclass

from proxy.cooperative.batches import empty_batch
from proxy.cooperative.filtered import Filtered, LaneRecords


@dataclass(slots=True)
class Scan:
    """Offsets from `low` to the one before `high` hold no record for the lane."""

    low: int = -1
    high: int = -1
    leader_epoch: int = -1
    """Of the last batch there. With `high` as fetch offset it is last_fetched_epoch (KIP-595): the client's
    own would be that of an earlier batch, which the broker takes for a divergence."""

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
        low = max(offset, lane.last_kept + 1)
        if found.end <= low:
            return
        if not self.low <= low <= self.high:
            self.low = low
        self.high, self.leader_epoch = (
            max(found.end, self.high if low <= self.high else 0),
            found.leader_epoch,
        )

    def forget(self) -> None:
        """Forget it: the log or the lane is not the same any more (errors 1, 3, 6, 74, 75, 100, 103 ...)."""
        self.low = self.high = self.leader_epoch = -1


def placeholder(offset: int, found: Filtered, lane: LaneRecords) -> bytes:
    """Return a batch without records that moves a client behind what its lane did not get; b"" if it got all.

    Clients of Fetch v12 and later take it. So their lag and the end of the partition are right.
    """
    if lane.dropped is None:
        return b""
    return empty_batch(max(offset, lane.last_kept + 1), found.end - 1, lane.dropped)
