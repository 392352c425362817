"""The rack in the fetch (`proxy.core.rack_reads`): rules 7 to 16 of docs/developers/zones.md, in bytes."""

from collections import Counter
from collections.abc import Collection
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import pytest

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions
from proxy.core.follower import ASK_SECONDS, OVERDUE_SECONDS, PAUSE_SECONDS, SILENT_SECONDS
from proxy.core.rack_reads import (
    AGAIN_SECONDS,
    MISSES,
    REFUSED_SECONDS,
    RackReads,
    RackReadsStage,
)
from proxy.core.racks import NotWritten
from proxy.protocol.api_versions import Features
from proxy.protocol.leader_requests import metadata_request
from tests.core.replicas import Part, body
from tests.frames import Want, entry, fetch, fetch_response, framed, topic_id
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request, response

LEADER: Final = 1
FOLLOWER: Final = 2
RACK: Final = "R2"
NOW: Final = 1000.0


class Known:
    """The racks of the brokers, as far as the gateway has heard of them."""

    def __init__(self, *here: int) -> None:
        self.nodes: Collection[int] = here

    @property
    def here(self) -> bool:
        return bool(self.nodes)

    def is_here(self, node_id: int | None) -> bool:
        return node_id in self.nodes


class Gateway:
    """The connections of one gateway in rack R2, whose broker 2 is in that rack.

    Each connection is played by two cores, with and without the fast path. Each of them has a `RackReads` of
    its own, which it shares with its like of the other connections.
    """

    def __init__(self, *, fetch_max: int = 18, here: tuple[int, ...] = (FOLLOWER,)) -> None:
        self.racks = Known(*here)
        self.shared = [RackReads(RACK, self.racks), RackReads(RACK, self.racks)]
        self.versions = BrokerVersions()
        self.versions.features = Features(fetch_max=fetch_max, offset_fetch_max=9, find_coordinator_max=6)
        self.stages: list[RackReadsStage] = []

    def connect(
        self, node_id: int = LEADER, *, software: str | None = "librdkafka", **options: Any
    ) -> Playbook:
        """Return a connection of a client to a broker. The client has told its software by then.

        Without a software, it has told its versions only. With None, it has sent nothing yet.
        """
        made = 0

        def make(state: ConnectionState) -> RackReadsStage:
            nonlocal made
            made += 1
            stage = RackReadsStage(self.shared[made - 1], lambda: node_id, self.versions, state)
            self.stages.append(stage)
            return stage

        play = Playbook(stages=(make,), **options)
        play.now = NOW
        for core in play.connection.cores:
            core.attach(lambda: None, lambda _: None)
        if software is None:
            return play
        return play.knows() if not software else named(play, software)

    @property
    def counts(self) -> dict[str, int]:
        assert self.shared[0].counts == self.shared[1].counts
        return {name: self.shared[0].counts[name] for name in ("redirects", "moved")}


def named(play: Playbook, software: str) -> Playbook:
    """Let the client ask for ApiVersions v3, with the name of its software."""
    name, version = software.encode(), b"1.0"
    body = b"\0" + b"".join(bytes((len(text) + 1,)) + text for text in (name, version)) + b"\0"
    asked = request(18, 3, 0, body)
    play.client(asked).to_broker(asked)
    highest = {1: 18, 9: 9, 10: 6}  # Fetch, OffsetFetch, FindCoordinator
    ranges = bytes((len(highest) + 1,))
    ranges += b"".join(key.to_bytes(2) + bytes(2) + most.to_bytes(2) + b"\0" for key, most in highest.items())
    told = framed((0).to_bytes(4) + (0).to_bytes(2) + ranges + (0).to_bytes(4) + b"\0")
    play.broker(told).to_client(told)
    return play


def test_a_response_to_a_fetch_of_the_fast_path_while_another_partition_is_led_here() -> None:
    """The response matches no plan, and the fetch in flight has no frame any more."""
    gateway = Gateway()
    leader, follower = gateway.connect(), gateway.connect(FOLLOWER)
    writes(leader, 12, *T, correlation=1)
    answers(leader, redirects(12, ("t", 0), correlation_id=1))
    for number in range(20):
        follower.client(asked := fetch(12, ("t", 0, number), correlation=number)).to_broker(asked)
        follower.now += 0.1
        answers(follower, full(12, T[:1], correlation_id=number))
    assert follower.connection.passed > 9
    follower.client(asked := fetch(12, ("t", 0, 20), correlation=20)).to_broker(asked)
    writes(leader, 12, *T[1:], correlation=2)
    answers(leader, redirects(12, ("t", 1), correlation_id=2))
    answers(follower, fetch_response(12, throttle_time_ms=9, correlation_id=20))
    wants: list[Want] = [("t", 0), ("t", 1)]
    follower.client(asked := fetch(12, *wants, correlation=21)).to_broker(asked)
    follower.now += 0.5
    answers(follower, full(12, wants, correlation_id=21))
    assert gateway.counts == {"redirects": 2, "moved": 2}


def redirects(version: int, *places: tuple[str, int], to: int = FOLLOWER, **fields: Any) -> bytes:
    """Build the answer of a leader that names a follower for each of these partitions."""
    by_topic: dict[str, list[wire.PartitionData]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(entry(partition, 5, preferred_read_replica=to))
    return fetch_response(version, *by_topic.items(), **fields)


def writes(play: Playbook, version: int, *wants: Want, rack: str = RACK, **fields: Any) -> None:
    """Check that a fetch of the client reaches the broker with a rack, and with nothing else changed."""
    play.client(fetch(version, *wants, **fields)).to_broker(fetch(version, *wants, rack_id=rack, **fields))


def answers(play: Playbook, told: bytes) -> None:
    """Check that a response of the broker reaches the client unchanged."""
    play.broker(told).to_client(told)


@pytest.mark.parametrize("version", range(11, 19))
def test_rule_7_a_fetch_of_a_consumer_without_a_rack_gets_the_gateways(version: int) -> None:
    """From v11 on the rack is written. From the second fetch on, the fast path writes it."""
    play = Gateway().connect()
    for number in range(10, 16):
        writes(play, version, *T[:1], correlation=number)
        answers(play, full(version, T[:1], correlation_id=number))
    assert play.connection.passed > 5


@pytest.mark.parametrize("version", [4, 9, 10])
def test_rule_7_below_v11_there_is_no_rack(version: int) -> None:
    play = Gateway().connect()
    play.exchange(fetch(version, *T[:1]), full(version, T[:1]))


def test_rule_7_fetches_of_followers_and_fetches_with_tags_get_none() -> None:
    play = Gateway().connect()
    asked = fetch(11, *T[:1], replica_id=3)
    play.exchange(asked, full(11, T[:1]))


@pytest.mark.parametrize("version", [11, 13, 16])
def test_rule_8_a_rack_of_the_client_is_never_replaced(version: int) -> None:
    """What the leader answers to it is the client's own affair."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(5):
        asked = fetch(version, *T[:1], rack_id="R9", correlation=number)
        play.exchange(asked, redirects(version, T[0][:2], correlation_id=number))
    assert gateway.counts == {"redirects": 0, "moved": 0}


def test_rule_9_in_the_clients_own_session_only_the_rack_is_written() -> None:
    """Full and incremental fetches of the client's own session get the rack, with all else as it was."""
    play = Gateway().connect()
    writes(play, 13, *T, session=(0, 0), correlation=2)
    answers(play, full(13, T, session_id=SESSION_ID, correlation_id=2))
    for epoch in range(1, 4):
        forget = [("u", 0)] if epoch == 2 else []
        writes(play, 13, session=(SESSION_ID, epoch), forget=forget, correlation=2 + epoch)
        answers(play, fetch_response(13, session_id=SESSION_ID, correlation_id=2 + epoch))


def test_rule_9_the_gateways_session_has_the_rack_in_each_fetch() -> None:
    """The rack is of each request, not of the session. A list that rotates still takes the fast path."""
    play = Gateway().connect()
    wants: list[Want] = [("t", at) for at in range(30)]
    asked, forwarded = (fetch(12, *wants, correlation=3, rack_id=rack) for rack in ("", RACK))
    while (sent := play.client(asked).takes_broker()) == forwarded:
        play.broker(full(12, wants, correlation_id=3)).takes_client()
    assert sent == asks(12, wants, (0, 0), correlation=3, rack_id=RACK)
    play.broker(full(12, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    for epoch in range(1, 9):
        wants = [*wants[1:], wants[0]]
        play.client(fetch(12, *wants, correlation=epoch))
        play.to_broker(asks(12, [], (SESSION_ID, epoch), correlation=epoch, rack_id=RACK))
        play.broker(fetch_response(12, session_id=SESSION_ID, correlation_id=epoch))
        play.to_client(full(12, wants, correlation_id=epoch))
    assert play.connection.passed > 5


def test_a_redirect_in_a_session_reaches_the_client_and_the_list_shrinks() -> None:
    """The client gets the answer that names the follower, and leaves: the session forgets the partition."""
    gateway = Gateway()
    play = gateway.connect()
    wants: list[Want] = [("t", at) for at in range(30)]
    asked = fetch(12, *wants, correlation=3)
    while play.client(asked).takes_broker() != asks(12, wants, (0, 0), correlation=3, rack_id=RACK):
        play.broker(full(12, wants, correlation_id=3)).takes_client()
    play.broker(full(12, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    play.client(fetch(12, *wants, correlation=4)).takes_broker()
    play.broker(redirects(12, ("t", 7), session_id=SESSION_ID, correlation_id=4))
    data = [entry(at, 5, preferred_read_replica=FOLLOWER if at == 7 else -1) for at in range(30)]
    play.to_client(fetch_response(12, ("t", data), correlation_id=4))
    left = [want for want in wants if want[1] != 7]
    play.client(fetch(12, *left, correlation=5))
    play.to_broker(asks(12, [], (SESSION_ID, 2), forget=[("t", 7)], correlation=5, rack_id=RACK))
    assert gateway.counts == {"redirects": 1, "moved": 0}
    assert all(stage.follows for stage in gateway.stages)


@pytest.mark.parametrize(("fetch_max", "rack"), [(12, ""), (14, ""), (15, RACK), (18, RACK)])
def test_rule_10_brokers_before_3_5_get_no_rack(fetch_max: int, rack: str) -> None:
    play = Gateway(fetch_max=fetch_max).connect()
    writes(play, 11, *T[:1], rack=rack)


def test_rule_10_a_broker_whose_release_is_not_known_gets_none_until_it_is() -> None:
    gateway = Gateway()
    features, gateway.versions.features = gateway.versions.features, None
    play = gateway.connect()
    for number in range(3):
        play.exchange(fetch(11, *T[:1], correlation=number), full(11, T[:1], correlation_id=number))
    gateway.versions.features = features
    writes(play, 11, *T[:1], correlation=9)


def test_rule_11_franz_go_and_kafkajs_get_none() -> None:
    """Both would stay with a follower that has failed. KafkaJS is known by its v11 without leader epochs."""
    gateway = Gateway()
    for version, software in ((16, "kgo"), (11, "")):
        play = gateway.connect(software=software)
        asked = fetch(version, *T[:1], values={"current_leader_epoch": -1})
        play.exchange(asked, full(version, T[:1]))
    writes(gateway.connect(software=""), 11, *T[:1], values={"current_leader_epoch": 4})


def test_rule_12_a_client_that_leaves_the_partition_out_follows() -> None:
    gateway = Gateway()
    play = gateway.connect()
    writes(play, 12, *T[:2], correlation=1)
    answers(play, redirects(12, T[0][:2], correlation_id=1))
    writes(play, 12, T[1], correlation=2)
    assert gateway.counts == {"redirects": 1, "moved": 0}
    assert [stage.follows for stage in gateway.stages] == [True, True]


def test_rule_12_a_client_that_goes_to_the_follower_follows() -> None:
    """At the follower, which is in the rack, nothing is written."""
    gateway = Gateway()
    leader, follower = gateway.connect(), gateway.connect(FOLLOWER)
    writes(leader, 12, *T[:1], correlation=1)
    answers(leader, redirects(12, T[0][:2], correlation_id=1))
    parks(follower, 12, *T[:1], correlation=2)
    assert gateway.counts == {"redirects": 1, "moved": 1}
    assert all(stage.follows for stage in gateway.stages)


def test_rule_12_another_partition_at_the_follower_proves_nothing() -> None:
    gateway = Gateway()
    leader, follower = gateway.connect(), gateway.connect(FOLLOWER)
    writes(leader, 12, *T[:1], correlation=1)
    answers(leader, redirects(12, T[0][:2], correlation_id=1))
    follower.exchange(fetch(12, T[2], correlation=2), full(12, [T[2]], correlation_id=2))
    assert gateway.counts == {"redirects": 1, "moved": 0}
    assert not any(stage.follows for stage in gateway.stages)


def test_rule_12_in_its_own_session_a_client_leaves_by_forgetting() -> None:
    """An incremental fetch asks for all that it has not forgotten, so not to list is no proof."""
    gateway = Gateway()
    play = gateway.connect(software="apache-kafka-java")
    writes(play, 13, *T, session=(0, 0), correlation=1)
    answers(play, redirects(13, T[0][:2], session_id=SESSION_ID, correlation_id=1))
    writes(play, 13, session=(SESSION_ID, 1), rack="", correlation=2)
    answers(play, fetch_response(13, session_id=SESSION_ID, correlation_id=2))
    writes(play, 13, session=(SESSION_ID, 2), correlation=3)
    answers(play, redirects(13, T[0][:2], session_id=SESSION_ID, correlation_id=3))
    writes(play, 13, session=(SESSION_ID, 3), forget=[T[0][:2]], correlation=4)
    assert gateway.counts == {"redirects": 2, "moved": 0}
    assert all(stage.follows for stage in gateway.stages)


def test_rules_13_and_14_a_client_that_does_not_follow_is_served_at_once_and_soon_left_alone() -> None:
    """Each answer that it does not follow costs one empty response. After the third there are none."""
    gateway = Gateway()
    play = gateway.connect(software="")
    number = 0
    for _ in range(MISSES):
        writes(play, 17, *T[:1], correlation=number)
        answers(play, redirects(17, T[0][:2], correlation_id=number))
        writes(play, 17, *T[:1], rack="", correlation=number + 1)
        answers(play, full(17, T[:1], correlation_id=number + 1))
        number += 2
    for each in range(number, number + 5):
        writes(play, 17, *T[:1], rack="", correlation=each)
        answers(play, full(17, T[:1], correlation_id=each))
    assert gateway.counts == {"redirects": MISSES, "moved": 0}
    assert [stage.follows for stage in gateway.stages] == [False, False]
    other = gateway.connect(software="")
    writes(other, 17, *T[:1], rack="", correlation=50)
    writes(gateway.connect(software="librdkafka"), 17, *T[:1], correlation=51)
    later = gateway.connect(software="")
    later.now = NOW + REFUSED_SECONDS + 1
    writes(later, 17, *T[:1], correlation=52)


def test_rule_14_a_client_that_leaves_is_not_counted() -> None:
    """A client that is gone after an answer has proved nothing. When it comes again, it is served at once."""
    gateway = Gateway()
    for _ in range(MISSES + 2):
        play = gateway.connect()
        writes(play, 16, *T[:1], correlation=1)
        answers(play, redirects(16, T[0][:2], correlation_id=1))
        play.connection.ended()
        again = gateway.connect()
        writes(again, 16, *T[:1], rack="", correlation=2)
        answers(again, full(16, T[:1], correlation_id=2))
    writes(gateway.connect(), 16, *T[:1])


def test_rule_15_a_client_that_comes_back_at_once_is_served_for_ten_seconds() -> None:
    """It follows, but the follower gave it nothing: perhaps it can't be reached from there."""
    gateway = Gateway()
    play, follower = led(gateway)
    play.now += AGAIN_SECONDS
    writes(play, 12, *T[:1], correlation=3)
    answers(play, redirects(12, T[0][:2], correlation_id=3))
    for number in range(4, 7):
        writes(play, 12, *T[:1], rack="", correlation=number)
        answers(play, full(12, T[:1], correlation_id=number))
    asked, wrong = fetch(12, *T[:1], correlation=7), fetch_response(12, ("t", [entry(0, error=1)]))
    follower.client(asked).to_broker(asked)
    follower.broker(wrong[:4] + (7).to_bytes(4) + wrong[8:]).takes_client()
    writes(play, 12, *T[:1], rack="", correlation=8)
    assert gateway.counts == {"redirects": 2, "moved": 1}


def test_rule_15_a_client_that_was_served_by_the_follower_is_led_away_again() -> None:
    """kafka-python asks the leader again after each response of the follower."""
    gateway = Gateway()
    play, follower = led(gateway)
    for number in range(3, 9, 2):
        writes(play, 12, *T[:1], correlation=number)
        answers(play, redirects(12, T[0][:2], correlation_id=number))
        parks(follower, 12, *T[:1], correlation=number + 1)
    assert gateway.counts == {"redirects": 4, "moved": 4}


def test_rule_15_a_partition_that_stays_in_the_session_with_the_follower_is_served_there() -> None:
    """kafka-python lists a partition in its own session only if its offset has changed.

    The follower may answer with a new high watermark and no records. Then kafka-python asks the leader again,
    and its next fetch to the follower does not list the partition.
    """
    gateway = Gateway()
    play, follower = gateway.connect(), gateway.connect(FOLLOWER)
    named_place = T[0][:2]
    writes(play, 12, *T[:1], correlation=1)
    answers(play, redirects(12, named_place, correlation_id=1))
    waits(
        follower,
        fetch(12, T[0], session=(0, 0), correlation=2),
        full(12, T[:1], session_id=SESSION_ID, correlation_id=2),
    )
    for epoch in range(1, 4):
        writes(play, 12, *T[:1], correlation=10 + epoch)
        answers(play, redirects(12, named_place, correlation_id=10 + epoch))
        waits(
            follower,
            fetch(12, session=(SESSION_ID, epoch), correlation=20 + epoch),
            fetch_response(12, session_id=SESSION_ID, correlation_id=20 + epoch),
        )
    assert gateway.counts == {"redirects": 4, "moved": 4}


def test_rule_15_a_partition_that_the_session_with_the_follower_forgets_is_not_served_there() -> None:
    gateway = Gateway()
    play, follower = gateway.connect(), gateway.connect(FOLLOWER)
    writes(play, 12, *T[:1], correlation=1)
    answers(play, redirects(12, T[0][:2], correlation_id=1))
    waits(
        follower,
        fetch(12, *T[:2], session=(0, 0), correlation=2),
        full(12, T[:2], session_id=SESSION_ID, correlation_id=2),
    )
    waits(
        follower,
        fetch(12, session=(SESSION_ID, 1), forget=[T[0][:2]], correlation=3),
        fetch_response(12, session_id=SESSION_ID, correlation_id=3),
    )
    writes(play, 12, *T[:1], correlation=4)
    answers(play, redirects(12, T[0][:2], correlation_id=4))
    waits(
        follower,
        fetch(12, session=(SESSION_ID, 2), correlation=5),
        fetch_response(12, session_id=SESSION_ID, correlation_id=5),
    )
    writes(play, 12, *T[:1], rack="", correlation=6)
    assert gateway.counts == {"redirects": 2, "moved": 1}


def test_rule_16_a_follower_that_does_not_respond_ends_the_connection_and_the_racks() -> None:
    gateway = Gateway()
    play, follower = led(gateway)
    follower.client(fetch(12, *T[:1], correlation=3)).to_broker(fetch(12, *T[:1], correlation=3))
    sent = follower.now
    follower.connection.tick(sent + OVERDUE_SECONDS)  # a fetch of 500 ms is not overdue yet
    writes(play, 12, T[1], correlation=4)
    answers(play, full(12, [T[1]], correlation_id=4))
    follower.connection.tick(sent + 0.5 + OVERDUE_SECONDS)
    assert [core.fault is not None for core in follower.connection.cores] == [True, True]
    assert gateway.shared[0].returns == Counter(overdue=1)
    paused(play, at=sent + 0.5 + OVERDUE_SECONDS)


def test_rule_16_a_response_that_arrives_slowly_is_not_overdue() -> None:
    gateway = Gateway()
    _, follower = led(gateway)
    asked = fetch(12, *T[:1], correlation=3)
    follower.client(asked).to_broker(asked)
    told = fetch_response(12, ("t", [entry(0, 5, records=bytes(100_000))]), correlation_id=3)
    for second in range(10):
        piece = told[second * 10_000 : (second + 1) * 10_000]
        follower.broker(piece).takes_client()
        follower.connection.tick(NOW + 10.0 * (second + 1))
    assert [core.fault for core in follower.connection.cores] == [None, None]


def overdue(gateway: Gateway) -> float:
    """Let the follower be late with a fetch. Return when that was seen."""
    _, follower = led(gateway)
    follower.client(fetch(12, *T[:1], correlation=3)).to_broker(fetch(12, *T[:1], correlation=3))
    at = follower.now + 0.5 + OVERDUE_SECONDS
    for look in (at - 0.5, at):
        follower.connection.tick(look)
    assert gateway.shared[0].returns == Counter(overdue=1)
    return at


@pytest.mark.parametrize(("api_key", "version"), [(18, 0), (3, 1), (10, 0)])
def test_rule_16_what_a_late_follower_should_answer_at_once_is_late_soon(api_key: int, version: int) -> None:
    """A client that connects to it again would wait for its own time limit, of ten seconds and more."""
    gateway = Gateway()
    at = overdue(gateway)
    again = gateway.connect(FOLLOWER, software=None)
    again.now = at + 1.0
    asked = request(api_key, version, 0, bytes(4))
    again.client(asked).to_broker(asked)
    again.connection.tick(again.now + SILENT_SECONDS - 0.1)
    assert [core.fault for core in again.connection.cores] == [None, None]
    again.connection.tick(again.now + SILENT_SECONDS)
    assert [core.fault is not None for core in again.connection.cores] == [True, True]
    assert gateway.shared[0].returns == Counter(overdue=1)


def test_rule_16_what_was_asked_before_the_follower_was_late_is_late_as_well() -> None:
    gateway = Gateway()
    other = gateway.connect(FOLLOWER)
    asked = request(3, 1, 9, bytes(4))
    other.client(asked).to_broker(asked)
    at = overdue(gateway)
    other.connection.tick(at)  # the broker has sent something since the connection began: look again
    other.connection.tick(at + 0.5)
    assert [core.fault is not None for core in other.connection.cores] == [True, True]


@pytest.mark.parametrize(
    ("node_id", "api_key", "seconds"), [(LEADER, 3, 9.0), (FOLLOWER, 11, 9.0), (FOLLOWER, 3, 31.0)]
)
def test_rule_16_other_brokers_other_requests_and_later_ones_may_take_longer(
    node_id: int, api_key: int, seconds: float
) -> None:
    """A broker may keep a JoinGroup (11) for long. After the pause, the follower is like other brokers."""
    gateway = Gateway()
    at = overdue(gateway)
    other = gateway.connect(node_id)
    other.now = at + (seconds if seconds > PAUSE_SECONDS else 0.0)
    asked = request(api_key, 1, 9, bytes(4))
    other.client(asked).to_broker(asked)
    for step in range(20):
        other.connection.tick(other.now + step)
    assert [core.fault for core in other.connection.cores] == [None, None]


def test_rule_16_a_follower_that_responds_again_is_not_late() -> None:
    gateway = Gateway()
    at = overdue(gateway)
    again = gateway.connect(FOLLOWER)
    again.now = at + 1.0
    asked, told = request(3, 1, 9, bytes(4)), response(9, bytes(12))
    again.exchange(asked, told)
    for step in range(20):
        again.connection.tick(again.now + step)
    assert [core.fault for core in again.connection.cores] == [None, None]


def test_rule_16_a_follower_that_closes_ends_the_racks() -> None:
    gateway = Gateway()
    play, follower = led(gateway)
    follower.connection.broker_ended()
    assert gateway.shared[0].returns == Counter(closed=1)
    paused(play, at=follower.now)


def test_rule_16_a_client_that_closes_ends_nothing() -> None:
    gateway = Gateway()
    play, follower = led(gateway)
    follower.connection.close_session(NOW)
    follower.connection.broker_ended()
    writes(play, 12, T[1], correlation=4)


def test_rule_16_a_broker_that_cannot_be_reached_ends_the_racks_if_it_is_in_the_rack() -> None:
    gateway = Gateway()
    play, _ = led(gateway)
    for shared in gateway.shared:
        shared.unreachable(LEADER, NOW)
    writes(play, 12, T[1], correlation=4)
    answers(play, full(12, [T[1]], correlation_id=4))
    for shared in gateway.shared:
        shared.unreachable(FOLLOWER, NOW)
    paused(play, at=NOW)


def test_rule_16_the_pause_doubles_up_to_five_minutes() -> None:
    gateway = Gateway()
    shared, now = gateway.shared[0], NOW
    pauses = []
    for _ in range(6):
        shared.failed("closed", now)
        begun = now
        while shared.paused(now):
            now += 1.0
        pauses.append(now - begun)
        now += 10.0
    assert pauses == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    now += 1000.0
    shared.failed("closed", now)
    assert not shared.paused(now + PAUSE_SECONDS)


@pytest.mark.parametrize("chunk", [1, 7, 60, 1 << 20])
@pytest.mark.parametrize("version", [11, 12, 13, 16])
def test_rule_17_no_follower_says_out_of_range(version: int, chunk: int) -> None:
    """Error 1 becomes error 6, wherever the bytes are cut, and the leader serves for a while."""
    gateway = Gateway()
    play, follower = led(gateway, version, software="sarama")
    wants: list[Want] = [("t", 0), ("t", 7, 99), ("u", 0)]
    asked = fetch(version, *wants, correlation=3)
    follower.client(asked).to_broker(asked)

    def told(error: int) -> bytes:
        entries = [entry(0, 5, records=bytes(40)), entry(7, error=error)]
        return fetch_response(version, ("t", entries), ("u", [entry(0, 5)]), correlation_id=3)

    follower.broker(told(1), chunk=chunk).to_client(told(6))
    assert gateway.shared[0].returns == Counter(out_of_range=1)
    paused(play, follower.now, version)


def test_rule_17_an_error_never_takes_the_fast_path() -> None:
    """An error that comes again and again in the same bytes is replaced each time."""
    _, follower = led(Gateway(), software="sarama")
    for number in range(3, 12):
        asked = fetch(12, *T[:1], correlation=number)
        follower.client(asked).to_broker(asked)
        told, given = (
            fetch_response(12, ("t", [entry(0, error=error)]), correlation_id=number) for error in (1, 6)
        )
        follower.broker(told).to_client(given)


@pytest.mark.parametrize("software", ["librdkafka", "apache-kafka-java", "kafka-python"])
def test_rule_17_clients_that_then_ask_the_leader_see_the_error(software: str) -> None:
    _, follower = led(Gateway(), software=software)
    asked = fetch(12, ("t", 0, 99), correlation=3)
    follower.exchange(asked, fetch_response(12, ("t", [entry(0, error=1)]), correlation_id=3))


def test_rule_17_the_leaders_out_of_range_passes() -> None:
    play, _ = led(Gateway(), software="sarama")
    writes(play, 12, ("t", 1, 99), correlation=3)
    answers(play, fetch_response(12, ("t", [entry(1, error=1)]), correlation_id=3))


def test_rule_17_in_the_gateways_session_with_the_follower() -> None:
    """The broker sends the one entry with the error. The client gets a full response with error 6."""
    gateway = Gateway()
    _, follower = led(gateway, software="sarama")
    wants: list[Want] = [("t", at) for at in range(30)]
    asked = fetch(12, *wants, correlation=3)
    while follower.client(asked).takes_broker() == asked:
        follower.now += 0.5
        follower.broker(full(12, wants, correlation_id=3)).takes_client()
    follower.now += 0.5
    follower.broker(full(12, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    follower.client(fetch(12, *wants, correlation=4)).takes_broker()
    wrong = fetch_response(12, ("t", [entry(7, error=1)]), session_id=SESSION_ID, correlation_id=4)
    data = [entry(at, 5) if at != 7 else entry(7, error=6) for at in range(30)]
    follower.broker(wrong).to_client(fetch_response(12, ("t", data), correlation_id=4))


def test_rule_18_empty_responses_at_once_are_held_back() -> None:
    """The first is held until 10 ms after its fetch, the next ones longer, up to 50 ms."""
    gateway = Gateway()
    play, follower = led(gateway)
    play.now += AGAIN_SECONDS
    writes(play, 12, ("t", 0, 6), correlation=9)  # it was at the leader meanwhile
    answers(play, redirects(12, ("t", 0), correlation_id=9))
    for number, held in enumerate((0.01, 0.02, 0.04, 0.05, 0.05), 10):
        asked, told = fetch(12, ("t", 0, 6), correlation=number), full(12, T[:1], correlation_id=number)
        follower.client(asked).to_broker(asked)
        follower.now += 0.001
        follower.broker(told).nothing()
        follower.connection.tick(follower.now + held - 0.002)
        follower.nothing()
        follower.now += held
        follower.connection.tick(follower.now)
        follower.to_client(told)
    assert gateway.shared[0].counts["held"] == 5


def test_rule_18_an_early_response_does_not_take_the_fast_path() -> None:
    """It may be the same as earlier ones, for which the follower has waited."""
    gateway = Gateway()
    _, follower = led(gateway)
    for number in range(10, 20):
        parks(follower, 12, *T[:1], correlation=number)
    assert follower.connection.passed > 5
    for number in range(20, 30):
        asked, told = fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number)
        follower.client(asked).to_broker(asked)
        follower.now += 0.001
        follower.broker(told).nothing()
        follower.now += 0.05
        follower.connection.tick(follower.now)
        follower.to_client(told)
    assert gateway.shared[0].counts["held"] == 10


def test_a_short_wait_that_has_passed_does_not_leave_the_fast_path() -> None:
    """An empty response after all of its fetch's wait is not early, however short the wait was."""
    _, follower = led(Gateway())
    for number in range(10, 20):
        asked = fetch(12, *T[:1], correlation=number, max_wait_ms=20)
        follower.client(asked).to_broker(asked)
        follower.now += 0.02
        told = full(12, T[:1], correlation_id=number)
        follower.broker(told).to_client(told)
    assert follower.connection.passed > 15  # requests and responses


def test_rule_18_what_is_not_empty_or_not_early_passes() -> None:
    _, follower = led(Gateway())
    asked = fetch(12, *T[:1], correlation=20)
    follower.client(asked).to_broker(asked)
    told = fetch_response(12, ("t", [entry(0, 5, records=b"r" * 80)]), correlation_id=20)
    follower.broker(told).to_client(told)
    follower.exchange(fetch(12, *T[:1], correlation=21, min_bytes=0), full(12, T[:1], correlation_id=21))
    follower.client(asked).to_broker(asked)
    follower.now += 0.25
    follower.broker(full(12, T[:1], correlation_id=20)).to_client(full(12, T[:1], correlation_id=20))


def test_rule_18_what_is_held_back_comes_before_the_end() -> None:
    """A broker that closes does not take a response away. Later requests are answered after it."""
    _, follower = led(Gateway())
    asked, told = fetch(12, *T[:1], correlation=20), full(12, T[:1], correlation_id=20)
    follower.client(asked, request(12, 0, 21)).to_broker(asked, request(12, 0, 21))
    follower.broker(told, framed((21).to_bytes(4) + b"\0\0")).nothing()
    follower.connection.broker_ended()
    follower.to_client(told, framed((21).to_bytes(4) + b"\0\0"))


def test_without_a_broker_in_the_rack_nothing_is_written_until_one_comes() -> None:
    """A rack that no broker has leads nobody anywhere (rules 5 and 6)."""
    gateway = Gateway(here=())
    play = gateway.connect()
    for number in range(4):
        play.exchange(fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number))
    assert play.connection.passed > 2
    gateway.racks.nodes = (FOLLOWER,)
    for shared in gateway.shared:
        shared.changed()
    writes(play, 12, *T[:1], correlation=9)


def test_members_of_cooperative_groups_get_no_rack() -> None:
    gateway = Gateway()
    play = gateway.connect()
    for core in play.connection.cores:
        core._state.has_lane = True
    play.exchange(fetch(12, *T[:1]), full(12, T[:1]))
    assert [stage.not_written for stage in gateway.stages] == [NotWritten.MEMBER] * 2


def test_why_nothing_was_written_is_told() -> None:
    gateway = Gateway(fetch_max=12)
    play = gateway.connect()
    play.exchange(fetch(12, *T[:1]), full(12, T[:1]))
    assert [stage.not_written for stage in gateway.stages] == [NotWritten.OLD_BROKER] * 2


def test_thousands_of_clients_are_remembered_within_bounds() -> None:
    gateway = Gateway()
    shared = gateway.shared[0]
    first = shared.reader("c0", "h", "s")
    for number in range(1, 10_001):
        shared.reader(f"c{number}", "h", "s")
    assert shared.reader("c0", "h", "s") is not first


def led(gateway: Gateway, version: int = 12, software: str = "librdkafka") -> tuple[Playbook, Playbook]:
    """Return connections of a client to the leader and to the follower. t-0 has followed, t-1 has not."""
    play, follower = (gateway.connect(node_id, software=software) for node_id in (LEADER, FOLLOWER))
    writes(play, version, *T[:2], correlation=1)
    answers(play, redirects(version, T[0][:2], correlation_id=1))
    parks(follower, version, *T[:1], correlation=2)
    assert gateway.counts == {"redirects": 1, "moved": 1}
    return play, follower


def parks(play: Playbook, version: int, *wants: Want, correlation: int) -> None:
    """Play a fetch that the follower answers with nothing, after it has waited for 500 ms."""
    waits(
        play,
        fetch(version, *wants, correlation=correlation),
        full(version, wants, correlation_id=correlation),
    )


def waits(play: Playbook, asked: bytes, told: bytes) -> None:
    """Play a fetch and its response, which comes after 500 ms."""
    play.client(asked).to_broker(asked)
    play.now += 0.5
    play.broker(told).to_client(told)


def paused(play: Playbook, at: float, version: int = 12) -> None:
    """Check that no fetch gets a rack for `PAUSE_SECONDS`, and that fetches get it again afterwards."""
    for number, seconds in enumerate((0.0, 1.0, PAUSE_SECONDS - 1.0), 20):
        play.now = at + seconds
        writes(play, version, T[1], rack="", correlation=number)
        answers(play, full(version, [T[1]], correlation_id=number))
    play.now = at + PAUSE_SECONDS + 0.1
    writes(play, version, T[1], correlation=30)


def question(version: int, topic: str = "t") -> bytes:
    """Build the gateway's question which replicas are in sync."""
    by_id = version >= 13
    key = topic_id(topic) if by_id else topic.encode()
    return metadata_request(0x6667_7263, b"c", [key], by_id=by_id)


def replicas_of(version: int, *parts: Part) -> bytes:
    """Build the response to this question: the partitions of t."""
    asked = 12 if version >= 13 else 7
    told = body(asked, {"t": parts}, ids={"t": UUID(bytes=topic_id("t"))})
    return framed((0x6667_7263).to_bytes(4) + (b"\0" if asked == 12 else b"") + told)


def asks_for_replicas(play: Playbook, asked: bytes, version: int, *parts: Part) -> None:
    """Play a fetch before which the follower is asked. The follower answers the question."""
    play.connection.tick(play.now)
    play.client(asked).to_broker(question(version) + asked)
    play.broker(replicas_of(version, *parts)).to_client(b"")


OUT: Final = Part(isr=(1, 3))


@pytest.mark.parametrize("version", [12, 16])
def test_rule_29_a_client_leaves_a_follower_that_is_not_in_sync_any_more(version: int) -> None:
    """Its next response has NOT_LEADER_OR_FOLLOWER for the partition. It asks the leader, and is served."""
    gateway = Gateway()
    leader, follower = led(gateway, version)
    follower.now = leader.now = NOW + ASK_SECONDS + 1.0
    wants = T[:2]
    asked = fetch(version, *wants, correlation=3)
    asks_for_replicas(follower, asked, version, OUT, OUT)
    follower.now += 0.5
    follower.broker(full(version, wants, correlation_id=3))
    error = entry(0, -1, error=6, last_stable_offset=-1, log_start_offset=-1)
    follower.to_client(fetch_response(version, ("t", [error, entry(1, 5)]), correlation_id=3))
    assert gateway.shared[0].returns == Counter(isr=1)
    writes(leader, version, *T[:1], correlation=4)
    answers(leader, full(version, T[:1], correlation_id=4))
    parks(follower, version, T[1], correlation=5)


@pytest.mark.parametrize("part", [Part(), Part(leader=FOLLOWER, isr=(2,)), Part(error=5, leader=-1, isr=())])
def test_rule_29_a_follower_that_is_in_sync_or_leads_or_has_no_leader_goes_on(part: Part) -> None:
    gateway = Gateway()
    _, follower = led(gateway)
    follower.now = NOW + ASK_SECONDS + 1.0
    asks_for_replicas(follower, fetch(12, *T[:1], correlation=3), 12, part)
    follower.now += 0.5
    answers(follower, full(12, T[:1], correlation_id=3))
    assert gateway.shared[0].returns == Counter()


def test_rule_29_the_follower_is_asked_every_ten_seconds() -> None:
    """The fast path takes the other fetches."""
    gateway = Gateway()
    _, follower = led(gateway)
    questions = []
    for number in range(3, 63):
        asked = fetch(12, *T[:1], correlation=number)
        if follower.now >= NOW + ASK_SECONDS:
            follower.connection.tick(follower.now)
        sent = follower.client(asked).takes_broker()
        if sent != asked:
            assert sent == question(12) + asked
            questions.append(follower.now)
            follower.broker(replicas_of(12, Part())).to_client(b"")
        follower.now += 0.5
        answers(follower, full(12, T[:1], correlation_id=number))
    assert len(questions) == 3
    assert min(later - earlier for earlier, later in pairwise(questions)) >= ASK_SECONDS


def test_rule_29_in_the_clients_own_session_the_connection_ends() -> None:
    """An incremental response can't say more than the session does. The client asks the leader then."""
    gateway = Gateway()
    software = "apache-kafka-java"
    play, follower = (gateway.connect(node_id, software=software) for node_id in (LEADER, FOLLOWER))
    writes(play, 12, *T[:2], session=(0, 0), correlation=1)
    answers(play, redirects(12, T[0][:2], session_id=SESSION_ID, correlation_id=1))
    asked = fetch(12, *T[:1], session=(0, 0), correlation=2)
    follower.client(asked).to_broker(asked)
    follower.now += 0.5
    answers(follower, full(12, T[:1], session_id=SESSION_ID + 1, correlation_id=2))
    follower.now = NOW + ASK_SECONDS + 1.0
    asked = fetch(12, session=(SESSION_ID + 1, 1), correlation=3)
    asks_for_replicas(follower, asked, 12, OUT)
    follower.now += 0.5
    answers(follower, fetch_response(12, session_id=SESSION_ID + 1, correlation_id=3))
    assert [core.fault is not None for core in follower.connection.cores] == [True, True]
    assert gateway.shared[0].returns == Counter(isr=1)
