"""What requests name: clients, groups, transactional ids, topics and their partitions. Sans-IO."""

from collections.abc import Iterable, Iterator
from typing import Final

from proxy.protocol.api import REQUEST_START_BYTES, ApiKey, is_flexible, response_header
from proxy.protocol.primitives import (
    ProtocolError,
    encode_compact_string,
    encode_string,
    read_compact_string,
    read_string,
)
from replay.protocol import errors
from replay.protocol.layouts import Mark, find

LAYOUTS: Final[dict[int, str]] = {
    ApiKey.PRODUCE: "transaction@3+ int16 int32 [topic@0-12 uuid@13+ [partition records]]",
    ApiKey.LIST_OFFSETS: "int32 int8@2+ [topic [partition int32@4+ int64 int32@0]]",
    ApiKey.OFFSET_COMMIT: (
        "group int32@1+ string@1+ string@7+ int64@2-4 [topic@0-9 uuid@10+ [partition int64 int32@6+ int64@1 "
        "string]]"
    ),
    ApiKey.OFFSET_FETCH: (
        "group@0-7 [topic partition[]]@0-7 [group string@9+ int32@9+ [topic@8-9 uuid@10+ partition[]]]@8+"
    ),
    ApiKey.FIND_COORDINATOR: "group@0-3 int8@1+ group[]@4+",
    ApiKey.JOIN_GROUP: "group",
    ApiKey.HEARTBEAT: "group",
    ApiKey.LEAVE_GROUP: "group",
    ApiKey.SYNC_GROUP: "group",
    ApiKey.DESCRIBE_GROUPS: "group[]",
    ApiKey.INIT_PRODUCER_ID: "transaction",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "int32@3+ [topic [partition int32@2+ int32]]",
    ApiKey.ADD_PARTITIONS_TO_TXN: "[transaction int64 int16 bool [string int32[]]]@4+ transaction@0-3",
    ApiKey.ADD_OFFSETS_TO_TXN: "transaction int64 int16 group",
    ApiKey.END_TXN: "transaction",
    ApiKey.TXN_OFFSET_COMMIT: (
        "transaction group int64 int16 int32@3+ string@3+ string@3+ [topic [partition int64 int32@2+ string]]"
    ),
    ApiKey.DELETE_GROUPS: "group[]",
    ApiKey.OFFSET_DELETE: "group",
    ApiKey.DESCRIBE_TRANSACTIONS: "transaction[]",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "group",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "group[]",
    ApiKey.SHARE_GROUP_HEARTBEAT: "group",
    ApiKey.SHARE_GROUP_DESCRIBE: "group[]",
    ApiKey.SHARE_FETCH: "group",
    ApiKey.SHARE_ACKNOWLEDGE: "group",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "group",
    ApiKey.STREAMS_GROUP_DESCRIBE: "group[]",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "[group [string int32[]]]",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "group",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "group",
}
"""API key -> the layout of its request (see `layouts`), by the *Request.json of Kafka 3.9 and 4.3. The key of
FindCoordinator counts as a group, whatever its key_type. Layouts end with the last field that is needed."""

_OWN: Final = frozenset({"group", "transaction"})


def named_partitions(api_key: int, version: int, frame: bytes, body: int) -> Iterator[tuple[str, int]]:
    """Yield the topic and the number of each partition that a request names.

    Args:
        api_key: its key.
        version: its version.
        frame: the whole frame.
        body: where its body stands in the frame.
    """
    yield from _partitions(_marks(api_key, version, frame, body), api_key, version, frame)


def count_partitions(api_key: int, version: int, frame: bytes, body: int) -> int | None:
    """Return how many partitions a request names; None: its API names none, or it is not understood.

    Args:
        api_key: its key.
        version: its version.
        frame: the whole frame.
        body: where its body stands in the frame.
    """
    if "partition" not in LAYOUTS.get(api_key, ""):
        return None
    try:
        marks = find(LAYOUTS[api_key], api_key, version, frame, body)
    except ProtocolError:
        return None
    return sum(mark.word == "partition" for mark in marks)


def metadata_partitions(version: int, frame: bytes) -> Iterator[tuple[str, int]]:
    """Yield the topic and the number of each partition in a Metadata response; none if it does not parse."""
    key = ApiKey.METADATA
    try:
        _, body = response_header(frame, 4, key, version)
        found = find(errors.LAYOUTS[key], key, version, frame, body)
    except ProtocolError:
        return
    yield from _partitions(found, key, version, frame)


def own_ids(api_key: int, version: int, frame: bytes, body: int, suffix: bytes) -> bytes:
    """Return a request with a suffix at each group and transactional id.

    Args:
        api_key: its key.
        version: its version.
        frame: the whole frame.
        body: where its body stands in the frame.
        suffix: it is added to each id that is not empty.
    """
    if api_key not in LAYOUTS:
        return frame
    flexible = bool(is_flexible(api_key, version))
    parts, at = [], 4
    for mark in _marks(api_key, version, frame, body):
        if mark.word not in _OWN:
            continue
        value, _ = (read_compact_string if flexible else read_string)(frame, mark.start)
        if value:
            parts += [
                frame[at : mark.start],
                (encode_compact_string if flexible else encode_string)(value + suffix),
            ]
            at = mark.end
    content = b"".join([*parts, frame[at:]])
    return len(content).to_bytes(4) + content


def own_client(frame: bytes, suffix: bytes) -> bytes:
    """Return a request with a suffix at its client id; a request without a client id stays as it is."""
    at = REQUEST_START_BYTES
    size = int.from_bytes(frame[at : at + 2], signed=True)
    if size < 0:
        return frame
    end = at + 2 + size
    length = (len(frame) - 4 + len(suffix)).to_bytes(4)
    new_size = (size + len(suffix)).to_bytes(2)
    return b"".join((length, frame[4:at], new_size, frame[at + 2 : end], suffix, frame[end:]))


def _marks(api_key: int, version: int, frame: bytes, body: int) -> list[Mark]:
    """Find what a request names; nothing if it is not understood."""
    try:
        return find(LAYOUTS.get(api_key, ""), api_key, version, frame, body)
    except ProtocolError:
        return []


def _partitions(marks: Iterable[Mark], api_key: int, version: int, frame: bytes) -> Iterator[tuple[str, int]]:
    topic = ""
    read = read_compact_string if is_flexible(api_key, version) else read_string
    for mark in marks:
        if mark.word == "topic":
            topic = (read(frame, mark.start)[0] or b"").decode(errors="replace")
        elif mark.word == "partition" and topic:
            yield topic, int.from_bytes(frame[mark.start : mark.end], signed=True)
