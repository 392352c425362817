"""What a target contains: versions, brokers, topics, and the first and last offsets of partitions."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from proxy.addresses import Address
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.brokers import brokers_in
from proxy.protocol.messages import Struct, body, read
from proxy.protocol.metadata import NO_TOPIC_ID
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.schemas import LIST_OFFSETS, LIST_OFFSETS_REQUEST, METADATA, METADATA_REQUEST
from replay.drive.access import Access, Versions, ask_versions
from replay.drive.topics import Topic
from replay.drive.wire import SilentError, TargetConnection, TargetError
from replay.protocol.errors import error_name
from replay.protocol.names import text_of

_FIRST_SECONDS: Final = 5.0
"""The first response must arrive within this time, or within the timeout if that is shorter."""
_METADATA_VERSIONS: Final = (4, 12)
"""The lowest and the highest version of Metadata requests. From v4 on, a request can forbid the creation of
topics. Each broker from 1.0 to 4.3 supports at least one of these versions."""
_BY_ID_VERSION: Final = 12
"""From this version of Metadata on, topics can be asked for by id."""
_LIST_OFFSETS_VERSION: Final = 1
"""The version of ListOffsets requests. Brokers from 1.0 to 4.3 support it."""
_LATEST, _EARLIEST = -1, -2
_CLIENT: Final = -1
"""The replica_id of a client."""
_MAX_PARTITIONS: Final = 1_000_000
_CREATE_TOPICS_VERSIONS: Final = (2, 4)
"""The lowest and the highest version of CreateTopics requests. Each broker from 1.0 to 4.3 supports at least
one of these versions. The versions allow different values in fields."""
TOPIC_ALREADY_EXISTS: Final = 36
_CREATE_TOPICS_REQUEST: Final = (
    "topics:[name:string num_partitions:int32 replication_factor:int16 "
    "assignments:[partition_index:int32 broker_ids:int32[]] configs:[name:string value:string]] "
    "timeout_ms:int32 validate_only:bool"
)
_CREATE_TOPICS: Final = "throttle_time_ms:int32 topics:[name:string error_code:int16 error_message:string]"
_CREATE_SECONDS: Final = 30.0
_CREATE_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Destination:
    """The address that a connection goes to, and the broker there."""

    address: Address
    node_id: int | None
    """The node id of the broker at this address. None if there is only one broker, or if the id is
    unknown."""


@dataclass(slots=True, kw_only=True)
class Target:
    """What `drive` knows about the cluster at one address: versions, brokers, topics."""

    address: Address
    access: Access = field(default_factory=Access)
    versions: Versions
    brokers: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    """The requested topics that exist on the target, by name."""
    denied: set[str] = field(default_factory=set)
    """The requested topics that the user may not see."""
    controller: int = -1
    """The node id of the broker that creates topics. -1 if it is unknown."""
    created: dict[str, int] = field(default_factory=dict)
    """The topics that this program has asked the target to create, each with its number of partitions."""

    def speaks(self, api_key: int, version: int) -> bool:
        lowest, highest = self.versions.get(api_key, (0, -1))
        return lowest <= version <= highest

    def place(self, leader: int | None) -> Destination:
        """Return the destination for partitions whose leader is the broker `leader`.

        If the target has a single broker, or the leader is not known, return the target's own address.
        """
        if len(self.brokers) <= 1 or leader is None or leader not in self.brokers:
            return Destination(self.address, None)
        return Destination(self.brokers[leader], leader)


async def look(
    address: Address,
    names: Iterable[str],
    *,
    offsets: bool,
    create: Mapping[str, int] | None = None,
    access: Access | None = None,
) -> Target:
    """Ask a target for its versions, brokers, topics and offsets. Create those of `create` that are missing.

    Raises:
        SilentError: the target does not respond in time.
        TargetError: the target can't be reached, does not respond as a Kafka broker does, or can't create a
            topic.
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


async def names_of(address: Address, ids: Collection[bytes], access: Access) -> dict[bytes, str]:
    """Ask a target for the names of topics with these ids. Ids that it does not have are left out.

    Raises:
        SilentError: the target does not respond in time.
        TargetError: the target can't be reached, or does not respond as a Kafka broker does.
    """
    connection = await access.connect(address)
    try:
        lowest, highest = (await _first_versions(connection, access)).get(ApiKey.METADATA, (0, -1))
        if not lowest <= _BY_ID_VERSION <= highest:
            return {}
        request = _metadata_request(_BY_ID_VERSION, [], ids)
        response = await connection.ask(ApiKey.METADATA, _BY_ID_VERSION, request)
        found = read(METADATA, ApiKey.METADATA, _BY_ID_VERSION, response, 0, whole=False)["topics"] or ()
    except ProtocolError as error:
        raise TargetError(f"{address}: does not respond as Kafka does: {error}") from None
    finally:
        await connection.finish()
    return {
        topic["topic_id"]: text_of(topic["name"])
        for topic in found
        if topic["topic_id"] in ids and not topic["error_code"]
    }


async def _first_versions(connection: TargetConnection, access: Access) -> Versions:
    # Shorter here, because a server that is no broker may never respond.
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
        raise TargetError(
            f"{connection.address}: does not support Metadata v4 to v12 (is it a Kafka broker?)"
        )
    try:
        response = await connection.ask(ApiKey.METADATA, version, _metadata_request(version, names))
    except SilentError:
        raise
    except TargetError as error:
        if target.access.login is not None:
            raise
        raise TargetError(
            f"{error} when asked for Metadata (does it require SASL? see --security-protocol)"
        ) from None
    found = read(METADATA, ApiKey.METADATA, version, response, 0, whole=False)
    topics = {text_of(topic["name"]): topic for topic in found["topics"] or ()}
    denial = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    target.brokers = {each.node_id: Address(each.host, each.port) for each in brokers_in(found)}
    target.controller = found["controller_id"]
    target.topics = {name: _topic(topic) for name, topic in topics.items() if not topic["error_code"]}
    target.denied = {name for name, topic in topics.items() if topic["error_code"] == denial}


def _metadata_request(version: int, names: list[str], ids: Iterable[bytes] = ()) -> bytes:
    return body(
        METADATA_REQUEST,
        ApiKey.METADATA,
        version,
        topics=[
            *({"topic_id": NO_TOPIC_ID, "name": name.encode()} for name in names),
            *({"topic_id": each, "name": None} for each in ids),
        ],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _topic(described: Struct) -> Topic:
    entries = described["partitions"] or ()
    numbers = [entry["partition_index"] for entry in entries]
    size = max(numbers, default=-1) + 1
    if size > _MAX_PARTITIONS or min(numbers, default=0) < 0:
        raise ProtocolError(f"a topic of {size} partitions")
    topic = Topic(
        topic_id=described.get("topic_id", NO_TOPIC_ID),
        leaders=np.full(size, -1, np.int32),
        leader_epochs=np.full(size, -1, np.int32),
        earliest=np.full(size, -1, np.int64),
        latest=np.full(size, -1, np.int64),
    )
    # A partition without a leader has -1 as its leader, and an error code.
    topic.leaders[numbers] = [entry["leader_id"] for entry in entries]
    topic.leader_epochs[numbers] = [entry.get("leader_epoch", -1) for entry in entries]
    return topic


async def _create(target: Target, topics: Mapping[str, int]) -> None:
    """Create topics, and wait until each partition has a leader that responds with its offsets."""
    lowest, highest = target.versions.get(ApiKey.CREATE_TOPICS, (0, -1))
    version = min(highest, _CREATE_TOPICS_VERSIONS[1])
    if version < max(lowest, _CREATE_TOPICS_VERSIONS[0]):
        raise TargetError(
            f"{target.address}: does not support CreateTopics v2 to v4; create the topics yourself"
        )
    address = target.place(target.controller).address  # with ZooKeeper only the controller creates topics
    peer = await target.access.connect(address)
    try:
        response = await peer.ask(ApiKey.CREATE_TOPICS, version, _create_request(version, topics))
    finally:
        await peer.finish()
    found = read(_CREATE_TOPICS, ApiKey.CREATE_TOPICS, version, response, 0, whole=False)
    for topic in found["topics"] or ():
        name, error = text_of(topic["name"]), topic["error_code"]
        if error not in {ErrorCode.NONE, TOPIC_ALREADY_EXISTS}:
            raise TargetError(f"{address}: topic {name} can't be created: error {error_name(error)}")
    names = sorted({*target.topics, *topics})
    try:
        async with asyncio.timeout(_CREATE_SECONDS):
            # Metadata may name a leader that does not know yet that it leads. It responds with errors.
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


def _create_request(version: int, topics: Mapping[str, int]) -> bytes:
    listed: list[dict[str, Any]] = [
        {
            "name": name.encode(),
            "num_partitions": count,
            # From v4 on, the broker can choose it (KIP-464).
            "replication_factor": -1 if version >= 4 else 1,
            "assignments": [],
            "configs": [],
        }
        for name, count in topics.items()
    ]
    timeout_ms = int(_CREATE_SECONDS * 1000)
    return body(
        _CREATE_TOPICS_REQUEST,
        ApiKey.CREATE_TOPICS,
        version,
        topics=listed,
        timeout_ms=timeout_ms,
        validate_only=False,
    )


async def _find_offsets(connection: TargetConnection, target: Target) -> None:
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
                body = _offsets_request({name: led[name] for name in led if led[name]}, timestamp)
                response = await peer.ask(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, body)
                _read_offsets(target, response, timestamp)
        finally:
            if peer is not connection:
                await peer.finish()


def _offsets_request(partitions: Mapping[str, list[int]], timestamp: int) -> bytes:
    topics = [
        {
            "name": name.encode(),
            "partitions": [{"partition_index": number, "timestamp": timestamp} for number in numbers],
        }
        for name, numbers in partitions.items()
    ]
    version = _LIST_OFFSETS_VERSION
    return body(LIST_OFFSETS_REQUEST, ApiKey.LIST_OFFSETS, version, replica_id=_CLIENT, topics=topics)


def _read_offsets(target: Target, response: bytes, timestamp: int) -> None:
    found = read(LIST_OFFSETS, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, response, 0, whole=False)
    for listed in found["topics"] or ():
        topic = target.topics.get(text_of(listed["name"]))
        for entry in listed["partitions"] or ():
            partition = entry["partition_index"]
            if topic is not None and not entry["error_code"] and 0 <= partition < topic.partitions:
                (topic.earliest if timestamp == _EARLIEST else topic.latest)[partition] = entry["offset"]
