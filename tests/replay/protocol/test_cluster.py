"""Brokers, racks and replicas are read in every version of Metadata and DescribeCluster."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.api import ApiKey
from proxy.protocol.brokers import Broker
from proxy.protocol.messages import response
from proxy.protocol.schemas import DESCRIBE_CLUSTER, METADATA
from replay.protocol.cluster import Cluster, Replicas, read_cluster, unpacked
from tests.examples import examples

NODES = (
    Broker(1, "10.0.0.1", 9092, "R1"),
    Broker(2, "kafka-2", 9093, ""),
    Broker(70_000, "::1", 65_535, "R\u00fc"),
)
LISTED = [
    {
        "node_id": node.node_id,
        "host": node.host.encode(),
        "port": node.port,
        "rack": node.rack.encode() or None,
        "is_fenced": False,
    }
    for node in NODES
]
NODE_IDS = st.lists(st.integers(-1, 1 << 20), max_size=4)
ALIKE: st.SearchStrategy[list[tuple[int, int, list[int], list[int], list[int]]]] = st.tuples(
    st.integers(1, 40), NODE_IDS.filter(bool)
).map(lambda drawn: [(at, drawn[1][0], drawn[1], drawn[1][1:], []) for at in range(drawn[0])])
ANY = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(-1, 9), NODE_IDS, NODE_IDS, NODE_IDS), max_size=6
)
Partition = tuple[int, int, list[int], list[int], list[int]]


def metadata(
    version: int, topics: Sequence[tuple[str | None, Sequence[Partition]]] = (), **more: Any
) -> bytes:
    listed = [
        {
            "error_code": 0,
            "name": name and name.encode(),
            "topic_id": bytes(16),
            "is_internal": False,
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": partition,
                    "leader_id": leader,
                    "leader_epoch": 7,
                    "replica_nodes": replicas,
                    "isr_nodes": in_sync,
                    "offline_replicas": offline,
                }
                for partition, leader, replicas, in_sync, offline in partitions
            ],
            "topic_authorized_operations": 0,
        }
        for name, partitions in topics
    ]
    values = {
        "throttle_time_ms": 0,
        "brokers": LISTED,
        "cluster_id": b"c",
        "controller_id": 1,
        "topics": listed,
        "cluster_authorized_operations": 0,
        "error_code": 0,
    }
    return response(METADATA, ApiKey.METADATA, version, bytes(4), **values | more)


@pytest.mark.parametrize("version", range(1, 14))
@given(topics=st.lists(st.one_of(ALIKE, ANY), max_size=3))
@examples(100)
def test_metadata(version: int, topics: list[list[Partition]]) -> None:
    named = [(f"t{at}", partitions) for at, partitions in enumerate(topics)]
    frame = metadata(version, named)

    found = read_cluster(ApiKey.METADATA, version, frame, partitions=True)

    assert found is not None
    assert (found.cluster_id, found.nodes) == ("c" if version > 1 else "", NODES)
    assert {name: [*unpacked(packed)] for name, packed in found.topics.items()} == {
        name: [Replicas(partition, leader, tuple(isr)) for partition, leader, _, isr, _ in partitions]
        for name, partitions in named
        if partitions
    }
    assert read_cluster(ApiKey.METADATA, version, frame, partitions=False) == Cluster(found.cluster_id, NODES)


@pytest.mark.parametrize("version", [1, 9])
def test_a_partition_that_differs_is_read(version: int) -> None:
    partitions: list[Partition] = [
        (0, 1, [1, 2], [1, 2], []),
        (1, 2, [1, 2, 3], [2], []),
        (2, 1, [1, 2], [1, 2], []),
    ]
    found = read_cluster(ApiKey.METADATA, version, metadata(version, [("t", partitions)]), partitions=True)

    assert found is not None
    assert [one.in_sync for one in unpacked(found.topics["t"])] == [(1, 2), (2,), (1, 2)]


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(version: int) -> None:
    values: dict[str, Any] = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "error_message": None,
        "endpoint_type": 1,
        "cluster_id": b"c",
        "controller_id": 1,
        "brokers": LISTED,
        "cluster_authorized_operations": 0,
    }

    def read(**more: Any) -> Cluster | None:
        frame = response(DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CLUSTER, version, bytes(4), **values | more)
        return read_cluster(ApiKey.DESCRIBE_CLUSTER, version, frame, partitions=True)

    assert read() == Cluster("c", NODES)
    assert read(error_code=29) is None
    assert read(endpoint_type=2) == (Cluster("c", NODES) if version == 0 else None)  # controllers


@pytest.mark.parametrize("version", [1, 8, 12])
def test_what_ends_early_tells_nothing(version: int) -> None:
    frame = metadata(version, [("t", [(0, 1, [1, 2], [1, 2], [])] * 2)])
    for size in range(8, len(frame) - 12):
        read_cluster(ApiKey.METADATA, version, frame[:size], partitions=True)  # does not raise
    assert read_cluster(ApiKey.METADATA, version, frame[:40], partitions=True) is None


def test_versions_that_are_not_known_tell_nothing() -> None:
    assert read_cluster(ApiKey.METADATA, 0, metadata(1), partitions=True) is None
    assert read_cluster(ApiKey.METADATA, 14, metadata(13), partitions=True) is None
    assert read_cluster(ApiKey.DESCRIBE_CLUSTER, 3, metadata(13), partitions=True) is None
