"""The broker's slots for fetch sessions, fed with what a capture's sessions did. Sans-IO.

Kafka's ``FetchSessionCache`` (FetchSession.scala): a broker holds 1,000 sessions by default, from 3.8 on in
eight shards. A full cache gives a slot away when its session was not used for two minutes, or, once it is two
minutes old, to a larger session; else the new one is refused. No session ends by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

SLOTS: Final = 1000
"""max.incremental.fetch.session.cache.slots, unless it was set."""
SHARDS: Final = 8
EVICTION_MS: Final = 120_000
"""Kafka has no setting for it."""

Act: TypeAlias = Literal["make", "touch", "close"]
Event: TypeAlias = tuple[int, Act, str, int]
"""Time in ns since 1970, what happened, the session's name, its partitions."""
TOUCH_NS: Final = 10_000_000_000
"""Uses of a session closer together than this need not all be kept, see `SessionLog`."""


@dataclass(slots=True)
class CachedSession:
    """A session in a slot."""

    id: int
    name: str
    privileged: bool
    made: int
    last_used: int
    cached_size: int = 0
    """Partitions at the last touch."""
    lasting: bool = False
    """It was more than two minutes old at the last touch: larger sessions may have its slot."""

    def touch(self, now: int, size: int) -> None:
        """Note that it was used, at a time in ms."""
        self.last_used = now
        self.cached_size = size
        self.lasting = now - self.made > EVICTION_MS

    @property
    def rank(self) -> tuple[bool, int, int]:
        """What another must exceed to have the slot."""
        return self.privileged, self.cached_size, self.id


@dataclass(slots=True)
class _Shard:
    slots: int
    held: dict[str, CachedSession] = field(default_factory=dict)


class FetchSessionCache:
    """The sessions that one broker holds.

    Args:
        slots: of the whole broker.
        shards: 8 from Kafka 3.8 on, 1 before; what slots they do not share evenly is lost.
    """

    def __init__(self, slots: int = SLOTS, shards: int = SHARDS) -> None:
        self._shards = [_Shard(slots // shards) for _ in range(shards)]
        self._of: dict[str, _Shard] = {}
        self._asked = 0
        self.evictions = 0

    def __repr__(self) -> str:
        return f"<FetchSessionCache sessions={len(self)} evictions={self.evictions}>"

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def make(self, name: str, size: int, now: int, *, privileged: bool = False) -> bool:
        """Ask for a session, of so many partitions, at a time in ms; tell whether it was given.

        Each question goes to the next shard in turn, and that one alone makes room.
        """
        self._asked += 1
        shard = self._shards[(self._asked - 1) % len(self._shards)]
        session = CachedSession(self._asked, name, privileged, now, now)
        session.touch(now, size)
        if len(shard.held) >= shard.slots and not self._make_room(shard, session, now):
            return False
        shard.held[name] = session
        self._of[name] = shard
        return True

    def touch(self, name: str, size: int, now: int) -> bool:
        """Use a session; False if the cache does not hold it."""
        shard = self._of.get(name)
        if shard is None:
            return False
        shard.held[name].touch(now, size)
        return True

    def close(self, name: str) -> None:
        """Give up a session's slot; nothing happens if there is none."""
        shard = self._of.pop(name, None)
        if shard is not None:
            del shard.held[name]

    def _make_room(self, shard: _Shard, asking: CachedSession, now: int) -> bool:
        """Evict one session, if any may be (FetchSessionCacheShard.tryEvict)."""
        if not shard.held:
            return False
        stale = min(shard.held.values(), key=lambda one: (one.last_used, one.id))
        if now - stale.last_used > EVICTION_MS:
            return self._evict(stale)
        pool = [
            one for one in shard.held.values() if one.lasting or (asking.privileged and not one.privileged)
        ]
        if not pool:
            return False
        least = min(pool, key=lambda one: one.rank)
        # Of two equally large ones the one that is there stays: its id is above 0.
        if (asking.privileged, asking.cached_size, 0) < least.rank:
            return False
        return self._evict(least)

    def _evict(self, session: CachedSession) -> bool:
        self.evictions += 1
        self.close(session.name)
        return True


@dataclass(slots=True)
class SlotsUse:
    """What sessions did to one broker's slots."""

    sessions_at_once: int = 0
    """Most sessions held at a time."""
    requested_at_once: int = 0
    """Most that would have been held, had there been slots for all."""
    evictions: int = 0
    refused: int = 0
    """Sessions that were not given when first asked for, or after an eviction."""


def simulate(events: Iterable[Event], *, slots: int = SLOTS, shards: int = SHARDS) -> SlotsUse:
    """Play events of one broker's sessions, in any order, through a cache.

    A session that was evicted or refused asks again with its next use: that use would be a full fetch.
    """
    use, cache = SlotsUse(), FetchSessionCache(slots, shards)
    wanted: set[str] = set()
    refused: set[str] = set()
    for time, act, name, size in sorted(events):
        now = time // 1_000_000
        if act == "close":
            wanted.discard(name)
            refused.discard(name)
            cache.close(name)
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
    use.evictions = cache.evictions
    return use


class SessionLog:
    """The events of one connection's sessions, without the uses that make no difference to a cache.

    Kept are a session's first and last use, those that change its size, those on both sides of a pause of
    `TOUCH_NS`, and one in each `TOUCH_NS`. A session evicted in full use may so ask again that much later.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._kept: dict[str, Event] = {}
        self._left: dict[str, Event] = {}

    def make(self, time: int, name: str, size: int) -> None:
        """Note that a session was asked for."""
        self._keep((time, "make", name, size))

    def touch(self, time: int, name: str, size: int) -> None:
        """Note that a session was used."""
        event: Event = (time, "touch", name, size)
        before = self._left.get(name)
        if before is not None and time - before[0] >= TOUCH_NS:
            self._keep(before)
        kept = self._kept.get(name)
        if kept is None or kept[3] != size or time - kept[0] >= TOUCH_NS:
            self._keep(event)
        else:
            self._left[name] = event

    def close(self, time: int, name: str) -> None:
        """Note that a session was closed."""
        self._flush(name)
        self._keep((time, "close", name, 0))

    def take(self) -> list[Event]:
        """Return what is to be kept."""
        for name in list(self._left):
            self._flush(name)
        events, self._events = self._events, []
        self._kept.clear()
        return events

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        self._kept[event[2]] = event
        self._left.pop(event[2], None)

    def _flush(self, name: str) -> None:
        if event := self._left.pop(name, None):
            self._events.append(event)
