"""Responses of real brokers, at every version they support: read to the end, rewritten, and rewritten
back.
"""

import struct
import time
import uuid
from collections.abc import Iterator

import pytest

from proxy.protocol.addresses import REWRITTEN, rewrite
from proxy.protocol.api import ApiKey
from proxy.protocol.api_versions import REWRITABLE, Features, clamp, request
from proxy.protocol.schemas import CONFINED
from tools.gateway import GatewayProcess
from tools.kafka import Broker, Cluster
from tools.kafka.admin import Admin
from tools.kafka.raw import (
    BodyReader,
    RawConnection,
    array,
    compact_array,
    compact_string,
    string,
)

pytestmark = pytest.mark.integration

RELEASES = {
    "1.0.2": Features(fetch_max=6, offset_fetch_max=3, find_coordinator_max=1),
    "2.8.2": Features(fetch_max=12, offset_fetch_max=7, find_coordinator_max=3),
    "4.4.0": Features(fetch_max=18, offset_fetch_max=10, find_coordinator_max=6),
    "4.3.0": Features(fetch_max=18, offset_fetch_max=10, find_coordinator_max=6),
}
BEYOND = {"4.4.0": {ApiKey.API_VERSIONS: (0, 4)}}
"""For each release, the version ranges that the gateway cuts, because it does not support later versions."""
NO_TAGS = b"\0"
COORDINATOR_SECONDS = 30
"""The time limit for a coordinator, in seconds. A new cluster responds with error 15 until it has created its
topic of offsets."""


@pytest.fixture(scope="module", params=RELEASES)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(request.param) as running:
        with Admin(running.address) as admin:
            admin.create_topic("events", partitions=3)
        yield running


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(broker.host, broker.port) as connected:
        yield connected


def metadata(version: int) -> bytes:
    """Build a Metadata request for all topics: with an empty array in v0, with null from v1 on."""
    topics = array([]) if version == 0 else b"\0" if version >= 9 else b"\xff\xff\xff\xff"
    auto_creation = b"\0" if version >= 4 else b""
    operations = b"\1\1" if 8 <= version <= 10 else b"\1" if version > 10 else b""
    return topics + auto_creation + operations + (NO_TAGS if version >= 9 else b"")


def find_coordinator(version: int) -> bytes:
    """Build a FindCoordinator request for one consumer group (key type 0), or from v4 on for two groups."""
    if version >= 4:
        return b"\0" + compact_array([compact_string("group-a"), compact_string("group-b")]) + NO_TAGS
    key = compact_string("group-a") if version == 3 else string("group-a")
    return key + (b"\0" if version >= 1 else b"") + (NO_TAGS if version == 3 else b"")


def describe_cluster(version: int, endpoint_type: int = 1) -> bytes:
    return b"\1" + bytes([endpoint_type] * (version >= 1)) + b"\1" * (version >= 2) + NO_TAGS


def describe_quorum(_version: int) -> bytes:
    partition = bytes(4) + NO_TAGS
    topic = compact_string("__cluster_metadata") + compact_array([partition]) + NO_TAGS
    return compact_array([topic]) + NO_TAGS


REQUESTS = {
    ApiKey.METADATA: metadata,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
}


def response(connection: RawConnection, key: ApiKey, version: int) -> bytes:
    """Return the response to a request. The request is repeated until the coordinator is available."""
    give_up = time.monotonic() + COORDINATOR_SECONDS
    while True:
        body = connection.call(key, version, REQUESTS[key](version))
        if key is not ApiKey.FIND_COORDINATOR or told(key, version, body):
            return body
        assert time.monotonic() < give_up
        time.sleep(0.2)


def told(key: ApiKey, version: int, body: bytes) -> list[tuple[int, str, int]]:
    """Return the addresses in a response: node id, host and port. The response must stay unchanged."""
    seen: list[tuple[int, str, int]] = []

    def note(node_id: int, host: str, port: int) -> tuple[str, int]:
        seen.append((node_id, host, port))
        return host, port

    assert rewrite(key, version, body, note) is body
    return seen


def moved_back(key: ApiKey, version: int, body: bytes, addresses: list[tuple[int, str, int]]) -> bytes:
    """Replace the addresses in a response by the given addresses, one after the other."""
    back = iter(addresses)
    return rewrite(key, version, body, lambda *_: next(back)[1:])


def spoken(connection: RawConnection, key: ApiKey) -> range:
    """Return the versions of an API that the broker supports.

    The gateway must know the highest of these versions. The range is empty if the broker does not support the
    API.
    """
    low, high = connection.versions().get(key, (0, -1))
    assert high <= REWRITTEN[key]
    return range(low, high + 1)


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name)
def test_every_version_is_read_and_rewritten_both_ways(
    broker: Broker, connection: RawConnection, key: ApiKey
) -> None:
    for version in spoken(connection, key):
        body = response(connection, key, version)
        addresses = told(key, version, body)
        if key is ApiKey.DESCRIBE_QUORUM:
            assert addresses == [(broker.node_id, broker.host, broker.controller_port)] * (version >= 2)
        else:
            assert set(addresses) == {(broker.node_id, broker.host, broker.port)}, version
        away = rewrite(key, version, body, lambda node_id, _host, _port: ("a.gateway.example", 1 + node_id))
        assert {one[1:] for one in told(key, version, away)} == {
            ("a.gateway.example", 1 + broker.node_id) for _ in addresses
        }
        assert moved_back(key, version, away, addresses) == body


def test_a_broker_does_not_tell_controllers(connection: RawConnection) -> None:
    for version in spoken(connection, ApiKey.DESCRIBE_CLUSTER):
        if version >= 1:
            body = connection.call(
                ApiKey.DESCRIBE_CLUSTER, version, describe_cluster(version, endpoint_type=2)
            )
            assert BodyReader(body, 4).int16() == 114  # MISMATCHED_ENDPOINT_TYPE
            assert told(ApiKey.DESCRIBE_CLUSTER, version, body) == []


def ranges_of(body: bytes) -> dict[int, tuple[int, int]]:
    """Return the version ranges in a response to ApiVersions v0."""
    reader = BodyReader(body, 2)
    return {reader.int16(): (reader.int16(), reader.int16()) for _ in range(reader.int32())}


def test_what_is_promised(broker: Broker, connection: RawConnection) -> None:
    ranges = connection.versions()
    cut = BEYOND.get(broker.version, {})
    _, last = cut.get(ApiKey.API_VERSIONS, ranges[ApiKey.API_VERSIONS])
    for version in range(last + 1):
        body = connection.call(ApiKey.API_VERSIONS, version, b"\2a\2b\0" if version >= 3 else b"")
        offered, features = clamp(body, version)
        assert features == RELEASES[broker.version]
        assert (offered == body) == (not cut)
        if version == 0:
            assert ranges_of(offered) == ranges_of(body) | cut
    for key, (_, highest) in REWRITABLE.items():
        assert ranges.get(key, (0, highest))[1] <= highest or key in cut


def test_nothing_that_a_gateway_offers_or_passes_names_a_brokers_own_address(broker: Broker) -> None:
    """No response has a broker's own address.

    If the gateway does not offer the version of a request, it closes the connection (trap 5).
    """
    with GatewayProcess(broker.address) as gateway:
        with RawConnection(gateway.host, gateway.port) as through:
            offered = through.versions()
            for key in REQUESTS:
                low, high = offered.get(key, (0, -1))
                for version in range(low, high + 1):
                    addresses = told(key, version, response(through, key, version))
                    assert {port for _, _, port in addresses} <= {gateway.port + 1 + broker.node_id}, version
        refused = 0
        for confined, (lowest, highest) in CONFINED.items():
            for version in {lowest - 1, highest + 1} - {-1}:
                assert version not in range(*offered.get(confined, (0, -1)))
                with RawConnection(gateway.host, gateway.port) as through, pytest.raises(ConnectionError):
                    through.call(confined, version, bytes(20))
                refused += 1
        assert gateway.metric("fetchgate_refused_total", reason="version not offered") == refused


def test_a_version_of_api_versions_that_the_broker_does_not_know(connection: RawConnection) -> None:
    body = connection.call(ApiKey.API_VERSIONS, 99, b"\2a\2b\0")
    assert BodyReader(body).int16() == 35
    after, features = clamp(body, 99)
    assert features is None
    assert len(after) == len(body)


def test_the_gateways_own_request_is_answered(broker: Broker, connection: RawConnection) -> None:
    connection.socket.sendall(request(7, b"fetchgate"))
    frame = connection.receive()
    assert frame[:4] == b"\0\0\0\7"
    assert clamp(frame[4:], 0)[1] == RELEASES[broker.version]


def share_fetch(version: int, topic_id: bytes, partition: int) -> bytes:
    """Open a share session for one partition, as a new member of group "share"."""
    limits = struct.pack(">iiiii", 100, 1, 1 << 20, 10, 10)  # wait, least and most bytes, records, batch size
    acquire = b"\0\0" if version >= 2 else b""
    topic = topic_id + compact_array([struct.pack(">i", partition) + compact_array([]) + NO_TAGS]) + NO_TAGS
    member = compact_string("share") + compact_string(str(uuid.uuid4())) + struct.pack(">i", 0)
    return member + limits + acquire + compact_array([topic]) + compact_array([]) + NO_TAGS


def test_a_broker_that_does_not_lead_tells_share_consumers_who_does() -> None:
    """A share fetch to a broker that is not the leader gets the leader's address (KIP-951)."""
    with Cluster("4.3.0", nodes=2) as cluster:
        asked, leader = cluster.brokers
        with Admin(asked.address) as admin:
            admin.create_topic("shared", assignment={0: [leader.node_id]})
            topic_id = admin.topic_id("shared")
        for version in (1, 2):
            with RawConnection(asked.host, asked.port) as connection:
                body = connection.call(ApiKey.SHARE_FETCH, version, share_fetch(version, topic_id.bytes, 0))
            [address] = told(ApiKey.SHARE_FETCH, version, body)
            assert address == (leader.node_id, leader.host, leader.port)
            away = rewrite(ApiKey.SHARE_FETCH, version, body, lambda *_: ("a.gateway.example", 19095))
            assert told(ApiKey.SHARE_FETCH, version, away) == [(leader.node_id, "a.gateway.example", 19095)]
            assert moved_back(ApiKey.SHARE_FETCH, version, away, [address]) == body
