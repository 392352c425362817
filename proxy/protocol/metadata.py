"""Metadata responses v10 to v13: which brokers they list, and who leads the partitions of their topics.

Below v10 topics have no ids (KIP-516), so nobody can say whether a partition belongs to the topic that had
its name before. From v10 to v13 topics are written in one way.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from proxy.protocol.primitives import (
    UUID_BYTES,
    Buffer,
    Malformed,
    Span,
    Truncated,
    read_compact_count,
    read_compact_string,
    read_int16,
    read_int32,
    read_uvarint,
    skip_tags,
)

FIRST_VERSION: Final = 10
LAST_VERSION: Final = 13
LEADER_BYTES: Final = 8
"""Leader id and leader epoch, side by side."""
NO_TOPIC_ID: Final = bytes(UUID_BYTES)
"""The topic has no id: the broker is older than 2.8, or upgraded only in part (KIP-516)."""

_AUTHORIZED_UNTIL: Final = 10
"""cluster_authorized_operations: v8 to v10."""
_ERROR_SINCE: Final = 13
_INTERNAL_BYTES: Final = 1
_ENTRY: Final = struct.Struct(">hiii")  # error_code, partition_index, leader_id, leader_epoch
_LEADER_AT: Final = 6
"""Of leader_id, in an entry."""


MAX_LEADERS: Final = 10_000
"""So many are read of one response that names newer leaders."""


class PartitionLeader(NamedTuple):
    """What an entry says of its partition."""

    error_code: int
    leader_id: int
    """-1: there is none."""
    leader_epoch: int
    """-1: it is not known."""
    at: int
    """Offset of leader_id; leader_epoch follows it."""


class LeaderHint(NamedTuple):
    """A newer leader that a response other than Metadata names: current_leader (KIP-951)."""

    topic_id: bytes
    partition: int
    leader_id: int
    leader_epoch: int


class TopicElement(NamedTuple):
    """A topic of a response that has an id and no error."""

    topic_id: bytes
    span: Span
    """Its id, is_internal, and the partitions."""


def read_topics(
    body: bytes, version: int, known: Mapping[bytes, bytes]
) -> tuple[set[int], list[TopicElement]]:
    """Return the brokers that a response lists, and the topics that have an id and no error.

    Args:
        body: the response without its header, whole.
        version: v10 to v13.
        known: the bytes of topics as in `TopicElement.span`, by id. The same bytes are not walked again.

    Raises:
        ProtocolError: the body is not of that version.
    """
    brokers, at = _read_brokers(body, 4)  # throttle_time_ms
    _, at = read_compact_string(body, at)  # cluster_id
    count, at = read_compact_count(body, at + 4)  # controller_id
    topics: list[TopicElement] = []
    for _ in range(count or 0):
        error_code, at = read_int16(body, at)
        length, at = read_uvarint(body, at)  # name
        start = at + max(length - 1, 0)
        topic_id = body[start : start + UUID_BYTES]
        image = known.get(topic_id)
        if image is not None and body.startswith(image, start):
            end = start + len(image)
        else:
            _, end = read_partitions(body, start + UUID_BYTES + _INTERNAL_BYTES)
        if not error_code and topic_id != NO_TOPIC_ID:
            topics.append(TopicElement(topic_id, (start, end)))
        _, at = skip_tags(body, end + 4)  # topic_authorized_operations
    at += 4 * (version <= _AUTHORIZED_UNTIL) + 2 * (version >= _ERROR_SINCE)
    _, at = skip_tags(body, at)
    if at != len(body):
        raise Malformed(f"{len(body) - at} bytes are left over")
    return brokers, topics


def partition_count(image: bytes) -> int:
    """Return how many partitions a topic has, of its bytes as in `TopicElement.span`."""
    return read_compact_count(image, UUID_BYTES + _INTERNAL_BYTES)[0] or 0


def topic_partitions(image: bytes) -> dict[int, PartitionLeader]:
    """Return what a topic's bytes, as in `TopicElement.span`, say of its partitions."""
    return read_partitions(image, UUID_BYTES + _INTERNAL_BYTES)[0]


def read_partitions(buffer: bytes, at: int) -> tuple[dict[int, PartitionLeader], int]:
    """Read the partitions of a topic, by index.

    Raises:
        ProtocolError: these are none.
    """
    count, at = read_compact_count(buffer, at)
    partitions: dict[int, PartitionLeader] = {}
    try:
        for _ in range(count or 0):
            error_code, index, leader_id, leader_epoch = _ENTRY.unpack_from(buffer, at)
            partitions[index] = PartitionLeader(error_code, leader_id, leader_epoch, at + _LEADER_AT)
            at += _ENTRY.size
            for _ in range(3):  # replica_nodes, isr_nodes, offline_replicas
                at = _skip_int32s(buffer, at)
            if buffer[at]:
                _, at = skip_tags(buffer, at)
            else:
                at += 1
    except (struct.error, IndexError):
        raise Truncated("partition", at) from None
    return partitions, at


def _skip_int32s(buffer: bytes, at: int) -> int:
    if (count := buffer[at]) >= 0x80:
        count, at = read_uvarint(buffer, at)
        return at + 4 * (count - 1)
    return at + 1 + 4 * (count - 1 if count else 0)


def _read_brokers(body: Buffer, at: int) -> tuple[set[int], int]:
    count, at = read_compact_count(body, at)
    brokers: set[int] = set()
    for _ in range(count or 0):
        node_id, at = read_int32(body, at)
        brokers.add(node_id)
        _, at = read_compact_string(body, at)  # host
        _, at = read_compact_string(body, at + 4)  # port, rack
        _, at = skip_tags(body, at)
    return brokers, at
