"""Captured fetches are translated for the target: ids, epochs, offsets, and missing partitions."""

from collections.abc import Iterable

import numpy as np
import pytest

from replay.drive.asked import asked
from replay.drive.mapping import (
    FetchMapping,
    MappedFetch,
    Overrides,
    bounds_of,
    most_leading,
    with_ids,
    without_creation,
)
from replay.drive.options import OffsetPolicy
from replay.drive.script import ScriptMaker, Step
from replay.drive.topics import Topic
from tests.frames import EVERY_VERSION, VERSIONS, LiveExchange, fetch, live, topic_id
from tests.model import wire
from tests.replay.drive.captured import Capture, one, request, script
from tools.kafka import raw

HERE = b"\xee" * 16


def topic(
    partitions: int = 3,
    *,
    low: int = 0,
    high: int = 100,
    epoch: int = 7,
    leaders: Iterable[int] = (),
    id_: bytes = HERE,
) -> Topic:
    return Topic(
        topic_id=id_,
        leaders=np.array([*leaders] or [1] * partitions, np.int32),
        leader_epochs=np.full(partitions, epoch, np.int32),
        earliest=np.full(partitions, low, np.int64),
        latest=np.full(partitions, high, np.int64),
    )


def steps(*frames: bytes) -> list[Step]:
    return one(*frames).connections[0].steps


def names_of(*names: str) -> dict[bytes, str]:
    return {topic_id(name): name for name in names}


def decoded(fetch: MappedFetch | None, session: tuple[int, int] = (0, -1)) -> wire.FetchRequest:
    assert fetch is not None
    return wire.decode_request(fetch.frame(*session)[4:])


def mapped(
    frame: bytes,
    topics: dict[str, Topic],
    policy: OffsetPolicy = OffsetPolicy.KEEP,
    overrides: Overrides | None = None,
) -> FetchMapping:
    found = one(frame)
    captured = asked(found, names_of("t", "u"))
    bounds = {name: bounds_of(policy, topics[name], captured[name]) for name in topics if name in captured}
    known = {name: each for name, each in bounds.items() if each is not None}
    return FetchMapping(names_of("t", "u"), topics, known, overrides or Overrides())


def same_cluster(asked_for: wire.FetchRequest) -> tuple[dict[bytes, str], dict[str, Topic]]:
    """Return the names of the topic ids in a fetch, and topics of a target that has all that the fetch lists.

    Their leader epochs are those of the fetch.
    """
    names: dict[bytes, str] = {}
    topics: dict[str, Topic] = {}
    keys = [(each.topic, each.topic_id) for each in asked_for.topics]
    for text, id_ in keys + [(each.topic, each.topic_id) for each in asked_for.forgotten]:
        names[id_] = text or id_.hex()
        topics.setdefault(names[id_], topic(200, id_=id_))
    for element in asked_for.topics:
        for part in element.partitions:
            name = element.topic or element.topic_id.hex()
            topics[name].leader_epochs[part.partition] = part.current_leader_epoch
    return names, topics


def consumes(exchange: LiveExchange) -> bool:
    """Return whether a fetch is a consumer's. Only replicas send the last fetched epoch."""
    told = wire.decode_request(exchange.request[4:])
    return all(part.last_fetched_epoch == -1 for element in told.topics for part in element.partitions)


def stays_as_it_was(exchange: LiveExchange) -> None:
    asked_for = wire.decode_request(exchange.request[4:])
    capture = Capture()
    capture.say(exchange.request, 0, answered=False)
    for step in [step for connection in script(capture).connections for step in connection.steps]:
        names, topics = same_cluster(asked_for)
        found = FetchMapping(names, topics, {}, Overrides()).map(step)
        assert found is not None
        assert found.frame(asked_for.session_id, asked_for.session_epoch) == step.frame


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_at_the_captured_cluster_a_fetch_stays_as_it_was(version: int) -> None:
    for exchange in filter(consumes, live(version)):
        stays_as_it_was(exchange)


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_go_by_name_and_carry_the_targets_id_and_epoch(version: int) -> None:
    frame = fetch(version, ("t", 0, 5), ("t", 2, 6), ("u", 1, 7), values=epoch_of(version, 3))
    mapping = mapped(frame, {"t": topic(), "u": topic(id_=b"\xdd" * 16, epoch=9)})

    found = decoded(mapping.map(steps(frame)[0]))

    keys = [(each.topic, each.topic_id) for each in found.topics]
    if version >= 13:
        assert [key[1] for key in keys] == [HERE, b"\xdd" * 16]
    else:
        assert [key[0] for key in keys] == ["t", "u"]
    entries = [part for each in found.topics for part in each.partitions]
    assert [(part.partition, part.fetch_offset) for part in entries] == [(0, 5), (2, 6), (1, 7)]
    if version >= 9:
        assert [part.current_leader_epoch for part in entries] == [7, 7, 9]
    assert not mapping.missing


def epoch_of(version: int, epoch: int) -> dict[str, int]:
    return {"current_leader_epoch": epoch} if version >= 9 else {}


def test_an_epoch_that_was_not_told_is_not_told() -> None:
    frame = fetch(11, ("t", 0), values=epoch_of(11, -1))

    found = decoded(mapped(frame, {"t": topic()}).map(steps(frame)[0]))

    assert found.topics[0].partitions[0].current_leader_epoch == -1


def test_the_last_fetched_epoch_of_another_cluster_is_not_told() -> None:
    frame = fetch(12, ("t", 0), values={"last_fetched_epoch": 4})

    found = decoded(mapped(frame, {"t": topic()}).map(steps(frame)[0]))

    assert found.topics[0].partitions[0].last_fetched_epoch == -1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (OffsetPolicy.KEEP, [5, 500, 50]),
        (OffsetPolicy.CLAMP, [40, 100, 50]),
        (OffsetPolicy.EARLIEST, [40, 40, 40]),
        (OffsetPolicy.LATEST, [100, 100, 100]),
    ],
)
@pytest.mark.parametrize("version", [4, 8, 11, 13])
def test_offsets_go_by_the_policy(version: int, policy: OffsetPolicy, expected: list[int]) -> None:
    frame = fetch(version, ("t", 0, 5), ("t", 1, 500), ("t", 2, 50))

    found = decoded(mapped(frame, {"t": topic(low=40)}, policy).map(steps(frame)[0]))

    assert [part.fetch_offset for part in found.topics[0].partitions] == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(OffsetPolicy.EARLIEST, [40, 45, 52]), (OffsetPolicy.LATEST, [88, 93, 100])],
)
def test_a_shift_keeps_the_distances_of_a_partition(policy: OffsetPolicy, expected: list[int]) -> None:
    frames = [fetch(11, ("t", 1, offset)) for offset in (1000, 1005, 1012)]
    found = one(*frames)
    here = topic(low=40)
    bounds = bounds_of(policy, here, asked(found, {})["t"])
    assert bounds is not None
    mapping = FetchMapping({}, {"t": here}, {"t": bounds}, Overrides())

    got = [decoded(mapping.map(step)) for step in found.connections[0].steps]

    assert [each.topics[0].partitions[0].fetch_offset for each in got] == expected


def test_offsets_that_the_target_did_not_tell_are_kept() -> None:
    frame = fetch(11, ("t", 0, 5))

    for policy in OffsetPolicy:
        found = decoded(mapped(frame, {"t": topic(low=-1, high=-1)}, policy).map(steps(frame)[0]))
        assert found.topics[0].partitions[0].fetch_offset == 5


def test_what_the_target_lacks_is_left_out_and_counted() -> None:
    frame = fetch(11, ("t", 0), ("t", 5), ("u", 0), ("u", 1))
    mapping = mapped(frame, {"t": topic()})

    found = decoded(mapping.map(steps(frame)[0]))

    assert [(each.topic, [part.partition for part in each.partitions]) for each in found.topics] == [
        ("t", [0])
    ]
    assert mapping.missing == {"t": 1, "u": 2}


def test_a_fetch_of_nothing_that_is_there_is_none_but_in_a_session_it_still_fetches() -> None:
    frame = fetch(11, ("u", 0))
    within = fetch(11, ("u", 0), session=(5, 1))

    assert mapped(frame, {"t": topic()}).map(steps(frame)[0]) is None
    assert decoded(mapped(within, {"t": topic()}).map(steps(within)[0])).topics == ()


def test_a_fetch_that_lists_nothing_stays() -> None:
    frame = fetch(11, session=(5, 1))

    assert mapped(frame, {}).map(steps(frame)[0]) is not None


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_forgotten_topics_go_by_name_too(version: int) -> None:
    frame = fetch(version, ("t", 0), session=(5, 1), forget=[("t", 1), ("u", 2), ("t", 2)])
    mapping = mapped(frame, {"t": topic()})

    found = decoded(mapping.map(steps(frame)[0]), (9, 4))

    assert (found.session_id, found.session_epoch) == (9, 4)
    assert [each.partitions for each in found.forgotten] == [(1,), (2,)]
    if version >= 13:
        assert {each.topic_id for each in found.forgotten} == {HERE}


@pytest.mark.parametrize("version", [4, 11, 15, 18])
def test_max_wait_and_min_bytes_can_be_told(version: int) -> None:
    frame = fetch(version, ("t", 0), max_wait_ms=500, min_bytes=1)
    told = Overrides(max_wait_ms=0, min_bytes=65_536)

    kept = decoded(mapped(frame, {"t": topic()}).map(steps(frame)[0]))
    changed = decoded(mapped(frame, {"t": topic()}, overrides=told).map(steps(frame)[0]))

    assert (kept.max_wait_ms, kept.min_bytes, kept.max_bytes) == (500, 1, 52_428_800)
    assert (changed.max_wait_ms, changed.min_bytes, changed.max_bytes) == (0, 65_536, 52_428_800)


def test_what_a_connection_fetches_tells_its_broker() -> None:
    found = {"t": {0, 2}, "u": {1}}

    assert most_leading(found, {"t": topic(leaders=(1, 1, 2)), "u": topic(leaders=(3, 2, 3))}) == 2
    assert most_leading(found, {"t": topic(leaders=(-1, -1, -1))}) is None
    assert most_leading({"t": {99}}, {"t": topic()}) is None


def test_ids_are_replaced_wherever_they_stand() -> None:
    assert with_ids(b"..." + topic_id("t") + b"--", {topic_id("t"): HERE}) == b"..." + HERE + b"--"


class TestMetadata:
    @staticmethod
    def step(version: int, body: bytes) -> Step:
        maker = ScriptMaker()
        capture = Capture()
        maker.add(capture.say(request(3, version, body), 0))
        return maker.finish().connections[0].steps[0]

    @pytest.mark.parametrize(
        ("version", "body", "flag"),
        [
            (4, raw.array([raw.string("t")]) + b"\1", -1),
            (8, raw.array([raw.string("t")]) + b"\1\0\0", -3),
            (9, raw.compact_array([raw.compact_string("t") + b"\0"]) + b"\1\0\0\0", -4),
            (12, raw.compact_array([bytes(16) + raw.compact_string("t") + b"\0"]) + b"\1\0\0", -3),
            (4, raw.array([]) + b"\1", -1),
        ],
    )
    def test_no_topic_is_made(self, version: int, body: bytes, flag: int) -> None:
        step = self.step(version, body)
        expected = bytearray(step.frame)
        expected[flag] = 0

        assert without_creation(step, ()) == bytes(expected)

    def test_below_v4_only_topics_that_are_there_may_be_asked_for(self) -> None:
        step = self.step(1, raw.array([raw.string("t")]))

        assert without_creation(step, ["t", "u"]) == step.frame
        assert without_creation(step, ["u"]) is None
