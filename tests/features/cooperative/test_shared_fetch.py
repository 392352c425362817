"""Tests of one fetch to the broker that serves several members.

They show which member waits for which other member, and what happens after errors.
"""

import pytest

from proxy.features.cooperative import shared_fetch
from proxy.features.cooperative.assignment import Assignment
from proxy.features.cooperative.key_hash import SPACE
from proxy.features.cooperative.member import Member
from proxy.features.cooperative.plan import Lanes
from proxy.features.cooperative.ranges import KeyRange
from tests.features.cooperative import test_shared_fetch_law
from tests.features.cooperative.test_shared_fetch_law import ERRORS, TOPIC, WAIT, Client, World, lanes
from tests.model.gate import framed, unframed
from tests.model.wire import decode_response

SESSION = 10.0
KEYS: list[bytes | None] = [b"%d" % number for number in range(40)]
HALVES = lanes([SPACE // 2])
QUARTERS = lanes([SPACE // 4, SPACE // 2, 3 * SPACE // 4])


@pytest.fixture
def world() -> World:
    return World()


def pair(world: World) -> tuple[Client, Client]:
    one, two = (Client(world, lane) for lane in HALVES)
    return one, two


def settled(*clients: Client) -> list[int]:
    """Let the broker answer until no request is left. Return how many requests of each client it answered."""
    times = [0] * len(clients)
    while any(goes := [client.respond() for client in clients]):
        times = [had + went for had, went in zip(times, goes, strict=True)]
    for client in clients:
        client.take()
    return times


def offsets(client: Client) -> list[int]:
    return sorted(client.got[0])


def has_all(world: World, *clients: Client) -> bool:
    return sorted(offset for client in clients for offset in offsets(client)) == sorted(world.logs[0])


def test_one_fetch_serves_all(world: World) -> None:
    """Case C47: one fetch serves all members, while they catch up and at the end of the log."""
    clients = [Client(world, lane) for lane in QUARTERS]
    for round_ in range(5):
        for client in clients:
            client.ask(0)
        world.produce(0, KEYS, codec=3)
        assert settled(*clients) == [1, 0, 0, 0]
        assert has_all(world, *clients)
        assert world.members.shared_fetches.fetches == round_ + 1
    assert world.upstream == sum(
        len(batch.data) for batch in world.broker.partition(TOPIC).segments[0].batches
    )
    assert world.members.tally.upstream_bytes == world.upstream


def test_one_that_is_slow_gets_what_was_put_aside(world: World) -> None:
    """Case C48: a slow member gets the records that the gateway has buffered for it.

    This holds while the buffer is not full.
    """
    fast, slow = pair(world)
    slow.ask(0)
    fast.ask(0)
    for _ in range(3):
        world.produce(0, KEYS, codec=0)
        slow.respond()
        fast.respond()
        fast.take()
        fast.ask(0)
    assert world.members.shared_fetches.buffered > 0
    slow.take()
    for _ in range(2):
        slow.ask(0)
        assert not slow.respond()
        slow.take()
    assert has_all(world, fast, slow)
    slow.ask(0)
    assert world.members.shared_fetches.buffered == 0


def test_the_same_offset_again_is_the_same_bytes(world: World) -> None:
    """Case C50: a member that fetches the same offset again gets the same bytes."""
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=3)
    settled(one, two)
    for _ in range(2):
        two.offsets[0] = 0
        two.ask(0)
        world.produce(0, KEYS, codec=3)
        assert not two.respond()
        two.take()
    first, *others = [frame[4:] for frame in two.answers]
    assert others == [first, first]


def test_the_riding_member_goes_amid_its_fetch(world: World) -> None:
    """Case C52: a member whose fetch is at the broker disconnects.

    Another member, which waited for this fetch, gets a response.
    """
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    assert not two.respond()
    one.connection.ended()
    world.produce(0, KEYS, codec=0)
    assert two.respond()
    two.take()
    one.connect()
    one.ask(0)
    assert one.respond()
    one.take()
    assert has_all(world, one, two)


def test_only_one_goes_in_its_place(world: World) -> None:
    clients = [Client(world, lane) for lane in QUARTERS]
    for client in clients:
        client.ask(0)
    clients[0].connection.ended()
    assert world.members.shared_fetches.fetches == 2
    world.produce(0, KEYS, codec=0)
    assert settled(*clients[1:]) == [1, 0, 0]


@pytest.mark.parametrize("closes", ["the riding member", "the parked one"])
def test_a_connection_that_is_to_end_holds_up_nobody(world: World, closes: str) -> None:
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    closing, other = (one, two) if closes == "the riding member" else (two, one)
    closing.connection.close_session(world.now)
    assert closing.respond()
    assert closing.connection.done
    closing.take()
    assert not closing.asked
    closing.connection.ended()
    world.produce(0, KEYS, codec=0)
    assert other.respond()
    other.take()
    assert not other.asked


def test_nobody_waits_longer_than_its_own_fetch_would(world: World) -> None:
    one, two = pair(world)
    one.ask(0)
    world.now += WAIT / 2
    two.ask(0)
    assert two.alarms == [world.now + WAIT]
    world.now += WAIT
    two.tick()
    assert two.respond()
    two.take()
    assert not two.asked


def test_a_parked_member_that_sends_no_more_gets_what_it_has_asked_for(world: World) -> None:
    """A member that waits for another member's fetch half-closes its connection.

    The member still gets its response, and the responses to requests that it sent after the fetch
    (fetch-semantics 1.7).
    """
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    behind = two.client_id.encode()
    behind = framed(b"\0\3\0\1" + bytes(4) + len(behind).to_bytes(2) + behind)
    connection = two.connection
    connection.receive_client(behind, world.now)
    connection.client_ended()
    connection.close_session(world.now)
    assert connection.longest_wait == WAIT
    assert not connection.drain_broker()
    world.produce(0, KEYS, codec=0)
    assert one.respond()
    connection.tick(world.now)
    two.take()
    assert not two.asked
    (asked,) = unframed(b"".join(map(bytes, connection.drain_broker())))
    assert asked[:4] == behind[4:8]
    told = framed(asked[4:8] + b"told")
    connection.receive_broker(told, world.now)
    assert b"".join(map(bytes, connection.drain_client())) == told
    assert connection.done


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_goes_to_the_member_whose_fetch_got_it(world: World, error: int) -> None:
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    world.broker.partition(TOPIC).error = error
    assert one.respond()
    one.take()
    world.broker.partition(TOPIC).error = 0
    world.produce(0, KEYS, codec=0)
    assert two.respond()
    two.take()
    responses = [decode_response(client.answers[0], 12) for client in (one, two)]
    assert [each.topics[0].partitions[0].error_code for each in responses] == [error, 0]


def test_a_throttle_time_goes_to_the_member_whose_fetch_got_it(world: World) -> None:
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=0)
    world.broker.throttle_ms = 100
    assert one.respond()
    world.broker.throttle_ms = 0
    assert two.respond()
    one.take()
    two.take()
    times = [decode_response(client.answers[0], 12).throttle_time_ms for client in (one, two)]
    assert times == [100, 0]


def test_a_damaged_batch_is_put_aside_for_nobody(world: World) -> None:
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=0)
    segment = world.broker.partition(TOPIC).segments[0]
    whole = segment.batches[0]
    segment.batches[0] = type(whole)(0, whole.last_offset, whole.data[:-1] + b"\xff")
    assert one.respond()
    segment.batches[0] = whole
    assert two.respond()
    two.take()
    assert offsets(two)


@pytest.mark.parametrize("broker", ["", "a:9092,b:9092"])
def test_members_at_a_broker_that_is_not_known_share_nothing(world: World, broker: str) -> None:
    clients = [Client(world, lane, broker=broker) for lane in HALVES]
    for client in clients:
        client.ask(0)
    world.produce(0, KEYS, codec=0)
    assert settled(*clients) == [1, 1]


def test_members_at_different_brokers_share_nothing(world: World) -> None:
    clients = [Client(world, lane, broker=broker) for lane, broker in zip(HALVES, "ab", strict=True)]
    for client in clients:
        client.ask(0)
    world.produce(0, KEYS, codec=0)
    assert settled(*clients) == [1, 1]


@pytest.mark.parametrize("differs", ["limits", "SASL"])
def test_members_that_the_broker_may_answer_otherwise_share_nothing(world: World, differs: str) -> None:
    """Case C51: members share no fetch if the broker may answer them differently. The identity of a client
    that uses SASL is unknown.
    """
    one, two = pair(world)
    if differs == "limits":
        two.most = 1000
    else:
        name = two.client_id.encode()
        handshake = b"\0\x11\0\1" + bytes(4) + len(name).to_bytes(2) + name
        two.connection.receive_client(framed(handshake), world.now)
        two.connection.drain_broker()
        two.connection.receive_broker(framed(bytes(4)), world.now)
        two.connection.drain_client()
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=0)
    assert min(settled(one, two)) == 1
    assert not world.members.shared_fetches.buffered
    assert offsets(one)


def test_lanes_that_overlap_share_nothing(world: World) -> None:
    one, two = Client(world, (0, SPACE // 2)), Client(world, (5, SPACE - 1))
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=0)
    assert settled(one, two) == [1, 1]


def test_without_room_the_last_one_reads_for_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases C48 and C49: if the buffer is full, the slowest member fetches for itself.

    No other member waits for it.
    """
    monkeypatch.setattr(shared_fetch, "PARTITION_BYTES", 2000)
    fast, slow = pair(world)
    slow.ask(0)
    fast.ask(0)
    for _ in range(10):
        world.produce(0, KEYS, codec=0)
        slow.respond()
        fast.respond()
        fast.take()
        assert world.members.shared_fetches.buffered <= 2000
        fast.ask(0)
    assert world.members.shared_fetches.detached == {"full": 1}
    slow.take()
    while not has_all(world, fast, slow):
        slow.ask(0)
        assert slow.respond()
        slow.take()
    # It is where the other one is, and goes on with it.
    slow.ask(0)
    world.produce(0, KEYS, codec=0)
    assert settled(fast, slow) == [1, 0]


def test_the_bound_of_all_partitions_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C49: the buffers of all partitions together never exceed their limit."""
    monkeypatch.setattr(shared_fetch, "ALL_BYTES", 1500)
    fast, slow = pair(world)
    slow.ask()
    fast.ask()
    for turn in range(10):
        world.produce(turn % 2, KEYS, codec=0)
        slow.respond()
        fast.respond()
        fast.take()
        assert world.members.shared_fetches.buffered <= 1500
        fast.ask()
    assert world.members.shared_fetches.detached["full"] > 0


def test_the_bounds_hold_with_a_hundred_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C49: with a hundred partitions, both limits hold: the one for a partition, and the one for all."""
    monkeypatch.setattr(test_shared_fetch_law, "PARTITIONS", 100)
    monkeypatch.setattr(shared_fetch, "PARTITION_BYTES", 1000)
    monkeypatch.setattr(shared_fetch, "ALL_BYTES", 20_000)
    world, most = World(), 0
    fast, slow = pair(world)
    slow.ask()
    fast.ask()
    for _ in range(5):
        for partition in range(100):
            world.produce(partition, KEYS, codec=0)
        slow.respond()
        fast.respond()
        fast.take()
        most = max(most, world.members.shared_fetches.buffered)
        fast.ask()
    assert 10_000 < most <= 20_000
    slow.take()
    for _ in range(20):
        slow.ask()
        slow.respond()
        slow.take()
    assert all(fast.got[each] | slow.got[each] == world.logs[each] for each in range(100))


def test_a_member_that_does_not_ask_is_not_waited_for(world: World) -> None:
    """The gateway stops buffering for a member that has not fetched for a long time.

    The time limit is `fetched.data.max.wait.ms`.
    """
    fast, slow = pair(world)
    slow.ask(0)
    fast.ask(0)
    for seconds in (0.1, 40.0, 40.0):
        world.now += seconds
        world.produce(0, KEYS, codec=0)
        slow.respond()
        fast.respond()
        fast.take()
        fast.ask(0)
    assert world.members.shared_fetches.detached == {"wait": 1}
    assert world.members.shared_fetches.buffered == 0


def test_each_fetches_for_itself_at_times(world: World) -> None:
    """Each member sends some fetches to its broker itself, because brokers close idle connections."""
    one, two = pair(world)
    went = 0
    for _ in range(40):
        one.ask(0)
        two.ask(0)
        world.produce(0, KEYS[:4], codec=0)
        went += settled(one, two)[1]
        world.now += 5.0
    assert 2 <= went <= 4
    assert has_all(world, one, two)


def transactions(world: World) -> None:
    """Write two transactions of one producer.

    The first one has offsets 0 and 1, and is aborted. The second one has offsets 3 to 42, and is committed.
    """
    world.produce(0, KEYS[:2], 0, producer=5)
    world.end_transaction(0, 5, commit=False)
    world.produce(0, KEYS, 0, producer=5)
    world.end_transaction(0, 5, commit=True)


def test_within_a_response_with_aborted_transactions_nobody_goes_on() -> None:
    """A member does not continue in the middle of a buffered response that has aborted transactions.

    It fetches from the broker instead. For a client, an aborted transaction begins with its first record in
    the response, and ends with the abort marker.
    """
    world = World(isolation=1)
    one, two = pair(world)
    one.ask(0)
    two.ask(0)
    transactions(world)
    assert settled(one, two) == [1, 0]
    assert has_all(world, one, two)
    two.offsets[0] = 3
    two.got[0].clear()
    two.ask(0)
    assert two.respond()
    two.take()
    assert has_all(world, one, two)


def test_a_response_with_aborted_transactions_is_for_those_who_asked_for_its_offset() -> None:
    world = World(isolation=1)
    one, two = pair(world)
    transactions(world)
    two.offsets[0] = 3
    two.ask(0)
    one.ask(0)
    assert settled(one, two) == [1, 1]
    assert not world.members.shared_fetches.buffered
    two.offsets[0] = 3
    two.ask(0)
    two.respond()
    two.take()
    assert has_all(world, one, two)


def test_a_member_within_a_response_gets_what_comes_after(world: World) -> None:
    """A member whose offset is inside a buffered response gets the rest of this response from the buffer."""
    one, two = pair(world)
    world.produce(0, KEYS, codec=0)
    two.offsets[0] = 20
    two.ask(0)
    one.ask(0)
    assert settled(one, two) == [1, 1]
    for offset in (20, 30):  # as put aside, and a part of it
        two.offsets[0] = offset
        two.ask(0)
        assert not two.respond()
        two.take()
        assert two.offsets[0] == len(KEYS)


def bound(world: World, name: str, lane: KeyRange) -> tuple[Client, Member]:
    """Return a client and its member object. The member has one range of keys of the partition."""
    client = Client(world, lane, client_id=f"billing.{name}")
    member = world.members.bound("h", client.client_id.encode())
    member.group, member.presence.session_seconds = b"billing", SESSION
    member.presence.joins(client, world.now, SESSION)
    given: Lanes = {(TOPIC.encode(), 0): (lane,)}
    member.synced(Assignment(lanes=given, planned=given), world.now)
    member.tracked((TOPIC.encode(), 0)).told(0)
    return client, member


@pytest.mark.parametrize("when", ["waits", "has something put aside", "is silent"])
def test_a_member_that_its_group_has_left_behind_gets_nothing(world: World, when: str) -> None:
    """A member gets no records if its group has continued without it.

    This holds for a member that waits, and for a member that has buffered records.
    """
    (one, _), (two, left) = bound(world, "1", HALVES[0]), bound(world, "2", HALVES[1])
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=0)
    if when == "waits":
        left.presence.freeze()
        one.respond()
    else:
        one.respond()
        two.take()
        assert offsets(two)
        if when == "is silent":
            world.now += 2 * SESSION
        else:
            left.presence.freeze()
        two.offsets[0], two.got[0] = 0, {}
        two.ask(0)
    two.respond()
    world.now += WAIT
    two.tick()
    two.take()
    assert (two.asked, offsets(two)) == (0, [])


def test_what_is_put_aside_is_not_for_another_lane(world: World) -> None:
    (one, _), (two, member) = bound(world, "1", HALVES[0]), bound(world, "2", HALVES[1])
    one.ask(0)
    two.ask(0)
    world.produce(0, KEYS, codec=0)
    assert settled(one, two) == [1, 0]
    given: Lanes = {(TOPIC.encode(), 0): (QUARTERS[3],)}
    member.synced(Assignment(lanes=given, planned=given), world.now)
    member.tracked((TOPIC.encode(), 0)).told(0)
    two.lane, two.offsets[0], two.got[0] = QUARTERS[3], 0, {}
    two.ask(0)
    assert two.respond()
    two.take()
    assert offsets(two)


def test_who_waits_gets_nothing_of_a_lane_that_it_was_given_meanwhile(world: World) -> None:
    """A waiting member that gets other key ranges meanwhile gets no records of the new ranges.

    The member fetched for its old ranges. Its position in the new ranges may be another one.
    """
    (one, _), (other, _) = bound(world, "1", QUARTERS[0]), bound(world, "2", QUARTERS[1])
    two, member = bound(world, "3", QUARTERS[2])
    one.ask(0)
    other.ask()  # of a partition that is not its own as well: it goes upstream
    two.ask(0)
    given: Lanes = {(TOPIC.encode(), 0): (QUARTERS[3],)}
    member.synced(Assignment(lanes=given, planned=given), world.now)
    member.tracked((TOPIC.encode(), 0)).told(0)
    world.produce(0, KEYS, codec=0)
    assert one.respond()
    assert other.respond()
    two.respond()
    world.now += WAIT
    two.tick()
    two.take()
    assert (two.asked, offsets(two)) == (0, [])
