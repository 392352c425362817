"""Builds Metadata and DescribeCluster responses with racks of brokers, for tests."""

from collections.abc import Mapping
from functools import partial

from proxy.features.racks.rack_stage import RackStage
from proxy.features.racks.racks import BrokerRacks
from tests.model.primitives import NO_TAGS, Writer
from tests.playbook import Playbook, response

METADATA, DESCRIBE_CLUSTER = 3, 60
RACKS: Mapping[int, str | None] = {1: "R1", 2: "R2", 3: None}


def brokers(version: int, racks: Mapping[int, str | None] = RACKS, *, key: int = METADATA) -> bytes:
    """Build the body of a Metadata or DescribeCluster response without topics, up to its brokers and on."""
    flexible = key == DESCRIBE_CLUSTER or version >= 9
    out = Writer(flexible=flexible)
    if key == DESCRIBE_CLUSTER or version >= 3:
        out.number("i", 0)
    if key == DESCRIBE_CLUSTER:
        out.number("h", 0)
        out.string(None)
        if version >= 1:
            out.number("b", 1)
        out.string("cluster")
        out.number("i", 1)

    def one(out: Writer, node_id: int) -> None:
        out.number("i", node_id)
        out.string(f"kafka-{node_id}")
        out.number("i", 9092)
        if key == DESCRIBE_CLUSTER or version >= 1:
            out.string(racks[node_id])
        if key == DESCRIBE_CLUSTER and version >= 2:
            out.number("b", 0)
        if flexible:
            out.tags(NO_TAGS)

    out.array(list(racks), one)
    if key == DESCRIBE_CLUSTER:
        out.number("i", 0)
    else:
        if version >= 2:
            out.string("cluster")
        if version >= 1:
            out.number("i", 1)
        out.array([], one)
        if 8 <= version <= 10:
            out.number("i", 0)
        if version >= 13:
            out.number("h", 0)
    if flexible:
        out.tags(NO_TAGS)
    return bytes(out.data)


def play(racks: BrokerRacks, *, resolves: bool = False) -> Playbook:
    resolve = (lambda _, host, port: (host, port)) if resolves else None
    return Playbook(stages=(partial(RackStage, racks),), resolve=resolve)


def told(key: int, version: int, body: bytes, correlation: int = 7) -> bytes:
    tags = b"\0" if key == DESCRIBE_CLUSTER or version >= 9 else b""
    return response(correlation, tags + body)
