"""The broker's fetch session cache (KIP-227) with slots, shards and eviction. Times are in milliseconds."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.model.wire import ZERO_ID, FetchPartition

MAX_INT = 2**31 - 1
SHARDS = 8
IDS_PER_SHARD = MAX_INT // SHARDS
EVICTION_MS = 120_000

Key: TypeAlias = tuple[str | bytes, int]
"""The topic id (or the topic name, if there is no id) and the partition number."""


class ShardError(Exception):
    """A session id belongs to no shard. A broker of version 3.8 or later throws an exception for it."""


@dataclass(slots=True)
class CachedPartition:
    """The state that a session has for one partition."""

    topic: str | None
    """The topic's name. It is None until the topic id is resolved. After that, it never changes."""
    topic_id: bytes
    entry: FetchPartition
    """The values of the partition in the latest request that listed it."""
    high_watermark: int = -1
    log_start_offset: int = -1

    @property
    def key(self) -> Key:
        if self.topic_id != ZERO_ID:
            return self.topic_id, self.entry.partition
        return self.topic or "", self.entry.partition


@dataclass(slots=True)
class FetchSession:
    session_id: int
    privileged: bool
    uses_ids: bool
    created: int
    partitions: dict[Key, CachedPartition]
    """The partitions of the session, in the order of the session."""
    last_used: int = 0
    epoch: int = 1
    cached_size: int = -1

    def move_to_end(self, key: Key) -> None:
        self.partitions[key] = self.partitions.pop(key)


@dataclass(slots=True)
class FetchSessionCacheShard:
    slots: int
    first_id: int
    last_id: int
    sessions: dict[int, FetchSession] = field(default_factory=dict)
    evictable_by_privileged: set[int] = field(default_factory=set)
    evictable_by_all: set[int] = field(default_factory=set)
    total_partitions: int = 0
    evictions: int = 0

    def touch(self, session: FetchSession, now: int) -> None:
        session.last_used = now
        self.total_partitions += len(session.partitions) - max(session.cached_size, 0)
        session.cached_size = len(session.partitions)
        aged = now - session.created > EVICTION_MS
        for pool, member in (
            (self.evictable_by_privileged, aged or not session.privileged),
            (self.evictable_by_all, aged),
        ):
            (pool.add if member else pool.discard)(session.session_id)

    def remove(self, session: FetchSession) -> None:
        if self.sessions.pop(session.session_id, None) is None:
            return
        self.total_partitions -= max(session.cached_size, 0)
        self.evictable_by_privileged.discard(session.session_id)
        self.evictable_by_all.discard(session.session_id)

    def victim(self, now: int, *, privileged: bool, size: int) -> FetchSession | None:
        """Return the session that is evicted for a new one, or None.

        If the least recently used session is stale, it is evicted. Otherwise, the session of the lowest rank
        is evicted, if it ranks below the new one.
        """
        if not self.sessions:
            return None
        oldest = min(self.sessions.values(), key=lambda s: (s.last_used, s.session_id))
        if now - oldest.last_used > EVICTION_MS:
            return oldest
        pool = self.evictable_by_privileged if privileged else self.evictable_by_all

        def worth(session: FetchSession) -> tuple[bool, int, int]:
            return session.privileged, session.cached_size, session.session_id

        smallest = min((self.sessions[session_id] for session_id in pool), key=worth, default=None)
        return None if smallest is None or (privileged, size, 0) < worth(smallest) else smallest

    def make_room(self, now: int, *, privileged: bool, size: int) -> bool:
        if len(self.sessions) < self.slots:
            return True
        victim = self.victim(now, privileged=privileged, size=size)
        if victim is None:
            return False
        self.remove(victim)
        self.evictions += 1
        return True


class FetchSessionCache:
    """The session cache of a broker, divided into shards. In releases up to 3.7 there is a single shard."""

    def __init__(self, *, slots: int, sharded: bool, seed: int) -> None:
        self._random = random.Random(seed)
        self._turn = 0
        self.sharded = sharded
        if sharded:
            self.shards = [
                FetchSessionCacheShard(
                    slots // SHARDS, max(1, index * IDS_PER_SHARD), (index + 1) * IDS_PER_SHARD - 1
                )
                for index in range(SHARDS)
            ]
        else:
            self.shards = [FetchSessionCacheShard(slots, 1, MAX_INT - 1)]

    def shard_of(self, session_id: int) -> FetchSessionCacheShard:
        if not self.sharded:
            return self.shards[0]
        index = int(session_id / IDS_PER_SHARD)
        if not 0 <= index < SHARDS:
            raise ShardError(session_id)
        return self.shards[index]

    def get(self, session_id: int) -> FetchSession | None:
        return self.shard_of(session_id).sessions.get(session_id)

    def touch(self, session: FetchSession, now: int) -> None:
        self.shard_of(session.session_id).touch(session, now)

    def remove(self, session: FetchSession) -> None:
        self.shard_of(session.session_id).remove(session)

    def create(
        self,
        now: int,
        partitions: Iterable[CachedPartition],
        *,
        privileged: bool = False,
        uses_ids: bool = False,
    ) -> int:
        """Create a session in the next shard.

        If the shard has no free slot, evict another session if possible.

        Returns:
            The id of the session, or 0 if there was no slot.
        """
        shard = self.shards[self._turn % len(self.shards)]
        self._turn += 1
        held = {partition.key: partition for partition in partitions}
        if not shard.make_room(now, privileged=privileged, size=len(held)):
            return 0
        session_id = self._random.randint(shard.first_id, shard.last_id)
        while session_id in shard.sessions:
            session_id = self._random.randint(shard.first_id, shard.last_id)
        session = FetchSession(session_id, privileged, uses_ids, now, held)
        shard.sessions[session_id] = session
        shard.touch(session, now)
        return session_id

    @property
    def sessions(self) -> dict[int, FetchSession]:
        return {key: session for shard in self.shards for key, session in shard.sessions.items()}

    @property
    def total_partitions(self) -> int:
        return sum(shard.total_partitions for shard in self.shards)
