"""What a target has: its versions, brokers and topics, and the first and last offsets of partitions."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from proxy.addresses import Address
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.primitives import (
    UUID_BYTES,
    ProtocolError,
    Truncated,
    encode_compact_count,
    encode_compact_string,
    encode_count,
    encode_string,
    read_compact_count,
    read_compact_string,
    read_count,
    read_int16,
    read_int32,
    read_string,
    skip_tags,
)
from replay.drive.access import Access, Versions, ask_versions
from replay.drive.mapping import Topic
from replay.drive.wire import SilentError, TargetConnection, TargetError
from replay.protocol.errors import error_name

_FIRST_SECONDS: Final = 5.0
"""Within this time, or the timeout if it is shorter, the first response must come."""
_METADATA_VERSIONS: Final = (4, 12)
"""From v4 on a request can forbid to create topics; brokers from 1.0 to 4.3 speak one of these versions."""
_LIST_OFFSETS_VERSION: Final = 1
"""Brokers from 1.0 to 4.3 speak it."""
_LATEST, _EARLIEST = -1, -2
_CLIENT: Final = (-1).to_bytes(4, signed=True)
"""The replica_id of a client."""
_MAX_PARTITIONS: Final = 1_000_000
_CREATE_TOPICS_VERSIONS: Final = (2, 4)
"""Brokers from 1.0 to 4.3 speak one of these versions; they differ in what their fields may be."""
TOPIC_ALREADY_EXISTS: Final = 36
_CREATE_SECONDS: Final = 30.0
_CREATE_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """The address and the broker that a connection goes to."""

    address: Address
    node_id: int | None
    """The broker there; None: there is only one, or it is unknown which one."""


@dataclass(slots=True, kw_only=True)
class Target:
    """The responses of one address."""

    address: Address
    access: Access = field(default_factory=Access)
    versions: Versions
    brokers: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    """The requested topics that exist."""
    controller: int = -1
    """The node that creates topics; -1: unknown."""
    created: dict[str, int] = field(default_factory=dict)
    """The topics that were created here, and how many partitions they got."""

    def speaks(self, api_key: int, version: int) -> bool:
        """Tell whether it speaks a version of an API."""
        lowest, highest = self.versions.get(api_key, (0, -1))
        return lowest <= version <= highest

    def place(self, leader: int | None) -> Place:
        """Return where to fetch what a broker leads; a single broker is at the target's own address."""
        if len(self.brokers) <= 1 or leader is None or leader not in self.brokers:
            return Place(self.address, None)
        return Place(self.brokers[leader], leader)


async def look(
    address: Address,
    names: Iterable[str],
    *,
    offsets: bool,
    create: Mapping[str, int] | None = None,
    access: Access | None = None,
) -> Target:
    """Ask a target for its versions, brokers, topics and offsets.

    Args:
        address: the address of the target.
        names: the topics to ask for.
        offsets: whether to ask for the earliest and the latest offsets.
        create: the topics that are created if they are missing, and how many partitions each gets.
        access: how connections are opened.

    Raises:
        SilentError: it does not respond in time.
        TargetError: it can't be reached, does not respond as a Kafka broker does, or can't create a topic.
    """
    access = access or Access()
    connection = await access.connect(address)
    try:
        target = Target(address=address, access=access, versions=await _first_versions(connection, access))
        await _describe(connection, target, sorted({*names, *(create or ())}))
        missing = {name: count for name, count in (create or {}).items() if name not in target.topics}
        if missing:
            await connection.finish()  # a login may end while the topics are created
            await _create(target, missing)
            connection = await access.connect(address)
        if offsets:
            await _find_offsets(connection, target)
    except ProtocolError as error:
        raise TargetError(f"{address}: does not respond as Kafka does: {error}") from None
    finally:
        await connection.finish()
    return target


async def _first_versions(connection: TargetConnection, access: Access) -> Versions:
    """Ask for the versions of every API. A server that is no broker may wait for more: it gets less time."""
    connection.timeout = min(access.timeout, _FIRST_SECONDS)
    try:
        return await ask_versions(connection, access)
    except SilentError as error:
        raise SilentError(f"{error} (is it a Kafka listener?)") from None
    finally:
        connection.timeout = access.timeout


async def _describe(connection: TargetConnection, target: Target, names: list[str]) -> None:
    lowest, highest = target.versions.get(ApiKey.METADATA, (0, -1))
    version = min(highest, _METADATA_VERSIONS[1])
    if version < max(lowest, _METADATA_VERSIONS[0]):
        raise TargetError(f"{connection.address}: speaks no Metadata of v4 to v12 (is it a Kafka broker?)")
    try:
        response = await connection.ask(ApiKey.METADATA, version, metadata_request(version, names))
    except SilentError:
        raise
    except TargetError as error:
        if target.access.login is not None:
            raise
        raise TargetError(
            f"{error} when asked for Metadata (does it want SASL? see --security-protocol)"
        ) from None
    target.brokers, target.controller, target.topics = read_metadata(response, version)


def metadata_request(version: int, names: list[str]) -> bytes:
    """Write a Metadata request (v4 to v12) for these topics that creates none of them."""
    flexible = version >= 9
    encode, tags = (encode_compact_string, b"\x00") if flexible else (encode_string, b"")
    no_id = bytes(UUID_BYTES) if version >= 10 else b""
    topics = [no_id + encode(name.encode()) + tags for name in names]
    count = (encode_compact_count if flexible else encode_count)(len(topics))
    no_creation = b"\x00"
    no_operations = b"" if version < 8 else b"\x00" if version >= 11 else b"\x00\x00"
    return count + b"".join(topics) + no_creation + no_operations + tags


class _Reader:
    """Reads the fields of a Metadata response in order (MetadataResponse.json)."""

    def __init__(self, body: bytes, version: int) -> None:
        self.body = body
        self.version = version
        self.flexible = version >= 9
        self.at = 0

    def int16(self) -> int:
        value, self.at = read_int16(self.body, self.at)
        return value

    def int32(self) -> int:
        value, self.at = read_int32(self.body, self.at)
        return value

    def count(self) -> int:
        count, self.at = (read_compact_count if self.flexible else read_count)(self.body, self.at)
        return count or 0

    def string(self) -> str:
        value, self.at = (read_compact_string if self.flexible else read_string)(self.body, self.at)
        return (value or b"").decode(errors="replace")

    def bytes_(self, size: int) -> bytes:
        if self.at + size > len(self.body):
            raise Truncated("Metadata", self.at)
        self.at += size
        return self.body[self.at - size : self.at]

    def tags(self) -> None:
        if self.flexible:
            self.at = skip_tags(self.body, self.at)[1]

    def int32s(self) -> None:
        self.bytes_(4 * self.count())


def read_metadata(body: bytes, version: int) -> tuple[dict[int, Address], int, dict[str, Topic]]:
    """Read a Metadata response (v4 to v12).

    Returns:
        Brokers by node id, the controller's node id, and topics without an error by name.

    Raises:
        ProtocolError: it does not parse.
    """
    reader = _Reader(body, version)
    reader.int32()  # throttle_time_ms
    brokers: dict[int, Address] = {}
    for _ in range(reader.count()):
        node_id = reader.int32()
        brokers[node_id] = Address(reader.string(), reader.int32())
        reader.string()  # rack
        reader.tags()
    reader.string()  # cluster_id
    controller = reader.int32()
    topics: dict[str, Topic] = {}
    for _ in range(reader.count()):
        error = reader.int16()
        name = reader.string()
        topic = _read_topic(reader)
        if error == ErrorCode.NONE:
            topics[name] = topic
    return brokers, controller, topics


def _read_topic(reader: _Reader) -> Topic:
    topic_id = reader.bytes_(UUID_BYTES) if reader.version >= 10 else bytes(UUID_BYTES)
    reader.bytes_(1)  # is_internal
    leaders: dict[int, tuple[int, int]] = {}
    for _ in range(reader.count()):
        reader.int16()  # error_code: a partition without a leader has -1 as its leader
        partition = reader.int32()
        leader = reader.int32()
        leaders[partition] = leader, reader.int32() if reader.version >= 7 else -1
        reader.int32s()  # replica_nodes
        reader.int32s()  # isr_nodes
        if reader.version >= 5:
            reader.int32s()  # offline_replicas
        reader.tags()
    if reader.version >= 8:
        reader.int32()  # topic_authorized_operations
    reader.tags()
    size = max(leaders, default=-1) + 1
    if size > _MAX_PARTITIONS or min(leaders, default=0) < 0:
        raise ProtocolError(f"a topic of {size} partitions")
    topic = Topic(
        topic_id=topic_id,
        leaders=np.full(size, -1, np.int32),
        leader_epochs=np.full(size, -1, np.int32),
        earliest=np.full(size, -1, np.int64),
        latest=np.full(size, -1, np.int64),
    )
    for partition, (leader, epoch) in leaders.items():
        topic.leaders[partition], topic.leader_epochs[partition] = leader, epoch
    return topic


async def _create(target: Target, topics: Mapping[str, int]) -> None:
    """Create topics, and wait until each partition has a leader that responds with its offsets.

    Metadata tells of a leader before it knows itself that it leads: until then it responds with errors.
    """
    lowest, highest = target.versions.get(ApiKey.CREATE_TOPICS, (0, -1))
    version = min(highest, _CREATE_TOPICS_VERSIONS[1])
    if version < max(lowest, _CREATE_TOPICS_VERSIONS[0]):
        raise TargetError(f"{target.address}: speaks no CreateTopics of v2 to v4; create the topics yourself")
    address = target.place(target.controller).address  # with ZooKeeper only the controller creates topics
    peer = await target.access.connect(address)
    try:
        response = await peer.ask(ApiKey.CREATE_TOPICS, version, create_request(version, topics))
    finally:
        await peer.finish()
    for name, error in read_created(response).items():
        if error not in {ErrorCode.NONE, TOPIC_ALREADY_EXISTS}:
            raise TargetError(f"{address}: topic {name} can't be created: error {error_name(error)}")
    names = sorted({*target.topics, *topics})
    try:
        async with asyncio.timeout(_CREATE_SECONDS):
            while not all(_serves(target, name, count) for name, count in topics.items()):
                await asyncio.sleep(_CREATE_POLL_SECONDS)
                connection = await target.access.connect(target.address)
                try:
                    await _describe(connection, target, names)
                    await _find_offsets(connection, target)
                finally:
                    await connection.finish()
    except TimeoutError:
        waiting = ", ".join(name for name, count in topics.items() if not _serves(target, name, count))
        raise TargetError(
            f"{target.address}: no leaders in {_CREATE_SECONDS:.0f} s for the created topics {waiting}"
        ) from None
    target.created = dict(topics)


def _serves(target: Target, name: str, partitions: int) -> bool:
    topic = target.topics.get(name)
    return topic is not None and topic.partitions >= partitions and bool((topic.latest >= 0).all())


def create_request(version: int, topics: Mapping[str, int]) -> bytes:
    """Write a CreateTopics request (v2 to v4).

    From v4 on a broker can choose its default replication factor (KIP-464); before, each partition gets one
    replica.
    """
    replication = (-1 if version >= 4 else 1).to_bytes(2, signed=True)
    entries = [
        encode_string(name.encode()) + count.to_bytes(4) + replication + encode_count(0) + encode_count(0)
        for name, count in topics.items()
    ]
    timeout_ms = int(_CREATE_SECONDS * 1000).to_bytes(4)
    return encode_count(len(entries)) + b"".join(entries) + timeout_ms + b"\x00"  # not validate_only


def read_created(response: bytes) -> dict[str, int]:
    """Read a CreateTopics response (v2 to v4): the error code of each topic."""
    _, at = read_int32(response, 0)  # throttle_time_ms
    count, at = read_count(response, at)
    errors: dict[str, int] = {}
    for _ in range(count or 0):
        name, at = read_string(response, at)
        errors[(name or b"").decode(errors="replace")], at = read_int16(response, at)
        _, at = read_string(response, at)  # error_message
    return errors


async def _find_offsets(connection: TargetConnection, target: Target) -> None:
    """Ask each leader for the earliest and the latest offsets of its partitions."""
    leaders = {int(leader) for topic in target.topics.values() for leader in topic.leaders if leader >= 0}
    for leader in sorted(leaders):
        led = {
            name: [int(number) for number in (topic.leaders == leader).nonzero()[0]]
            for name, topic in target.topics.items()
        }
        address = target.place(leader).address
        peer = connection if address == connection.address else await target.access.connect(address)
        try:
            for timestamp in (_EARLIEST, _LATEST):
                body = offsets_request({name: led[name] for name in led if led[name]}, timestamp)
                response = await peer.ask(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, body)
                _read_offsets(target, response, timestamp)
        finally:
            if peer is not connection:
                await peer.finish()


def offsets_request(partitions: Mapping[str, list[int]], timestamp: int) -> bytes:
    """Write a ListOffsets request (v1)."""
    wanted = timestamp.to_bytes(8, signed=True)
    topics = [
        encode_string(name.encode())
        + encode_count(len(numbers))
        + b"".join(n.to_bytes(4) + wanted for n in numbers)
        for name, numbers in partitions.items()
    ]
    return _CLIENT + encode_count(len(topics)) + b"".join(topics)


def _read_offsets(target: Target, response: bytes, timestamp: int) -> None:
    count, at = read_count(response, 0)
    for _ in range(count or 0):
        name, at = read_string(response, at)
        topic = target.topics.get((name or b"").decode(errors="replace"))
        partitions, at = read_count(response, at)
        for _ in range(partitions or 0):
            partition, at = read_int32(response, at)
            error, at = read_int16(response, at)
            offset = int.from_bytes(response[at + 8 : at + 16], signed=True)
            at += 16
            if topic is not None and not error and 0 <= partition < topic.partitions:
                (topic.earliest if timestamp == _EARLIEST else topic.latest)[partition] = offset
