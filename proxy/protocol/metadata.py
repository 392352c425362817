"""Reads the brokers and the leaders of partitions from Metadata responses v10 to v13.

Below v10 topics have no ids (KIP-516), so a recreated topic can't be distinguished from the deleted topic of
the same name. `messages` reads the fields before and after the topics. This module reads the topics itself,
because there may be thousands of topics, each with thousands of partitions. It derives their layout from the
same schema. The layout of topics is equal from v10 to v13.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import Rows
from proxy.protocol.messages import Field, fields_at, read_fields
from proxy.protocol.primitives import (
    UUID_BYTES,
    Malformed,
    Span,
    Truncated,
    read_compact_count,
    read_int16,
    read_uvarint,
    skip_tags,
)
from proxy.protocol.schemas import METADATA

FIRST_VERSION: Final = 10
LAST_VERSION: Final = 13
LEADER_BYTES: Final = 8
"""The size of leader id and leader epoch, which are adjacent fields."""
NO_TOPIC_ID: Final = bytes(UUID_BYTES)
"""Sent for a topic without an id: the cluster is older than 2.8, or only partly upgraded (KIP-516)."""

_KEY: Final = ApiKey.METADATA


def _named(fields: tuple[Field, ...]) -> dict[str, Field]:
    return {field.name: field for field in fields}


_TOPIC: Final = _named(_named(fields_at(METADATA, LAST_VERSION))["topics"].fields)
_ENTRY: Final = _TOPIC["partitions"].fields
_INTERNAL_BYTES: Final = _TOPIC["is_internal"].size
_OPERATIONS_BYTES: Final = _TOPIC["topic_authorized_operations"].size
_FIELDS: Final = np.dtype([(field.name, f">i{field.size}") for field in _ENTRY if field.size])
"""The fields at the start of a partition's entry: error_code, partition_index, leader_id, leader_epoch."""
_ARRAYS: Final = sum(not field.size for field in _ENTRY)
"""The arrays of node ids in a partition's entry: replica_nodes, isr_nodes, offline_replicas."""
_ENTRY_BYTES: Final = _FIELDS.itemsize
_FIELD_BYTES: Final = np.arange(_ENTRY_BYTES)
_LEADER_AT: Final = _FIELDS.fields["leader_id"][1] if _FIELDS.fields else 0
"""Offset of leader_id in a partition's entry."""
_STRIDE_WORTH: Final = 4
"""From this many partitions on it pays to check whether all entries have the same size."""
MAX_STEPS: Final = 1 << 16
"""The limit of work for one response: 20 to 40 ms. A topic with known bytes takes 2 steps, any other topic
16, and a changed topic 128 more. A partition that is parsed on its own takes 1 step."""
_KNOWN_STEPS: Final = 2
_TOPIC_STEPS: Final = 16
_CHANGED_STEPS: Final = 128


MAX_LEADERS: Final = 10_000
"""How many newer leaders are read from one response."""


class Partitions(NamedTuple):
    """The partitions of a topic, one array for each field."""

    entries: npt.NDArray[np.void]
    """error_code, partition_index, leader_id (-1: none), leader_epoch (-1: unknown)."""
    at: Rows
    """The offset of each leader_id in the topic's bytes. leader_epoch follows."""


class LeaderHint(NamedTuple):
    """A newer leader, from the field current_leader of a response other than Metadata (KIP-951)."""

    topic_id: bytes
    partition: int
    leader_id: int
    leader_epoch: int


class TopicElement(NamedTuple):
    """A topic of a Metadata response, with an id and without an error."""

    topic_id: bytes
    span: Span
    """The span of these fields in the response's body: the topic's id, is_internal, and partitions."""


def read_topics(
    body: bytes, version: int, known: Mapping[bytes, bytes]
) -> tuple[set[int], list[TopicElement]]:
    """Return the listed brokers, and the topics that have an id and no error.

    If a response exceeds `MAX_STEPS`, only its first topics are returned. `body` is the complete response
    without its header, of v10 to v13. `known` has the bytes of topics that were read before (see
    `TopicElement.span`), by topic id. A topic with equal bytes is not parsed again.

    Raises:
        ProtocolError: the body does not match the version.
    """
    before, after = around_topics(version)
    head = read_fields(before, _KEY, version, body, 0)
    brokers = {broker["node_id"] for broker in head["brokers"] or ()}
    count, at = read_compact_count(body, head.span[1])
    topics: list[TopicElement] = []
    steps = MAX_STEPS
    for _ in range(count or 0):
        if steps <= 0:
            return brokers, topics
        error_code, at = read_int16(body, at)
        length, at = read_uvarint(body, at)  # name
        start = at + max(length - 1, 0)
        topic_id = body[start : start + UUID_BYTES]
        image = known.get(topic_id)
        if image is not None and body.startswith(image, start):
            end = start + len(image)
            steps -= _KNOWN_STEPS
        else:
            where, end = _find_partitions(body, start + UUID_BYTES + _INTERNAL_BYTES)
            steps -= 0 if image is None else _CHANGED_STEPS
            steps -= _TOPIC_STEPS if isinstance(where, _Alike) else _TOPIC_STEPS + len(where)
        if not error_code and topic_id != NO_TOPIC_ID:
            topics.append(TopicElement(topic_id, (start, end)))
        _, at = skip_tags(body, end + _OPERATIONS_BYTES)
    at = read_fields(after, _KEY, version, body, at, tagged=True).span[1]
    if at != len(body):
        raise Malformed(f"{len(body) - at} bytes are left over")
    return brokers, topics


@cache
def around_topics(version: int) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the fields before the topics, of which only broker ids are read, and those after them."""
    fields = fields_at(METADATA, version, frozenset({"brokers.node_id", "topics"}))
    at = [field.name for field in fields].index("topics")
    return fields[:at], fields[at + 1 :]


def partition_count(image: bytes) -> int:
    """Return the number of partitions in a topic's bytes (see `TopicElement.span`)."""
    return read_compact_count(image, UUID_BYTES + _INTERNAL_BYTES)[0] or 0


def topic_partitions(image: bytes) -> Partitions:
    """Return the partitions in a topic's bytes (see `TopicElement.span`)."""
    where, _ = _find_partitions(image, UUID_BYTES + _INTERNAL_BYTES)
    if isinstance(where, _Alike):
        entries = np.ndarray((where.number,), _FIELDS, image, where.at, (where.size,))
        starts = where.at + where.size * np.arange(where.number)
    else:
        starts = np.array(where, np.intp)
        entries = np.frombuffer(image, np.uint8)[starts[:, None] + _FIELD_BYTES].view(_FIELDS)[:, 0]
    return Partitions(entries, starts + _LEADER_AT)


class _Alike(NamedTuple):
    """Contiguous entries of partitions that all have the same size."""

    at: int
    number: int
    size: int


def _find_partitions(buffer: bytes, at: int) -> tuple[_Alike | list[int], int]:
    """Return the places of a topic's partition entries, and the offset after the last entry."""
    found, at = read_compact_count(buffer, at)
    count = found or 0
    if count >= _STRIDE_WORTH and (size := _size_of_all(buffer, at, count)):
        return _Alike(at, count, size), at + size * count
    starts: list[int] = []
    try:
        for _ in range(count):
            starts.append(at)
            at += _ENTRY_BYTES
            for _ in range(_ARRAYS):
                size = buffer[at]
                if size >= 0x80:
                    size, at = read_uvarint(buffer, at)
                    at += 4 * (size - 1)
                else:
                    at += 4 * size - 3 if size else 1
            if buffer[at]:
                _, at = skip_tags(buffer, at)
            else:
                at += 1
    except IndexError:
        raise Truncated("partition", at) from None
    return starts, at


def _size_of_all(buffer: bytes, start: int, count: int) -> int:
    """Return the size of an entry in bytes if all entries have the same size, otherwise 0.

    They have if they have the same numbers of replicas and no tags.
    """
    at, lengths = start + _ENTRY_BYTES, list[int]()
    for _ in range(_ARRAYS):
        length = buffer[at] if at < len(buffer) else 0x80
        if length >= 0x80:
            return 0
        lengths.append(at - start)
        at += 4 * length - 3 if length else 1
    size = at + 1 - start
    end = start + size * count
    if end > len(buffer) or any(
        buffer[start + i : end : size] != buffer[start + i : start + i + 1] * count for i in lengths
    ):
        return 0
    return size if buffer[at:end:size].count(0) == count else 0
