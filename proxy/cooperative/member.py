"""What is known of a member of a cooperative group: its lane, how far it was scanned, and what it got."""

from collections import Counter
from dataclasses import dataclass, field

from proxy.cooperative.filtered import Filtered, LaneRecords
from proxy.cooperative.positions import Place, Positions
from proxy.cooperative.ranges import KeyRanges, Split
from proxy.cooperative.scan import Scan
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.primitives import TooMany


@dataclass(slots=True)
class FilterTally:
    """What the filter has counted, for all members."""

    records: Counter[str] = field(default_factory=Counter)
    """``kept`` and ``filtered``."""
    batches: Counter[str] = field(default_factory=Counter)
    """``untouched``, ``thinned``, ``dropped`` and ``placeholder``."""
    upstream_bytes: int = 0
    """Bytes of records that came from brokers."""
    client_bytes: int = 0
    """Bytes of records that went to members."""
    skipped_offsets: int = 0
    """Offsets that were not fetched again, as nothing there was for the lane."""
    refused: Counter[int] = field(default_factory=Counter)
    """Partitions that were answered with an error of the gateway's own, by Kafka's number."""

    def count(self, found: Filtered, lane: LaneRecords) -> None:
        """Count what a lane got of the records of a partition."""
        self.records["kept"] += lane.records
        self.records["filtered"] += found.records - lane.records
        self.batches["untouched"] += lane.untouched
        self.batches["thinned"] += len(lane.batches) - lane.untouched
        self.batches["dropped"] += found.batches - len(lane.batches)
        self.client_bytes += sum(map(len, lane.batches))


class Member:
    """A client with a lane.

    Args:
        ranges: its key ranges, on every partition that it fetches.
        tally: that of the process.
    """

    __slots__ = ("_splits", "delivered", "first", "ranges", "scans", "split", "started", "tally")

    def __init__(self, ranges: KeyRanges, tally: FilterTally) -> None:
        self.ranges = ranges
        self.split = Split([ranges])
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """By topic and partition. A topic is named as in the fetch."""
        self.first: dict[Place, int] = {}
        """The lowest offset that was fetched of each partition."""
        self.delivered: dict[Place, int] = {}
        """The offset of the last record that went to the member."""
        self.started: dict[Place, Positions] = {}
        """How far each hash was done when the member was told its offset. What lies before was another
        member's, which may have got further than this one begins."""
        self._splits: dict[Place, Split] = {}
        """Split at the steps of these as well."""
        self.tally = tally

    def __repr__(self) -> str:
        return f"<Member ranges={self.ranges}>"

    def scan(self, topic: bytes, partition: int) -> Scan:
        """Return what was scanned of a partition; it is kept from now on."""
        return self.scans.setdefault(topic, {}).setdefault(partition, Scan())

    def fetches(self, place: Place, offset: int) -> None:
        """Note from which offset the member fetches a partition.

        Raises:
            TooMany: it has fetched more partitions than are known of a member.
        """
        if offset < self.first.get(place, offset + 1):
            self.first[place] = offset
            if len(self.first) > MAX_PARTITIONS:
                raise TooMany(f"a member of more than {MAX_PARTITIONS} partitions")
        started = self.started.get(place)
        if started is not None and offset < started.lowest(self.ranges):
            self.start(place, None)  # the application reads again what was done

    def start(self, place: Place, positions: Positions | None) -> None:
        """Note how far each hash of a partition is done; None: all from the member's offset on may come."""
        self._splits.pop(place, None)
        self.started.pop(place, None)
        if positions is not None and positions.lowest(self.ranges) != positions.highest(self.ranges):
            self.started[place] = positions
            self._splits[place] = Split([self.ranges], cuts=positions.starts)

    def lane(self, place: Place, offset: int) -> tuple[Split, list[int]]:
        """Return how a partition is split for the member, and for each step the lowest offset that passes."""
        started = self.started.get(place)
        if started is None:
            return self.split, [offset] * len(self.split.starts)
        split = self._splits[place]
        return split, [max(offset, started.at(start)) for start in split.starts]

    def skips(self, place: Place, offset: int) -> int:
        """Return the offset up to which nothing is for the member, from an offset on."""
        scan = self.scans.get(place[0], {}).get(place[1])
        return offset if scan is None else scan.after(offset)

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget what was scanned of a partition: its log may not be the same any more."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)
