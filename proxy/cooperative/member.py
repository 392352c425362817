"""What is known of a member of a cooperative group: its lane, how far it was scanned, and what it got."""

from collections.abc import Collection, Iterable, Mapping

from proxy.cooperative.plan import Lanes
from proxy.cooperative.positions import Positions, TopicPartition
from proxy.cooperative.ranges import FULL, KeyRanges, Split, within
from proxy.cooperative.scan import Scan
from proxy.cooperative.tally import FilterTally, LaneSeen
from proxy.protocol.fetch_request import MAX_PARTITIONS
from proxy.protocol.primitives import TooMany


class Member:
    """A client with a lane: one that it declares, for every partition, or those that its group gives it.

    Args:
        tally: that of the process.
        declared: its key ranges on every partition that it fetches; (): it declares a lane by name; None: it
            is a member of a group.
    """

    __slots__ = (
        "__weakref__",
        "_splits",
        "beaten",
        "declared",
        "delivered",
        "doubted",
        "ends",
        "epoch",
        "expires_at",
        "first",
        "frozen",
        "generation",
        "given",
        "group",
        "has_shared",
        "heard",
        "inherits",
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
        "syncs",
        "tally",
        "unasked",
    )

    def __init__(self, tally: FilterTally, declared: KeyRanges | None = None) -> None:
        self.declared = declared
        self.group = b""
        """The group that it has joined, or whose lane it declares, as far as that is known: by its client.id,
        or by the first group for which it asks for offsets, or commits some."""
        self.lanes: Lanes = {}
        """Of its group, since it has synced; or those of the lane that it names."""
        self.planned: Lanes = {}
        """Those that its group has for it; for some it has to join again (`plan.at_once`)."""
        self.released: Lanes = {}
        """What it had before and may still commit: its client gives it up after the rebalance, not before."""
        self.member_id = b""
        self.generation = -1
        """As it has synced last."""
        self.instance: bytes | None = None
        """Its group_instance_id then."""
        self.epoch = 0
        """Changes with the lanes: what was asked for before is for nobody."""
        self.syncs = 0
        """How many times its group gave it lanes here."""
        self.beaten = 0
        """Heartbeats since the last time, on whatever connections: franz-go joins on one of its own."""
        self.heard = 0
        """The last of these of which its client is known to have heard."""
        self.given: Lanes = {}
        """What it was given last, whole partitions as well."""
        self.has_shared = False
        """Its group had lanes for it at some time, so that hashes may be done to different offsets."""
        self.unasked: set[TopicPartition] = set()
        """The partitions whose committed offsets it has to ask for, before it gets anything of them. A client
        that asks for none goes on where it was when it had the partition before, and what lies before that of
        ranges that are new to it is read by nobody (kafka-python forgets an assignment that comes just as a
        poll ends, and keeps its positions)."""
        self.inherits = False
        """It was seen to go on so. It has to give up all, and to join again."""
        self.doubted = False
        """It has nothing since then, and joins again once it is known to have heard of that. If it asks for
        nothing after that, its application says where it begins."""
        self.frozen = declared is None
        """Its group has gone on without it, or may have: it gets nothing until it has synced."""
        self.keeps = False
        """See `plan.Joined.keeps`."""
        self.plain = False
        """Its group shares nothing: it gets all."""
        self.session_seconds = self.expires_at = 0.0
        """The session timeout of its group, and when that is over."""
        self.scans: dict[bytes, dict[int, Scan]] = {}
        """By topic and partition. A topic is named as in the fetch."""
        self.first: dict[TopicPartition, int] = {}
        """The lowest offset that was fetched of each partition."""
        self.delivered: dict[TopicPartition, int] = {}
        """The offset of the last record that went to the member."""
        self.ends: dict[TopicPartition, int] = {}
        """The high watermarks, as responses with records for it told them."""
        self.started: dict[TopicPartition, Positions] = {}
        """How far each hash was done when the member was told its offset. What lies before was another
        member's, which may have got further than this one begins."""
        self._splits: dict[TopicPartition | None, Split] = {}
        """By partition, split at the steps of these as well; None: all partitions, as declared."""
        self.tally = tally

    def __repr__(self) -> str:
        return f"<Member declared={self.declared} lanes={len(self.lanes)} frozen={self.frozen}>"

    # Its group

    def joins(self, group: bytes, session_seconds: float) -> None:
        """Note that it joins: until it has synced it gets nothing."""
        self.group = group
        self.session_seconds = session_seconds
        self.freeze()

    def moves(self) -> None:
        """Note that it joins on another connection than before, and may not have heard of what it was given.

        A client that takes a new connection for each generation (kafka-go) would join again for ever: with
        its first heartbeat it would be told to. So it is told with the second one, by which it has heard.
        """
        self.inherits = self.syncs > 0

    def freeze(self) -> None:
        """Give it nothing of what it shares until it has synced."""
        self.frozen = True
        self.epoch += 1

    @property
    def unknown(self) -> bool:
        """Whether it joined its group before this process knew it."""
        return self.frozen and not self.epoch

    @property
    def joins_again(self) -> bool:
        """Whether it is to join its group again."""
        if self.unknown or self.frozen:
            return self.unknown
        if self.doubted and self.heard != self.syncs:
            return False
        return self.inherits or self.lanes.keys() != self.planned.keys()

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
            lanes: those that it has now; None: its group shares nothing.
            planned: those that it is to have.
            now: in seconds.
            owned: the partitions of which its client goes on where it is, or has more to commit.
            whole: the partitions that it has if its group shares nothing.
        """
        self.has_shared = self.has_shared or lanes is not None
        self._begins(dict.fromkeys(whole, FULL) if lanes is None else lanes)
        before, self.lanes = self.lanes, lanes or {}
        goes_on = {*owned, *before} if self.keeps else owned
        self.plain, self.planned = lanes is None, planned
        kept = {place for place in goes_on if before.get(place, ()) == self.lanes.get(place)}
        self.released = {place: before[place] for place in owned if place in before and place not in kept}
        self.frozen = False
        self.epoch += 1
        self.syncs += 1
        self.beaten = 0
        self.first = {place: each for place, each in self.first.items() if place in kept}
        self.delivered = {place: each for place, each in self.delivered.items() if place in kept}
        self.ends = {place: each for place, each in self.ends.items() if place in kept}
        self.started = {
            place: each for place, each in self.started.items() if place in kept or place in self.released
        }
        self._splits = {place: each for place, each in self._splits.items() if place in kept}
        for topic, scans in self.scans.items():
            self.scans[topic] = {each: scan for each, scan in scans.items() if (topic, each) in kept}
        self.beats(now)

    def _begins(self, given: Lanes) -> None:
        """Note where it has to begin from the committed offsets; see `unasked`."""
        heard = 0 < self.syncs == self.heard
        self.unasked = {
            place
            for place, ranges in given.items()
            if place in self.unasked
            or not (within(ranges, self.given[place]) if place in self.given else heard)
        }
        if not self.has_shared:
            self.unasked.clear()
        self.given = given
        self.inherits, self.doubted = False, self.inherits

    def goes_on(self, places: Iterable[TopicPartition]) -> bool:
        """Tell whether it may be given records of partitions, as far as its client has begun with them."""
        if self.unasked.isdisjoint(places):
            return True
        self.inherits = self.inherits or 0 < self.syncs == self.heard
        return False

    def assigned(self, now: float) -> None:
        """Note that a broker assigns it whole partitions."""
        if self.frozen or not self.plain:
            self.synced(None, {}, now)

    def beats(self, now: float) -> None:
        """Note that the group knew it at a time."""
        self.expires_at = max(self.expires_at, now + self.session_seconds)

    def lives(self, now: float) -> bool:
        """Whether its group knows it, as far as can be told."""
        return not self.frozen and now <= self.expires_at

    def gets(self, epoch: int, now: float) -> bool:
        """Whether it gets what it asked for when its lanes were those of `epoch`."""
        if self.declared is None and not self.plain and now > self.expires_at:
            return False  # others may have its lanes already
        return not self.frozen and epoch == self.epoch

    def seen(
        self, positions: Mapping[TopicPartition, Positions], ends: Mapping[TopicPartition, int]
    ) -> tuple[str, list[LaneSeen]]:
        """Return its state (`MemberSeen.state`) and what it has.

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
        """Whether a partition is its, in whole or in part, or is none of its group's business."""
        return self.declared is not None or self.plain or place in self.lanes

    def commits(self, place: TopicPartition) -> KeyRanges | None:
        """Return the key ranges of a partition that it commits for; None: for all."""
        return self.released.get(place) or self.ranges(place)

    def ranges(self, place: TopicPartition) -> KeyRanges | None:
        """Return its key ranges of a partition; None: all records are its own business."""
        return self.declared or self.lanes.get(place)

    def scan(self, topic: bytes, partition: int) -> Scan:
        """Return what was scanned of a partition; it is kept from now on."""
        return self.scans.setdefault(topic, {}).setdefault(partition, Scan())

    def fetches(self, place: TopicPartition, offset: int) -> None:
        """Note from which offset the member fetches a partition.

        Raises:
            TooMany: it has fetched more partitions than are known of a member.
        """
        if 0 <= offset < self.first.get(place, offset + 1):
            self.first[place] = offset
            if len(self.first) > MAX_PARTITIONS:
                raise TooMany(f"a member of more than {MAX_PARTITIONS} partitions")
        started, ranges = self.started.get(place), self.ranges(place)
        if started is not None and ranges is not None and offset < started.lowest(ranges):
            self.start(place, None)  # the application reads again what was done

    def start(self, place: TopicPartition, positions: Positions | None) -> None:
        """Note how far each hash of a partition is done; None: all from the member's offset on may come."""
        self._splits.pop(place, None)
        before, ranges = self.started.pop(place, None), self.ranges(place)
        if positions is None or ranges is None or positions.lowest(ranges) == positions.highest(ranges):
            positions = None
        else:
            self.started[place] = positions
        if before is not None and before != positions:
            self.forget(*place)  # what others had done was scanned as nothing for it

    def lane(self, place: TopicPartition, offset: int) -> tuple[Split, list[int]] | None:
        """Return how a partition is split for the member, and for each step the lowest offset that passes.

        None: all records pass, as they came.
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
        """Return the offset up to which nothing is for the member, from an offset on."""
        scan = self.scans.get(place[0], {}).get(place[1])
        return offset if scan is None else scan.after(offset)

    def forget(self, topic: bytes, partition: int) -> None:
        """Forget what was scanned of a partition: its log may not be the same any more."""
        if (scans := self.scans.get(topic)) is not None:
            scans.pop(partition, None)
