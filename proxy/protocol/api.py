"""API keys, error codes, flexible versions, and the headers of requests and responses.

Numbers and names are Kafka's own (4.3). These functions run at most once for each frame.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from proxy.protocol.primitives import Buffer, Truncated, read_int32, read_string, skip_tags


class ApiKey(IntEnum):
    """Kafka's API keys: the kind of a request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class ErrorCode(IntEnum):
    """The error codes of fetches, and further codes that the gateway needs."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REPLICA_NOT_AVAILABLE = 9
    COORDINATOR_NOT_AVAILABLE = 15
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    OFFSET_MOVED_TO_TIERED_STORAGE = 109


NEVER_FLEXIBLE: Final = 0x8000
"""A number above every version (an int16), for API keys without flexible versions."""

# KIP-482; fetch-semantics 1.2. Keys 0 to 54 in order. From 55 on every version is flexible. SaslHandshake and
# OffsetDelete have no flexible version.
# fmt: off
_FIRST_FLEXIBLE: Final = (
    9, 12, 6, 9, 4, 2, 6, 3, 8, 6,                                  # 0-9
    3, 6, 4, 4, 4, 5, 3, NEVER_FLEXIBLE, 3, 5,                      # 10-19
    4, 2, 2, 4, 3, 3, 3, 1, 3, 2,                                   # 20-29
    2, 2, 4, 2, 2, 2, 2, 2, 2, 2,                                   # 30-39
    2, 2, 2, 2, 1, 0, 0, NEVER_FLEXIBLE, 1, 1,                      # 40-49
    0, 0, 0, 1, 1,                                                  # 50-54
)
# fmt: on

FIRST_FLEXIBLE: Final[dict[int, int]] = dict.fromkeys(ApiKey, 0) | dict(enumerate(_FIRST_FLEXIBLE))
"""For each API key, the first version with compact strings and tag buffers, in requests and responses."""

SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""The requests with which a client authenticates."""

UNUSED_VERSION: Final = 25
"""No API has this version or a higher one yet (Fetch has 18). Bytes that would be one are no request."""

# The fields at the start of every frame
LENGTH_BYTES: Final = 4
"""The size of a frame's length field, an int32. The length does not include these 4 bytes."""
REQUEST_START: Final = Struct(">ihhi")
"""The start of a request: length, api_key, api_version, correlation_id. The client id follows."""
REQUEST_START_BYTES: Final = REQUEST_START.size
RESPONSE_START: Final = Struct(">ii")
"""The start of a response: length, correlation_id. The header's tags follow, if it has any."""
RESPONSE_START_BYTES: Final = RESPONSE_START.size
API_KEY: Final = slice(4, 6)
API_VERSION: Final = slice(6, 8)
API_KEY_AND_VERSION: Final = slice(4, 8)
REQUEST_CORRELATION_ID: Final = slice(8, 12)
RESPONSE_CORRELATION_ID: Final = slice(4, 8)

REQUEST_HEADER: Final = Struct(">hhi")
"""The start of a request header: api_key, api_version, correlation_id."""


def is_flexible(api_key: int, version: int) -> bool | None:
    """Return whether a version of a message is flexible. None for an unknown API key."""
    first = FIRST_FLEXIBLE.get(api_key)
    return None if first is None else version >= first


def request_header(frame: Buffer, offset: int) -> tuple[int, int, int, bytes | None, int]:
    """Read a request header: v0, v1 or v2, depending on API key and version. `offset` is that of api_key.

    Returns:
        api_key, api_version, correlation_id, client_id, and the offset of the body. For an unknown API key,
        the offset is the end of client_id, because it is unknown whether tags follow.

    Raises:
        ProtocolError: the header is incomplete, or these bytes are no header.
    """
    at = offset + REQUEST_HEADER.size
    if at > len(frame):
        raise Truncated("request header", offset)
    api_key, version, correlation_id = REQUEST_HEADER.unpack_from(frame, offset)
    # The only request with header v0 (fetch-semantics 1.2).
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return api_key, version, correlation_id, None, at
    client_id, at = read_string(frame, at)  # header v2 has an int16 length, too (fetch-semantics 1.2)
    if is_flexible(api_key, version):
        _, at = skip_tags(frame, at)
    return api_key, version, correlation_id, client_id, at


def _has_response_tags(api_key: int, version: int) -> bool | None:
    # KIP-511: a client reads an ApiVersions response before it knows the broker, so its header is always v0
    # (fetch-semantics 1.2).
    return False if api_key == ApiKey.API_VERSIONS else is_flexible(api_key, version)


def response_header(frame: Buffer, offset: int, api_key: int, version: int) -> tuple[int, int]:
    """Read a response header. `offset` is that of correlation_id, key and version are the request's.

    Returns:
        correlation_id and the offset of the body. For an unknown API key, the offset is the end of
        correlation_id, because it is unknown whether tags follow.

    Raises:
        ProtocolError: the header is incomplete, or these bytes are no header.
    """
    correlation_id, at = read_int32(frame, offset)
    if _has_response_tags(api_key, version):
        _, at = skip_tags(frame, at)
    return correlation_id, at
