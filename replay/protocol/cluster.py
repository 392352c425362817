"""Reads what a broker tells of its cluster: the brokers with their racks, and the replicas of partitions.

Sans-IO. The responses are those to Metadata (v1 and later, which have racks) and DescribeCluster.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from proxy.protocol.api import RESPONSE_START_BYTES, ApiKey, is_flexible
from proxy.protocol.brokers import VERSIONS, Broker, brokers_in
from proxy.protocol.messages import read
from proxy.protocol.metadata import (
    IN_SYNC,
    Topic,
    layout_of,
    read_entries,
    read_node_ids,
    read_topics,
    rows_of,
)
from proxy.protocol.primitives import ProtocolError, skip_tags
from proxy.protocol.schemas import ADDRESSED
from replay.protocol.names import text_of

TELLS: Final[Mapping[int, frozenset[str]]] = {
    ApiKey.METADATA: frozenset({"brokers", "cluster_id"}),
    ApiKey.DESCRIBE_CLUSTER: frozenset({"error_code", "endpoint_type", "brokers", "cluster_id"}),
}
"""The API keys whose responses `read_cluster` reads, and the fields."""
_BROKERS: Final = 1
"""The endpoint_type of brokers in DescribeCluster v1 and later. The other one is that of controllers."""


class Replicas(NamedTuple):
    """The replicas of a partition."""

    partition: int
    leader: int
    """The leader's node id, -1 if there is none."""
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The contents of a response."""

    cluster_id: str
    """The cluster's id, "" in Metadata v1, which does not have it."""
    nodes: tuple[Broker, ...]
    topics: Mapping[str, bytes] = field(default_factory=dict)
    """The replicas of each topic's partitions, packed: see `unpacked`. Empty if they were not read."""


def read_cluster(api_key: int, version: int, frame: bytes, *, partitions: bool) -> Cluster | None:
    """Read a whole response to a request of this version. With `partitions`, also read the replicas.

    Return None if the version is not known, if it is not a response of `TELLS`, or if it is about
    controllers.
    """
    if version not in VERSIONS[api_key]:
        return None
    return _read(api_key, version, frame[RESPONSE_START_BYTES:], partitions)


def unpacked(packed: bytes) -> Iterator[Replicas]:
    """Yield the replicas of a topic's partitions."""
    numbers: list[int] = np.frombuffer(packed, ">i4").tolist()
    at = 0
    while at < len(numbers):
        partition, leader, count = numbers[at : at + 3]
        at += 3 + count
        yield Replicas(partition, leader, tuple(numbers[at - count : at]))


@lru_cache(maxsize=8)  # all clients of a cluster get the same response
def _read(api_key: int, version: int, content: bytes, partitions: bool) -> Cluster | None:
    """Read a response without its length and correlation id."""
    packed: dict[str, bytes] = {}
    try:
        at = skip_tags(content, 0)[1] if is_flexible(api_key, version) else 0
        if api_key == ApiKey.METADATA and partitions:
            body = content[at:]
            head, topics = read_topics(body, version, only=TELLS[api_key], limited=False)
            packed = _packed(body, version, [topic for topic in topics if topic.name and topic.places])
        else:
            schema = ADDRESSED[api_key].schema
            head = read(schema, api_key, version, content, at, only=TELLS[api_key], whole=False)
    except ProtocolError:
        return None
    if head.get("error_code") or head.get("endpoint_type", _BROKERS) != _BROKERS:
        return None
    return Cluster(text_of(head.get("cluster_id")), tuple(brokers_in(head)), packed)


def _packed(body: bytes, version: int, topics: list[Topic]) -> dict[str, bytes]:
    layout, rows = layout_of(version), rows_of(topics)
    entries = read_entries(body, rows, layout)
    in_sync, counts = read_node_ids(body, rows, layout, IN_SYNC)
    columns = entries["partition_index"], entries["leader_id"], counts, in_sync
    table = np.column_stack(columns).astype(">i4")
    widths = table.shape[1] - in_sync.shape[1] + counts  # without what fills shorter rows
    numbers = table[np.arange(table.shape[1]) < widths[:, None]]
    ends = np.append(0, np.cumsum(widths))[np.cumsum([len(topic.places) for topic in topics], dtype=np.intp)]
    parts = np.split(numbers, ends)
    return {text_of(topic.name): part.tobytes() for topic, part in zip(topics, parts, strict=False)}
