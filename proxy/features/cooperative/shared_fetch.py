"""One fetch serves all members that share a partition. Sans-IO.

The gateway does not fetch by itself: each fetch at the broker is a member's. Its response is split once, and
the parts (*shares*) for other members that need these records next are stored. If another member's fetch at
the broker will bring the records, the member's fetch is *parked*: it waits for them, at most for its own
max_wait_ms. Any other fetch for which nothing is stored goes to the broker. So no member depends on another
member that leaves, is slow or gets an error.

A share is a part of the broker's response to a fetch from a certain offset. A member gets a share only if its
own fetch would be equal: to the same broker, in the same group, with the same limits and leader epoch
(`Key`). After a SASL authentication, a connection shares nothing.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from proxy.features.cooperative.filtered import Filtered, end_of, split_records
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import FULL, KeyRanges, Split, overlap
from proxy.protocol.primitives import Buffer

PARTITION_BYTES: Final = 8 << 20
"""How many bytes may be stored for all members of one `SharedFetch`."""
ALL_BYTES: Final = 64 << 20
"""How many bytes may be stored for all of them together."""
WAIT_SECONDS: Final = 45.0
"""How long shares are stored for a member without a session timeout, in seconds
(fetched.data.max.wait.ms)."""
UPSTREAM_SECONDS: Final = 60.0
"""After this many seconds, a member's own fetch goes to the broker, even if another fetch could be shared.
Brokers close connections that are idle for connections.max.idle.ms (10 minutes)."""
_NOT_YET: Final = 2**63 - 1

State: TypeAlias = bytes
"""The bytes of the high watermark, last stable offset and (from v5 on) log start offset of an entry."""


class Key(NamedTuple):
    """If one of these differs, the broker might respond differently to two fetches of a partition."""

    place: TopicPartition
    group: bytes
    """The name of the group. Empty if it is not known (`Member.group`)."""
    broker: str
    limits: tuple[int, int, int]
    """The fields min_bytes, max_bytes and isolation_level of the fetch."""
    max_bytes: int
    leader_epoch: int
    """The leader epoch in the client's fetch. While the epoch is the same, the log only grows, and each
    record keeps its offset."""


@dataclass(slots=True)
class Share:
    """The part of a fetch response that belongs to one member."""

    start: int
    """The first offset of the records in this share: the fetch offset, or the offset at which the member
    continued."""
    found: Filtered
    aborted: Sequence[bytes]
    """The field aborted_transactions of the response, in wire format. It is valid only for a fetch from
    `start`. A client that fetches from a later offset would miss the end of a transaction before it."""
    size: int
    """The memory that the share needs, in bytes. 0 if it is a part of a stored share."""
    fetched: int
    """How many bytes of records the broker's response had, for all members."""


class _Subscription:
    """The lane of one member in a shared fetch, and the shares that are stored for this member."""

    __slots__ = ("asked_at", "epoch", "member", "ranges", "shares", "started", "upto")

    def __init__(self, member: Member, ranges: KeyRanges, place: TopicPartition) -> None:
        self.member, self.ranges = member, ranges
        self.epoch = member.presence.epoch
        self.started = member.at(place).started
        self.shares = deque[Share]()
        self.upto = _NOT_YET
        """The offset that the member will request after all of its shares. `_NOT_YET` if unknown."""
        self.asked_at = 0.0

    def is_of(self, member: Member, place: TopicPartition) -> bool:
        """Return whether the member still has this lane. If not, its shares must not be used."""
        return (
            self.member is member
            and self.epoch == member.presence.epoch
            and self.started is member.at(place).started
            and self.ranges == member.ranges(place)
        )

    @property
    def patience(self) -> float:
        """For how many seconds a member's share is stored while the member does not request it."""
        return self.member.presence.session_seconds or WAIT_SECONDS

    def least(self, offset: int, split: Split, step: int) -> int:
        return offset if self.started is None else max(offset, self.started.at(split.starts[step]))


class SharedFetches:
    """The shared fetches of all partitions, in one process."""

    __slots__ = ("_registry", "buffered", "detached", "fetches")

    def __init__(self) -> None:
        self._registry: dict[Key, SharedFetch] = {}
        self.fetches = 0
        """The number of partitions in all fetches that were sent to the broker and that several members may
        share."""
        self.buffered = 0
        """How many bytes of shares are stored at present."""
        self.detached: Counter[str] = Counter()
        """How often a member was dropped from a shared fetch, with its stored shares, so that it has to fetch
        for itself. The key is the reason: ``full`` if the buffer had no room, ``wait`` if the member did not
        fetch in time."""

    def __repr__(self) -> str:
        return f"<SharedFetches {len(self._registry)} buffered={self.buffered}>"

    def __len__(self) -> int:
        return len(self._registry)

    def of(self, key: Key) -> "SharedFetch":
        """Return the shared fetch of a key. It exists until its last subscriber leaves."""
        shared = self._registry.get(key)
        if shared is None:
            shared = self._registry[key] = SharedFetch(self, key)
        return shared

    def drop(self, shared: "SharedFetch") -> None:
        self._registry.pop(shared.key, None)

    def fit(self) -> None:
        """Drop shares until the total size is within the limit, of the partition with most bytes first."""
        while self.buffered > ALL_BYTES:
            max(self._registry.values(), key=lambda shared: shared.buffered).detach_last()


class SharedFetch:
    """The members that share fetches of one partition: their lanes, fetches at the broker, and who waits."""

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
        """The members that have a fetch at the broker. For each: its fetch offset, and the time at which the
        broker must have responded, in seconds."""
        self.parked: dict[Subscriber, None] = {}
        """The parked members in order. Each one waits for a fetch in `fetching`."""
        self.buffered = 0
        self.state: State | None = None
        """The watermarks in the last response. None if there was no response yet, or if the log may have
        changed after it."""
        self._split_key: tuple[tuple[KeyRanges, tuple[int, ...]], ...] = ()
        self._split = Split([FULL])
        """The split that was used last. It is kept because it remembers the hashes of keys."""

    def __repr__(self) -> str:
        return f"<SharedFetch {self.key.place} lanes={len(self._subscriptions)} buffered={self.buffered}>"

    def ask(self, subscriber: "Subscriber", member: Member, offset: int, now: float) -> Share | None:
        """Return the stored share, or the part of one, that begins at an offset. Drop the shares before it.

        If there is none, drop all shares of the subscriber, and return None.
        """
        place = self.key.place
        lane = self._subscriptions.get(subscriber)
        if lane is None or not lane.is_of(member, place):
            lane = self._attach(subscriber, member, now)
        if lane is None:
            return None
        lane.asked_at = now
        shares = lane.shares
        while shares and shares[0].found.end <= offset:
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
        return subscriber in self._subscriptions and bool(self._subscriptions[subscriber].shares)

    def comes(self, subscriber: "Subscriber", offset: int, now: float) -> bool:
        """Return whether another member's fetch at the broker begins at the same offset."""
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
        """Split the records in the response to a member's fetch. Store the shares of other members.

        Return the member's own share. Return None if the member's lane has changed since its request. The
        broker was asked for the member's `own` fetch offset, or for a higher one.

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
            other.shares.append(Share(max(offset, start), share, aborted, size, len(records)))
            other.upto = found.end
            self.buffered += size
            self._registry.buffered += size
        lane.upto = max(found.end, start)
        while self.buffered > PARTITION_BYTES:
            self.detach_last()
        self._registry.fit()
        return found.of(found.lanes[0])

    def note(self, state: State) -> None:
        """Store the watermarks of the partition in a response, if they are not older than the stored ones."""
        if self.state is None or _watermark(state) >= _watermark(self.state):  # may arrive out of order
            self.state = state

    def forget(self) -> None:
        """Drop all shares of the partition, because the log may have changed."""
        self.state = None
        for lane in self._subscriptions.values():
            self._clear(lane)

    def detach_last(self) -> None:
        """Drop the shares of the member with the lowest offset."""
        behind = [
            (lane.shares[0].start, at) for at, lane in enumerate(self._subscriptions.values()) if lane.shares
        ]
        _, at = min(behind)
        self.detach([*self._subscriptions][at], "full")

    def detach(self, subscriber: "Subscriber", reason: str = "") -> None:
        """Drop the lane and the shares of a subscriber. With its next fetch it can take part again.

        `reason` is the label in `SharedFetches.detached`. If it is empty, the drop is not counted.
        """
        if (lane := self._subscriptions.pop(subscriber, None)) is not None:
            self._clear(lane)
            if reason:
                self._registry.detached[reason] += 1

    def leave(self, subscriber: "Subscriber") -> None:
        self.detach(subscriber)
        self.fetching.pop(subscriber, None)
        self.parked.pop(subscriber, None)
        if not (self._subscriptions or self.fetching or self.parked):
            self._registry.drop(self)

    def _attach(self, subscriber: "Subscriber", member: Member, now: float) -> _Subscription | None:
        """Store the lane of a member. Return None if it has none, or if it overlaps with another member's."""
        self.detach(subscriber)
        place = self.key.place
        ranges = member.ranges(place)
        if ranges is None:
            return None
        for who, other in list(self._subscriptions.items()):
            if other.member is member or not _is_current(other, place, now):
                self.detach(who)  # maybe an earlier connection of the member
            elif overlap(ranges, other.ranges):
                return None
        lane = self._subscriptions[subscriber] = _Subscription(member, ranges, place)
        return lane

    def _others(
        self, subscriber: "Subscriber", records: Buffer, start: int, aborted: Sequence[bytes], now: float
    ) -> dict["Subscriber", _Subscription]:
        """Return the lanes of other members that need records of this response next."""
        found: dict[Subscriber, _Subscription] = {}
        if len(records) > PARTITION_BYTES:
            return found  # too large to store
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
    """The connection of a member that takes part in shared fetches. `wake` continues its parked fetch.

    Nothing is shared if `broker` is empty or has a comma: then it is not certain which broker this is.
    """

    __slots__ = ("_at", "_parked", "_registry", "_wake", "_went_at", "broker", "fetching")

    def __init__(self, shared_fetches: SharedFetches, broker: str, wake: Callable[[float], None]) -> None:
        self._registry, self._wake = shared_fetches, wake
        self.broker = "" if "," in broker else broker
        self._at: dict[TopicPartition, SharedFetch] = {}
        self.fetching: dict[TopicPartition, SharedFetch] = {}
        """The shared partitions in the member's fetch that is at the broker."""
        self._parked: dict[SharedFetch, int] = {}
        """The shared fetches for which the member waits. For each: the member's fetch offset."""
        self._went_at: float | None = None
        """When the member last sent a fetch to the broker, in seconds."""

    def find(
        self, member: Member, wants: Mapping[Key, int] | None, wait_until: float, now: float
    ) -> dict[TopicPartition, Share] | None:
        """Return the stored shares for a member's fetch. `wants` has the fetch offsets, after skipped ones.

        An empty dict means that another member's fetch will bring the records. In this case the member's
        fetch is parked until `wake` is called. None means that the member's fetch must go to the broker. If
        it can be shared, other members may wait for it from now on, up to `wait_until`. `wants` is None if
        the broker must be asked in any case.
        """
        self.unpark()
        if self._went_at is None:
            self._went_at = now
        if wants is None or not self.broker or not member.presence.gets(member.presence.epoch, now):
            self._went_at = now
            return None
        found: dict[TopicPartition, Share] = {}
        offsets: dict[SharedFetch, int] = {}
        alone = now >= self._went_at + UPSTREAM_SECONDS
        for key, offset in wants.items():
            if member.lane(key.place, offset) is None:
                alone = True
                self._leave(key.place)
                continue
            shared = self._join(key)
            offsets[shared] = offset
            if (share := shared.ask(self, member, offset, now)) is not None:
                found[key.place] = share
            elif not shared.comes(self, offset, now):
                alone = True
        if not alone and found and all(shared.state is not None for shared in offsets):
            return found
        if not alone and not found and offsets and now < wait_until:
            self._parked = offsets
            for shared in offsets:
                shared.parked[self] = None
            return {}
        for shared, offset in offsets.items():
            shared.fetching[self] = offset, wait_until
        self.fetching = {shared.key.place: shared for shared in offsets}
        self._registry.fetches += len(offsets)
        self._went_at = now
        return None

    def state(self, place: TopicPartition) -> State:
        """Return the last known watermarks of a partition of the fetch that was given to `find`."""
        return self._at[place].state or b""

    def arrived(self) -> list["Subscriber"]:
        """Note that the response to this member's fetch has arrived.

        Return the parked subscribers that may have waited for it. The caller has to `wake` each of them.
        """
        waiting: dict[Subscriber, None] = {}
        for shared in self.fetching.values():
            shared.fetching.pop(self, None)
            waiting |= shared.parked
        self.fetching = {}
        return [*waiting]

    # Waiting

    def wake(self, now: float) -> None:
        """Continue the parked fetch if its records have arrived, or if no other fetch will bring them."""
        if any(shared.has(self) or not shared.comes(self, at, now) for shared, at in self._parked.items()):
            self._wake(now)

    def unpark(self) -> None:
        for shared in self._parked:
            shared.parked.pop(self, None)
        self._parked = {}

    def goes(self, now: float) -> None:
        """Note that the member's fetch goes to the broker without waiting for other members."""
        self.unpark()
        self._went_at = now

    def alone(self) -> None:
        """Stop sharing: after a SASL authentication, the broker may see another user on this connection."""
        self.broker = ""

    def end(self, now: float) -> None:
        """Drop the subscriber's shares. Members that wait for its fetch continue with their own."""
        waiting = self.arrived()
        self.unpark()
        for place in list(self._at):
            self._leave(place)
        for each in waiting:
            each.wake(now)

    def _join(self, key: Key) -> SharedFetch:
        shared = self._at.get(key.place)
        if shared is None or shared.key != key:
            self._leave(key.place)
            shared = self._at[key.place] = self._registry.of(key)
        return shared

    def _leave(self, place: TopicPartition) -> None:
        if (shared := self._at.pop(place, None)) is not None:
            shared.leave(self)


def _is_current(lane: _Subscription, place: TopicPartition, now: float) -> bool:
    return lane.is_of(lane.member, place) and lane.member.presence.gets(lane.epoch, now)


def _watermark(state: State) -> int:
    return int.from_bytes(state[:8], signed=True)


def _from(share: Share, member: Member, place: TopicPartition, offset: int) -> Share | None:
    """Return the part of a share that begins at a later offset. None if the member has no lane."""
    lane = member.lane(place, offset)
    if lane is None:
        return None
    (whole,) = share.found.lanes
    found = split_records(b"".join(whole.batches), *lane, [offset])
    (part,) = found.lanes
    part.dropped = whole.dropped or part.dropped
    return Share(offset, share.found.of(part), share.aborted, 0, share.fetched)


def within_limit(shares: dict[TopicPartition, Share], limit: int) -> dict[TopicPartition, Share]:
    """Return the first shares whose total size is within `limit` bytes. Return at least one share."""
    found: dict[TopicPartition, Share] = {}
    for place, share in shares.items():
        limit -= sum(map(len, share.found.lanes[0].batches))
        if limit < 0 and found:
            break
        found[place] = share
    return found
