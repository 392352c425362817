"""Reading from a replica: rules 9, 11 and 13 of proxy/features/racks/README.md."""

from collections import Counter
from typing import Final

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.core.events import Fault
from proxy.features.racks.distrust import AGAIN_SECONDS, AWAY_SECONDS, LEAVES_SECONDS, TRUE_SECONDS
from proxy.features.racks.rack_clients import ASK_SECONDS
from proxy.features.racks.racks import BrokerRacks
from proxy.protocol.fetch_response import MAX_ERRORS
from tests.features.racks.replica import (
    HOST,
    IDS,
    LEADER,
    NOW,
    REPLICA,
    TOPICS,
    Gateway,
    answers_question,
    cores,
    in_session,
    parks,
    question,
)
from tests.frames import Want, entry, fetch, fetch_response
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, T, asks, full, request
from tests.protocol.replicas import Part, body

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


def fails(play: Playbook, number: int, error: int, given: int) -> None:
    """Play a fetch of t-0. The replica responds after 500 ms with `error`, and the client gets `given`."""
    asked = fetch(12, *T[:1], correlation=number)
    play.client(asked).to_broker(asked)
    play.now += 0.5
    told, shown = (
        fetch_response(12, ("t", [entry(0, 5, error=code)]), correlation_id=number) for code in (error, given)
    )
    play.broker(told).to_client(shown)


def test_rule_27_the_second_time_true_metadata_lasts_five_minutes() -> None:
    """A client that asks the follower once more meanwhile gets error 6 again, and no longer time."""
    gateway = Gateway()
    play = gateway.connect()
    times = [(NOW, 60.0), (NOW + 70, 300.0), (NOW + 400, 300.0), (NOW + 1100, 60.0)]
    for number, (now, seconds) in enumerate(times):
        for again in (0, 1):
            play.now = now + again - 0.5
            gateway.learn(TOPICS, play.now)
            fails(play, 2 * number + again, 1, 6)
        assert gateway.leaders(now + seconds - 1)[0] == LEADER
        assert gateway.leaders(now + seconds)[0] == REPLICA
    assert gateway.returns == Counter(out_of_range=4)


@pytest.mark.parametrize("asks", [True, False])
def test_rule_27_who_is_here_again_without_having_asked_has_to_connect_anew(asks: bool) -> None:
    """Another gateway at the same address has led it here again. Its connection may reach that one.

    If the client has asked this gateway, the answer is only late. Another connection of the client, which has
    not been sent away yet, goes on.
    """
    gateway = Gateway()
    play, other = gateway.connect(), gateway.connect()
    for number, now in enumerate((NOW, NOW + 1.0, NOW + AWAY_SECONDS - 0.5)):
        play.now = now
        fails(play, number, 1, 6)
    other.now = NOW + AWAY_SECONDS + 1.0
    fails(other, 0, 1, 6)
    if asks:
        other.client(request(3, 7, 9, b"\0\0\0\0\0", client=b"c")).takes_broker()
    play.now = NOW + AWAY_SECONDS + 1.5
    play.client(asked := fetch(12, *T[:1], correlation=9)).to_broker(asked)
    play.broker(fetch_response(12, ("t", [entry(0, error=1)]), correlation_id=9))
    assert [core.fault is None for core in cores(play)] == [asks] * 2
    assert [core.fault for core in cores(other)] == [None] * 2


def test_rule_27_a_connection_that_ends_for_several_partitions_has_one_fault() -> None:
    """Each fault is logged, and counts as one connection that has ended."""
    play = Gateway().connect()
    for number, now in enumerate((NOW, NOW + AWAY_SECONDS + 1.0)):
        play.now = now
        play.client(asked := fetch(12, *T[:2], correlation=number)).to_broker(asked)
        refused = [entry(0, error=1), entry(1, error=1)]
        play.broker(fetch_response(12, ("t", refused), correlation_id=number)).takes_client()
    assert len(play.events(Fault)) == 1


def test_rule_27_after_its_minute_a_client_is_sent_away_once_more() -> None:
    gateway = Gateway()
    play = gateway.connect()
    for number in range(3):
        gateway.learn(TOPICS, play.now)
        fails(play, number, 1, 6)
        play.now += AGAIN_SECONDS


def test_rule_27_while_the_racks_are_unknown_the_broker_is_asked() -> None:
    """Another gateway has named the replica, so its Metadata have not passed here."""
    gateway = Gateway(racks=lambda: BrokerRacks("R2"), knows=False)
    play = gateway.connect()
    asked = fetch(12, *T[:1], correlation=3)
    play.client(asked).to_broker(question(12) + asked)
    answers_question(play, body(7, TOPICS))
    told, given = (fetch_response(12, ("t", [entry(0, error=code)]), correlation_id=3) for code in (1, 6))
    play.broker(told).to_client(given)
    assert gateway.leaders(play.now) == [LEADER, REPLICA]


def test_rule_27_an_epoch_that_the_follower_does_not_know_yet_passes_twice() -> None:
    gateway = Gateway()
    play = gateway.connect()
    number = 0
    for given in ([75, 75, 6], [75, 0, 75, 75, 6]):
        for error in given:
            number += 1
            gateway.learn(TOPICS, play.now)
            fails(play, number, 75 if error == 6 else error, error)
        play.now += 1000.0
    assert gateway.returns == Counter(refused=2)


def test_rule_27_an_error_never_takes_the_fast_path() -> None:
    """An error that comes again and again in the same bytes is replaced each time."""
    gateway = Gateway()
    play = gateway.connect()
    for number in range(10):
        parks(play, fetch(12, *T[:1], correlation=number), full(12, T[:1], correlation_id=number))
    assert play.connection.passed > 5
    for number in range(10, 15):
        fails(play, number, 9, 6)


def test_rule_27_if_no_leader_is_known_the_error_becomes_not_leader_once() -> None:
    """After a restart the gateway has seen no Metadata yet. The client then asks for it."""
    gateway = Gateway(knows=False)
    play = gateway.connect()
    for number, given in enumerate((6, 1, 1)):
        asked = fetch(12, *T[:1], correlation=number)
        play.client(asked)
        play.takes_broker()
        if number == 0:
            answers_question(play, b"")
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


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 30])
def test_rule_27_with_more_errors_than_are_noted_the_connection_ends(chunk: int) -> None:
    """Otherwise the last ones would reach the client."""
    play = Gateway().connect(core=Connection)
    play.client(asked := fetch(12, *T[:1])).to_broker(asked)
    told = fetch_response(12, ("t", [entry(at, error=1) for at in range(MAX_ERRORS + 1)]))
    play.broker(told, chunk=chunk)
    assert play.connection.state.fault is not None
    assert (1).to_bytes(2) + b"\xff" * 24 not in play.takes_client()


OUT: Final = TOPICS | {"t": [Part(), Part(isr=(1, 3)), *TOPICS["t"][2:]]}
"""Broker 2 is out of sync for t-1."""


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


def test_rule_29_a_client_that_reads_on_gets_the_error_again_after_ten_seconds() -> None:
    """Its Metadata may have failed. It would read old records without an end."""
    gateway = Gateway()
    play = gateway.connect(sessions=SessionLimits(max_sessions=0))
    left = fetch_response(12, ("t", [entry(0, 5), entry(1, error=6)]), correlation_id=9)
    for _ in range(2):
        gateway.learn(OUT, play.now)
        play.client(fetch(12, *T[:2], correlation=9))
        play.to_broker(fetch(12, *T[:2], correlation=9, max_wait_ms=0, max_bytes=1))
        play.broker(full(12, T[:2], correlation_id=9)).to_client(left)
        told = play.now
        for number in range(19):
            parks(play, fetch(12, *T[:2], correlation=number), full(12, T[:2], correlation_id=number))
        play.now = told + LEAVES_SECONDS
        play.connection.tick(play.now)
    assert gateway.returns == Counter(isr=1)


def test_rule_29_the_error_comes_again_though_other_partitions_leave_in_between() -> None:
    """Each partition has its own ten seconds."""
    gateway = Gateway()
    play = gateway.connect(sessions=SessionLimits(max_sessions=0))
    wants: list[Want] = [("t", at) for at in range(4)]
    told: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for second in range(24):
        play.now = NOW + second
        out = {at for at in told if second >= 7 * (at - 1)}
        parts = [Part(isr=(1, 3)) if at in out else Part() for at in range(40)]
        gateway.learn(TOPICS | {"t": parts}, play.now)
        play.client(fetch(12, *wants, correlation=second, min_bytes=0)).takes_broker()
        play.broker(full(12, wants, correlation_id=second))
        data = wire.decode_response(play.takes_client()[4:], 12).topics[0].partitions
        for at in (each.partition_index for each in data if each.error_code == 6):
            told[at].append(second)
    assert told == {1: [0, 10, 20], 2: [7, 17], 3: [14]}


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
            answers_question(play, body(12, OUT, ids=IDS) if version == 13 else body(7, OUT))
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


@pytest.mark.parametrize("client", ["another", None])
def test_other_clients_are_left_alone(client: str | None) -> None:
    """Their errors, early responses and late ones are their own affair, also at a broker in the rack."""
    gateway = Gateway()
    play = Playbook(stages=(), host=HOST)
    play = gateway.connect()
    for core in play.connection.cores:
        core.state.client_id = client or ""
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
        core.state.gets_part = True
    play.exchange(fetch(12, *T[:1]), fetch_response(12, ("t", [entry(0, error=1)])))


def test_the_steady_path_is_the_fast_path() -> None:
    """Fetches of a client at its replica take it, with records and without."""
    play = Gateway().connect()
    for number in range(50):
        asked = fetch(12, ("t", 0, number), correlation=number)
        told = fetch_response(12, ("t", [entry(0, number, records=bytes(90))]), correlation_id=number)
        play.exchange(asked, told)
    assert play.connection.passed > 90
