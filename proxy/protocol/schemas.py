"""The responses that name brokers, as tables: their fields in wire order, with Kafka's names.

A table has only what is needed to find a host and a port: sizes, strings, arrays, and the versions of each
field. Brokers from 1.0 to 4.3 speak these versions.

Responses of controllers to each other (Vote and others) name listeners of controllers, too. They have no
table: no client needs the versions that have addresses, so these are not offered, and refused (`CONFINED`).
LeaderAndIsr, UpdateMetadata and registrations have addresses in the request alone. The endpoints in
StreamsGroupHeartbeat and StreamsGroupDescribe are those of clients.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache
from typing import Final

from proxy.protocol.api import ApiKey, is_flexible
from proxy.protocol.fetch_layout import MAX_VERSION
from proxy.protocol.primitives import UUID_BYTES, UnknownVersion

LATEST: Final = 0x7FFF


class Kind(Enum):
    """How a field is written."""

    FIXED = auto()
    STRING = auto()
    RECORDS = auto()
    """Nullable bytes. Here they occur only in flexible versions."""
    ARRAY = auto()
    STRUCT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message, in the versions `since` to `until`."""

    name: str
    kind: Kind
    since: int = 0
    until: int = LATEST
    size: int = 0
    """Bytes of a `FIXED` field."""
    struct: "Struct | None" = None
    """The elements of an `ARRAY`; the fields of a `STRUCT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """Fields in wire order, then, in flexible versions, a tag buffer."""

    fields: tuple[Field, ...]
    endpoints_tag: int | None = None
    """The tag whose payload is node_endpoints. All other tags are skipped."""
    leader_tag: int | None = None
    """The tag whose payload is current_leader (KIP-951)."""
    partial: bool = False
    """The bytes after the fields hold no address and are not walked."""
    flexible: bool = False
    """Set by `layout`: strings and arrays are compact, and a tag buffer ends the struct."""
    addressed: bool = False
    """Set by `layout`: the struct has a host, itself or in a struct within it."""


def _fixed(name: str, size: int, *, since: int = 0, until: int = LATEST) -> Field:
    return Field(name=name, kind=Kind.FIXED, size=size, since=since, until=until)


def _string(name: str, *, since: int = 0, until: int = LATEST) -> Field:
    return Field(name=name, kind=Kind.STRING, since=since, until=until)


def _array(name: str, *fields: Field, since: int = 0, leader_tag: int | None = None) -> Field:
    struct = Struct(fields=fields, leader_tag=leader_tag)
    return Field(name=name, kind=Kind.ARRAY, struct=struct, since=since)


_NODE_ENDPOINTS: Final = _array(
    "node_endpoints", _fixed("node_id", 4), _string("host"), _fixed("port", 4), _string("rack")
)
"""The same in Fetch, Produce (both tagged), ShareFetch and ShareAcknowledge (KIP-951)."""

_CURRENT_LEADER: Final = Field(
    name="current_leader",
    kind=Kind.STRUCT,
    struct=Struct(fields=(_fixed("leader_id", 4), _fixed("leader_epoch", 4))),
)

_METADATA: Final = Struct(
    fields=(
        _fixed("throttle_time_ms", 4, since=3),
        _array("brokers", _fixed("node_id", 4), _string("host"), _fixed("port", 4), _string("rack", since=1)),
    ),
    partial=True,  # there can be thousands of topics, and they stand after the brokers
)

# The coordinator is in the message itself up to v3, in an array from v4 on (KIP-699).
_FIND_COORDINATOR: Final = Struct(
    fields=(
        _fixed("throttle_time_ms", 4, since=1),
        _fixed("error_code", 2, until=3),
        _string("error_message", since=1, until=3),
        _fixed("node_id", 4, until=3),
        _string("host", until=3),
        _fixed("port", 4, until=3),
        _array(
            "coordinators",
            _string("key"),
            _fixed("node_id", 4),
            _string("host"),
            _fixed("port", 4),
            _fixed("error_code", 2),
            _string("error_message"),
            since=4,
        ),
    ),
)

# endpoint_type 2 (v1, KIP-919): the "brokers" are controllers. Only a controller sends them (a broker sends
# error 114 MISMATCHED_ENDPOINT_TYPE). Then there are controllers behind the gateway, and their addresses are
# rewritten in the same way.
_DESCRIBE_CLUSTER: Final = Struct(
    fields=(
        _fixed("throttle_time_ms", 4),
        _fixed("error_code", 2),
        _string("error_message"),
        _fixed("endpoint_type", 1, since=1),
        _string("cluster_id"),
        _fixed("controller_id", 4),
        _array(
            "brokers",
            _fixed("node_id", 4),
            _string("host"),
            _fixed("port", 4),
            _string("rack"),
            _fixed("is_fenced", 1, since=2),
        ),
        _fixed("cluster_authorized_operations", 4),
    ),
)

_PRODUCE: Final = Struct(
    fields=(
        _array(
            "responses",
            _string("name", until=12),
            _fixed("topic_id", UUID_BYTES, since=13),
            _array(
                "partition_responses",
                _fixed("partition_index", 4),
                _fixed("error_code", 2),
                _fixed("base_offset", 8),
                _fixed("log_append_time_ms", 8),
                _fixed("log_start_offset", 8),
                _array("record_errors", _fixed("batch_index", 4), _string("batch_index_error_message")),
                _string("error_message"),
                leader_tag=0,
            ),
        ),
        _fixed("throttle_time_ms", 4),
    ),
    endpoints_tag=0,
)

_SHARE_FETCH: Final = Struct(
    fields=(
        _fixed("throttle_time_ms", 4),
        _fixed("error_code", 2),
        _string("error_message"),
        _fixed("acquisition_lock_timeout_ms", 4),
        _array(
            "responses",
            _fixed("topic_id", UUID_BYTES),
            _array(
                "partitions",
                _fixed("partition_index", 4),
                _fixed("error_code", 2),
                _string("error_message"),
                _fixed("acknowledge_error_code", 2),
                _string("acknowledge_error_message"),
                _CURRENT_LEADER,
                Field(name="records", kind=Kind.RECORDS),
                _array(
                    "acquired_records",
                    _fixed("first_offset", 8),
                    _fixed("last_offset", 8),
                    _fixed("delivery_count", 2),
                ),
            ),
        ),
        _NODE_ENDPOINTS,
    ),
)

_SHARE_ACKNOWLEDGE: Final = Struct(
    fields=(
        _fixed("throttle_time_ms", 4),
        _fixed("error_code", 2),
        _string("error_message"),
        _fixed("acquisition_lock_timeout_ms", 4, since=2),
        _array(
            "responses",
            _fixed("topic_id", UUID_BYTES),
            _array(
                "partitions",
                _fixed("partition_index", 4),
                _fixed("error_code", 2),
                _string("error_message"),
                _CURRENT_LEADER,
            ),
        ),
        _NODE_ENDPOINTS,
    ),
)

_REPLICA_STATE: Final = (
    _fixed("replica_id", 4),
    _fixed("replica_directory_id", UUID_BYTES),
    _fixed("log_end_offset", 8),
    _fixed("last_fetch_timestamp", 8),
    _fixed("last_caught_up_timestamp", 8),
)

_DESCRIBE_QUORUM: Final = Struct(
    fields=(
        _fixed("error_code", 2),
        _string("error_message"),
        _array(
            "topics",
            _string("topic_name"),
            _array(
                "partitions",
                _fixed("partition_index", 4),
                _fixed("error_code", 2),
                _string("error_message"),
                _fixed("leader_id", 4),
                _fixed("leader_epoch", 4),
                _fixed("high_watermark", 8),
                _array("current_voters", *_REPLICA_STATE),
                _array("observers", *_REPLICA_STATE),
            ),
        ),
        _array(
            "nodes",
            _fixed("node_id", 4),
            _array("listeners", _string("name"), _string("host"), _fixed("port", 2)),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class _Message:
    struct: Struct
    first: int
    """First version that has addresses."""
    last: int
    """Last version that is understood."""
    oldest: int = 0
    """First version that is understood."""


_MESSAGES: Final[dict[int, _Message]] = {
    ApiKey.PRODUCE: _Message(_PRODUCE, 10, 13),
    ApiKey.METADATA: _Message(_METADATA, 0, 13),
    ApiKey.FIND_COORDINATOR: _Message(_FIND_COORDINATOR, 0, 6),
    ApiKey.DESCRIBE_QUORUM: _Message(_DESCRIBE_QUORUM, 2, 2),
    ApiKey.DESCRIBE_CLUSTER: _Message(_DESCRIBE_CLUSTER, 0, 2),
    # v0 was early access in 4.0, not compatible with what became v1.
    ApiKey.SHARE_FETCH: _Message(_SHARE_FETCH, 1, 2, oldest=1),
    ApiKey.SHARE_ACKNOWLEDGE: _Message(_SHARE_ACKNOWLEDGE, 1, 2, oldest=1),
}

REWRITTEN: Final[dict[int, int]] = {int(key): message.last for key, message in _MESSAGES.items()}
"""API key -> the highest version whose addresses can be rewritten. Clients are offered no higher one."""

CONFINED: Final[dict[int, tuple[int, int]]] = {
    int(key): (message.oldest, message.last) for key, message in _MESSAGES.items()
} | {
    int(ApiKey.FETCH): (0, MAX_VERSION),
    # KIP-853: from the next version on these name listeners of controllers (fetch-semantics 6.10).
    int(ApiKey.VOTE): (0, 0),
    int(ApiKey.BEGIN_QUORUM_EPOCH): (0, 0),
    int(ApiKey.END_QUORUM_EPOCH): (0, 0),
    int(ApiKey.FETCH_SNAPSHOT): (0, 0),
    int(ApiKey.UPDATE_RAFT_VOTER): (0, -1),
}
"""API key -> the lowest and the highest version whose responses have no address that can't be rewritten. All
keys whose responses ever have addresses are here. Where addresses are rewritten, clients are offered no other
version, and requests of others are refused."""


def _bring_to(struct: Struct, version: int, *, flexible: bool, merges: bool = True) -> Struct:
    fields = [
        _field_at(field, version, flexible=flexible, merges=merges)
        for field in struct.fields
        if field.since <= version <= field.until
    ]
    addressed = struct.endpoints_tag is not None or any(
        field.name == "host" or (field.struct is not None and field.struct.addressed) for field in fields
    )
    merged = tuple(fields) if addressed or not merges else _merge(fields)
    return replace(struct, fields=merged, flexible=flexible, addressed=addressed)


def _field_at(field: Field, version: int, *, flexible: bool, merges: bool = True) -> Field:
    if field.struct is None:
        return field
    return replace(field, struct=_bring_to(field.struct, version, flexible=flexible, merges=merges))


def _merge(fields: list[Field]) -> tuple[Field, ...]:
    """Merge neighbouring fixed fields into one, for fewer steps. Nobody needs them one by one."""
    merged: list[Field] = []
    for field in fields:
        if merged and field.kind is merged[-1].kind is Kind.FIXED:
            merged[-1] = replace(merged[-1], size=merged[-1].size + field.size)
        else:
            merged.append(field)
    return tuple(merged)


@cache
def _layout(api_key: int, version: int) -> Struct | None:
    message = _MESSAGES[api_key]
    if version < message.first:
        return None
    return _bring_to(message.struct, version, flexible=bool(is_flexible(api_key, version)))


def layout(api_key: int, version: int) -> Struct | None:
    """Return the struct of a response's body; None if it names no broker at that version.

    Raises:
        UnknownVersion: the key is not one of `REWRITTEN`, or the version is unknown.
    """
    message = _MESSAGES.get(api_key)
    if message is None or not message.oldest <= version <= message.last:
        raise UnknownVersion(api_key, version)
    return _layout(api_key, version)


_NAMES_LEADERS: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 13,
    ApiKey.SHARE_FETCH: 1,
    ApiKey.SHARE_ACKNOWLEDGE: 1,
}
"""API key -> the first version that names a current_leader and the id of its topic."""


@cache
def leaders_layout(api_key: int, version: int) -> Struct | None:
    """Return the struct of a response's body field by field, if it names leaders by topic id (KIP-951)."""
    message = _MESSAGES.get(api_key)
    if message is None or not _NAMES_LEADERS.get(api_key, LATEST) <= version <= message.last:
        return None
    return _bring_to(message.struct, version, flexible=True, merges=False)


ENDPOINTS: Final = _field_at(_NODE_ENDPOINTS, LATEST, flexible=True)
"""node_endpoints as a tag's payload."""
