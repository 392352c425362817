"""The process's knowledge of a cooperative group: the progress of each hash of its partitions.

Kafka stores it (`proxy.cooperative.positions`). The copy here saves a request before each commit. It changes
only when the broker has accepted a commit. Each commit writes the whole map, so only one member commits at a
time.
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
"""Takes the time in seconds, and lets a member continue that has waited for its turn."""
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
        """The committed positions of each known partition."""
        self.members = WeakSet[Member]()
        """The members that have requested the group's offsets, or have committed."""
        self._synced = WeakSet[Member]()
        """The members that have joined the group and received their lanes."""
        self._generation = -1
        """The generation of the last member that received its lanes."""
        self.exclusive = ""
        """The reason why it shares nothing in its generation
        (`proxy.cooperative.tally.GroupSeen.exclusive`)."""
        self.changes = 0
        """Increases when a commit begins, and when it ends. While it does not change, the committed
        positions do not change either."""
        self._holder: object = None
        """The commit that has the turn."""
        self._waiting: deque[tuple[object, Goes]] = deque()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} members={len(self.members)} partitions={len(self.positions)}>"

    # Whose turn it is

    @property
    def busy(self) -> bool:
        """Whether a commit is under way."""
        return self._holder is not None

    def takes(self, who: object, go: Goes) -> bool:
        """Give a commit its turn and return True. If another one has it, call `go` later and return False."""
        if self._holder in {None, who}:
            self._holder = who
            self.changes += 1
            return True
        self._waiting.append((who, go))
        return False

    def release(self, who: object, now: float) -> None:
        """End the turn of a commit, or its waiting. Then it is the next commit's turn."""
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

        Return False if the group is in a later generation.

        Members that did not rejoin are frozen, because their lanes may now belong to others. A client that
        was stopped or disconnected would not know this. A member that this one replaces within the generation
        is frozen, too.

        Args:
            member: the member that has synced.
            generation: the generation into which it has synced.
            instance: its group_instance_id (KIP-345), if it has one.
            now: in seconds.
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
            self.positions.clear()  # members from elsewhere may have committed meanwhile
        member.generation, member.instance = generation, instance
        self._synced.add(member)
        return True

    # What is known

    def joined(self, member: Member) -> None:
        """Note that a member requests the group's offsets, or commits."""
        self.members.add(member)

    def unknown(self, commit: Commit) -> bool:
        """Return whether Kafka must be asked for committed offsets of the partitions before a commit."""
        return any(place not in self.positions for place in commit.places)

    def shares(self, member: Member, commit: Commit) -> bool:
        """Return whether a member commits for key ranges of any of the partitions."""
        return any(member.commits(place) is not None for place in commit.places)

    def strange(self, member: Member, commit: Commit) -> bool:
        """Return whether a member commits for a partition that it does not have.

        Such a commit would be for all keys.
        """
        return any(not member.has(place) and member.commits(place) is None for place in commit.places)

    def learn(self, entries: Iterable[Entry]) -> int:
        """Store the committed offsets of partitions. Return the first error among them, or 0."""
        if len(self.positions) > MAX_PARTITIONS:
            self.positions.clear()  # Kafka has them all
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
        """Return the lowest offset that any member has fetched.

        It is for a partition without a committed offset.

        Using the committing member's own offset would lose records of members that have not committed yet.
        """
        first = [member.first[place] for member in self.members if place in member.first]
        return min(first, default=0)

    # Commits

    def moved(self, member: Member, commit: Commit) -> dict[TopicPartition, Positions]:
        """Return the committed positions after Kafka has accepted a member's commit."""
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
        """Ask Kafka before the next commit, because its offsets may differ from the copy here."""
        for place in places:
            self.positions.pop(place, None)


def with_positions(commit: Commit, moved: dict[TopicPartition, Positions], *, maps: bool = True) -> bytes:
    """Return the commit for the broker: the lowest offset of each partition, and the map beside it.

    Args:
        commit: the member's commit.
        moved: the maps.
        maps: False if the broker has no room for a map (error 12). Then records are read again, but none is
            lost.
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
    """Return the member's own committed offset, with the application's own metadata.

    The progress of others beyond it is noted, so that the member does not get these records
    (`Member.started`).
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
    """Move an idle member past records of others. Otherwise it would keep the lowest offset back.

    It is idle if it has committed all its records.
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
