"""Reads Produce requests and responses.

It finds out whether there will be a response, which batches can be retried, and their results.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, ApiKey, request_header, response_header
from proxy.protocol.fetch_request import MAX_NAME
from proxy.protocol.primitives import (
    Buffer,
    Malformed,
    ProtocolError,
    Truncated,
    encode_compact_count,
    encode_count,
    encode_uvarint,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int16,
    read_int32,
    read_string,
    read_uvarint,
    skip_tags,
)

READ_WITHIN: Final = 1 << 17
"""The number of bytes at the start of a forwarded request in which the gateway reads fields, such as acks.
The fields must be within these bytes."""

_FIRST_TRANSACTIONAL: Final = 3
_FIRST_FLEXIBLE: Final = 9
_RECORD_ERRORS_SINCE: Final = 8


def acks(frame: Buffer, version: int, body_offset: int) -> int | None:
    """Read the field acks of a Produce request: the replicas for which the broker waits.

    If acks is 0, the broker sends no response. Up to v2, acks is the first field of the body. From v3 on, it
    follows the transactional id.

    Args:
        frame: a request, or its first bytes.
        version: the version of the request.
        body_offset: the offset of the body.

    Returns:
        -1 (all in sync), 0 or 1. None if more bytes are needed.

    Raises:
        ProtocolError: the transactional id is not valid.
    """
    try:
        return read_acks(frame, version, body_offset)[0]
    except Truncated:
        return None


def read_acks(frame: Buffer, version: int, body_offset: int) -> tuple[int, int]:
    """Read the field acks of a Produce request (see `acks`). Return its value, and the offset after it."""
    at = body_offset
    # KIP-98: from v3 on the transactional id is the first field (fetch-semantics, trap 32; case 86).
    if version >= _FIRST_FLEXIBLE:
        _, at = read_compact_string(frame, at)
    elif version >= _FIRST_TRANSACTIONAL:
        _, at = read_string(frame, at)
    return read_int16(frame, at)


def wants_response(data: Buffer, size: int) -> bool | None:
    """Return whether a broker responds to a Produce request of this size, given its first bytes.

    Return None if more bytes are needed. If acks can't be read, or is not within `READ_WITHIN`, return True.
    """
    try:
        _, version, _, _, at = request_header(data, LENGTH_BYTES)
        found = acks(data, version, at)
    except Truncated:
        found = None
    except ProtocolError:
        return True
    if found is None:
        return None if len(data) < min(size, READ_WITHIN) else True
    # With acks=0 a broker sends nothing, not even an error (fetch-semantics, trap 32; case 86).
    return found != 0


FIRST_FOLLOWED: Final = 7
"""The first Produce version whose batches are read. Brokers that support it also support Metadata v7 (Kafka
2.1)."""
LAST_FOLLOWED: Final = 9
"""The last Produce version whose batches are read. Later versions name new leaders in responses (KIP-951)."""

_BATCH = Struct(">qiibIhiqqqhii")
"""The start of a record batch: base_offset, batch_length, partition_leader_epoch, magic, crc, attributes,
last_offset_delta, first and last timestamp, producer_id, producer_epoch, base_sequence, number of records
(KIP-98)."""
_BATCH_OVERHEAD: Final = 12
"""The size of base_offset and batch_length, in bytes. The value of batch_length does not include them."""
_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10
_OFFSETS = Struct(">qqq")
"""The fields of a partition's entry in a Produce response (v5 and later): base_offset, log_append_time_ms,
log_start_offset."""
_MAX_PARTITIONS: Final = 1 << 14


class ProducedBatch(NamedTuple):
    """The batch of one partition in a request."""

    topic: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    sequence: int
    """The sequence number of the batch's first record."""
    next_sequence: int
    """The first sequence number of the producer's next batch."""
    entry: bytes
    """The partition's entry in the request."""


class Produced(NamedTuple):
    """A non-transactional Produce request with idempotent batches, which the broker will answer."""

    frame: bytes
    body: int
    """The position in the frame where the request body begins, in bytes."""
    topics_at: int
    """The position in the frame where the topics begin, in bytes."""
    version: int
    batches: list[ProducedBatch]


class ProducedEntry(NamedTuple):
    """The entry of one partition in a Produce response."""

    error_code: int
    start: int
    end: int


def read_idempotent(frame: bytes, version: int) -> Produced | None:
    """Read a Produce request, v7 to v9.

    Returns:
        None if its batches can't be retried one by one, for example if a batch is transactional or not
            idempotent, if acks is 0, or if a partition is listed twice.

    Raises:
        ProtocolError: the frame is not a Produce request of its version.
    """
    *_, body = request_header(frame, LENGTH_BYTES)
    flexible = version >= _FIRST_FLEXIBLE
    transactional_id, at = (read_compact_string if flexible else read_string)(frame, body)
    found, at = read_int16(frame, at)
    if transactional_id is not None or not found:
        return None
    topics_at = at = at + 4  # timeout_ms
    read = read_compact_count if flexible else read_count
    batches: list[ProducedBatch] = []
    topics, at = read(frame, at)
    for _ in range(topics or 0):
        name, at = (read_compact_string if flexible else read_string)(frame, at)
        if len(name or b"") > MAX_NAME:
            return None
        partitions, at = read(frame, at)
        for _ in range(partitions or 0):
            start = at
            index, at = read_int32(frame, at)
            if flexible:
                size, at = read_uvarint(frame, at)
                size -= 1
            else:
                size, at = read_int32(frame, at)
            records = at
            at = records + size
            if size < _BATCH.size or at > len(frame) or len(batches) == _MAX_PARTITIONS:
                return None
            if flexible:
                _, at = skip_tags(frame, at)
            batch = _batch(frame, records, size, name or b"", index, frame[start:at])
            if batch is None:
                return None
            batches.append(batch)
        if flexible:
            _, at = skip_tags(frame, at)
    if flexible:
        _, at = skip_tags(frame, at)
    if at != len(frame):
        raise Malformed(f"{len(frame) - at} bytes after a produce request")
    places = {(batch.topic, batch.partition) for batch in batches}
    return Produced(frame, body, topics_at, version, batches) if len(places) == len(batches) else None


def _batch(
    frame: bytes, at: int, size: int, topic: bytes, partition: int, entry: bytes
) -> ProducedBatch | None:
    _, length, _, magic, _, attributes, delta, _, _, producer, epoch, sequence, _ = _BATCH.unpack_from(
        frame, at
    )
    if magic != _MAGIC or length + _BATCH_OVERHEAD != size or attributes & _TRANSACTIONAL:
        return None
    if producer < 0 or sequence < 0 or delta < 0:
        return None
    # Sequences go from 0 to 2^31-1 and start again (KIP-98).
    following = (sequence + delta + 1) & 0x7FFFFFFF
    return ProducedBatch(topic, partition, producer, epoch, sequence, following, entry)


def some_of(produced: Produced, batches: Iterable[ProducedBatch], correlation_id: int) -> bytes:
    """Return the frame of a Produce request that has only the given batches of `produced`."""
    flexible = produced.version >= _FIRST_FLEXIBLE
    by_topic: dict[bytes, list[bytes]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch.entry)
    count = encode_compact_count if flexible else encode_count
    end = b"\0" if flexible else b""
    topics = [
        (encode_uvarint(len(name) + 1) if flexible else len(name).to_bytes(2))
        + name
        + count(len(entries))
        + b"".join(entries)
        + end
        for name, entries in by_topic.items()
    ]
    head = produced.frame[LENGTH_BYTES : produced.topics_at]
    at = REQUEST_CORRELATION_ID.start - LENGTH_BYTES
    head = head[:at] + correlation_id.to_bytes(4) + head[at + 4 :]
    content = head + count(len(topics)) + b"".join(topics) + end
    return len(content).to_bytes(4) + content


def read_response(frame: bytes, version: int) -> dict[tuple[bytes, int], ProducedEntry]:
    """Read a Produce response, v7 to v9.

    Raises:
        ProtocolError: the frame is not a Produce response of its version.
    """
    flexible = version >= _FIRST_FLEXIBLE
    _, at = response_header(frame, LENGTH_BYTES, ApiKey.PRODUCE, version)
    read = read_compact_count if flexible else read_count
    text = read_compact_string if flexible else read_string
    entries: dict[tuple[bytes, int], ProducedEntry] = {}
    topics, at = read(frame, at)
    for _ in range(topics or 0):
        name, at = text(frame, at)
        partitions, at = read(frame, at)
        for _ in range(partitions or 0):
            start = at
            index, at = read_int32(frame, at)
            error, at = read_int16(frame, at)
            at += _OFFSETS.size
            if version >= _RECORD_ERRORS_SINCE:
                errors, at = read(frame, at)
                for _ in range(errors or 0):
                    _, at = text(frame, at + 4)
                    if flexible:
                        _, at = skip_tags(frame, at)
                _, at = text(frame, at)
            if flexible:
                _, at = skip_tags(frame, at)
            if at > len(frame):
                raise Truncated("partition", start)
            entries[name or b"", index] = ProducedEntry(error, start, at)
        if flexible:
            _, at = skip_tags(frame, at)
    at += 4  # throttle_time_ms
    if flexible:
        _, at = skip_tags(frame, at)
    if at != len(frame):
        raise Malformed(f"{len(frame) - at} bytes after a produce response")
    return entries
