"""Conformance cases (fetch-semantics 7) for the connection core, with the model broker.

A client without sessions fetches through the gateway. Each response is compared, byte for byte, with the
broker's direct response to the same fetch at the same moment.
"""

import random
from typing import Any

import pytest

from tests.examples import share
from tests.frames import entry, fetch, fetch_response
from tests.model.asker import Want, entries, errors, sizes
from tests.model.broker import ModelBroker
from tests.model.sessions import CachedPartition
from tests.model.wire import (
    ZERO_ID,
    AbortedTransaction,
    FetchPartition,
    diverging_epoch_tag,
)
from tests.playbook import SESSION_ID, Playbook, asks
from tests.sessionless import B2, IDLE, Client, all_of, filled

# --- 22 to 29, through a session ------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_each_change_alone(version: int) -> None:
    """Case 22: a change of only the high watermark, the log start or the records reaches the client."""
    client = Client(version).established(*all_of())
    part = client.part("t", 2)
    part.append(b"records", replicated=False)
    part.high_watermark = 1
    assert sizes(client.same(*all_of())) == [0, 0, 7, 0, 0]
    moved = [*all_of(2), ("t", 2, 1), *all_of()[3:]]
    client.same(*moved)
    part.delete_records(1)
    assert entries(client.same(*moved))[2].log_start_offset == (1 if version >= 5 else -1)
    assert sizes(client.same(*moved)) == [0] * 5
    assert client.incremental == 4


@pytest.mark.parametrize("version", [7, 11, 12, 16])
def test_what_the_client_alone_changes(version: int) -> None:
    """Case 23: if the client changes an offset or a size limit, the broker's response follows the change.

    This is also true if the broker has nothing new.
    """
    client = Client(version)
    for size in (5, 6, 7):
        client.part().append(bytes(size))
    wants: list[Want] = [("t", 0, 3), ("t", 1)]
    client.established(*wants)
    assert sizes(client.same(("t", 0, 1), ("t", 1))) == [13, 0]
    assert sizes(client.same(("t", 0, 0, 3), ("t", 1))) == [5, 0]
    assert client.incremental == 2


@pytest.mark.parametrize("version", [7, 11, 12, 16])
def test_recovered_at_the_same_high_watermark(version: int) -> None:
    """Case 25: a partition recovers from an error, with the high watermark that it had before.

    Trap 25: a high watermark of -1 is forwarded and not remembered.
    """
    client = Client(version).established(*all_of())
    client.part("t", 1).error = 56
    for _ in range(3):
        assert errors(client.same(*all_of())) == [0, 56, 0, 0, 0]
    client.part("t", 1).error = 0
    for _ in range(3):
        assert errors(client.same(*all_of())) == [0] * 5
    assert client.incremental == 6


@pytest.mark.parametrize("version", [7, 12, 16])
def test_an_added_partition(version: int) -> None:
    """Case 26: if a partition is added to the client's list, the session continues."""
    client = Client(version).established(*all_of(3))
    for _ in range(3):
        client.same(*all_of(4))
    assert (client.incremental, client.connection.state.session_partitions) == (3, 4)


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_high_watermark_that_goes_back(version: int) -> None:
    """Case 28: if a high watermark decreases, the client gets the lower value."""
    client = Client(version)
    client.part().append(b"x", count=9)
    client.established(("t", 0, 9), ("t", 1))
    client.part().high_watermark = 4
    assert [data.high_watermark for data in entries(client.same(("t", 0, 9), ("t", 1)))] == [4, 0]
    client.same(("t", 0, 9), ("t", 1))


@pytest.mark.parametrize("version", [12, 13, 16, 18])
def test_divergence_each_time(version: int) -> None:
    """Cases 29 and 69: in the broker's log, the last fetched epoch ends before the fetch offset.

    Every response reports this divergence, although the high watermark does not change.
    """
    client = Client(version)
    client.part().append(b"x", count=2)
    client.part().move_leader(1, 5)
    client.part().append(b"y", count=2)
    wants: list[Want] = [("t", 0, 4), ("t", 1)]
    values = {"last_fetched_epoch": 0}
    client.established(*wants, values=values)
    for _ in range(3):
        told = entries(client.same(*wants, values=values))[0]
        assert (told.error_code, told.records, told.high_watermark) == (0, b"", 4)
        assert told.tags == (diverging_epoch_tag(0, 2),)
    beyond = errors(client.same(*wants, values={"last_fetched_epoch": 9}))
    assert beyond == [1, 1]
    assert client.incremental == 4


# --- 57 -------------------------------------------------------------------------------------------


def test_ids_come_and_go() -> None:
    """Case 57, trap 27: a client uses v12 for a while, because it has no topic id, and later v16 again.

    It never gets error 106, and never has two sessions.
    """
    client = Client(16).established(*all_of())
    for version in (12, 16, 12):
        client.version = client.asker.version = version
        for _ in range(5):
            client.same(*all_of())
            assert len(client.broker.cache.sessions) <= 1
        assert client.connection.state.session_id
    assert not client.connection.tally.session_errors


# --- 58 to 63: limits and order are kept as sent --------------------------------------------------


def test_partitions_fill_the_response_in_order() -> None:
    """Case 58: with a small response limit, partitions that come first in the request are filled first."""
    client = filled([50] * 10)
    assert sizes(client.same(*all_of(size=190), *IDLE, max_bytes=800))[:5] == [190] * 4 + [0]
    assert client.incremental == 1
    client = filled([200, 200])
    assert sizes(client.same(*all_of(size=190), *IDLE, max_bytes=800))[:5] == [200, 0, 0, 0, 0]
    assert client.incremental == 1


def test_starvation_ends_by_the_sessions_own_order() -> None:
    """Case 58, trap 25a: even if a response limit is too small for all partitions, each gets its turn.

    The reason: a partition that got records moves to the end of the session's order.
    """
    client = Client()
    for index in range(5):
        client.part("t", index).append(bytes(100))
    client.established(*all_of(), max_bytes=100)
    got = [sizes(client.fetch(*all_of(), max_bytes=100)) for _ in range(10)]
    assert got == [[100 * (turn % 5 == index) for index in range(5)] for turn in range(10)]
    assert client.incremental == 10


@pytest.mark.parametrize(("size", "limit"), [(100, 800), (900, 100), (0, 0)])
def test_a_first_batch_comes_whole(size: int, limit: int) -> None:
    """Case 59: the first batch of a response is returned completely, even if it is larger than a limit."""
    client = filled([500, 20])
    assert sizes(client.same(*all_of(size=size), *IDLE, max_bytes=limit))[:5] == [500, 0, 0, 0, 0]
    assert client.incremental == 1


def test_the_same_batch_later_is_left_out() -> None:
    """Case 60: a batch over the partition's limit is left out if an earlier partition already has records."""
    client = Client()
    client.part("t", 0).append(bytes(10))
    client.part("t", 1).append(bytes(500))
    client.established(("t", 0, 1), ("t", 1, 1), *IDLE)
    response = client.same(("t", 0, 0, 100), ("t", 1, 0, 100), *IDLE)
    assert (sizes(response)[:2], entries(response)[1].high_watermark) == ([10, 0], 1)
    assert client.incremental == 1


@pytest.mark.parametrize(("offset", "size"), [(0, 1024), (2, 1040), (3, 550)])
def test_the_brokers_own_limit(offset: int, size: int) -> None:
    """Case 61: the setting `fetch.max.bytes` of the broker limits the records in a response."""
    client = filled([100, 1400, 1040, 500, 50], partitions=2)
    client.broker.fetch_max_bytes = 1024
    assert sizes(client.same(("t", 0, offset), ("t", 1, 5), *IDLE))[:2] == [size, 0]
    assert client.incremental == 1


def test_caught_up_partitions_leave_the_first_batch_to_others() -> None:
    """Case 62: the first batch is returned completely, even if partitions before it have no new records."""
    client = filled([500], partitions=3)
    wants: list[Want] = [("t", 0, 1, 100), ("t", 1, 0, 100), ("t", 2, 0, 100)]
    assert sizes(client.same(*wants, *IDLE[:3]))[:3] == [0, 500, 0]
    assert client.incremental == 1


def test_errors_cost_nothing() -> None:
    """Case 63: a partition with an error does not use up a byte limit.

    It also does not count as the first batch, which is always returned completely.
    """
    client = filled([500], partitions=3)
    client.part("t", 1).error = 56
    wants: list[Want] = [("t", 0, 99, 100), ("t", 1, 0, 100), ("t", 2, 0, 100)]
    response = client.same(*wants, *IDLE[:3], max_bytes=10)
    assert (errors(response)[:3], sizes(response)[:3]) == ([1, 56, 0], [0, 0, 500])
    assert client.incremental == 1


# --- 64, 65: who leads instead --------------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12, 15, 16, 18])
def test_leaders_and_endpoints_through_a_session(version: int) -> None:
    """Case 64: with a session, the client gets the new leader and its endpoint, as without a session."""
    client = Client(version)
    values = {"current_leader_epoch": 0}
    client.established(*all_of(), values=values)
    client.broker.nodes = {2: B2}
    away, fenced = client.part("t", 0), client.part("t", 1)
    away.hosted, away.leader, away.leader_epoch = False, 2, 7
    fenced.leader, fenced.leader_epoch = 2, 8
    for _ in range(2):
        assert errors(client.same(*all_of(), values=values)) == [6, 74, 0, 0, 0]
    assert errors(client.same(*all_of(), values={"current_leader_epoch": 9}))[2:] == [75, 75, 75]
    assert client.incremental == 3


def test_no_leader_a_dead_one_and_one_not_yet_missed() -> None:
    """Case 65: the client gets the broker's data about a leader that is unknown, dead or just died.

    The broker has not yet noticed that the last of these leaders died.
    """
    client = Client(16).established(*all_of())
    for index, (leader, epoch) in enumerate([(-1, -1), (-1, 4), (2, 4)]):
        part = client.part("t", index)
        part.hosted, part.leader, part.leader_epoch = False, leader, epoch
    assert [len(data.tags) for data in entries(client.same(*all_of()))] == [0, 1, 1, 0, 0]
    client.broker.nodes = {2: B2}
    assert len(client.same(*all_of()).tags) == 1


# --- 68 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["2.4", "2.5", "4.3"])
def test_fencing_in_a_session_and_without_on_old_brokers(release: str) -> None:
    """Case 68: in a session, leader epochs are checked as in a fetch without a session.

    Brokers before 2.5 do not check leader epochs in a session. So the gateway requests no session from them,
    and they check the epochs.
    """
    version = 11
    client = Client(version, release)
    for part in client.broker.topics["t"].partitions.values():
        part.leader_epoch = 5
    for epoch, error in ((5, 0), (5, 0), (5, 0), (4, 74), (6, 75), (5, 0)):
        response = client.same(*all_of(), values={"current_leader_epoch": epoch})
        assert errors(response) == [error] * 5
    assert bool(client.broker.cache.sessions) is (release != "2.4")


# --- 70, 72 ---------------------------------------------------------------------------------------

SPOKEN = {
    "1.0": (4, 6),
    "1.1": (4, 7),
    "2.0": (4, 8),
    "2.4": (7, 11),
    "2.8": (9, 12),
    "3.4": (12, 13),
    "3.9": (13, 17),
    "4.3": (4, 11, 12, 18),
}


@pytest.mark.parametrize(("release", "version"), [(one, v) for one, found in SPOKEN.items() for v in found])
@pytest.mark.parametrize("isolation", [0, 1])
def test_an_idle_client_gets_what_it_always_got(release: str, version: int, isolation: int) -> None:
    """Cases 70 and 98: behind the gateway, an idle client gets the same bytes as without the gateway.

    Brokers up to 2.0 are included. They send no last stable offset for read_uncommitted.
    """
    client = Client(version, release)
    client.part().append(b"x", count=3)
    wants = [("t", 0, 3), *all_of()[1:], ("u", 0)]
    for turn in range(10):
        rotated = wants[turn % 6 :] + wants[: turn % 6]
        response = client.same(*rotated, isolation_level=isolation)
        assert len(entries(response)) == 6
        told = next(data for data in entries(response) if data.high_watermark == 3)
        old = release in ("1.0", "1.1", "2.0") and not isolation
        assert told.last_stable_offset == (-1 if old else 3)
    # Topic ids make a close dearer, and so do v4 to v6, which are raised: one more fetch passes before.
    assert client.incremental == (0 if release == "1.0" else 8 if 7 <= version <= 12 else 7)


def test_isolation_changes_fill_in_no_old_last_stable_offset() -> None:
    """Case 98, trap 26: brokers up to 2.0 send the last stable offset -1 for read_uncommitted.

    If the client changes to read_committed, the gateway does not fill in this value.
    """
    client = Client(8, "2.0").established(*all_of())
    for isolation in (1, 1, 1, 1, 0, 0, 0, 0):
        client.same(*all_of(), isolation_level=isolation)


def test_a_new_connection_begins_in_full() -> None:
    """Case 72, trap 19: the session is not continued on a new connection, because a response may be lost.

    So the first fetch is full, although the broker still has the session.
    """
    client = Client().established(*all_of())
    client.same(*all_of())
    client.connection.ended()
    old = set(client.broker.cache.sessions)
    client.connect()
    client.established(*all_of())
    assert client.connection.state.session_id not in old
    assert client.sessions.used == 1


# --- 76 to 83 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 7, 11, 12, 16])
def test_transactions_under_read_committed(version: int) -> None:
    """Case 76: the transactions are open, aborted or committed."""
    client = Client(version).established(*all_of(), isolation_level=1)
    part = client.part()
    part.append(b"open", producer=7)
    part.append(b"plain")
    told = entries(client.same(*all_of(), isolation_level=1))[0]
    assert (told.records, told.last_stable_offset, told.high_watermark) == (b"", 0, 2)
    part.end_transaction(7, commit=False, marker=b"abort")
    told = entries(client.same(*all_of(), isolation_level=1))[0]
    assert told.aborted == (AbortedTransaction(producer_id=7, first_offset=0),)
    part.append(b"good", producer=8)
    part.end_transaction(8, commit=True)
    wants = [("t", 0, 3), *all_of()[1:]]
    assert entries(client.same(*wants, isolation_level=1))[0].aborted == ()
    wants = [("t", 0, 5), *all_of()[1:]]
    for _ in range(2):
        told = entries(client.same(*wants, isolation_level=1))[0]
        assert (told.records, told.aborted, told.last_stable_offset) == (b"", (), 5)


@pytest.mark.parametrize("version", [7, 12, 16])
def test_seek_back_on_an_idle_partition(version: int) -> None:
    """Case 78: if a client seeks back in an idle partition, it gets the old records at once."""
    client = Client(version)
    client.part().append(b"first")
    client.part().append(b"second")
    wants: list[Want] = [("t", 0, 2), ("t", 1)]
    client.established(*wants)
    for _ in range(5):
        assert sizes(client.same(*wants)) == [0, 0]
    assert entries(client.same(("t", 0, 1), ("t", 1)))[0].records == b"second"
    assert entries(client.same(("t", 0, 0), ("t", 1)))[0].records == b"firstsecond"
    assert client.incremental == 7


def test_a_thousand_pauses_and_rebalances() -> None:
    """Case 79, traps 24 and 28: a client fetches 1,000 times with `make test-all`, each time another list.

    Each response has the right high watermarks and records. At the end, the gateway and the broker have
    equally many partitions in the session.
    """
    chance = random.Random(79)
    client = Client(16)
    everything = [(name, index) for name in ("t", "u") for index in range(5)]
    position = dict.fromkeys(everything, 0)
    steps = share(1000)
    for step in range(steps):
        held = chance.sample(everything, chance.randint(2, 10))
        name, index = chance.choice(everything)
        client.part(name, index).append(step.to_bytes(4))
        response = client.fetch(*((*key, position[key]) for key in held))
        for key, told in zip(client.asker.names(response), entries(response), strict=True):
            assert told.error_code == 0
            written = client.part(*key)
            assert told.high_watermark == written.log_end
            assert len(told.records or b"") == 4 * (written.log_end - position[key])
            position[key] = written.log_end
        if client.connection.state.session_epoch > 1 and client.connection.tally.broker.fetches[1]:
            assert client.connection.state.session_partitions <= 10
    assert client.incremental > 0.3 * steps
    client.same(*((*key, position[key]) for key in everything))
    (session,) = client.broker.cache.sessions.values()
    assert len(session.partitions) == client.connection.state.session_partitions


@pytest.mark.parametrize("version", [4, 7, 12])
def test_a_topic_deleted_and_made_anew_by_name(version: int) -> None:
    """Case 80, trap 9: a topic is deleted and created again. The client uses topic names.

    The client gets error 3, then error 1, and then the new records.
    """
    client = Client(version)
    client.part("u").append(b"old", count=5)
    wants: list[Want] = [("t", 0), ("u", 0, 5)]
    client.established(*wants)
    client.broker.delete_topic("u")
    for _ in range(3):
        assert errors(client.same(*wants)) == [0, 3]
    client.broker.create_topic("u", 1)
    assert errors(client.same(*wants)) == [0, 1]
    client.part("u").append(b"new")
    assert sizes(client.same(("t", 0), ("u", 0, 0))) == [0, 3]


@pytest.mark.parametrize("version", [13, 16, 18])
def test_a_topic_deleted_and_made_anew_by_id(version: int) -> None:
    """Case 80, trap 8: a topic is deleted and created again. The client uses topic ids.

    The client gets error 100, as without a session, and never error 103.
    """
    client = Client(version).established(("t", 0), ("u", 0))
    client.broker.delete_topic("u")
    for _ in range(3):
        assert errors(client.same(("t", 0), ("u", 0))) == [0, 100]
    client.broker.create_topic("u", 1)
    for _ in range(3):
        assert errors(client.same(("t", 0), ("u", 0))) == [0, 100]
    client.asker.learn()
    for _ in range(3):
        assert errors(client.same(("t", 0), ("u", 0))) == [0, 0]
    assert len(client.broker.cache.sessions) == 1


@pytest.mark.parametrize("version", [7, 12, 16])
def test_access_withdrawn_and_restored(version: int) -> None:
    """Case 82: without access the client gets error 29, and records again when the access is back."""
    client = Client(version).established(*all_of(3), ("u", 0))
    client.broker.denied.add("u")
    client.part("u").append(b"secret")
    for _ in range(3):
        assert errors(client.same(*all_of(3), ("u", 0))) == [0, 0, 0, 29]
    client.broker.denied.clear()
    assert sizes(client.same(*all_of(3), ("u", 0))) == [0, 0, 0, 6]
    assert client.incremental == 4


@pytest.mark.parametrize("version", [11, 12, 16, 18])
def test_a_preferred_replica_is_passed_and_the_partition_forgotten(version: int) -> None:
    """Case 83, trap 29: the client gets a preferred read replica in each response.

    When the client then leaves the partition out, the session forgets it.
    """
    client = Client(version)
    client.part().append(b"here")
    client.established(*all_of(), rack_id="r")
    client.part().preferred["r"] = 3
    for _ in range(3):
        told = entries(client.same(*all_of(), rack_id="r"))[0]
        assert (told.preferred_read_replica, told.records) == (3, b"")
    client.same(*all_of()[1:], rack_id="r")
    assert client.connection.state.session_partitions == 4
    (session,) = client.broker.cache.sessions.values()
    assert len(session.partitions) == 4


# --- 92, 93, 95, 97 -------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("3.7", "3.9"), ("4.3", "4.3"), ("3.9", "2.8")])
def test_a_broker_that_comes_back_without_its_sessions(before: str, after: str) -> None:
    """Case 92: the client does not notice that the broker restarts and has lost its sessions.

    After the restart, the broker has another release that numbers sessions differently. The connection stays
    open, as behind a load balancer.
    """
    client = Client(12, before).established(*all_of())
    renewed = ModelBroker(release=after, seed=5)
    renewed.topics = client.broker.topics
    client.broker = client.gate.broker = client.asker.broker = renewed
    for _ in range(4):
        client.same(*all_of())
    assert len(renewed.cache.sessions) == 1
    assert set(client.connection.tally.session_errors) <= {70}


def test_an_id_that_the_new_shards_do_not_have() -> None:
    """Cases 96 and 92: after an upgrade, no shard of the broker can have the gateway's session id."""
    client = Client(12, "3.7").established(*all_of())
    (session,) = client.broker.cache.sessions.values()
    high = 2_147_483_640
    moved = client.broker.cache.shards[0].sessions
    moved[high] = moved.pop(session.session_id)
    session.session_id = high
    client.connection._fetches.session.session_id = high
    client.same(*all_of())
    renewed = ModelBroker(release="3.9", seed=5)
    renewed.topics = client.broker.topics
    client.broker = client.gate.broker = client.asker.broker = renewed
    for _ in range(4):
        client.same(*all_of())
    assert client.connection.tally.session_errors == {-1: 1}
    assert len(renewed.cache.sessions) == 1


@pytest.mark.parametrize("version", [4, 9, 11, 12])
def test_null_records_pass_as_they_are_and_are_never_made_up(version: int) -> None:
    """Case 93: if an entry with an error has null records, they are forwarded unchanged.

    The gateway never puts null records into an entry itself.
    """
    play = Playbook().established(version, [("t", 0), ("t", 1)], release="3.9")
    play.client(fetch(version, ("t", 0), ("t", 1), correlation=4))
    play.to_broker(asks(version, [], (SESSION_ID, 1), correlation=4))
    spoken = max(version, 7)
    null = entry(1, error=-1, aborted=(), records=None)
    play.broker(fetch_response(spoken, ("t", [null]), session_id=SESSION_ID, correlation_id=4))
    no_log_start: dict[str, Any] = {"log_start_offset": -1}
    whole = entry(0, 5, **({} if version >= 5 else no_log_start))
    play.to_client(fetch_response(version, ("t", [whole, null]), correlation_id=4))


@pytest.mark.parametrize("release", ["3.7", "3.9", "4.3"])
def test_a_full_cache_means_no_session_and_no_loop(release: str) -> None:
    """Case 95, trap 22: the broker's session slots are full. The gateway then goes on without a session.

    It does not repeat fetches in a loop.
    """
    client = Client(16 if release != "3.7" else 12, release, slots=8)
    for shard in client.broker.cache.shards:
        for _ in range(shard.slots):
            client.broker.cache.create(0, many(1000))
    before = set(client.broker.cache.sessions)
    for _ in range(20):
        client.same(*all_of())
    assert set(client.broker.cache.sessions) == before
    assert client.connection.state.session_id == 0
    assert sum(client.connection.tally.broker.fetches) == 20
    assert client.sessions.used == 0


def many(count: int) -> list[CachedPartition]:
    """Build the partitions of a session. It has so many that a consumer's session can't evict it."""
    parts = (FetchPartition(partition=index, fetch_offset=0) for index in range(count))
    return [CachedPartition("other", ZERO_ID, part) for part in parts]


@pytest.mark.parametrize("version", [8, 12, 16])
def test_a_batch_that_no_quota_lets_through(version: int) -> None:
    """Case 97, trap 13: a batch larger than the quota window makes the broker throttle every response.

    All responses are empty. The session is not lost, and no fetch is sent twice.
    """
    client = Client(version).established(*all_of())
    client.broker.throttle_ms = 1000
    for _ in range(6):
        response = client.same(*all_of())
        assert (response.topics, response.throttle_time_ms) == ((), 1000)
    client.broker.throttle_ms = 0
    client.same(*all_of())
    assert client.incremental == 7
    assert not client.connection.tally.session_errors
