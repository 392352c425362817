"""Reads what a broker tells of its cluster: the brokers with their racks, and the replicas of partitions.

Sans-IO. The responses are those to Metadata (v1 and later, which have racks) and DescribeCluster. Metadata of
large clusters has very many partitions, so partitions that are alike are read in columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from proxy.protocol.api import RESPONSE_START_BYTES, ApiKey
from proxy.protocol.primitives import (
    UUID_BYTES,
    ProtocolError,
    Truncated,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int16,
    read_int32,
    read_string,
    skip_tags,
)

TELLS: Final = frozenset({ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER})
"""The API keys whose responses `read_cluster` reads."""
_VERSIONS: Final = {ApiKey.METADATA: range(1, 14), ApiKey.DESCRIBE_CLUSTER: range(3)}
_FLEXIBLE: Final = 9
_BROKERS: Final = 1
"""The endpoint_type of brokers in DescribeCluster v1 and later. The other one is that of controllers."""
_LARGE_COUNT: Final = 128
"""From this count on, a compact count has more than one byte."""


class Node(NamedTuple):
    """A broker, as a response describes it."""

    node_id: int
    host: str
    port: int
    rack: str
    """The broker's rack, "" if it has none."""


class Replicas(NamedTuple):
    """The replicas of a partition."""

    partition: int
    leader: int
    """The leader's node id, -1 if there is none."""
    in_sync: tuple[int, ...]
    """The node ids of the replicas in the ISR."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The contents of a response."""

    cluster_id: str
    """The cluster's id, "" in Metadata v1, which does not have it."""
    nodes: tuple[Node, ...]
    topics: Mapping[str, bytes] = field(default_factory=dict)
    """The replicas of each topic's partitions, packed: see `unpacked`. Empty if they were not read."""


def read_cluster(api_key: int, version: int, frame: bytes, *, partitions: bool) -> Cluster | None:
    """Read a whole response to a request of this version. With `partitions`, also read the replicas.

    Return None if the version is not known, if it is not a response of `TELLS`, or if it is about
    controllers.
    """
    if version not in _VERSIONS[ApiKey(api_key)]:
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
    try:
        if api_key == ApiKey.DESCRIBE_CLUSTER:
            return _describe_cluster(content, version)
        return _Metadata(content, version).read(partitions=partitions)
    except ProtocolError:
        return None


def _describe_cluster(content: bytes, version: int) -> Cluster | None:
    _, at = skip_tags(content, 0)
    error_code, at = read_int16(content, at + 4)  # throttle_time_ms
    _, at = read_compact_string(content, at)  # error_message
    if version >= 1:
        if content[at : at + 1] != bytes([_BROKERS]):
            return None
        at += 1
    cluster_id, at = read_compact_string(content, at)
    count, at = read_compact_count(content, at + 4)  # controller_id
    nodes = []
    for _ in range(count or 0):
        node, at = _node(content, at, flexible=True)
        _, at = skip_tags(content, at + (version >= 2))  # is_fenced
        nodes.append(node)
    return None if error_code else Cluster(_text(cluster_id), tuple(nodes))


def _node(content: bytes, at: int, *, flexible: bool) -> tuple[Node, int]:
    read = read_compact_string if flexible else read_string
    node_id, at = read_int32(content, at)
    host, at = read(content, at)
    port, at = read_int32(content, at)
    rack, at = read(content, at)
    return Node(node_id, _text(host), port, _text(rack)), at


def _text(name: bytes | None) -> str:
    return (name or b"").decode(errors="replace")


class _Metadata:
    """Reads a Metadata response without its length and correlation id."""

    def __init__(self, content: bytes, version: int) -> None:
        self._content, self._version = content, version
        self._flexible = version >= _FLEXIBLE
        self._string = read_compact_string if self._flexible else read_string
        self._count = read_compact_count if self._flexible else read_count
        self._lists = 3 if version >= 5 else 2
        """The node lists of a partition: replicas, ISR and, from v5 on, offline replicas."""
        self._head = 14 if version >= 7 else 10
        """The bytes of a partition before its lists: error code, index, leader and, from v7 on, its epoch."""

    def read(self, *, partitions: bool) -> Cluster:
        content, version = self._content, self._version
        at = self._past_tags(0) + (4 if version >= 3 else 0)  # throttle_time_ms
        count, at = self._count(content, at)
        nodes = []
        for _ in range(count or 0):
            node, at = _node(content, at, flexible=self._flexible)
            at = self._past_tags(at)
            nodes.append(node)
        cluster_id = None
        if version >= 2:
            cluster_id, at = self._string(content, at)
        topics = dict(self._topics(at + 4)) if partitions else {}  # controller_id
        return Cluster(_text(cluster_id), tuple(nodes), topics)

    def _topics(self, at: int) -> Iterator[tuple[str, bytes]]:
        content, version = self._content, self._version
        count, at = self._count(content, at)
        for _ in range(count or 0):
            name, at = self._string(content, at + 2)  # error_code
            at += UUID_BYTES if version >= 10 else 0
            partitions, at = self._count(content, at + 1)  # is_internal
            packed, at = self._partitions(at, partitions or 0)
            at = self._past_tags(at + (4 if version >= 8 else 0))  # topic_authorized_operations
            if name and packed:
                yield _text(name), packed

    def _partitions(self, at: int, count: int) -> tuple[bytes, int]:
        """Return the packed replicas of a topic's partitions, and the end of the partitions."""
        start, packed = at, b""
        for number in range(count):
            one, lists, at = self._partition(at)
            if not number and (columns := self._alike(start, at - start, count, lists)) is not None:
                return self._packed(columns, lists, len(one.in_sync)), start + count * (at - start)
            packed += np.array([one.partition, one.leader, len(one.in_sync), *one.in_sync], ">i4").tobytes()
        return packed, at

    def _partition(self, at: int) -> tuple[Replicas, list[int], int]:
        """Return a partition, the offsets of its counts from its beginning, and its end."""
        start = at
        partition, at = read_int32(self._content, at + 2)
        leader, _ = read_int32(self._content, at)
        at = start + self._head
        places, nodes = [], []
        for _ in range(self._lists):
            places.append(at - start)
            count, at = self._count(self._content, at)
            nodes.append(self._content[at : at + 4 * (count or 0)])
            at += len(nodes[-1])
            if len(nodes[-1]) < 4 * (count or 0):
                raise Truncated("a list of replicas", at)
        if self._flexible:
            places.append(at - start)
            at = self._past_tags(at)
        in_sync = tuple(np.frombuffer(nodes[1], ">i4").tolist())
        return Replicas(partition, leader, in_sync), places, at

    def _alike(self, start: int, size: int, count: int, places: list[int]) -> np.ndarray | None:
        """Return partitions as the rows of an array, if all have the counts of the first one and no tags."""
        if start + count * size > len(self._content):
            return None
        found = np.frombuffer(self._content, np.uint8, count * size, start).reshape(count, size)
        first = found[0]
        if self._flexible and (first[places[-1]] or (first[places] >= _LARGE_COUNT).any()):
            return None
        width = 1 if self._flexible else 4
        counts = found[:, np.add.outer(places, np.arange(width)).ravel()]
        return found if (counts == counts[0]).all() else None

    def _packed(self, found: np.ndarray, places: list[int], in_sync: int) -> bytes:
        numbers = np.empty((len(found), 3 + in_sync), ">i4")
        numbers[:, 0] = _column(found, 2)
        numbers[:, 1] = _column(found, 6)
        numbers[:, 2] = in_sync
        begin = places[1] + (1 if self._flexible else 4)
        for place in range(in_sync):
            numbers[:, 3 + place] = _column(found, begin + 4 * place)
        return numbers.tobytes()

    def _past_tags(self, at: int) -> int:
        return skip_tags(self._content, at)[1] if self._flexible else at


def _column(found: np.ndarray, place: int) -> np.ndarray:
    return np.ascontiguousarray(found[:, place : place + 4]).view(">i4")[:, 0]
