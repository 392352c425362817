"""The simulated session cache behaves as in the cases of Kafka's FetchSessionCacheTest.

It is also compared with the model broker.
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.simulate.session_cache import (
    EVICTION_MS,
    PERIODS,
    TOUCH_NS,
    BrokerSessionCache,
    CacheEvent,
    SessionLog,
    simulate,
)
from tests.model.sessions import CachedPartition
from tests.model.sessions import FetchSessionCache as ModelCache
from tests.model.wire import ZERO_ID, FetchPartition

AGED = EVICTION_MS + 1
SECOND = 1_000_000_000


def small(*, privileged: bool = False) -> BrokerSessionCache:
    """Return a cache with three slots in one shard. They hold sessions of 10, 20 and 30 partitions."""
    cache = BrokerSessionCache(slots=3, shards=1)
    for at, size in enumerate((10, 20, 30)):
        assert cache.make(str(size), size, at, privileged=privileged)
    return cache


@pytest.mark.parametrize("size", [5, 20, 40])
def test_young_sessions_keep_their_slots(size: int) -> None:
    cache = small()

    assert not cache.make("new", size, 30)
    assert (len(cache), cache.evictions) == (3, 0)


def test_the_least_recently_used_stale_session_goes_first() -> None:
    cache = small()
    cache.touch("10", 10, AGED)

    assert cache.make("new", 1, AGED + 2)
    assert ["20" in cache, "10" in cache, "30" in cache] == [False, True, True]


@pytest.mark.parametrize(("idle", "goes"), [(EVICTION_MS, False), (EVICTION_MS + 1, True)])
def test_stale_is_strictly_more_than_two_minutes(idle: int, goes: bool) -> None:
    cache = BrokerSessionCache(slots=1, shards=1)
    cache.make("old", 5, 0)

    assert cache.make("new", 1, idle) is goes


@pytest.mark.parametrize(("size", "goes"), [(9, False), (10, False), (11, True)])
def test_a_larger_session_has_the_slot_of_the_smallest_that_lasts(size: int, goes: bool) -> None:
    cache = small()
    for name in ("10", "20", "30"):
        cache.touch(name, int(name), AGED + 10)

    assert cache.make("new", size, AGED + 20) is goes
    assert ("10" in cache) is not goes


def test_a_privileged_session_evicts_a_young_larger_one_and_never_another_privileged() -> None:
    cache, privileged = small(), small(privileged=True)

    assert cache.make("follower", 1, 30, privileged=True)
    assert "10" not in cache
    assert not privileged.make("follower", 100, 30, privileged=True)


def test_a_consumer_takes_a_followers_slot_only_when_it_is_stale() -> None:
    cache = small(privileged=True)
    for name in ("10", "20", "30"):
        cache.touch(name, int(name), AGED + 10)

    assert not cache.make("new", 100, AGED + 20)
    assert cache.make("new", 100, AGED + 11 + AGED)


def test_slots_are_shared_by_eight_shards_in_turn() -> None:
    cache = BrokerSessionCache(slots=15, shards=8)

    assert [cache.make(str(at), 1, 0) for at in range(9)] == [True] * 8 + [False]
    cache.close("1")
    assert cache.make("next", 1, 0)


def test_fewer_slots_than_shards_are_none() -> None:
    assert not BrokerSessionCache(slots=7).make("a", 1, 0)


Step = tuple[str, int, int, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("make", "make", "touch", "close")),
        st.integers(0, 11),
        st.integers(1, 5),
        st.sampled_from((1, 1000, 60_000, EVICTION_MS, AGED)),
        st.booleans(),
    ),
    max_size=60,
)


class _Growing(random.Random):
    """Gives growing session ids to the model broker, as `BrokerSessionCache` does.

    If two sessions are equal for an eviction, the lower id decides.
    """

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def randint(self, a: int, b: int) -> int:
        self.given += 1
        return a + self.given


@given(steps=STEPS, sharded=st.booleans())
def test_it_does_as_the_model_of_a_broker(steps: Sequence[Step], sharded: bool) -> None:
    cache = BrokerSessionCache(slots=8 if sharded else 3, shards=8 if sharded else 1)
    model = ModelCache(slots=8 if sharded else 3, sharded=sharded, seed=1)
    model._random = _Growing()
    ids: dict[str, int] = {}
    now = 0
    for act, number, size, later, privileged in steps:
        now += later
        name = str(number)
        session = model.get(ids[name]) if name in ids else None
        if act == "make" and session is None:
            ids.pop(name, None)
            made = model.create(now, _partitions(size), privileged=privileged)
            assert cache.make(name, size, now, privileged=privileged) is bool(made)
            if made:
                ids[name] = made
        elif act == "touch" and session is not None:
            session.partitions = {one.key: one for one in _partitions(size)}
            model.touch(session, now)
            assert cache.touch(name, size, now)
        elif act == "close" and session is not None:
            model.remove(session)
            cache.close(name)
            del ids[name]
        assert {name for name in ids if model.get(ids[name])} == {name for name in ids if name in cache}
        assert cache.evictions == sum(shard.evictions for shard in model.shards)


def _partitions(size: int) -> list[CachedPartition]:
    return [CachedPartition("t", ZERO_ID, FetchPartition(partition=at, fetch_offset=0)) for at in range(size)]


def test_sessions_are_counted_at_their_most() -> None:
    events: list[CacheEvent] = [
        CacheEvent(3 * SECOND, "make", "b", 1),
        CacheEvent(1 * SECOND, "make", "a", 1),
        CacheEvent(2 * SECOND, "touch", "a", 1),
        CacheEvent(4 * SECOND, "close", "a", 0),
        CacheEvent(5 * SECOND, "make", "c", 1),
    ]
    use = simulate(events)

    assert (use.sessions_at_once, use.requested_at_once, use.evictions, use.refused) == (2, 2, 0, 0)


def test_a_refused_session_asks_again_with_every_use_and_is_counted_once() -> None:
    events: list[CacheEvent] = [CacheEvent(0, "make", "a", 1), CacheEvent(1, "make", "b", 1)]
    events += [CacheEvent(at * SECOND, "touch", "b", 1) for at in range(1, 5)]
    use = simulate(
        [*events, CacheEvent(5 * SECOND, "close", "a", 0), CacheEvent(6 * SECOND, "touch", "b", 1)],
        slots=1,
        shards=1,
    )

    assert (use.sessions_at_once, use.requested_at_once, use.evictions, use.refused) == (1, 2, 0, 1)


def test_an_evicted_session_comes_back_with_its_next_use() -> None:
    idle = (AGED + 1) * 1_000_000
    events: list[CacheEvent] = [
        CacheEvent(0, "make", "a", 1),
        CacheEvent(idle, "make", "b", 1),
        CacheEvent(3 * idle, "touch", "a", 1),
    ]
    use = simulate(events, slots=1, shards=1)

    assert (use.sessions_at_once, use.requested_at_once, use.evictions, use.refused) == (1, 2, 2, 0)


def test_the_log_keeps_what_makes_a_difference() -> None:
    log = SessionLog()
    log.make(0, "a", 5)
    for at in range(1, 25):
        log.touch(at * SECOND, "a", 5)
    log.touch(25 * SECOND, "a", 6)
    log.touch(26 * SECOND, "a", 6)
    log.touch(26 * SECOND + 3 * TOUCH_NS, "a", 6)
    log.touch(27 * SECOND + 3 * TOUCH_NS, "a", 6)
    log.close(28 * SECOND + 3 * TOUCH_NS, "a")

    assert [(time // SECOND, act, size) for time, act, _, size in log.drain()] == [
        (0, "make", 5),
        (10, "touch", 5),
        (20, "touch", 5),
        (25, "touch", 6),
        (26, "touch", 6),
        (56, "touch", 6),
        (57, "touch", 6),
        (58, "close", 0),
    ]
    assert log.drain() == []


def test_sessions_needed_are_told_by_period() -> None:
    events: list[CacheEvent] = [
        CacheEvent(1 * SECOND, "make", "a", 10),
        CacheEvent(2 * SECOND, "make", "b", 10),
        CacheEvent(3 * SECOND, "close", "a", 0),
        CacheEvent(25 * SECOND, "make", "c", 10),
        CacheEvent(41 * SECOND, "close", "b", 0),
        CacheEvent(59 * SECOND, "close", "c", 0),
    ]
    use = simulate(events, slots=1, shards=1)

    assert [(begin // SECOND, most) for begin, most in use.over_time] == [
        (1, 1),
        (2, 2),
        (3, 2),
        (4, 1),
        (25, 2),
        (41, 2),
        (42, 1),
        (59, 1),
    ]


def test_sessions_needed_over_a_long_time_are_told_by_longer_periods() -> None:
    """Over a long time, periods are merged into longer ones. Each period keeps its maximum of sessions.

    In this test, sessions are created one by one, and closed later.
    """
    events: list[CacheEvent] = []
    for number in range(1_000):
        events.append(CacheEvent(number * 10 * SECOND, "make", f"{number}", 10))
        if number >= 7:
            events.append(CacheEvent(number * 10 * SECOND + SECOND, "close", f"{number - 7}", 0))
    periods = simulate(events).over_time

    assert len(periods) <= PERIODS
    assert max(most for _, most in periods) == 8
    assert {most for _, most in periods[2:]} <= {7, 8}
    assert [begin for begin, _ in periods] == sorted({begin for begin, _ in periods})
