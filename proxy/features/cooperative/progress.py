"""How far a member is in one partition."""

from dataclasses import dataclass
from math import inf

from proxy.features.cooperative.assignment import ANY, Assignment
from proxy.features.cooperative.filtered import NO_SCAN, Scan
from proxy.features.cooperative.positions import Positions
from proxy.features.cooperative.ranges import KeyRanges, Split


@dataclass(slots=True, eq=False)
class Progress:
    """What a member was told and sent of one partition, since it has the partition.

    `sent` begins with the committed offset that the client is told. A *jump* is a fetch from a higher offset,
    a first fetch from a lower one, or one without having been told. Another process may have told the client
    where to begin, or sent it the records before, by other lanes. It is none if the position was known to be
    right at a time at which no other process served the member any more: then the application has set it.
    """

    since: Assignment
    """The assignment that gave the partition to the member, or left it to the member."""
    sent: int | None = None
    """The offset up to which this process has sent the records. `ANY` if the group has no committed offset.
    None if the client was not told it (`Assignment.untold`)."""
    known_at: float | None = None
    """When the client's position was last known to be right, in seconds. None: at `Assignment.anew_at`."""
    jumped: bool = False
    """Whether the member has jumped. It gets no records of the partition until its client requests the
    committed offset. A client that does not request it continues from its earlier position. Then no member
    would read the records before that position in the new key ranges. (kafka-python drops an assignment that
    arrives just as a poll ends.)"""
    started: Positions | None = None
    """The committed offset of each hash when the member received its own committed offset. For some hashes,
    another member may have got further. The member gets no records before that offset. None if it gets all
    its records from its fetch offset on."""
    scan: Scan = NO_SCAN
    """The offsets to skip."""
    delivered: int = -1
    """The offset of the last record that was sent to the member, or -1."""
    end: int | None = None
    """The high watermark in the last response to the member that had records."""
    _split: Split | None = None

    # In the next assignment

    def kept(self, since: Assignment) -> "Progress":
        """Return the progress of a member that goes on with the same lane."""
        self.since, self.jumped = since, False
        return self

    def left(self, since: Assignment, *, released: bool) -> "Progress":
        """Return the progress of a member that has left the lane, and may commit what it still processes.

        If the member has just `released` the lane, it commits by the hashes of `started`.
        """
        return Progress(since, self.sent, self.known_at, started=self.started if released else None)

    # Where the client begins, and how far it may commit

    def told(self, offset: int) -> None:
        """Note the committed offset that the client is told, from which it begins. -1 if there is none."""
        self.jumped = False
        if self.sent is None or self.sent == ANY or offset > self.sent:
            self.sent = ANY if offset < 0 else offset

    def jumps(self, offset: int, alone_from: float, now: float) -> bool:
        """Return whether a fetch is a jump. If not, note it."""
        sent = self.since.untold if self.sent is None else self.sent
        begins_lower = self.known_at is None and offset < sent < ANY
        known_at = self.since.anew_at if self.known_at is None else self.known_at
        self.jumped = (sent < offset or begins_lower) and known_at < alone_from
        if self.jumped:
            return True
        if sent == ANY or sent < offset:
            self.sent = offset
        self.known_at = now
        return False

    def sends(self, end: int) -> None:
        self.sent = end if self.sent is None else max(self.sent, end)

    def resets(self) -> None:
        """Note that the client is told to begin at another offset (OFFSET_OUT_OF_RANGE)."""
        self.known_at = inf

    def reaches(self, offset: int) -> bool:
        return offset <= (self.since.untold if self.sent is None else self.sent)

    # Which records are the member's

    def start(self, positions: Positions | None, ranges: KeyRanges | None) -> None:
        """Set the committed offset of each hash (`started`), for a member with these key ranges."""
        if positions is not None and (
            ranges is None or positions.lowest(ranges) == positions.highest(ranges)
        ):
            positions = None
        if self.started is not None and self.started != positions:
            self.forget()  # the scan skips records that others had processed
        self.started, self._split = positions, None

    def lane(self, offset: int, ranges: KeyRanges, split: Split | None = None) -> tuple[Split, list[int]]:
        """Return the split of the partition, and for each step of the split the lowest offset to keep.

        Without `started`, it is the `split` of all partitions of the member, if there is one.
        """
        started = self.started
        if split is None or started is not None:
            cuts = () if started is None else started.starts
            split = self._split = self._split or Split([ranges], cuts=cuts)
        if started is None:
            return split, [offset] * len(split.starts)
        return split, [max(offset, started.at(start)) for start in split.starts]

    def forget(self) -> None:
        """Forget which offsets to skip, because the log may have changed."""
        self.scan = NO_SCAN
