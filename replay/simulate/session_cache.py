"""Simulates a broker's cache of fetch sessions, for the sessions of a capture. Sans-IO.

It follows Kafka's ``FetchSessionCache`` (FetchSession.scala). A broker has 1,000 slots by default, since 3.8
in eight shards. When the cache is full, a new session may evict an old one. It evicts a session that was not
used for two minutes, or else a smaller session that is older than two minutes. If no session can be evicted,
the new one is refused. While there are free slots, unused sessions stay in the cache.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

SLOTS: Final = 1000
"""Kafka's default of max.incremental.fetch.session.cache.slots."""
SHARDS: Final = 8
EVICTION_MS: Final = 120_000
"""The age at which another session may evict an unused session. Kafka has no setting for it."""

Act: TypeAlias = Literal["make", "touch", "close"]


class CacheEvent(NamedTuple):
    """An event in the life of a session: it was created, used or closed."""

    time: int
    """The time of the event, in ns since 1970."""
    act: Act
    """``make``, ``touch`` (used, at most every 10 s) or ``close``."""
    name: str
    """The connection of a session that replay predicts. The session id of a session of the client
    itself."""
    size: int
    """The number of partitions in the session."""


PERIODS: Final = 120
"""The maximum number of periods in `SlotsUse.over_time`."""
_WIDTH: Final = 1_000_000_000
"""The first length of a period, in ns. It is doubled each time there are too many periods."""
TOUCH_NS: Final = 10_000_000_000
"""In ns. `SessionLog` may omit a use of a session if the last recorded one is less than this long ago."""


@dataclass(slots=True)
class CachedSession:
    """A session that has a slot in the cache."""

    id: int
    name: str
    privileged: bool
    made: int
    last_used: int
    cached_size: int = 0
    """The number of partitions in the session at its last use."""
    lasting: bool = False
    """Whether it was more than two minutes old then. If so, a larger session may evict it."""

    def touch(self, now: int, size: int) -> None:
        """Note a use of the session at `now`, in ms."""
        self.last_used = now
        self.cached_size = size
        self.lasting = now - self.made > EVICTION_MS

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The rank of the session for eviction. While it is used, only one of higher rank can evict it."""
        return self.privileged, self.cached_size, self.id


@dataclass(slots=True)
class _Shard:
    """A shard: a part of the cache with its own slots."""

    slots: int
    sessions: dict[str, CachedSession] = field(default_factory=dict)


class BrokerSessionCache:
    """The fetch sessions of one broker.

    A broker has 8 shards since Kafka 3.8, and had 1 before. `slots` are those of the whole broker. If they
    can't be divided evenly, the rest is not used.
    """

    def __init__(self, slots: int = SLOTS, shards: int = SHARDS) -> None:
        self._shards = [_Shard(slots // shards) for _ in range(shards)]
        self._shard_of: dict[str, _Shard] = {}
        self._last_id = 0
        self.evictions = 0

    def __repr__(self) -> str:
        return f"<FetchSessionCache sessions={len(self)} evictions={self.evictions}>"

    def __len__(self) -> int:
        return len(self._shard_of)

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def make(self, name: str, size: int, now: int, *, privileged: bool = False) -> bool:
        """Request a session with `size` partitions, at `now` in ms. Return whether the cache created it.

        Requests go to the shards in turn. A new session can only evict a session of its own shard.
        """
        self._last_id += 1
        shard = self._shards[(self._last_id - 1) % len(self._shards)]
        session = CachedSession(self._last_id, name, privileged, now, now)
        session.touch(now, size)
        if len(shard.sessions) >= shard.slots and not self._make_room(shard, session, now):
            return False
        shard.sessions[name] = session
        self._shard_of[name] = shard
        return True

    def touch(self, name: str, size: int, now: int) -> bool:
        shard = self._shard_of.get(name)
        if shard is None:
            return False
        shard.sessions[name].touch(now, size)
        return True

    def close(self, name: str) -> None:
        shard = self._shard_of.pop(name, None)
        if shard is not None:
            del shard.sessions[name]

    def _make_room(self, shard: _Shard, requested: CachedSession, now: int) -> bool:
        """Evict a session if the rules allow it (FetchSessionCacheShard.tryEvict). Return whether one was."""
        if not shard.sessions:
            return False
        stale = min(shard.sessions.values(), key=lambda one: (one.last_used, one.id))
        if now - stale.last_used > EVICTION_MS:
            return self._evict(stale)
        pool = [
            one
            for one in shard.sessions.values()
            if one.lasting or (requested.privileged and not one.privileged)
        ]
        if not pool:
            return False
        least = min(pool, key=lambda one: one.rank)
        # A session does not evict one of the same size: the id of the cached one is above 0.
        if (requested.privileged, requested.cached_size, 0) < least.rank:
            return False
        return self._evict(least)

    def _evict(self, session: CachedSession) -> bool:
        self.evictions += 1
        self.close(session.name)
        return True


@dataclass(slots=True)
class SlotsUse:
    """The use of a broker's session slots in a capture."""

    sessions_at_once: int = 0
    """The largest number of sessions that were in the cache at the same time."""
    requested_at_once: int = 0
    """The maximum number of simultaneous sessions if the cache had slots for all of them."""
    evictions: int = 0
    refused: int = 0
    """The number of refused sessions. A session may be refused at first, or when it is requested again after
    an eviction."""
    over_time: list[tuple[int, int]] = field(default_factory=list)
    """For each period with a change: its start, in ns since 1970, and the largest number of sessions that
    were needed at the same time."""


def simulate(
    events: Iterable[CacheEvent], *, slots: int = SLOTS, shards: int = SHARDS, in_order: bool = False
) -> SlotsUse:
    """Simulate a broker's session cache with the events of its sessions.

    The events are sorted first, unless `in_order` is true. An evicted or refused session is requested again
    at its next use, by a full fetch.
    """
    use, cache, needed = SlotsUse(), BrokerSessionCache(slots, shards), _Needed()
    wanted: set[str] = set()
    refused: set[str] = set()
    for time, act, name, size in events if in_order else sorted(events):
        now = time // 1_000_000
        if act == "close":
            wanted.discard(name)
            refused.discard(name)
            cache.close(name)
            needed.note(time, len(wanted))
            continue
        wanted.add(name)
        if act == "make":
            cache.close(name)
        if not cache.touch(name, size, now):
            if cache.make(name, size, now):
                refused.discard(name)
            elif name not in refused:
                refused.add(name)
                use.refused += 1
        use.sessions_at_once = max(use.sessions_at_once, len(cache))
        use.requested_at_once = max(use.requested_at_once, len(wanted))
        needed.note(time, len(wanted))
    use.evictions, use.over_time = cache.evictions, needed.periods()
    return use


class _Needed:
    """The number of sessions over time, in at most `PERIODS` periods."""

    def __init__(self) -> None:
        self._width = _WIDTH
        self._periods: list[tuple[int, int, int]] = []
        """For each period: its start, the largest number of sessions in it, and the number of sessions at its
        end."""

    def note(self, time: int, needed: int) -> None:
        """Record that `needed` sessions are needed from `time` on, in ns."""
        begin = time // self._width * self._width
        before, most, last = self._periods[-1] if self._periods else (begin, 0, 0)
        if before == begin and self._periods:
            self._periods[-1] = begin, max(most, needed), needed
            return
        if before + self._width < begin and most != last:
            self._periods.append((before + self._width, last, last))
        self._periods.append((begin, max(last, needed), needed))
        while len(self._periods) > PERIODS:
            self._widen()

    def periods(self) -> list[tuple[int, int]]:
        return [(begin, most) for begin, most, _ in self._periods]

    def _widen(self) -> None:
        self._width *= 2
        periods, self._periods = self._periods, []
        for fine, most, last in periods:
            begin = fine // self._width * self._width
            joins = bool(self._periods) and self._periods[-1][0] == begin
            earlier = self._periods.pop()[1] if joins else 0
            self._periods.append((begin, max(most, earlier), last))


class SessionLog:
    """The events of one connection's sessions, at times in ns. It omits uses that hardly change the cache.

    It keeps the first and the last use of a session, each use with a new number of partitions, the uses
    before and after a pause of `TOUCH_NS`, and one use in each `TOUCH_NS`. So if a session is evicted while
    in use, its next request may be up to `TOUCH_NS` later than in reality.
    """

    def __init__(self) -> None:
        self._events: list[CacheEvent] = []
        self._kept: dict[str, CacheEvent] = {}
        self._skipped: dict[str, CacheEvent] = {}

    def make(self, time: int, name: str, size: int) -> None:
        self._keep(CacheEvent(time, "make", name, size))

    def touch(self, time: int, name: str, size: int) -> None:
        event = CacheEvent(time, "touch", name, size)
        before = self._skipped.get(name)
        if before is not None and time - before.time >= TOUCH_NS:
            self._keep(before)
        kept = self._kept.get(name)
        if kept is None or kept.size != size or time - kept.time >= TOUCH_NS:
            self._keep(event)
        else:
            self._skipped[name] = event

    def close(self, time: int, name: str) -> None:
        self._flush(name)
        self._keep(CacheEvent(time, "close", name, 0))

    def drain(self) -> list[CacheEvent]:
        for name in list(self._skipped):
            self._flush(name)
        events, self._events = self._events, []
        self._kept.clear()
        return events

    def _keep(self, event: CacheEvent) -> None:
        self._events.append(event)
        self._kept[event.name] = event
        self._skipped.pop(event.name, None)

    def _flush(self, name: str) -> None:
        if event := self._skipped.pop(name, None):
            self._events.append(event)
