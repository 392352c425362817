"""Fetch requests and responses, v0 to v18, as dataclasses and as bytes. All fields and tags are kept.

Field order and versions are those of Kafka's ``FetchRequest.json`` and ``FetchResponse.json``. Frames have no
4-byte length. Decoding fails if bytes are left over.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.model.primitives import NO_TAGS, Reader, Tags, WireError, Writer

FETCH = 1
ZERO_ID = bytes(16)


def find_tag(tags: Tags, wanted: int) -> bytes | None:
    return next((payload for tag, payload in tags if tag == wanted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """A partition's entry in a request. Fields that the version does not have keep their default values."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int = 1 << 20
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    tags: Tags = NO_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """A topic element of a request. Up to v12 it has the topic's name, from v13 on the topic's id."""

    topic: str = ""
    topic_id: bytes = ZERO_ID
    partitions: tuple[FetchPartition, ...]
    tags: Tags = NO_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    topic: str = ""
    topic_id: bytes = ZERO_ID
    partitions: tuple[int, ...]
    tags: Tags = NO_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    version: int
    correlation_id: int = 1
    client_id: str | None = "model"
    header_tags: Tags = NO_TAGS
    replica_id: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: tuple[FetchTopic, ...] = ()
    forgotten: tuple[ForgottenTopic, ...] = ()
    rack_id: str = ""
    tags: Tags = NO_TAGS

    @property
    def replica(self) -> int:
        """-1 if a consumer sent the request, otherwise the broker id of the follower (in a tag from v15
        on).
        """
        state = find_tag(self.tags, 1) if self.version >= 15 else None
        return self.replica_id if state is None else int.from_bytes(state[:4], "big", signed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int
    tags: Tags = NO_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """A partition's entry in a response."""

    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: int = -1
    records: bytes | None = b""
    tags: Tags = NO_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic: str = ""
    topic_id: bytes = ZERO_ID
    partitions: tuple[PartitionData, ...]
    tags: Tags = NO_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    version: int
    correlation_id: int
    header_tags: Tags = NO_TAGS
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    topics: tuple[TopicData, ...] = field(default=())
    tags: Tags = NO_TAGS


def diverging_epoch_tag(epoch: int, end_offset: int) -> tuple[int, bytes]:
    return 0, struct.pack(">iq", epoch, end_offset) + b"\0"


def current_leader_tag(leader_id: int, leader_epoch: int) -> tuple[int, bytes]:
    return 1, struct.pack(">ii", leader_id, leader_epoch) + b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


def node_endpoints_tag(endpoints: Sequence[NodeEndpoint]) -> tuple[int, bytes]:
    def one(out: Writer, node: NodeEndpoint) -> None:
        out.number("i", node.node_id)
        out.string(node.host)
        out.number("i", node.port)
        out.string(node.rack)
        out.tags(NO_TAGS)

    out = Writer(flexible=True)
    out.array(endpoints, one)
    return 0, bytes(out.data)


def _read_topic(r: Reader, version: int) -> tuple[str, bytes]:
    return ("", r.take(16)) if version >= 13 else (r.text(), ZERO_ID)


def _write_topic(w: Writer, version: int, name: str, topic_id: bytes) -> None:
    if version >= 13:
        w.raw(topic_id)
    else:
        w.string(name)


def decode_request(frame: bytes) -> FetchRequest:
    """Decode a whole Fetch request with its header.

    Raises:
        WireError: the frame is not a Fetch request v0-v18, ends early, or has bytes left over.
    """
    r = Reader(frame)
    if r.number("h") != FETCH:
        raise WireError("not a fetch")
    version = r.number("h")
    if not 0 <= version <= 18:
        raise WireError(f"Fetch v{version}")
    correlation_id, client_id = r.number("i"), r.string()
    r.flexible = version >= 12

    def entry(r: Reader) -> FetchPartition:
        partition = r.number("i")
        current_leader_epoch = r.number("i") if version >= 9 else -1
        fetch_offset = r.number("q")
        last_fetched_epoch = r.number("i") if version >= 12 else -1
        log_start_offset = r.number("q") if version >= 5 else -1
        return FetchPartition(
            partition=partition,
            current_leader_epoch=current_leader_epoch,
            fetch_offset=fetch_offset,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=log_start_offset,
            partition_max_bytes=r.number("i"),
            tags=r.tags(),
        )

    def element(r: Reader) -> FetchTopic:
        name, topic_id = _read_topic(r, version)
        return FetchTopic(topic=name, topic_id=topic_id, partitions=r.array(entry), tags=r.tags())

    def forgotten(r: Reader) -> ForgottenTopic:
        name, topic_id = _read_topic(r, version)
        partitions = r.array(lambda r: r.number("i"))
        return ForgottenTopic(topic=name, topic_id=topic_id, partitions=partitions, tags=r.tags())

    request = FetchRequest(
        version=version,
        correlation_id=correlation_id,
        client_id=client_id,
        header_tags=r.tags(),
        replica_id=r.number("i") if version <= 14 else -1,
        max_wait_ms=r.number("i"),
        min_bytes=r.number("i"),
        max_bytes=r.number("i") if version >= 3 else 0x7FFFFFFF,
        isolation_level=r.number("b") if version >= 4 else 0,
        session_id=r.number("i") if version >= 7 else 0,
        session_epoch=r.number("i") if version >= 7 else -1,
        topics=r.array(element),
        forgotten=r.array(forgotten) if version >= 7 else (),
        rack_id=r.text() if version >= 11 else "",
        tags=r.tags(),
    )
    r.end()
    return request


def encode_request(request: FetchRequest) -> bytes:
    """Encode a request with its header, without the fields that the version does not have."""
    version = request.version
    w = Writer()
    w.number("h", FETCH)
    w.number("h", version)
    w.number("i", request.correlation_id)
    w.string(request.client_id)
    w.flexible = version >= 12
    w.tags(request.header_tags)

    def entry(w: Writer, part: FetchPartition) -> None:
        w.number("i", part.partition)
        if version >= 9:
            w.number("i", part.current_leader_epoch)
        w.number("q", part.fetch_offset)
        w.number("i", part.last_fetched_epoch, when=version >= 12)
        if version >= 5:
            w.number("q", part.log_start_offset)
        w.number("i", part.partition_max_bytes)
        w.tags(part.tags)

    def element(w: Writer, item: FetchTopic) -> None:
        _write_topic(w, version, item.topic, item.topic_id)
        w.array(item.partitions, entry)
        w.tags(item.tags)

    def forgotten(w: Writer, item: ForgottenTopic) -> None:
        _write_topic(w, version, item.topic, item.topic_id)
        w.array(item.partitions, lambda w, partition: w.number("i", partition))
        w.tags(item.tags)

    if version <= 14:
        w.number("i", request.replica_id)
    w.number("i", request.max_wait_ms)
    w.number("i", request.min_bytes)
    w.number("i", request.max_bytes, when=version >= 3)
    w.number("b", request.isolation_level, when=version >= 4)
    w.number("i", request.session_id, when=version >= 7)
    w.number("i", request.session_epoch, when=version >= 7)
    w.array(request.topics, element)
    if version >= 7:
        w.array(request.forgotten, forgotten)
    if version >= 11:
        w.string(request.rack_id)
    w.tags(request.tags)
    return bytes(w.data)


def decode_response(frame: bytes, version: int) -> FetchResponse:
    """Decode a whole Fetch response with its header.

    Raises:
        WireError: the frame ends early or has bytes left over.
    """
    r = Reader(frame, flexible=version >= 12)

    def aborted(r: Reader) -> AbortedTransaction:
        return AbortedTransaction(producer_id=r.number("q"), first_offset=r.number("q"), tags=r.tags())

    def entry(r: Reader) -> PartitionData:
        return PartitionData(
            partition_index=r.number("i"),
            error_code=r.number("h"),
            high_watermark=r.number("q"),
            last_stable_offset=r.number("q") if version >= 4 else -1,
            log_start_offset=r.number("q") if version >= 5 else -1,
            aborted=r.nullable_array(aborted) if version >= 4 else None,
            preferred_read_replica=r.number("i") if version >= 11 else -1,
            records=r.blob(),
            tags=r.tags(),
        )

    def element(r: Reader) -> TopicData:
        name, topic_id = _read_topic(r, version)
        return TopicData(topic=name, topic_id=topic_id, partitions=r.array(entry), tags=r.tags())

    response = FetchResponse(
        version=version,
        correlation_id=r.number("i"),
        header_tags=r.tags(),
        throttle_time_ms=r.number("i") if version >= 1 else 0,
        error_code=r.number("h") if version >= 7 else 0,
        session_id=r.number("i") if version >= 7 else 0,
        topics=r.array(element),
        tags=r.tags(),
    )
    r.end()
    return response


def encode_response(response: FetchResponse) -> bytes:
    """Encode a response with its header, without the fields that the version does not have."""
    version = response.version
    w = Writer(flexible=version >= 12)
    w.number("i", response.correlation_id)
    w.tags(response.header_tags)

    def aborted(w: Writer, transaction: AbortedTransaction) -> None:
        w.number("q", transaction.producer_id)
        w.number("q", transaction.first_offset)
        w.tags(transaction.tags)

    def entry(w: Writer, data: PartitionData) -> None:
        w.number("i", data.partition_index)
        w.number("h", data.error_code)
        w.number("q", data.high_watermark)
        w.number("q", data.last_stable_offset, when=version >= 4)
        w.number("q", data.log_start_offset, when=version >= 5)
        if version >= 4:
            w.array(data.aborted, aborted)
        w.number("i", data.preferred_read_replica, when=version >= 11)
        w.blob(data.records)
        w.tags(data.tags)

    def element(w: Writer, item: TopicData) -> None:
        _write_topic(w, version, item.topic, item.topic_id)
        w.array(item.partitions, entry)
        w.tags(item.tags)

    w.number("i", response.throttle_time_ms, when=version >= 1)
    w.number("h", response.error_code, when=version >= 7)
    w.number("i", response.session_id, when=version >= 7)
    w.array(response.topics, element)
    w.tags(response.tags)
    return bytes(w.data)
