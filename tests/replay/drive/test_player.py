"""Captures are played to a model of a broker, over real sockets. Another model has made these captures."""

import asyncio
import os
import signal
from collections import Counter
from dataclasses import replace
from struct import unpack_from

import pytest

from proxy.addresses import Address
from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.primitives import read_compact_string
from replay.drive.options import DriveOptions, OffsetPolicy
from replay.drive.report import ApiFigures, DriveReport
from replay.drive.running import drive
from replay.drive.script import WRITE, Script
from replay.drive.security import accesses
from replay.drive.side import EARLIER
from replay.drive.wire import TargetError
from tests.frames import fetch
from tests.model.broker import ModelBroker
from tests.model.wire import FetchRequest, decode_request
from tests.replay.drive.captured import Capture, request, script
from tests.replay.drive.serving import Served, serving
from tools.kafka import raw


def model(*, partitions: int = 4, seed: int = 0) -> ModelBroker:
    """Make a model of a broker. Its topic ids and session ids depend on `seed`."""
    broker = ModelBroker(seed=seed)
    for name in ("t", "u"):
        broker.create_topic(name, partitions)
    return broker


def ids(broker: ModelBroker, frame: bytes) -> bytes:
    for name, topic in broker.topics.items():
        frame = frame.replace(name.encode().ljust(16, b"\0"), topic.topic_id)
    return frame


def polling(*times: float) -> Capture:
    """Return the capture of a client that fetches t-0 at these times, in milliseconds."""
    capture = Capture(model())
    for at in times:
        capture.say(fetch(11, ("t", 0)), at)
    return capture


async def play(served: Served, captured: Script, **options: object) -> DriveReport:
    told = replace(DriveOptions(target=served.address, speed=None), **{"admin": None, **options})  # type: ignore[arg-type]  # fields of Options
    return await drive(captured, told, lambda _done, _all: None, [], accesses=accesses(told, {}))


def all_of(report: DriveReport, side: str = "target") -> ApiFigures:
    (found,) = [row for row in report["figures"] if (row["side"], row["api"]) == (side, "all")]
    return found


def fetches(served: Served) -> list[FetchRequest]:
    return [decode_request(frame) for frame in served.of(ApiKey.FETCH)]


async def test_a_capture_is_played_in_order_with_ids_of_the_target() -> None:
    here, there = model(), model(seed=5)
    capture = Capture(here)
    for number in range(3):
        capture.say(ids(here, fetch(16, ("t", 0, number), ("u", 1, number))), number)
    async with serving(there) as served:
        report = await play(served, script(capture), offsets=OffsetPolicy.KEEP)

    got = fetches(served)
    assert [each.topics[0].partitions[0].fetch_offset for each in got] == [0, 1, 2]
    assert {each.topics[0].topic_id for each in got} == {there.topics["t"].topic_id}
    assert [each.client_id for each in got] == ["c"] * 3
    figures = all_of(report)
    assert (report["planned"], report["sent"], figures["sent"], figures["answered"]) == (3, 3, 3, 3)
    assert figures["partitions_answered"] == 6
    assert figures["partition_errors"] == {"1": 4}  # offsets 1 and 2 are out of range
    assert report["lost"] == {"target": 0}
    assert report["left_out"] == []


async def test_topic_ids_without_a_name_in_the_capture_are_asked_of_the_target() -> None:
    here, there = model(), model()
    capture = Capture(here)
    capture.say(ids(here, fetch(16, ("t", 0))), 0)
    captured = script(capture)
    captured.topics.clear()
    async with serving(there) as served:
        report = await play(served, captured)

    assert (report["sent"], report["left_out"]) == (1, [])
    assert [each.topics[0].topic_id for each in fetches(served)] == [there.topics["t"].topic_id]


async def test_sessions_are_the_targets_own() -> None:
    here, there = model(), model(seed=5)
    capture = Capture(here)
    capture.say(ids(here, fetch(16, ("t", 0), ("t", 1), session=(0, 0))), 0)
    (captured,) = here.cache.sessions
    for epoch in (1, 2, 3):
        capture.say(ids(here, fetch(16, session=(captured, epoch))), epoch)
    async with serving(there) as served:
        report = await play(served, script(capture))

    (given,) = there.cache.sessions
    assert given != captured
    assert [(each.session_id, each.session_epoch) for each in fetches(served)] == [
        (0, 0),
        (given, 1),
        (given, 2),
        (given, 3),
    ]
    assert all_of(report)["errors"] == {}


@pytest.mark.parametrize(("connections", "loop"), [(1, 1), (2, 3)])
async def test_the_share_of_fetches_that_are_left_out_is_told(connections: int, loop: int) -> None:
    """The capture begins in the middle of a session. The share of fetches is the higher one."""
    capture = Capture(model())
    capture.say(fetch(12, ("t", 0), ("t", 1), session=(0, 0)), 0)
    (captured,) = capture.broker.cache.sessions
    capture.say(fetch(12, session=(captured, 1)), 1)
    capture.exchanges.pop(0)
    for at in range(2, 5):
        capture.say(fetch(12, ("t", 0)), at)
    capture.say(request(ApiKey.HEARTBEAT, 0), 5, answered=False)
    capture.say(request(ApiKey.DESCRIBE_QUORUM, 0), 6, answered=False)
    async with serving(model()) as served:
        served.versions[ApiKey.DESCRIBE_QUORUM] = (0, 0)
        served.canned[ApiKey.DESCRIBE_QUORUM] = b"\0" + bytes(2) + b"\0"
        report = await play(served, script(capture), connections=connections, loop=loop, duration=5.0)

    assert {row["reason"]: row["requests"] for row in report["left_out"]} == {WRITE: 1, EARLIER: 1}
    assert report["left_out_ratio"] == 0.25


async def test_a_session_that_the_target_loses_is_made_again() -> None:
    here, there = model(), model(seed=5)
    capture = Capture(here)
    capture.say(fetch(12, ("t", 0), ("t", 1), session=(0, 0)), 0)
    (captured,) = here.cache.sessions
    for epoch in (1, 2, 3):
        capture.say(fetch(12, session=(captured, epoch)), epoch)
    async with serving(there) as served:
        seen = 0

        def forget(_: bytes) -> bool:
            nonlocal seen
            seen += 1
            for session in [*there.cache.sessions.values()] if len(fetches(served)) == 2 else ():
                there.cache.remove(session)
            return False

        served.hang_up = forget
        report = await play(served, script(capture))

    asked = [(each.session_epoch, sum(len(t.partitions) for t in each.topics)) for each in fetches(served)]
    assert asked == [(0, 2), (1, 0), (0, 2), (1, 0)]
    assert all_of(report)["errors"] == {"70": 1}


async def test_versions_that_the_target_does_not_speak_are_left_out_and_counted() -> None:
    capture = Capture(model())
    capture.say(fetch(12, ("t", 0)), 0)
    capture.say(fetch(11, ("t", 0)), 1)
    capture.say(request(ApiKey.DESCRIBE_QUORUM, 0), 2)
    async with serving(model()) as served:
        served.versions[1] = (4, 11)
        report = await play(served, script(capture))

    assert [each.version for each in fetches(served)] == [11]
    assert report["planned"] == 1
    assert report["left_out"] == [
        {"api": "Fetch", "reason": "the target does not speak version 12", "requests": 1},
        {"api": "DescribeQuorum", "reason": "the target does not speak version 0", "requests": 1},
    ]


async def test_what_the_target_lacks_is_reported() -> None:
    here = model()
    here.create_topic("only here", 1)
    capture = Capture(here)
    capture.say(fetch(11, ("only here", 0)), 0)
    capture.say(fetch(11, ("only here", 0), ("t", 0), ("t", 3)), 1)
    async with serving(model(partitions=2)) as served:
        report = await play(served, script(capture))

    (got,) = fetches(served)
    assert [(each.topic, len(each.partitions)) for each in got.topics] == [("t", 1)]
    assert report["missing_topics"] == {"only here": 2, "t": 1}
    assert report["left_out"][0]["reason"] == "this broker of the target leads none of its partitions"


async def test_a_connection_of_which_nothing_is_left_is_passed_over() -> None:
    here = model()
    here.create_topic("only here", 1)
    first, second = (Capture(here, f"10.0.0.1:{n} > 10.0.0.2:9092 #0") for n in range(2))
    first.say(fetch(11, ("only here", 0)), 0)
    second.say(fetch(11, ("t", 0)), 10)
    async with serving(model()) as served:
        report = await play(served, script(first, second))

    assert (report["planned"], report["sent"], report["connections"]) == (1, 1, 1)
    assert served.connections == 2  # one asked first
    assert [row["sent"] for row in report["figures"] if row["api"] == "all"] == [1, 1]


async def test_of_several_brokers_each_gets_what_it_leads() -> None:
    there = model()
    for index in (1, 3):
        there.partition("t", index).leader = 2
    capture = Capture(model())
    capture.say(fetch(11, *(("t", index) for index in range(4)), ("u", 0)), 0)
    async with serving(there) as served, serving(there) as other:
        served.others = {2: other.address}
        report = await play(served, script(capture), offsets=OffsetPolicy.KEEP)

    (got,) = fetches(served)
    assert [(each.topic, [part.partition for part in each.partitions]) for each in got.topics] == [
        ("t", [0, 2]),
        ("u", [0]),
    ]
    assert fetches(other) == []
    assert report["led_elsewhere"] == {"t": 2}
    assert report["missing_topics"] == {}


async def test_a_connection_goes_to_the_broker_that_leads_most_of_it() -> None:
    there = model()
    for index in range(3):
        there.partition("t", index).leader = 2
    capture = Capture(model())
    capture.say(fetch(11, *(("t", index) for index in range(4))), 0)
    async with serving(there) as served, serving(there) as other:
        served.others = {2: other.address}
        await play(served, script(capture))

    assert fetches(served) == []
    assert [part.partition for part in fetches(other)[0].topics[0].partitions] == [0, 1, 2]
    assert served.of(ApiKey.LIST_OFFSETS)
    assert other.of(ApiKey.LIST_OFFSETS)  # each leader is asked for its own


@pytest.mark.parametrize(("policy", "expected"), [(OffsetPolicy.CLAMP, 3), (OffsetPolicy.EARLIEST, 1)])
async def test_offsets_are_asked_for(policy: OffsetPolicy, expected: int) -> None:
    there = model()
    part = there.partition("t")
    for _ in range(3):
        part.append(b"x")
    part.log_start = 1
    capture = Capture(model())
    capture.say(fetch(11, ("t", 0, 1000)), 0)
    async with serving(there) as served:
        await play(served, script(capture), offsets=policy)

    assert fetches(served)[0].topics[0].partitions[0].fetch_offset == expected


async def test_copies_and_rounds_multiply() -> None:
    capture = polling(0, 1)
    async with serving(model()) as served:
        report = await play(served, script(capture), connections=3, loop=2)

    assert (report["planned"], report["sent"], len(fetches(served))) == (12, 12, 12)
    assert served.connections == 1 + 3 * 2  # the one that asked first


async def test_each_copy_has_client_and_group_ids_of_its_own() -> None:
    capture = polling(0)
    capture.say(request(ApiKey.HEARTBEAT, 4, raw.compact_string("billing") + bytes(7)), 1, answered=False)
    async with serving(model()) as served:
        served.versions[ApiKey.HEARTBEAT] = (0, 4)
        served.canned[ApiKey.HEARTBEAT] = b"\0" + bytes(7)
        keys = frozenset({ApiKey.HEARTBEAT})
        report = await play(served, script(capture, include=keys), connections=3)

    assert sorted(str(each.client_id) for each in fetches(served)) == ["c", "c-2", "c-3"]
    beats = sorted(served.of(ApiKey.HEARTBEAT))
    groups = [read_compact_string(frame, request_header(frame, 0)[-1])[0] for frame in beats]
    assert sorted(filter(None, groups)) == [b"billing-replay", b"billing-replay-2", b"billing-replay-3"]
    figures = all_of(report)
    assert figures["request_bytes"] == sum(4 + len(frame) for frame in fetches_and(served, beats))
    assert (figures["answered"], figures["unreadable"], figures["failed"]) == (6, 0, 0)


def fetches_and(served: Served, others: list[bytes]) -> list[bytes]:
    return [*served.of(ApiKey.FETCH), *others]


async def test_a_client_without_an_id_has_none_in_any_copy() -> None:
    capture = Capture(model())
    frame = fetch(11, ("t", 0))
    content = frame[4:12] + b"\xff\xff" + frame[14 + int.from_bytes(frame[12:14]) :]
    capture.say(raw.frame(content), 0)
    async with serving(model()) as served:
        await play(served, script(capture), connections=2)

    assert [each.client_id for each in fetches(served)] == [None, None]


async def test_connections_that_followed_each_other_do_so_again() -> None:
    here = model()
    first = Capture(here, "10.0.0.1:1 > 10.0.0.2:9092 #0")
    second = Capture(here, "10.0.0.1:2 > 10.0.0.2:9092 #0")
    first.say(fetch(11, ("t", 0), session=(0, 0)), 0)
    (captured,) = here.cache.sessions
    second.say(fetch(11, session=(captured, 1)), 10)
    async with serving(model(seed=5)) as served:
        report = await play(served, script(second, first))

    assert [each.session_epoch for each in fetches(served)] == [0, 1]
    assert all_of(report)["errors"] == {}


async def test_a_connection_waits_for_those_that_had_ended_and_for_no_others() -> None:
    """The third connection waits for the end of the first one, but not for the end of the second one.

    In the capture, the third connection began after the first had ended, while the second was still open.
    """
    here = model()
    first, second, third = (Capture(here, f"10.0.0.1:{n} > 10.0.0.2:9092 #0") for n in range(3))
    first.say(fetch(11, ("t", 0, 0)), 0)
    first.say(fetch(11, ("t", 0, 1)), 10)
    second.say(fetch(11, ("t", 1)), 5, 100)
    third.say(fetch(11, ("t", 0, 2)), 50)
    async with serving(model()) as served:
        report = await play(served, script(third, second, first), offsets=OffsetPolicy.KEEP)

    offsets = [each.topics[0].partitions[0] for each in fetches(served)]
    assert [part.fetch_offset for part in offsets if part.partition == 0] == [0, 1, 2]
    assert report["sent"] == 4


async def test_no_more_is_in_flight_than_was() -> None:
    capture = Capture(model())
    for number in range(5):
        capture.say(fetch(11, ("t", 0)), number, 0.5)
    async with serving(model()) as served:
        served.held_until = 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await play(served, script(capture))

    assert len(fetches(served)) == 1


async def test_as_many_are_in_flight_as_were() -> None:
    capture = Capture(model())
    for number in range(5):
        capture.say(fetch(11, ("t", 0)), number, 100)
    async with serving(model()) as served:
        served.held_until = 5
        report = await play(served, script(capture))

    assert all_of(report)["answered"] == 5


async def test_errors_in_responses_of_every_api_are_counted() -> None:
    capture = Capture(model())
    for number in range(3):
        capture.say(request(ApiKey.HEARTBEAT, 1), number, answered=False)
    capture.say(request(ApiKey.LEAVE_GROUP, 3), 5, answered=False)
    capture.say(request(ApiKey.SYNC_GROUP, 1), 6, answered=False)
    async with serving(model()) as served:
        served.versions |= dict.fromkeys((ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP), (0, 3))
        served.canned = {
            ApiKey.HEARTBEAT: bytes(4) + b"\0\x19",
            ApiKey.LEAVE_GROUP: bytes(4) + b"\0\0" + raw.array([raw.string("m") * 2 + b"\0\x19"]),
            ApiKey.SYNC_GROUP: bytes(5),
        }
        keys = frozenset(served.canned)
        report = await play(served, script(capture, include=keys))

    rows = {row["api"]: row for row in report["figures"] if row["side"] == "target"}
    assert (rows["Heartbeat"]["failed"], rows["Heartbeat"]["errors"]) == (3, {"25": 3})
    assert (rows["LeaveGroup"]["failed"], rows["LeaveGroup"]["partition_errors"]) == (1, {"25": 1})
    assert (rows["SyncGroup"]["failed"], rows["SyncGroup"]["unreadable"]) == (0, 1)
    assert rows["all"]["failed"] == 4


async def test_writes_that_have_no_response_are_not_waited_for() -> None:
    capture = Capture(model())
    capture.say(request(ApiKey.PRODUCE, 3, b"\xff\xff\0\0" + bytes(8)), 0, answered=False, due=False)
    capture.say(fetch(11, ("t", 0)), 1)
    async with serving(model()) as served:
        report = await play(served, script(capture, include=frozenset({0})))

    figures = all_of(report)
    assert (figures["sent"], figures["answered"], report["lost"]) == (2, 1, {"target": 0})
    assert len(served.of(ApiKey.PRODUCE)) == 1


async def test_metadata_makes_no_topic() -> None:
    capture = Capture(model())
    body = raw.compact_array([bytes(16) + raw.compact_string("t") + b"\0"]) + b"\1\0\0"
    capture.say(request(ApiKey.METADATA, 12, body), 0)
    async with serving(model()) as served:
        await play(served, script(capture))

    assert served.of(ApiKey.METADATA)[-1].endswith(b"t\0\0\0\0")


async def test_a_connection_that_breaks_is_opened_again_and_reported() -> None:
    capture = Capture(model())
    for number in range(4):
        capture.say(fetch(11, ("t", 0, number)), number * 10)
    async with serving(model()) as served:
        served.hang_up = lambda _: len(fetches(served)) == 2
        report = await play(served, script(capture), offsets=OffsetPolicy.KEEP)

    assert [each.topics[0].partitions[0].fetch_offset for each in fetches(served)] == [0, 1, 2, 3]
    assert report["lost"] == {"target": 1}
    assert report["connection_errors"] == {f"{served.address}: closed by the peer": 1}
    assert (report["sent"], all_of(report)["answered"]) == (4, 3)


async def test_a_target_that_answers_before_it_closes_is_not_given_up() -> None:
    capture = polling(*range(0, 120, 10))
    async with serving(model()) as served:
        served.closes_after = ApiKey.FETCH
        report = await play(served, script(capture), rate=200.0)

    assert report["sent"] == 12
    assert not any("gave up" in error for error in report["connection_errors"])


async def test_a_target_that_closes_every_connection_is_given_up() -> None:
    capture = polling(*range(0, 200, 10))
    async with serving(model()) as served:
        served.hang_up = lambda frame: unpack_from(">h", frame)[0] == ApiKey.FETCH
        report = await play(served, script(capture))

    assert 1 < report["sent"] < 10
    assert report["lost"] == {"target": report["sent"]}
    assert any("gave up" in error for error in report["connection_errors"])


async def test_a_broker_that_stops_responding_ends_the_run() -> None:
    """If a broker no longer responds, the run ends after the timeout, not when the next request is due."""
    capture = polling(0, 1, 3_600_000)
    async with serving(model()) as served:
        served.mute = lambda frame: len(fetches(served)) == 2
        report = await play(served, script(capture), speed=1.0, timeout=2, max_wait=0)

    assert (report["sent"], report["lost"], report["timed_out"]) == (2, {"target": 1}, True)
    assert f"{served.address}: no response to Fetch v11 in 2 s" in report["connection_errors"]


async def test_a_connection_without_a_response_does_not_end_the_others() -> None:
    here = model()
    first, second = (Capture(here, f"10.0.0.1:{n} > 10.0.0.2:9092 #0") for n in range(2))
    first.say(fetch(11, ("t", 0)), 0)
    first.say(fetch(11, ("t", 0)), 2900)
    for at in range(0, 3000, 150):
        second.say(fetch(11, ("t", 1)), at)
    async with serving(model()) as served:
        served.mute = lambda frame: (
            [p.partition for p in decode_request(frame).topics[0].partitions] == [0]
            if frame[1] == 1
            else False
        )
        report = await play(served, script(first, second), speed=1.0, timeout=2, max_wait=0)

    assert (report["sent"], report["lost"], report["timed_out"]) == (21, {"target": 1}, True)


async def test_a_fetch_may_take_its_max_wait_more() -> None:
    capture = polling(0)
    capture.say(fetch(11, ("t", 0)), 100, 0.1)
    async with serving(model()) as served:
        served.held_until = 2
        capture.exchanges[0].response_time = capture.exchanges[1].request_time + 1
        report = await play(served, script(capture), speed=0.05, timeout=1, max_wait=5000)

    assert (report["timed_out"], all_of(report)["answered"]) == (False, 2)


async def test_two_sides_get_the_same_requests_in_turns() -> None:
    here, gate, direct = model(), model(seed=5), model(seed=6)
    capture = Capture(here)
    capture.say(fetch(12, ("t", 0), session=(0, 0)), 0)
    (captured,) = here.cache.sessions
    for epoch in (1, 2, 3):
        capture.say(fetch(12, ("t", epoch), session=(captured, epoch)), epoch)
    order: list[str] = []
    async with serving(gate) as one, serving(direct) as two:
        for name, served in (("target", one), ("against", two)):
            served.hang_up = lambda frame, name=name: bool(frame[1] == 1 and order.append(name))  # type: ignore[misc, func-returns-value]  # a note in passing
        report = await play(one, script(capture), against=two.address)

    def asked(served: Served) -> list[tuple[int, list[int]]]:
        return [
            (e.session_epoch, [p.partition for t in e.topics for p in t.partitions]) for e in fetches(served)
        ]

    assert asked(one) == asked(two) == [(0, [0]), (1, [1]), (2, [2]), (3, [3])]
    assert {each.session_id for each in fetches(one)[1:]} == set(gate.cache.sessions)
    assert {each.session_id for each in fetches(two)[1:]} == set(direct.cache.sessions)
    assert [set(order[at : at + 2]) for at in range(0, 8, 2)] == [{"target", "against"}] * 4
    assert all_of(report)["sent"] == all_of(report, "against")["sent"] == 4
    assert report["saving"] is None  # no admin endpoint was named


async def test_after_its_time_nothing_is_sent_any_more() -> None:
    capture = polling(0, 3_600_000)
    async with serving(model()) as served:
        report = await play(served, script(capture), speed=1.0, duration=0.05)

    assert (report["planned"], report["sent"]) == (2, 1)
    assert report["connection_errors"] == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_with_what_was_played(number: signal.Signals) -> None:
    capture = polling(0, 3_600_000)
    async with serving(model()) as served:
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, os.kill, os.getpid(), number)
        report = await play(served, script(capture), speed=1.0)

    assert (report["sent"], report["interrupted"], report["stopped_by"]) == (1, True, number.name)
    assert report["stopped_at"] == 3_600.0


async def test_a_run_goes_on_where_another_was_stopped() -> None:
    """The sessions are those that the client had then."""
    here, there = model(), model(seed=5)
    capture = Capture(here)
    capture.say(fetch(12, ("t", 0), ("t", 1), session=(0, 0)), 0)
    (captured,) = here.cache.sessions
    capture.say(fetch(12, ("t", 2), session=(captured, 1)), 1_000)
    for epoch in (2, 3):
        capture.say(fetch(12, session=(captured, epoch)), epoch * 1_000)
    async with serving(there) as served:
        report = await play(served, script(capture, start=1.5))

    asked = [(each.session_epoch, sum(len(t.partitions) for t in each.topics)) for each in fetches(served)]
    assert asked == [(0, 3), (1, 0)]
    assert (report["planned"], report["sent"], report["captured_seconds"]) == (2, 2, 1.5)
    assert (report["left_out"], report["stopped_at"]) == ([], None)


async def test_a_run_that_goes_on_leaves_out_no_request() -> None:
    """The told time is not after the first request that was not sent: it is rounded down."""
    capture = polling(0, 3_600_000.7086)
    async with serving(model()) as served:
        report = await play(served, script(capture), speed=1.0, duration=0.05)

    assert report["stopped_at"] == 3_600.000708
    assert script(capture, start=report["stopped_at"]).requests == 1


async def test_a_run_that_goes_on_is_stopped_at_a_time_of_the_whole_capture() -> None:
    capture = polling(0, 1_000, 2_000, 3_600_000)
    async with serving(model()) as served:
        report = await play(served, script(capture, start=1.5), speed=100.0, duration=0.3)

    assert (report["sent"], report["stopped_at"]) == (1, 3_600.0)


async def test_a_target_that_is_not_there_is_reported_in_one_line() -> None:
    capture = polling(0)

    options = DriveOptions(target=Address("127.0.0.1", 1))
    with pytest.raises(TargetError, match=r"^--target 127\.0\.0\.1:1: Connection refused$"):
        await drive(script(capture), options, lambda _done, _all: None, [])


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not respond as Kafka does: a frame of 1213486160 bytes"),
        (b"\0\0\0\4\0\0\0\7", "a response without a request"),
        (b"\0\0\0\6\0\0\0\1\0\x23", "error 35 in response to ApiVersions"),
        (b"\0\0\0\5\0\0\0\1\0", "does not respond as Kafka does: int16 at 0 goes on after the end"),
        (
            b"",
            "closed by the peer when asked for ApiVersions (does it require TLS? see --security-protocol)",
        ),
    ],
)
async def test_a_target_that_is_no_broker_is_reported_in_one_line(response: bytes, error: str) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(response)
        writer.close()

    capture = polling(0)
    server = await asyncio.start_server(client, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        options = DriveOptions(target=Address(host, port))
        with pytest.raises(TargetError) as raised:
            await drive(script(capture), options, lambda _done, _all: None, [])

    assert str(raised.value) == f"--target {host}:{port}: {error}"


async def test_overrides_reach_the_target_and_progress_is_reported() -> None:
    told: Counter[tuple[int, int]] = Counter()
    capture = polling(0)
    async with serving(model()) as served:
        options = DriveOptions(target=served.address, speed=None, max_wait=0, min_bytes=9, rate=1000.0)
        await drive(script(capture), options, lambda done, total: told.update([(done, total)]), [])

    assert [(each.max_wait_ms, each.min_bytes) for each in fetches(served)] == [(0, 9)]
    assert told[1, 1] >= 1
