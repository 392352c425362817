"""`--fetch-min-bytes` and `--fetch-max-wait` raise min_bytes and max_wait_ms of fetches."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection import Connection
from proxy.features.limits import options
from proxy.features.limits.fetch_floors import (
    MAX_MIN_BYTES,
    MAX_WAIT_MS,
    PAUSE_SECONDS,
    FetchFloorsStage,
    FetchLimits,
    raised,
    smallest_partition,
)
from proxy.features.limits.max_fetch_bytes import MaxFetchBytes
from proxy.protocol.api import request_header
from proxy.protocol.fetch_request import parse_fetch_request
from tests.examples import examples
from tests.frames import VERSIONS, Want, entry, fetch, fetch_response, framed
from tests.playbook import SESSION_ID, Playbook, T, api_versions, asks, full, request, response

ASKED: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1}
RAISED: dict[str, Any] = {"max_wait_ms": 2000, "min_bytes": 65_536}
FLOORS = FetchLimits({"": 65_536}, {"": 2000})
WANTS: list[Want] = [("t", at) for at in range(8)]
JOIN_GROUP = 11
HEARTBEAT = 12
USUAL = (1 << 20).to_bytes(4)
"""partition_max_bytes of an entry, if a test names no other."""


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


def connected(floors: FetchLimits = FLOORS, software: str = "librdkafka", **options: Any) -> Playbook:
    """Return a connection of client "c" with the stage. The client has told its software, if it has one."""
    stages = (*options.pop("stages", ()), partial(FetchFloorsStage, floors))
    play = Playbook(stages=stages, **options)
    return named(play, software) if software else play.knows()


def sends(play: Playbook, due: dict[str, Any], *, asked: dict[str, Any] = ASKED, times: int = 4) -> None:
    """Play fetches of one partition that reach the broker with the limits `due`."""
    for number in range(times):
        play.client(fetch(12, *T[:1], correlation=number, **asked))
        play.to_broker(fetch(12, *T[:1], correlation=number, **{**asked, **due}))
        told = full(12, T[:1], correlation_id=number)
        play.broker(told).to_client(told)


# --- each way of a fetch --------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_that_is_forwarded_is_raised(version: int) -> None:
    """From the second fetch on, the fast path does this."""
    play = connected()
    for number in range(10, 15):
        play.client(fetch(version, *T[:1], correlation=number, **ASKED))
        play.to_broker(fetch(version, *T[:1], correlation=number, **RAISED))
        told = full(version, T[:1], correlation_id=number)
        play.broker(told).to_client(told)
    assert play.connection.passed > 5


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fetches_of_a_session_are_raised(version: int) -> None:
    """All fetches of a session are raised: full, incremental, with a rotated list, and repeated."""
    play = connected()
    wants = WANTS
    asked, forwarded = (fetch(version, *wants, correlation=3, **limits) for limits in (ASKED, RAISED))
    while (sent := play.client(asked).takes_broker()) == forwarded:
        play.broker(full(version, wants, correlation_id=3)).takes_client()
    assert sent == asks(version, wants, (0, 0), correlation=3, **RAISED)
    play.broker(full(max(version, 7), wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    for epoch in range(1, 9):
        number = 10 + epoch
        wants = [*wants[1:], wants[0]]
        play.client(fetch(version, *wants, correlation=number, **ASKED))
        play.to_broker(asks(version, [], (SESSION_ID, epoch), correlation=number, **RAISED))
        play.broker(fetch_response(max(version, 7), session_id=SESSION_ID, correlation_id=number))
        play.to_client(full(version, wants, correlation_id=number))
    assert (play.connection.passed > 5) is (version >= 7), "v4 to v6 have no fast path"
    play.client(fetch(version, *wants, correlation=30, **ASKED))
    play.to_broker(asks(version, [], (SESSION_ID, 9), correlation=30, **RAISED))
    play.broker(fetch_response(max(version, 7), error_code=70, correlation_id=30))
    play.to_broker(asks(version, wants, (0, 0), correlation=30, **RAISED))


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_session_of_the_clients_own_is_raised(version: int) -> None:
    """Its incremental fetches list no partition, or few."""
    play = connected()
    told = fetch_response(version, session_id=5, correlation_id=4)
    for session, wants in (((0, 0), T), ((5, 1), []), ((5, 2), T[:1]), ((5, 3), [])):
        play.client(fetch(version, *wants, session=session, correlation=4, **ASKED))
        play.to_broker(fetch(version, *wants, session=session, correlation=4, **RAISED))
        play.broker(told).to_client(told)


@pytest.mark.parametrize("software", ["librdkafka", ""])
def test_without_floors_nothing_changes(software: str) -> None:
    sends(connected(FetchLimits(), software), {})
    sends(connected(FetchLimits({"": 0, "d": 5}, {"": 0, "d": 5}), software), {})


def test_the_gateway_waits_for_the_broker_as_long_as_the_broker_was_told() -> None:
    """Late responses, a drain and a client that has closed its half are judged by this time."""
    play = connected()
    for number in range(4):  # the last ones take the fast path
        play.client(fetch(12, *T[:1], correlation=number, **ASKED))
        play.to_broker(fetch(12, *T[:1], correlation=number, **RAISED))
        for core in play.connection.cores:
            assert core.state.longest_wait == 2.0
            assert core.due_at == play.now + 2.0
        told = full(12, T[:1], correlation_id=number)
        play.broker(told).to_client(told)
    assert play.connection.passed > 3


# --- how far --------------------------------------------------------------------------------------


def test_a_client_id_has_floors_of_its_own() -> None:
    sends(
        connected(FetchLimits({"": 9, "c": 100}, {"": 1000, "c": 3000})),
        {"min_bytes": 100, "max_wait_ms": 3000},
    )
    sends(connected(FetchLimits({"": 9, "c": 0}, {"": 1000, "c": 0})), {})
    sends(connected(FetchLimits({"d": 9}, {"d": 1000})), {})


@pytest.mark.parametrize(
    "asked", [{"max_wait_ms": 2000, "min_bytes": 65_536}, {"max_wait_ms": 4000, "min_bytes": 70_000}]
)
def test_a_fetch_that_asks_for_more_stays_as_it_is(asked: dict[str, Any]) -> None:
    sends(connected(), {}, asked=asked)


@pytest.mark.parametrize(
    "asked", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}, {"min_bytes": -1}]
)
def test_a_fetch_that_asks_for_a_response_at_once_stays_as_it_is(asked: dict[str, Any]) -> None:
    sends(connected(), {}, asked={**ASKED, **asked})


@pytest.mark.parametrize(
    ("asked", "due"),
    [
        ({"max_bytes": 1000}, {"min_bytes": 1000}),
        ({"max_bytes": 1000, "min_bytes": 2000}, {"min_bytes": 2000}),
        ({"max_bytes": 0}, {"min_bytes": 1}),
        ({"values": {"partition_max_bytes": 500}}, {"min_bytes": 500}),
        ({"values": {"partition_max_bytes": 0}}, {"min_bytes": 1}),
    ],
)
def test_min_bytes_is_at_most_what_the_fetch_lets_the_broker_send(
    asked: dict[str, Any], due: dict[str, Any]
) -> None:
    """Otherwise a broker would always wait for max_wait_ms (KIP-74), even if a partition has more records
    than its partition_max_bytes.
    """
    sends(connected(), {**due, "max_wait_ms": 2000}, asked={**ASKED, **asked})


def test_min_bytes_is_at_most_the_operators_limit() -> None:
    ceiling = partial(MaxFetchBytes, FetchLimits(max_bytes={"": 1000}))
    play = connected(stages=(ceiling,))
    sends(play, {"max_wait_ms": 2000, "min_bytes": 1000, "max_bytes": 1000})


def test_the_smallest_partition_limit_counts_in_a_session_of_the_clients_own() -> None:
    play = connected()
    told = fetch_response(12, session_id=5, correlation_id=4)
    small: dict[str, Any] = {"values": {"partition_max_bytes": 300}}
    for session, wants, fields in (((0, 0), T, small), ((5, 1), [], {}), ((5, 2), T[:1], {})):
        play.client(fetch(12, *wants, session=session, correlation=4, **ASKED, **fields))
        raised: dict[str, Any] = {"max_wait_ms": 2000, "min_bytes": 300}
        play.to_broker(fetch(12, *wants, session=session, correlation=4, **raised, **fields))
        play.broker(told).to_client(told)


def test_without_a_listed_partition_min_bytes_is_not_raised() -> None:
    """The partition limits of a session that began before the floors are not known."""
    play = connected()
    play.client(fetch(12, session=(5, 7), correlation=4, **ASKED))
    play.to_broker(fetch(12, session=(5, 7), correlation=4, max_wait_ms=2000, min_bytes=1))


def test_records_are_later_by_five_seconds_at_most() -> None:
    """If a fetch waits longer on its own, min_bytes is not raised."""
    assert (options.MAX_WAIT * 1e3, options.MAX_MIN_BYTES) == (MAX_WAIT_MS, MAX_MIN_BYTES)
    sends(connected(), {"min_bytes": 65_536}, asked={"max_wait_ms": 5000, "min_bytes": 1})
    sends(connected(), {}, asked={"max_wait_ms": 5001, "min_bytes": 1})


# --- the time-out of the client -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("software", "due"),
    [
        ("apache-kafka-java", 5000),
        ("librdkafka", 5000),
        ("confluent-kafka-python", 5000),
        ("rust-rdkafka", 5000),
        ("sarama", 5000),
        ("kafka-python", 5000),
        ("kafka-ts", 5000),
        ("kgo", (500 + 10_000) // 3),
        ("brod", 500),
        ("", 500),
    ],
)
def test_a_fetch_waits_for_a_third_of_a_known_time_out_at_most(software: str, due: int) -> None:
    sends(connected(FetchLimits({}, {"": 5000}), software), {"max_wait_ms": due})


def test_a_client_with_an_unknown_time_out_waits_longer_if_it_is_named() -> None:
    sends(connected(FetchLimits({}, {"c": 5000}), ""), {"max_wait_ms": 5000})
    sends(connected(FetchLimits({}, {"c": 5000}), "kgo"), {"max_wait_ms": 3500})


def test_a_client_without_a_client_id_is_not_named() -> None:
    play = Playbook(stages=(partial(FetchFloorsStage, FLOORS),))
    asked, told = api_versions("4.3", client_id="")
    play.exchange(asked, told)
    for client in ("", None):
        play.client(fetch(12, *T[:1], client=client, **ASKED))
        play.to_broker(fetch(12, *T[:1], client=client, max_wait_ms=500, min_bytes=65_536))
        play.broker(full(12, T[:1])).takes_client()


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (10, {"values": {"log_start_offset": 0}}),
        (5, {"values": {"log_start_offset": 0}}),
        (10, {"session": (-1, -1)}),
    ],
    ids=["Reader", "Reader before Kafka 2.1", "Client"],
)
def test_kafka_go_stays_as_it_is(version: int, fields: dict[str, Any]) -> None:
    """Its Reader has a read deadline of its own max_wait. It is recognised by what only kafka-go sends."""
    play = connected(FetchLimits({"c": 65_536}, {"c": 5000}), "")
    for number in range(4):
        asked = fetch(version, *T[:1], correlation=number, **ASKED, **fields)
        play.exchange(asked, full(version, T[:1], correlation_id=number))


def test_a_fetch_of_one_partition_by_sarama_is_raised() -> None:
    """It has a log_start_offset of 0 as well. kafka-go sends no such version."""
    play = connected(software="sarama")
    for version in (11, 12):
        values = {"log_start_offset": 0}
        play.client(fetch(version, *T[:1], values=values, **ASKED))
        play.to_broker(fetch(version, *T[:1], values=values, **RAISED))
        play.broker(full(version, T[:1])).takes_client()


def test_the_software_of_a_later_request_counts() -> None:
    play = connected(software="")
    sends(play, {"min_bytes": 65_536})
    sends(named(play, "librdkafka"), RAISED)


def join_group(session_ms: int, version: int = 5) -> bytes:
    if version >= 6:  # flexible
        return request(JOIN_GROUP, version, 7, b"\0\x02g" + session_ms.to_bytes(4) + bytes(40))
    return request(JOIN_GROUP, version, 7, b"\0\1g" + session_ms.to_bytes(4) + bytes(40))


@pytest.mark.parametrize("version", [0, 5, 9])
def test_heartbeats_on_the_connection_come_in_time(version: int) -> None:
    """A broker takes the requests of a connection one by one (trap 16). So no fetch waits for more than a
    third of the group's session timeout, if the client joins the group on the same connection.
    """
    play = connected(FetchLimits({}, {"": 5000}))
    sends(play, {"max_wait_ms": 5000})
    for session_ms, due in ((6000, 2000), (45_000, 5000), (1500, 500), (6000, 2000)):
        asked = join_group(session_ms, version)
        play.client(asked).to_broker(asked)
        play.broker(response(7, bytes(30))).takes_client()
        sends(play, {"max_wait_ms": due})
        for number in range(3):  # on the fast path
            play.exchange(request(HEARTBEAT, 0, number, bytes(9)), response(number, b"\0\0"))
        sends(play, {"max_wait_ms": due})


@pytest.mark.parametrize("api_key", [HEARTBEAT, 68, 76, 88])
def test_heartbeats_of_a_group_with_an_unknown_session_timeout(api_key: int) -> None:
    """A client that joined on an earlier connection does not wait longer, nor one whose broker has the
    timeout.
    """
    play = connected(FetchLimits({}, {"": 5000}))
    sends(play, {"max_wait_ms": 5000})
    play.exchange(request(api_key, 0, 7, bytes(9)), response(7, b"\0\0"))
    sends(play, {"max_wait_ms": 500})


def test_a_join_that_can_not_be_read_counts_as_an_unknown_session_timeout() -> None:
    play = connected(FetchLimits({}, {"": 5000}))
    asked = join_group(30_000)
    play.client(asked, chunk=20).to_broker(asked)
    play.broker(response(7, bytes(30))).takes_client()
    sends(play, {"max_wait_ms": 500})


def test_a_session_waits_less_from_the_join_on() -> None:
    """The group is joined while a fetch of the session is in flight. The next fetch waits less, though it has
    the same list.
    """
    floors = FetchLimits({"": 65_536}, {"": 5000})
    play = connected(floors)
    asked = fetch(12, *WANTS, correlation=3, **ASKED)
    while play.client(asked).takes_broker() == fetch(
        12, *WANTS, correlation=3, max_wait_ms=5000, min_bytes=65_536
    ):
        play.broker(full(12, WANTS, correlation_id=3)).takes_client()
    play.broker(full(12, WANTS, correlation_id=3, session_id=SESSION_ID)).takes_client()
    join = join_group(6000)
    for number in range(10, 18):
        play.client(fetch(12, *WANTS, correlation=number, **ASKED))
        due: dict[str, Any] = {"max_wait_ms": 5000 if number <= 14 else 2000, "min_bytes": 65_536}
        play.to_broker(asks(12, [], (SESSION_ID, number - 9), correlation=number, **due))
        told = fetch_response(12, session_id=SESSION_ID, correlation_id=number)
        if number == 14:
            play.client(join).to_broker(join)
        play.broker(told).to_client(full(12, WANTS, correlation_id=number))
        if number == 14:
            play.broker(response(7, bytes(30))).takes_client()


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_smaller_partition_limit_lowers_the_next_fetch(version: int) -> None:
    """The fast path does not take a fetch with another limit, neither forwarded nor in a session."""
    play = connected()
    limits = [*[1_000_000] * 4, 5_000, 5_000]
    for number, limit in enumerate(limits):
        values = {"partition_max_bytes": limit}
        play.client(fetch(version, *T[:1], correlation=number, values=values, **ASKED))
        due = RAISED | {"min_bytes": min(limit, RAISED["min_bytes"])}
        play.to_broker(fetch(version, *T[:1], correlation=number, values=values, **due))
        told = full(version, T[:1], correlation_id=number)
        play.broker(told).to_client(told)


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_smaller_limit_of_one_partition_lowers_the_fetches_of_a_session(version: int) -> None:
    """Records came from this partition, so the fast path expects another offset of it."""
    play, wants = connected(), WANTS
    asked = fetch(version, *wants, correlation=3, **ASKED)
    while play.client(asked).takes_broker() == fetch(version, *wants, correlation=3, **RAISED):
        play.broker(full(version, wants, correlation_id=3)).takes_client()
    play.broker(full(version, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    least = []
    for number in range(10, 20):
        rotated = (number - 9) % len(WANTS)
        wants = [*WANTS[rotated:], *WANTS[:rotated]]
        place = wants.index(("t", 7))
        wants[place] = ("t", 7, number)
        pieces = fetch(version, *wants, correlation=number, **ASKED).split(USUAL)
        limit = USUAL if number < 18 else (5_000).to_bytes(4)
        asked = USUAL.join(pieces[: place + 1]) + limit + USUAL.join(pieces[place + 1 :])
        sent = play.client(asked).takes_broker()
        least.append(parse_fetch_request(sent, version, request_header(sent, 4)[4]).min_bytes)
        told = ("t", [entry(7, number + 1, records=b"r")])
        play.broker(fetch_response(version, told, session_id=SESSION_ID, correlation_id=number))
        play.takes_client()
    assert least == [65_536] * 8 + [5_000] * 2
    assert play.connection.passed > 5


# --- after a leader has moved ---------------------------------------------------------------------


def moves(play: Playbook, due: dict[str, Any] = RAISED) -> None:
    """Let the broker answer a fetch of one partition with NOT_LEADER_OR_FOLLOWER."""
    play.client(fetch(12, *T[:1], correlation=9, **ASKED))
    play.to_broker(fetch(12, *T[:1], correlation=9, **{**ASKED, **due}))
    told = fetch_response(12, (T[0][0], [entry(T[0][1], error=6)]), correlation_id=9)
    play.broker(told).to_client(told)


def test_no_fetch_of_a_client_is_raised_for_a_while_after_a_leader_has_moved() -> None:
    """The client asks for Metadata, then for the partition at the new leader. Sarama does this behind fetches
    that wait.
    """
    floors = FetchLimits({"": 65_536}, {"": 2000})
    old, new = connected(floors), connected(floors)
    for play in (old, new):
        sends(play, RAISED)
    moves(old)
    for now in (0.0, PAUSE_SECONDS - 0.1):
        for play in (old, new):
            play.now = now
            sends(play, {})
    for play in (old, new):
        play.now = PAUSE_SECONDS
        sends(play, RAISED)
        assert play.connection.passed > 5


def test_each_move_prolongs_the_pause() -> None:
    play = connected(FetchLimits({"": 65_536}, {"": 2000}))
    moves(play)
    play.now = PAUSE_SECONDS - 0.1
    moves(play, {})
    play.now += PAUSE_SECONDS - 0.1
    sends(play, {})
    play.now += 0.1
    sends(play, RAISED)


def test_a_connection_that_begins_in_a_pause_is_not_raised() -> None:
    floors = FetchLimits({"": 65_536}, {"": 2000})
    old = connected(floors)
    moves(old)
    sends(connected(floors), {})


def test_a_session_of_the_clients_own_that_begins_in_a_pause_is_raised_later() -> None:
    """Only its first fetch lists all partitions, and with them the limits that min_bytes must not exceed."""
    floors = FetchLimits({"": 65_536}, {"": 2000})
    old, play = connected(floors), connected(floors)
    moves(old)
    small: dict[str, Any] = {"values": {"partition_max_bytes": 300}}
    asked = fetch(12, *T, session=(0, 0), correlation=4, **ASKED, **small)
    play.exchange(asked, fetch_response(12, session_id=5, correlation_id=4))
    play.now = PAUSE_SECONDS
    play.client(fetch(12, session=(5, 1), correlation=5, **ASKED))
    play.to_broker(fetch(12, session=(5, 1), correlation=5, max_wait_ms=2000, min_bytes=300))


def test_other_clients_are_raised_in_a_pause() -> None:
    """Two hosts may have clients of one id."""
    floors = FetchLimits({"": 65_536}, {"": 2000})
    here, there = connected(floors, host="10.0.0.1"), connected(floors, host="10.0.0.2")
    for play in (here, there):
        sends(play, RAISED)
    moves(here)
    sends(there, RAISED)


def test_other_errors_begin_no_pause() -> None:
    """A client may ask for ever for a partition that it may not read."""
    play = connected(FetchLimits({"": 65_536}, {"": 2000}))
    play.client(fetch(12, *T[:1], correlation=9, **ASKED))
    play.to_broker(fetch(12, *T[:1], correlation=9, **RAISED))
    told = fetch_response(12, (T[0][0], [entry(T[0][1], error=29)]), correlation_id=9)
    play.broker(told).to_client(told)
    sends(play, RAISED)


def test_a_client_that_has_left_is_forgotten() -> None:
    floors = FetchLimits({"": 65_536}, {"": 2000})
    play = connected(floors, core=Connection)
    sends(play, RAISED)
    assert len(floors.pauses) == 1
    play.connection.ended()
    assert not floors.pauses


@pytest.mark.parametrize("version", [7, 12, 18])
def test_the_fetches_of_a_session_are_not_raised_in_a_pause(version: int) -> None:
    """The leader has moved away from another broker, while a fetch is in flight here. So the fast path makes
    no plan of the fetch that was raised, and later none of one that was not.
    """
    floors = FetchLimits({"": 65_536}, {"": 2000})
    old, play, wants = connected(floors), connected(floors), WANTS
    asked = fetch(version, *wants, correlation=3, **ASKED)
    while play.client(asked).takes_broker() == fetch(version, *wants, correlation=3, **RAISED):
        play.broker(full(version, wants, correlation_id=3)).takes_client()
    play.broker(full(version, wants, correlation_id=3, session_id=SESSION_ID)).takes_client()
    waits = []
    for number in range(10, 30):
        play.now = 0.0 if number < 26 else PAUSE_SECONDS
        wants = [*wants[1:], wants[0]]
        sent = play.client(fetch(version, *wants, correlation=number, **ASKED)).takes_broker()
        waits.append(parse_fetch_request(sent, version, request_header(sent, 4)[4]).max_wait_ms)
        if number == 17:
            moves(old)
        play.broker(fetch_response(version, session_id=SESSION_ID, correlation_id=number)).takes_client()
    assert waits == [2000] * 8 + [500] * 8 + [2000] * 4
    assert play.connection.passed > 5


# --- the rule -------------------------------------------------------------------------------------

LIMITS = st.integers(-2, 12_000) | st.sampled_from([-(2**31), 2**31 - 1, 65_536, 5_000, 5_001])


@examples(200)
@given(
    own=st.fixed_dictionaries({"max_wait_ms": LIMITS, "min_bytes": LIMITS, "max_bytes": LIMITS}),
    partition_bytes=LIMITS,
    floor=st.integers(0, MAX_MIN_BYTES),
    wait_ms=st.integers(0, MAX_WAIT_MS),
)
def test_no_fetch_asks_for_less_or_for_what_it_can_not_get(
    own: dict[str, Any], partition_bytes: int, floor: int, wait_ms: int
) -> None:
    frame = fetch(12, *T, values={"partition_max_bytes": partition_bytes}, **own)
    read = parse_fetch_request(frame, 12, request_header(frame, 4)[4])
    longest, least = raised(read, floor, wait_ms, smallest_partition(read, 0))
    assert own["max_wait_ms"] <= longest <= max(own["max_wait_ms"], wait_ms)
    assert own["min_bytes"] <= least <= max(own["min_bytes"], floor)
    if least > own["min_bytes"]:
        assert least <= min(own["max_bytes"], partition_bytes)
        assert 0 < longest <= MAX_WAIT_MS
    if own["max_wait_ms"] <= 0 or own["min_bytes"] <= 0:
        assert (longest, least) == (own["max_wait_ms"], own["min_bytes"])


# --- whose fetches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [{"replica_id": 1}, {"values": {"tags": ((5, b"x"),)}}], ids=["a follower", "tags"]
)
def test_what_is_no_plain_consumers_fetch_stays_as_it_is(fields: dict[str, Any]) -> None:
    """Traps 1 and 2."""
    play = connected()
    for number in (1, 2):
        play.exchange(
            fetch(12, *T, correlation=number, **ASKED, **fields), full(12, T, correlation_id=number)
        )


def test_members_of_cooperative_groups_stay_as_they_are() -> None:
    """The broker would count the records of all members."""
    play = connected()
    for core in play.connection.cores:
        core.state.gets_part = True
    sends(play, {})


def test_other_floors_apply_at_run_time() -> None:
    """Changed floors apply to the next fetch, even on the fast path."""
    floors = FetchLimits()
    play = connected(floors)
    sends(play, {})
    for least, wait in ((100, 2000), (200, 3000), (0, 0)):
        floors.min_bytes, floors.max_wait_ms = {"": least}, {"": wait}
        play.sessions.generation += 1
        sends(play, {"min_bytes": least or 1, "max_wait_ms": wait or 500})
    assert play.connection.passed > 10
