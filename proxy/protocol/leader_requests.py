"""Requests about leaders that the gateway itself sends: Metadata v7 and v12, OffsetForLeaderEpoch v2.

Also reads the newer leaders in responses to requests of clients (`read_leaders`).

A broker that supports Fetch v9 or Produce v7 also supports Metadata v7 and OffsetForLeaderEpoch v2 (2.1,
KIP-320). A broker that supports Fetch v13 also supports Metadata v12, which can request topics by id (3.1,
KIP-516).
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from proxy.protocol.api import LENGTH_BYTES, ApiKey, response_header
from proxy.protocol.messages import read, request
from proxy.protocol.metadata import MAX_LEADERS, NO_TOPIC_ID, LeaderHint, layout_of, read_entries, read_topics
from proxy.protocol.schemas import (
    METADATA_REQUEST,
    OFFSET_FOR_LEADER_EPOCH,
    OFFSET_FOR_LEADER_EPOCH_REQUEST,
    PRODUCE,
    REWRITTEN,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)

BY_NAME: Final = 7
"""The version of Metadata to request topics by name. It has leader epochs (KIP-320), and is not flexible."""
BY_ID: Final = 12
"""The version of Metadata to request topics by id."""
EPOCHS_VERSION: Final = 2
"""The version of OffsetForLeaderEpoch. It has current_leader_epoch (KIP-320)."""

Place: TypeAlias = tuple[bytes, int]
"""A partition: the topic's name or id, as in the client's fetch, and the partition's number."""

_ENTRIES: Final[dict[int, tuple[int, str, str, str]]] = {
    ApiKey.PRODUCE: (13, PRODUCE, "partition_responses", "index"),
    ApiKey.SHARE_FETCH: (1, SHARE_FETCH, "partitions", "partition_index"),
    ApiKey.SHARE_ACKNOWLEDGE: (1, SHARE_ACKNOWLEDGE, "partitions", "partition_index"),
}
"""By API key: the first version that names leaders by topic id, the response's schema, and the names of its
fields for partitions and partition numbers."""
_NONE: Final = (0x7FFF, "", "", "")


class Leader(NamedTuple):
    """The leader of a partition, as a broker reports it."""

    leader_id: int
    """The node id, or -1 if there is no leader."""
    leader_epoch: int
    topic: bytes
    """The name of the topic."""


class EpochEnd(NamedTuple):
    """The end of a leader epoch in a broker's log."""

    error_code: int
    leader_epoch: int
    """The largest epoch in the log that is not above the requested epoch."""
    end_offset: int
    """The offset after the epoch's last record."""


def metadata_request(correlation_id: int, client_id: bytes, topics: Iterable[bytes], *, by_id: bool) -> bytes:
    """Return a Metadata request for the leaders of topics, by their ids or names. It does not create topics.

    It has the client's own id, because its connection is used. So has `epochs_request`.
    """
    listed = [
        {"topic_id": topic, "name": None} if by_id else {"topic_id": NO_TOPIC_ID, "name": topic}
        for topic in topics
    ]
    return request(
        METADATA_REQUEST,
        ApiKey.METADATA,
        BY_ID if by_id else BY_NAME,
        correlation_id,
        client_id,
        topics=listed,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def read_metadata(frame: bytes, *, by_id: bool) -> dict[Place, Leader]:
    """Return the leaders in a Metadata response, for partitions without an error.

    Raises:
        ProtocolError: the frame is not a Metadata response of the requested version.
    """
    version = BY_ID if by_id else BY_NAME
    _, at = response_header(frame, LENGTH_BYTES, ApiKey.METADATA, version)
    body = frame[at:]
    leaders: dict[Place, Leader] = {}
    for topic in read_topics(body, version, limited=False)[1]:
        key = topic.topic_id if by_id else topic.name
        entries = read_entries(body, topic.places, layout_of(version))
        for error_code, partition, leader_id, epoch in entries.tolist():
            if not error_code:
                leaders[key, partition] = Leader(leader_id, epoch, topic.name)
    return leaders


def epochs_request(
    correlation_id: int, client_id: bytes, requested: Mapping[bytes, Iterable[tuple[int, int, int]]]
) -> bytes:
    """Return an OffsetForLeaderEpoch request, which asks a leader for the ends of leader epochs.

    `requested` has, by topic name: partition, the leader's current epoch, and the epoch to look up.
    """
    topics = [
        {
            "topic": name,
            "partitions": [
                {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
                for partition, current, epoch in partitions
            ],
        }
        for name, partitions in requested.items()
    ]
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    schema = OFFSET_FOR_LEADER_EPOCH_REQUEST
    return request(schema, key, EPOCHS_VERSION, correlation_id, client_id, topics=topics)


def read_epochs(frame: bytes) -> dict[Place, EpochEnd]:
    """Return the end offsets in an OffsetForLeaderEpoch response, by topic name and partition.

    Raises:
        ProtocolError: the frame is not an OffsetForLeaderEpoch response of the requested version.
    """
    key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    _, at = response_header(frame, LENGTH_BYTES, key, EPOCHS_VERSION)
    found = read(OFFSET_FOR_LEADER_EPOCH, key, EPOCHS_VERSION, frame, at)
    return {
        (topic["topic"] or b"", entry["partition"]): EpochEnd(
            entry["error_code"], entry["leader_epoch"], entry["end_offset"]
        )
        for topic in found["topics"] or ()
        for entry in topic["partitions"] or ()
    }


def read_leaders(api_key: int, version: int, body: bytes) -> list[LeaderHint]:
    """Return the current_leader fields of Produce (v13), ShareFetch and ShareAcknowledge (KIP-951).

    Return at most `MAX_LEADERS` of them, and none for other messages and versions.

    Raises:
        ProtocolError: the body does not match the version.
    """
    first, schema, partitions, index = _ENTRIES.get(api_key, _NONE)
    if not first <= version <= REWRITTEN.get(api_key, -1):
        return []
    only = _leader_fields(partitions, index)
    return [
        LeaderHint(topic["topic_id"], entry[index], leader["leader_id"], leader["leader_epoch"])
        for topic in read(schema, api_key, version, body, 0, only=only)["responses"] or ()
        for entry in topic[partitions] or ()
        if (leader := entry.get("current_leader")) is not None
    ][:MAX_LEADERS]


@cache
def _leader_fields(partitions: str, index: str) -> frozenset[str]:
    inner = {f"responses.{partitions}.{name}" for name in (index, "current_leader")}
    return frozenset({"responses.topic_id"} | inner)
