"""Which fetches go through the session, and what becomes of their answers: transcripts of one connection."""

from typing import Any

import pytest

from proxy.events import FetchKind, Passthrough, SessionClosed, SessionLost, SessionMade, SessionRefused
from proxy.fetches import STREAM_FROM
from proxy.protocol.fetch_request import Listing
from proxy.session.handler import Delta, FetchSessionHandler
from proxy.session.savings import WINDOW_SECONDS, Sessions
from tests.frames import Want, entry, fetch, response
from tests.model import wire
from tests.playbook import SESSION_ID, Playbook, asks, full, request, split

NO_LOG_START: dict[str, Any] = {"log_start_offset": -1}
"""In entries of v4."""

T: list[Want] = [("t", 0), ("t", 1), ("u", 0)]
HOT: list[Want] = [("t", 0), ("t", 1, 9), ("u", 0)]


def turn(
    play: Playbook,
    version: int,
    wants: list[Want],
    sent: bytes,
    told: bytes,
    given: bytes,
    **fields: Any,
) -> None:
    """One fetch through the gateway: what the broker is sent, what it answers, what the client is given."""
    play.client(fetch(version, *wants, **fields)).to_broker(sent)
    play.broker(told).to_client(given)


def passes(play: Playbook, version: int, wants: list[Want], correlation: int = 50, **fields: Any) -> None:
    """A fetch goes as it came, and so does its answer."""
    asked = fetch(version, *wants, correlation=correlation, **fields)
    play.exchange(asked, full(version, wants, correlation_id=correlation))


# --- a session from its beginning to its next fetches ---------------------------------------------


@pytest.mark.parametrize("version", range(4, 19))
def test_full_fetches_in_and_incremental_ones_out(version: int) -> None:
    play = Playbook().established(version, T)
    assert play.events(SessionMade) == [SessionMade(session_id=SESSION_ID, partitions=3)]
    spoken = max(version, 7)
    records = entry(1, 9, records=b"r" * 20)
    play.client(fetch(version, *T, correlation=4)).to_broker(
        asks(version, [], (SESSION_ID, 1), correlation=4)
    )
    play.broker(response(spoken, ("t", [records]), session_id=SESSION_ID, correlation_id=4))
    shown = records if version >= 5 else entry(1, 9, records=b"r" * 20, log_start_offset=-1)
    rest = [entry(0, 5, **({} if version >= 5 else NO_LOG_START))]
    play.to_client(response(version, ("t", [*rest, shown]), ("u", rest), correlation_id=4))
    play.client(fetch(version, *HOT, correlation=5)).to_broker(
        asks(version, [HOT[1]], (SESSION_ID, 2), correlation=5)
    )
    play.broker(response(spoken, session_id=SESSION_ID, correlation_id=5))
    shown = entry(1, 9) if version >= 5 else entry(1, 9, log_start_offset=-1)
    play.to_client(response(version, ("t", [*rest, shown]), ("u", rest), correlation_id=5))


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_rotated_list_is_the_same_list(version: int) -> None:
    play = Playbook().established(version, T)
    for number, wants in enumerate(([T[1], T[2], T[0]], [T[2], T[0], T[1]], T), 1):
        turn(
            play,
            version,
            wants,
            asks(version, [], (SESSION_ID, number), correlation=9),
            response(version, session_id=SESSION_ID, correlation_id=9),
            full(version, wants, correlation_id=9),
            correlation=9,
        )


ONE: list[Want] = [("t", 0), ("t", 1), ("t", 2)]
"""A list of one topic: its rotations go the short way."""


@pytest.mark.parametrize("version", [7, 11, 12, 16])
def test_rotations_of_one_topic_are_not_compared_column_by_column(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Playbook().established(version, ONE)
    compared: list[Listing] = []
    compare = FetchSessionHandler.compare

    def noted(handler: FetchSessionHandler, listing: Listing) -> Delta | None:
        compared.append(listing)
        return compare(handler, listing)

    monkeypatch.setattr(FetchSessionHandler, "compare", noted)
    hot: Want = ("t", 1, 9)
    records = entry(1, 9, records=b"r" * 20)
    script: list[tuple[list[Want], list[Want], list[wire.PartitionData]]] = [
        ([ONE[0], ONE[1], ONE[2]], [], []),
        ([ONE[1], ONE[2], ONE[0]], [], [records]),
        ([ONE[2], ONE[0], hot], [hot], []),
        ([ONE[0], hot, ONE[2]], [], []),
    ]
    high = {0: 5, 1: 5, 2: 5}
    for number, (wants, altered, news) in enumerate(script, 1):
        high[1] = 9 if number > 1 else 5
        rest = {index: entry(index, high[index]) for index in high} | {
            each.partition_index: each for each in news
        }
        turn(
            play,
            version,
            wants,
            asks(version, altered, (SESSION_ID, number), correlation=number),
            response(version, *([("t", news)] if news else []), session_id=SESSION_ID, correlation_id=number),
            response(version, ("t", [rest[index] for _, index, *_ in wants]), correlation_id=number),
            correlation=number,
        )
    assert len(compared) == 1


def test_a_rotation_is_left_where_an_answer_has_another_order() -> None:
    play = Playbook().established(11, ONE)
    play.client(fetch(11, *ONE)).to_broker(asks(11, [], (SESSION_ID, 1)))
    play.broker(response(11, session_id=SESSION_ID)).to_client(full(11, ONE))
    turned = [ONE[2], ONE[0], ONE[1]]
    play.client(fetch(11, *turned)).to_broker(asks(11, [], (SESSION_ID, 2)))
    gone = entry(0, error=3)
    play.broker(response(11, ("t", [gone]), session_id=SESSION_ID))
    play.to_client(response(11, ("t", [entry(2, 5), entry(1, 5), gone])))


@pytest.mark.parametrize("code", [70, 71])
def test_a_rotation_survives_the_loss_of_its_session(code: int) -> None:
    play = Playbook().established(16, ONE)
    for epoch in (1, 2):
        play.client(fetch(16, *ONE)).to_broker(asks(16, [], (SESSION_ID, epoch)))
        play.broker(response(16, session_id=SESSION_ID)).to_client(full(16, ONE))
    turned = [ONE[2], ONE[0], ONE[1]]
    play.client(fetch(16, *turned)).to_broker(asks(16, [], (SESSION_ID, 3)))
    named = 0 if code == 70 else SESSION_ID
    play.broker(response(16, error_code=code)).to_broker(fetch(16, *turned, session=(named, 0)))
    play.broker(full(16, turned, session_id=9)).to_client(full(16, turned))
    play.client(fetch(16, *ONE)).to_broker(asks(16, [], (9, 1)))
    play.broker(response(16, session_id=9)).to_client(full(16, ONE))


@pytest.mark.parametrize("version", [7, 12, 16])
def test_a_rotation_is_left_when_its_rows_become_others(version: int) -> None:
    old: list[Want] = [("t", number) for number in range(9)]
    new: list[Want] = [*old[1:], ("t", 9)]
    back = [*old[1:], old[0]]
    play = Playbook().established(version, old)
    play.client(fetch(version, *old)).to_broker(asks(version, [], (SESSION_ID, 1)))
    play.broker(response(version)).to_client(full(version, old))  # id 0: the session is gone
    play.client(fetch(version, *new)).to_broker(asks(version, new, (0, 0)))
    play.broker(full(version, new, session_id=9)).to_client(full(version, new))
    # The table's freed row still has the bytes of t-0.
    play.client(fetch(version, *back)).to_broker(asks(version, [("t", 0)], (9, 1), forget=[("t", 9)]))


@pytest.mark.parametrize("version", [7, 16])
def test_an_answer_that_was_not_understood_is_not_known_again(version: int) -> None:
    play = Playbook().established(version, T)
    good = response(version, session_id=SESSION_ID)
    longer = (len(good) - 3).to_bytes(4) + good[4:] + b"\0"
    for _ in range(2):
        play.client(fetch(version, *T)).to_broker(asks(version, [], (SESSION_ID, 1)))
        play.broker(longer).to_broker(fetch(version, *T))
        play.broker(full(version, T)).to_client(full(version, T))
        for _ in range(2):
            play.exchange(fetch(version, *T), full(version, T))
        play.client(fetch(version, *T)).to_broker(asks(version, T, (SESSION_ID, 0)))
        play.broker(full(version, T, session_id=SESSION_ID)).to_client(full(version, T))


def test_added_altered_and_forgotten() -> None:
    play = Playbook().established(16, T)
    wants: list[Want] = [("v", 0), ("t", 1, 7), ("t", 0)]
    told = response(16, ("v", [entry(0, 2)]), session_id=SESSION_ID, correlation_id=9)
    turn(
        play,
        16,
        wants,
        asks(16, [("v", 0), ("t", 1, 7)], (SESSION_ID, 1), forget=[("u", 0)], correlation=9),
        told,
        response(16, ("v", [entry(0, 2)]), ("t", [entry(1, 5), entry(0, 5)]), correlation_id=9),
        correlation=9,
    )
    assert play.connection.session_partitions == 3


def test_trap_26_limits_rack_and_isolation_are_this_requests_own() -> None:
    play = Playbook().established(16, T)
    fields: dict[str, Any] = {
        "max_wait_ms": 7,
        "min_bytes": 8,
        "max_bytes": 9,
        "rack_id": "r2",
        "client": "other",
    }
    play.client(fetch(16, *T, correlation=9, **fields))
    play.to_broker(asks(16, [], (SESSION_ID, 1), correlation=9, **fields))


def test_trap_26_another_isolation_makes_another_session() -> None:
    """What an entry without news looks like depends on it; the session that was is given up by name."""
    play = Playbook().established(16, T)
    committed: dict[str, Any] = {"isolation_level": 1}
    passes(play, 16, T, 10, **committed)
    passes(play, 16, T, 11, **committed)
    play.client(fetch(16, *T, correlation=12, **committed))
    play.to_broker(asks(16, T, (SESSION_ID, 0), correlation=12, **committed))
    assert play.sessions.held == 1


@pytest.mark.parametrize("version", [12, 17])
def test_trap_27_another_version_makes_another_session(version: int) -> None:
    play = Playbook().established(16, T)
    passes(play, version, T, 10)
    passes(play, version, T, 11)
    play.client(fetch(version, *T, correlation=12)).to_broker(
        asks(version, T, (SESSION_ID, 0), correlation=12)
    )


# --- who gets none --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 11, 16])
def test_one_partition_takes_no_slot(version: int) -> None:
    play = Playbook().knows()
    for number in range(1, 8):
        passes(play, version, [("t", 0)], number)
    assert play.sessions.held == 0
    assert play.connection.tally.passthrough["one partition"] == 7


def test_no_partition_takes_no_slot() -> None:
    play = Playbook().established(16, T)
    passes(play, 16, [], 9)
    passes(Playbook().knows(), 16, [], 9)


@pytest.mark.parametrize("version", range(4))
def test_case_75_old_versions_pass_as_they_are(version: int) -> None:
    """v0 to v3 are never raised: the broker converts records down for them."""
    play = Playbook().knows("3.9")
    for number in range(1, 6):
        asked = fetch(version, *T, correlation=number)
        told = response(
            version, ("t", [entry(0, 5, last_stable_offset=-1, log_start_offset=-1)]), correlation_id=number
        )
        play.exchange(asked, told)
    assert play.connection.tally.passthrough["not looked into"] == 5


@pytest.mark.parametrize("version", [19, 99])
def test_versions_beyond_what_is_known_pass_as_they_are(version: int) -> None:
    play = Playbook().knows()
    for number in range(1, 6):
        play.exchange(
            request(1, version, number, b"\0whatever"), request(1, 0, 0)[:4] + number.to_bytes(4) + bytes(7)
        )


@pytest.mark.parametrize("release", ["1.0"])
@pytest.mark.parametrize("version", [4, 5, 6])
def test_brokers_without_sessions(release: str, version: int) -> None:
    play = Playbook().knows(release)
    for number in range(1, 6):
        passes(play, version, T, number)
    assert play.connection.tally.passthrough["broker without sessions"] == 5


@pytest.mark.parametrize(
    ("release", "passed"), [("2.1", True), ("2.4", True), ("2.5", False), ("4.3", False)]
)
def test_trap_3_fencing_needs_no_session_below_2_5(release: str, passed: bool) -> None:
    """KAFKA-9338: there a session forgets current_leader_epoch."""
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


REPLICA: list[dict[str, Any]] = [
    {"version": 11, "replica_id": 1},
    {"version": 12, "replica_id": -2},
    {"version": 16, "tags": ((1, bytes(13)),)},
    {"version": 12, "tags": ((0, b"\x02c"),)},
    {"version": 16, "tags": ((77, b""),)},
]


@pytest.mark.parametrize("fields", REPLICA, ids=str)
def test_case_90_replicas_and_tags_pass_as_they_are(fields: dict[str, Any]) -> None:
    play = Playbook().knows()
    fields = dict(fields)
    version = fields.pop("version")
    for number in range(1, 6):
        passes(play, version, T, number, **fields)


@pytest.mark.parametrize("tag", [(0, bytes(16)), (1, bytes(8)), (9, b"x")])
def test_case_90_tags_of_entries_pass_as_they_are(tag: tuple[int, bytes]) -> None:
    """Replica directory ids and high watermarks are KRaft's own."""
    part = wire.FetchPartition(partition=0, fetch_offset=1, tags=(tag,))
    other = wire.FetchPartition(partition=1, fetch_offset=1)
    topic = wire.FetchTopic(topic_id=bytes(15) + b"\1", partitions=(part, other))
    play = Playbook().knows()
    for number in range(1, 6):
        content = wire.encode_request(wire.FetchRequest(version=18, correlation_id=number, topics=(topic,)))
        frame = len(content).to_bytes(4) + content
        play.exchange(frame, response(18, correlation_id=number))


def test_a_fetch_that_is_not_understood_passes() -> None:
    play = Playbook().established(16, T)
    frame = fetch(16, *T, correlation=9)
    odd = (len(frame) - 4 + 3).to_bytes(4) + frame[4:] + b"odd"
    play.exchange(odd, response(16, correlation_id=9))
    assert play.connection.tally.passthrough["not understood"] == 1


def test_partitions_listed_twice_pass_as_they_are() -> None:
    play = Playbook().knows()
    for number in range(1, 5):
        passes(play, 16, [("t", 0), ("u", 0), ("t", 0)], number)
    play = Playbook().established(16, T)
    passes(play, 16, [*T, ("t", 0)], 9)
    assert play.connection.session_id == SESSION_ID


def test_a_partition_number_out_of_all_bounds_passes() -> None:
    play = Playbook().established(16, T)
    passes(play, 16, [*T, ("t", 2**31 - 1)], 9)
    assert play.connection.session_partitions == 3


# --- native sessions ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 16])
def test_trap_43_native_sessions_pass_as_they_are(version: int) -> None:
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
    assert play.sessions.held == 0


@pytest.mark.parametrize("code", [70, 71, 106])
def test_trap_38_errors_of_native_sessions_reach_the_client(code: int) -> None:
    play = Playbook().knows()
    play.exchange(fetch(16, session=(5, 1), correlation=1), response(16, error_code=code, correlation_id=1))


def test_trap_5a_a_connection_that_was_native_stays_so() -> None:
    """Another gateway before this one mixes (id, n) with (0, -1): one session is enough."""
    play = Playbook().knows()
    passes(play, 16, T, 1, session=(5, 1))
    for number in range(2, 8):
        passes(play, 16, T, number)


@pytest.mark.parametrize("session", [(0, -5), (-5, 0), (-5, 3), (-1, 1), (0, 7)])
def test_epochs_and_ids_that_no_client_has_pass(session: tuple[int, int]) -> None:
    """A broker answers them with 70, or not at all: it shall say so itself. Our own session is closed."""
    play = Playbook().established(16, T)
    asked = fetch(16, *T, session=session, correlation=9)
    close = asks(16, [], (SESSION_ID, -1), correlation=3)
    told = {asked: full(16, T, correlation_id=9), close: response(16, correlation_id=3)}
    play.client(asked)
    sent = split(play.takes_broker())
    assert sorted(sent) == sorted(told)
    play.broker(*(told[frame] for frame in sent))
    play.to_client(full(16, T, correlation_id=9))
    assert play.sessions.held == 0
    passes(play, 16, T, 10)


def test_kafka_gos_way_of_having_no_session() -> None:
    """(-1, -1): its Client fetches so."""
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 11, T, number, session=(-1, -1))
    play.client(fetch(11, *T, session=(-1, -1), correlation=3)).to_broker(asks(11, T, (0, 0), correlation=3))
    play.broker(full(11, T, session_id=7, correlation_id=3)).to_client(full(11, T, correlation_id=3))


def test_case_89_a_client_that_floods_with_0_0() -> None:
    """Sarama before 1.26.2: the first passes; the unused session is closed, and one of ours takes over."""
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
        play.broker(response(11, session_id=32, correlation_id=9)).to_client(full(11, T, correlation_id=9))


def test_case_89_one_partition_flooded_with() -> None:
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
    assert play.sessions.held == 0


def test_case_89_a_refused_session_is_asked_for_again() -> None:
    """(0, 0) answered with id 0 is no flood: a native client asks again each time."""
    play = Playbook().knows()
    for number in range(1, 6):
        passes(play, 11, T, number, session=(0, 0))


# --- the broker loses or refuses sessions ---------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("code", [70, 71, 106])
def test_case_71_session_errors_are_not_for_the_client(version: int, code: int) -> None:
    play = Playbook().established(version, T)
    play.events()
    spoken = max(version, 7)
    play.client(fetch(version, *HOT, correlation=4)).to_broker(
        asks(version, [HOT[1]], (SESSION_ID, 1), correlation=4)
    )
    play.broker(response(spoken, error_code=code, correlation_id=4))
    play.to_broker(asks(version, HOT, (0 if code == 70 else SESSION_ID, 0), correlation=4))
    play.broker(full(spoken, HOT, hw=6, session_id=78, correlation_id=4))
    play.to_client(full(version, HOT, hw=6, correlation_id=4))
    assert play.events() == [
        SessionLost(session_id=SESSION_ID, error_code=code, reason=f"error {code}"),
        SessionMade(session_id=78, partitions=3),
    ]
    assert play.connection.tally.session_errors == {code: 1}
    play.client(fetch(version, *HOT, correlation=5)).to_broker(asks(version, [], (78, 1), correlation=5))
    assert play.sessions.held == 1


@pytest.mark.parametrize("second", [70, 71, 106, -1])
def test_trap_6_a_second_failure_goes_without_a_session(second: int) -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(response(16, error_code=71, correlation_id=4))
    play.to_broker(asks(16, T, (SESSION_ID, 0), correlation=4))
    play.broker(response(16, error_code=second, correlation_id=4)).to_broker(fetch(16, *T, correlation=4))
    play.broker(full(16, T, hw=6, correlation_id=4)).to_client(full(16, T, hw=6, correlation_id=4))
    assert play.sessions.held == 0
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (0, 0), correlation=5))


def test_a_slot_is_given_back_after_an_answer_that_repeats_the_last() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).takes_broker()
    play.broker(response(16, error_code=71, correlation_id=4)).takes_broker()
    play.broker(response(16, error_code=71, correlation_id=4)).takes_broker()
    play.broker(full(16, T, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    assert play.sessions.held == 0


@pytest.mark.parametrize("code", [-1, 2, 42])
def test_trap_11_another_error_is_told_as_without_a_session(code: int) -> None:
    """The fetch is repeated sessionless; whatever the broker says then is the client's."""
    play = Playbook().established(11, T)
    play.client(fetch(11, *T, correlation=4)).to_broker(asks(11, [], (SESSION_ID, 1), correlation=4))
    play.broker(response(11, error_code=code, session_id=SESSION_ID, correlation_id=4))
    play.to_broker(fetch(11, *T, correlation=4))
    failed = [entry(index, error=code, aborted=()) for index in (0, 1)]
    told = response(11, ("t", failed), ("u", failed[:1]), error_code=code, correlation_id=4)
    play.broker(told).to_client(told)


def test_case_96_an_id_outside_the_shards() -> None:
    play = Playbook().established(16, T, session_id=2147483640)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (2147483640, 1), correlation=4))
    play.broker(response(16, error_code=-1, session_id=2147483640, correlation_id=4))
    play.to_broker(fetch(16, *T, correlation=4))
    play.broker(full(16, T, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (0, 0), correlation=5))


def test_case_95_a_refused_session_is_asked_for_again_each_time_and_told_once() -> None:
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 16, T, number)
    for number in (3, 4, 5):
        play.client(fetch(16, *T, correlation=number)).to_broker(asks(16, T, (0, 0), correlation=number))
        play.broker(full(16, T, correlation_id=number)).to_client(full(16, T, correlation_id=number))
        assert play.sessions.held == 0
    assert play.events(SessionRefused, SessionMade) == [SessionRefused()]


def test_trap_10_an_answer_with_id_0_ends_the_session() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(response(16, ("t", [entry(0, 6)]), correlation_id=4))
    play.to_client(response(16, ("t", [entry(0, 6), entry(1, 5)]), ("u", [entry(0, 5)]), correlation_id=4))
    assert play.connection.session_id == 0
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (0, 0), correlation=5))


def test_what_the_broker_has_not_described_is_asked_for_in_full() -> None:
    play = Playbook().established(16, T)
    wants: list[Want] = [*T, ("v", 0)]
    play.client(fetch(16, *wants, correlation=4))
    play.to_broker(asks(16, [("v", 0)], (SESSION_ID, 1), correlation=4))
    play.broker(response(16, session_id=SESSION_ID, correlation_id=4))
    play.to_broker(asks(16, wants, (SESSION_ID, 0), correlation=4))
    play.broker(full(16, wants, session_id=78, correlation_id=4)).to_client(full(16, wants, correlation_id=4))


@pytest.mark.parametrize("code", [3, 103])
def test_case_80_a_recreated_topic_is_had_again_in_full(code: int) -> None:
    """Trap 8: without a session the broker says 100, and 103 never reaches the client."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    play.broker(response(16, ("u", [entry(0, error=code)]), session_id=SESSION_ID, correlation_id=4))
    play.to_broker(asks(16, T, (SESSION_ID, 0), correlation=4))
    gone = entry(0, error=100, aborted=())
    elements = (("t", [entry(0, 5), entry(1, 5)]), ("u", [gone]))
    play.broker(response(16, *elements, session_id=78, correlation_id=4))
    play.to_client(response(16, *elements, correlation_id=4))
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (78, 1), correlation=5))
    play.broker(response(16, ("u", [gone]), session_id=78, correlation_id=5))
    play.to_client(response(16, *elements, correlation_id=5))


@pytest.mark.parametrize("code", [76, 35])
def test_trap_7_errors_that_a_session_forgets_end_sessions_for_good(code: int) -> None:
    play = Playbook().knows("3.9")
    for number in (1, 2):
        passes(play, 9, T, number)
    play.client(fetch(9, *T, correlation=3)).to_broker(asks(9, T, (0, 0), correlation=3))
    bad = entry(0, error=code, records=None, aborted=())
    elements = (("t", [bad, entry(1, 5)]), ("u", [entry(0, 5)]))
    play.broker(response(9, *elements, session_id=SESSION_ID, correlation_id=3))
    play.to_client(response(9, *elements, correlation_id=3))
    asked = fetch(9, *T, correlation=4)
    close = asks(9, [], (SESSION_ID, -1), correlation=3)
    play.client(asked).to_broker(close, asked)
    play.broker(response(9, correlation_id=3), full(9, T, correlation_id=4)).to_client(
        full(9, T, correlation_id=4)
    )
    for number in range(5, 9):
        passes(play, 9, T, number)
    assert play.events(Passthrough) == [Passthrough(reason="errors that a session forgets")]


# --- throttling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [8, 11, 12, 16])
def test_case_81_a_throttled_answer_is_handed_on_empty(version: int) -> None:
    """Trap 13; and case 97: however often."""
    play = Playbook().established(version, T)
    for number in (1, 2, 3):
        turn(
            play,
            version,
            T,
            asks(version, [], (SESSION_ID, number), correlation=9),
            response(version, session_id=SESSION_ID, throttle_time_ms=300, correlation_id=9),
            response(version, throttle_time_ms=300, correlation_id=9),
            correlation=9,
        )
    assert play.connection.session_epoch == 4


@pytest.mark.parametrize("version", [4, 5, 6])
def test_case_81_throttled_below_sessions(version: int) -> None:
    play = Playbook().established(version, T)
    play.client(fetch(version, *T, correlation=9)).to_broker(
        asks(version, [], (SESSION_ID, 1), correlation=9)
    )
    play.broker(response(7, session_id=SESSION_ID, throttle_time_ms=300, correlation_id=9))
    play.to_client(response(version, throttle_time_ms=300, correlation_id=9))


def test_a_throttled_request_for_a_session() -> None:
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 16, T, number)
    play.client(fetch(16, *T, correlation=3)).to_broker(asks(16, T, (0, 0), correlation=3))
    told = response(16, throttle_time_ms=300, correlation_id=3)
    play.broker(told).to_client(told)
    assert (play.connection.session_id, play.sessions.held) == (0, 0)


def test_a_masked_session_error() -> None:
    """Section 2.8: error 0, id 0, throttled. The next fetch is full and names what may live on."""
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    told = response(16, throttle_time_ms=300, correlation_id=4)
    play.broker(told).to_client(told)
    play.client(fetch(16, *T, correlation=5)).to_broker(asks(16, T, (SESSION_ID, 0), correlation=5))


def test_a_throttled_answer_of_1_1_is_a_whole_one() -> None:
    play = Playbook().established(7, T, release="1.1")
    play.client(fetch(7, *T, correlation=4)).to_broker(asks(7, [], (SESSION_ID, 1), correlation=4))
    play.broker(response(7, session_id=SESSION_ID, throttle_time_ms=300, correlation_id=4))
    play.to_client(full(7, T, throttle_time_ms=300, correlation_id=4))


# --- two at a time --------------------------------------------------------------------------------


def test_trap_18_a_second_fetch_in_flight_goes_without_the_session() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    second = fetch(16, *HOT, correlation=5)
    play.client(second).to_broker(second)
    play.broker(response(16, session_id=SESSION_ID, correlation_id=4)).to_client(
        full(16, T, correlation_id=4)
    )
    play.broker(full(16, HOT, hw=8, correlation_id=5)).to_client(full(16, HOT, hw=8, correlation_id=5))
    # The table is as it was: the delta is against what was last sent in the session.
    play.client(fetch(16, *HOT, correlation=6)).to_broker(asks(16, [HOT[1]], (SESSION_ID, 2), correlation=6))
    play.broker(response(16, session_id=SESSION_ID, correlation_id=6)).to_client(
        full(16, HOT, correlation_id=6)
    )


# --- the switch and the slots ---------------------------------------------------------------------


def test_sessions_off_from_the_beginning() -> None:
    play = Playbook(Sessions(max_sessions=10, on=False)).knows()
    for number in range(1, 7):
        passes(play, 16, T, number)
    assert play.connection.tally.passthrough["sessions off"] == 6


@pytest.mark.parametrize("by_client", [False, True])
def test_sessions_off_and_on_again_at_run_time(by_client: bool) -> None:
    play = Playbook().established(16, T)
    if by_client:
        play.sessions.off_for = frozenset({"c"})
    else:
        play.sessions.on = False
    asked = fetch(16, *T, correlation=10)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(response(16, correlation_id=3)).nothing()
    play.broker(full(16, T, correlation_id=10)).to_client(full(16, T, correlation_id=10))
    assert play.sessions.held == 0
    assert play.events(SessionClosed) == [SessionClosed(session_id=SESSION_ID, reason="sessions off")]
    passes(play, 16, T, 11)
    play.sessions.on, play.sessions.off_for = True, frozenset()
    passes(play, 16, T, 12)
    passes(play, 16, T, 13)
    play.client(fetch(16, *T, correlation=14)).to_broker(asks(16, T, (0, 0), correlation=14))


def test_sessions_off_while_one_is_outstanding() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))
    play.sessions.on = False
    second = fetch(16, *T, correlation=11)
    play.client(second).to_broker(second)
    play.broker(response(16, session_id=SESSION_ID, correlation_id=10)).to_client(
        full(16, T, correlation_id=10)
    )
    play.broker(full(16, T, correlation_id=11)).to_client(full(16, T, correlation_id=11))
    third = fetch(16, *T, correlation=12)
    play.client(third).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), third)


def test_another_client_id_is_not_switched_off() -> None:
    play = Playbook(Sessions(max_sessions=10, off_for=frozenset({"other"})))
    play.established(16, T)


def test_slots_are_shared_and_bounded() -> None:
    sessions = Sessions(max_sessions=1)
    first, second = Playbook(sessions).established(16, T), Playbook(sessions).knows()
    for number in range(1, 6):
        passes(second, 16, T, number)
    assert second.connection.tally.passthrough["no slot left"] >= 1
    first.close().takes_broker()
    assert sessions.held == 0
    second.client(fetch(16, *T, correlation=9)).to_broker(asks(16, T, (0, 0), correlation=9))


@pytest.mark.parametrize("code", [70, 71, 106])
def test_a_repaired_session_holds_one_slot(code: int) -> None:
    play = Playbook(Sessions(max_sessions=1)).established(16, T)
    for number in range(1, 4):
        play.client(fetch(16, *T, correlation=4)).takes_broker()
        play.broker(response(16, error_code=code, correlation_id=4)).takes_broker()
        play.broker(full(16, T, session_id=90 + number, correlation_id=4)).takes_client()
        assert play.sessions.held == 1
    play.connection.ended()
    assert play.sessions.held == 0


def test_no_slots_at_all() -> None:
    play = Playbook(Sessions(max_sessions=0)).knows()
    for number in range(1, 6):
        passes(play, 16, T, number)


# --- law 6 ----------------------------------------------------------------------------------------


def test_lists_that_churn_get_no_session() -> None:
    play = Playbook().knows()
    for number in range(1, 8):
        passes(play, 16, [(f"t{number}", 0), (f"u{number}", 1)], number)
    assert play.sessions.held == 0


def test_a_delta_not_smaller_than_the_fetch_goes_sessionless() -> None:
    """And leaves the session as it is."""
    play = Playbook().established(16, T)
    moved: list[Want] = [("x", 0), ("y", 1)]
    passes(play, 16, moved, 9)
    assert (play.connection.session_epoch, play.connection.session_partitions) == (1, 3)
    play.client(fetch(16, *T, correlation=10)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=10))


def test_sessions_that_cost_more_rest_for_a_while() -> None:
    """Every entry is news, in as many elements as entries: the session's answer is larger than a full one."""
    wants: list[Want] = [(name, index) for name in ("1" * 200, "2" * 200) for index in range(9)]
    play = Playbook().established(12, wants)
    mixed = [("1" * 200, [entry(index, 6)]) for index in range(9)]
    others = [("2" * 200, [entry(index, 6)]) for index in range(9)]
    torn = [element for pair in zip(mixed, others, strict=True) for element in pair]
    play.client(fetch(12, *wants, correlation=9)).to_broker(asks(12, [], (SESSION_ID, 1), correlation=9))
    play.broker(response(12, *torn, session_id=SESSION_ID, correlation_id=9))
    play.to_client(full(12, wants, hw=6, correlation_id=9))
    passes(play, 12, wants, 10)
    assert play.connection.tally.passthrough["resting"] == 1
    play.now += WINDOW_SECONDS
    play.client(fetch(12, *wants, correlation=11)).to_broker(asks(12, [], (SESSION_ID, 2), correlation=11))


def test_a_session_that_nothing_uses_any_more_is_closed() -> None:
    """Eight fetches in a row that had no use for it: others may need its slot."""
    play = Playbook().established(16, T)
    for number in range(10, 17):
        passes(play, 16, [], number)
    asked = fetch(16, correlation=17)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(response(16, correlation_id=3), full(16, [], correlation_id=17))
    play.to_client(full(16, [], correlation_id=17))
    assert play.sessions.held == 0


def test_a_client_of_which_all_is_busy_does_not_make_and_close_sessions_over_and_over() -> None:
    """Each fetch moves every offset: now and then two in a row look alike, and a session would pay once."""
    play = Playbook().established(16, T)
    for number in range(10, 17):
        passes(play, 16, [(name, index, number) for name, index, *_ in T], number)
    asked = fetch(16, *((name, index, 17) for name, index, *_ in T), correlation=17)
    play.client(asked).to_broker(asks(16, [], (SESSION_ID, -1), correlation=3), asked)
    play.broker(response(16, correlation_id=3), full(16, T, correlation_id=17)).takes_client()
    assert play.sessions.held == 0
    for number in range(18, 30):
        passes(play, 16, T, number)
    assert play.connection.tally.passthrough["resting"] == 12
    play.now += WINDOW_SECONDS
    for number in range(30, 32):
        passes(play, 16, T, number)
    play.client(fetch(16, *T, correlation=32)).to_broker(asks(16, T, (0, 0), correlation=32))


def test_fetches_pass_while_the_process_holds_all_that_it_may() -> None:
    """Their answers stream; the session stays."""
    play = Playbook().established(16, T)
    play.sessions.crowded = True
    for number in range(10, 30):
        passes(play, 16, T, number)
    play.sessions.crowded = False
    play.client(fetch(16, *T, correlation=30)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=30))
    assert play.connection.tally.passthrough["memory"] == 20


def test_case_91_a_client_that_is_catching_up_goes_without_and_streams() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    big = entry(1, 9, records=bytes(STREAM_FROM))
    play.broker(response(16, ("t", [big]), session_id=SESSION_ID, correlation_id=4))
    play.to_client(response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=4))
    asked = fetch(16, *HOT, correlation=5)
    play.client(asked).to_broker(asked)
    told = response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=5)
    for at in range(0, len(told), 1 << 18):
        play.broker(told[at : at + (1 << 18)])
        assert play.connection.held < 1000
        play.to_client(told[at : at + (1 << 18)])
    assert play.connection.tally.passthrough["catching up"] == 1
    passes(play, 16, HOT, 6)
    play.client(fetch(16, *HOT, correlation=7)).to_broker(asks(16, [HOT[1]], (SESSION_ID, 2), correlation=7))


def test_case_91_an_expanded_answer_is_held_until_it_is_whole() -> None:
    play = Playbook().established(16, T)
    play.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (SESSION_ID, 1), correlation=4))
    big = entry(1, 9, records=bytes(100_000))
    told = response(16, ("t", [big]), session_id=SESSION_ID, correlation_id=4)
    play.broker(told[:60_000]).nothing()
    assert play.connection.held == 60_000
    play.broker(told[60_000:-1]).nothing()
    play.broker(told[-1:])
    play.to_client(response(16, ("t", [entry(0, 5), big]), ("u", [entry(0, 5)]), correlation_id=4))
    assert play.connection.held == 0


# --- case 74 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "told"), [(4, 6), (5, 6), (6, 56), (7, 56)])
def test_case_74_storage_errors_in_a_session(version: int, told: int) -> None:
    play = Playbook().established(version, T)
    play.client(fetch(version, *T, correlation=4)).to_broker(
        asks(version, [], (SESSION_ID, 1), correlation=4)
    )
    play.broker(response(7, ("u", [entry(0, error=56)]), session_id=SESSION_ID, correlation_id=4))
    rest = [entry(index, 5, **({} if version >= 5 else NO_LOG_START)) for index in (0, 1)]
    play.to_client(response(version, ("t", rest), ("u", [entry(0, error=told)]), correlation_id=4))


def test_trap_4_the_raised_request_to_the_byte() -> None:
    """v4 gains log_start_offset -1, session id, epoch and an empty list of forgotten topics."""
    play = Playbook().knows()
    for number in (1, 2):
        passes(play, 4, T[:2], number)
    play.client(fetch(4, *T[:2], correlation=3))
    assert play.takes_broker().hex() == (
        "00000063"
        "0001" "0007" "00000003" "000163"
        "ffffffff" "000001f4" "00000001" "03200000" "00" "00000000" "00000000"
        "00000001" "000174" "00000002"
        "00000000" "0000000000000000" "ffffffffffffffff" "00100000"
        "00000001" "0000000000000000" "ffffffffffffffff" "00100000"
        "00000000"
    )  # fmt: skip


# --- what is counted ------------------------------------------------------------------------------


def test_fetches_are_counted_by_kind_on_both_sides() -> None:
    play = Playbook().established(16, T)
    for number in (1, 2):
        play.client(fetch(16, *HOT, correlation=9)).takes_broker()
        told = response(16, ("t", [entry(1, 9, records=b"12345")]), session_id=SESSION_ID, correlation_id=9)
        play.broker(told).takes_client()
        assert play.connection.session_epoch == 1 + number
    play.close().takes_broker()
    client, broker = play.connection.tally.client, play.connection.tally.broker
    kinds = (FetchKind.FULL, FetchKind.INCREMENTAL, FetchKind.SESSIONLESS, FetchKind.CLOSE)
    assert [client.fetches[kind] for kind in kinds] == [0, 0, 5, 0]
    assert [broker.fetches[kind] for kind in kinds] == [1, 2, 2, 1]
    assert (client.partitions_requested, broker.partitions_requested) == (15, 3 * 3 + 1)
    assert (client.partitions_answered, broker.partitions_answered) == (15, 9 + 2)
    assert (client.fetch_record_bytes, broker.fetch_record_bytes) == (10, 10)


def test_bytes_are_counted_as_whole_frames() -> None:
    play = Playbook().knows()
    sizes = {"client_out": 0, "client_in": 0, "broker_in": 0, "broker_out": 0}
    for number in range(1, 7):
        asked = fetch(16, *T, correlation=number)
        play.client(asked)
        sent = play.takes_broker()
        spoken = wire.decode_request(sent[4:])
        session_id = SESSION_ID if spoken.session_epoch >= 0 else 0
        told = (
            full(16, T, session_id=session_id, correlation_id=number)
            if spoken.session_epoch < 1
            else response(16, session_id=session_id, correlation_id=number)
        )
        play.broker(told)
        given = play.takes_client()
        for side, size in (
            ("client_in", asked),
            ("broker_out", sent),
            ("broker_in", told),
            ("client_out", given),
        ):
            sizes[side] += len(size)
    tally = play.connection.tally
    assert tally.client.fetch_request_bytes == sizes["client_in"]
    assert tally.client.fetch_response_bytes == sizes["client_out"]
    assert tally.broker.fetch_request_bytes == sizes["broker_out"]
    assert tally.broker.fetch_response_bytes == sizes["broker_in"]


# --- case 73 --------------------------------------------------------------------------------------


def test_case_73_two_clients_do_not_mix() -> None:
    """One has its session lost and made again; the other goes on with its own."""
    sessions = Sessions(max_sessions=5)
    one = Playbook(sessions).established(16, T, session_id=71)
    two = Playbook(sessions).established(16, T, session_id=72)
    one.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (71, 1), correlation=4))
    two.client(fetch(16, *T, correlation=4)).to_broker(asks(16, [], (72, 1), correlation=4))
    one.broker(response(16, error_code=70, correlation_id=4)).to_broker(asks(16, T, (0, 0), correlation=4))
    two.broker(response(16, session_id=72, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    one.broker(full(16, T, session_id=73, correlation_id=4)).to_client(full(16, T, correlation_id=4))
    one.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (73, 1), correlation=5))
    two.client(fetch(16, *T, correlation=5)).to_broker(asks(16, [], (72, 2), correlation=5))
