"""The names in requests are read in every version that the library kio supports. Group ids get a suffix."""

import io
import itertools
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from proxy.protocol.api import ApiKey, is_flexible, request_header
from replay.drive.asked import asked, needed
from replay.protocol.naming import GIVEN, SCHEMAS, changed, given, named_partitions, own
from tests.frames import fetch
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import Capture, request, script
from tests.replay.protocol.kio_entities import classes, made
from tools.kafka import raw

RESPONSES = {each: cls for each, cls in classes("response").items() if each[0] in GIVEN}
REQUESTS = {each: cls for each, cls in classes("request").items() if each[0] in SCHEMAS}


def _frame(key: int, version: int, message: Any) -> tuple[bytes, int]:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    tags = b"\0" if is_flexible(key, version) else b""
    head = key.to_bytes(2) + version.to_bytes(2) + bytes(4) + raw.string("c") + tags
    frame = raw.frame(head + out.getvalue())
    return frame, request_header(frame, 4)[-1]


def with_suffix(key: int, version: int, frame: bytes, body: int) -> bytes:
    return changed(key, version, frame, body, lambda struct: own(struct, b"-2", b"-2"))


@pytest.mark.parametrize(("key", "version"), sorted(REQUESTS), ids=str)
def test_groups_and_transactional_ids_get_a_suffix_and_nothing_else_changes(key: int, version: int) -> None:
    cls = REQUESTS[key, version]
    message = made(cls, itertools.count(1))
    frame, body = _frame(key, version, message)

    suffixed = with_suffix(key, version, frame, body)

    decoded, size = entity_reader(cls)(suffixed[body:], 0)
    assert size == len(suffixed) - body
    before, after = repr(message), repr(decoded)
    key_ = ("key",) if key == ApiKey.FIND_COORDINATOR else ()
    for name in ("group_id", "transactional_id", "v3_and_below_transactional_id", *key_):
        before = before.replace(f" {name}='s'", f" {name}='s-2'").replace(f"({name}='s'", f"({name}='s-2'")
    for name in ("groups", "groups_names", "group_ids", "coordinator_keys", "transactional_ids"):
        before = before.replace(f"{name}=('s', 's')", f"{name}=('s-2', 's-2')")
    assert after == before
    assert after != repr(message) or key in {ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH}


@pytest.mark.parametrize(
    ("key", "version"),
    [
        *((ApiKey.PRODUCE, version) for version in (3, 9, 12, 13)),
        *((ApiKey.LIST_OFFSETS, version) for version in (1, 7)),
        *((ApiKey.OFFSET_COMMIT, version) for version in (2, 6, 9)),
        *((ApiKey.OFFSET_FETCH, version) for version in (1, 7, 8)),
        *((ApiKey.TXN_OFFSET_COMMIT, version) for version in (0, 3)),
        *((ApiKey.OFFSET_FOR_LEADER_EPOCH, version) for version in (2, 4)),
    ],
)
def test_partitions_of_topics_are_found(key: int, version: int) -> None:
    frame, body = _frame(key, version, made(REQUESTS[key, version], itertools.count(1)))

    assert set(named_partitions(key, version, frame, body, {bytes(16): "s"})) == {("s", 1)}


@pytest.mark.parametrize(("key", "version"), sorted(RESPONSES), ids=str)
def test_the_ids_that_a_response_gives_are_read(key: int, version: int) -> None:
    out = io.BytesIO()
    message = made(RESPONSES[key, version], itertools.count(1))
    entity_writer(type(message))(out, message)
    tags = b"\0" if is_flexible(key, version) else b""

    found = given(key, version, raw.frame(bytes(4) + tags + out.getvalue()))

    assert found is not None
    names = {"member": "member_id", "generation": "generation_id", "producer_id": "producer_id"}
    if key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
        names["generation"] = "member_epoch"
    values = {name: getattr(message, names.get(name, name)) for name in found}
    assert {**found, "member": (found.get("member") or b"").decode()} == {"member": "", **values}
    assert found or (key, version < 5) == (ApiKey.END_TXN, True)


def test_a_request_that_is_not_understood_stays_as_it_is() -> None:
    frame = request(ApiKey.HEARTBEAT, 0, b"\0\x09short")
    body = request_header(frame, 4)[-1]

    assert with_suffix(ApiKey.HEARTBEAT, 0, frame, body) == frame
    assert [*named_partitions(ApiKey.HEARTBEAT, 0, frame, body, {})] == []


def test_topics_have_as_many_partitions_as_anything_in_the_capture_names() -> None:
    broker = ModelBroker()
    broker.create_topic("t", 4)
    capture = Capture(broker)
    capture.say(fetch(11, ("t", 0), ("t", 2)), 0)
    offsets = raw.array([raw.string("u") + raw.array([(6).to_bytes(4) + bytes(8)])])
    capture.say(request(ApiKey.LIST_OFFSETS, 1, bytes(4) + offsets), 1, answered=False)
    capture.say(fetch(13, ("gone", 0)), 2, answered=False)
    answer = capture.say(request(ApiKey.METADATA, 1, raw.array([])), 3, answered=False)
    parts = [b"\0\0" + n.to_bytes(4) + bytes(4) + raw.array([]) * 2 for n in range(12)]
    topics = [b"\0\0" + raw.string(name) + b"\0" + raw.array(parts) for name in ("t", "other")]
    answer.response = [raw.frame(bytes(4) + raw.array([]) + bytes(4) + raw.array(topics))]
    answer.response_time = 1
    found = script(capture)

    assert needed(found, asked(found, found.topics)) == {"t": 12, "u": 7}
