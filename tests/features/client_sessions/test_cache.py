"""Tests of the gateway's session cache that are not in the scripts of `slot_cases`.

Ages are in milliseconds.
"""

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from proxy.features.client_sessions.cache import MAX_ID, FetchSessionCache
from proxy.features.client_sessions.partitions import SessionPartitions
from proxy.features.client_sessions.session import FetchSession
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import MAX_NAME, Listing
from tests.examples import examples
from tests.model.sessions import CachedPartition
from tests.model.sessions import FetchSession as ModelSession
from tests.model.sessions import FetchSessionCache as ModelCache
from tests.model.wire import FetchPartition

LAYOUT = LAYOUTS[12]


def parts(count: int) -> SessionPartitions:
    """Return `count` partitions of one topic."""
    partitions = SessionPartitions(LAYOUT)
    entries = np.zeros(count, LAYOUT.request_item)
    entries.view(LAYOUT.request_fields)["partition"] = np.arange(count)
    partitions.update(Listing(LAYOUT, [b"t"], [count], entries))
    return partitions


def newcomer(size: int) -> FetchSession:
    return FetchSession(parts(size), uses_ids=False)


def cache_of(slots: int, *, max_partitions: int = 1 << 20) -> FetchSessionCache:
    return FetchSessionCache(random.Random(7).randint, slots=slots, max_partitions=max_partitions)


def make(cache: FetchSessionCache, size: int, now: int) -> FetchSession:
    session = newcomer(size)
    assert cache.create(session, now) == session.session_id > 0
    assert cache.get(session.session_id) is session
    return session


def refused(cache: FetchSessionCache, size: int, now: int) -> bool:
    before = list(cache)
    session = newcomer(size)
    if cache.create(session, now):
        return False
    assert list(cache) == before
    assert session.session_id == 0
    return True


def alive(cache: FetchSessionCache, *sessions: FetchSession) -> bool:
    return {session.session_id for session in cache} == {session.session_id for session in sessions}


def test_an_id_in_use_is_not_given_again() -> None:
    """Case 1: a new session never gets an id that is in use."""
    ids = iter([5, 5, 5, 6])
    cache = FetchSessionCache(lambda _first, _last: next(ids), slots=2)

    assert [cache.create(newcomer(1), 0), cache.create(newcomer(1), 0)] == [5, 6]


def test_partitions_are_counted_as_last_touched() -> None:
    """Case 11: the cache counts a session with the number of partitions that it had at its last use."""
    cache = cache_of(2)
    make(cache, 2, 0)
    four = make(cache, 4, 0)
    assert cache.partitions == 6
    cache.touch(four, 120_001)

    five = make(cache, 5, 120_001)
    assert cache.partitions == 9
    cache.remove(five)
    cache.remove(five)
    assert cache.partitions == 4

    four.partitions.forget([(b"t", np.array([3], ">u4").tobytes())])
    assert (four.cached_size, cache.partitions) == (4, 4)
    cache.touch(four, 120_002)
    assert (four.cached_size, cache.partitions) == (3, 3)


def test_without_a_slot_there_is_no_session() -> None:
    """Case 12: the cache creates no session if it has no slots."""
    cache = cache_of(0)

    assert [cache.create(newcomer(1), now) for now in range(0, 1_000_000, 60_000)] == [0] * 17


def test_the_highest_id_is_one_that_brokers_with_shards_know() -> None:
    """Case 13: a broker with 8 shards throws for an id of 8 * 268435455 or more."""
    assert MAX_ID == 8 * 268_435_455 - 1


def test_what_is_removed_or_evicted_is_not_touched() -> None:
    """Section 2.5: a session is removed or evicted while its fetch waits. The late response does not use it.

    Neither another session nor the count of partitions changes.
    """
    cache = cache_of(1)
    gone = make(cache, 1, 0)
    cache.remove(gone)
    cache.touch(gone, 5)
    left = make(cache, 2, 6)
    gone.session_id = left.session_id
    cache.touch(gone, 7)
    cache.remove(gone)

    assert (alive(cache, left), cache.partitions, left.last_used_ms) == (True, 2, 6)


def test_the_figures() -> None:
    cache = cache_of(8)
    for _ in range(8):
        make(cache, 2, 0)
    for _ in range(8):
        make(cache, 1, 200_000)

    assert (len(cache), cache.partitions, cache.evictions) == (8, 8, 8)
    assert repr(cache) == "<FetchSessionCache sessions=8 partitions=8>"


def test_for_partitions_only_stale_sessions_give_way() -> None:
    """If a new session would exceed the limit of partitions, only stale sessions are evicted for it.

    A free slot is not enough, because the limit protects memory.
    """
    cache = cache_of(10, max_partitions=10)
    first, second = make(cache, 4, 0), make(cache, 4, 10)

    assert refused(cache, 11, 500_000)
    assert refused(cache, 3, 20)
    cache.touch(second, 120_005)
    # The first is stale now.
    third = make(cache, 6, 120_006)
    assert alive(cache, second, third)
    assert refused(cache, 7, 120_006)
    assert first.session_id > 0


def test_a_session_may_grow_while_there_is_room() -> None:
    cache = cache_of(10, max_partitions=10)
    make(cache, 4, 0)
    grows = make(cache, 4, 0)

    grows.partitions.update(_listing(6))
    assert cache.room_for(grows)
    grows.partitions.update(_listing(7))
    assert not cache.room_for(grows)


def test_long_names_of_topics_take_the_room_of_partitions() -> None:
    """Long topic names count like additional partitions, so that memory stays limited.

    Otherwise a session could need too much memory if each partition has its own topic with a very long name.
    """
    cache = cache_of(10, max_partitions=1000)
    first, *_, last = sessions = [FetchSession(_named(50), uses_ids=False) for _ in range(4)]

    assert [cache.create(session, 0) > 0 for session in sessions] == [True, True, True, False]
    cache.remove(first)
    assert cache.create(last, 0) > 0
    last.partitions.update(_listing(1000))
    assert not cache.room_for(last)


def _named(count: int) -> SessionPartitions:
    """Return one partition in each of `count` topics with long names."""
    partitions = SessionPartitions(LAYOUT)
    keys = [f"{number}-".encode().ljust(MAX_NAME, b"x") for number in range(count)]
    partitions.update(Listing(LAYOUT, keys, [1] * count, np.zeros(count, LAYOUT.request_item)))
    return partitions


def _listing(count: int) -> Listing:
    entries = np.zeros(count, LAYOUT.request_item)
    entries.view(LAYOUT.request_fields)["partition"] = np.arange(count)
    return Listing(LAYOUT, [b"t"], [count], entries)


# The same as the model's, step by step.


@dataclass
class Both:
    """The gateway's cache and the model broker's cache. Both give the same session ids."""

    ours: FetchSessionCache
    model: ModelCache
    pairs: dict[int, tuple[FetchSession, ModelSession]]

    def check(self) -> None:
        for session_id in set(self.pairs) - set(self.model.sessions):
            del self.pairs[session_id]
        assert {session.session_id for session in self.ours} == set(self.model.sessions)
        assert self.ours.partitions == self.model.total_partitions
        assert self.ours.evictions == self.model.shards[0].evictions


def both(slots: int, seed: int) -> Both:
    model = ModelCache(slots=slots, sharded=False, seed=seed)
    model.shards[0].last_id = MAX_ID
    return Both(FetchSessionCache(random.Random(seed).randint, slots=slots), model, {})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "create", "touch", "resize", "remove"]),
        st.integers(0, 40),
        st.sampled_from([0, 1, 1, 59_999, 60_000, 60_001, 120_000, 120_001]),
    ),
    max_size=60,
)


@given(slots=st.sampled_from([1, 2, 3]), seed=st.integers(0, 9), steps=STEPS)
@examples(300)
def test_any_history_ends_as_the_models(slots: int, seed: int, steps: list[tuple[str, int, int]]) -> None:
    """Cases 2 to 13 in any order: the gateway's cache and the model's cache always hold the same sessions.

    The model was checked against live brokers.
    """
    pair = both(slots, seed)
    now = 0
    for kind, number, passes in steps:
        now += passes
        if kind == "create":
            _create(pair, number % 5, now)
        elif pair.pairs:
            session_id = list(pair.pairs)[number % len(pair.pairs)]
            _change(pair, session_id, kind, number, now)
        pair.check()


def _create(pair: Both, size: int, now: int) -> None:
    session = newcomer(size)
    cached = [
        CachedPartition("t", bytes(16), FetchPartition(partition=i, fetch_offset=0)) for i in range(size)
    ]
    session_id = pair.ours.create(session, now)
    assert session_id == pair.model.create(now, cached)
    if session_id:
        pair.pairs[session_id] = session, pair.model.sessions[session_id]


def _change(pair: Both, session_id: int, kind: str, number: int, now: int) -> None:
    session, modelled = pair.pairs[session_id]
    if kind == "remove":
        pair.ours.remove(session)
        pair.model.remove(modelled)
        del pair.pairs[session_id]
    elif kind == "touch":
        pair.ours.touch(session, now)
        pair.model.touch(modelled, now)
    else:
        size = number % 6
        session.partitions = parts(size)
        modelled.partitions.clear()
        for index in range(size):
            cached = CachedPartition("t", bytes(16), FetchPartition(partition=index, fetch_offset=0))
            modelled.partitions[cached.key] = cached
