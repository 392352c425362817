"""Builds Metadata responses, and other responses that name partition leaders, for tests."""

import struct
from collections.abc import Iterable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tests.protocol.kio_messages import encode

BROKERS: Final = (1, 2, 3)
ORDERS: Final = UUID(int=0xA1)
OTHERS: Final = UUID(int=0xB2)

Told = Mapping[int, tuple[int, int]]
"""Partition -> leader id and leader epoch."""


def partition(version: int, index: int, leader: int, epoch: int, error: ErrorCode = ErrorCode.none) -> Any:
    module = import_module(f"kio.schema.metadata.v{version}.response")
    return module.MetadataResponsePartition(
        error_code=error,
        partition_index=i32(index),
        leader_id=BrokerId(leader),
        leader_epoch=i32(epoch),
        replica_nodes=tuple(map(BrokerId, BROKERS)),
        isr_nodes=tuple(map(BrokerId, BROKERS[:2])),
        offline_replicas=(),
    )


def topic(
    version: int,
    topic_id: UUID | None,
    partitions: Iterable[Any],
    *,
    name: str = "orders",
    error: ErrorCode = ErrorCode.none,
) -> Any:
    module = import_module(f"kio.schema.metadata.v{version}.response")
    more: dict[str, Any] = {"topic_authorized_operations": i32(-(2**31))} if version >= 8 else {}
    if version >= 10:
        more["topic_id"] = topic_id
    return module.MetadataResponseTopic(
        error_code=error, name=TopicName(name), is_internal=False, partitions=tuple(partitions), **more
    )


def message(version: int, *topics: Any, brokers: Iterable[int] = BROKERS) -> Any:
    module = import_module(f"kio.schema.metadata.v{version}.response")
    more: dict[str, Any] = {"cluster_authorized_operations": i32(-(2**31))} if 8 <= version <= 10 else {}
    if version >= 13:
        more["error_code"] = ErrorCode.none
    return module.MetadataResponse(
        throttle_time=timedelta(),
        brokers=tuple(
            module.MetadataResponseBroker(
                node_id=BrokerId(node_id), host=f"broker-{node_id}", port=i32(9092), rack=None
            )
            for node_id in brokers
        ),
        cluster_id="cluster",
        controller_id=BrokerId(1),
        topics=topics,
        **more,
    )


def body(
    version: int,
    told: Told,
    *,
    topic_id: UUID | None = ORDERS,
    brokers: Iterable[int] = BROKERS,
    tags: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """Build the body of a Metadata response with one topic."""
    entries = [partition(version, index, *leader) for index, leader in told.items()]
    return encode(message(version, topic(version, topic_id, entries), brokers=brokers), tags)


def moved(api_key: int, topic_id: UUID, leader: tuple[int, int]) -> bytes:
    """Build a response of Produce, ShareFetch or ShareAcknowledge. It says that partition 0 has another
    leader (error 6).
    """
    head = bytes(4) + b"\0\6"  # partition_index, error_code
    told = struct.pack(">ii", *leader) + b"\0"
    endpoint = struct.pack(">i", leader[0]) + _compact(f"broker-{leader[0]}") + struct.pack(">i", 9092)
    endpoints = _one(endpoint + b"\0\0")
    if api_key == 0:  # base_offset, log_append_time, log_start_offset, record_errors, error_message
        entry = head + b"\xff" * 24 + b"\1\0" + _tag(told)
        return _one(topic_id.bytes + _one(entry) + b"\0") + bytes(4) + _tag(endpoints)
    share_fetch = (
        api_key == 78
    )  # error_message, acknowledge_error_code and _message; records, acquired_records
    entry = head + bytes(4) + told + b"\0\1\0" if share_fetch else head + b"\0" + told + b"\0"
    lock = bytes(4)  # acquisition_lock_timeout_ms
    return bytes(4 + 2 + 1) + lock + _one(topic_id.bytes + _one(entry) + b"\0") + endpoints + b"\0"


def _one(element: bytes) -> bytes:
    return b"\2" + element


def _tag(payload: bytes) -> bytes:
    """Build a tag buffer whose only tag is tag 0."""
    return b"\1\0" + bytes([len(payload)]) + payload


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()
