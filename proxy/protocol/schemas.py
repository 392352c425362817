"""Schemas of the messages that the gateway reads, for `proxy.protocol.messages`.

Names are those of Kafka 4.3.

The schemas have the versions that brokers from 1.0 to 4.3 support. Fetch and Produce requests, and Fetch
responses, have their own readers (`fetch_request`, `produce`, `fetch_response`).

Some responses between controllers (for example to Vote) also contain the listeners of controllers. These
responses have no schema, because no client needs the versions with addresses. The gateway neither offers nor
accepts these versions (`CONFINED`). LeaderAndIsr, UpdateMetadata and registrations have addresses only in the
request. The endpoints in StreamsGroupHeartbeat and StreamsGroupDescribe belong to clients.
"""

from typing import Final, NamedTuple

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import MAX_VERSION

API_VERSIONS_REQUEST: Final = "client_software_name:string@3+ client_software_version:string@3+"
API_VERSIONS: Final = (
    "error_code:int16 api_keys:[api_key:int16 min_version:int16 max_version:int16] throttle_time_ms:int32@1+"
)
METADATA: Final = (
    "throttle_time_ms:int32@3+ brokers:[node_id:int32 host:string port:int32 rack:string@1+] "
    "cluster_id:string@2+ controller_id:int32@1+ topics:[error_code:int16 name:string topic_id:uuid@10+ "
    "is_internal:bool@1+ partitions:[error_code:int16 partition_index:int32 leader_id:int32 "
    "leader_epoch:int32@7+ replica_nodes:int32[] isr_nodes:int32[] offline_replicas:int32[]@5+] "
    "topic_authorized_operations:int32@8+] cluster_authorized_operations:int32@8-10 error_code:int16@13+"
)
METADATA_REQUEST: Final = (
    "topics:[topic_id:uuid@10+ name:string] allow_auto_topic_creation:bool@4+ "
    "include_cluster_authorized_operations:bool@8-10 include_topic_authorized_operations:bool@8+"
)
OFFSET_FOR_LEADER_EPOCH_REQUEST: Final = (
    "replica_id:int32@3+ topics:[topic:string partitions:[partition:int32 current_leader_epoch:int32@2+ "
    "leader_epoch:int32]]"
)
OFFSET_FOR_LEADER_EPOCH: Final = (
    "throttle_time_ms:int32@2+ topics:[topic:string partitions:[error_code:int16 partition:int32 "
    "leader_epoch:int32@1+ end_offset:int64]]"
)

LIST_OFFSETS_REQUEST: Final = (
    "replica_id:int32 isolation_level:int8@2+ topics:[name:string partitions:[partition_index:int32 "
    "current_leader_epoch:int32@4+ timestamp:int64 max_num_offsets:int32@0]] timeout_ms:int32@10+"
)
LIST_OFFSETS: Final = (
    "throttle_time_ms:int32@2+ topics:[name:string partitions:[partition_index:int32 error_code:int16 "
    "old_style_offsets:int64[]@0 timestamp:int64@1+ offset:int64@1+ leader_epoch:int32@4+]]"
)
DELETE_RECORDS: Final = (
    "throttle_time_ms:int32 topics:[name:string partitions:[partition_index:int32 low_watermark:int64 "
    "error_code:int16]]"
)

# In the request, `name` is an item of configuration_keys, an array of strings.
DESCRIBE_CONFIGS_REQUEST: Final = (
    "resources:[resource_type:int8 resource_name:string configuration_keys:[name:string]] "
    "include_synonyms:bool@1+ include_documentation:bool@3+"
)
DESCRIBE_CONFIGS: Final = (
    "throttle_time_ms:int32 results:[error_code:int16 error_message:string resource_type:int8 "
    "resource_name:string configs:[name:string value:string read_only:bool config_source:int8@1+ "
    "is_sensitive:bool synonyms:[name:string value:string source:int8]@1+ config_type:int8@3+ "
    "documentation:string@3+]]"
)
"""For v1 to v3. In v4, which is flexible, names in the request's configuration_keys have no tags."""

NODE_ENDPOINTS: Final = "node_endpoints:[node_id:int32 host:string port:int32 rack:string]"
"""The schema of a field of ShareFetch and ShareAcknowledge. Fetch and Produce have it as a tagged field
(KIP-951)."""
_LEADER: Final = "current_leader:(leader_id:int32 leader_epoch:int32)"

PRODUCE: Final = (
    "responses:[name:string@0-12 topic_id:uuid@13+ partition_responses:[index:int32 error_code:int16 "
    "base_offset:int64 log_append_time_ms:int64@2+ log_start_offset:int64@5+ "
    "record_errors:[batch_index:int32 batch_index_error_message:string]@8+ error_message:string@8+ "
    f"#0 {_LEADER}]] throttle_time_ms:int32@1+ #0 {NODE_ENDPOINTS}"
)
# Up to v3 the coordinator is in the message itself, from v4 on in an array (KIP-699).
FIND_COORDINATOR: Final = (
    "throttle_time_ms:int32@1+ error_code:int16@0-3 error_message:string@1-3 node_id:int32@0-3 "
    "host:string@0-3 port:int32@0-3 coordinators:[key:string node_id:int32 host:string port:int32 "
    "error_code:int16 error_message:string]@4+"
)
# With endpoint_type 2 (v1, KIP-919) the "brokers" are controllers. Only a controller sends them (a broker
# sends error 114 MISMATCHED_ENDPOINT_TYPE). The gateway then stands before controllers, and rewrites their
# addresses in the same way.
DESCRIBE_CLUSTER: Final = (
    "throttle_time_ms:int32 error_code:int16 error_message:string endpoint_type:int8@1+ cluster_id:string "
    "controller_id:int32 brokers:[node_id:int32 host:string port:int32 rack:string is_fenced:bool@2+] "
    "cluster_authorized_operations:int32"
)
SHARE_FETCH: Final = (
    "throttle_time_ms:int32 error_code:int16 error_message:string acquisition_lock_timeout_ms:int32 "
    "responses:[topic_id:uuid partitions:[partition_index:int32 error_code:int16 error_message:string "
    f"acknowledge_error_code:int16 acknowledge_error_message:string {_LEADER} records:bytes "
    f"acquired_records:[first_offset:int64 last_offset:int64 delivery_count:int16]]] {NODE_ENDPOINTS}"
)
SHARE_ACKNOWLEDGE: Final = (
    "throttle_time_ms:int32 error_code:int16 error_message:string acquisition_lock_timeout_ms:int32@2+ "
    "responses:[topic_id:uuid partitions:[partition_index:int32 error_code:int16 error_message:string "
    f"{_LEADER}]] {NODE_ENDPOINTS}"
)
_REPLICAS: Final = (
    "[replica_id:int32 replica_directory_id:uuid log_end_offset:int64 last_fetch_timestamp:int64 "
    "last_caught_up_timestamp:int64]"
)
DESCRIBE_QUORUM: Final = (
    "error_code:int16 error_message:string topics:[topic_name:string partitions:[partition_index:int32 "
    "error_code:int16 error_message:string leader_id:int32 leader_epoch:int32 high_watermark:int64 "
    f"current_voters:{_REPLICAS} observers:{_REPLICAS}]] "
    "nodes:[node_id:int32 listeners:[name:string host:string port:uint16]]"
)


HEARTBEAT_REQUEST: Final = "group_id:string generation_id:int32 member_id:string group_instance_id:string@3+"
HEARTBEAT: Final = "throttle_time_ms:int32@1+ error_code:int16"
JOIN_GROUP_REQUEST: Final = (
    "group_id:string session_timeout_ms:int32 rebalance_timeout_ms:int32@1+ member_id:string "
    "group_instance_id:string@5+ protocol_type:string protocols:[name:string metadata:bytes] reason:string@8+"
)
JOIN_GROUP: Final = (
    "throttle_time_ms:int32@2+ error_code:int16 generation_id:int32 protocol_type:string@7+ "
    "protocol_name:string leader:string skip_assignment:bool@9+ member_id:string "
    "members:[member_id:string group_instance_id:string@5+ metadata:bytes]"
)
SYNC_GROUP_REQUEST: Final = (
    "group_id:string generation_id:int32 member_id:string group_instance_id:string@3+ "
    "protocol_type:string@5+ protocol_name:string@5+ assignments:[member_id:string assignment:bytes]"
)
SYNC_GROUP: Final = (
    "throttle_time_ms:int32@1+ error_code:int16 protocol_type:string@5+ protocol_name:string@5+ "
    "assignment:bytes"
)
OFFSET_COMMIT_REQUEST: Final = (
    "group_id:string generation_id:int32@1+ member_id:string@1+ group_instance_id:string@7+ "
    "retention_time_ms:int64@2-4 topics:[name:string partitions:[partition_index:int32 "
    "committed_offset:int64 committed_leader_epoch:int32@6+ committed_metadata:string]]"
)
OFFSET_COMMIT: Final = (
    "throttle_time_ms:int32@3+ topics:[name:string partitions:[partition_index:int32 error_code:int16]]"
)
TXN_OFFSET_COMMIT_REQUEST: Final = (
    "transactional_id:string group_id:string producer_id:int64 producer_epoch:int16 generation_id:int32@3+ "
    "member_id:string@3+ group_instance_id:string@3+ topics:[name:string partitions:[partition_index:int32 "
    "committed_offset:int64 committed_leader_epoch:int32@2+ committed_metadata:string]]"
)
TXN_OFFSET_COMMIT: Final = (
    "throttle_time_ms:int32 topics:[name:string partitions:[partition_index:int32 error_code:int16]]"
)
OFFSET_FETCH_REQUEST: Final = (
    "group_id:string@0-7 topics:[name:string partition_indexes:int32[]]@0-7 groups:[group_id:string "
    "member_id:string@9+ member_epoch:int32@9+ topics:[name:string partition_indexes:int32[]]]@8+ "
    "require_stable:bool@7+"
)
_FETCHED_OFFSETS: Final = (
    "topics:[name:string partitions:[partition_index:int32 committed_offset:int64 "
    "committed_leader_epoch:int32@5+ metadata:string error_code:int16]]"
)
OFFSET_FETCH: Final = (
    f"throttle_time_ms:int32@3+ {_FETCHED_OFFSETS}@0-7 error_code:int16@2-7 "
    f"groups:[group_id:string {_FETCHED_OFFSETS} error_code:int16]@8+"
)

SUBSCRIPTION: Final = "protocol_version:int16 topics:string[] user_data:bytes"
"""A consumer's metadata in JoinGroup (ConsumerProtocolSubscription.json), in all its versions."""
OWNED_PARTITIONS: Final = "owned_partitions:[topic:string partitions:int32[]]"
"""The field of a subscription that follows the fields of `SUBSCRIPTION`, from v1 on (KIP-429)."""
ASSIGNMENT: Final = (
    "protocol_version:int16 assigned_partitions:[topic:string partitions:int32[]] user_data:bytes"
)
"""A consumer's assignment (ConsumerProtocolAssignment.json)."""


class Addressed(NamedTuple):
    """A response that contains addresses of brokers."""

    schema: str
    first: int
    """The first version that contains addresses."""
    last: int
    """The last version that the gateway understands."""
    where: frozenset[str]
    """The fields that have addresses, as the argument `only` of `messages.read`."""
    oldest: int = 0
    """The first version that the gateway understands."""


_IN_ENDPOINTS: Final = frozenset({"node_endpoints"})

ADDRESSED: Final[dict[int, Addressed]] = {
    ApiKey.PRODUCE: Addressed(PRODUCE, 10, 13, _IN_ENDPOINTS),
    ApiKey.METADATA: Addressed(METADATA, 0, 13, frozenset({"brokers"})),
    ApiKey.FIND_COORDINATOR: Addressed(
        FIND_COORDINATOR, 0, 6, frozenset({"error_code", "node_id", "host", "port", "coordinators"})
    ),
    ApiKey.DESCRIBE_QUORUM: Addressed(DESCRIBE_QUORUM, 2, 2, frozenset({"nodes"})),
    ApiKey.DESCRIBE_CLUSTER: Addressed(DESCRIBE_CLUSTER, 0, 2, frozenset({"brokers"})),
    # v0 was early access in 4.0 and is not compatible with v1.
    ApiKey.SHARE_FETCH: Addressed(SHARE_FETCH, 1, 2, _IN_ENDPOINTS, oldest=1),
    ApiKey.SHARE_ACKNOWLEDGE: Addressed(SHARE_ACKNOWLEDGE, 1, 2, _IN_ENDPOINTS, oldest=1),
}
"""The responses in which `addresses.rewrite` can replace addresses, by API key."""

REWRITTEN: Final[dict[int, int]] = {int(key): message.last for key, message in ADDRESSED.items()}
"""The highest version in which the gateway can rewrite addresses, by API key. Clients are not offered higher
versions if addresses are rewritten for them."""

CONFINED: Final[dict[int, tuple[int, int]]] = {
    int(key): (message.oldest, message.last) for key, message in ADDRESSED.items()
} | {
    int(ApiKey.FETCH): (0, MAX_VERSION),
    # KIP-853: later versions name listeners of controllers (fetch-semantics 6.10).
    int(ApiKey.VOTE): (0, 0),
    int(ApiKey.BEGIN_QUORUM_EPOCH): (0, 0),
    int(ApiKey.END_QUORUM_EPOCH): (0, 0),
    int(ApiKey.FETCH_SNAPSHOT): (0, 0),
    int(ApiKey.UPDATE_RAFT_VOTER): (0, -1),
}
"""The lowest and highest version that clients may use in explicit mode, for each API key that has addresses
in some version. In these versions the gateway knows all addresses, and rewrites them. Other versions are not
offered to clients, and requests of other versions are refused."""
