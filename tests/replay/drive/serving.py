"""Serves the model of a broker on a real socket, with Metadata and ListOffsets, which the model lacks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from struct import unpack_from

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from tests.model.broker import ConnectionClosedError, ModelBroker
from tests.model.log import Partition
from tools.kafka import raw

VERSIONS = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 9), 9: (1, 10), 10: (0, 6), 18: (0, 4)}


@dataclass
class Served:
    """A broker on a port. Tests can read the requests that it received, and change its responses."""

    broker: ModelBroker
    versions: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    received: list[bytes] = field(default_factory=list)
    """Frames without their length, in order of arrival."""
    hang_up: Callable[[bytes], bool] = lambda _: False
    """Returns whether to close the connection instead of answering a request."""
    mute: Callable[[bytes], bool] = lambda _: False
    """Returns whether a request is never answered."""
    held_until: int = 1
    """The first fetch is answered only when this many fetches have arrived."""
    canned: dict[int, bytes] = field(default_factory=dict)
    """The body of each response, by API key. Only for responses whose header has no tags."""
    create_error: int = 0
    """The error for every topic to create."""
    closes_after: int = -1
    """An API key: after the answer to a request with this key, the connection is closed."""
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    connections: int = 0
    others: dict[int, Address] = field(default_factory=dict)
    """More brokers in its Metadata, by node id."""

    def of(self, api_key: int) -> list[bytes]:
        """Return the received requests with one API key."""
        return [frame for frame in self.received if unpack_from(">h", frame)[0] == api_key]

    def response(self, frame: bytes) -> bytes | None:
        """Return the response to a request, or None if it gets none."""
        key, version = unpack_from(">hh", frame)
        head = frame[4:8]
        if key == ApiKey.API_VERSIONS and version == 0:
            ranges = [b"".join(n.to_bytes(2) for n in (key, *span)) for key, span in self.versions.items()]
            return head + b"\0\0" + raw.array(ranges)
        if key == ApiKey.METADATA and version == 12:
            return head + b"\0" + metadata(self)
        if key == ApiKey.LIST_OFFSETS and version == 1:
            return head + offsets(self.broker, frame)
        if key in self.canned:
            return head + self.canned[key]
        if key == ApiKey.CREATE_TOPICS:
            return head + created(self.broker, frame, self.create_error)
        if key == ApiKey.PRODUCE:
            return None
        return self.broker.handle(frame, 0.0)


def metadata(served: Served) -> bytes:
    """Return a Metadata response (v12) with all topics of the model, whatever the request names."""
    brokers = {served.broker.node_id: served.address} | served.others
    nodes = [
        node.to_bytes(4) + raw.compact_string(each.host) + each.port.to_bytes(4) + b"\0\0"
        for node, each in brokers.items()
    ]
    topics = [
        b"\0\0"
        + raw.compact_string(topic.name)
        + topic.topic_id
        + b"\0"
        + raw.compact_array(parts)
        + bytes(4)
        + b"\0"
        for topic in served.broker.topics.values()
        for parts in [[_described(index, part) for index, part in topic.partitions.items()]]
    ]
    return (
        bytes(4)
        + raw.compact_array(nodes)
        + raw.compact_string("c")
        + bytes(4)
        + raw.compact_array(topics)
        + b"\0"
    )


def _described(index: int, part: Partition) -> bytes:
    replicas = raw.compact_array([part.leader.to_bytes(4)])
    told = b"\0\0" + index.to_bytes(4) + part.leader.to_bytes(4) + part.leader_epoch.to_bytes(4)
    return told + replicas + replicas + raw.compact_array([]) + b"\0"


def offsets(broker: ModelBroker, frame: bytes) -> bytes:
    """Return a ListOffsets response (v1): the end of each partition, or its start for timestamp -2."""
    reader = raw.BodyReader(frame, 8)
    reader.string()
    reader.int32()
    topics = []
    for _ in range(reader.int32()):
        name = reader.string() or ""
        parts = []
        for _ in range(reader.int32()):
            index, timestamp = reader.int32(), reader.int64()
            part = broker.partition(name, index)
            offset = part.log_start if timestamp == -2 else part.high_watermark
            parts.append(index.to_bytes(4) + b"\0\0" + (-1).to_bytes(8, signed=True) + offset.to_bytes(8))
        topics.append(raw.string(name) + raw.array(parts))
    return raw.array(topics)


def created(broker: ModelBroker, frame: bytes, error: int) -> bytes:
    """Return a CreateTopics response (v2 to v4). The model creates the topics, unless `error` is set."""
    reader = raw.BodyReader(frame, 8)
    reader.string()
    topics = []
    for _ in range(reader.int32()):
        name = reader.string() or ""
        partitions, _, _, _ = reader.int32(), reader.int16(), reader.int32(), reader.int32()
        if not error:
            broker.create_topic(name, partitions)
        topics.append(raw.string(name) + error.to_bytes(2) + raw.string(None))
    return bytes(4) + raw.array(topics)


@asynccontextmanager
async def serving(broker: ModelBroker) -> AsyncIterator[Served]:
    """Serve a model until the block ends."""
    served = Served(broker)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        held: list[bytes] = []
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                served.received.append(frame)
                if served.hang_up(frame):
                    break
                if served.mute(frame):
                    continue
                held.append(frame)
                if frame[1] == ApiKey.FETCH and len(held) < served.held_until:
                    continue
                for response in map(served.response, held):
                    writer.write(b"" if response is None else raw.frame(response))
                held.clear()
                if frame[1] == served.closes_after:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ConnectionClosedError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        served.address = Address(host, port)
        yield served
    finally:
        server.close()
