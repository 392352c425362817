"""The state of a member of a cooperative group: its lanes, and the records that it got."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from proxy.features.cooperative.assignment import ANY, NOTHING, Assignment
from proxy.features.cooperative.positions import Positions, TopicPartition
from proxy.features.cooperative.presence import ABSENT_SECONDS, Presence, State
from proxy.features.cooperative.progress import Progress
from proxy.features.cooperative.ranges import FULL, KeyRanges, Split
from proxy.features.cooperative.tally import FilterTally, LaneSeen
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.primitives import TooMany

_HEARTBEATS: Final = 2
"""After this many heartbeats, the client has certainly read its assignment. It has only one heartbeat in
flight. So a client that sends the second one has read the response to the first, and everything before that
on this connection. franz-go sends heartbeats on another connection, but only after it has read the
assignment."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Member:
    """A client with a lane: its client.id declares it, or its group assigns it."""

    tally: FilterTally
    declared: KeyRanges | None = None
    """The declared key ranges, for every partition. Empty if the client.id declares a named lane. None if the
    client is a member of a group."""
    keeps: bool = False
    """Whether the client keeps its position and unprocessed records in a partition that is taken and assigned
    again (`plan.Joined.keeps`)."""
    keeps_position: bool = False
    """Whether the client keeps an earlier position, or possibly keeps it. Then the member has to release all
    its partitions and join again."""
    # Its membership
    group: bytes = b""
    """The group that the member has joined, or the group that owns its declared lane. The group of a declared
    lane is named in the client.id, or for a named lane in the options file. If the client.id names no group,
    it is the first cooperative group for which the member commits or requests offsets. Empty until the group
    is known."""
    member_id: bytes = b""
    generation: int = -1
    instance: bytes | None = None
    """The group_instance_id in the member's last SyncGroup."""
    presence: Presence = field(default_factory=Presence)
    heartbeats: int = 0
    """How many heartbeats the member has sent since its last assignment, on all its connections."""
    # What it has, and how far it is
    assignment: Assignment = field(default_factory=Assignment)
    progress: dict[TopicPartition, Progress] = field(default_factory=dict)
    first: dict[TopicPartition, int] = field(default_factory=dict)
    """The lowest offset from which the member has fetched each partition."""
    _split: Split | None = None
    """The split of all partitions by the declared key ranges."""

    def __post_init__(self) -> None:
        if self.declared is not None:
            self.presence.state = State.DECLARED
            self._split = Split([self.declared]) if self.declared else None

    def __repr__(self) -> str:
        lanes = len(self.assignment.lanes)
        return f"<Member {self.presence.state.name} declared={self.declared} lanes={lanes}>"

    # Its group

    def moves(self) -> None:
        """Record that the member joins on a new connection. Possibly it does not know its last assignment.

        kafka-go uses a new connection for each generation. If the gateway made it join again at its first
        heartbeat, it would join again and again. At the second heartbeat it knows its assignment.
        """
        self.keeps_position = self.assignment.number > 0

    def removed(self) -> None:
        """Record that the coordinator has refused the member id with which the client joins."""
        # It joins as a new member next. kafka-python keeps its position and unprocessed records all the same.
        self.keeps_position = self.keeps_position or self.keeps

    @property
    def has_heard(self) -> bool:
        """Whether the client has certainly read its last assignment."""
        return self.assignment.number > 0 and self.heartbeats >= _HEARTBEATS

    def joins_again(self, now: float) -> bool:
        given = self.assignment
        if self.presence.frozen:
            return self.presence.state is State.UNKNOWN
        if now < given.waits_until:
            return False
        if given.gave_up_all and not self.has_heard:
            return False
        if given.anew_at > -inf and self.keeps_position:  # again: only the application can set it so
            return now >= self.presence.alone_from
        return self.keeps_position or given.lanes.keys() != given.planned.keys()

    @property
    def begun(self) -> bool:
        """Whether the member has fetched from all partitions without a committed offset."""
        begins = self.assignment.begins
        return bool(begins) and begins <= self.first.keys()

    def synced(
        self,
        given: Assignment,
        now: float,
        owned: Collection[TopicPartition] = frozenset(),
        *,
        unknown: bool = False,
    ) -> None:
        """Give the member its lanes.

        In the partitions `owned`, the client keeps its position, or still has to commit. They do not count if
        its lanes were `unknown`: this process did not know them when the member joined. The group certainly
        knew the member at the time `now`, when it sent its SyncGroup.
        """
        before = self.assignment
        had, owned = ({}, ()) if unknown else (before.lanes, owned)
        goes_on = {*owned, *had} if self.keeps else owned
        kept = {place for place in goes_on if had.get(place, ()) == given.lanes.get(place)}
        has_shared = before.has_shared or not given.plain
        self.assignment = replace(
            given,
            number=before.number + 1,
            released={place: had[place] for place in owned if place in had and place not in kept},
            has_shared=has_shared,
            untold=NOTHING if has_shared else ANY,
            gave_up_all=self.keeps_position,
            anew_at=now if before.gave_up_all and self.has_heard else -inf,
            waits_until=self.presence.since + ABSENT_SECONDS if unknown else -inf,
        )
        self.first = {place: offset for place, offset in self.first.items() if place in kept}
        self.progress = {
            place: each.kept(self.assignment)
            if place in kept
            else each.left(self.assignment, released=place in self.assignment.released)
            for place, each in self.progress.items()
            if place in kept or place in owned
        }
        self.keeps_position, self.heartbeats = False, 0
        self.presence.synced(now)

    def assigned(self, now: float) -> None:
        """Give the member whole partitions, because its broker assigns them (KIP-848)."""
        if self.presence.state is not State.BROKERS:
            self.synced(Assignment(plain=True), now)
            self.presence.state = State.BROKERS

    def seen(
        self, positions: Mapping[TopicPartition, Positions], ends: Mapping[TopicPartition, int]
    ) -> tuple[str, list[LaneSeen]]:
        """Return the member's state (`MemberSeen.state`) and its lanes, for the reports."""
        given, seat, frozen = self.assignment, self.assignment.seat, self.presence.frozen
        places = given.lanes or dict.fromkeys(self.first, self.declared or ())
        lanes: list[LaneSeen] = []
        for place, ranges in sorted(places.items()):
            if not ranges:
                continue
            position = positions[place].lowest(ranges) if place in positions else None
            lag = None
            if position is not None and place in ends:
                lag = max(ends[place] - self.at(place).scan.after(position), 0)
            topic = place[0].decode(errors="replace")
            across = seat is not None and seat.several and place in seat.places
            lanes.append(
                LaneSeen(
                    topic=topic, partition=place[1], ranges=ranges, position=position, lag=lag, across=across
                )
            )
        if self.member_id or (self.declared is None and frozen):
            state = "frozen" if frozen else "plain" if given.plain else "shares"
        else:
            state = "declared"
        return state, [] if frozen or given.plain else lanes

    # Its lanes

    def has(self, place: TopicPartition) -> bool:
        """Return whether the member has a partition, as a whole or only some key ranges of it."""
        return self.declared is not None or self.assignment.plain or place in self.assignment.lanes

    def is_behind(self, generation: int) -> bool:
        # A client knows the generation before it has its lanes, and the coordinator takes its commits then.
        # Or another process has given the member its lanes.
        return self.presence.has_coordinator and generation > self.generation

    def commits(self, place: TopicPartition) -> KeyRanges | None:
        """Return the key ranges for which the member commits a partition, or None for all keys."""
        return self.assignment.released.get(place) or self.ranges(place)

    def ranges(self, place: TopicPartition) -> KeyRanges | None:
        """Return the member's key ranges of a partition, or None if the member has no lane there."""
        return self.declared or self.assignment.lanes.get(place)

    def lane(self, place: TopicPartition, offset: int) -> tuple[Split, list[int]] | None:
        """Return the split of a partition, and for each step of the split the lowest offset to keep.

        Return None if the member gets all records unchanged.
        """
        ranges, progress = self.ranges(place), self.at(place)
        if ranges is None or (ranges == FULL and progress.started is None):
            return None
        return progress.lane(offset, ranges, self._split)

    # Its progress

    def at(self, place: TopicPartition) -> Progress:
        """Return the progress in a partition, to read it."""
        return self.progress.get(place) or Progress(self.assignment)

    def tracked(self, place: TopicPartition, most: int = MAX_PARTITIONS) -> Progress:
        """Return the progress in a partition, to change it. It is kept if there are fewer than `most`."""
        found = self.progress.get(place)
        if found is None:
            found = Progress(self.assignment)
            if len(self.progress) < most:
                self.progress[place] = found
        return found

    def fetches(self, offsets: Iterable[tuple[TopicPartition, int]], now: float) -> None:
        """Note the offsets from which the member fetches partitions.

        Raises:
            TooMany: the member has too many partitions.
        """
        presence, first = self.presence, self.first
        judged = presence.has_coordinator and presence.gets(presence.epoch, now)
        for place, offset in offsets:
            # As many may have been told, and never be fetched.
            progress = self.tracked(place, 2 * MAX_PARTITIONS)
            if place not in self.progress or (place not in first and len(first) >= MAX_PARTITIONS):
                raise TooMany(f"a member of more than {MAX_PARTITIONS} partitions")
            if progress.jumped or (judged and progress.jumps(offset, presence.alone_from, now)):
                continue
            if 0 <= offset < first.get(place, offset + 1):
                first[place] = offset
            started, ranges = progress.started, self.ranges(place)
            if started is not None and ranges is not None and offset < started.lowest(ranges):
                progress.start(None, ranges)  # the application reads processed records again

    def goes_on(self, places: Iterable[TopicPartition]) -> bool:
        """Return whether the member may get records of all `places`.

        Return False if the client still has to request the committed offset of one of these partitions. If it
        has certainly read its assignment, also note that it keeps its position (`keeps_position`).
        """
        progress = self.progress
        if not any(place in progress and progress[place].jumped for place in places):
            return True
        self.keeps_position = self.keeps_position or self.has_heard
        return False

    def may_commit(self, place: TopicPartition, offset: int, committed: Positions | None) -> bool:
        """Return whether a commit is for records that this process has sent, or does not raise the offset."""
        if not self.presence.has_coordinator or self.at(place).reaches(offset):
            return True
        ranges = self.commits(place)
        return committed is not None and ranges is not None and offset <= committed.lowest(ranges)

    def forget_fetches(self) -> None:
        """Forget which partitions the member has fetched, and how far. It may go on from anywhere."""
        self.first.clear()
        self.assignment = replace(self.assignment, untold=ANY)
        self.progress = {
            place: replace(each, since=self.assignment, sent=None, known_at=None)
            for place, each in self.progress.items()
            if each.jumped or each.started is not None or each.scan.high >= 0 or each.end is not None
        }
