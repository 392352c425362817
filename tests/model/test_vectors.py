"""The model gives the same responses as live brokers to captured fetches of sessions. Only the session id
differs.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.model.broker import ModelBroker
from tests.model.log import Batch, Topic
from tests.model.wire import FetchRequest, FetchResponse, decode_request, decode_response, encode_request

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "fetch-live.json").read_text())
STEPS = ("full-epoch0", "incr-empty", "error71", "error70", "bad-shard", "incr-one")
"""The fetches of one session, in order. The vectors of some brokers lack some steps."""


def captured(release: str, version: int) -> list[tuple[str, FetchRequest, bytes]]:
    """Return (step, request, response) of each captured fetch of this release and version."""
    found = {
        step: vector
        for vector in VECTORS
        for step in STEPS
        if vector["name"] == f"fetch-v{version}-{step}" and vector["broker"] == release
    }
    return [
        (
            step,
            decode_request(bytes.fromhex(found[step]["request_hex"])),
            bytes.fromhex(found[step]["response_hex"]),
        )
        for step in STEPS
        if step in found
    ]


SESSIONS = sorted(
    {
        (vector["broker"], vector["api_version"])
        for vector in VECTORS
        if vector["name"].endswith("-full-epoch0")
    }
)


def set_up(broker: ModelBroker, request: FetchRequest, response: FetchResponse) -> Topic:
    """Create the topic as the live broker had it at the full fetch. The client has read all records."""
    (asked,), (told,) = request.topics, response.topics
    topic = broker.create_topic(asked.topic or "t", len(told.partitions))
    topic.topic_id = asked.topic_id
    for entry in told.partitions:
        partition = topic.partitions[entry.partition_index]
        partition.log_start = entry.log_start_offset
        partition.log_end = partition.high_watermark = entry.high_watermark
    return topic


def feed(topic: Topic, response: FetchResponse) -> None:
    """Append the records in a response of the live broker."""
    for told in response.topics:
        for entry in told.partitions:
            partition = topic.partitions[entry.partition_index]
            batch = Batch(partition.log_end, entry.high_watermark - 1, entry.records or b"")
            partition.segments[-1].append(batch)
            partition.log_end = partition.high_watermark = entry.high_watermark


@pytest.mark.parametrize(("release", "version"), SESSIONS)
def test_a_captured_session_is_answered_the_same(release: str, version: int) -> None:
    steps = captured(release, version)
    assert len(steps) >= 1
    broker = ModelBroker(release=release)
    _, request, response = steps[0]
    topic = set_up(broker, request, decode_response(response, version))
    live_id = decode_response(response, version).session_id
    model_id = 0

    for step, request, response in steps:
        told = decode_response(response, version)
        if step == "incr-one":
            feed(topic, told)
            broker.cache.sessions[model_id].epoch = request.session_epoch
        asked = replace(request, session_id=model_id) if request.session_id == live_id else request
        given = decode_response(broker.handle(encode_request(asked), 0.0), version)
        model_id = model_id or given.session_id
        if given.session_id == model_id:
            given = replace(given, session_id=live_id)
        assert given == told, step


@pytest.mark.parametrize(
    "vector",
    [
        v
        for v in VECTORS
        if v["name"].endswith("unknown-topic") and v["broker"] in ("2.8.2", "3.9.1", "4.3.0")
    ],
    ids=lambda vector: str(vector["broker"]),
)
def test_an_unknown_topic_is_answered_the_same(vector: dict[str, Any]) -> None:
    request = decode_request(bytes.fromhex(vector["request_hex"]))
    told = decode_response(bytes.fromhex(vector["response_hex"]), request.version)
    broker = ModelBroker(release=vector["broker"])
    known = told.topics[0]
    topic = broker.create_topic(known.topic or "t", 4)
    topic.topic_id = known.topic_id
    feed(topic, replace(told, topics=(known,)))

    assert decode_response(broker.handle(encode_request(request), 0.0), request.version) == told
