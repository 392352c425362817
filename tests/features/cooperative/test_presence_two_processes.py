"""A member's connections reach two processes at one address, each with a part of what the member does.

`test_group_law.py` has any order of events. Here is each rule alone.
"""

import pytest

from proxy.features.cooperative.presence import ABSENT_SECONDS
from proxy.features.cooperative.tally import GroupNotice
from tests.features.cooperative.batch import RECORDS, Record, batch, read
from tests.features.cooperative.coordinator import Client, Coordinator, got, sent
from tests.features.cooperative.test_joining import HIGH, LOW, PLACE, REBALANCING, client, of
from tests.features.cooperative.test_member_stage import Shared, commit, fetch
from tests.model.broker import ModelBroker
from tests.model.gate import Gate
from tests.model.wire import decode_response

FULL_RANGE = [record.offset for record in RECORDS]
WAITED = 1.0 + ABSENT_SECONDS


@pytest.fixture
def here() -> Shared:
    return Shared()


@pytest.fixture
def there() -> Shared:
    return Shared()


def fetched(
    shared: Shared, client: Client, broker: ModelBroker, offset: int = 0, now: float = 1.0, version: int = 11
) -> tuple[list[int], int]:
    """Let a client fetch from a process. Return the offsets of its records, and the size of its response."""
    one = shared.connection()
    one.receive_client(fetch(client.client_id, version, offset), now)
    gate = Gate(one, broker)
    while gate._response(now):
        pass
    one.tick(now + 60.0)
    (response,) = got(one)
    (entry,) = decode_response(response[4:], version).topics[0].partitions
    records = bytes(entry.records or b"")
    return [record.offset for record in (read(records) if records else ())], len(records)


def refused(client: Client, offset: int, now: float = 1.0) -> bool:
    """Let a client commit. Return whether the gateway has refused it."""
    client.connection.receive_client(commit(client.client_id, offset), now)
    return not sent(client.connection)


def moved(client: Client, shared: Shared) -> Client:
    """Let a client reach a process with its connection to the coordinator. The earlier one does not end."""
    client.connection = shared.connection()
    return client


def test_a_process_serves_a_member_until_three_seconds_after_its_coordinator_connection_has_ended(
    here: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one = client(here)
    coordinator.rebalance([one])
    one.connection.ended(1.0)
    assert fetched(here, one, broker, now=WAITED)[0] == FULL_RANGE
    assert fetched(here, one, broker, 20, now=WAITED + 0.1) == ([], 0)
    moved(one, here)
    assert coordinator.beat(one, now=WAITED + 0.2) == 0
    assert fetched(here, one, broker, now=WAITED + 0.3)[0] == FULL_RANGE


def test_a_heartbeat_that_the_coordinator_refuses_does_not_bring_a_member_back(
    here: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one = client(here)
    coordinator.rebalance([one])
    one.connection.ended(1.0)
    moved(one, here)
    assert coordinator.beat(one, 22, now=WAITED + 0.2) == 22
    assert fetched(here, one, broker, now=WAITED + 0.3) == ([], 0)


def test_a_process_serves_a_plain_member_no_longer_than_others(
    here: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one = client(here)
    coordinator.rebalance([one], outsider=True)
    assert fetched(here, one, broker)[0] == FULL_RANGE
    assert fetched(here, one, broker, now=1.0 + one.session_ms / 1e3 + 0.1) == ([], 0)


def test_a_process_that_learns_of_a_generation_that_it_has_not_given_stops_at_once(
    here: Shared, there: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one, two = client(here), client(here, "b")
    coordinator.rebalance([one, two])
    moved(one, there)
    moved(two, there)
    coordinator.rebalance([one, two])
    assert fetched(here, one, broker)[0] != []
    moved(one, here)
    assert coordinator.beat(one) == REBALANCING
    assert fetched(here, one, broker) == ([], 0)


def test_a_heartbeat_of_an_earlier_generation_takes_nothing_away(
    here: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """franz-go has a connection for heartbeats: the answer to one may come after the next SyncGroup."""
    one = client(here)
    coordinator.rebalance([one])
    generation, beats = coordinator.generation, moved(client(here), here)
    coordinator.rebalance([one])
    coordinator.generation, now = generation, coordinator.generation
    assert coordinator.beat(beats, 22) == 22
    coordinator.generation = now
    assert fetched(here, one, broker)[0] == FULL_RANGE


def test_a_member_that_joins_in_another_process_gets_nothing_there_while_the_first_one_may_serve_it(
    here: Shared, there: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one, two = client(here), client(here, "b")
    coordinator.rebalance([one, two])
    moved(one, there)
    coordinator.rebalance([one, two])
    assert one.places == []
    assert coordinator.beat(one, now=1.0 + ABSENT_SECONDS - 0.1) == 0
    assert coordinator.beat(one, now=1.0 + ABSENT_SECONDS + 0.1) == REBALANCING


def test_a_member_that_comes_back_after_a_generation_elsewhere_has_no_lanes_at_first(
    here: Shared, there: Shared, coordinator: Coordinator
) -> None:
    """The process would take the lanes that it knows for those that the client still has."""
    one = client(here)
    coordinator.rebalance([one])
    assert coordinator.beat(one) == coordinator.beat(one) == 0
    moved(one, there)
    coordinator.rebalance([one])
    moved(one, here)
    coordinator.join([one])
    coordinator.sync([one], {one.member_id: [PLACE]})
    assert one.places == []


@pytest.mark.parametrize("outsider", [True, False])
def test_a_process_accepts_no_commit_beyond_what_it_has_sent(
    here: Shared, coordinator: Coordinator, broker: ModelBroker, outsider: bool
) -> None:
    """The client has the records before this offset from another process, with other lanes."""
    one = client(here)
    coordinator.rebalance([one], outsider=outsider)
    fetched(here, one, broker)
    assert refused(one, len(RECORDS) + 1)
    assert not refused(moved(one, here), len(RECORDS))


def test_whoever_fetches_past_what_was_sent_gets_nothing_and_joins_again(
    here: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one = client(here)
    coordinator.rebalance([one])
    fetched(here, one, broker)
    broker.topics["orders"].partitions[0].append(batch([Record(at, b"k") for at in range(40, 60)]), count=20)
    assert coordinator.beat(one) == coordinator.beat(one) == 0
    assert fetched(here, one, broker, 50) == ([], 0)
    assert coordinator.beat(one) == REBALANCING


def test_a_process_that_does_not_serve_a_member_does_not_move_it_past_records(
    here: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    """Neither by a batch without data nor by skipping. Its new lanes may have records there."""
    one, two = client(here), client(here, "b")
    coordinator.rebalance([one, two])
    one, last = (one, of(LOW)[-1]) if of(LOW)[-1] < of(HIGH)[-1] else (two, of(HIGH)[-1])
    assert fetched(here, one, broker, last + 1, version=12)[1] > 0
    one.connection.ended(1.0)
    assert fetched(here, one, broker, last + 1, now=WAITED + 0.1, version=12) == ([], 0)


def test_a_member_that_fetches_where_it_does_not_join_is_reported_and_sent_away_once_a_minute(
    here: Shared, there: Shared, coordinator: Coordinator, broker: ModelBroker
) -> None:
    one, two = client(here), client(here, "b")
    coordinator.rebalance([one, two])

    def is_closed(each: Client, now: float) -> bool:
        connection = there.connection()
        connection.receive_client(fetch(each.client_id), now)
        return connection.state.fault is not None

    closed = [is_closed(one, at) for at in (1.0, 6.9, 7.0, 7.1, 66.9, 67.0)]
    assert closed == [False, False, True, False, False, True]
    assert [is_closed(two, at) for at in (67.0, 81.0)] == [False, True]
    assert [(what, who) for what, who, _ in there.groups] == [(GroupNotice.AWAY, "h")] * 2  # one a minute
    (problem,) = there.members.problems(81.0)
    assert "billing.a at h and 1 more fetches here" in problem
    seen = [member.state for group in there.members.seen(81.0).groups for member in group.members]
    assert seen == ["away", "away"]
    moved(two, there)
    coordinator.rebalance([two])
    assert "billing.a at h fetches here" in there.members.problems(81.0)[0]
    assert there.members.problems(1000.0) == here.members.problems(81.0) == []
