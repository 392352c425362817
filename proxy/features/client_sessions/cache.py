"""The cache of the sessions that clients have with the gateway: slots, ids, evictions. Sans-IO.

All times are milliseconds of a monotonic clock. The rules are those of Kafka up to 3.7 (FetchSession.scala;
fetch-semantics 2.7), which has no shards, with one addition: the cache has a maximum number of partitions, to
limit the memory. Long topic names count as additional partitions. If a new session would exceed this limit,
only sessions that were unused for some time are evicted.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from proxy.features.client_sessions.session import FetchSession

MAX_ID: Final = 8 * ((2**31 - 1) // 8) - 1
"""The highest id. A broker of 3.8 or later throws an exception for higher ones (fetch-semantics 2.2)."""
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
"""The bits in a sort key for a session id."""
_ID: Final = (1 << _BITS) - 1


class FetchSessionCache:
    """The sessions that a process gives to its clients.

    Two sorted lists order the sessions: by last use, and by number of partitions. The items of these lists
    are integers with the session id in the low bits. So among equal sessions the smaller id comes first, as
    in Kafka, and `touch` moves a few KB at most.
    """

    __slots__ = (
        "_by_use",
        "_evictable",
        "_eviction_ms",
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
        slots: int = DEFAULT_SLOTS,
        eviction_ms: int = EVICTION_MS,
        max_partitions: int = MAX_PARTITIONS,
    ) -> None:
        self._new_id = new_id
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._left: dict[int, None] = {}
        """The ids of brokers' own sessions. The id that was seen last is at the end."""
        self._sessions: dict[int, FetchSession] = {}
        self._by_use: list[int] = []
        self._evictable: list[int] = []
        """The sessions that were old enough at their last use that a larger one may evict them."""
        self._weight = 0
        """The sum of `FetchSession.cached_weight`."""
        self.partitions = 0
        """The sum of `FetchSession.cached_size`: Kafka's NumIncrementalFetchPartitionsCached."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    def __repr__(self) -> str:
        return f"<FetchSessionCache sessions={len(self)} partitions={self.partitions}>"

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

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

    def room_for(self, session: FetchSession) -> bool:
        """Return whether there is room for all partitions that a session of the cache has now."""
        return self._weight - session.cached_weight + session.partitions.weight <= self._max_partitions

    def create(self, session: FetchSession, now_ms: int) -> int:
        """Give a new session a slot and an id. Return the id, or 0 if there is no slot or no room for it."""
        if not self._make_room(now_ms, session):
            return 0
        session_id = self._new_id(1, MAX_ID)
        while session_id in self._sessions or session_id in self._left:
            session_id = self._new_id(1, MAX_ID)
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
            _discard(self._evictable, _worth(session))
            self.partitions += size - session.cached_size
            session.cached_size, session.aged = size, aged
            if aged:
                insort(self._evictable, _worth(session))
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
        _discard(self._evictable, _worth(session))
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
        """Return the smallest session if the new session may evict it."""
        # Ids are above 0, so the newcomer must be larger.
        if not self._evictable or len(newcomer.partitions) << _BITS < self._evictable[0]:
            return None
        return self._sessions[self._evictable[0] & _ID]

    def _evict(self, victim: FetchSession) -> None:
        self.remove(victim)
        self.evictions += 1


def _use(session: FetchSession) -> int:
    return session.last_used_ms << _BITS | session.session_id


def _worth(session: FetchSession) -> int:
    return session.cached_size << _BITS | session.session_id


def _discard(ordered: list[int], value: int) -> None:
    at = bisect_left(ordered, value)
    if at < len(ordered) and ordered[at] == value:
        del ordered[at]
