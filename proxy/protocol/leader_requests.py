"""What the gateway itself asks about leaders: Metadata v7 and v12, OffsetForLeaderEpoch v2.

Every broker that takes Fetch v9 or Produce v7 takes Metadata v7 and OffsetForLeaderEpoch v2 (2.1, KIP-320).
Every broker that takes Fetch v13 takes Metadata v12, which asks by topic id (3.1, KIP-516).
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from proxy.protocol.api import LENGTH_BYTES, ApiKey, response_header
from proxy.protocol.metadata import read_partitions
from proxy.protocol.primitives import (
    UUID_BYTES,
    Truncated,
    encode_compact_count,
    encode_count,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int16,
    read_string,
    skip_tags,
)

BY_NAME: Final = 7
"""Version of Metadata that asks by name. It has leader epochs (KIP-320), and is not flexible."""
BY_ID: Final = 12
"""Version of Metadata that asks by topic id."""
EPOCHS_VERSION: Final = 2
"""Of OffsetForLeaderEpoch: it has current_leader_epoch (KIP-320)."""

Place: TypeAlias = tuple[bytes, int]
"""Name or id of a topic as the client's fetch has it, and a partition."""

_HEAD = Struct(">hhi")  # api_key, api_version, correlation_id
_PARTITION = Struct(">hiii")  # error_code, partition_index, leader_id, leader_epoch
_ASKED = Struct(">iii")  # partition, current_leader_epoch, leader_epoch
_END = Struct(">hiiq")  # error_code, partition, leader_epoch, end_offset
_NO_NAME: Final = b"\x00"


class Leader(NamedTuple):
    """Who leads a partition, as a broker says."""

    leader_id: int
    """-1: nobody."""
    leader_epoch: int
    topic: bytes
    """The topic's name."""


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in the log of a broker."""

    error_code: int
    leader_epoch: int
    """The largest one of the log that is not above the one that was asked for."""
    end_offset: int
    """The offset after its last record."""


def metadata_request(correlation_id: int, client_id: bytes, topics: Iterable[bytes], *, by_id: bool) -> bytes:
    """Ask who leads the partitions of some topics; no topic is made.

    Args:
        correlation_id: its own.
        client_id: whose connection it is.
        topics: their names, or ids.
        by_id: these are ids.
    """
    listed = list(topics)
    head = _head(ApiKey.METADATA, BY_ID if by_id else BY_NAME, correlation_id, client_id)
    if by_id:
        elements = b"".join(topic + _NO_NAME + b"\0" for topic in listed)
        # No tags in the header; then allow_auto_topic_creation, include_topic_authorized_operations, no tags.
        return _framed(head + b"\0" + encode_compact_count(len(listed)) + elements + b"\0\0\0")
    elements = b"".join(map(_string, listed))
    return _framed(head + encode_count(len(listed)) + elements + b"\0")


def read_metadata(frame: bytes, *, by_id: bool) -> dict[Place, Leader]:
    """Return the leaders that a Metadata response names, of partitions without an error.

    Raises:
        ProtocolError: it is no such response.
    """
    version = BY_ID if by_id else BY_NAME
    _, at = response_header(frame, LENGTH_BYTES, ApiKey.METADATA, version)
    return _read_by_id(frame, at + 4) if by_id else _read_by_name(frame, at + 4)  # throttle_time_ms


def _read_by_name(frame: bytes, at: int) -> dict[Place, Leader]:
    brokers, at = read_count(frame, at)
    for _ in range(brokers or 0):
        _, at = read_string(frame, at + 4)  # node_id, host
        _, at = read_string(frame, at + 4)  # port, rack
    _, at = read_string(frame, at)  # cluster_id
    topics, at = read_count(frame, at + 4)  # controller_id
    leaders: dict[Place, Leader] = {}
    for _ in range(topics or 0):
        name, at = read_string(frame, at + 2)  # error_code
        partitions, at = read_count(frame, at + 1)  # is_internal
        for _ in range(partitions or 0):
            if at + _PARTITION.size > len(frame):
                raise Truncated("partition", at)
            error, index, leader, epoch = _PARTITION.unpack_from(frame, at)
            at += _PARTITION.size
            for _ in range(3):  # replica_nodes, isr_nodes, offline_replicas
                count, at = read_count(frame, at)
                at += 4 * (count or 0)
            if not error:
                leaders[name or b"", index] = Leader(leader, epoch, name or b"")
    return leaders


def _read_by_id(frame: bytes, at: int) -> dict[Place, Leader]:
    brokers, at = read_compact_count(frame, at)
    for _ in range(brokers or 0):
        _, at = read_compact_string(frame, at + 4)
        _, at = read_compact_string(frame, at + 4)
        _, at = skip_tags(frame, at)
    _, at = read_compact_string(frame, at)
    topics, at = read_compact_count(frame, at + 4)
    leaders: dict[Place, Leader] = {}
    for _ in range(topics or 0):
        _, at = read_int16(frame, at)
        name, at = read_compact_string(frame, at)
        topic_id = frame[at : at + UUID_BYTES]
        partitions, at = read_partitions(frame, at + UUID_BYTES + 1)
        _, at = skip_tags(frame, at + 4)  # topic_authorized_operations
        for error, index, leader, epoch in partitions.entries.tolist():
            if not error:
                leaders[topic_id, index] = Leader(leader, epoch, name or b"")
    return leaders


def epochs_request(
    correlation_id: int, client_id: bytes, asked: Mapping[bytes, Iterable[tuple[int, int, int]]]
) -> bytes:
    """Ask a leader where epochs end in its log.

    Args:
        correlation_id: its own.
        client_id: whose connection it is.
        asked: by topic name: partition, the epoch in which the broker is to lead it, the epoch in question.
    """
    topics = []
    for name, partitions in asked.items():
        entries = [_ASKED.pack(*entry) for entry in partitions]
        topics.append(_string(name) + encode_count(len(entries)) + b"".join(entries))
    head = _head(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCHS_VERSION, correlation_id, client_id)
    return _framed(head + encode_count(len(topics)) + b"".join(topics))


def read_epochs(frame: bytes) -> dict[Place, EpochEnd]:
    """Return what an OffsetForLeaderEpoch response says, by topic name and partition.

    Raises:
        ProtocolError: it is no such response.
    """
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    _, at = response_header(frame, LENGTH_BYTES, key, EPOCHS_VERSION)
    topics, at = read_count(frame, at + 4)  # throttle_time_ms
    ends: dict[Place, EpochEnd] = {}
    for _ in range(topics or 0):
        name, at = read_string(frame, at)
        partitions, at = read_count(frame, at)
        for _ in range(partitions or 0):
            if at + _END.size > len(frame):
                raise Truncated("partition", at)
            error, index, epoch, end = _END.unpack_from(frame, at)
            at += _END.size
            ends[name or b"", index] = EpochEnd(error, epoch, end)
    return ends


def _head(api_key: int, version: int, correlation_id: int, client_id: bytes) -> bytes:
    return _HEAD.pack(api_key, version, correlation_id) + _string(client_id)


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content
