"""Fetch v16 frames as librdkafka and Kafka 4.3 send them, for measurements without a client or a broker."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tools.kafka.raw import compact_array, frame, string, uvarint

VERSION: Final = 16
OFFSET: Final = 100
"""The end offset of each partition to which nothing is produced."""

Topics: TypeAlias = Sequence[tuple[bytes, Sequence[int]]]

Key: TypeAlias = tuple[bytes, int]

_FETCH: Final = b"\0\1" + VERSION.to_bytes(2)
_LIMITS: Final = b"\0\0\0\1\3\x20\0\0\1"  # min_bytes, max_bytes, isolation_level


def fetch_request(
    correlation_id: int,
    topics: Topics,
    *,
    session: tuple[int, int] = (0, -1),
    offsets: Mapping[Key, int] | None = None,
    wait_ms: int = 500,
) -> bytes:
    """Build a request frame. Other partitions get `OFFSET`; the session (0, -1) is sessionless."""
    known = offsets or {}
    listed = [
        topic
        + compact_array(
            [_request_entry(partition, known.get((topic, partition), OFFSET)) for partition in each]
        )
        + b"\0"
        for topic, each in topics
    ]
    ids = session[0].to_bytes(4) + session[1].to_bytes(4, signed=True)
    body = (
        wait_ms.to_bytes(4) + _LIMITS + ids + compact_array(listed) + b"\1\1\0"
    )  # nothing forgotten, no rack, no tags
    return frame(_FETCH + correlation_id.to_bytes(4) + string("rdkafka") + b"\0" + body)


def fetch_response(
    correlation_id: int, topics: Topics, *, session_id: int = 0, records: Mapping[Key, bytes] | None = None
) -> bytes:
    """Build a complete response frame. Partitions that are not in `records` are empty."""
    found = records or {}
    listed = [
        topic
        + compact_array(
            [_response_entry(partition, found.get((topic, partition), b"")) for partition in each]
        )
        + b"\0"
        for topic, each in topics
    ]
    body = bytes(6) + session_id.to_bytes(4) + compact_array(listed) + b"\0"
    return frame(correlation_id.to_bytes(4) + b"\0" + body)


def rotated(topics: Topics, by: int) -> list[tuple[bytes, list[int]]]:
    """Return the list as librdkafka would after `by` rotations. A topic may then be in two elements."""
    flat = [(topic, partition) for topic, each in topics for partition in each]
    found: list[tuple[bytes, list[int]]] = []
    for topic, partition in flat[by:] + flat[:by]:
        if found and found[-1][0] == topic:
            found[-1][1].append(partition)
        else:
            found.append((topic, [partition]))
    return found


def _request_entry(partition: int, offset: int) -> bytes:
    # current_leader_epoch, 0 on a new broker, comes before the offset
    unset = b"\xff" * 12  # last_fetched_epoch, log_start_offset
    return b"".join((partition.to_bytes(4), bytes(4), offset.to_bytes(8), unset, b"\0\x10\0\0", b"\0"))


def _response_entry(partition: int, records: bytes) -> bytes:
    offsets = OFFSET.to_bytes(8) * 2 + bytes(8)  # high watermark, last stable offset, log start
    return b"".join(
        (
            partition.to_bytes(4),
            b"\0\0",
            offsets,
            b"\1\xff\xff\xff\xff",  # no aborted transactions, no preferred replica
            uvarint(len(records) + 1),
            records,
            b"\0",
        )
    )
