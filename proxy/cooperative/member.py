"""What the gateway knows of a member of a cooperative group: its lanes, and what it was sent."""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final

from proxy.cooperative.plan import Lanes
from proxy.cooperative.positions import Positions, TopicPartition
from proxy.cooperative.ranges import FULL, KeyRanges, Split, within
from proxy.cooperative.scan import Scan
from proxy.cooperative.tally import FilterTally, LaneSeen
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.primitives import TooMany

_HEARTBEATS: Final = 2
"""After so many heartbeats a client has read the assignment that came before them: no two of its heartbeats
are in flight at once, so with the second it has read the response to the first, and all that came before on
this connection. A client that sends them on another connection (franz-go) does so after it has read its
assignment."""


class State(Enum):
    """How a member stands with its group, as far as this process knows."""

    DECLARED = "declared"
    """It has the lane that its client.id declares. No group gives it anything."""
    UNKNOWN = "unknown"
    """It joined its group before this process knew it. It has to join again, and gets nothing until then."""
    FROZEN = "frozen"
    """It is joining, or its group may have gone on without it. It gets nothing until it has synced."""
    ASSIGNED = "assigned"
    """It has synced, and gets what its group gave it."""


class Member:
    """A client with a lane: one that it declares, for every partition, or lanes that its group gives it.

    Args:
        tally: that of the process.
        declared: its key ranges on every partition that it fetches. Empty if it declares a lane by name, None
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
        """The group that it has joined, or whose lane it declares: by its client.id, or the first group for
        which it commits or asks for offsets. Empty until that is known."""
        self.member_id = b""
        self.generation = -1
        """The generation into which it has synced last."""
        self.instance: bytes | None = None
        """Its group_instance_id then."""
        self.keeps = False
        """See `plan.Joined.keeps`."""
        self.session_seconds = 0.0
        self.expires_at = 0.0
        """When its session timeout is over, in seconds."""
        # What its group gave it
        self.lanes: Lanes = {}
        """The lanes that its group gave it, or those of the lane that it names."""
        self.plain = False
        """Whether its group shared nothing when it synced last: it has whole partitions, and no lanes."""
        self.planned: Lanes = {}
        """The lanes that its group has for it. If these are others, it has to join again (`plan.at_once`)."""
        self.released: Lanes = {}
        """What it had before and may still commit, as its client gives it up only after the rebalance."""
        self.epoch = 0
        """Changes with the lanes: what was asked for in an earlier epoch is for nobody."""
        self.syncs = 0
        """How many times its group gave it something, through this process."""
        self.heartbeats = 0
        """How many heartbeats it has sent since then, on any connection."""
        # Whether it begins where the group has committed
        self.unasked: set[TopicPartition] = set()
        """Partitions of which it gets nothing until it has asked for their committed offsets. A client that
        does not ask keeps the position that it had earlier. Nobody would read what lies before that of ranges
        that are new to it. (kafka-python forgets an assignment that comes just as a poll ends.)"""
        self._given: Lanes = {}
        """What it was given last, whole partitions as well."""
        self._has_shared = False
        """Whether its group ever gave it lanes. Until then all hashes are at one offset."""
        self._kept_position = False
        """Whether it keeps a position from before, or may. It has to give up all, and to join again."""
        self._gave_up_all = False
        """Whether it was given nothing because of that. It joins again once it has heard of it. If it still
        does not ask for offsets after that, its application sets the positions."""
        # What it was sent
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """By topic, named as in the fetch, and partition."""
        self.first: dict[TopicPartition, int] = {}
        """The lowest offset that it has fetched of each partition."""
        self.delivered: dict[TopicPartition, int] = {}
        """The offset of the last record that it was sent."""
        self.ends: dict[TopicPartition, int] = {}
        """The high watermarks in the responses that had records."""
        self.started: dict[TopicPartition, Positions] = {}
        """How far each hash was done when the member was told its offset. For some hashes another member may
        have got further: records before that are not for this one."""
        self._splits: dict[TopicPartition | None, Split] = {}
        """By partition. Under None there is the split of all partitions for declared ranges."""

    def __repr__(self) -> str:
        return f"<Member {self.state.name} declared={self.declared} lanes={len(self.lanes)}>"

    # Its group

    def joins(self, group: bytes, session_seconds: float) -> None:
        """Note that it joins a group."""
        self.group = group
        self.session_seconds = session_seconds
        self.freeze()

    def moves(self) -> None:
        """Note that it joins on another connection than before: it may not have heard of what it was given.

        A client that takes a new connection for each generation (kafka-go) must not be told to join again by
        its first heartbeat, or it would do so for ever. By its second heartbeat it has heard.
        """
        self._kept_position = self.syncs > 0

    def freeze(self) -> None:
        """Give it nothing until it has synced."""
        self.state = State.FROZEN
        self.epoch += 1

    def heartbeat(self) -> None:
        """Note that it has sent a heartbeat."""
        self.heartbeats += 1

    @property
    def has_heard(self) -> bool:
        """Whether its client has heard of what it was given last."""
        return self.syncs > 0 and self.heartbeats >= _HEARTBEATS

    @property
    def frozen(self) -> bool:
        """Whether it gets nothing until it has synced."""
        return self.state in _GET_NOTHING

    @property
    def keeps_position(self) -> bool:
        """Whether it may be anywhere in what it was given: it has to give up all, and to join again."""
        return self._kept_position

    @property
    def joins_again(self) -> bool:
        """Whether it is to join its group again."""
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
            lanes: the lanes that it has now. None if its group shares nothing.
            planned: the lanes that it is to have.
            now: in seconds.
            owned: the partitions in which its client goes on where it is, or has more to commit.
            whole: the partitions that it has if its group shares nothing.
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
        """Note in which partitions it has to begin from the committed offsets; see `unasked`."""
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
        """Forget what it was sent of all partitions but those in which it goes on."""
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
        """Whether it may get records of partitions: its client has asked for the committed offsets."""
        if self.unasked.isdisjoint(places):
            return True
        self._kept_position = self._kept_position or self.has_heard
        return False

    def assigned(self, now: float) -> None:
        """Note that a broker assigns it whole partitions."""
        if self.frozen or not self.plain:
            self.synced(None, {}, now)

    def confirm(self, now: float) -> None:
        """Note that the group knew it at a time: its session timeout counts from then."""
        self.expires_at = max(self.expires_at, now + self.session_seconds)

    def lives(self, now: float) -> bool:
        """Whether the group still counts this member, as far as the gateway can tell."""
        return not self.frozen and now <= self.expires_at

    def gets(self, epoch: int, now: float) -> bool:
        """Whether it gets what it asked for in an epoch."""
        if self.declared is None and not self.plain and now > self.expires_at:
            return False  # others may have its lanes already
        return not self.frozen and epoch == self.epoch

    def seen(
        self, positions: Mapping[TopicPartition, Positions], ends: Mapping[TopicPartition, int]
    ) -> tuple[str, list[LaneSeen]]:
        """Return its state (`MemberSeen.state`) and its lanes.

        Args:
            positions: what is known of its group's.
            ends: the high watermarks that are known.
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
        """Whether it has a partition, in whole or in part, or its group gives it none."""
        return self.declared is not None or self.plain or place in self.lanes

    def commits(self, place: TopicPartition) -> KeyRanges | None:
        """Return the key ranges for which it commits. None for the whole partition."""
        return self.released.get(place) or self.ranges(place)

    def ranges(self, place: TopicPartition) -> KeyRanges | None:
        """Return its key ranges of a partition. None if no lane is known."""
        return self.declared or self.lanes.get(place)

    def scan(self, topic: bytes, partition: int) -> Scan:
        """Return what was scanned of a partition, and keep it from now on."""
        return self.scans.setdefault(topic, {}).setdefault(partition, Scan())

    def fetches(self, place: TopicPartition, offset: int) -> None:
        """Note from which offset the member fetches a partition.

        Raises:
            TooMany: it has fetched more partitions than are tracked of a member.
        """
        if 0 <= offset < self.first.get(place, offset + 1):
            self.first[place] = offset
            if len(self.first) > MAX_PARTITIONS:
                raise TooMany(f"a member of more than {MAX_PARTITIONS} partitions")
        started, ranges = self.started.get(place), self.ranges(place)
        if started is not None and ranges is not None and offset < started.lowest(ranges):
            self.start(place, None)  # the application reads again what was done

    def start(self, place: TopicPartition, positions: Positions | None) -> None:
        """Note how far each hash of a partition is done. None if it may get all from its offset on."""
        self._splits.pop(place, None)
        before, ranges = self.started.pop(place, None), self.ranges(place)
        if positions is None or ranges is None or positions.lowest(ranges) == positions.highest(ranges):
            positions = None
        else:
            self.started[place] = positions
        if before is not None and before != positions:
            self.forget(*place)  # what others had done was scanned as nothing for it

    def lane(self, place: TopicPartition, offset: int) -> tuple[Split, list[int]] | None:
        """Return how a partition is split for it, and for each step the lowest offset that passes.

        None if all records pass, as they came.
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
        """Return the next offset, from an offset on, that may have something for it."""
        scan = self.scans.get(place[0], {}).get(place[1])
        return offset if scan is None else scan.after(offset)

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget what was scanned of a partition: its log may have changed."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)


_GET_NOTHING: Final = frozenset({State.UNKNOWN, State.FROZEN})
