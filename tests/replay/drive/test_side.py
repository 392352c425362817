"""The steps that can be sent to a side, by its versions and topics.

Requests that only prepare fetches are not sent if there is no fetch.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.drive.asked import asked
from replay.drive.mapping import Overrides
from replay.drive.options import OffsetPolicy
from replay.drive.script import LeftOut, Script
from replay.drive.side import ABSENT, CREATES, EARLIER, NAMELESS, NO_FETCH, UNSPOKEN, TargetSide, playable
from replay.drive.target import Destination, Target
from replay.drive.topics import Topic
from tests.frames import fetch
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import Capture, request, script
from tools.kafka import raw

HERE = Address("kafka", 9092)
METADATA = request(ApiKey.METADATA, 1, raw.array([raw.string("t")]))
HEARTBEAT = request(ApiKey.HEARTBEAT, 0)


def played(*frames: bytes, include: frozenset[int] = frozenset()) -> Script:
    capture = Capture()
    for at, frame in enumerate(frames):
        capture.say(frame, at, answered=False)
    return script(capture, include=include)


def side(
    found: Script, topics: tuple[str, ...] = ("t",), versions: Mapping[int, tuple[int, int]] | None = None
) -> TargetSide:
    """Make a target where each topic has two partitions without a known leader."""
    nobody, empty = np.full(2, -1, np.int32), np.zeros(2, np.int64)
    there = {
        name: Topic(leaders=nobody, leader_epochs=nobody, earliest=empty, latest=empty) for name in topics
    }
    spoken = dict.fromkeys((1, 3, 12, 18), (0, 20)) | dict(versions or {})
    target = Target(address=HERE, versions=spoken, brokers={1: HERE}, topics=there)
    return TargetSide(
        "target",
        target,
        names=found.topics,
        asked=asked(found, found.topics),
        policy=OffsetPolicy.KEEP,
        overrides=Overrides(),
    )


def left(found: Script, *sides: TargetSide) -> tuple[list[int], dict[LeftOut, int]]:
    """Return the API keys of the steps that are played, and the steps that are left out."""
    places = [Destination(HERE, None)] * len(sides)
    kept, left_out = playable(found.connections, sides, {each.name: places for each in found.connections})
    return [step.api_key for each in kept for step in each.steps], dict(left_out)


def test_what_both_sides_take_is_played_at_both() -> None:
    found = played(request(18, 0), fetch(11, ("t", 0)), METADATA)

    assert left(found, side(found), side(found)) == ([18, 1, 3], {})


@pytest.mark.parametrize("wrong", [0, 1])
def test_what_one_side_can_not_be_sent_is_left_out_at_both(wrong: int) -> None:
    found = played(fetch(11, ("t", 0)), fetch(11, ("u", 0)), fetch(12, ("t", 1)), METADATA)
    both = [side(found, ("t", "u")), side(found, ("t", "u"))]
    both[wrong] = side(found, ("t",), {ApiKey.FETCH: (4, 11)})

    assert left(found, *both) == (
        [1, 3],
        {LeftOut(1, ABSENT): 1, LeftOut(1, UNSPOKEN.format(12)): 1},
    )


def native(*sizes: int, topic: str = "t", version: int = 12) -> Script:
    """Return the script of a client with its own session: a full fetch, then incremental fetches.

    Each number in `sizes` is the number of partitions in one incremental fetch.
    """
    broker = ModelBroker()
    broker.create_topic(topic, 4)
    capture = Capture(broker)
    capture.say(fetch(version, (topic, 0), (topic, 1), session=(0, 0)), 0)
    (session,) = broker.cache.sessions
    for epoch, size in enumerate(sizes, 1):
        listed = [(topic, partition) for partition in range(size)]
        capture.say(fetch(version, *listed, session=(session, epoch)), epoch)
    return script(capture)


def test_fetches_of_a_session_that_cannot_be_made_have_the_reason_why_not() -> None:
    """If a session can't be created, its fetches are left out for that reason.

    Before the fix, the given reason was that the session began before the capture.
    """
    found = native(0, 2, 0, topic="gone")

    assert left(found, side(found)) == ([], {LeftOut(1, ABSENT): 4})


def test_fetches_of_a_session_whose_version_is_not_spoken_have_that_reason() -> None:
    found = native(0, 0)

    assert left(found, side(found, versions={ApiKey.FETCH: (4, 11)})) == (
        [],
        {LeftOut(1, UNSPOKEN.format(12)): 3},
    )


def test_a_session_that_can_be_made_is_played() -> None:
    found = native(0, 2, 0)

    assert left(found, side(found)) == ([1, 1, 1, 1], {})


def test_a_session_from_before_the_capture_is_left_out_before_the_run() -> None:
    found = played(METADATA, fetch(12, session=(77, 3)), fetch(12, ("t", 0), session=(77, 4)))

    assert left(found, side(found)) == ([], {LeftOut(1, EARLIER): 2, LeftOut(3, NO_FETCH): 1})


def test_a_session_whose_first_response_was_not_captured_is_played() -> None:
    found = played(fetch(12, ("t", 0), session=(0, 0)), fetch(12, session=(77, 1)))

    assert left(found, side(found)) == ([1, 1], {})


def test_topic_ids_without_a_name_are_the_reason_and_not_the_target() -> None:
    found = played(fetch(13, ("no name for it", 0)), fetch(13, session=(0, 0)))

    assert left(found, side(found)) == ([1], {LeftOut(1, NAMELESS): 1})


def test_metadata_that_could_make_topics_is_left_out() -> None:
    found = played(fetch(11, ("u", 0)), METADATA)

    assert left(found, side(found, ("u",))) == ([1], {LeftOut(3, CREATES): 1})


def test_without_a_fetch_that_can_go_what_leads_to_fetches_stays_as_well() -> None:
    found = played(request(18, 0), METADATA, fetch(11, ("u", 0)), METADATA)

    keys, left_out = left(found, side(found))

    assert keys == []
    assert left_out == {LeftOut(1, ABSENT): 1, LeftOut(3, NO_FETCH): 2, LeftOut(18, NO_FETCH): 1}


def test_writes_that_were_asked_for_go_without_fetches_and_what_leads_to_them_with_them() -> None:
    found = played(METADATA, HEARTBEAT, fetch(11, ("u", 0)), include=frozenset({ApiKey.HEARTBEAT}))

    assert left(found, side(found)) == ([3, 12], {LeftOut(1, ABSENT): 1})


def test_a_capture_without_fetches_is_played_as_it_is() -> None:
    found = played(request(18, 0), METADATA)

    assert left(found, side(found)) == ([18, 3], {})
