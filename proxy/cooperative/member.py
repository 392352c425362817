"""The gateway's knowledge of a member of a cooperative group: its lanes, and the records that it was sent."""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final

from proxy.cooperative.filtered import Scan
from proxy.cooperative.plan import Lanes
from proxy.cooperative.positions import Positions, TopicPartition
from proxy.cooperative.ranges import FULL, KeyRanges, Split, within
from proxy.cooperative.tally import FilterTally, LaneSeen
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.primitives import TooMany

_HEARTBEATS: Final = 2
"""After this many heartbeats, a client has read the assignment that came before them. It never has two
heartbeats in flight. So with the second one it has read the response to the first one, and everything
before that on this connection. A client that sends heartbeats on another connection (franz-go) does so
after it has read its assignment."""


class State(Enum):
    """A member's relation to its group, as far as this process knows."""

    DECLARED = "declared"
    """It has the lane that its client.id declares. No group gives it lanes."""
    UNKNOWN = "unknown"
    """It joined its group before this process knew it. It has to join again, and gets nothing until then."""
    FROZEN = "frozen"
    """It is joining, or its group may have gone on without it. It gets nothing until it has synced."""
    ASSIGNED = "assigned"
    """It has synced, and gets the records of its lanes."""


class Member:
    """A client with a lane: one that it declares, for every partition, or lanes that its group gives it.

    Args:
        tally: the tally of the process.
        declared: its key ranges on every partition that it fetches. Empty if it declares a lane by name. None
            if it is a member of a group.
    """

    __slots__ = (
        "__weakref__",
        "_gave_up_all",
        "_given",
        "_has_shared",
        "_kept_position",
        "_splits",
        "declared",
        "delivered",
        "ends",
        "epoch",
        "expires_at",
        "first",
        "generation",
        "group",
        "heartbeats",
        "instance",
        "keeps",
        "lanes",
        "member_id",
        "plain",
        "planned",
        "released",
        "scans",
        "session_seconds",
        "started",
        "state",
        "syncs",
        "tally",
        "unasked",
    )

    def __init__(self, tally: FilterTally, declared: KeyRanges | None = None) -> None:
        self.declared = declared
        self.tally = tally
        self.state = State.UNKNOWN if declared is None else State.DECLARED
        self.group = b""
        """The group that it has joined, or that owns its declared lane. The latter follows from its
        client.id, or is the first group for which it commits or requests offsets. Empty until it is known."""
        self.member_id = b""
        self.generation = -1
        """The generation of its last sync."""
        self.instance: bytes | None = None
        """Its group_instance_id at that time."""
        self.keeps = False
        """See `plan.Joined.keeps`."""
        self.session_seconds = 0.0
        self.expires_at = 0.0
        """When its session timeout is over, in seconds."""
        # What its group gave it
        self.lanes: Lanes = {}
        """The lanes that its group gave it, or the lanes of its declared name."""
        self.plain = False
        """Whether its group shared nothing at its last sync, so that it has whole partitions and no lanes."""
        self.planned: Lanes = {}
        """The lanes that its group plans for it. If they differ from its lanes, it has to join again
        (`plan.at_once`)."""
        self.released: Lanes = {}
        """Its earlier lanes, for which it may still commit, because its client releases them only after
        the rebalance."""
        self.epoch = 0
        """Changes with the lanes. Responses to requests of an earlier epoch are dropped."""
        self.syncs = 0
        """How often its group gave it partitions through this process."""
        self.heartbeats = 0
        """How many heartbeats it has sent since then, on any connection."""
        # Whether it begins where the group has committed
        self.unasked: set[TopicPartition] = set()
        """Partitions of which it gets nothing until it has requested their committed offsets. A client
        that does not request them keeps its earlier position. Then nobody would read the records before
        that position in its new ranges. (kafka-python forgets an assignment that arrives just as a poll
        ends.)"""
        self._given: Lanes = {}
        """Its last assignment, including whole partitions."""
        self._has_shared = False
        """Whether its group ever gave it lanes. Until then all hashes are at one offset."""
        self._kept_position = False
        """Whether it keeps an earlier position, or may. It then has to release everything, and to join
        again."""
        self._gave_up_all = False
        """Whether it was given nothing for that reason. It joins again once it knows this. If it still
        does not request offsets after that, its application sets the positions."""
        # What it was sent
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """Scans by topic (named as in the fetch) and partition."""
        self.first: dict[TopicPartition, int] = {}
        """The lowest offset that it has fetched of each partition."""
        self.delivered: dict[TopicPartition, int] = {}
        """The offset of the last record that it was sent."""
        self.ends: dict[TopicPartition, int] = {}
        """The high watermarks in the responses that had records."""
        self.started: dict[TopicPartition, Positions] = {}
        """The progress of each hash when the member received its offset. For some hashes, another member
        may have got further. This member does not get those records."""
        self._splits: dict[TopicPartition | None, Split] = {}
        """Splits by partition. None is the key of the split of all partitions for declared ranges."""

    def __repr__(self) -> str:
        return f"<Member {self.state.name} declared={self.declared} lanes={len(self.lanes)}>"

    # Its group

    def joins(self, group: bytes, session_seconds: float) -> None:
        """Note that it joins a group."""
        self.group = group
        self.session_seconds = session_seconds
        self.freeze()

    def moves(self) -> None:
        """Note that it joins on another connection than before, so it may not know its last assignment.

        A client that uses a new connection for each generation (kafka-go) must not be told at its first
        heartbeat to join again, or it would do so forever. At its second heartbeat it knows its assignment.
        """
        self._kept_position = self.syncs > 0

    def freeze(self) -> None:
        """Give it no records until it has synced."""
        self.state = State.FROZEN
        self.epoch += 1

    def heartbeat(self) -> None:
        """Note that it has sent a heartbeat."""
        self.heartbeats += 1

    @property
    def has_heard(self) -> bool:
        """Return whether its client knows its last assignment."""
        return self.syncs > 0 and self.heartbeats >= _HEARTBEATS

    @property
    def frozen(self) -> bool:
        """Whether it gets no records until it has synced."""
        return self.state in _GET_NOTHING

    @property
    def keeps_position(self) -> bool:
        """Whether its position is unknown, so that it has to release everything and to join again."""
        return self._kept_position

    @property
    def joins_again(self) -> bool:
        """Return whether it has to join its group again."""
        if self.frozen:
            return self.state is State.UNKNOWN
        if self._gave_up_all and not self.has_heard:
            return False
        return self._kept_position or self.lanes.keys() != self.planned.keys()

    def synced(
        self,
        lanes: Lanes | None,
        planned: Lanes,
        now: float,
        owned: Collection[TopicPartition] = frozenset(),
        whole: Collection[TopicPartition] = (),
    ) -> None:
        """Give it lanes.

        Args:
            lanes: its lanes from now on. None if its group shares nothing.
            planned: the lanes that it will have.
            now: in seconds.
            owned: the partitions in which its client keeps its position, or has more to commit.
            whole: its whole partitions if its group shares nothing.
        """
        self._has_shared = self._has_shared or lanes is not None
        self._begin(dict.fromkeys(whole, FULL) if lanes is None else lanes)
        before, self.lanes = self.lanes, lanes or {}
        goes_on = {*owned, *before} if self.keeps else owned
        self.plain, self.planned = lanes is None, planned
        kept = {place for place in goes_on if before.get(place, ()) == self.lanes.get(place)}
        self.released = {place: before[place] for place in owned if place in before and place not in kept}
        self.state = State.ASSIGNED
        self.epoch += 1
        self.syncs += 1
        self.heartbeats = 0
        self._forget_but(kept)
        self.confirm(now)

    def _begin(self, given: Lanes) -> None:
        """Note the partitions in which it has to begin from the committed offsets, see `unasked`."""
        self.unasked = {
            place
            for place, ranges in given.items()
            if place in self.unasked
            or not (within(ranges, self._given[place]) if place in self._given else self.has_heard)
        }
        if not self._has_shared:
            self.unasked.clear()
        self._given = given
        self._kept_position, self._gave_up_all = False, self._kept_position

    def _forget_but(self, kept: Collection[TopicPartition]) -> None:
        """Forget the records that it was sent, except in partitions in which it continues."""
        self.first = {place: each for place, each in self.first.items() if place in kept}
        self.delivered = {place: each for place, each in self.delivered.items() if place in kept}
        self.ends = {place: each for place, each in self.ends.items() if place in kept}
        self.started = {
            place: each for place, each in self.started.items() if place in kept or place in self.released
        }
        self._splits = {place: each for place, each in self._splits.items() if place in kept}
        for topic, scans in self.scans.items():
            self.scans[topic] = {each: scan for each, scan in scans.items() if (topic, each) in kept}

    def goes_on(self, places: Iterable[TopicPartition]) -> bool:
        """Return whether it may get records of partitions: its client has requested the committed offsets."""
        if self.unasked.isdisjoint(places):
            return True
        self._kept_position = self._kept_position or self.has_heard
        return False

    def assigned(self, now: float) -> None:
        """Note that a broker assigns it whole partitions."""
        if self.frozen or not self.plain:
            self.synced(None, {}, now)

    def confirm(self, now: float) -> None:
        """Note a time when the group knew the member. Its session timeout starts then."""
        self.expires_at = max(self.expires_at, now + self.session_seconds)

    def lives(self, now: float) -> bool:
        """Whether the group still counts this member, as far as the gateway can tell."""
        return not self.frozen and now <= self.expires_at

    def gets(self, epoch: int, now: float) -> bool:
        """Return whether it still gets records that it requested in this epoch."""
        if self.declared is None and not self.plain and now > self.expires_at:
            return False  # others may have its lanes already
        return not self.frozen and epoch == self.epoch

    def seen(
        self, positions: Mapping[TopicPartition, Positions], ends: Mapping[TopicPartition, int]
    ) -> tuple[str, list[LaneSeen]]:
        """Return its state (`MemberSeen.state`) and its lanes.

        Args:
            positions: the known positions of its group.
            ends: the known high watermarks.
        """
        places = self.lanes or dict.fromkeys(self.first, self.declared or ())
        lanes: list[LaneSeen] = []
        for place, ranges in sorted(places.items()):
            if not ranges:
                continue
            position = positions[place].lowest(ranges) if place in positions else None
            lag = None
            if position is not None and place in ends:
                lag = max(ends[place] - self.skips(place, position), 0)
            topic = place[0].decode(errors="replace")
            lanes.append(LaneSeen(topic=topic, partition=place[1], ranges=ranges, position=position, lag=lag))
        if self.member_id or (self.declared is None and self.frozen):
            state = "frozen" if self.frozen else "plain" if self.plain else "shares"
        else:
            state = "declared"
        return state, [] if self.frozen or self.plain else lanes

    # Its lanes

    def has(self, place: TopicPartition) -> bool:
        """Return whether it has a partition, in whole or in part.

        True if its group gives it no partitions.
        """
        return self.declared is not None or self.plain or place in self.lanes

    def commits(self, place: TopicPartition) -> KeyRanges | None:
        """Return the key ranges for which it commits, or None for the whole partition."""
        return self.released.get(place) or self.ranges(place)

    def ranges(self, place: TopicPartition) -> KeyRanges | None:
        """Return its key ranges of a partition, or None if no lane is known."""
        return self.declared or self.lanes.get(place)

    def scan(self, topic: bytes, partition: int) -> Scan:
        """Return the scan of a partition, and keep it from now on."""
        return self.scans.setdefault(topic, {}).setdefault(partition, Scan())

    def fetches(self, place: TopicPartition, offset: int) -> None:
        """Note the offset from which the member fetches a partition.

        Raises:
            TooMany: it has fetched more partitions than are tracked for a member.
        """
        if 0 <= offset < self.first.get(place, offset + 1):
            self.first[place] = offset
            if len(self.first) > MAX_PARTITIONS:
                raise TooMany(f"a member of more than {MAX_PARTITIONS} partitions")
        started, ranges = self.started.get(place), self.ranges(place)
        if started is not None and ranges is not None and offset < started.lowest(ranges):
            self.start(place, None)  # the application reads again what was done

    def start(self, place: TopicPartition, positions: Positions | None) -> None:
        """Note the progress of each hash of a partition.

        None if it may get all records from its offset on.
        """
        self._splits.pop(place, None)
        before, ranges = self.started.pop(place, None), self.ranges(place)
        if positions is None or ranges is None or positions.lowest(ranges) == positions.highest(ranges):
            positions = None
        else:
            self.started[place] = positions
        if before is not None and before != positions:
            self.forget(*place)  # what others had done was scanned as nothing for it

    def lane(self, place: TopicPartition, offset: int) -> tuple[Split, list[int]] | None:
        """Return how a partition is split for it, and for each step the lowest offset to keep.

        Return None if it gets all records unchanged.
        """
        ranges, started = self.ranges(place), self.started.get(place)
        if ranges is None or (ranges == FULL and started is None):
            return None
        key = None if self.declared and started is None else place
        split = self._splits.get(key)
        if split is None:
            split = self._splits[key] = Split([ranges], cuts=() if started is None else started.starts)
        if started is None:
            return split, [offset] * len(split.starts)
        return split, [max(offset, started.at(start)) for start in split.starts]

    def skips(self, place: TopicPartition, offset: int) -> int:
        """Return the next offset that may have a record for it, from a given offset on."""
        scan = self.scans.get(place[0], {}).get(place[1])
        return offset if scan is None else scan.after(offset)

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget the scan of a partition, because its log may have changed."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)


_GET_NOTHING: Final = frozenset({State.UNKNOWN, State.FROZEN})
