"""The state of a cooperative group in this process: the committed offset of each hash of its partitions.

Kafka stores these offsets (`proxy.cooperative.positions`). With the copy here, a commit needs no request for
them first. A commit changes the copy only when the broker has accepted it. Each commit for key ranges writes
the offsets of all hashes, so these commits of a group are sent one after another.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias
from weakref import WeakSet

from proxy.cooperative.member import Member
from proxy.cooperative.offsets import NO_EPOCH, NO_OFFSET, Commit, Entry
from proxy.cooperative.positions import (
    Positions,
    TopicPartition,
    committed_metadata,
    read_committed,
    without_map,
)
from proxy.protocol.fetch_request import MAX_PARTITIONS

Goes: TypeAlias = Callable[[float], None]
"""Continues a commit when its turn has come. Takes the time in seconds."""
_TEXT: Final = "utf-8"


class Group:
    """A cooperative group.

    Args:
        name: the group.id.
    """

    __slots__ = (
        "_generation",
        "_holder",
        "_synced",
        "_waiting",
        "changes",
        "exclusive",
        "members",
        "name",
        "positions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.positions: dict[TopicPartition, Positions] = {}
        """The committed offset of each hash, for each known partition."""
        self.members = WeakSet[Member]()
        """The members that have requested the group's offsets, or have committed."""
        self._synced = WeakSet[Member]()
        """The members that have joined the group and have received their lanes."""
        self._generation = -1
        """The generation of the member that received its lanes last."""
        self.exclusive = ""
        """The reason why the group shares no partition in this generation. Empty if it may (see
        `proxy.cooperative.tally.GroupSeen.exclusive`)."""
        self.changes = 0
        """A counter that grows when a commit begins, and when it ends. While it stays the same, the committed
        offsets do not change."""
        self._holder: object = None
        """The commit whose turn it is, or None."""
        self._waiting: deque[tuple[object, Goes]] = deque()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} members={len(self.members)} partitions={len(self.positions)}>"

    # The order of commits

    @property
    def busy(self) -> bool:
        """Whether a commit is being processed."""
        return self._holder is not None

    def takes(self, who: object, go: Goes) -> bool:
        """Return True if it is this commit's turn.

        If not, return False, and call `go` when its turn comes.
        """
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

        Return False if a member of a later generation is still in the group.

        Otherwise, all members of other generations get no more records (`Member.freeze`), because their lanes
        may now belong to others. A client that was stopped or disconnected does not notice this. If another
        member has the same group_instance_id, it gets no more records either, because `member` replaces it.

        Args:
            member: the member that has synced.
            generation: the generation into which it has synced.
            instance: its group_instance_id (KIP-345), if it has one.
            now: the time in seconds.
        """
        others = [other for other in self._synced if other is not member]
        if any(other.generation > generation and other.lives(now) for other in others):
            return False
        for other in others:
            replaced = instance is not None and other.instance == instance
            if (replaced or other.generation != generation) and not other.frozen:
                other.freeze()
        if generation != self._generation:
            self._generation = generation
            self.positions.clear()  # members of other gateways may have committed in between
        member.generation, member.instance = generation, instance
        self._synced.add(member)
        return True

    # Committed offsets

    def joined(self, member: Member) -> None:
        """Note that a member has requested the group's offsets, or has committed."""
        self.members.add(member)

    def unknown(self, commit: Commit) -> bool:
        """Return whether a committed offset is not known here. Then Kafka must be asked before the commit."""
        return any(place not in self.positions for place in commit.places)

    def shares(self, member: Member, commit: Commit) -> bool:
        """Return whether the commit has a partition for which the member commits by key ranges."""
        return any(member.commits(place) is not None for place in commit.places)

    def strange(self, member: Member, commit: Commit) -> bool:
        """Return whether the commit has a partition that the member does not have.

        Kafka would take it as a commit for all keys.
        """
        return any(not member.has(place) and member.commits(place) is None for place in commit.places)

    def learn(self, entries: Iterable[Entry]) -> int:
        """Store committed offsets up to the first entry with an error. Return its error code, or 0."""
        if len(self.positions) > MAX_PARTITIONS:
            self.positions.clear()  # Kafka still has the offsets
        for entry in entries:
            if entry.error_code:
                return entry.error_code
            place = entry.topic, entry.partition
            if entry.offset < 0:
                self.positions[place] = Positions.all_at(self._lowest(place))
            else:
                self.positions[place] = read_committed(entry.offset, _text(entry.metadata)).positions
        return 0

    def _lowest(self, place: TopicPartition) -> int:
        """Return the lowest offset from which any of `members` has fetched a partition, or 0 if none has.

        It is used if the group has no committed offset for the partition. With the committing member's own
        offset, records of members that have not committed yet would be lost.
        """
        first = [member.first[place] for member in self.members if place in member.first]
        return min(first, default=0)

    # Commits

    def moved(self, member: Member, commit: Commit) -> dict[TopicPartition, Positions]:
        """Return the offsets of all hashes as they will be when Kafka has accepted a commit.

        Partitions that the member commits for all keys are left out.
        """
        found: dict[TopicPartition, Positions] = {}
        for entry in commit.entries:
            place = entry.topic, entry.partition
            ranges = member.commits(place)
            if ranges is None:
                continue
            before = found.get(place) or self.positions[place]
            after = before.moved(ranges, member.skips(place, entry.offset))
            started = member.started.get(place)
            if started is not None and entry.offset >= started.lowest(ranges):
                after = after.at_least(started, ranges)
            for other in self.members:
                if other is not member:
                    after = _idle(other, place, after)
            found[place] = after
        return found

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Forget the committed offsets of partitions, because Kafka's may differ.

        The next commit requests them.
        """
        for place in places:
            self.positions.pop(place, None)


def with_positions(commit: Commit, moved: dict[TopicPartition, Positions], *, maps: bool = True) -> bytes:
    """Return the commit for the broker: the lowest offset of each partition, with the map in the metadata.

    Args:
        commit: the member's commit.
        moved: the map of each partition: the offsets of all hashes.
        maps: False if a map is too large for the broker (error 12). Without maps some records are read again,
            but none is lost.
    """
    entries = []
    for entry in commit.entries:
        positions, own = moved.get((entry.topic, entry.partition)), _text(entry.metadata)
        if positions is None:
            entries.append(entry)
            continue
        base = positions.base
        metadata = committed_metadata(positions, own) if maps else without_map(own)
        epoch = entry.leader_epoch if base == entry.offset else NO_EPOCH
        said = entry.metadata if metadata == own else metadata.encode(_TEXT, "surrogateescape")
        entries.append(Entry(entry.topic, entry.partition, base, epoch, said))
    return commit.with_entries(entries)


def own_offset(member: Member, entry: Entry) -> Entry:
    """Return the committed offset of one member, with its application's own metadata.

    For some hashes, the group may have committed a higher offset. `Member.started` keeps these offsets, so
    that the member does not get the records before them.
    """
    place = entry.topic, entry.partition
    if entry.error_code or entry.offset < 0:
        member.start(place, None)
        return entry
    committed = read_committed(entry.offset, _text(entry.metadata))
    member.start(place, committed.positions)
    ranges = member.ranges(place)
    offset = entry.offset if ranges is None else committed.positions.lowest(ranges)
    epoch = entry.leader_epoch if offset == entry.offset else NO_EPOCH
    metadata = None if entry.metadata is None else committed.metadata.encode(_TEXT, "surrogateescape")
    return Entry(entry.topic, entry.partition, offset, epoch, metadata)


def _idle(member: Member, place: TopicPartition, positions: Positions) -> Positions:
    """Move the offsets of an idle member past records of others, so that the lowest offset can move on.

    A member is idle if it has committed all its records.
    """
    ranges = member.ranges(place)
    if ranges is None or member.frozen:
        return positions
    at = positions.lowest(ranges)
    if at <= member.delivered.get(place, NO_OFFSET) or positions.highest(ranges) != at:
        return positions
    after = member.skips(place, at)
    return positions if after == at else positions.moved(ranges, after)


def _text(metadata: bytes | None) -> str:
    return (metadata or b"").decode(_TEXT, "surrogateescape")
