"""A follower that is late, closed, or too early: rules 10 and 12 of proxy/features/racks/README.md."""

from collections import Counter

import pytest

from proxy.core.eligibility import SessionLimits
from proxy.features.racks.distrust import PAUSE_SECONDS
from proxy.features.racks.rack_clients import ASK_SECONDS, MAX_HOLD_SECONDS, OVERDUE_SECONDS, SILENT_SECONDS
from tests.features.racks.replica import (
    LEADER,
    NOW,
    REPLICA,
    TOPICS,
    Gateway,
    cores,
    in_session,
    parks,
    question,
)
from tests.frames import Want, entry, fetch, fetch_response, framed
from tests.playbook import Playbook, T, full, request, response


def test_rule_28_a_replica_that_does_not_respond_is_named_to_nobody() -> None:
    gateway = Gateway()
    play = gateway.connect()
    play.client(fetch(12, *T[:1], correlation=3)).to_broker(fetch(12, *T[:1], correlation=3))
    play.connection.tick(NOW + OVERDUE_SECONDS)  # a fetch of 500 ms is not overdue yet
    assert [core.fault for core in play.connection.cores] == [None, None]
    play.connection.tick(now := NOW + 0.5 + OVERDUE_SECONDS)
    assert [core.fault is not None for core in play.connection.cores] == [True, True]
    assert gateway.returns == Counter(overdue=1)
    for client in ("c", "another"):
        assert gateway.leaders(now + PAUSE_SECONDS - 1, client=client) == [LEADER, LEADER]
        assert gateway.leaders(now + PAUSE_SECONDS, client=client) == [REPLICA, REPLICA]


@pytest.mark.parametrize("in_a_session", [False, True])
def test_rule_28_a_replica_that_throttles_its_client_is_not_overdue(*, in_a_session: bool) -> None:
    """It reads the next fetch when the time is over (KIP-219). Some clients send it before."""
    gateway = Gateway()
    play = gateway.connect(sessions=SessionLimits(max_sessions=1 if in_a_session else 0))
    wants: list[Want] = [("t", at) for at in range(30)]
    if in_a_session:
        in_session(play, wants)
    throttled_for = 0
    for number in range(4, 13):
        gateway.learn(TOPICS, play.now)
        play.client(fetch(12, *wants, correlation=number)).takes_broker()
        for _ in range(throttled_for):
            play.now += 1.0
            play.connection.tick(play.now)
        throttled = fetch_response(12, throttle_time_ms=5000, correlation_id=number)
        play.broker(throttled).to_client(throttled)
        throttled_for = 5
    assert not gateway.returns
    play.client(fetch(12, *wants, correlation=18)).takes_broker()
    for _ in range(9):
        play.now += 1.0
        play.connection.tick(play.now)
    assert gateway.returns == Counter(overdue=1)


def test_rule_28_a_fetch_behind_other_requests_is_late_as_well() -> None:
    """Here it is behind the gateway's question for Metadata, and one of the client."""
    gateway = Gateway()
    play = gateway.connect()
    play.now += ASK_SECONDS
    play.client(request(12, 0, 2), asked := fetch(12, *T[:1], correlation=3))
    play.to_broker(request(12, 0, 2), question(12), asked)
    play.connection.tick(play.now + 0.4 + OVERDUE_SECONDS)
    assert [core.fault for core in play.connection.cores] == [None, None]
    play.connection.tick(play.now + 0.5 + OVERDUE_SECONDS)
    assert [core.fault is not None for core in play.connection.cores] == [True, True]


def test_rule_28_a_replica_that_closes_or_cannot_be_reached_is_named_to_nobody() -> None:
    gateway = Gateway()
    play = gateway.connect()
    parks(play, fetch(12, *T[:1]), full(12, T[:1]))
    play.connection.broker_ended()
    assert gateway.leaders(play.now + PAUSE_SECONDS - 1) == [LEADER, LEADER]
    later = play.now + PAUSE_SECONDS
    assert gateway.leaders(later) == [REPLICA, REPLICA]
    for shared in gateway.shared:
        shared.unreachable(LEADER, later)
        shared.unreachable(REPLICA, later)
    assert gateway.leaders(later + 2 * PAUSE_SECONDS - 1) == [LEADER, LEADER]
    assert gateway.returns == Counter(closed=1, unreachable=1)


def test_rule_28_a_leader_in_the_rack_is_not_watched() -> None:
    """It leads all that the client reads from it. So its connection is like any other one."""
    gateway = Gateway()
    play = gateway.connect()
    play.client(fetch(12, ("u", 0))).to_broker(fetch(12, ("u", 0)))
    play.connection.tick(NOW + 60.0)
    play.connection.broker_ended()
    assert not gateway.returns
    assert [core.fault for core in play.connection.cores] == [None, None]


@pytest.mark.parametrize("api_key", [2, 3, 10, 18])
def test_rule_28_what_a_replica_should_answer_at_once_shows_that_it_does_not_respond(api_key: int) -> None:
    """kafka-go gives up its fetches before they are overdue. Then other connections are late sooner."""
    gateway = Gateway()
    play = gateway.connect(begins=False)
    asked = request(api_key, 1, 0, bytes(4))
    play.client(asked).to_broker(asked)
    play.connection.tick(NOW + OVERDUE_SECONDS - 0.1)
    assert [core.fault for core in cores(play)] == [None, None]
    play.connection.tick(NOW + OVERDUE_SECONDS)
    assert [core.fault is not None for core in cores(play)] == [True, True]
    assert gateway.returns == Counter(overdue=1)
    again = gateway.connect(begins=False)
    again.now = NOW + OVERDUE_SECONDS
    again.client(asked).to_broker(asked)
    again.connection.tick(again.now + SILENT_SECONDS)
    assert [core.fault is not None for core in cores(again)] == [True, True]
    assert gateway.returns == Counter(overdue=1)


@pytest.mark.parametrize(("node_id", "client"), [(LEADER, b"c"), (REPLICA, b"other")])
def test_rule_28_other_brokers_and_other_clients_may_take_longer(node_id: int, client: bytes) -> None:
    play = Gateway().connect(node_id, begins=False)
    asked = request(3, 1, 0, bytes(4), client)
    play.client(asked).to_broker(asked)
    for second in range(20):
        play.connection.tick(NOW + second)
    assert [core.fault for core in cores(play)] == [None, None]


def overdue(gateway: Gateway) -> float:
    """Let the replica be late with a fetch. Return when that was seen."""
    play = gateway.connect()
    play.client(fetch(12, *T[:1], correlation=3)).to_broker(fetch(12, *T[:1], correlation=3))
    at = play.now + 0.5 + OVERDUE_SECONDS
    for look in (at - 0.5, at):
        play.connection.tick(look)
    assert gateway.returns == Counter(overdue=1)
    return at


def test_rule_28_a_response_that_arrives_slowly_is_not_overdue() -> None:
    gateway = Gateway()
    play = gateway.connect()
    asked = fetch(12, *T[:1], correlation=3)
    play.client(asked).to_broker(asked)
    told = fetch_response(12, ("t", [entry(0, 5, records=bytes(100_000))]), correlation_id=3)
    for second in range(10):
        play.broker(told[second * 10_000 : (second + 1) * 10_000]).takes_client()
        play.connection.tick(NOW + 10.0 * (second + 1))
    assert [core.fault for core in play.connection.cores] == [None, None]
    assert not gateway.returns


def test_rule_28_what_was_asked_before_the_replica_was_late_is_late_as_well() -> None:
    gateway = Gateway()
    other = gateway.connect()
    asked = request(3, 1, 9, bytes(4))
    other.client(asked).to_broker(asked)
    at = overdue(gateway)
    other.connection.tick(at)  # the broker has sent something since the connection began: look again
    other.connection.tick(at + 0.5)
    assert [core.fault is not None for core in other.connection.cores] == [True, True]


@pytest.mark.parametrize(("api_key", "client"), [(11, b"c"), (3, b"other")])
def test_rule_28_other_requests_and_clients_may_take_longer_after_it(api_key: int, client: bytes) -> None:
    """A broker may keep a JoinGroup (11) for long. After the pause, the replica is like other brokers."""
    gateway = Gateway()
    at = overdue(gateway)
    other = gateway.connect()
    other.now = at + (PAUSE_SECONDS + 1.0 if api_key == 3 else 0.0)
    asked = request(api_key, 1, 9, bytes(4), client)
    other.client(asked).to_broker(asked)
    for step in range(20):
        other.connection.tick(other.now + step)
    assert [core.fault for core in other.connection.cores] == [None, None]


def test_rule_28_a_replica_that_responds_again_is_not_late() -> None:
    gateway = Gateway()
    at = overdue(gateway)
    again = gateway.connect()
    again.now = at + 1.0
    again.exchange(request(3, 1, 9, bytes(4)), response(9, bytes(12)))
    for step in range(20):
        again.connection.tick(again.now + step)
    assert [core.fault for core in again.connection.cores] == [None, None]


def held_back(play: Playbook, asked: bytes, told: bytes) -> None:
    """Play a fetch and its response, which comes at once and waits."""
    play.client(asked).to_broker(asked)
    play.now += 0.001
    play.broker(told).nothing()
    play.now += MAX_HOLD_SECONDS
    play.connection.tick(play.now)
    play.to_client(told)


def test_rule_30_empty_responses_at_once_are_held_back() -> None:
    """A client that comes from the leader stands above the follower's high watermark."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10):
        parks(play, fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number))
    for number in range(10, 15):
        asked, told = fetch(12, ("t", 0, 6), correlation=number), full(12, T[:1], correlation_id=number)
        held_back(play, asked, told)
    assert [shared.held for shared in gateway.shared] == [5, 5]


def test_rule_30_empty_responses_are_held_back_however_many_there_are() -> None:
    """A follower may lag for as long as `replica.lag.time.max.ms` allows."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(1100):
        gateway.learn(TOPICS, play.now)
        asked, told = fetch(12, ("t", 0, 6), correlation=number), full(12, T[:1], correlation_id=number)
        held_back(play, asked, told)


def test_rule_30_a_leader_in_the_rack_may_be_early() -> None:
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10):
        told = full(12, [("u", 0)], correlation_id=number)
        play.exchange(fetch(12, ("u", 0), correlation=number), told)
    assert [shared.held for shared in gateway.shared] == [0, 0]


def test_rule_30_an_early_response_does_not_take_the_fast_path() -> None:
    """It may be the same as earlier ones, for which the replica has waited."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10, 20):
        parks(play, fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number))
    assert play.connection.passed > 5
    for number in range(20, 30):
        asked, told = fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number)
        held_back(play, asked, told)
    assert [shared.held for shared in gateway.shared] == [10, 10]


def test_rule_30_a_short_wait_that_has_passed_does_not_leave_the_fast_path() -> None:
    """An empty response after all of its fetch's wait is not early, however short the wait was."""
    play = Gateway().connect()
    for number in range(10, 20):
        asked = fetch(12, *T[:1], correlation=number, max_wait_ms=20)
        play.client(asked).to_broker(asked)
        play.now += 0.02
        told = full(12, T[:1], correlation_id=number)
        play.broker(told).to_client(told)
    assert play.connection.passed > 15  # requests and responses


def test_rule_30_what_is_not_empty_or_not_early_passes() -> None:
    play = Gateway().connect()
    asked = fetch(12, *T[:1], correlation=20)
    told = fetch_response(12, ("t", [entry(0, 5, records=b"r" * 80)]), correlation_id=20)
    play.exchange(asked, told)
    play.exchange(fetch(12, *T[:1], correlation=21, min_bytes=0), full(12, T[:1], correlation_id=21))
    play.client(asked).to_broker(asked)
    play.now += 0.25
    play.broker(full(12, T[:1], correlation_id=20)).to_client(full(12, T[:1], correlation_id=20))


def test_rule_30_what_is_held_back_comes_before_the_end() -> None:
    """A broker that closes does not take a response away. Later requests are answered after it."""
    play = Gateway().connect()
    asked, told = fetch(12, *T[:1], correlation=20), full(12, T[:1], correlation_id=20)
    play.client(asked, request(12, 0, 21)).to_broker(asked, request(12, 0, 21))
    play.broker(told, framed((21).to_bytes(4) + b"\0\0")).nothing()
    play.connection.broker_ended()
    play.to_client(told, framed((21).to_bytes(4) + b"\0\0"))
