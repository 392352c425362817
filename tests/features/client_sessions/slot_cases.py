"""Conformance cases 1 to 13 as scripts for a single server: which session gets a slot, and which is evicted.

They run against the gateway's cache and the model broker with a simulated clock, and against live brokers in
real time (`tests/integration/test_slots_live.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.model.asker import Requests
from tests.model.sessions import EVICTION_MS, IDS_PER_SHARD, SHARDS
from tests.model.wire import FetchRequest, FetchResponse

TOPIC: Final = "wide"
PARTITIONS: Final = 100
FOLLOWER: Final = 5
"""The replica id of a follower. Fetches with this id create privileged sessions."""
WRONG_EPOCH: Final = 2**31 - 1
NOT_FOUND: Final = 70
VERSION: Final = 12


class Held:
    """One session in each shard. A test uses all of them in the same way.

    A cache without shards counts as one shard.
    """

    def __init__(self, ids: list[int], size: int, *, privileged: bool) -> None:
        self.ids = ids
        self.size = size
        self.privileged = privileged
        self.epoch = 0


class Slots(ABC):
    """The slots of a server. Every action is done in each shard.

    Args:
        shards: the number of shards.
        margin_ms: the possible error when a test waits for a time on the server's clock, in milliseconds.
    """

    followers = True
    """Whether the server gives sessions to followers. They are privileged."""

    def __init__(self, shards: int, margin_ms: int = 0) -> None:
        self.shards = shards
        self.margin_ms = margin_ms

    @abstractmethod
    def create(self, size: int, *, privileged: bool) -> int:
        """Request a session with this number of partitions. Return its id, or 0 if no slot is free."""

    @abstractmethod
    def touch(self, session_id: int, held: Held, forget: int) -> None:
        """Use a session. `forget` is the number of partitions that this use removes from it."""

    @abstractmethod
    def has(self, session_id: int) -> bool:
        """Return whether the session exists, without using it."""

    @abstractmethod
    def close(self, session_id: int) -> None:
        """Close a session."""

    @abstractmethod
    def wait(self, ms: int) -> None:
        """Let this time pass, in milliseconds."""

    @abstractmethod
    def counted(self) -> int | None:
        """Return the metric NumIncrementalFetchPartitionsCached, or None if it is unknown."""

    def make(self, size: int, *, privileged: bool = False) -> Held:
        """Create a session with `size` partitions in each shard."""
        ids = [self.create(size, privileged=privileged) for _ in range(self.shards)]
        assert all(ids), ids
        if self.shards > 1:
            assert [session_id // IDS_PER_SHARD for session_id in ids] == list(range(self.shards))
        return Held(ids, size, privileged=privileged)

    def refuses(self, size: int, *, privileged: bool = False) -> bool:
        """Return whether no shard has a slot for a session of this size."""
        ids = [self.create(size, privileged=privileged) for _ in range(self.shards)]
        return not any(ids)

    def use(self, held: Held, *, forget: int = 0) -> None:
        """Use a session in each shard. `forget` is the number of partitions that this use removes from it."""
        held.epoch += 1
        for session_id in held.ids:
            self.touch(session_id, held, forget)
        held.size -= forget

    def alive(self, *sessions: Held) -> bool:
        """Return whether all of these sessions exist."""
        return all(self.has(session_id) for held in sessions for session_id in held.ids)

    def gone(self, *sessions: Held) -> bool:
        """Return whether none of these sessions exists."""
        return not any(self.has(session_id) for held in sessions for session_id in held.ids)

    def end(self, *sessions: Held) -> None:
        """Close all of these sessions."""
        for held in sessions:
            for session_id in held.ids:
                self.close(session_id)

    def almost_stale(self) -> None:
        """Wait until just before sessions become stale, as exactly as the clock allows."""
        self.wait(EVICTION_MS - self.margin_ms)

    def just_stale(self) -> None:
        """Wait a short time after `almost_stale`, so that the sessions become stale."""
        self.wait(2 * self.margin_ms + 1)

    def grow_stale(self) -> None:
        """Wait until all sessions are stale and can be evicted."""
        self.wait(EVICTION_MS + self.margin_ms + 1)


class FetchSlots(Slots):
    """The slots of a server that is used through fetches.

    Args:
        shards: see `Slots`.
        exchange: sends a fetch and returns the response.
        wait: waits for some milliseconds.
        margin_ms: see `Slots`.
    """

    def __init__(
        self,
        shards: int,
        exchange: Callable[[FetchRequest], FetchResponse],
        wait: Callable[[int], None],
        margin_ms: int = 0,
    ) -> None:
        super().__init__(shards, margin_ms)
        self._requests = Requests(VERSION)
        self._exchange = exchange
        self._wait = wait

    def create(self, size: int, *, privileged: bool) -> int:
        wants = [(TOPIC, index) for index in range(size)]
        return self._fetch(*wants, session=(0, 0), privileged=privileged).session_id

    def touch(self, session_id: int, held: Held, forget: int) -> None:
        gone = [(TOPIC, held.size - 1 - number) for number in range(forget)]
        told = self._fetch(session=(session_id, held.epoch), privileged=held.privileged, forget=gone)
        assert (told.error_code, told.session_id) == (0, session_id)

    def has(self, session_id: int) -> bool:
        return self._fetch(session=(session_id, WRONG_EPOCH)).error_code != NOT_FOUND

    def close(self, session_id: int) -> None:
        self._fetch(session=(session_id, -1))

    def wait(self, ms: int) -> None:
        self._wait(ms)

    def counted(self) -> int | None:
        return None

    def _fetch(self, *wants: tuple[str, int], privileged: bool = False, **options: Any) -> FetchResponse:
        replica_id = FOLLOWER if privileged else -1
        return self._exchange(self._requests.request(*wants, replica_id=replica_id, **options))


Case: TypeAlias = Callable[[Slots], None]


def ids_are_positive_unique_and_their_shards_own(slots: Slots) -> None:
    """Cases 1 and 13: 10,000 session ids are positive and unique.

    Each id belongs to the shard that created it.
    """
    ids = [slots.create(1, privileged=False) for _ in range(10_000)]

    assert len(set(ids)) == len(ids)
    assert all(session_id > 0 for session_id in ids)
    if slots.shards > 1:
        shards = [session_id // IDS_PER_SHARD for session_id in ids]
        assert shards == [number % SHARDS for number in range(len(ids))]
    for session_id in ids:
        slots.close(session_id)


def the_least_recently_used_goes_when_stale(slots: Slots) -> None:
    """Cases 2 to 4: a server with three slots evicts the stale session whose last use is the oldest.

    If no session is stale, the server evicts the smallest session that is older than two minutes, for a
    larger new one. A privileged new session may be smaller.
    """
    first = slots.make(10)
    slots.wait(10)
    second = slots.make(20)
    slots.wait(10)
    third = slots.make(30)
    assert slots.refuses(40)
    assert slots.refuses(5)

    slots.grow_stale()
    slots.use(first)
    fourth = slots.make(11)
    # The third is stale as well, and was used after the second.
    assert (slots.gone(second), slots.alive(first, third, fourth)) == (True, True)

    slots.use(third)
    slots.grow_stale()
    for held in (third, first, fourth):
        slots.use(held)
        slots.wait(10)
    fifth = slots.make(50)
    # The smallest of those that are not safe, not the least recently used.
    assert (slots.gone(first), slots.alive(third, fourth, fifth)) == (True, True)
    assert slots.refuses(5)
    left = [third, fourth, fifth]
    if slots.followers:
        sixth = slots.make(5, privileged=True)
        assert (slots.gone(fourth), slots.alive(third, fifth, sixth)) == (True, True)
        left = [third, fifth, sixth]
    slots.end(*left)


def an_equal_size_never_evicts(slots: Slots) -> None:
    """Case 5: with one slot, a new session evicts an old session in use only if the new one is larger."""
    old = slots.make(10)
    slots.grow_stale()
    slots.use(old)

    assert slots.refuses(10)
    new = slots.make(11)
    assert (slots.gone(old), slots.alive(new)) == (True, True)
    slots.end(new)


def staleness_is_strict(slots: Slots) -> None:
    """Case 6: with one slot, a session at exactly the age limit is not stale yet."""
    old = slots.make(10)
    slots.almost_stale()
    assert slots.refuses(10)
    slots.just_stale()
    new = slots.make(10)
    assert (slots.gone(old), slots.alive(new)) == (True, True)
    slots.end(new)


def a_privileged_newcomer_beats_any_consumer(slots: Slots) -> None:
    """Case 7: with one slot, a new privileged session evicts any consumer's session."""
    consumer = slots.make(50)
    follower = slots.make(1, privileged=True)

    assert (slots.gone(consumer), slots.alive(follower)) == (True, True)
    assert slots.refuses(60, privileged=True)
    slots.end(follower)


def a_consumer_never_evicts_a_follower_in_use(slots: Slots) -> None:
    """Case 8: with one slot, a consumer never evicts a follower's session that is in use."""
    follower = slots.make(1, privileged=True)
    slots.grow_stale()
    slots.use(follower)

    slots.almost_stale()
    assert slots.refuses(50)
    slots.just_stale()
    consumer = slots.make(50)
    assert (slots.gone(follower), slots.alive(consumer)) == (True, True)
    slots.end(consumer)


def anyone_evicts_a_stale_follower(slots: Slots) -> None:
    """Case 9: with one slot, any new session evicts a stale follower's session."""
    follower = slots.make(10, privileged=True)
    slots.grow_stale()

    consumer = slots.make(1)
    assert (slots.gone(follower), slots.alive(consumer)) == (True, True)
    slots.end(consumer)


def a_session_in_use_is_not_the_victim(slots: Slots) -> None:
    """Case 10: with two slots, the session that is not in use is evicted."""
    used, idle = slots.make(2), slots.make(2)
    slots.grow_stale()
    slots.use(used)

    new = slots.make(1)
    assert (slots.gone(idle), slots.alive(used, new)) == (True, True)
    slots.end(used, new)


def partitions_are_counted_as_last_touched(slots: Slots) -> None:
    """Case 11: a server counts each session with the number of partitions at the session's last use.

    If the server does not report the count, the choice of the evicted session shows it. The server has two
    slots.
    """
    two, four = slots.make(2), slots.make(4)
    assert slots.counted() in (None, 6 * slots.shards)
    slots.grow_stale()
    slots.use(four)
    five = slots.make(5)
    assert slots.gone(two)
    assert slots.counted() in (None, 9 * slots.shards)
    slots.end(five)
    assert slots.counted() in (None, 4 * slots.shards)

    slots.use(four, forget=1)
    assert slots.counted() in (None, 3 * slots.shards)
    fresh = slots.make(9)
    assert slots.refuses(3)
    new = slots.make(4)
    assert (slots.gone(four), slots.alive(fresh, new)) == (True, True)
    slots.end(fresh, new)


def without_a_slot_there_is_no_session(slots: Slots) -> None:
    """Case 12: a server without session slots creates no session."""
    for size in (0, 1, 50):
        assert slots.refuses(size)
        assert not slots.followers or slots.refuses(size, privileged=True)


CASES: Final[dict[Case, int]] = {
    ids_are_positive_unique_and_their_shards_own: 10_000,
    the_least_recently_used_goes_when_stale: 3,
    an_equal_size_never_evicts: 1,
    staleness_is_strict: 1,
    a_privileged_newcomer_beats_any_consumer: 1,
    a_consumer_never_evicts_a_follower_in_use: 1,
    anyone_evicts_a_stale_follower: 1,
    a_session_in_use_is_not_the_victim: 2,
    partitions_are_counted_as_last_touched: 2,
    without_a_slot_there_is_no_session: 0,
}
"""The number of slots in each shard, by test case."""
OF_FOLLOWERS: Final = (
    a_privileged_newcomer_beats_any_consumer,
    a_consumer_never_evicts_a_follower_in_use,
    anyone_evicts_a_stale_follower,
)
