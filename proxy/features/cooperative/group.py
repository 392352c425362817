"""The state of a cooperative group in this process: the committed offset of each hash of its partitions.

Kafka stores these offsets (see `positions`). With the copy here, a commit needs no request for them first. A
commit changes the copy only when the broker has accepted it. Each commit for key ranges writes the offsets of
all hashes, so these commits of a group are sent one after another. What other gateways commit for the same
partitions (see `slots`) is at most `FRESH_SECONDS` old here.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Final, TypeAlias
from weakref import WeakSet

from proxy.features.cooperative.member import Member
from proxy.features.cooperative.offsets import NO_EPOCH, NO_OFFSET, Commit, Entry
from proxy.features.cooperative.positions import (
    Plan,
    Positions,
    TopicPartition,
    committed_metadata,
    read_committed,
    without_map,
)
from proxy.features.cooperative.slots import (
    MAX_SLOTS,
    Seat,
    Slot,
    Stored,
    narrowed,
    read_slot,
    resolved,
    slot_metadata,
)
from proxy.protocol.fetch_request import MAX_PARTITIONS

SLOTS: Final = b"__consumer_offsets"
"""The default topic of slots. All clusters have it, with 50 partitions unless they were made otherwise."""
FRESH_SECONDS: Final = 1.0
"""How old the offsets that other gateways have committed may be when a member commits, in seconds. Members
of other gateways lose nothing by it: what lags is the offset for consumers without a gateway."""
AGAIN_SECONDS: Final = 600.0
"""How long refused slots are not tried again, in seconds."""
Goes: TypeAlias = Callable[[float], None]
"""Continues a commit when its turn has come. Takes the time in seconds."""
_TEXT: Final = "utf-8"


class Group:
    """A cooperative group."""

    __slots__ = (
        "_generation",
        "_holder",
        "_read_at",
        "_synced",
        "_waiting",
        "changes",
        "exclusive",
        "members",
        "name",
        "positions",
        "slots",
        "slots_error",
        "slots_topic",
        "texts",
        "tries_at",
    )

    def __init__(self, name: str, slots_topic: bytes = SLOTS) -> None:
        self.name = name
        self.slots_topic = slots_topic
        self.slots: dict[int, Slot] = {}
        """The slots as they were read last, or as members here have written them since."""
        self.slots_error = 0
        """The error code with which the broker has refused a slot. The group then shares nothing across
        gateways. Behind one gateway it shares without slots."""
        self.tries_at = inf
        """When slots are tried again, in seconds. Infinite if they are in use, or nothing shows yet that they
        are not."""
        self.texts: dict[TopicPartition, bytes | None] = {}
        """The application's own metadata of partitions whose offset was read."""
        self._read_at: dict[TopicPartition, float] = {}
        """When the committed offsets of partitions were read last, with slots, in seconds."""
        self.positions: dict[TopicPartition, Positions] = {}
        self.members = WeakSet[Member]()
        """The members that have requested the group's offsets, or have committed."""
        self._synced = WeakSet[Member]()
        """The members that have joined the group and have received their lanes."""
        self._generation = -1
        """The generation of the member that received its lanes last."""
        self.exclusive = ""
        """Why the group shares no partition in this generation. Empty if it may (`GroupSeen.exclusive`)."""
        self.changes = 0
        """A counter that grows when a commit begins or ends, and when a generation begins here. While it
        is the same, no member here changes the committed offsets, and those that were read are of this
        generation."""
        self._holder: object = None
        """The commit whose turn it is, or None."""
        self._waiting: deque[tuple[object, Goes]] = deque()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} members={len(self.members)} partitions={len(self.positions)}>"

    # The order of commits

    @property
    def busy(self) -> bool:
        return self._holder is not None

    def takes(self, who: object, go: Goes) -> bool:
        """Return True if it is this commit's turn. If not, call `go` when its turn comes."""
        if self._holder in {None, who}:
            self._holder = who
            self.changes += 1
            return True
        self._waiting.append((who, go))
        return False

    def release(self, who: object, now: float) -> None:
        """Remove a commit that is done or still waits. If it had the turn, the next commit begins."""
        self._waiting = deque(each for each in self._waiting if each[0] is not who)
        if self._holder is not who:
            return
        self._holder = None
        self.changes += 1
        if self._waiting:
            self._holder, go = self._waiting.popleft()
            go(now)

    # Who has which lanes

    def enters(self, member: Member, generation: int, instance: bytes | None, now: float) -> bool:
        """Note that a member receives its lanes of a generation.

        Return False if a member of a later generation is still in the group. Otherwise, all members of other
        generations get no more records (`Presence.freeze`), because their lanes may now belong to others. A
        client that was stopped or disconnected does not notice this. Another member with the same
        group_instance_id (KIP-345) gets no more records either, because `member` replaces it.
        """
        others = [other for other in self._synced if other is not member]
        if any(other.generation > generation and other.presence.lives(now) for other in others):
            return False
        for other in others:
            replaced = instance is not None and other.instance == instance
            if (replaced or other.generation != generation) and not other.presence.frozen:
                other.presence.freeze()
        if generation != self._generation:
            self._generation = generation
            self.positions.clear()  # members of other gateways may have committed in between
            self.slots, self._read_at = {}, {}
            self.changes += 1
        member.generation, member.instance = generation, instance
        self._synced.add(member)
        return True

    # Committed offsets

    def tries(self, now: float) -> bool:
        """Return whether a member has to join again, because the group tries slots again.

        What refused them may have changed since. Behind one gateway, the group does not join for it: it
        shares without slots.
        """
        lacks = self.exclusive == "slots"
        if not (lacks or self.slots_error):
            self.tries_at = inf
            return False
        self.tries_at = min(self.tries_at, now + AGAIN_SECONDS)
        if now < self.tries_at:
            return False
        self.slots_error, self.tries_at = 0, inf
        return lacks

    def unknown(self, commit: Commit) -> bool:
        """Return whether a committed offset is not known here. Then Kafka must be asked before the commit."""
        return any(place not in self.positions for place in commit.places)

    def shares(self, member: Member, commit: Commit) -> bool:
        """Return whether the commit has a partition for which the member commits by key ranges."""
        return any(member.commits(place) is not None for place in commit.places)

    def strange(self, member: Member, commit: Commit) -> bool:
        # Kafka would take a commit for another partition as one for all keys.
        return any(not member.has(place) and member.commits(place) is None for place in commit.places)

    def learn(self, read: "Read") -> None:
        """Store committed offsets, unless they are incomplete."""
        if len(self.positions) > MAX_PARTITIONS:
            self.positions.clear()  # Kafka still has the offsets
            self.texts.clear()
            self._read_at.clear()
        for entry in read.entries:
            place = entry.place
            if entry.offset < 0:
                self.positions[place] = Positions.all_at(self._lowest(place))
            elif (positions := read.positions.get(place)) is not None:
                self.positions[place] = self._with_own(place, positions)
                self.texts[place] = read.texts[place]
            else:
                self.positions.pop(place, None)
        if read.slots is not None:
            self.slots = read.slots | self._own_slots()

    def _present(self) -> Iterator[Member]:
        return (member for member in self._synced if member.generation == self._generation)

    def _with_own(self, place: TopicPartition, positions: Positions) -> Positions:
        """Return the offsets that were read, with what members behind this gateway have committed since."""
        known = self.positions.get(place)
        if known is not None:
            for member in self._present():
                if self.seat(member, [place]) and (ranges := member.commits(place)) is not None:
                    positions = positions.within(known, ranges)
        return positions

    def _own_slots(self) -> dict[int, Slot]:
        # A coordinator that has just taken over from another one may at first return earlier ones.
        numbers = {seat.number for member in self._present() if (seat := member.assignment.seat) is not None}
        return {number: self.slots[number] for number in numbers if number in self.slots}

    def seat(self, member: Member, places: Iterable[TopicPartition]) -> Seat | None:
        seat = member.assignment.seat
        return seat if seat is not None and not seat.places.isdisjoint(places) else None

    def learned(self, places: Iterable[TopicPartition], now: float) -> None:
        self._read_at.update(dict.fromkeys(places, now))

    def is_stale(self, seat: Seat, places: Iterable[TopicPartition], now: float) -> bool:
        # A slot is read before it is written for the first time, as it may have other partitions. After that,
        # only other gateways can have committed anything else.
        if seat.number not in self.slots:
            return True
        oldest = min((self._read_at.get(place, -inf) for place in places), default=now)
        return seat.several and now - oldest >= FRESH_SECONDS

    def slot(self, member: Member, seat: Seat, moved: dict[TopicPartition, Positions]) -> Slot:
        """Return the content of a member's slot after a commit."""
        # What the slot has of other partitions stays. It may be from the member that had the slot in an
        # earlier plan, and is valid until the map of the partition has the new plan.
        before = self.slots.get(seat.number, {})
        slot = {place: stored for place, stored in before.items() if place not in moved}
        for place, positions in moved.items():
            ranges = member.commits(place)
            if place in seat.places and ranges is not None:
                slot[place] = Stored(seat.plan, ranges, narrowed(positions, ranges))
        return slot

    def idle(self, member: Member) -> list[Entry]:
        """Return the offsets that an idle member has to commit so that it does not hold back the lowest one.

        It has committed all its records, and the next offsets have none for it. Other gateways don't know
        that, and an application without records commits nothing.
        """
        seat, found = member.assignment.seat, []
        for place in seat.places if seat is not None else ():
            positions, ranges = self.positions.get(place), member.ranges(place)
            if positions is not None and ranges is not None and _idle(member, place, positions) != positions:
                topic, partition = place
                found.append(
                    Entry(topic, partition, positions.lowest(ranges), metadata=self.texts.get(place))
                )
        return found

    def _lowest(self, place: TopicPartition) -> int:
        # The group has no committed offset for the partition. With the committing member's own offset,
        # records of members that have not committed yet would be lost.
        first = [member.first[place] for member in self.members if place in member.first]
        return min(first, default=0)

    # Commits

    def moved(self, member: Member, commit: Commit) -> dict[TopicPartition, Positions]:
        """Return the offsets of all hashes as they will be when Kafka has accepted a commit."""
        found: dict[TopicPartition, Positions] = {}
        for entry in commit.entries:
            place = entry.place
            ranges = member.commits(place)
            if ranges is None:  # the member commits for all keys
                continue
            before = found.get(place) or self.positions[place]
            progress = member.at(place)
            after = before.moved(ranges, progress.scan.after(entry.offset))
            started = progress.started
            if started is not None and entry.offset >= started.lowest(ranges):
                after = after.at_least(started, ranges)
            for other in self.members:
                if other is not member:
                    after = _idle(other, place, after)
            found[place] = after
        return found

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Forget the committed offsets of partitions: Kafka's may differ. The next commit requests them."""
        for place in places:
            self.positions.pop(place, None)


def with_positions(
    commit: Commit, moved: dict[TopicPartition, Positions], seat: Seat | None = None, *, maps: bool = True
) -> list[Entry]:
    """Return the offsets for the broker: the lowest one of each partition, with the map in the metadata.

    Without `maps`, because one is too large for the broker (error 12), some records are read again, but none
    is lost.
    """
    entries = []
    for entry in commit.entries:
        place = entry.place
        positions, own = moved.get(place), _text(entry.metadata)
        if positions is None:
            entries.append(entry)
            continue
        base = positions.base
        plan = Plan(seat.plan, seat.slots) if seat is not None and place in seat.places else None
        metadata = committed_metadata(positions, own, plan=plan) if maps else without_map(own)
        epoch = entry.leader_epoch if base == entry.offset else NO_EPOCH
        said = entry.metadata if metadata == own else _bytes(metadata)
        entries.append(Entry(entry.topic, entry.partition, base, epoch, said))
    return entries


def slot_entry(topic: bytes, number: int, slot: Slot) -> Entry:
    """Return a slot for the broker."""
    offset = NO_OFFSET if topic == SLOTS else 0
    return Entry(topic, number, offset, metadata=_bytes(slot_metadata(slot)))


class Read:
    """Committed offsets in a response. `slots` of them were requested together with the partitions."""

    __slots__ = ("entries", "error", "failed", "needed", "positions", "slots", "slots_error", "texts")

    def __init__(self, entries: Iterable[Entry], slots_topic: bytes, slots: int = 0) -> None:
        found = list(entries)
        self.entries = [entry for entry in found if entry.topic != slots_topic]
        """The entries without those of slots."""
        self.error = next((entry.error_code for entry in self.entries if entry.error_code), 0)
        """The first error code, or 0."""
        self.failed = 0
        """The error code of the whole response, or 0."""
        self.positions: dict[TopicPartition, Positions] = {}
        """The committed offset of each hash, for each partition of which it is known."""
        self.texts: dict[TopicPartition, bytes | None] = {}
        """The application's own metadata."""
        seats = [entry for entry in found if entry.topic == slots_topic]
        self.slots_error = next((entry.error_code for entry in seats if entry.error_code), 0)
        """The error code of a slot that can't be read, or 0. The maps alone then have to do."""
        self.slots = {entry.partition: read_slot(_text(entry.metadata)) for entry in seats} if slots else None
        self.needed = 0
        """If not 0, the offsets have to be requested again, with this number of slots."""
        for entry in self.entries:
            if entry.error_code or entry.offset < 0:
                continue
            place = entry.place
            committed = read_committed(entry.offset, _text(entry.metadata))
            needed = 0 if committed.plan is None else min(committed.plan.slots, MAX_SLOTS)
            if needed > slots:
                self.needed = max(self.needed, needed)
            else:
                self.positions[place] = resolved(place, committed, self.slots or {})
                self.texts[place] = None if entry.metadata is None else _bytes(committed.metadata)


def own_offset(member: Member, entry: Entry, read: Read) -> Entry:
    """Return the committed offset of one member, with its application's own metadata.

    For some hashes, the group may have committed a higher offset. `Progress.started` keeps these offsets, so
    that the member does not get the records before them.
    """
    place = entry.place
    ranges = member.ranges(place)
    positions = None if entry.error_code or entry.offset < 0 else read.positions.get(place)
    member.tracked(place).start(positions, ranges)
    if positions is None:
        return entry
    offset = positions.base if ranges is None else positions.lowest(ranges)
    epoch = entry.leader_epoch if offset == entry.offset else NO_EPOCH
    return Entry(entry.topic, entry.partition, offset, epoch, read.texts[place])


def _idle(member: Member, place: TopicPartition, positions: Positions) -> Positions:
    """Move the offsets of an idle member past records of others, so that the lowest offset can move on."""
    ranges = member.ranges(place)
    if ranges is None or member.presence.frozen:
        return positions
    at, progress = positions.lowest(ranges), member.at(place)
    if at <= progress.delivered or positions.highest(ranges) != at:
        return positions  # it has not committed all its records
    after = progress.scan.after(at)
    return positions if after == at else positions.moved(ranges, after)


def _text(metadata: bytes | None) -> str:
    return (metadata or b"").decode(_TEXT, "surrogateescape")


def _bytes(metadata: str) -> bytes:
    return metadata.encode(_TEXT, "surrogateescape")
