"""Tests that the model's session cache behaves like a broker's in cases 1 to 13 (KIP-227).

Ages are in milliseconds.
"""

import pytest

from tests.model.asker import Asker
from tests.model.broker import ModelBroker
from tests.model.sessions import CachedPartition, FetchSession, FetchSessionCache, ShardError
from tests.model.wire import FetchPartition


def parts(count: int) -> list[CachedPartition]:
    return [
        CachedPartition("t", bytes(16), FetchPartition(partition=i, fetch_offset=0)) for i in range(count)
    ]


def one_cache(slots: int) -> FetchSessionCache:
    return FetchSessionCache(slots=slots, sharded=False, seed=7)


def make(cache: FetchSessionCache, size: int, now: int, *, privileged: bool = False) -> FetchSession:
    session_id = cache.create(now, parts(size), privileged=privileged)
    assert session_id > 0
    return cache.sessions[session_id]


def refused(cache: FetchSessionCache, size: int, now: int, *, privileged: bool = False) -> bool:
    return cache.create(now, parts(size), privileged=privileged) == 0


def alive(cache: FetchSessionCache, *sessions: FetchSession) -> bool:
    return set(cache.sessions) == {session.session_id for session in sessions}


def test_ids_are_positive_unique_and_their_shards_own() -> None:
    """Case 1: session ids are positive and unique, and in the range of their shard."""
    cache = FetchSessionCache(slots=80_000, sharded=True, seed=1)

    ids = [cache.create(0, parts(1)) for _ in range(10_000)]

    assert len(set(ids)) == 10_000
    assert min(ids) > 0
    for index, shard in enumerate(cache.shards):
        assert all(max(1, index * 268_435_455) <= i < (index + 1) * 268_435_455 for i in shard.sessions)


def test_a_full_cache_refuses() -> None:
    """Case 2: a full cache creates no new session while all of its sessions are recent."""
    cache = one_cache(3)
    sessions = [make(cache, 10, 0), make(cache, 20, 10), make(cache, 30, 20)]

    assert refused(cache, 40, 30)
    assert refused(cache, 5, 40)
    assert alive(cache, *sessions)


def test_the_least_recently_used_goes_when_stale() -> None:
    """Case 3: a session that was not used for two minutes is evicted if it is the least recently used."""
    cache = one_cache(3)
    first, _, third = make(cache, 10, 0), make(cache, 20, 10), make(cache, 30, 20)
    cache.touch(first, 120_011)

    fourth = make(cache, 11, 120_011)

    assert alive(cache, first, third, fourth)


def test_the_smallest_aged_goes_and_privilege_counts() -> None:
    """Case 4: a new session evicts the smallest session that is older than 120 s, if that one is smaller.

    A follower's new session also evicts a consumer's session that is not that old.
    """
    cache = one_cache(3)
    first, third = make(cache, 10, 0), make(cache, 30, 20)
    cache.touch(first, 120_211)
    cache.touch(third, 120_200)
    fourth = make(cache, 11, 120_211)

    fifth = make(cache, 50, 120_220)

    assert alive(cache, third, fourth, fifth)
    assert refused(cache, 5, 120_220)
    sixth = make(cache, 5, 120_220, privileged=True)
    assert alive(cache, third, fifth, sixth)


def test_equal_size_never_evicts() -> None:
    """Case 5: an old session in use is evicted by a larger new session, but not by one of equal size."""
    cache = one_cache(1)
    old = make(cache, 10, 0)
    cache.touch(old, 120_001)

    assert refused(cache, 10, 120_001)
    assert alive(cache, make(cache, 11, 120_001))


def test_staleness_is_strict() -> None:
    """Case 6: a session is stale after more than 120,000 ms, not after exactly 120,000 ms."""
    cache = one_cache(1)
    make(cache, 10, 0)

    assert refused(cache, 10, 120_000)
    assert alive(cache, make(cache, 10, 120_001))


def test_a_privileged_newcomer_beats_any_consumer() -> None:
    """Case 7: a new session of a follower evicts any consumer's session, but no follower's session in use."""
    cache = one_cache(1)
    make(cache, 100, 0)

    follower = make(cache, 1, 1, privileged=True)

    assert alive(cache, follower)
    assert refused(cache, 200, 2, privileged=True)


def test_a_consumer_never_evicts_a_follower_in_use() -> None:
    """Case 8: a new session of a consumer never evicts a follower's session that is in use."""
    cache = one_cache(1)
    follower = make(cache, 1, 0, privileged=True)
    cache.touch(follower, 120_001)

    assert refused(cache, 100, 240_001)
    make(cache, 100, 240_002)


def test_anyone_evicts_a_stale_follower() -> None:
    """Case 9: a new session of a consumer evicts a follower's session that was not used for two minutes."""
    cache = one_cache(1)
    make(cache, 10, 0, privileged=True)

    assert alive(cache, make(cache, 1, 120_001))


def test_a_session_in_use_is_not_the_victim() -> None:
    """Case 10: if a slot is needed, a stale session is evicted, and a session in use remains."""
    broker = ModelBroker(slots=16)
    broker.create_topic("t", 2)
    asker = Asker(broker=broker)
    used = asker.fetch(("t", 0), session=(0, 0)).session_id
    for _ in range(7):
        broker.cache.create(0, parts(1))
    idle = asker.fetch(("t", 0), session=(0, 0)).session_id
    asker.now = 120.001
    asker.fetch(session=(used, 1))
    for _ in range(7):
        broker.cache.create(0, parts(1))

    newcomer = asker.fetch(("t", 0), session=(0, 0)).session_id

    assert newcomer > 0
    assert used in broker.cache.sessions
    assert idle not in broker.cache.sessions


def test_partitions_are_counted_as_last_touched() -> None:
    """Case 11: the cache counts each session with the number of partitions at the session's last use."""
    cache = one_cache(2)
    make(cache, 2, 0)
    four = make(cache, 4, 0)
    assert cache.total_partitions == 6
    cache.touch(four, 120_001)

    five = make(cache, 5, 120_001)
    assert cache.total_partitions == 9
    cache.remove(five)
    assert cache.total_partitions == 4

    four.partitions.popitem()
    assert (four.cached_size, cache.total_partitions) == (4, 4)
    cache.touch(four, 120_002)
    assert (four.cached_size, cache.total_partitions) == (3, 3)


@pytest.mark.parametrize("slots", [0, 7])
def test_without_slots_fetches_work(slots: int) -> None:
    """Case 12: without session slots, full fetches work, and create no session.

    With fewer slots than shards, this is the same.
    """
    broker = ModelBroker(slots=slots)
    broker.create_topic("t")

    response = Asker(broker=broker).fetch(("t", 0), session=(0, 0))

    assert response.session_id == 0
    assert len(response.topics) == 1


def test_shards_and_their_turns() -> None:
    """Case 13: each shard has a range of ids. New sessions use the shards in turn."""
    cache = FetchSessionCache(slots=800, sharded=True, seed=3)

    assert cache.shard_of(268_435_454) is cache.shards[0]
    assert cache.shard_of(268_435_455) is cache.shards[1]
    assert cache.shard_of(2 * 268_435_455) is cache.shards[2]
    assert cache.shard_of(-268_435_454) is cache.shards[0]
    for outside in (8 * 268_435_455, -268_435_455):
        with pytest.raises(ShardError):
            cache.shard_of(outside)
    ids = [cache.create(0, parts(1)) for _ in range(16)]
    assert [cache.shards.index(cache.shard_of(i)) for i in ids] == [*range(8), *range(8)]


def test_fifteen_slots_over_eight_shards_are_eight() -> None:
    cache = FetchSessionCache(slots=15, sharded=True, seed=3)

    made = [cache.create(0, parts(1)) for _ in range(16)]

    assert all(made[:8])
    assert not any(made[8:])


def test_a_freed_slot_goes_to_whoever_asks_that_shard_next() -> None:
    cache = FetchSessionCache(slots=16, sharded=True, seed=3)
    sessions = [make(cache, 1, 0) for _ in range(16)]
    cache.remove(sessions[3])

    assert [bool(cache.create(1, parts(1))) for _ in range(8)] == [i == 3 for i in range(8)]


def test_up_to_2_4_a_session_in_use_looks_stale() -> None:
    """Up to Kafka 2.4, a session in use is evicted two minutes after its creation (KAFKA-9137)."""
    broker = ModelBroker(release="2.4.1", slots=1)
    broker.create_topic("t", 2)
    asker = Asker(broker=broker)
    session = asker.fetch(("t", 0), session=(0, 0)).session_id
    asker.now = 120.001
    asker.fetch(session=(session, 1))

    assert asker.fetch(("t", 0), session=(0, 0)).session_id not in (0, session)
