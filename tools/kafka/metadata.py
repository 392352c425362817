"""A broker's view of its cluster, from Metadata v1, which every broker from 1.0 to 4.3 supports."""

from dataclasses import dataclass, field

from tools.kafka.raw import METADATA, BodyReader, RawConnection, array, string


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as one broker describes it."""

    error: int
    leaders: dict[int, int]
    """Node id by partition; -1 if there is no leader."""
    replicas: dict[int, list[int]]
    in_sync: dict[int, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """One broker's view of the cluster."""

    brokers: dict[int, tuple[str, int]]
    controller: int
    topics: dict[str, TopicState] = field(default_factory=dict)


def request_metadata(connection: RawConnection, *topics: str) -> ClusterState:
    """Request one broker's view of the cluster and of these topics only."""
    return read_metadata(connection.call(METADATA, 1, array([string(topic) for topic in topics])))


def read_metadata(body: bytes) -> ClusterState:
    """Read the body of a Metadata v1 response."""
    reader = BodyReader(body)
    brokers = {}
    for _ in range(reader.int32()):
        node_id = reader.int32()
        brokers[node_id] = (reader.string() or "", reader.int32())
        reader.string()  # rack
    controller = reader.int32()
    topics = {}
    for _ in range(reader.int32()):
        error = reader.int16()
        name = reader.string() or ""
        reader.int8()  # internal
        topics[name] = _read_topic(reader, error)
    return ClusterState(brokers=brokers, controller=controller, topics=topics)


def _read_topic(reader: BodyReader, error: int) -> TopicState:
    topic = TopicState(error=error, leaders={}, replicas={}, in_sync={})
    for _ in range(reader.int32()):
        reader.int16()
        partition = reader.int32()
        topic.leaders[partition] = reader.int32()
        topic.replicas[partition] = _int32s(reader)
        topic.in_sync[partition] = _int32s(reader)
    return topic


def _int32s(reader: BodyReader) -> list[int]:
    return [reader.int32() for _ in range(reader.int32())]
