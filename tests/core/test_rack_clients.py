"""Reading from a replica that Metadata names as leader: rules 27 to 32 of docs/developers/zones.md."""

import random
from collections import Counter
from typing import Any, Final
from uuid import UUID

import pytest

from proxy.core.connection import Connection
from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.follower import ASK_SECONDS, MAX_HOLD_SECONDS, OVERDUE_SECONDS, PAUSE_SECONDS, SILENT_SECONDS
from proxy.core.rack_clients import RackClientsStage
from proxy.core.rack_leaders import TRUE_SECONDS, RackLeaders
from proxy.core.rack_reads import RackReads, RackReadsStage
from proxy.core.racks import NotWritten
from proxy.core.siblings import Siblings
from proxy.fetch_manager.cache import FetchSessionCache
from proxy.fetch_manager.manager import FetchManager
from proxy.protocol.fetch_response import MAX_ERRORS
from proxy.protocol.leader_requests import metadata_request
from proxy.protocol.replicas import read_replicas
from tests.core.replicas import Part, body
from tests.core.test_follow import play as played
from tests.core.test_rack_reads import Known
from tests.frames import Want, entry, fetch, fetch_response, framed, topic_id
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request
from tests.twin import Twin

LEADER, REPLICA = 1, 2
CLIENT: Final = "c"
HOST: Final = "h"
NOW: Final = 1000.0
IDS: Final = {name: UUID(bytes=topic_id(name)) for name in ("t", "u")}
LED_HERE: Final = Part(leader=REPLICA)
TOPICS: Final = {"t": [Part()] * 40, "u": [LED_HERE] * 2}
"""Broker 1 leads all partitions of t, and broker 2, which is in the rack, those of u."""


class Gateway:
    """The connections of one gateway in a rack with broker 2.

    Each connection is played by two cores, with and without the fast path. Each of them has a `RackLeaders`
    of its own, which it shares with its like of the other connections.
    """

    def __init__(self, *, knows: bool = True) -> None:
        self.shared = [RackLeaders(Known(REPLICA), lambda: {CLIENT}) for _ in range(2)]
        if knows:
            self.learn(TOPICS)

    def learn(self, topics: dict[str, list[Part]], now: float = NOW) -> None:
        """Let a Metadata response pass."""
        for shared in self.shared:
            shared.learn(body(12, topics, ids=IDS), 12, now)

    def connect(self, node_id: int = REPLICA, *, begins: bool = True, **options: Any) -> Playbook:
        """Return a connection of a client. It has asked for the broker's versions, if it `begins`."""
        made = 0

        def make(state: ConnectionState) -> RackClientsStage:
            nonlocal made
            made += 1
            return RackClientsStage(self.shared[made - 1], lambda: node_id, state)

        play = Playbook(first_stages=(make,), host=HOST, **options)
        play.now = NOW
        for core in cores(play):
            core.attach(lambda: None, lambda _: None)
        return play.knows() if begins else play

    @property
    def returns(self) -> Counter[str]:
        assert self.shared[0].returns == self.shared[1].returns
        return +self.shared[0].returns

    def leaders(self, now: float, *, client: str = CLIENT, host: str = HOST) -> list[int]:
        """Return the leaders of t-0 and t-1 that a client is told."""
        told = body(12, TOPICS, ids=IDS)
        both = {shared.name_replicas(told, 12, client, host, now) for shared in self.shared}
        assert len(both) == 1
        found: list[int] = read_replicas(both.pop(), 12).leader.tolist()
        return found[:2]


def parks(play: Playbook, asked: bytes, told: bytes, *, sent: bytes | None = None) -> None:
    """Play a fetch and its response, which comes after 500 ms."""
    play.client(asked).to_broker(sent or asked)
    play.now += 0.5
    play.broker(told).to_client(told)


def cores(play: Playbook) -> list[Any]:
    core = play.connection
    return list(core.cores) if isinstance(core, Twin) else [core]


REFUSALS: Final = (1, 3, 6, 9, 56, 78, 100, 103)


@pytest.mark.parametrize("chunk", [1, 7, 60, 1 << 20])
@pytest.mark.parametrize("version", [10, 11, 12, 13, 16])
def test_rule_27_an_error_of_a_follower_becomes_not_leader(version: int, chunk: int) -> None:
    """So it does wherever the bytes are cut. The client then gets true Metadata for that partition."""
    gateway = Gateway()
    play = gateway.connect()
    wants: list[Want] = [("t", at) for at in range(len(REFUSALS) + 1)]
    asked = fetch(version, *wants, correlation=3)
    play.client(asked).to_broker(asked)

    def told(*errors: int) -> bytes:
        entries = [entry(0, 5, records=bytes(40))]
        entries += [entry(at, error=error) for at, error in enumerate(errors, 1)]
        return fetch_response(version, ("t", entries), correlation_id=3)

    play.broker(told(*REFUSALS), chunk=chunk).to_client(told(*(6 for _ in REFUSALS)))
    assert gateway.returns == Counter(out_of_range=1, refused=7)
    assert gateway.leaders(NOW + TRUE_SECONDS - 1) == [REPLICA, LEADER]
    assert gateway.leaders(NOW + TRUE_SECONDS - 1, host="another") == [REPLICA, REPLICA]
    assert gateway.leaders(NOW + TRUE_SECONDS) == [REPLICA, REPLICA]


@pytest.mark.parametrize("error", [2, 5, 29, 74, 87])
def test_rule_27_other_errors_pass(error: int) -> None:
    gateway = Gateway()
    told = fetch_response(12, ("t", [entry(0, error=error)]))
    gateway.connect().exchange(fetch(12, *T[:1]), told)
    assert not gateway.returns


@pytest.mark.parametrize("error", REFUSALS)
def test_rule_27_errors_of_a_leader_pass(error: int) -> None:
    """So they do if the leader is in the rack. If the leader says 1, the client sees it."""
    gateway = Gateway()
    gateway.connect(LEADER).exchange(fetch(12, *T[:1]), fetch_response(12, ("t", [entry(0, error=error)])))
    gateway.connect().exchange(fetch(12, ("u", 0)), fetch_response(12, ("u", [entry(0, error=error)])))
    assert not gateway.returns


def test_rule_27_the_second_time_true_metadata_lasts_five_minutes() -> None:
    """A client that asks the follower once more meanwhile gets error 6 again, and no longer time."""
    gateway = Gateway()
    play = gateway.connect()
    times = [(NOW, 60.0), (NOW + 70, 300.0), (NOW + 400, 300.0), (NOW + 1100, 60.0)]
    for number, (now, seconds) in enumerate(times):
        for again in (0, 1):
            play.now = now + again
            gateway.learn(TOPICS, play.now)
            asked = fetch(12, *T[:1], correlation=2 * number + again)
            play.client(asked).to_broker(asked)
            told, given = (
                fetch_response(12, ("t", [entry(0, error=error)]), correlation_id=2 * number + again)
                for error in (1, 6)
            )
            play.broker(told).to_client(given)
        assert gateway.leaders(now + seconds - 1)[0] == LEADER
        assert gateway.leaders(now + seconds)[0] == REPLICA
    assert gateway.returns == Counter(out_of_range=4)


def test_rule_27_an_epoch_that_the_follower_does_not_know_yet_passes_twice() -> None:
    gateway = Gateway()
    play = gateway.connect()
    number = 0
    for given in ([75, 75, 6], [75, 0, 75, 75, 6]):
        for error in given:
            number += 1
            gateway.learn(TOPICS, play.now)
            asked = fetch(12, *T[:1], correlation=number)
            play.client(asked).to_broker(asked)
            play.now += 0.5
            said = 75 if error == 6 else error
            told, expected = (
                fetch_response(12, ("t", [entry(0, 5, error=each)]), correlation_id=number)
                for each in (said, error)
            )
            play.broker(told).to_client(expected)
        play.now += 1000.0
    assert gateway.returns == Counter(refused=2)


def test_rule_27_an_error_never_takes_the_fast_path() -> None:
    """An error that comes again and again in the same bytes is replaced each time."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10):
        parks(play, fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number))
    assert play.connection.passed > 5
    for number in range(10, 20):
        asked = fetch(12, *T[:1], correlation=number)
        play.client(asked).to_broker(asked)
        told, given = (
            fetch_response(12, ("t", [entry(0, error=error)]), correlation_id=number) for error in (9, 6)
        )
        play.now += 0.1
        play.broker(told).to_client(given)


def test_rule_27_if_no_leader_is_known_the_error_becomes_not_leader_once() -> None:
    """After a restart the gateway has seen no Metadata yet. The client then asks for it."""
    gateway = Gateway(knows=False)
    play = gateway.connect()
    for number, given in enumerate((6, 1, 1)):
        asked = fetch(12, *T[:1], correlation=number)
        play.client(asked)
        play.takes_broker()
        if number == 0:
            _answer_question(play, b"")
        told, expected = (
            fetch_response(12, ("t", [entry(0, error=error)]), correlation_id=number) for error in (1, given)
        )
        play.broker(told).to_client(expected)


def test_rule_27_in_the_gateways_session_with_the_follower() -> None:
    """The broker sends the one entry with the error. The client gets a full response with error 6."""
    gateway = Gateway()
    play = gateway.connect()
    wants: list[Want] = [("t", at) for at in range(30)]
    in_session(play, wants)
    play.client(fetch(12, *wants, correlation=4)).takes_broker()
    wrong = fetch_response(12, ("t", [entry(7, error=56)]), session_id=SESSION_ID, correlation_id=4)
    data = [entry(at, 5) if at != 7 else entry(7, error=6) for at in range(30)]
    play.broker(wrong).to_client(fetch_response(12, ("t", data), correlation_id=4))


def test_rule_27_in_a_session_that_the_gateway_gives_to_the_client() -> None:
    gateway = Gateway()
    play = gateway.connect(manager=manager(), core=Connection)
    play.client(fetch(12, *T[:2], session=(0, 0), correlation=2))
    play.to_broker(fetch(12, *T[:2], correlation=2))
    play.now += 0.5
    play.broker(full(12, T[:2], correlation_id=2))
    session_id = wire.decode_response(play.takes_client()[4:], 12).session_id
    play.client(fetch(12, session=(session_id, 1), correlation=3)).to_broker(fetch(12, *T[:2], correlation=3))
    wrong = fetch_response(12, ("t", [entry(0, error=1), entry(1, 5)]), correlation_id=3)
    given = fetch_response(12, ("t", [entry(0, error=6)]), session_id=session_id, correlation_id=3)
    play.broker(wrong).to_client(given)
    assert +gateway.shared[0].returns == Counter(out_of_range=1)


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 30])
def test_rule_27_with_more_errors_than_are_noted_the_connection_ends(chunk: int) -> None:
    """Otherwise the last ones would reach the client."""
    play = Gateway().connect(core=Connection)
    play.client(asked := fetch(12, *T[:1])).to_broker(asked)
    told = fetch_response(12, ("t", [entry(at, error=1) for at in range(MAX_ERRORS + 1)]))
    play.broker(told, chunk=chunk)
    assert play.connection.fault is not None
    assert (1).to_bytes(2) + b"\xff" * 24 not in play.takes_client()


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


OUT: Final = TOPICS | {"t": [Part(), Part(isr=(1, 3)), *TOPICS["t"][2:]]}
"""Broker 2 is out of sync for t-1."""


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


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("version", [10, 12, 13])
def test_rule_29_a_client_leaves_a_replica_that_is_out_of_sync(version: int, chunk: int) -> None:
    """Its next fetch is answered at once, with an error for this partition, and without its records. Once."""
    gateway = Gateway()
    play = gateway.connect(sessions=SessionLimits(max_sessions=0))
    wants: list[Want] = [("t", 0), ("t", 1), ("u", 0)]
    for number in range(8):
        parks(play, fetch(version, *wants, correlation=number), full(version, wants, correlation_id=number))
    gateway.learn(OUT, play.now)
    play.client(fetch(version, *wants, correlation=10))
    play.to_broker(fetch(version, *wants, correlation=10, max_wait_ms=0, max_bytes=1))

    def told(second: wire.PartitionData) -> bytes:
        rest = ("u", [entry(0, 7, records=b"r" * 30)])
        return fetch_response(version, ("t", [entry(0, 5), second]), rest, correlation_id=10)

    with_records = told(entry(1, 9, records=b"s" * 300))
    play.broker(with_records, chunk=chunk).to_client(told(entry(1, error=6)))
    assert gateway.leaders(play.now) == [REPLICA, LEADER]
    assert gateway.returns == Counter(isr=1)
    for number in range(11, 15):
        parks(play, fetch(version, *wants, correlation=number), full(version, wants, correlation_id=number))
    gateway.learn(TOPICS, play.now)
    parks(play, fetch(version, *wants, correlation=15), full(version, wants, correlation_id=15))
    gateway.learn(OUT, play.now)
    play.client(fetch(version, *wants, correlation=16))
    play.to_broker(fetch(version, *wants, correlation=16, max_wait_ms=0, max_bytes=1))


def test_rule_29_a_response_that_has_begun_is_not_changed() -> None:
    """The client may send its next fetch before the response is complete."""
    gateway = Gateway()
    play = gateway.connect(sessions=SessionLimits(max_sessions=0))
    wants: list[Want] = [("t", 0), ("t", 1)]
    parks(play, fetch(12, *wants, correlation=2), full(12, wants, correlation_id=2))
    told = fetch_response(12, ("t", [entry(0, 5), entry(1, 9, records=b"s" * 300)]), correlation_id=3)
    play.client(asked := fetch(12, *wants, correlation=3)).to_broker(asked)
    play.broker(told[:150]).to_client(told[:150], more=True)
    gateway.learn(OUT, play.now)
    play.client(fetch(12, *wants, correlation=4))
    play.to_broker(fetch(12, *wants, correlation=4, max_wait_ms=0, max_bytes=1), more=True)
    play.broker(told[150:]).to_client(told[150:])
    left = fetch_response(12, ("t", [entry(0, 5), entry(1, error=6)]), correlation_id=4)
    play.broker(full(12, wants, correlation_id=4)).to_client(left)


def test_rule_29_metadata_without_topic_ids_is_of_the_same_topics() -> None:
    """Another client asks in an older version. The client that fetches by id leaves all the same."""
    gateway = Gateway()
    play = gateway.connect(sessions=SessionLimits(max_sessions=0))
    wants: list[Want] = [("t", 0), ("t", 1)]
    parks(play, fetch(13, *wants, correlation=2), full(13, wants, correlation_id=2))
    for shared in gateway.shared:
        shared.learn(body(7, OUT), 7, play.now)
    play.client(fetch(13, *wants, correlation=3))
    play.to_broker(fetch(13, *wants, correlation=3, max_wait_ms=0, max_bytes=1))


def test_rule_29_in_the_gateways_session_with_the_follower() -> None:
    gateway = Gateway()
    play = gateway.connect()
    wants: list[Want] = [("t", at) for at in range(30)]
    in_session(play, wants)
    gateway.learn(OUT, play.now)
    play.client(fetch(12, *wants, correlation=4))
    play.to_broker(asks(12, [], (SESSION_ID, 1), correlation=4, max_wait_ms=0, max_bytes=1))
    play.broker(fetch_response(12, session_id=SESSION_ID, correlation_id=4))
    data = [entry(at, 5) if at != 1 else entry(1, error=6) for at in range(30)]
    play.to_client(fetch_response(12, ("t", data), correlation_id=4))


def test_rule_29_in_the_clients_own_session_the_connection_ends_if_there_is_no_entry() -> None:
    """A response can't say more than the broker's session does. The client asks for Metadata then as well."""
    gateway = Gateway()
    play = gateway.connect()
    parks(
        play,
        fetch(12, *T[:2], session=(0, 0), correlation=2),
        full(12, T[:2], session_id=SESSION_ID, correlation_id=2),
    )
    gateway.learn(OUT, play.now)
    play.client(fetch(12, session=(SESSION_ID, 1), correlation=3))
    play.to_broker(fetch(12, session=(SESSION_ID, 1), correlation=3, max_wait_ms=0, max_bytes=1))
    told = fetch_response(12, session_id=SESSION_ID, correlation_id=3)
    play.broker(told).to_client(told)
    assert [core.fault is not None for core in play.connection.cores] == [True, True]
    assert gateway.leaders(play.now) == [REPLICA, LEADER]


def test_rule_29_a_partition_that_the_clients_own_session_has_forgotten_ends_nothing() -> None:
    gateway = Gateway()
    play = gateway.connect()
    parks(
        play,
        fetch(12, *T[:2], session=(0, 0), correlation=2),
        full(12, T[:2], session_id=SESSION_ID, correlation_id=2),
    )
    asked = fetch(12, session=(SESSION_ID, 1), forget=[("t", 1)], correlation=3)
    parks(play, asked, fetch_response(12, session_id=SESSION_ID, correlation_id=3))
    gateway.learn(OUT, play.now)
    asked = fetch(12, session=(SESSION_ID, 2), correlation=4)
    parks(play, asked, fetch_response(12, session_id=SESSION_ID, correlation_id=4))
    assert not gateway.returns


@pytest.mark.parametrize("version", [12, 13])
def test_rule_29_where_no_metadata_passes_the_broker_is_asked_every_ten_seconds(version: int) -> None:
    """It is asked right before a fetch of the client, for the topics that another broker leads there."""
    gateway = Gateway()
    play = gateway.connect()
    questions = 0
    for number in range(70):
        asked, told = fetch(version, *T[:1], correlation=number), full(version, T[:1], correlation_id=number)
        play.client(asked)
        sent = play.takes_broker()
        if sent != asked:
            questions += 1
            assert sent == question(version) + asked
            _answer_question(play, body(12, OUT, ids=IDS) if version == 13 else body(7, OUT))
        play.now += 0.5
        play.broker(told).to_client(told)
        play.connection.tick(play.now)
    assert questions == 3
    assert play.connection.passed > 50
    other = fetch(version, ("t", 1), correlation=100)
    play.now += ASK_SECONDS
    play.connection.tick(play.now)
    sent = play.client(other).takes_broker()
    assert sent.endswith(fetch(version, ("t", 1), correlation=100, max_wait_ms=0, max_bytes=1))


def question(version: int) -> bytes:
    by_id = version >= 13
    topic = topic_id("t") if by_id else b"t"
    return metadata_request(0x6667_7263, b"c", [topic], by_id=by_id)


def _answer_question(play: Playbook, told: bytes) -> None:
    """Let the broker answer the gateway's question for Metadata. The client gets nothing of it."""
    head = (0x6667_7263).to_bytes(4)
    flexible = told.count(topic_id("t")) > 0
    play.broker(framed(head + (b"\0" if flexible else b"") + told)).nothing()


def test_rule_30_empty_responses_at_once_are_held_back() -> None:
    """A client that comes from the leader stands above the follower's high watermark."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10):
        parks(play, fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number))
    for number in range(10, 15):
        asked, told = fetch(12, ("t", 0, 6), correlation=number), full(12, T[:1], correlation_id=number)
        play.client(asked).to_broker(asked)
        play.now += 0.001
        play.broker(told).nothing()
        play.now += MAX_HOLD_SECONDS
        play.connection.tick(play.now)
        play.to_client(told)
    assert [shared.held for shared in gateway.shared] == [5, 5]


def test_rule_30_a_leader_in_the_rack_may_be_early() -> None:
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10):
        told = full(12, [("u", 0)], correlation_id=number)
        play.exchange(fetch(12, ("u", 0), correlation=number), told)
    assert [shared.held for shared in gateway.shared] == [0, 0]


def test_rule_30_in_a_session_that_the_gateway_gives_to_the_client() -> None:
    gateway = Gateway()
    play = gateway.connect(manager=manager(), core=Connection)
    play.client(fetch(12, *T[:2], session=(0, 0), correlation=2)).to_broker(fetch(12, *T[:2], correlation=2))
    play.now += 0.5
    play.broker(full(12, T[:2], correlation_id=2))
    session_id = wire.decode_response(play.takes_client()[4:], 12).session_id
    play.client(fetch(12, session=(session_id, 1), correlation=3)).to_broker(fetch(12, *T[:2], correlation=3))
    play.broker(full(12, T[:2], correlation_id=3)).nothing()
    play.now += MAX_HOLD_SECONDS
    play.connection.tick(play.now)
    play.to_client(fetch_response(12, session_id=session_id, correlation_id=3))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize(("epoch", "passes"), [(4, False), (5, False), (6, True)])
def test_rule_31_a_leader_of_no_newer_epoch_is_left_out(epoch: int, chunk: int, *, passes: bool) -> None:
    """The follower names the leader whose place Metadata gave to it (KIP-951). Only a newer one is news."""
    play = Gateway().connect()
    asked = fetch(16, *T[:1], correlation=3)
    play.client(asked).to_broker(asked)

    def told(error: int, leader: tuple[int, int]) -> bytes:
        hint = b"".join(each.to_bytes(4, signed=True) for each in leader) + b"\0"
        data = [entry(0, error=error, tags=((1, hint),)), entry(1, 5, records=bytes(20))]
        return fetch_response(16, ("t", data), correlation_id=3)

    given = (LEADER, epoch) if passes else (-1, -1)
    play.broker(told(6, (LEADER, epoch)), chunk=chunk).to_client(told(6, given))


def test_rule_32_the_rack_is_not_written_for_such_clients() -> None:
    reads = RackReads("R2", Known(REPLICA), lambda client_id: client_id == CLIENT)
    versions = BrokerVersions()
    stages: list[RackReadsStage] = []

    def make(state: ConnectionState) -> RackReadsStage:
        stages.append(RackReadsStage(reads, lambda: LEADER, versions, state))
        return stages[-1]

    play = Playbook(stages=(make,)).knows()
    play.exchange(fetch(12, *T[:1]), full(12, T[:1]))
    assert [stage.not_written for stage in stages] == [NotWritten.NAMED] * 2


def test_rule_30_a_response_is_held_back_once() -> None:
    """After a reload, a leader may lead a client here that was named before."""
    gateway = Gateway()
    reads = RackReads("R2", Known(REPLICA))
    stages: list[RackReadsStage] = []

    def make(state: ConnectionState) -> RackReadsStage:
        stages.append(RackReadsStage(reads, lambda: REPLICA, BrokerVersions(), state))
        return stages[-1]

    play = gateway.connect(stages=(make,))
    parks(play, fetch(12, *T[:1]), full(12, T[:1]))
    for stage in stages:
        stage.follower.watch()
    asked, told = fetch(12, ("t", 0, 6), correlation=2), full(12, T[:1], correlation_id=2)
    play.client(asked).to_broker(asked)
    play.now += 0.001
    play.broker(told).nothing()
    for _ in range(3):
        play.now += MAX_HOLD_SECONDS
        play.connection.tick(play.now)
    play.to_client(told)
    parks(play, fetch(12, *T[:1], correlation=3), full(12, T[:1], correlation_id=3))


@pytest.mark.parametrize("client", ["another", None])
def test_other_clients_are_left_alone(client: str | None) -> None:
    """Their errors, early responses and late ones are their own affair, also at a broker in the rack."""
    gateway = Gateway()
    play = Playbook(first_stages=(), host=HOST)
    play = gateway.connect()
    for core in play.connection.cores:
        core._state.client_id = client or ""
    told = fetch_response(12, ("t", [entry(0, error=1)]))
    play.exchange(fetch(12, *T[:1], client=client), told)
    play.client(fetch(12, *T[:1], client=client)).to_broker(fetch(12, *T[:1], client=client))
    play.connection.tick(NOW + 60)
    assert [core.fault for core in play.connection.cores] == [None, None]
    assert not gateway.returns


def test_members_of_cooperative_groups_are_left_alone() -> None:
    gateway = Gateway()
    play = gateway.connect()
    for core in play.connection.cores:
        core._state.has_lane = True
    play.exchange(fetch(12, *T[:1]), fetch_response(12, ("t", [entry(0, error=1)])))


def test_follow_leader_does_not_follow_a_replica() -> None:
    """Its error 6 passes: Metadata leads the client. The client has a connection to the leader."""
    siblings, shared = Siblings(), Gateway().shared[0]

    def make(state: ConnectionState) -> RackClientsStage:
        return RackClientsStage(shared, lambda: REPLICA, state)

    played(siblings, LEADER, host=HOST)
    play = played(siblings, REPLICA, host=HOST, first_stages=(make,))
    play.exchange(fetch(12, *T[:1]), fetch_response(12, ("t", [entry(0, error=6)])))
    assert +shared.returns == Counter(refused=1)


def test_the_steady_path_is_the_fast_path() -> None:
    """Fetches of a client at its replica take it, with records and without."""
    play = Gateway().connect()
    for number in range(50):
        asked = fetch(12, ("t", 0, number), correlation=number)
        told = fetch_response(12, ("t", [entry(0, number, records=bytes(90))]), correlation_id=number)
        play.exchange(asked, told)
    assert play.connection.passed > 90


def in_session(play: Playbook, wants: list[Want]) -> None:
    """Let the client fetch until the broker has given the gateway a session."""
    asked = fetch(12, *wants, correlation=3)
    while play.client(asked).takes_broker() == asked:
        play.now += 0.5
        play.broker(full(12, wants, correlation_id=3)).takes_client()
    play.now += 0.5
    play.broker(full(12, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()


def manager() -> FetchManager:
    return FetchManager(FetchSessionCache(random.Random(0).randint, slots=10), asks_broker=False)
