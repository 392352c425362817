"""The fetches of a capture, of all versions, are collected by topic.

Each partition has its lowest and its highest offset.
"""

import pytest

from proxy.protocol.api import ApiKey
from replay.drive.asked import HIGHEST, MAX_PARTITION, Asked, asked, fetched, nameless
from tests.frames import VERSIONS, fetch, topic_id
from tests.replay.drive.captured import Capture, one, request, script
from tools.kafka import raw


def seen(found: Asked) -> list[tuple[int, int]]:
    return list(zip(found.lowest.tolist(), found.highest.tolist(), strict=True))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_partition_tells_the_lowest_and_the_highest_offset(version: int) -> None:
    script = one(
        fetch(version, ("t", 0, 5), ("t", 2, 70), ("u", 1, 9)),
        fetch(version, ("t", 0, 8), ("t", 2, 60)),
        fetch(version, ("t", 0, 6)),
    )

    found = asked(script, {topic_id("t"): "t", topic_id("u"): "u"})

    nobody = HIGHEST, -1
    assert {name: seen(each) for name, each in found.items()} == {
        "t": [(5, 8), nobody, (60, 70)],
        "u": [nobody, (9, 9)],
    }


def test_a_number_that_is_no_partition_takes_no_memory() -> None:
    script = one(fetch(11, ("t", MAX_PARTITION, 5), ("t", 0x7FFF_FFFF, 6), ("t", 1, 7)))

    assert seen(asked(script, {})["t"]) == [(HIGHEST, -1), (7, 7)]


def test_requests_other_than_fetches_ask_nothing() -> None:
    script = one(request(18, 0))

    assert script.requests == 1
    assert not asked(script, {})
    assert not fetched(script.connections[0], {})
    assert nameless(script) == []


def test_a_connection_tells_what_it_fetches_by_topic() -> None:
    (connection,) = one(fetch(11, ("t", 0), ("t", 2)), fetch(13, ("u", 1)), fetch(13, ("x", 3))).connections

    assert fetched(connection, {topic_id("u"): "u"}) == {"t": {0, 2}, "u": {1}, topic_id("x").hex(): {3}}


def test_a_connection_is_led_by_the_partitions_that_it_writes_to() -> None:
    place = raw.compact_array([(3).to_bytes(4) + b"\0\0"])
    entry = topic_id("u") + place + b"\0"
    body = raw.compact_string(None) + bytes(6) + raw.compact_array([entry]) + b"\0"
    frame = request(ApiKey.PRODUCE, 13, body)
    capture = Capture()
    capture.say(frame, 0, answered=False)
    (connection,) = script(capture, include=frozenset({ApiKey.PRODUCE})).connections

    assert fetched(connection, {topic_id("u"): "u"}) == {"u": {3}}


def test_a_topic_id_without_a_name_is_reported() -> None:
    found = one(fetch(13, ("t", 0), ("u", 0)), fetch(11, ("x", 0)))
    found.topics[topic_id("t")] = "t"

    assert nameless(found) == [topic_id("u")]
