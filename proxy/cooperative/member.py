"""What is known of a member of a cooperative group: its lane, how far it was scanned, and what it got."""

from collections import Counter
from dataclasses import dataclass, field

from proxy.cooperative.filtered import Filtered, LaneRecords
from proxy.cooperative.plan import FULL, Lanes
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
    """A client with a lane: one that it declares, for every partition, or those that its group gives it.

    Args:
        tally: that of the process.
        declared: its key ranges on every partition that it fetches; None: it is a member of a group.
    """

    __slots__ = (
        "__weakref__",
        "_splits",
        "declared",
        "delivered",
        "epoch",
        "expires_at",
        "first",
        "frozen",
        "lanes",
        "plain",
        "planned",
        "scans",
        "session_seconds",
        "started",
        "tally",
    )

    def __init__(self, tally: FilterTally, declared: KeyRanges | None = None) -> None:
        self.declared = declared
        self.lanes: Lanes = {}
        """Of its group, since it has synced."""
        self.planned: Lanes = {}
        """Those that its group has for it; for some it has to join again (`plan.at_once`)."""
        self.epoch = 0
        """Changes with the lanes: what was asked for before is for nobody."""
        self.frozen = declared is None
        """Its group has gone on without it, or may have: it gets nothing until it has synced."""
        self.plain = False
        """Its group shares nothing: it gets all."""
        self.session_seconds = self.expires_at = 0.0
        """The session timeout of its group, and when that is over."""
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """By topic and partition. A topic is named as in the fetch."""
        self.first: dict[Place, int] = {}
        """The lowest offset that was fetched of each partition."""
        self.delivered: dict[Place, int] = {}
        """The offset of the last record that went to the member."""
        self.started: dict[Place, Positions] = {}
        """How far each hash was done when the member was told its offset. What lies before was another
        member's, which may have got further than this one begins."""
        self._splits: dict[Place | None, Split] = {}
        """By partition, split at the steps of these as well; None: all partitions, as declared."""
        self.tally = tally

    def __repr__(self) -> str:
        return f"<Member declared={self.declared} lanes={len(self.lanes)} frozen={self.frozen}>"

    # Its group

    def joins(self, session_seconds: float) -> None:
        """Note that it joins: until it has synced it gets nothing."""
        self.session_seconds = session_seconds
        self.freeze()

    def freeze(self) -> None:
        """Give it nothing of what it shares until it has synced."""
        self.frozen = True
        self.epoch += 1

    @property
    def unknown(self) -> bool:
        """Whether it joined its group before this process knew it."""
        return self.frozen and not self.epoch

    @property
    def joins_again(self) -> bool:
        """Whether it is to join its group again."""
        return self.unknown or (not self.frozen and self.lanes.keys() != self.planned.keys())

    def synced(self, lanes: Lanes | None, planned: Lanes, now: float) -> None:
        """Give it lanes; None: its group shares nothing."""
        self.lanes, self.plain, self.planned = lanes or {}, lanes is None, planned
        self.frozen = False
        self.epoch += 1
        for known in (self.scans, self.first, self.delivered, self.started, self._splits):
            known.clear()
        self.beats(now)

    def beats(self, now: float) -> None:
        """Note that the group knows it."""
        self.expires_at = now + self.session_seconds

    def gets(self, epoch: int, now: float) -> bool:
        """Whether it gets what it asked for when its lanes were those of `epoch`."""
        if self.declared is None and not self.plain and now > self.expires_at:
            return False  # others may have its lanes already
        return not self.frozen and epoch == self.epoch

    # Its lanes

    def ranges(self, place: Place) -> KeyRanges | None:
        """Return its key ranges of a partition; None: all records are its own business."""
        return self.declared or self.lanes.get(place)

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
        started, ranges = self.started.get(place), self.ranges(place)
        if started is not None and ranges is not None and offset < started.lowest(ranges):
            self.start(place, None)  # the application reads again what was done

    def start(self, place: Place, positions: Positions | None) -> None:
        """Note how far each hash of a partition is done; None: all from the member's offset on may come."""
        self._splits.pop(place, None)
        self.started.pop(place, None)
        ranges = self.ranges(place)
        if positions is None or ranges is None:
            return
        if positions.lowest(ranges) != positions.highest(ranges):
            self.started[place] = positions

    def lane(self, place: Place, offset: int) -> tuple[Split, list[int]] | None:
        """Return how a partition is split for the member, and for each step the lowest offset that passes.

        None: all records pass, as they came.
        """
        ranges, started = self.ranges(place), self.started.get(place)
        if ranges is None or (ranges == FULL and started is None):
            return None
        key = place if self.declared is None or started is not None else None
        split = self._splits.get(key)
        if split is None:
            split = self._splits[key] = Split([ranges], cuts=() if started is None else started.starts)
        if started is None:
            return split, [offset] * len(split.starts)
        return split, [max(offset, started.at(start)) for start in split.starts]

    def skips(self, place: Place, offset: int) -> int:
        """Return the offset up to which nothing is for the member, from an offset on."""
        scan = self.scans.get(place[0], {}).get(place[1])
        return offset if scan is None else scan.after(offset)

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget what was scanned of a partition: its log may not be the same any more."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)
