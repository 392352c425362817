"""What the process knows of the members of cooperative groups: the lane of each, and how far it was scanned.

A member is known by the host of its client and by its client.id, on whatever connections it comes
(`Members`).
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from proxy.cooperative.declared import Declared, declared
from proxy.cooperative.filtered import Filtered, LaneRecords
from proxy.cooperative.ranges import KeyRanges, RangeError, Split
from proxy.cooperative.scan import Scan

MAX_MEMBERS: Final = 4096
"""Members that are known. With more, what was scanned for the one that was not seen for longest is forgotten:
that costs reading it again."""


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

    __slots__ = ("ranges", "scans", "split", "tally")

    def __init__(self, ranges: KeyRanges, tally: FilterTally) -> None:
        self.ranges = ranges
        self.split = Split([ranges])
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """By topic and partition. A topic is named as in the fetch."""
        self.tally = tally

    def __repr__(self) -> str:
        return f"<Member ranges={self.ranges}>"

    def scan(self, topic: bytes, partition: int) -> Scan:
        """Return what was scanned of a partition; it is kept from now on."""
        return self.scans.setdefault(topic, {}).setdefault(partition, Scan())

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget what was scanned of a partition: its log may not be the same any more."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)


class Members:
    """The members that clients of this process are."""

    __slots__ = ("_members", "tally")

    def __init__(self) -> None:
        self._members: OrderedDict[tuple[str, bytes], Member] = OrderedDict()
        self.tally = FilterTally()

    def __repr__(self) -> str:
        return f"<Members {len(self._members)}>"

    def __len__(self) -> int:
        return len(self._members)

    def declared(self, host: str, client_id: bytes) -> tuple[Declared, Member] | None:
        """Return what a client.id declares, and the member that it names; None if it declares nothing.

        Args:
            host: the client's.
            client_id: as the client sends it.

        Raises:
            RangeError: it declares what can't be read, or a lane that nobody has named.
        """
        found = declared(client_id)
        if found is None:
            return None
        if found.lane:
            raise RangeError(f"no lane has the name {found.lane}")
        key = host, client_id
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = Member(found.ranges, self.tally)
            if len(self._members) > MAX_MEMBERS:
                self._members.popitem(last=False)
        self._members.move_to_end(key)
        return found, member
