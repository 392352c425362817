"""The cache of the sessions that clients have with the gateway: slots, ids, shards, evictions. Sans-IO.

All times are milliseconds of a monotonic clock. The rules are those of Kafka 3.8 and later
(FetchSession.scala; fetch-semantics 2.7), with one addition: a shard has a maximum number of partitions, to
limit the memory. Long topic names count as additional partitions. If a new session would exceed this limit,
only sessions that were unused for some time are evicted.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator
from typing import Final, TypeAlias

from proxy.features.client_sessions.session import FetchSession

SHARDS: Final = 8
"""As in Kafka 3.8 and later."""
IDS_PER_SHARD: Final = (2**31 - 1) // SHARDS
DEFAULT_SLOTS: Final = 1000
"""Kafka's default for max.incremental.fetch.session.cache.slots."""
EVICTION_MS: Final = 120_000
"""How long a session is protected from eviction. KIP-227 calls it min.incremental.fetch.session.eviction.ms,
but in Kafka it is a constant."""
MAX_PARTITIONS: Final = 1 << 17
"""The limit for the number of partitions in all sessions of a cache. They take about 13 MB of memory."""

MAX_LEFT: Final = 1 << 14
"""How many ids of brokers' own sessions are remembered: the latest ones. They take about 1.5 MB. By default a
broker has 1,000 sessions."""

NewId: TypeAlias = Callable[[int, int], int]
"""Returns a random number in a range: from the first argument to the second."""

_BITS: Final = 31
"""The bits in a sort key for a session id or for a session's size."""
_ID: Final = (1 << _BITS) - 1


class FetchSessionCache:
    """The sessions that a process gives to its clients.

    Each shard has one eighth of `slots` and of `max_partitions`. Below 8 slots there are no sessions, as in
    Kafka.
    """

    __slots__ = ("_left", "_shards", "_turn")

    def __init__(
        self,
        new_id: NewId,
        *,
        slots: int = DEFAULT_SLOTS,
        eviction_ms: int = EVICTION_MS,
        max_partitions: int = MAX_PARTITIONS,
    ) -> None:
        self._left: dict[int, None] = {}
        """The ids of brokers' own sessions. The id that was seen last is at the end."""
        self._shards = [
            FetchSessionCacheShard(
                new_id,
                left=self._left,
                first_id=max(1, shard * IDS_PER_SHARD),
                last_id=(shard + 1) * IDS_PER_SHARD - 1,
                slots=slots // SHARDS,
                eviction_ms=eviction_ms,
                max_partitions=max_partitions // SHARDS,
            )
            for shard in range(SHARDS)
        ]
        self._turn = 0

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __iter__(self) -> Iterator[FetchSession]:
        for shard in self._shards:
            yield from shard

    def __repr__(self) -> str:
        return f"<FetchSessionCache sessions={len(self)} partitions={self.partitions}>"

    @property
    def partitions(self) -> int:
        """Kafka's NumIncrementalFetchPartitionsCached. A session counts with its number at its last use."""
        return sum(shard.partitions for shard in self._shards)

    @property
    def evictions(self) -> dict[bool, int]:
        """The evictions so far. The key True is for privileged sessions, False for all other sessions."""
        return {
            privileged: sum(shard.evictions[privileged] for shard in self._shards)
            for privileged in (False, True)
        }

    def shard_of(self, session_id: int) -> int:
        """Return the number of the shard whose range contains an id, or -1.

        If a client uses an id outside all ranges, a broker throws an exception (fetch-semantics 2.2). The
        gateway handles such an id like an unknown id.
        """
        return session_id // IDS_PER_SHARD if 0 < session_id < SHARDS * IDS_PER_SHARD else -1

    def get(self, session_id: int) -> FetchSession | None:
        shard = self.shard_of(session_id)
        return self._shards[shard].get(session_id) if shard >= 0 else None

    def touch(self, session: FetchSession, now_ms: int) -> None:
        self._shards[self.shard_of(session.session_id)].touch(session, now_ms)

    def remove(self, session: FetchSession) -> None:
        self._shards[self.shard_of(session.session_id)].remove(session)

    def room_for(self, session: FetchSession) -> bool:
        return self._shards[self.shard_of(session.session_id)].room_for(session)

    def leave(self, session_id: int) -> None:
        """Remember the id of a broker's own session. A session of the gateway with this id is removed.

        A client sends only the id. If two sessions had the same id, a client could get another client's
        session.
        """
        if session_id in self._left:
            del self._left[session_id]
        elif len(self._left) >= MAX_LEFT:
            del self._left[next(iter(self._left))]
        self._left[session_id] = None
        if (session := self.get(session_id)) is not None:
            self.remove(session)

    def create(self, session: FetchSession, now_ms: int) -> int:
        """Put a new session into the next shard in turn. Return its id, or 0 if the shard has no room."""
        shard = self._shards[self._turn % SHARDS]
        self._turn += 1
        return shard.create(session, now_ms)


class FetchSessionCacheShard:
    """One shard of the session cache. It has a number of slots and a range of ids.

    Two kinds of sorted lists order the sessions: by last use, and by value (privilege, then number of
    partitions). The items of these lists are integers with the session id in the low bits. So among equal
    sessions the smaller id comes first, as in Kafka, and `touch` moves a few KB at most.
    """

    __slots__ = (
        "_by_use",
        "_evictable_by_all",
        "_evictable_by_privileged",
        "_eviction_ms",
        "_first_id",
        "_last_id",
        "_left",
        "_max_partitions",
        "_new_id",
        "_sessions",
        "_slots",
        "_weight",
        "evictions",
        "partitions",
    )

    def __init__(
        self,
        new_id: NewId,
        *,
        first_id: int,
        last_id: int,
        slots: int,
        eviction_ms: int,
        max_partitions: int,
        left: Container[int] = (),
    ) -> None:
        self._new_id = new_id
        self._left = left
        self._first_id = first_id
        self._last_id = last_id
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._sessions: dict[int, FetchSession] = {}
        self._by_use: list[int] = []
        self._evictable_by_privileged: list[int] = []
        self._evictable_by_all: list[int] = []
        self._weight = 0
        """The sum of `FetchSession.cached_weight`."""
        self.partitions = 0
        """The sum of `FetchSession.cached_size`."""
        self.evictions = {False: 0, True: 0}
        """See `FetchSessionCache.evictions`."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def room_for(self, session: FetchSession) -> bool:
        """Return whether this shard has room for all partitions that one of its sessions has now."""
        return self._weight - session.cached_weight + session.partitions.weight <= self._max_partitions

    def create(self, session: FetchSession, now_ms: int) -> int:
        """Give a new session a slot and an id. Return the id, or 0 if there is no slot or no room for it."""
        if not self._make_room(now_ms, session):
            return 0
        session_id = self._new_id(self._first_id, self._last_id)
        while session_id in self._sessions or session_id in self._left:
            session_id = self._new_id(self._first_id, self._last_id)
        session.session_id = session_id
        session.created_ms = session.last_used_ms = now_ms
        self._sessions[session_id] = session
        insort(self._by_use, _use(session))
        self.touch(session, now_ms)
        return session_id

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Record that a session is used now: its present size, and whether its age lets it be evicted.

        If the session is no longer in the cache, do nothing.
        """
        if self._sessions.get(session.session_id) is not session:
            return
        aged = now_ms - session.created_ms > self._eviction_ms
        size, weight = len(session.partitions), session.partitions.weight
        self._weight += weight - session.cached_weight
        session.cached_weight = weight
        if size != session.cached_size or aged != session.aged:
            self._leave_pools(session)
            self.partitions += size - max(session.cached_size, 0)
            session.cached_size, session.aged = size, aged
            if aged or not session.privileged:
                insort(self._evictable_by_privileged, _worth(session))
            if aged:
                insort(self._evictable_by_all, _worth(session))
        if now_ms != session.last_used_ms:
            _discard(self._by_use, _use(session))
            session.last_used_ms = now_ms
            insort(self._by_use, _use(session))

    def remove(self, session: FetchSession) -> None:
        """Remove a session if it is still in the cache."""
        if self._sessions.get(session.session_id) is not session:
            return
        del self._sessions[session.session_id]
        _discard(self._by_use, _use(session))
        self._leave_pools(session)
        self.partitions -= session.cached_size
        self._weight -= session.cached_weight

    def _make_room(self, now_ms: int, newcomer: FetchSession) -> bool:
        weight = newcomer.partitions.weight
        if weight > self._max_partitions:
            return False
        # For partitions, only stale sessions are evicted: one large newcomer would end hundreds of others.
        while self._weight + weight > self._max_partitions and (stale := self._stale(now_ms)) is not None:
            self._evict(stale)
        if self._weight + weight > self._max_partitions:
            return False
        if len(self._sessions) < self._slots:
            return True
        victim = self._stale(now_ms) or self._smaller(newcomer)
        if victim is None:
            return False
        self._evict(victim)
        return True

    def _stale(self, now_ms: int) -> FetchSession | None:
        """Return the least recently used session if any new session may evict it."""
        if not self._by_use:
            return None
        oldest = self._sessions[self._by_use[0] & _ID]
        return oldest if now_ms - oldest.last_used_ms > self._eviction_ms else None

    def _smaller(self, newcomer: FetchSession) -> FetchSession | None:
        """Return the session with the least value if the new session may evict it."""
        pool = self._evictable_by_privileged if newcomer.privileged else self._evictable_by_all
        # Ids are above 0, so with equal privilege the newcomer must be larger.
        if not pool or (newcomer.privileged << _BITS | len(newcomer.partitions)) << _BITS < pool[0]:
            return None
        return self._sessions[pool[0] & _ID]

    def _evict(self, victim: FetchSession) -> None:
        self.remove(victim)
        self.evictions[victim.privileged] += 1

    def _leave_pools(self, session: FetchSession) -> None:
        if session.cached_size >= 0:
            worth = _worth(session)
            _discard(self._evictable_by_privileged, worth)
            _discard(self._evictable_by_all, worth)


def _use(session: FetchSession) -> int:
    return session.last_used_ms << _BITS | session.session_id


def _worth(session: FetchSession) -> int:
    return (session.privileged << _BITS | session.cached_size) << _BITS | session.session_id


def _discard(ordered: list[int], value: int) -> None:
    at = bisect_left(ordered, value)
    if at < len(ordered) and ordered[at] == value:
        del ordered[at]
