"""The model's codec gives the same results as live frames, the vectors made from Kafka's schemas, and kio."""

import io
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from tests.model.primitives import Tags, WireError
from tests.model.wire import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    NodeEndpoint,
    PartitionData,
    TopicData,
    current_leader_tag,
    decode_request,
    decode_response,
    diverging_epoch_tag,
    encode_request,
    encode_response,
    node_endpoints_tag,
)

DATA = Path(__file__).parents[1] / "data"
VECTORS = json.loads((DATA / "fetch-live.json").read_text())
LIVE: dict[int, list[dict[str, Any]]] = {}
"""Captured fetches of live brokers, by Fetch version."""
for vector in VECTORS:
    if vector["api_key"] == 1:
        LIVE.setdefault(vector["api_version"], []).append(vector)
SCHEMA = json.loads((DATA / "fetch-schema.json").read_text())
TOPIC_ID = bytes(range(1, 17))


def of_version(version: int) -> dict[str, Any]:
    return {"topic": "tt"} if version <= 12 else {"topic_id": TOPIC_ID}


def decodes_whole_and_encodes_back(vector: dict[str, Any]) -> None:
    request, frame = bytes.fromhex(vector["request_hex"]), bytes.fromhex(vector["response_hex"])

    decoded = decode_request(request)
    response = decode_response(frame, decoded.version)

    assert decoded.version == vector["api_version"]
    assert response.correlation_id == decoded.correlation_id
    assert encode_request(decoded) == request
    assert encode_response(response) == frame


@pytest.mark.parametrize("version", LIVE)
def test_a_live_exchange_decodes_whole_and_encodes_back(version: int) -> None:
    for vector in LIVE[version]:
        decodes_whole_and_encodes_back(vector)


def header_size(version: int) -> int:
    """Return the size of the header of a request with a null client id."""
    return 10 + (version >= 12)


@pytest.mark.parametrize("version", [int(version) for version in SCHEMA["requests"]])
def test_a_request_of_the_schema(version: int) -> None:
    epoch = 5 if version >= 9 else -1
    request = FetchRequest(
        version=version,
        client_id=None,
        max_wait_ms=500,
        max_bytes=52_428_800,
        isolation_level=1,
        rack_id="r" if version >= 11 else "",
        topics=(
            FetchTopic(
                **of_version(version),
                partitions=(
                    FetchPartition(partition=0, fetch_offset=7, current_leader_epoch=epoch),
                    FetchPartition(partition=3, fetch_offset=9, current_leader_epoch=epoch),
                ),
            ),
        ),
    )

    frame = encode_request(request)

    assert frame[header_size(version) :].hex() == SCHEMA["requests"][str(version)]
    assert decode_request(frame) == request


@pytest.mark.parametrize("version", [int(version) for version in SCHEMA["responses"]])
def test_a_response_of_the_schema(version: int) -> None:
    flexible = version >= 12
    moved: Tags = (current_leader_tag(2, 9),) if version == 16 else ()
    endpoints: Tags = (node_endpoints_tag([NodeEndpoint(node_id=2, host="b2", port=9092)]),)
    good = PartitionData(
        partition_index=0,
        high_watermark=100,
        last_stable_offset=99,
        log_start_offset=1 if version >= 5 else -1,
        aborted=(),
        records=b"\xde\xad\xbe",
    )
    response = FetchResponse(
        version=version,
        correlation_id=1,
        session_id=77 if version >= 7 else 0,
        topics=(
            TopicData(
                **of_version(version),
                partitions=(good, PartitionData(partition_index=3, error_code=6, tags=moved)),
            ),
        ),
        tags=endpoints if version == 16 else (),
    )

    frame = encode_response(response)

    assert frame[4 + flexible :].hex() == SCHEMA["responses"][str(version)]
    assert decode_response(frame, version) == response


@pytest.mark.parametrize(
    ("version", "entry", "outer"),
    [
        (3, 16, 20),
        (4, 16, 21),
        (7, 24, 33),
        (9, 28, 33),
        (11, 28, 35),
        (12, 33, 29),
        (15, 33, 25),
        (18, 33, 25),
    ],
)
def test_the_size_of_a_request_entry(version: int, entry: int, outer: int) -> None:
    empty = FetchRequest(version=version, client_id=None)
    two = tuple(FetchPartition(partition=index, fetch_offset=0) for index in range(2))

    assert len(encode_request(empty)) - header_size(version) == outer
    one_topic, two_topics = (
        len(encode_request(replace(empty, topics=(FetchTopic(**of_version(version), partitions=parts),))))
        for parts in (two[:1], two)
    )
    assert two_topics - one_topic == entry


@pytest.mark.parametrize("frame", ["0001", "00010013000000010000", "0000000400000001ffff"])
def test_what_is_no_fetch_is_refused(frame: str) -> None:
    with pytest.raises(WireError):
        decode_request(bytes.fromhex(frame))


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(WireError, match="1 bytes left over"):
        decode_request(encode_request(FetchRequest(version=11)) + b"\0")
    with pytest.raises(WireError, match="1 bytes left over"):
        decode_response(encode_response(FetchResponse(version=11, correlation_id=3)) + b"\0", 11)


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text("abz-_.", min_size=1, max_size=140)
ids = st.binary(min_size=16, max_size=16).filter(any)


def topic_keys(version: int) -> st.SearchStrategy[dict[str, Any]]:
    if version >= 13:
        return st.builds(lambda topic_id: {"topic_id": topic_id}, ids)
    return st.builds(lambda topic: {"topic": topic}, names)


@st.composite
def requests(draw: st.DrawFn) -> FetchRequest:
    version = draw(st.integers(4, 18))
    fields = {
        "current_leader_epoch": int32 if version >= 9 else st.just(-1),
        "last_fetched_epoch": int32 if version >= 12 else st.just(-1),
        "log_start_offset": int64 if version >= 5 else st.just(-1),
    }
    entry = st.builds(
        FetchPartition,
        partition=int32,
        fetch_offset=int64,
        partition_max_bytes=int32,
        **fields,
        tags=st.just(()),
    )
    topic = st.builds(
        lambda key, parts: FetchTopic(**key, partitions=tuple(parts)),
        topic_keys(version),
        st.lists(entry, max_size=130 if draw(st.booleans()) else 3),
    )
    forgotten = st.builds(
        lambda key, parts: ForgottenTopic(**key, partitions=tuple(parts)),
        topic_keys(version),
        st.lists(int32, max_size=3),
    )
    return FetchRequest(
        version=version,
        correlation_id=draw(int32),
        client_id=draw(st.none() | names),
        replica_id=draw(int32) if version <= 14 else -1,
        max_wait_ms=draw(st.integers(0, 2**31 - 1)),
        min_bytes=draw(int32),
        max_bytes=draw(int32),
        isolation_level=draw(st.integers(0, 1)),
        session_id=draw(int32) if version >= 7 else 0,
        session_epoch=draw(int32) if version >= 7 else -1,
        topics=tuple(draw(st.lists(topic, max_size=3))),
        forgotten=tuple(draw(st.lists(forgotten, max_size=3))) if version >= 7 else (),
        rack_id=draw(names | st.just("")) if version >= 11 else "",
    )


@st.composite
def responses(draw: st.DrawFn) -> FetchResponse:
    version = draw(st.integers(4, 18))
    flexible = version >= 12
    aborted = st.builds(AbortedTransaction, producer_id=int64, first_offset=int64, tags=st.just(()))
    tags = st.lists(
        st.sampled_from([diverging_epoch_tag(3, 40), current_leader_tag(1, 8)]), unique=True, max_size=2
    ).map(lambda found: tuple(sorted(found)))
    entry = st.builds(
        PartitionData,
        partition_index=int32,
        error_code=st.sampled_from([-1, 0, 1, 3, 6, 29, 56, 74, 76, 100, 103]),
        high_watermark=int64,
        last_stable_offset=int64,
        log_start_offset=int64 if version >= 5 else st.just(-1),
        aborted=st.none() | st.lists(aborted, max_size=3).map(tuple),
        preferred_read_replica=int32 if version >= 11 else st.just(-1),
        records=st.binary(max_size=300),
        tags=tags if flexible else st.just(()),
    )
    topic = st.builds(
        lambda key, parts: TopicData(**key, partitions=tuple(parts)),
        topic_keys(version),
        st.lists(entry, max_size=4),
    )
    endpoint = st.builds(NodeEndpoint, node_id=int32, host=names, port=int32, rack=st.none() | names)
    endpoints = draw(st.lists(endpoint, max_size=2)) if version >= 16 else []
    return FetchResponse(
        version=version,
        correlation_id=draw(int32),
        throttle_time_ms=draw(st.integers(0, 2**31 - 1)),
        error_code=draw(st.sampled_from([-1, 0, 70, 71, 106])) if version >= 7 else 0,
        session_id=draw(int32) if version >= 7 else 0,
        topics=tuple(draw(st.lists(topic, max_size=3))),
        tags=(node_endpoints_tag(endpoints),) if endpoints else (),
    )


def through_kio(body: bytes, schema: type[Any]) -> bytes:
    """Decode all of `body` and encode it again with kio, a library generated from Kafka's own schemas."""
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    out = io.BytesIO()
    entity_writer(schema)(out, entity)
    return out.getvalue()


@given(requests())
def test_requests_are_what_kio_reads_and_writes(request: FetchRequest) -> None:
    frame = encode_request(request)
    module = import_module(f"kio.schema.fetch.v{request.version}.request")
    body = frame[header_size(request.version) + len(request.client_id or "") :]

    assert decode_request(frame) == request
    assert through_kio(body, module.FetchRequest) == body


@given(responses())
def test_responses_are_what_kio_reads_and_writes(response: FetchResponse) -> None:
    frame = encode_response(response)
    module = import_module(f"kio.schema.fetch.v{response.version}.response")
    body = frame[4 + (response.version >= 12) :]

    assert decode_response(frame, response.version) == response
    assert through_kio(body, module.FetchResponse) == body
