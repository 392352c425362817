"""One fetch to the broker serves all members that share a partition (docs/cooperative.md). Sans-IO.

Only members fetch. The response to one member's fetch is split once, and the shares of other members at the
same offset are stored. A member that requests these records gets its share without asking the broker. If
another member's fetch is already bringing these records, the member waits for it (is *parked*), at most for
its own max_wait_ms. In all other cases its fetch goes to the broker, as if it were alone. So no member
depends on another one. If one leaves, is slow or gets an error, the others fetch for themselves.

A share is a part of the broker's response to a fetch at a certain offset. A member gets it only if its own
fetch would have been the same, to the same broker, as the same user (`Key`).
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
"""The limit of stored bytes for the members of one partition."""
ALL_BYTES: Final = 64 << 20
"""The limit of all stored bytes."""
WAIT_SECONDS: Final = 45.0
"""How long a share is kept for a member without a session timeout (fetched.data.max.wait.ms)."""
UPSTREAM_SECONDS: Final = 60.0
"""After this time, a member fetches from the broker itself. Brokers close connections that are idle for
connections.max.idle.ms (10 minutes)."""
_NOT_YET: Final = 2**63 - 1

State: TypeAlias = bytes
"""The high watermark, last stable offset and, from v5 on, log start offset of an entry, as on the wire."""


class Want(NamedTuple):
    """The request of a fetch for one partition."""

    offset: int
    """The fetch offset for the broker."""
    leader_epoch: int
    max_bytes: int


class Wants(NamedTuple):
    """The request of a fetch."""

    partitions: Mapping[TopicPartition, Want]
    limits: tuple[int, int, int]
    """min_bytes, max_bytes and isolation_level."""
    wait_until: float
    """The time in seconds."""


class Key(NamedTuple):
    """The common properties that fetches of a partition need.

    If they differ, the broker would respond differently.
    """

    place: TopicPartition
    group: bytes
    """The group. Empty if its members declare their lanes."""
    broker: str
    limits: tuple[int, int, int]
    max_bytes: int
    leader_epoch: int
    """The epoch that the client knows. Within one epoch, a leader's log only grows, and no record changes
    its offset."""


@dataclass(slots=True)
class Share:
    """A member's share of the response to a fetch."""

    start: int
    """The fetch offset, or an offset within the response at which the member continued."""
    end: int
    """The offset after the response."""
    found: Filtered
    """The records of this member alone."""
    aborted: Sequence[bytes]
    """aborted_transactions of the response, as on the wire. They are wrong for a fetch offset above
    `start`, because the client would miss the end of a transaction before it."""
    size: int
    """The memory of the share in bytes."""
    fetched: int
    """How many bytes of records the response had, for all members."""


class _Subscription:
    """A subscriber's lane, and its stored shares."""

    __slots__ = ("asked_at", "epoch", "member", "ranges", "shares", "started", "upto")

    def __init__(self, member: Member, ranges: KeyRanges, place: TopicPartition) -> None:
        self.member, self.ranges = member, ranges
        self.epoch = member.epoch
        self.started = member.started.get(place)
        self.shares = deque[Share]()
        self.upto = _NOT_YET
        """The offset that the member will request after all of its shares."""
        self.asked_at = 0.0

    def is_of(self, member: Member, place: TopicPartition) -> bool:
        """Return whether this is still the member's lane. Shares for another lane do not belong to it."""
        return (
            self.member is member
            and self.epoch == member.epoch
            and self.started is member.started.get(place)
            and self.ranges == member.ranges(place)
        )

    @property
    def patience(self) -> float:
        """How long shares are kept if the member does not request them, in seconds."""
        return self.member.session_seconds or WAIT_SECONDS

    def least(self, offset: int, split: Split, step: int) -> int:
        """Return the lowest offset that the member gets in a step of a split."""
        return offset if self.started is None else max(offset, self.started.at(split.starts[step]))


class SharedFetches:
    """The shared fetches of a process."""

    __slots__ = ("_registry", "buffered", "detached", "fetches")

    def __init__(self) -> None:
        self._registry: dict[Key, SharedFetch] = {}
        self.fetches = 0
        """How many partitions were requested from the broker in fetches that may serve several members."""
        self.buffered = 0
        """How many bytes are stored."""
        self.detached: Counter[str] = Counter()
        """How often the shares of a member were dropped, so that it fetches for itself: ``full`` if there
        was no room, ``wait`` if it did not request them in time."""

    def __repr__(self) -> str:
        return f"<SharedFetches {len(self._registry)} buffered={self.buffered}>"

    def __len__(self) -> int:
        return len(self._registry)

    def of(self, key: Key) -> "SharedFetch":
        """Return the shared fetch of a key. It is kept until its last subscriber leaves."""
        shared = self._registry.get(key)
        if shared is None:
            shared = self._registry[key] = SharedFetch(self, key)
        return shared

    def drop(self, shared: "SharedFetch") -> None:
        """Forget a shared fetch without subscribers."""
        self._registry.pop(shared.key, None)

    def fit(self) -> None:
        """Drop shares until the rest fits, each time from the partition with the most bytes."""
        while self.buffered > ALL_BYTES:
            max(self._registry.values(), key=lambda shared: shared.buffered).detach_last()


class SharedFetch:
    """Fetches of one partition for several members: lanes, fetches at the broker, and waiting members."""

    __slots__ = (
        "_registry",
        "_split",
        "_split_key",
        "_subscriptions",
        "buffered",
        "fetching",
        "key",
        "parked",
        "state",
    )

    def __init__(self, shared_fetches: SharedFetches, key: Key) -> None:
        self._registry = shared_fetches
        self.key = key
        self._subscriptions: dict[Subscriber, _Subscription] = {}
        self.fetching: dict[Subscriber, tuple[int, float]] = {}
        """The members with a fetch at the broker, by fetch offset, each with the time in seconds by which
        the broker must respond."""
        self.parked: dict[Subscriber, None] = {}
        """The members that wait for these fetches, in order. The values have no meaning."""
        self.buffered = 0
        self.state: State | None = None
        """The state from the last response. None if there was none, or if the log may have changed since."""
        self._split_key: tuple[tuple[KeyRanges, tuple[int, ...]], ...] = ()
        self._split = Split([FULL])
        """The last split. It remembers the hashes of keys."""

    def __repr__(self) -> str:
        return f"<SharedFetch {self.key.place} lanes={len(self._subscriptions)} buffered={self.buffered}>"

    def ask(self, subscriber: "Subscriber", member: Member, offset: int, now: float) -> Share | None:
        """Return the share at an offset, if there is one, and drop the shares before it."""
        place = self.key.place
        lane = self._subscriptions.get(subscriber)
        if lane is None or not lane.is_of(member, place):
            lane = self._attach(subscriber, member, now)
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

    def has(self, subscriber: "Subscriber") -> bool:
        """Return whether there is a share for a subscriber."""
        return subscriber in self._subscriptions and bool(self._subscriptions[subscriber].shares)

    def comes(self, subscriber: "Subscriber", offset: int, now: float) -> bool:
        """Return whether another subscriber's fetch is already bringing the records from an offset on."""
        return subscriber in self._subscriptions and any(
            who is not subscriber and at == offset and until > now
            for who, (at, until) in self.fetching.items()
        )

    def split(
        self,
        subscriber: "Subscriber",
        member: Member,
        records: Buffer,
        own: int,
        aborted: Sequence[bytes],
        now: float,
    ) -> Filtered | None:
        """Split the records of a member's response, and store the shares of others.

        Return the member's own share.

        Return None if the member's lane has changed since its request.

        Args:
            subscriber: the member's connection.
            member: the member that gets the response.
            records: the records of the response.
            own: the member's fetch offset. The offset in the request to the broker is the same or higher.
            aborted: the response's aborted_transactions.
            now: in seconds.

        Raises:
            BatchError: a batch can't be split.
        """
        lane, (start, _) = self._subscriptions.get(subscriber), self.fetching[subscriber]
        if lane is None or not lane.is_of(member, self.key.place):
            return None
        others = self._others(subscriber, records, start, aborted, now)
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
            self._registry.buffered += size
        lane.upto = max(found.end, start)
        while self.buffered > PARTITION_BYTES:
            self.detach_last()
        self._registry.fit()
        return found.of(found.lanes[0])

    def note(self, state: State) -> None:
        """Note the state of the partition from a response."""
        if self.state is None or _watermark(state) >= _watermark(self.state):  # they may overtake each other
            self.state = state

    def forget(self) -> None:
        """Drop all shares, because the log may have changed."""
        self.state = None
        for lane in self._subscriptions.values():
            self._clear(lane)

    def detach_last(self) -> None:
        """Drop the shares of the member that is furthest behind."""
        behind = [
            (lane.shares[0].start, at) for at, lane in enumerate(self._subscriptions.values()) if lane.shares
        ]
        _, at = min(behind)
        self.detach([*self._subscriptions][at], "full")

    def detach(self, subscriber: "Subscriber", reason: str = "") -> None:
        """Drop a subscriber's lane and shares, until it asks again.

        Args:
            subscriber: the subscriber.
            reason: the label in `SharedFetches.detached`. Empty if the subscriber has another lane now.
        """
        if (lane := self._subscriptions.pop(subscriber, None)) is not None:
            self._clear(lane)
            if reason:
                self._registry.detached[reason] += 1

    def leave(self, subscriber: "Subscriber") -> None:
        """Note that a subscriber does not fetch here any more."""
        self.detach(subscriber)
        self.fetching.pop(subscriber, None)
        self.parked.pop(subscriber, None)
        if not (self._subscriptions or self.fetching or self.parked):
            self._registry.drop(self)

    def _attach(self, subscriber: "Subscriber", member: Member, now: float) -> _Subscription | None:
        """Note a member's lane. Return None if it overlaps with another member's lane."""
        self.detach(subscriber)
        place = self.key.place
        ranges = member.ranges(place)
        if ranges is None:
            return None
        for who, other in list(self._subscriptions.items()):
            if other.member is member or not _is_current(other, place, now):
                self.detach(who)  # a connection that the client has left, perhaps
            elif any(low <= last and first <= high for low, high in ranges for first, last in other.ranges):
                return None
        lane = self._subscriptions[subscriber] = _Subscription(member, ranges, place)
        return lane

    def _others(
        self, subscriber: "Subscriber", records: Buffer, start: int, aborted: Sequence[bytes], now: float
    ) -> dict["Subscriber", _Subscription]:
        """Return the lanes of other members whose next records are in a response."""
        found: dict[Subscriber, _Subscription] = {}
        if len(records) > PARTITION_BYTES:
            return found  # there would be no room for it
        for who, lane in list(self._subscriptions.items()):
            if who is subscriber or lane.upto < start or (aborted and lane.upto != start):
                continue
            if not _is_current(lane, self.key.place, now):
                self.detach(who)
            elif who not in self.parked and now > lane.asked_at + lane.patience:
                self.detach(who, "wait")
            else:
                found[who] = lane
        end = end_of(records) if found else 0
        return {who: lane for who, lane in found.items() if lane.upto < end}

    def _split_for(self, lanes: Sequence[_Subscription]) -> Split:
        split_of = tuple((lane.ranges, () if lane.started is None else lane.started.starts) for lane in lanes)
        if split_of != self._split_key:
            cuts = {start for _, starts in split_of for start in starts}
            self._split = Split([ranges for ranges, _ in split_of], cuts=cuts)
            self._split_key = split_of
        return self._split

    def _clear(self, lane: _Subscription) -> None:
        for share in lane.shares:
            self._free(share)
        lane.shares.clear()
        lane.upto = _NOT_YET

    def _free(self, share: Share) -> None:
        self.buffered -= share.size
        self._registry.buffered -= share.size


class Subscriber:
    """A member's connection, which takes part in shared fetches.

    Args:
        shared_fetches: the shared fetches of the process.
        broker: identifies the broker. Empty, or with a comma, if the broker is not known for certain.
        wake: takes the time in seconds, and lets the member's parked fetch continue.
    """

    __slots__ = ("_at", "_broker", "_fetching", "_parked", "_registry", "_wake", "_went_at")

    def __init__(self, shared_fetches: SharedFetches, broker: str, wake: Callable[[float], None]) -> None:
        self._registry, self._wake = shared_fetches, wake
        self._broker = "" if "," in broker else broker
        self._at: dict[TopicPartition, SharedFetch] = {}
        self._fetching: list[SharedFetch] = []
        """The shared fetches to which the member's fetch at the broker belongs."""
        self._parked: dict[SharedFetch, int] = {}
        """The shared fetches that the member waits for, with its fetch offset in each."""
        self._went_at: float | None = None
        """When the member last sent a fetch to the broker, in seconds."""

    def find(self, member: Member, wants: Wants | None, now: float) -> dict[TopicPartition, Share] | None:
        """Return the stored shares for a member's fetch.

        An empty dict means that another member's fetch is bringing them, and the member is parked until
        `wake`. None means that the member's fetch must go to the broker. From then on others may wait for it.

        Args:
            member: the member.
            wants: its request. None if the broker must be asked in any case.
            now: in seconds.
        """
        self.unpark()
        if self._went_at is None:
            self._went_at = now
        if wants is None or not self._broker or not member.gets(member.epoch, now):
            self._went_at = now
            return None
        found: dict[TopicPartition, Share] = {}
        offsets: dict[SharedFetch, int] = {}
        alone = now >= self._went_at + UPSTREAM_SECONDS
        for place, want in wants.partitions.items():
            if member.lane(place, want.offset) is None:
                alone = True
                self._leave(place)
                continue
            shared = self._join(
                Key(place, member.group, self._broker, wants.limits, want.max_bytes, want.leader_epoch)
            )
            offsets[shared] = want.offset
            if (share := shared.ask(self, member, want.offset, now)) is not None:
                found[place] = share
            elif not shared.comes(self, want.offset, now):
                alone = True
        if not alone and found and all(shared.state is not None for shared in offsets):
            return _within(found, wants.limits[1])
        if not alone and not found and offsets and now < wants.wait_until:
            self._parked = offsets
            for shared in offsets:
                shared.parked[self] = None
            return {}
        for shared, offset in offsets.items():
            shared.fetching[self] = offset, wants.wait_until
        self._fetching = [*offsets]
        self._registry.fetches += len(offsets)
        self._went_at = now
        return None

    def state(self, place: TopicPartition) -> State:
        """Return the state from the last response for a partition of the fetch that was given to `find`."""
        return self._at[place].state or b""

    # The response to a fetch that has gone to the broker

    @property
    def places(self) -> list[TopicPartition]:
        """The shared partitions of the fetch at the broker."""
        return [shared.key.place for shared in self._fetching]

    def note(self, place: TopicPartition, state: State) -> None:
        """Note the state of a partition without an error from the response."""
        if (shared := self._under_way(place)) is not None:
            shared.note(state)

    def forget(self, place: TopicPartition) -> None:
        """Note that the response has an error for a partition, or names another broker."""
        if (shared := self._under_way(place)) is not None:
            shared.forget()

    def split(
        self,
        member: Member,
        place: TopicPartition,
        records: Buffer,
        offset: int,
        aborted: Sequence[bytes],
        now: float,
    ) -> Filtered | None:
        """See `SharedFetch.split`. Return None if the partition is not shared."""
        shared = self._under_way(place)
        return None if shared is None else shared.split(self, member, records, offset, aborted, now)

    def arrived(self) -> list["Subscriber"]:
        """Note that the response has arrived.

        Return the subscribers that waited for it, so that the caller can `wake` them.
        """
        waiting: dict[Subscriber, None] = {}
        for shared in self._fetching:
            shared.fetching.pop(self, None)
            waiting |= shared.parked
        self._fetching = []
        return [*waiting]

    # Waiting

    def wake(self, now: float) -> None:
        """Let the parked fetch continue, unless everything that it waits for is still missing."""
        if any(shared.has(self) or not shared.comes(self, at, now) for shared, at in self._parked.items()):
            self._wake(now)

    def unpark(self) -> None:
        """Note that the member does not wait any more."""
        for shared in self._parked:
            shared.parked.pop(self, None)
        self._parked = {}

    def goes(self, now: float) -> None:
        """Note that the fetch goes to the broker in any case."""
        self.unpark()
        self._went_at = now

    def alone(self) -> None:
        """Share nothing on this connection from now on, because the broker may see it as another user."""
        self._broker = ""

    def end(self, now: float) -> None:
        """Note that the connection has ended. Nobody waits for it any more, and no shares are kept for it."""
        waiting = self.arrived()
        self.unpark()
        for place in list(self._at):
            self._leave(place)
        for each in waiting:
            each.wake(now)

    def _join(self, key: Key) -> SharedFetch:
        """Return the shared fetch of a key. Leave the earlier one of this partition."""
        shared = self._at.get(key.place)
        if shared is None or shared.key != key:
            self._leave(key.place)
            shared = self._at[key.place] = self._registry.of(key)
        return shared

    def _under_way(self, place: TopicPartition) -> SharedFetch | None:
        shared = self._at.get(place)
        return shared if shared is not None and self in shared.fetching else None

    def _leave(self, place: TopicPartition) -> None:
        if (shared := self._at.pop(place, None)) is not None:
            shared.leave(self)


def _is_current(lane: _Subscription, place: TopicPartition, now: float) -> bool:
    """Return whether a lane still belongs to its member, and the member gets records."""
    return lane.is_of(lane.member, place) and lane.member.gets(lane.epoch, now)


def _watermark(state: State) -> int:
    return int.from_bytes(state[:8], signed=True)


def _from(share: Share, member: Member, place: TopicPartition, offset: int) -> Share | None:
    """Return the rest of a share, from an offset within it on."""
    lane = member.lane(place, offset)
    if lane is None:
        return None
    (whole,) = share.found.lanes
    found = split_records(b"".join(whole.batches), *lane, [offset])
    (part,) = found.lanes
    part.dropped = whole.dropped or part.dropped
    return Share(offset, share.end, share.found.of(part), share.aborted, 0, share.fetched)


def _within(shares: dict[TopicPartition, Share], limit: int) -> dict[TopicPartition, Share]:
    """Return the first shares that fit into a number of bytes, but at least one."""
    found: dict[TopicPartition, Share] = {}
    for place, share in shares.items():
        limit -= sum(map(len, share.found.lanes[0].batches))
        if limit < 0 and found:
            break
        found[place] = share
    return found
