"""Which requests of a capture are played: their order, their times, the number in flight before each."""

from proxy.protocol.api import ApiKey
from replay.drive.script import LeftOut, ScriptMaker, captured
from replay.protocol.names import name_of
from tests.frames import fetch
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import CONNECTION, Capture, request, script

SECOND = "10.0.0.1:5001 > 10.0.0.2:9092 #0"


def capture(connection: str = CONNECTION) -> Capture:
    broker = ModelBroker()
    broker.create_topic("t", 3)
    return Capture(broker, connection)


def test_steps_come_in_order_at_their_times() -> None:
    one = capture()
    one.say(fetch(11, ("t", 0)), 10)
    one.say(fetch(11, ("t", 1)), 510)

    (connection,) = script(one).connections

    assert [step.at for step in connection.steps] == [0.0, 0.5]
    assert [step.version for step in connection.steps] == [11, 11]
    assert connection.steps[0].frame == fetch(11, ("t", 0), correlation=0)


def test_errors_in_captured_responses_are_counted() -> None:
    one = capture()
    exchange = one.say(request(ApiKey.HEARTBEAT, 0), 0, answered=False)
    exchange.response_time, exchange.response_bytes = exchange.request_time + 1, 10
    exchange.response = [b"\0\0\0\6\0\0\0\1", b"\0\x1b"]

    counts = captured(script(one, include=frozenset({ApiKey.HEARTBEAT})).connections).of(ApiKey.HEARTBEAT)

    assert (counts.failed, counts.errors) == (1, {27: 1})


def test_frames_that_differ_in_their_correlation_id_alone_are_one() -> None:
    one = capture()
    one.say(fetch(11, ("t", 0), correlation=1), 0)
    one.say(fetch(11, ("t", 0), correlation=2), 5)

    first, second = script(one).connections[0].steps

    assert first.frame is second.frame


def test_a_step_waits_for_the_responses_that_its_client_had() -> None:
    one = capture()
    for at, took in (
        (0, 10),
        (1, 11),
        (12, 1),
        (20, 1),
    ):  # the second response comes at 12, as the third is sent
        one.say(fetch(11, ("t", 0)), at, took)

    assert [step.in_flight for step in script(one).connections[0].steps] == [0, 1, 0, 0]


def test_an_unseen_response_is_not_waited_for_as_being_in_flight() -> None:
    one = capture()
    one.say(fetch(11, ("t", 0)), 0, answered=False)
    one.say(fetch(11, ("t", 0)), 1)

    assert [step.in_flight for step in script(one).connections[0].steps] == [0, 0]


def test_a_connection_waits_for_those_that_had_ended() -> None:
    one, two = capture(), capture(SECOND)
    one.say(fetch(11, ("t", 0)), 0, 5)
    two.say(fetch(11, ("t", 0)), 6)

    first, second = script(one, two).connections

    assert (first.place, second.place) == (0, 1)
    assert (first.after, second.after) == (0, 1)


def test_connections_at_the_same_time_do_not_wait_for_each_other() -> None:
    one, two = capture(), capture(SECOND)
    one.say(fetch(11, ("t", 0)), 0, 5)
    two.say(fetch(11, ("t", 0)), 3)

    assert [connection.after for connection in script(one, two).connections] == [0, 0]


def test_long_waits_are_cut_over_all_connections() -> None:
    one, two = capture(), capture(SECOND)
    one.say(fetch(11, ("t", 0)), 0)
    two.say(fetch(11, ("t", 0)), 10_000)
    one.say(fetch(11, ("t", 0)), 10_500)

    first, second = script(one, two, longest_wait=2.0).connections

    assert [step.at for step in first.steps] == [0.0, 2.5]
    assert [step.at for step in second.steps] == [2.0]


def test_a_limit_keeps_the_first_requests_of_all_connections() -> None:
    one, two = capture(), capture(SECOND)
    one.say(fetch(11, ("t", 0)), 0)
    two.say(fetch(11, ("t", 0)), 1)
    one.say(fetch(11, ("t", 0)), 2)

    found = script(one, two, limit=2)

    assert [len(connection.steps) for connection in found.connections] == [1, 1]
    assert captured(found.connections).total().sent == 2


def test_writes_are_left_out_unless_asked_for() -> None:
    one = capture()
    for key in (ApiKey.PRODUCE, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT):
        one.say(request(key, 2), 0)

    left = script(one)
    asked = script(one, include=frozenset({ApiKey.HEARTBEAT}))

    assert left.connections == []
    assert left.left_out == {LeftOut(key, "a write; --include plays it"): 1 for key in (0, 11, 12, 8)}
    assert [step.api_key for step in asked.connections[0].steps] == [ApiKey.HEARTBEAT]


def test_reads_other_than_fetches_are_played() -> None:
    one = capture()
    for key in (ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.FIND_COORDINATOR, ApiKey.OFFSET_FETCH):
        one.say(request(key, 1), 0)

    assert script(one).requests == 4


def test_fetches_that_are_no_consumers_are_left_out() -> None:
    one = capture()
    one.say(fetch(11, ("t", 0), replica_id=3), 0)
    one.say(request(ApiKey.FETCH, 3), 0, answered=False)

    assert script(one).left_out == {
        LeftOut(1, "not a consumer"): 1,
        LeftOut(1, "version 3 is not one of 4 to 18"): 1,
    }


def test_what_does_not_parse_or_was_cut_is_left_out_and_counted() -> None:
    one = capture()
    one.say(fetch(11, ("t", 0)), 0)
    broken, cut, unseen = one.say(fetch(11, ("t", 0)), 1), one.say(fetch(11), 2), one.say(fetch(11), 3)
    broken.request += b"\0"
    cut.request_missing = 5
    unseen.request = b""

    found = script(one)

    assert found.requests == 1
    assert found.left_out == {
        LeftOut(1, "not understood: 1 bytes after a fetch request"): 1,
        LeftOut(1, "its request was not captured whole"): 2,
    }


def test_the_captures_own_figures_are_those_of_what_is_played() -> None:
    one = capture()
    one.broker.partition("t").append(bytes(100))
    one.say(request(ApiKey.JOIN_GROUP, 2), 0)
    played = one.say(fetch(11, ("t", 0), ("nowhere", 0)), 1, 8)

    counts = captured(script(one).connections).total()

    assert (counts.sent, counts.answered) == (1, 1)
    assert (counts.request_bytes, counts.response_bytes) == (played.request_bytes, played.response_bytes)
    assert (counts.record_bytes, counts.partitions_answered) == (100, 2)
    assert counts.partition_errors == {3: 1}
    assert list(counts.seconds) == [0.008]


def test_a_response_without_its_request_is_told_as_such() -> None:
    one = capture()
    exchange = one.say(fetch(11, ("t", 0)), 0)
    exchange.api_key, exchange.request = -1, b""

    assert script(one).left_out == {LeftOut(-1, "responses whose requests were not captured"): 1}
    assert name_of(-1) == "unknown"


def test_a_session_is_known_by_what_the_response_gave() -> None:
    one = capture()
    one.say(fetch(12, ("t", 0), session=(0, 0)), 0)
    (given,) = one.broker.cache.sessions
    one.say(fetch(12, session=(given, 1)), 1)

    first, second = script(one).connections[0].steps

    assert (first.given, first.session_id, first.session_epoch) == (given, 0, 0)
    assert (second.given, second.session_id, second.session_epoch) == (given, given, 1)


def test_topic_ids_are_named_by_any_connection() -> None:
    one = capture()

    assert script(one).topics == {one.broker.topics["t"].topic_id: "t"}


def test_names_are_kafkas_own() -> None:
    assert name_of(ApiKey.OFFSET_FOR_LEADER_EPOCH) == "OffsetForLeaderEpoch"
    assert name_of(999) == "ApiKey999"
    assert ScriptMaker().finish().seconds == 0.0
