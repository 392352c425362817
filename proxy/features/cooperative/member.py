"""The state of a member of a cooperative group: its lanes, and the records that it got."""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from math import inf
from typing import Final

from proxy.features.cooperative.filtered import Scan
from proxy.features.cooperative.plan import Lanes
from proxy.features.cooperative.positions import Positions, TopicPartition
from proxy.features.cooperative.presence import ABSENT_SECONDS, Presence, Progress
from proxy.features.cooperative.ranges import FULL, KeyRanges, Split
from proxy.features.cooperative.slots import Seat
from proxy.features.cooperative.tally import FilterTally, LaneSeen
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.primitives import TooMany

_HEARTBEATS: Final = 2
"""After this many heartbeats, the client has certainly read its assignment. It has only one heartbeat in
flight. So a client that sends the second one has read the response to the first, and everything before that
on this connection. franz-go sends heartbeats on another connection, but only after it has read the
assignment."""


class State(Enum):
    """What this process knows of a member in its group. It decides whether the member gets records."""

    DECLARED = "declared"
    """The member's lane is declared in its client.id. No group assigns lanes to this member."""
    UNKNOWN = "unknown"
    """This process has not seen the member join, so it may have joined before this process knew it. The
    member gets no records until it has joined again."""
    FROZEN = "frozen"
    """The member is joining, or its group may have continued without the member. The member gets no records
    until its next SyncGroup."""
    ASSIGNED = "assigned"
    """The member has its assignment from SyncGroup, and gets its records."""
    BROKERS = "assigned by brokers"
    """A broker assigns whole partitions to the member (KIP-848)."""


class Member:
    """A client with a lane: its client.id declares it, or its group assigns it."""

    __slots__ = (
        "__weakref__",
        "_begins_anew",
        "_gave_up_all",
        "_has_shared",
        "_splits",
        "_waits_until",
        "begins",
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
        "keeps_position",
        "lanes",
        "member_id",
        "plain",
        "planned",
        "presence",
        "progress",
        "rebalance_seconds",
        "released",
        "scans",
        "seat",
        "session_seconds",
        "settled_at",
        "started",
        "state",
        "syncs",
        "tally",
        "unasked",
    )

    def __init__(self, tally: FilterTally, declared: KeyRanges | None = None) -> None:
        self.declared = declared
        """The declared key ranges, for every partition. Empty if the client.id declares a named lane. None if
        the client is a member of a group."""
        self.tally = tally
        self.state = State.UNKNOWN if declared is None else State.DECLARED
        self.group = b""
        """The group that the member has joined, or the group that owns its declared lane. The group of a
        declared lane is named in the client.id, or for a named lane in the options file. If the client.id
        names no group, it is the first cooperative group for which the member commits or requests offsets.
        Empty until the group is known."""
        self.member_id = b""
        self.generation = -1
        self.instance: bytes | None = None
        """The group_instance_id in the member's last SyncGroup."""
        self.keeps = False
        """Whether the client keeps its position and unprocessed records in a partition that is taken and
        assigned again (`plan.Joined.keeps`)."""
        self.session_seconds = 0.0
        self.rebalance_seconds = inf
        """The time that the coordinator gives the member to join again in a rebalance."""
        self.settled_at = -inf
        """The last time at which the group certainly was in no rebalance, in seconds."""
        self.presence = Presence()
        self.expires_at = 0.0
        """The time from which on the coordinator may have removed the member from its group, in seconds."""
        # What its group gave it
        self.lanes: Lanes = {}
        """The lanes that its group has assigned, or those of the named lane that its client.id declares."""
        self.plain = False
        """Whether the group shared no partition at the last SyncGroup: the member has whole partitions."""
        self.planned: Lanes = {}
        """The lanes that the group plans for the member. If `lanes` has other partitions, the member has to
        join again (`plan.at_once`)."""
        self.seat: Seat | None = None
        self.begins: frozenset[TopicPartition] = frozenset()
        """The partitions without a committed offset. When the member's first offset of these is committed, it
        joins again, so that the group can share them across gateways."""
        self.released: Lanes = {}
        """Lanes that the member had before and for which it may still commit. Its client releases them only
        after the rebalance."""
        self.epoch = 0
        """A number that changes whenever the member's lanes change, and when the member is frozen. If a fetch
        was sent in an earlier epoch, its response has no records for the member."""
        self.syncs = 0
        """The number of times that this process has given the member an assignment of its group."""
        self.heartbeats = 0
        """How many heartbeats the member has sent since its last assignment, on all its connections."""
        # Whether it begins where the group has committed
        self.unasked: set[TopicPartition] = set()
        """The partitions in which the member has jumped (`Progress`). It gets no records of them until its
        client requests their committed offsets. A client that does not request them continues from its
        earlier position. Then no member would read the records before that position in the new key ranges.
        (kafka-python drops an assignment that arrives just as a poll ends.)"""
        self._has_shared = False
        """Whether the group has ever assigned lanes to the member. If not, all hashes of a partition have the
        same committed offset."""
        self.keeps_position = False
        """Whether the client keeps an earlier position, or possibly keeps it. Then the member has to release
        all its partitions and join again."""
        self._waits_until = -inf
        """The time before which the member does not join again, in seconds. If this process did not know the
        member when it joined, another one may still serve its earlier lanes until then."""
        self._gave_up_all = False
        """Whether the member's last assignment was empty, because `keeps_position` was True. The member joins
        again after it has received this assignment. If it still requests no offsets after joining again, its
        application sets the positions."""
        self._begins_anew = False
        """Whether the member's assignment before the last one was empty for this reason."""
        # What it was sent
        self.progress = Progress()
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """By topic and partition. They have the offsets to skip."""
        self.first: dict[TopicPartition, int] = {}
        """The lowest offset from which the member has fetched each partition."""
        self.delivered: dict[TopicPartition, int] = {}
        """For each partition, the offset of the last record that was sent to the member."""
        self.ends: dict[TopicPartition, int] = {}
        """For each partition, the high watermark in the last response to the member that had records."""
        self.started: dict[TopicPartition, Positions] = {}
        """The committed offset of each hash when the member received its own committed offset. For some
        hashes, another member may have got further. The member gets no records before that offset."""
        self._splits: dict[TopicPartition | None, Split] = {}
        """By partition. The key None is for declared key ranges: one split for all partitions."""

    def __repr__(self) -> str:
        return f"<Member {self.state.name} declared={self.declared} lanes={len(self.lanes)}>"

    # Its group

    def joins(self, group: bytes, session_seconds: float, rebalance_seconds: float = inf) -> None:
        self.group = group
        self.session_seconds, self.rebalance_seconds = session_seconds, rebalance_seconds
        self.freeze()

    def moves(self) -> None:
        """Record that the member joins on a new connection. Possibly it does not know its last assignment.

        kafka-go uses a new connection for each generation. If the gateway made it join again at its first
        heartbeat, it would join again and again. At the second heartbeat it knows its assignment.
        """
        self.keeps_position = self.syncs > 0

    def removed(self) -> None:
        """Record that the coordinator has refused the member id with which the client joins."""
        # It joins as a new member next. kafka-python keeps its position and unprocessed records all the same.
        self.keeps_position = self.keeps_position or self.keeps

    def joined_elsewhere(self) -> None:
        """Record that another process knows the member's lanes. To get records here, it has to join again."""
        self.freeze()
        self.state = State.UNKNOWN

    def freeze(self) -> None:
        """Give the member no records until its next SyncGroup."""
        self.state = State.FROZEN
        self.epoch += 1

    def heartbeat(self) -> None:
        self.heartbeats += 1

    @property
    def has_heard(self) -> bool:
        """Whether the client has certainly read its last assignment."""
        return self.syncs > 0 and self.heartbeats >= _HEARTBEATS

    @property
    def frozen(self) -> bool:
        return self.state in _GET_NOTHING

    def joins_again(self, now: float) -> bool:
        if self.frozen:
            return self.state is State.UNKNOWN
        if now < self._waits_until:
            return False
        if self._gave_up_all and not self.has_heard:
            return False
        if self._begins_anew and self.keeps_position:  # again: only the application can set it so
            return now >= self.presence.alone_from
        return self.keeps_position or self.lanes.keys() != self.planned.keys()

    @property
    def begun(self) -> bool:
        """Whether the member has fetched from all partitions without a committed offset (`begins`)."""
        return bool(self.begins) and self.begins <= self.first.keys()

    def synced(
        self,
        lanes: Lanes | None,
        planned: Lanes,
        now: float,
        owned: Collection[TopicPartition] = frozenset(),
        seat: Seat | None = None,
        begins: Collection[TopicPartition] = frozenset(),
        *,
        unknown: bool = False,
    ) -> None:
        """Give the member its lanes: None if its group shares no partition.

        In the partitions `owned`, the client keeps its position, or still has to commit. They do not count if
        its lanes were `unknown`: this process did not know them when the member joined. The group certainly
        knew the member at the time `now`, when it sent its SyncGroup.
        """
        self.seat, self.begins = seat, frozenset(begins)
        self._has_shared = self._has_shared or lanes is not None
        self._begins_anew = self._gave_up_all and self.has_heard
        self.keeps_position, self._gave_up_all = False, self.keeps_position
        self.unasked.clear()
        before, self.lanes = {} if unknown else self.lanes, lanes or {}
        owned = () if unknown else owned
        goes_on = {*owned, *before} if self.keeps else owned
        self.plain, self.planned = lanes is None, planned
        kept = {place for place in goes_on if before.get(place, ()) == self.lanes.get(place)}
        self.released = {place: before[place] for place in owned if place in before and place not in kept}
        self.state = State.ASSIGNED
        self.epoch += 1
        self.syncs += 1
        self.heartbeats = 0
        self.presence.joining = False
        self._waits_until = self.presence.since + ABSENT_SECONDS if unknown else -inf
        self._forget_but(kept)
        began = now if self._begins_anew else -inf
        self.progress.begin({*owned, *kept}, began, anywhere=not self._has_shared)
        self.confirm(now)

    def _forget_but(self, kept: Collection[TopicPartition]) -> None:
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
        """Return whether the member may get records of all `places`.

        Return False if the client still has to request the committed offset of one of these partitions. If it
        has certainly read its assignment, also note that it keeps its position (`keeps_position`).
        """
        if self.unasked.isdisjoint(places):
            return True
        self.keeps_position = self.keeps_position or self.has_heard
        return False

    def assigned(self, now: float) -> None:
        """Give the member whole partitions, because its broker assigns them (KIP-848)."""
        if self.state is not State.BROKERS:
            self.synced(None, {}, now)
            self.state = State.BROKERS

    def confirm(self, now: float, *, settled: bool = True) -> None:
        """Record that the group knew the member at this time, and start the session timeout anew."""
        if settled:
            self.settled_at = max(self.settled_at, now)
        # In a rebalance the coordinator removes a member that does not join in time, although it sends
        # heartbeats. The rebalance began after `settled_at`.
        until = min(now + self.session_seconds, self.settled_at + self.rebalance_seconds)
        self.expires_at = max(self.expires_at, until)

    def lives(self, now: float) -> bool:
        """Return whether the member is still in the group at time `now`, as far as the gateway can tell."""
        return not self.frozen and now <= self.expires_at

    def gets(self, epoch: int, now: float) -> bool:
        """Return whether the member still gets the records that it requested when its epoch was `epoch`."""
        if self.state is State.ASSIGNED and not (now <= self.expires_at and self.presence.is_here(now)):
            return False  # its lanes may already belong to other members, or it may have other lanes
        return not self.frozen and epoch == self.epoch

    def seen(
        self, positions: Mapping[TopicPartition, Positions], ends: Mapping[TopicPartition, int]
    ) -> tuple[str, list[LaneSeen]]:
        """Return the member's state (`MemberSeen.state`) and its lanes, for the reports."""
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
            across = self.seat is not None and self.seat.several and place in self.seat.places
            lanes.append(
                LaneSeen(
                    topic=topic, partition=place[1], ranges=ranges, position=position, lag=lag, across=across
                )
            )
        if self.member_id or (self.declared is None and self.frozen):
            state = "frozen" if self.frozen else "plain" if self.plain else "shares"
        else:
            state = "declared"
        return state, [] if self.frozen or self.plain else lanes

    # Its lanes

    def has(self, place: TopicPartition) -> bool:
        """Return whether the member has a partition, as a whole or only some key ranges of it."""
        return self.declared is not None or self.plain or place in self.lanes

    def is_behind(self, generation: int) -> bool:
        # A client knows the generation before it has its lanes, and the coordinator takes its commits then.
        # Or another process has given the member its lanes.
        return self.has_coordinator and generation > self.generation

    @property
    def has_coordinator(self) -> bool:
        """Whether the member's group assigns its lanes, in this process or another one."""
        return self.state not in {State.DECLARED, State.BROKERS}

    def may_commit(self, place: TopicPartition, offset: int, committed: Positions | None) -> bool:
        """Return whether a commit is for records that this process has sent, or does not raise the offset."""
        if not self.has_coordinator or self.progress.reaches(place, offset):
            return True
        ranges = self.commits(place)
        return committed is not None and ranges is not None and offset <= committed.lowest(ranges)

    def jumps(self, place: TopicPartition, offset: int, now: float) -> bool:
        """Return whether the member fetches past records that this process has not sent (`Progress`)."""
        if not (self.has_coordinator and self.gets(self.epoch, now)):
            return False
        return self.progress.jumps(place, offset, self.presence.alone_from, now)

    def commits(self, place: TopicPartition) -> KeyRanges | None:
        """Return the key ranges for which the member commits a partition, or None for all keys."""
        return self.released.get(place) or self.ranges(place)

    def ranges(self, place: TopicPartition) -> KeyRanges | None:
        """Return the member's key ranges of a partition, or None if the member has no lane there."""
        return self.declared or self.lanes.get(place)

    def scan(self, topic: bytes, partition: int) -> Scan:
        return self.scans.setdefault(topic, {}).setdefault(partition, Scan())

    def fetches(self, place: TopicPartition, offset: int) -> None:
        """Record the offset from which the member fetches a partition.

        Raises:
            TooMany: the member has fetched from too many partitions.
        """
        if 0 <= offset < self.first.get(place, offset + 1):
            if place not in self.first and len(self.first) >= MAX_PARTITIONS:
                raise TooMany(f"a member of more than {MAX_PARTITIONS} partitions")
            self.first[place] = offset
        started, ranges = self.started.get(place), self.ranges(place)
        if started is not None and ranges is not None and offset < started.lowest(ranges):
            self.start(place, None)  # the application reads processed records again

    def start(self, place: TopicPartition, positions: Positions | None) -> None:
        """Set the committed offset of each hash of a partition: the member gets no records before it.

        If `positions` is None, the member gets all records from its fetch offset on.
        """
        self._splits.pop(place, None)
        before, ranges = self.started.pop(place, None), self.ranges(place)
        if positions is None or ranges is None or positions.lowest(ranges) == positions.highest(ranges):
            positions = None
        else:
            self.started[place] = positions
        if before is not None and before != positions:
            self.forget(*place)  # the scan skips records that others had processed

    def lane(self, place: TopicPartition, offset: int) -> tuple[Split, list[int]] | None:
        """Return the split of a partition, and for each step of the split the lowest offset to keep.

        Return None if the member gets all records unchanged.
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
        """Return the next offset that may have a record for the member. It is at least `offset`."""
        scan = self.scans.get(place[0], {}).get(place[1])
        return offset if scan is None else scan.after(offset)

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget which offsets of a partition to skip, because the log may have changed."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)


_GET_NOTHING: Final = frozenset({State.UNKNOWN, State.FROZEN})
