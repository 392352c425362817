"""What a Metadata response tells of topics: which name goes with which id."""

from typing import Final

from proxy.protocol.primitives import (
    Buffer,
    ProtocolError,
    read_compact_count,
    read_compact_string,
    read_int16,
    read_int32,
    skip_tags,
)

_FIRST_WITH_IDS: Final = 10
_LAST: Final = 13


def learn_topics(frame: Buffer, version: int, topics: dict[bytes, str]) -> None:
    """Add topic id -> name of a Metadata response, v10 to v13; all else teaches nothing.

    Args:
        frame: the response from its length on.
        version: that of the request.
        topics: what is known, and what this adds to.
    """
    if not _FIRST_WITH_IDS <= version <= _LAST:
        return
    try:
        _, at = skip_tags(frame, 8)
        at = _skip_brokers(frame, at + 4)
        _, at = read_compact_string(frame, at)  # cluster_id
        count, at = read_compact_count(frame, at + 4)
        for _ in range(count or 0):
            at = _topic(frame, at, topics)
    except ProtocolError:
        return  # names are for people: a topic that is not understood is shown by its id


def _skip_brokers(frame: Buffer, at: int) -> int:
    count, at = read_compact_count(frame, at)
    for _ in range(count or 0):
        _, at = read_compact_string(frame, at + 4)  # node_id, host
        _, at = read_compact_string(frame, at + 4)  # port, rack
        _, at = skip_tags(frame, at)
    return at


def _topic(frame: Buffer, at: int, topics: dict[bytes, str]) -> int:
    error_code, at = read_int16(frame, at)
    name, at = read_compact_string(frame, at)
    topic_id = bytes(frame[at : at + 16])
    count, at = read_compact_count(frame, at + 17)  # id, is_internal
    for _ in range(count or 0):
        at += 14  # error_code, partition_index, leader_id, leader_epoch
        for _ in range(3):  # replicas, in-sync replicas, offline replicas
            nodes, at = read_compact_count(frame, at)
            at += 4 * (nodes or 0)
        _, at = skip_tags(frame, at)
    _, at = read_int32(frame, at)  # topic_authorized_operations
    _, at = skip_tags(frame, at)
    if name and not error_code and any(topic_id):
        topics[topic_id] = name.decode(errors="replace")
    return at
