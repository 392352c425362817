"""The places of error codes in the responses of Kafka's APIs, and the names of errors. Sans-IO."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from proxy.protocol.api import ApiKey, response_header
from proxy.protocol.messages import read, structs
from proxy.protocol.primitives import Buffer, ProtocolError

SCHEMAS: Final[dict[int, str]] = {
    ApiKey.PRODUCE: (
        "topics:[topic:string@0-12 topic:uuid@13+ partitions:[number:int32 error:int16 offset:int64 int64@2+ "
        "int64@5+ [int32 string]@8+ string@8+]]"
    ),
    ApiKey.LIST_OFFSETS: (
        "int32@2+ topics:[topic:string partitions:[number:int32 error:int16 int64[]@0 int64@1+ "
        "offset:int64@1+ int32@4+]]"
    ),
    ApiKey.METADATA: (
        "int32@3+ [int32 string int32 string@1+] string@2+ int32@1+ topics:[error:int16 name:string "
        "topic_id:uuid@10+ bool@1+ partitions:[error:int16 number:int32 int32 int32@7+ int32[] int32[] "
        "int32[]@5+] int32@8+] int32@8-10 error:int16@13+"
    ),
    ApiKey.OFFSET_COMMIT: "int32@3+ [string@0-9 uuid@10+ [int32 error:int16]]",
    ApiKey.OFFSET_FETCH: (
        "int32@3+ [string [int32 int64 int32@5+ string error:int16]]@0-7 error:int16@2-7 [string "
        "[string@8-9 uuid@10+ [int32 int64 int32 string error:int16]] error:int16]@8+"
    ),
    ApiKey.FIND_COORDINATOR: (
        "int32@1+ error:int16@0-3 string@1-3 int32@0-3 string@0-3 int32@0-3 [string int32 string int32 "
        "error:int16 string]@4+"
    ),
    ApiKey.JOIN_GROUP: "int32@2+ error:int16",
    ApiKey.HEARTBEAT: "int32@1+ error:int16",
    ApiKey.LEAVE_GROUP: "int32@1+ error:int16 [string string error:int16]@3+",
    ApiKey.SYNC_GROUP: "int32@1+ error:int16",
    ApiKey.DESCRIBE_GROUPS: (
        "int32@1+ [error:int16 string@6+ string string string string [string string@4+ string string bytes "
        "bytes] int32@3+]"
    ),
    ApiKey.LIST_GROUPS: "int32@1+ error:int16",
    ApiKey.SASL_HANDSHAKE: "error:int16",
    ApiKey.API_VERSIONS: "error:int16",
    ApiKey.CREATE_TOPICS: (
        "int32@2+ [string uuid@7+ error:int16 string@1+ int32@5+ int16@5+ [string string bool int8 bool]@5+]"
    ),
    ApiKey.DELETE_TOPICS: "int32@1+ [string uuid@6+ error:int16 string@5+]",
    ApiKey.DELETE_RECORDS: "int32 [string [int32 int64 error:int16]]",
    ApiKey.INIT_PRODUCER_ID: "int32 error:int16",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "int32@2+ [string [error:int16 int32 int32@1+ int64]]",
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        "int32 error:int16@4+ [string [string [int32 error:int16]]]@4+ [string [int32 error:int16]]@0-3"
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: "int32 error:int16",
    ApiKey.END_TXN: "int32 error:int16",
    ApiKey.WRITE_TXN_MARKERS: "[int64 [string [int32 error:int16]]]",
    ApiKey.TXN_OFFSET_COMMIT: "int32 [string [int32 error:int16]]",
    ApiKey.DESCRIBE_ACLS: "int32 error:int16",
    ApiKey.CREATE_ACLS: "int32 [error:int16 string]",
    ApiKey.DELETE_ACLS: (
        "int32 [error:int16 string [error:int16 string int8 string int8@1+ string string int8 int8]]"
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        "int32 [error:int16 string int8 string [string string bool bool@0 int8@1+ bool [string string "
        "int8]@1+ int8@3+ string@3+]]"
    ),
    ApiKey.ALTER_CONFIGS: "int32 [error:int16 string int8 string]",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "int32 [string [int32 error:int16]]",
    ApiKey.DESCRIBE_LOG_DIRS: (
        "int32 error:int16@3+ [error:int16 string [string [int32 int64 int64 bool]] int64@4+ int64@4+ "
        "bool@5+]"
    ),
    ApiKey.SASL_AUTHENTICATE: "error:int16",
    ApiKey.CREATE_PARTITIONS: "int32 [string error:int16 string]",
    ApiKey.CREATE_DELEGATION_TOKEN: "error:int16",
    ApiKey.RENEW_DELEGATION_TOKEN: "error:int16",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "error:int16",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "error:int16",
    ApiKey.DELETE_GROUPS: "int32 [string error:int16]",
    ApiKey.ELECT_LEADERS: "int32 error:int16@1+ [string [int32 error:int16 string]]",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "int32 [error:int16 string int8 string]",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        "int32 bool@1+ error:int16 string [string [int32 error:int16 string]]"
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "int32 error:int16",
    ApiKey.OFFSET_DELETE: "error:int16 int32 [string [int32 error:int16]]",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "int32 error:int16",
    ApiKey.ALTER_CLIENT_QUOTAS: "int32 [error:int16 string [string string]]",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        "int32 error:int16 string [string error:int16 string [int8 int32]]"
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "int32 [string error:int16 string]",
    ApiKey.DESCRIBE_QUORUM: (
        "error:int16 string@2+ [string [int32 error:int16 string@2+ int32 int32 int64 [int32 uuid@2+ int64 "
        "int64@1+ int64@1+] [int32 uuid@2+ int64 int64@1+ int64@1+]]]"
    ),
    ApiKey.UPDATE_FEATURES: "int32 error:int16 string [string error:int16 string]@0-1",
    ApiKey.DESCRIBE_CLUSTER: "int32 error:int16",
    ApiKey.DESCRIBE_PRODUCERS: (
        "int32 [string [int32 error:int16 string [int64 int32 int32 int64 int32 int64]]]"
    ),
    ApiKey.UNREGISTER_BROKER: "int32 error:int16",
    ApiKey.DESCRIBE_TRANSACTIONS: (
        "int32 [error:int16 string string int32 int64 int64 int16 [string int32[]]]"
    ),
    ApiKey.LIST_TRANSACTIONS: "int32 error:int16",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "int32 error:int16",
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        "int32 [error:int16 string string string int32 int32 string [string string string int32 string "
        "string string[] string ([uuid string int32[]]) ([uuid string int32[]]) int8@1+] int32]"
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "int32 error:int16",
    ApiKey.PUSH_TELEMETRY: "int32 error:int16",
    ApiKey.LIST_CONFIG_RESOURCES: "int32 error:int16",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        "int32 [error:int16 string uuid bool [error:int16 int32 int32 int32 int32[] int32[] int32[] "
        "int32[] int32[]] int32]"
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: "int32 error:int16",
    ApiKey.SHARE_GROUP_DESCRIBE: (
        "int32 [error:int16 string string string int32 int32 string [string string int32 string string "
        "string[] ([uuid string int32[]])] int32]"
    ),
    ApiKey.SHARE_FETCH: (
        "int32 error:int16 string int32@1+ [uuid [int32 error:int16 string acknowledge_error:int16 string "
        "(int32 int32) bytes [int64 int64 int16]]]"
    ),
    ApiKey.SHARE_ACKNOWLEDGE: (
        "int32 error:int16 string int32@2+ [uuid [int32 error:int16 string (int32 int32)]]"
    ),
    ApiKey.ADD_RAFT_VOTER: "int32 error:int16",
    ApiKey.REMOVE_RAFT_VOTER: "int32 error:int16",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "[uuid [int32 error:int16 string]]",
    ApiKey.READ_SHARE_GROUP_STATE: "[uuid [int32 error:int16 string int32 int64 [int64 int64 int8 int16]]]",
    ApiKey.WRITE_SHARE_GROUP_STATE: "[uuid [int32 error:int16 string]]",
    ApiKey.DELETE_SHARE_GROUP_STATE: "[uuid [int32 error:int16 string]]",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "[uuid [int32 error:int16 string int32 int32 int64 int32@1+]]",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "int32 error:int16",
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        "int32 [error:int16 string string string int32 int32 ?(int32 [string string[] string[] [string "
        "int32 int16 [string string]] [string int32 int16 [string string]]]) [string int32 string string "
        "string string int32 string ?(string uint16) [string string] [string int32 int64] [string int32 "
        "int64] ([string int32[]] [string int32[]] [string int32[]]) ([string int32[]] [string int32[]] "
        "[string int32[]]) bool] int32]"
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        "int32 [string [string uuid [int32 int64 int32 int64@1+ error:int16 string]] error:int16 string]"
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "int32 error:int16 string [string uuid [int32 error:int16 string]]",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "int32 error:int16 string [string uuid error:int16 string]",
}
"""API key -> the schema of its response (see `proxy.protocol.messages`), at least up to the last error code,
for all versions from 0 on. The schemas were made from the *Response.json files of Kafka 3.9 and 4.3. Fetch is
not among them: `fetches.read_fetch` reads its responses."""

_ERRORS: Final = ("error", "acknowledge_error")

# Kafka's Errors.java (4.3), in the order of their codes.
_IN_ORDER: Final = """
UNKNOWN_SERVER_ERROR NONE OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION
INVALID_FETCH_SIZE LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT
BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE MESSAGE_TOO_LARGE STALE_CONTROLLER_EPOCH
OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
NOT_COORDINATOR INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE NOT_ENOUGH_REPLICAS
NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS ILLEGAL_GENERATION
INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID INVALID_SESSION_TIMEOUT
REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE TOPIC_AUTHORIZATION_FAILED
GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM
ILLEGAL_SASL_STATE UNSUPPORTED_VERSION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS
INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST
UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER
DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
INVALID_TRANSACTION_TIMEOUT CONCURRENT_TRANSACTIONS TRANSACTION_COORDINATOR_FENCED
TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR
LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED UNKNOWN_PRODUCER_ID REASSIGNMENT_IN_PROGRESS
DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED
INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND FETCH_SESSION_ID_NOT_FOUND
INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND TOPIC_DELETION_DISABLED FENCED_LEADER_EPOCH
UNKNOWN_LEADER_EPOCH UNSUPPORTED_COMPRESSION_TYPE STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE
MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID
ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED
PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL INCONSISTENT_VOTER_SET
INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE SNAPSHOT_NOT_FOUND
POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID DUPLICATE_BROKER_REGISTRATION BROKER_ID_NOT_REGISTERED
INCONSISTENT_TOPIC_ID INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND
FETCH_SESSION_TOPIC_ID_ERROR INELIGIBLE_REPLICA NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE
FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH
MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID
TELEMETRY_TOO_LARGE INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE
SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY
DUPLICATE_VOTER VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED
STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED
SHARE_SESSION_LIMIT_REACHED
"""
_NAMES: Final = _IN_ORDER.split()
_FIRST_CODE: Final = -1


def error_name(code: int) -> str:
    """Return an error code with Kafka's name for it, if the name is known."""
    name = bare_name(code)
    return name if name == str(code) else f"{code} {name}"


def bare_name(code: int) -> str:
    """Return Kafka's name for an error code, or the code if its name is not known."""
    place = code - _FIRST_CODE
    return _NAMES[place] if 0 <= place < len(_NAMES) else str(code)


@dataclass(frozen=True, slots=True)
class Errors:
    """The error codes of a response. Code 0 (no error) is left out."""

    whole: tuple[int, ...] = ()
    """The error codes that are about the whole response, not about one of its entries."""
    entries: tuple[int, ...] = ()
    """The error codes of the response's entries: partitions, topics, groups, members."""


def read_errors(api_key: int, version: int, pieces: Iterable[Buffer]) -> Errors | None:
    """Read the error codes of a response, from the pieces of its frame. Return None if it can't be parsed.

    If replay has no schema for the response, the result is empty.
    """
    schema = SCHEMAS.get(api_key)
    if schema is None:
        return Errors()
    frame = b"".join(bytes(piece) for piece in pieces)
    try:
        _, body = response_header(frame, 4, api_key, version)
        found = read(schema, api_key, version, frame, body, whole=False)
    except ProtocolError:
        return None
    codes = sorted(
        (struct.spans[name], depth, struct[name])
        for struct, depth in structs(found)
        for name in _ERRORS
        if struct.get(name)
    )
    return Errors(
        tuple(code for _, depth, code in codes if not depth), tuple(code for _, depth, code in codes if depth)
    )
