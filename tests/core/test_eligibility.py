"""Each reason for which a fetch does not use a session of the gateway.

The reasons are asked alone first, then played on a connection: unsuitable clients or brokers, and clients'
own sessions.
"""

from typing import Any, Final

import pytest

from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.savings import PLAIN_PER_LOST
from proxy.protocol.api_versions import Features
from proxy.protocol.fetch_request import FetchRequest
from proxy.session.decision import FOR_GOOD, Reason
from proxy.session.handler import FetchSessionHandler
from proxy.session.state import SessionState
from tests.frames import Want, entry, fetch, fetch_response, parsed
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, T, asks, full, passes, request, split

NEW = Features(fetch_max=18, offset_fetch_max=10, find_coordinator_max=6)
OF_2_4 = Features(fetch_max=11, offset_fetch_max=6, find_coordinator_max=3)
OF_1_0 = Features(fetch_max=6, offset_fetch_max=3, find_coordinator_max=1)


def plain(version: int = 16, session: tuple[int, int] = (0, -1), **fields: Any) -> FetchRequest:
    return parsed(fetch(version, ("t", 0), ("t", 1), session=session, **fields))


def record(features: Features | None = NEW, **switch: Any) -> Eligibility:
    found = Eligibility(SessionLimits(max_sessions=5, **switch))
    found.features = features
    return found


def against(
    found: Eligibility,
    request: FetchRequest,
    handler: FetchSessionHandler | None = None,
    *,
    busy: bool = False,
) -> Reason | None:
    handler = handler or FetchSessionHandler()
    if busy:
        handler.state = SessionState.FETCHING
    found.observe(request)
    return found.against(request, "c", handler)


def test_a_plain_fetch_may() -> None:
    assert against(record(), plain()) is None
    assert against(record(), plain(session=(-1, -1))) is None
    assert against(record(OF_2_4), plain(11)) is None


@pytest.mark.parametrize("session", [(5, 1), (5, -1), (5, 0), (0, 1), (0, -2), (-5, 0), (-1, 3)])
def test_native_once_is_native_for_good(session: tuple[int, int]) -> None:
    found = record()
    assert against(found, plain(session=session)) is Reason.NATIVE
    assert against(found, plain()) is Reason.NATIVE


def test_0_0_is_native_until_a_session_goes_unused() -> None:
    found, flood = record(), plain(session=(0, 0))
    for _ in range(2):
        assert not found.observe(flood)
        assert found.against(flood, "c", FetchSessionHandler()) is Reason.NATIVE
    found.given = 31
    assert found.observe(flood)
    assert found.against(flood, "c", FetchSessionHandler()) is None
    assert (found.floods, found.observe(flood)) == (True, False)


def test_asking_what_speaks_against_a_fetch_changes_nothing() -> None:
    found, handler = record(), FetchSessionHandler()
    found.given = 31
    for asked in (plain(session=(0, 0)), plain(session=(5, 1)), plain()):
        found.against(asked, "c", handler)
        assert (found.floods, handler.session_id, handler.state) == (False, 0, SessionState.NONE)
    assert found.against(plain(), "c", handler) is None


def test_the_switch_for_all_for_one_and_for_good() -> None:
    for found in (record(on=False), record(off_for=frozenset({"c"}))):
        assert against(found, plain()) is Reason.SESSIONS_OFF
        assert against(found, plain(session=(5, 1))) is Reason.NATIVE
    found = record()
    found.never = Reason.UNCACHED_ERRORS
    assert against(found, plain()) is Reason.UNCACHED_ERRORS
    assert set(FOR_GOOD) == {Reason.SESSIONS_OFF, Reason.UNCACHED_ERRORS, Reason.LEFT_OUT}


def test_each_way_not_to_be_a_plain_fetch_is_a_reason() -> None:
    views = [
        parsed(fetch(11, ("t", 0), replica_id=1)),
        parsed(fetch(16, ("t", 0), tags=((1, bytes(13)),))),
        parsed(fetch(16, ("t", 0), tags=((77, b""),))),
        parsed(fetch(16, ("t", 0), forget=[("u", 1)])),
    ]
    assert [Reason(view.unsupported_reason) for view in views] == [
        Reason.NOT_A_CONSUMER,
        Reason.NOT_A_CONSUMER,
        Reason.TAGS,
        Reason.FORGETS,
    ]


def test_more_than_a_consumers_fetch() -> None:
    assert against(record(), plain(11, replica_id=1)) is Reason.NOT_A_CONSUMER
    assert against(record(), plain(16, tags=((1, bytes(13)),))) is Reason.NOT_A_CONSUMER
    assert against(record(), plain(16, tags=((77, b""),))) is Reason.TAGS


def test_one_partition_only_beside_a_session() -> None:
    found, handler = record(), FetchSessionHandler()
    one = parsed(fetch(16, ("t", 0)))
    assert against(found, one) is Reason.ONE_PARTITION
    handler.session_id, handler.epoch = 5, 1
    assert against(found, one, handler) is None
    assert against(found, parsed(fetch(16)), handler) is Reason.ONE_PARTITION


def test_what_the_broker_lacks() -> None:
    assert against(record(None), plain()) is None  # not known yet: asked when a session would be
    handler = FetchSessionHandler()
    handler.session_id, handler.epoch = 5, 1
    assert against(record(None), plain(), handler) is Reason.BROKER_NOT_KNOWN
    assert against(record(OF_1_0), plain(6)) is Reason.NO_SESSIONS
    fenced: dict[str, Any] = {"values": {"current_leader_epoch": 0}}
    assert against(record(OF_2_4), plain(10, **fenced)) is Reason.LEADER_EPOCHS
    assert against(record(NEW), plain(10, **fenced)) is None
    assert against(record(OF_2_4), plain(8)) is None


def test_not_now() -> None:
    found = record()
    assert against(found, plain(), busy=True) is Reason.BUSY
    found.large = True
    assert against(found, plain()) is Reason.CATCHING_UP
    found.large = False
    found.savings.add(-1)
    assert against(found, plain()) is Reason.RESTING
    found.savings.passed(PLAIN_PER_LOST, 0)
    assert against(found, plain()) is None


def test_slots_are_bounded() -> None:
    """Trap 22: the number of sessions is limited, because the broker's session slots are shared."""
    sessions = SessionLimits(max_sessions=2)
    assert [sessions.reserve() for _ in range(3)] == [True, True, False]
    sessions.release()
    assert (sessions.used, sessions.reserve(), sessions.reserve()) == (1, True, False)
    assert repr(sessions) == "<SessionLimits used=2/2 on=True>"


def test_no_slots_is_no_sessions() -> None:
    assert not SessionLimits(max_sessions=0).reserve()


def test_the_switch_for_all_and_by_client_id() -> None:
    sessions = SessionLimits(max_sessions=1, off_for=frozenset({"old"}))
    assert (sessions.allowed("old"), sessions.allowed("new")) == (False, True)
    sessions.reload(on=False)
    assert not sessions.allowed("new")
    sessions.reload()
    assert sessions.allowed("old")


def test_plans_are_outdated_by_a_reload() -> None:
    sessions = SessionLimits(max_sessions=1)
    before = sessions.generation
    sessions.reload()
    assert sessions.generation > before


ONE: Final[list[Want]] = [("t", 0)]
TWICE: Final[list[Want]] = [("t", 0), ("u", 0), ("t", 0)]
NOT_PLAIN: Final = "partitions listed twice or too sparse"


@pytest.mark.parametrize(
    ("release", "version", "wants", "fields", "reason"),
    [
        *(("4.3", version, ONE, {}, "one partition") for version in (4, 11, 16)),
        ("4.3", 16, [], {}, "one partition"),
        *(("1.0", version, T, {}, "broker without sessions") for version in (4, 5, 6)),
        ("4.3", 11, T, {"replica_id": 1}, "not a consumer"),
        ("4.3", 12, T, {"replica_id": -2}, "not a consumer"),
        ("4.3", 16, T, {"tags": ((1, bytes(13)),)}, "not a consumer"),
        ("4.3", 12, T, {"tags": ((0, b"\x02c"),)}, "tags"),
        ("4.3", 16, T, {"tags": ((77, b""),)}, "tags"),
        ("4.3", 16, TWICE, {}, NOT_PLAIN),
        ("4.3", 11, T, {"session": (0, 0)}, "native session"),
    ],
)
def test_these_fetches_pass_as_they_are(
    release: str, version: int, wants: list[Want], fields: dict[str, Any], reason: str
) -> None:
    """Case 90, traps 1, 2 and 48: the broker has no sessions, or the fetch is no plain one of a consumer.

    Case 89: a client may request a session with every fetch, if each response has session id 0. It is no
    flood, because a client with native sessions asks again, too.
    """
    play = Playbook().knows(release)
    for number in range(1, 8):
        passes(play, version, wants, number, **fields)
    assert play.sessions.used == 0
    assert play.connection.tally.passthrough == {reason: 7}


@pytest.mark.parametrize(
    ("wants", "reason"),
    [([], "one partition"), ([*T, ("t", 0)], NOT_PLAIN), ([*T, ("t", 2**31 - 1)], NOT_PLAIN)],
)
def test_these_pass_beside_a_session(wants: list[Want], reason: str) -> None:
    """Trap 48: one that lists a partition twice, or one out of all bounds, leaves the session as it was."""
    play = Playbook().established(16, T)
    passes(play, 16, wants, 9)
    assert (play.connection.session_id, play.connection.session_partitions) == (SESSION_ID, 3)
    assert play.connection.tally.passthrough[reason] == 1


@pytest.mark.parametrize("version", [0, 3])
def test_old_versions_pass_as_they_are(version: int) -> None:
    """Case 75, trap 3: for v0 to v3 the broker converts the records."""
    play = Playbook().knows("3.9")
    for number in range(1, 6):
        asked = fetch(version, *T, correlation=number)
        told = fetch_response(
            version, ("t", [entry(0, 5, last_stable_offset=-1, log_start_offset=-1)]), correlation_id=number
        )
        play.exchange(asked, told)
    assert play.connection.tally.passthrough["not looked into"] == 5


@pytest.mark.parametrize("version", [19, 99])
def test_versions_beyond_what_is_known_pass_as_they_are(version: int) -> None:
    """Trap 1: a fetch with a version above the last known one is forwarded unchanged."""
    play = Playbook().knows()
    for number in range(1, 6):
        play.exchange(
            request(1, version, number, b"\0whatever"), request(1, 0, 0)[:4] + number.to_bytes(4) + bytes(7)
        )


@pytest.mark.parametrize(
    ("release", "passed"), [("2.1", True), ("2.4", True), ("2.5", False), ("4.3", False)]
)
def test_fencing_needs_no_session_below_2_5(release: str, passed: bool) -> None:
    """Trap 3, KAFKA-9338: below Kafka 2.5, a session would forget current_leader_epoch."""
    play = Playbook().knows(release)
    values = {"current_leader_epoch": 4}
    for number in range(1, 3):
        passes(play, 10, T, number, values=values)
    play.client(fetch(10, *T, correlation=3, values=values))
    sent = asks(10, T, (0, 0), correlation=3, values=values)
    play.to_broker(fetch(10, *T, correlation=3, values=values) if passed else sent)


@pytest.mark.parametrize("release", ["2.1", "2.4"])
def test_old_brokers_without_leader_epochs_do_have_sessions(release: str) -> None:
    Playbook().established(10, T, release=release)
    Playbook().established(8, T, release=release)


@pytest.mark.parametrize("tag", [(0, bytes(16)), (1, bytes(8)), (9, b"x")])
def test_tags_of_entries_pass_as_they_are(tag: tuple[int, bytes]) -> None:
    """Case 90, trap 1: KRaft puts replica directory ids and high watermarks into these tags."""
    part = wire.FetchPartition(partition=0, fetch_offset=1, tags=(tag,))
    other = wire.FetchPartition(partition=1, fetch_offset=1)
    topic = wire.FetchTopic(topic_id=bytes(15) + b"\1", partitions=(part, other))
    play = Playbook().knows()
    for number in range(1, 6):
        content = wire.encode_request(wire.FetchRequest(version=18, correlation_id=number, topics=(topic,)))
        frame = len(content).to_bytes(4) + content
        play.exchange(frame, fetch_response(18, correlation_id=number))


def test_a_fetch_that_is_not_understood_passes() -> None:
    """Trap 1: a fetch that the gateway can't parse is forwarded unchanged."""
    play = Playbook().established(16, T)
    frame = fetch(16, *T, correlation=9)
    not_plain = (len(frame) - 4 + 3).to_bytes(4) + frame[4:] + b"odd"
    play.exchange(not_plain, fetch_response(16, correlation_id=9))
    assert play.connection.tally.passthrough["not understood"] == 1


@pytest.mark.parametrize("version", [7, 12, 16])
def test_native_sessions_pass_as_they_are(version: int) -> None:
    """Traps 20, 42 and 43: the client has a session with the broker."""
    play = Playbook().knows()
    steps = [
        ((0, 0), T),
        ((5, 1), []),
        ((5, 2), [T[1]]),
        ((5, 3), []),
        ((5, 0), T),
        ((6, 1), []),
        ((6, -1), []),
    ]
    for number, (session, wants) in enumerate(steps, 1):
        asked = fetch(version, *wants, session=session, correlation=number)
        play.exchange(asked, full(version, wants, session_id=5, correlation_id=number))
    play.close().nothing()
    assert play.connection.done
    assert play.sessions.used == 0


@pytest.mark.parametrize("code", [70, 71, 106])
def test_errors_of_native_sessions_reach_the_client(code: int) -> None:
    """Trap 38: errors of a client's own session reach the client."""
    play = Playbook().knows()
    play.exchange(
        fetch(16, session=(5, 1), correlation=1), fetch_response(16, error_code=code, correlation_id=1)
    )


def test_a_connection_that_was_native_stays_so() -> None:
    """Traps 5a and 20: if a connection once used a session of its own, all its later fetches are forwarded
    unchanged. The client may be another gateway, which mixes (id, n) with (0, -1).
    """
    play = Playbook().knows()
    passes(play, 16, T, 1, session=(5, 1))
    for number in range(2, 8):
        passes(play, 16, T, number)


@pytest.mark.parametrize("session", [(0, -5), (-5, 0), (-5, 3), (-1, 1), (0, 7)])
def test_epochs_and_ids_that_no_client_has_pass(session: tuple[int, int]) -> None:
    """A broker answers them with error 70, or not at all. The gateway's own session is closed."""
    play = Playbook().established(16, T)
    asked = fetch(16, *T, session=session, correlation=9)
    close = asks(16, [], (SESSION_ID, -1), correlation=3)
    told = {asked: full(16, T, correlation_id=9), close: fetch_response(16, correlation_id=3)}
    play.client(asked)
    sent = split(play.takes_broker())
    assert sorted(sent) == sorted(told)
    play.broker(*(told[frame] for frame in sent))
    play.to_client(full(16, T, correlation_id=9))
    assert play.sessions.used == 0
    passes(play, 16, T, 10)


def test_kafka_gos_way_of_having_no_session() -> None:
    """kafka-go's Client sends session id -1 and epoch -1."""
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 11, T, number, session=(-1, -1))
    play.client(fetch(11, *T, session=(-1, -1), correlation=3)).to_broker(asks(11, T, (0, 0), correlation=3))
    play.broker(full(11, T, session_id=7, correlation_id=3)).to_client(full(11, T, correlation_id=3))


def test_a_client_that_floods_with_0_0() -> None:
    """Case 89: a client sends (0, 0) with every fetch, as Sarama does before 1.26.2. The first fetch is
    forwarded.

    The unused session is closed, and the gateway uses its own session instead.
    """
    play = Playbook().knows()
    asked = fetch(11, *T, session=(0, 0), correlation=1)
    play.exchange(asked, full(11, T, session_id=31, correlation_id=1))
    play.client(fetch(11, *T, session=(0, 0), correlation=2)).to_broker(asks(11, T, (31, -1), correlation=2))
    play.broker(full(11, T, correlation_id=2)).to_client(full(11, T, correlation_id=2))
    play.client(fetch(11, *T, session=(0, 0), correlation=3)).to_broker(fetch(11, *T, correlation=3))
    play.broker(full(11, T, correlation_id=3)).to_client(full(11, T, correlation_id=3))
    play.client(fetch(11, *T, session=(0, 0), correlation=4)).to_broker(asks(11, T, (0, 0), correlation=4))
    play.broker(full(11, T, session_id=32, correlation_id=4)).to_client(full(11, T, correlation_id=4))
    for number in (1, 2, 3):
        play.client(fetch(11, *T, session=(0, 0), correlation=9))
        play.to_broker(asks(11, [], (32, number), correlation=9))
        play.broker(fetch_response(11, session_id=32, correlation_id=9)).to_client(
            full(11, T, correlation_id=9)
        )


def test_a_flood_of_fetches_of_one_partition() -> None:
    """Case 89: a client sends (0, 0) each time. No session is left at the broker."""
    play = Playbook().knows()
    one: list[Want] = [("t", 0)]
    play.exchange(
        fetch(11, *one, session=(0, 0), correlation=1), full(11, one, session_id=31, correlation_id=1)
    )
    play.client(fetch(11, *one, session=(0, 0), correlation=2)).to_broker(
        asks(11, one, (31, -1), correlation=2)
    )
    play.broker(full(11, one, correlation_id=2)).to_client(full(11, one, correlation_id=2))
    for number in range(3, 8):
        play.client(fetch(11, *one, session=(0, 0), correlation=number))
        play.to_broker(fetch(11, *one, correlation=number))
        play.broker(full(11, one, correlation_id=number)).to_client(full(11, one, correlation_id=number))
    assert play.sessions.used == 0
