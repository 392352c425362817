"""What requests name: clients, groups, topics, and ids that their cluster has given. Sans-IO."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from proxy.protocol.api import REQUEST_START_BYTES, ApiKey, response_header
from proxy.protocol.messages import Edit, Struct, edited, read, structs
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.schemas import METADATA
from replay.protocol.names import text_of

SCHEMAS: Final[dict[int, str]] = {
    ApiKey.PRODUCE: (
        "transaction:string@3+ int16 int32 [topic:string@0-12 topic_id:uuid@13+ [partition:int32 "
        "records:bytes]]"
    ),
    ApiKey.LIST_OFFSETS: "int32 int8@2+ [topic:string [partition:int32 leader_epoch:int32@4+ int64 int32@0]]",
    ApiKey.OFFSET_COMMIT: (
        "group:string generation:int32@1+ member:string@1+ instance:string@7+ int64@2-4 "
        "[topic:string@0-9 topic_id:uuid@10+ [partition:int32 int64 leader_epoch:int32@6+ int64@1 string]]"
    ),
    ApiKey.OFFSET_FETCH: (
        "group:string@0-7 [topic:string partition:int32[]]@0-7 [group:string member:string@9+ "
        "generation:int32@9+ [topic:string@8-9 topic_id:uuid@10+ partition:int32[]]]@8+"
    ),
    ApiKey.FIND_COORDINATOR: "group:string@0-3 key_type:int8@1+ group:string[]@4+",
    ApiKey.JOIN_GROUP: "group:string int32 int32@1+ member:string",
    ApiKey.HEARTBEAT: "group:string generation:int32 member:string",
    ApiKey.LEAVE_GROUP: "group:string member:string@0-2 [member:string string string@5+]@3+",
    ApiKey.SYNC_GROUP: (
        "group:string generation:int32 member:string string@3+ string@5+ string@5+ [member:string bytes]"
    ),
    ApiKey.DESCRIBE_GROUPS: "group:string[]",
    ApiKey.INIT_PRODUCER_ID: "transaction:string int32 producer_id:int64@3+ producer_epoch:int16@3+",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "int32@3+ [topic:string [partition:int32 leader_epoch:int32@2+ int32]]",
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        "[transaction:string producer_id:int64 producer_epoch:int16 bool [string int32[]]]@4+ "
        "transaction:string@0-3 producer_id:int64@0-3 producer_epoch:int16@0-3"
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: "transaction:string producer_id:int64 producer_epoch:int16 group:string",
    ApiKey.END_TXN: "transaction:string producer_id:int64 producer_epoch:int16",
    ApiKey.TXN_OFFSET_COMMIT: (
        "transaction:string group:string producer_id:int64 producer_epoch:int16 generation:int32@3+ "
        "member:string@3+ instance:string@3+ [topic:string [partition:int32 int64 leader_epoch:int32@2+ "
        "string]]"
    ),
    ApiKey.DELETE_GROUPS: "group:string[]",
    ApiKey.OFFSET_DELETE: "group:string",
    ApiKey.DESCRIBE_TRANSACTIONS: "transaction:string[]",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "group:string member:string generation:int32",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "group:string[]",
    ApiKey.SHARE_GROUP_HEARTBEAT: "group:string",
    ApiKey.SHARE_GROUP_DESCRIBE: "group:string[]",
    ApiKey.SHARE_FETCH: "group:string",
    ApiKey.SHARE_ACKNOWLEDGE: "group:string",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "group:string",
    ApiKey.STREAMS_GROUP_DESCRIBE: "group:string[]",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "[group:string [string int32[]]]",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "group:string",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "group:string",
}
"""For each API key, the schema of its request (see `proxy.protocol.messages`). The schemas follow the
*Request.json of Kafka 3.9 and 4.3, and end with the last field that is needed.

`leader_epoch` is an epoch that the broker compares with its own, or keeps. `generation` is also the epoch of
a member (KIP-848). A key of FindCoordinator is named as a group, whatever its key_type."""

GIVEN: Final[dict[int, str]] = {
    ApiKey.JOIN_GROUP: "int32@2+ int16 generation:int32 string@7+ string string bool@9+ member:string",
    ApiKey.INIT_PRODUCER_ID: "int32 int16 producer_id:int64 producer_epoch:int16",
    ApiKey.END_TXN: "int32 int16 producer_id:int64@5+ producer_epoch:int16@5+",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "int32 int16 string member:string generation:int32",
}
"""For each API whose responses give ids to clients: the schema of the response, up to the last id."""
_TRANSACTION: Final = 1
"""The key_type of FindCoordinator for transactional ids."""

_METADATA: Final = frozenset({"topics.name", "topics.partitions.partition_index"})


def named_partitions(
    api_key: int, version: int, frame: bytes, body: int, names: Mapping[bytes, str]
) -> Iterator[tuple[str, int]]:
    """Yield the topic and the number of each partition that a request names. Its body begins at `body`.

    Topics whose id has no name in `names` are left out. Nothing is yielded for a request that can't be read,
    or if `SCHEMAS` has no partitions for its API (Fetch has none).
    """
    topic = ""
    for struct in _structs(api_key, version, frame, body):
        if "topic" in struct:
            topic = text_of(struct["topic"])
        elif "topic_id" in struct:
            topic = names.get(struct["topic_id"], "")
        if topic and (partition := struct.get("partition")) is not None:
            for number in partition if isinstance(partition, list) else [partition]:
                yield topic, number


def transaction_of(api_key: int, version: int, frame: bytes, body: int) -> bytes:
    """Return the transactional id that a request names. Empty if it names none, or can't be read."""
    found = (struct.get("transaction") for struct in _structs(api_key, version, frame, body))
    return next(filter(None, found), b"")


def count_partitions(api_key: int, version: int, frame: bytes, body: int) -> int | None:
    """Return how many partitions a request lists. Its body begins at `body`.

    None if `SCHEMAS` has no partitions for this API, or if the request can't be read.
    """
    if "partition" not in SCHEMAS.get(api_key, ""):
        return None
    found = [*_structs(api_key, version, frame, body)]
    if not found:
        return None
    counts = [struct["partition"] for struct in found if "partition" in struct]
    return sum(len(count) if isinstance(count, list) else 1 for count in counts)


def metadata_partitions(version: int, frame: bytes) -> Iterator[tuple[str, int]]:
    """Yield the topic and number of each partition in a Metadata response. Nothing if it is not one."""
    key = ApiKey.METADATA
    try:
        _, body = response_header(frame, 4, key, version)
        found = read(METADATA, key, version, frame, body, only=_METADATA, whole=False)
    except ProtocolError:
        return
    for topic in found["topics"] or ():
        for partition in topic["partitions"] or ():
            yield text_of(topic["name"]), partition["partition_index"]


def given(api_key: int, version: int, frame: bytes) -> Struct | None:
    """Read the ids that a response gives. Return None if its API gives none, or if it can't be read."""
    if api_key not in GIVEN:
        return None
    try:
        _, body = response_header(frame, 4, api_key, version)
        return read(GIVEN[api_key], api_key, version, frame, body, whole=False)
    except ProtocolError:
        return None


def changed(
    api_key: int, version: int, frame: bytes, body: int, edits: Callable[[Struct], Iterator[Edit]]
) -> bytes:
    """Return a request with changes to what `SCHEMAS` names. A request that can't be read stays unchanged."""
    made = [edit for struct in _structs(api_key, version, frame, body) for edit in edits(struct)]
    return edited(frame, made) if made else frame


def own(struct: Struct, groups: bytes, transactions: bytes) -> Iterator[Edit]:
    """Yield the edits that add suffixes to group ids and transactional ids. Empty ids are not changed."""
    of_keys = transactions if struct.get("key_type") == _TRANSACTION else groups
    for name, suffix in (("group", of_keys), ("transaction", transactions)):
        value = struct.get(name)
        if suffix and isinstance(value, list):
            yield from struct.edits(**{name: [one and one + suffix for one in value]})
        elif suffix and value:
            yield from struct.edits(**{name: value + suffix})


def own_client(frame: bytes, suffix: bytes) -> bytes:
    """Return a request with a suffix added to its client id. A request without a client id is not changed."""
    if not suffix:
        return frame
    at = REQUEST_START_BYTES
    size = int.from_bytes(frame[at : at + 2], signed=True)
    if size < 0:
        return frame
    end = at + 2 + size
    length = (len(frame) - 4 + len(suffix)).to_bytes(4)
    new_size = (size + len(suffix)).to_bytes(2)
    return b"".join((length, frame[4:at], new_size, frame[at + 2 : end], suffix, frame[end:]))


def _structs(api_key: int, version: int, frame: bytes, body: int) -> Iterator[Struct]:
    """Yield what `SCHEMAS` names in a request. Nothing if it can't be read."""
    try:
        found = read(SCHEMAS.get(api_key, ""), api_key, version, frame, body, whole=False)
    except ProtocolError:
        return
    yield from (struct for struct, _ in structs(found))
