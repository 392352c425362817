"""One fetch upstream serves all members that share a partition (docs/cooperative.md). Sans-IO.

Nobody fetches but the members. A *reader* is what the members of one partition have in common. The response
to one member's fetch is split once, and the shares of the others that are at that offset are put aside. A
member that asks for what was put aside gets it without the broker. What another one is being sent at this
moment it waits for, *parked*, as long as its own fetch would wait at most. In all other cases its fetch goes
upstream, as if it were alone. So nobody depends on another one: if one leaves, is slow or gets an error, the
others fetch for themselves.

What is put aside is the response to a fetch of the broker at a certain offset, and stands for it: it is given
to members alone who would have sent that fetch, to that broker, as that user (`Key`).
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from proxy.cooperative.filtered import Filtered, end_of, split_records
from proxy.cooperative.member import Member
from proxy.cooperative.positions import TopicPartition
from proxy.cooperative.ranges import FULL, KeyRanges, Split
from proxy.protocol.primitives import Buffer

PARTITION_BYTES: Final = 8 << 20
"""So much is put aside for the members of one partition."""
ALL_BYTES: Final = 64 << 20
"""So much is put aside in all."""
WAIT_SECONDS: Final = 45.0
"""So long something is put aside for a member that has no session timeout (fetched.data.max.wait.ms)."""
UPSTREAM_SECONDS: Final = 60.0
"""A member fetches from the broker itself so often. Brokers close a connection on which nothing has come for
connections.max.idle.ms (10 minutes)."""
_NOT_YET: Final = 2**63 - 1

State: TypeAlias = bytes
"""High watermark, last stable offset and, from v5 on, log start offset of an entry, as in the response."""


class Want(NamedTuple):
    """What a fetch wants of a partition."""

    offset: int
    """That the broker would be asked for."""
    leader_epoch: int
    max_bytes: int


class Wants(NamedTuple):
    """What a fetch wants."""

    partitions: Mapping[TopicPartition, Want]
    limits: tuple[int, int, int]
    """min_bytes, max_bytes and isolation_level."""
    wait_until: float
    """In seconds."""


class Key(NamedTuple):
    """What fetches have in common that the broker would answer alike."""

    place: TopicPartition
    group: bytes
    """Empty: its members declare their lanes."""
    broker: str
    limits: tuple[int, int, int]
    max_bytes: int
    leader_epoch: int
    """That the client knows. Within one, a leader's log only grows: no offset has another record later."""


@dataclass(slots=True)
class Share:
    """A member's share of the response to a fetch."""

    start: int
    """The fetch offset, or where the member went on within the response."""
    end: int
    """The offset after it."""
    found: Filtered
    """Of the member alone."""
    aborted: Sequence[bytes]
    """aborted_transactions of the response, as in it. They are those from the fetch offset on, and are wrong
    for a higher one: of a transaction that has ended before that, a client would not know that it has."""
    size: int
    """Bytes that are kept for it."""
    fetched: int
    """Bytes of records in the response."""


class _Lane:
    """A member's lane, and what is put aside for it."""

    __slots__ = ("asked_at", "epoch", "member", "ranges", "shares", "started", "upto")

    def __init__(self, member: Member, ranges: KeyRanges, place: TopicPartition) -> None:
        self.member, self.ranges = member, ranges
        self.epoch = member.epoch
        self.started = member.started.get(place)
        self.shares = deque[Share]()
        self.upto = _NOT_YET
        """The offset that is asked for after all of them."""
        self.asked_at = 0.0

    def is_of(self, member: Member, place: TopicPartition) -> bool:
        """Whether this is what the member has of a partition: shares for another lane are not its own."""
        return (
            self.member is member
            and self.epoch == member.epoch
            and self.started is member.started.get(place)
            and self.ranges == member.ranges(place)
        )

    @property
    def patience(self) -> float:
        """How many seconds something is put aside for a member that does not ask."""
        return self.member.session_seconds or WAIT_SECONDS

    def least(self, offset: int, split: Split, step: int) -> int:
        """Return the lowest offset that passes in a step of a split."""
        return offset if self.started is None else max(offset, self.started.at(split.starts[step]))


class Readers:
    """The readers of a process."""

    __slots__ = ("_readers", "buffered", "detached", "fetches")

    def __init__(self) -> None:
        self._readers: dict[Key, Reader] = {}
        self.fetches = 0
        """Fetches of shared partitions that went upstream, by partition."""
        self.buffered = 0
        """Bytes that are put aside."""
        self.detached: Counter[str] = Counter()
        """Members whose shares were dropped, so that they fetch for themselves: ``full`` where there was no
        room, ``wait`` where they did not ask for them."""

    def __repr__(self) -> str:
        return f"<Readers {len(self._readers)} buffered={self.buffered}>"

    def __len__(self) -> int:
        return len(self._readers)

    def reader(self, key: Key) -> "Reader":
        """Return the reader of a key; it is kept as long as somebody has to do with it."""
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = Reader(self, key)
        return reader

    def drop(self, reader: "Reader") -> None:
        """Forget a reader with which nobody has to do any more."""
        self._readers.pop(reader.key, None)

    def fit(self) -> None:
        """Drop what there is no room for, where most is put aside."""
        while self.buffered > ALL_BYTES:
            max(self._readers.values(), key=lambda reader: reader.buffered).detach_last()


class Reader:
    """What the members of one partition have in common."""

    __slots__ = (
        "_lanes",
        "_readers",
        "_split",
        "_split_of",
        "buffered",
        "fetching",
        "key",
        "parked",
        "state",
    )

    def __init__(self, readers: Readers, key: Key) -> None:
        self._readers = readers
        self.key = key
        self._lanes: dict[Rider, _Lane] = {}
        self.fetching: dict[Rider, tuple[int, float]] = {}
        """Who is being sent what comes from an offset on, and until when at the latest unless there is
        trouble."""
        self.parked: dict[Rider, None] = {}
        """Who waits for these."""
        self.buffered = 0
        self.state: State | None = None
        """Of the last response; None: there was none, or the log may not be the same any more."""
        self._split_of: tuple[tuple[KeyRanges, tuple[int, ...]], ...] = ()
        self._split = Split([FULL])
        """The last one; it knows the hashes of keys."""

    def __repr__(self) -> str:
        return f"<Reader {self.key.place} lanes={len(self._lanes)} buffered={self.buffered}>"

    def ask(self, rider: "Rider", member: Member, offset: int, now: float) -> Share | None:
        """Return what is there for a member that asks for an offset, and drop what it asks for no more."""
        place = self.key.place
        lane = self._lanes.get(rider)
        if lane is None or not lane.is_of(member, place):
            lane = self._attach(rider, member, now)
        if lane is None:
            return None
        lane.asked_at = now
        shares = lane.shares
        while shares and shares[0].end <= offset:
            self._free(shares.popleft())
        if shares and shares[0].start <= offset:
            share = shares[0]
            if share.start == offset:
                return share
            if not share.aborted:
                return _from(share, member, place, offset)
        self._clear(lane)
        lane.upto = offset
        return None

    def has(self, rider: "Rider") -> bool:
        """Whether something is put aside for a member."""
        return rider in self._lanes and bool(self._lanes[rider].shares)

    def comes(self, rider: "Rider", offset: int, now: float) -> bool:
        """Whether somebody else is being sent what comes from an offset on."""
        return rider in self._lanes and any(
            who is not rider and at == offset and until > now for who, (at, until) in self.fetching.items()
        )

    def split(
        self, rider: "Rider", member: Member, records: Buffer, own: int, aborted: Sequence[bytes], now: float
    ) -> Filtered | None:
        """Split the records that a member is sent, and put the other members' shares aside.

        Args:
            rider: the member's connection.
            member: whose response it is.
            records: as in the response.
            own: the member's fetch offset; the broker was asked for the same or a higher one.
            aborted: the response's aborted_transactions.
            now: in seconds.

        Returns:
            The member's own; None if it is not served here.

        Raises:
            BatchError: a batch can't be split.
        """
        lane, (start, _) = self._lanes.get(rider), self.fetching[rider]
        if lane is None or not lane.is_of(member, self.key.place):
            return None
        others = self._others(rider, records, start, aborted, now)
        if not others and (of_lane := member.lane(self.key.place, own)) is not None:
            found = split_records(records, *of_lane, [own])
            lane.upto = max(found.end, start)
            return found
        lanes = [lane, *others.values()]
        offsets = [own, *(other.upto for other in others.values())]
        split = self._split_for(lanes)
        least = [
            0 if owner < 0 else lanes[owner].least(offsets[owner], split, step)
            for step, owner in enumerate(split.owners)
        ]
        found = split_records(records, split, least, offsets)
        for other, offset, part in zip(lanes[1:], offsets[1:], found.lanes[1:], strict=True):
            share = found.of(part)
            size = sum(map(len, part.batches))
            other.shares.append(Share(max(offset, start), found.end, share, aborted, size, len(records)))
            other.upto = found.end
            self.buffered += size
            self._readers.buffered += size
        lane.upto = max(found.end, start)
        while self.buffered > PARTITION_BYTES:
            self.detach_last()
        self._readers.fit()
        return found.of(found.lanes[0])

    def note(self, state: State) -> None:
        """Note what a response says of the partition."""
        if self.state is None or _watermark(state) >= _watermark(self.state):  # two may overtake each other
            self.state = state

    def forget(self) -> None:
        """Drop everything: the log may not be the same any more."""
        self.state = None
        for lane in self._lanes.values():
            self._clear(lane)

    def detach_last(self) -> None:
        """Drop what is put aside for the member that is furthest behind."""
        behind = [(lane.shares[0].start, at) for at, lane in enumerate(self._lanes.values()) if lane.shares]
        _, at = min(behind)
        self.detach([*self._lanes][at], "full")

    def detach(self, rider: "Rider", reason: str = "") -> None:
        """Drop a member's lane; it comes back when it asks.

        Args:
            rider: its connection.
            reason: why it is to fetch for itself, for `Readers.detached`; none if it has another lane now.
        """
        if (lane := self._lanes.pop(rider, None)) is not None:
            self._clear(lane)
            if reason:
                self._readers.detached[reason] += 1

    def leave(self, rider: "Rider") -> None:
        """Note that a member asks no more here."""
        self.detach(rider)
        self.fetching.pop(rider, None)
        self.parked.pop(rider, None)
        if not (self._lanes or self.fetching or self.parked):
            self._readers.drop(self)

    def _attach(self, rider: "Rider", member: Member, now: float) -> _Lane | None:
        """Note a member's lane; return None if it can't be served here: another one has a part of it."""
        self.detach(rider)
        place = self.key.place
        ranges = member.ranges(place)
        if ranges is None:
            return None
        for who, other in list(self._lanes.items()):
            if other.member is member or not _is_current(other, place, now):
                self.detach(who)  # a connection that the client has left, perhaps
            elif any(low <= last and first <= high for low, high in ranges for first, last in other.ranges):
                return None
        lane = self._lanes[rider] = _Lane(member, ranges, place)
        return lane

    def _others(
        self, rider: "Rider", records: Buffer, start: int, aborted: Sequence[bytes], now: float
    ) -> dict["Rider", _Lane]:
        """Return the lanes of other members that want something of a response."""
        found: dict[Rider, _Lane] = {}
        if len(records) > PARTITION_BYTES:
            return found  # there would be no room for it
        for who, lane in list(self._lanes.items()):
            if who is rider or lane.upto < start or (aborted and lane.upto != start):
                continue
            if not _is_current(lane, self.key.place, now):
                self.detach(who)
            elif who not in self.parked and now > lane.asked_at + lane.patience:
                self.detach(who, "wait")
            else:
                found[who] = lane
        end = end_of(records) if found else 0
        return {who: lane for who, lane in found.items() if lane.upto < end}

    def _split_for(self, lanes: Sequence[_Lane]) -> Split:
        split_of = tuple((lane.ranges, () if lane.started is None else lane.started.starts) for lane in lanes)
        if split_of != self._split_of:
            cuts = {start for _, starts in split_of for start in starts}
            self._split = Split([ranges for ranges, _ in split_of], cuts=cuts)
            self._split_of = split_of
        return self._split

    def _clear(self, lane: _Lane) -> None:
        for share in lane.shares:
            self._free(share)
        lane.shares.clear()
        lane.upto = _NOT_YET

    def _free(self, share: Share) -> None:
        self.buffered -= share.size
        self._readers.buffered -= share.size


class Rider:
    """A connection of a member, as the readers know it.

    Args:
        readers: those of the process.
        broker: identifies the broker; empty, or several: it is not known which one it is.
        wake: lets the member's fetch go on that was parked; takes the time in seconds.
    """

    __slots__ = ("_at", "_broker", "_fetching", "_parked", "_readers", "_wake", "_went_at")

    def __init__(self, readers: Readers, broker: str, wake: Callable[[float], None]) -> None:
        self._readers, self._wake = readers, wake
        self._broker = "" if "," in broker else broker
        self._at: dict[TopicPartition, Reader] = {}
        self._fetching: list[Reader] = []
        """Those to which the fetch belongs that is under way."""
        self._parked: dict[Reader, int] = {}
        """Those that the member waits for, and the offsets that it wants of them."""
        self._went_at: float | None = None
        """When a fetch went upstream last, in seconds."""

    def find(self, member: Member, wants: Wants | None, now: float) -> dict[TopicPartition, Share] | None:
        """Look for what a member asks for.

        Args:
            member: who asks.
            wants: for what; None: the broker is to say it.
            now: in seconds.

        Returns:
            What is there, by partition; empty: it comes, and the member is to wait for it (`wake`); None: its
            fetch is to go upstream. It is counted as being under way then.
        """
        self.unpark()
        if self._went_at is None:
            self._went_at = now
        if wants is None or not self._broker or not member.gets(member.epoch, now):
            self._went_at = now
            return None
        found: dict[TopicPartition, Share] = {}
        offsets: dict[Reader, int] = {}
        alone = now >= self._went_at + UPSTREAM_SECONDS
        for place, want in wants.partitions.items():
            if member.lane(place, want.offset) is None:
                alone = True
                self._leave(place)
                continue
            reader = self._reader(
                Key(place, member.group, self._broker, wants.limits, want.max_bytes, want.leader_epoch)
            )
            offsets[reader] = want.offset
            if (share := reader.ask(self, member, want.offset, now)) is not None:
                found[place] = share
            elif not reader.comes(self, want.offset, now):
                alone = True
        if not alone and found and all(reader.state is not None for reader in offsets):
            return _within(found, wants.limits[1])
        if not alone and not found and offsets and now < wants.wait_until:
            self._parked = offsets
            for reader in offsets:
                reader.parked[self] = None
            return {}
        for reader, offset in offsets.items():
            reader.fetching[self] = offset, wants.wait_until
        self._fetching = [*offsets]
        self._readers.fetches += len(offsets)
        self._went_at = now
        return None

    def state(self, place: TopicPartition) -> State:
        """Return what is known of a partition of which `find` has found something, or of one beside it."""
        return self._at[place].state or b""

    # The response to a fetch that has gone upstream

    @property
    def places(self) -> list[TopicPartition]:
        """The partitions of the fetch under way that are shared."""
        return [reader.key.place for reader in self._fetching]

    def note(self, place: TopicPartition, state: State) -> None:
        """Note what the response says of a partition without an error."""
        if (reader := self._reader_of(place)) is not None:
            reader.note(state)

    def forget(self, place: TopicPartition) -> None:
        """Note that the response has an error for a partition, or names another broker."""
        if (reader := self._reader_of(place)) is not None:
            reader.forget()

    def split(
        self,
        member: Member,
        place: TopicPartition,
        records: Buffer,
        offset: int,
        aborted: Sequence[bytes],
        now: float,
    ) -> Filtered | None:
        """Split a partition's records for all that share it: see `Reader.split`."""
        reader = self._reader_of(place)
        return None if reader is None else reader.split(self, member, records, offset, aborted, now)

    def arrived(self) -> list["Rider"]:
        """Note that the response has come; return who has waited for it, for `wake`."""
        waiting: dict[Rider, None] = {}
        for reader in self._fetching:
            reader.fetching.pop(self, None)
            waiting |= reader.parked
        self._fetching = []
        return [*waiting]

    # Waiting

    def wake(self, now: float) -> None:
        """Let the member go on, unless what it waits for is still to come."""
        if any(reader.has(self) or not reader.comes(self, at, now) for reader, at in self._parked.items()):
            self._wake(now)

    def unpark(self) -> None:
        """Note that the member does not wait any more."""
        for reader in self._parked:
            reader.parked.pop(self, None)
        self._parked = {}

    def goes(self, now: float) -> None:
        """Note that the fetch goes upstream whatever others do."""
        self.unpark()
        self._went_at = now

    def alone(self) -> None:
        """Share nothing on this connection from now on: it is not known as whom the broker sees it."""
        self._broker = ""

    def end(self, now: float) -> None:
        """Note that the connection has ended: nobody waits for it, and nothing is kept for it."""
        waiting = self.arrived()
        self.unpark()
        for place in list(self._at):
            self._leave(place)
        for each in waiting:
            each.wake(now)

    def _reader(self, key: Key) -> Reader:
        """Return the reader that a fetch belongs to; the connection leaves the one that it had before."""
        reader = self._at.get(key.place)
        if reader is None or reader.key != key:
            self._leave(key.place)
            reader = self._at[key.place] = self._readers.reader(key)
        return reader

    def _reader_of(self, place: TopicPartition) -> Reader | None:
        reader = self._at.get(place)
        return reader if reader is not None and self in reader.fetching else None

    def _leave(self, place: TopicPartition) -> None:
        if (reader := self._at.pop(place, None)) is not None:
            reader.leave(self)


def _is_current(lane: _Lane, place: TopicPartition, now: float) -> bool:
    """Whether a lane is what its member has, and the member gets records."""
    return lane.is_of(lane.member, place) and lane.member.gets(lane.epoch, now)


def _watermark(state: State) -> int:
    return int.from_bytes(state[:8], signed=True)


def _from(share: Share, member: Member, place: TopicPartition, offset: int) -> Share | None:
    """Return a share from an offset within it on."""
    lane = member.lane(place, offset)
    if lane is None:
        return None
    (whole,) = share.found.lanes
    found = split_records(b"".join(whole.batches), *lane, [offset])
    (part,) = found.lanes
    part.dropped = whole.dropped or part.dropped
    return Share(offset, share.end, share.found.of(part), share.aborted, 0, share.fetched)


def _within(shares: dict[TopicPartition, Share], limit: int) -> dict[TopicPartition, Share]:
    """Return the shares that a response of a number of bytes has room for, the first one in any case."""
    found: dict[TopicPartition, Share] = {}
    for place, share in shares.items():
        limit -= sum(map(len, share.found.lanes[0].batches))
        if limit < 0 and found:
            break
        found[place] = share
    return found
