"""Transparent mode with three brokers, one of which restarts. The librdkafka and Java clients are unmodified.

Some clients use TLS. Clients get the brokers' own addresses, and netfilter redirects every connection to the
gateway.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.comparing import assert_sessions, fetches_of
from tests.clients.programs import java
from tests.clients.runner import CONFLUENT, Program, assert_same_records
from tests.integration.bystander import until
from tests.integration.namespaces import (
    FETCHES,
    LACKING,
    MODES,
    ONE_ANSWER,
    PARTITIONS,
    PORT,
    TOPIC,
    Place,
    counted,
    payloads,
    quiet,
)
from tests.integration.producing import Producer
from tests.integration.sidecar import Sidecar
from tools.certificates import Authority
from tools.kafka import Broker, Cluster
from tools.kafka.admin import Admin
from tools.kafka.metadata import ClusterState, request_metadata
from tools.kafka.raw import RawConnection
from tools.kafka.settings import PROTOCOL_MAP
from tools.netns import Namespace, veth

pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

NODES: Final = (1, 2, 3)
HOSTS: Final = {"IPv4": "10.79.0.{}", "IPv6": "fd79::{}"}
TLS_PORT: Final = 9093
BUSY: Final = range(6)
"""The numbers of partitions with records. Each broker leads two of these partitions."""
RECORDS: Final = 50
"""The number of initial records in each partition."""


@dataclass(frozen=True, slots=True)
class Far:
    """The brokers of the tests, and the network between clients and brokers."""

    place: Place
    cluster: Cluster
    ca: Authority

    def admin(self) -> Admin:
        """Return an admin client for the brokers.

        It must be used inside the network namespace of the brokers.
        """
        return Admin(self.cluster.bootstrap)

    def produce(self, *values: bytes) -> None:
        """Append records to every busy partition."""
        with self.place.far.inside(), self.admin() as admin:
            for partition, leader in admin.leaders(TOPIC).items():
                if partition in BUSY:
                    broker = self.cluster.broker(leader)
                    with closing(Producer(broker.host, broker.port)) as producer:
                        producer.produce(TOPIC, partition, list(values))

    def ends(self) -> dict[tuple[str, int], int]:
        with self.place.far.inside(), self.admin() as admin:
            return {(TOPIC, partition): end for partition, end in admin.offsets(TOPIC).items()}

    def move_leader(self, partition: int, node_id: int) -> None:
        with self.place.far.inside(), self.admin() as admin:
            admin.move_leader(TOPIC, partition, node_id)


def host_of(node_id: int, family: str) -> str:
    return HOSTS[family].format(10 + node_id)


def address_of(node_id: int, family: str = "IPv4", port: int = PORT) -> str:
    host = host_of(node_id, family)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_from_afar(broker: Broker, keystore: str) -> dict[str, object]:
    """Return settings for a broker with several listeners, each with its own address.

    The listener on loopback is for brokers and tests.
    """
    told = {
        "PLAINTEXT": broker.address,
        "V4": address_of(broker.node_id),
        "V6": address_of(broker.node_id, "IPv6"),
        "SSL": address_of(broker.node_id, port=TLS_PORT),
    }
    bound = told | {"CONTROLLER": f"{broker.host}:{broker.controller_port}"}
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in bound.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in told.items()),
        PROTOCOL_MAP: ",".join(f"{name}:{'SSL' if name == 'SSL' else 'PLAINTEXT'}" for name in bound),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
    }


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    folder = tmp_path_factory.mktemp("certificates")
    ca = Authority(folder)
    pair = ca.sign("kafka", *(host_of(node, "IPv4") for node in NODES))
    keystore = folder / "broker.pem"
    keystore.write_text(pair.private + pair.chain)
    cluster = Cluster(nodes=len(NODES))
    for broker in cluster.brokers:
        broker.configure(reached_from_afar(broker, str(keystore)))
    with ExitStack() as stack:
        near, there = stack.enter_context(Namespace()), stack.enter_context(Namespace())
        veth(near, there, "wire", [("10.79.0.1/24", "10.79.0.2/24"), ("fd79::1/64", "fd79::2/64")])
        for node in NODES:
            there.run("ip", "address", "add", f"{host_of(node, 'IPv4')}/24", "dev", "wire")
            there.run("ip", "address", "add", f"{host_of(node, 'IPv6')}/64", "dev", "wire", "nodad")
        with there.inside():
            stack.enter_context(cluster)
            with Admin(cluster.bootstrap) as admin:
                replicas = {number: turned(number) for number in range(PARTITIONS)}
                admin.create_topic(TOPIC, assignment=replicas)
        found = Far(Place.joined(near, there), cluster, ca)
        found.produce(*(b"%d" % number for number in range(RECORDS)))
        yield found


def turned(by: int) -> list[int]:
    """The ids of all three brokers. `by` selects the first one, which is the leader."""
    at = by % len(NODES)
    return [*NODES[at:], *NODES[:at]]


@pytest.fixture(scope="module")
def java_program() -> Program:
    return java()


def told(place: Namespace, node_id: int, family: str) -> ClusterState:
    """Return the cluster's metadata as one broker returns it to a client.

    Args:
        place: the namespace of the client.
        node_id: the id of the broker.
        family: the IP version of the connection.
    """
    with place.inside(), RawConnection(host_of(node_id, family), PORT) as connection:
        connection.versions()
        return request_metadata(connection, TOPIC)


def brokers_of(sidecar: Sidecar) -> dict[str, dict[str, Any]]:
    return {broker["address"]: broker for broker in sidecar.state()["brokers"]}


def in_session(sidecar: Sidecar, family: str = "IPv4") -> bool:
    """Return whether the gateway has a session with every broker, and fetches of each were answered."""
    known = brokers_of(sidecar)
    return known.keys() == {address_of(node, family) for node in NODES} and all(
        broker["sessions"] and broker["fetches"] >= FETCHES for broker in known.values()
    )


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_every_broker_of_a_cluster_is_reached_through_the_gateway(far: Far, mode: str, family: str) -> None:
    place = far.place
    with place.plain_tcp():
        for round_ in place.rounds():
            with place.sidecar(mode) as sidecar, place.rules(mode):
                with place.consumer(address_of(1, family)) as through:
                    until(lambda: in_session(sidecar, family), "not every broker has a session")
                    far.produce(b"later")
                    through.wait_ends(far.ends())
                    through.stop()
                quiet(sidecar)
                round_.crossed = payloads(place.wire.read())
                round_.counted = broker = counted(sidecar, "broker")
                round_.last = ONE_ANSWER * sidecar.state()["connections_accepted"]
                assert sum(broker) < 0.5 * sum(counted(sidecar, "client"))
                assert sidecar.state()["state"] == "ready", sidecar.state()["reasons"]
    with place.consumer(address_of(1, family)) as direct:
        direct.wait_records(len(through.of("record")))
        direct.stop()
    assert_same_records(direct, through)
    assert through.errors() == direct.errors() == []


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_clients_are_told_the_brokers_own_addresses(far: Far, mode: str, family: str) -> None:
    own = {node: (host_of(node, family), PORT) for node in NODES}
    with far.place.sidecar(mode) as sidecar, far.place.rules(mode):
        for node in NODES:
            through = told(far.place.near, node, family)
            direct = told(far.place.far, node, family)
            assert through.brokers == direct.brokers == own
            assert through.topics == direct.topics
        assert brokers_of(sidecar).keys() == {address_of(node, family) for node in NODES}


@pytest.mark.parametrize("family", HOSTS)
@pytest.mark.parametrize("mode", MODES)
def test_the_java_client_passes_with_sessions_of_its_own(
    far: Far, java_program: Program, mode: str, family: str
) -> None:
    place, address, expected = far.place, address_of(1, family), sum(far.ends().values())
    with place.sidecar(mode) as sidecar, place.rules(mode):
        with (
            place.consumer(address, java_program) as through,
            place.consumer(address, java_program, at=place.far) as direct,
        ):
            through.wait_records(expected)
            until(
                lambda: fetches_of(sidecar, "java").client["incremental"] > FETCHES, "no fetches in sessions"
            )
            assert_sessions(java_program.sessions, fetches_of(sidecar, "java"))
            direct.wait_records(expected)
            for run in (through, direct):
                run.stop()
        quiet(sidecar)
        assert brokers_of(sidecar).keys() == {address_of(node, family) for node in NODES}
        assert counted(sidecar, "client") == counted(sidecar, "broker")
    assert_same_records(direct, through)
    assert len(through.of("record")) == expected
    assert through.errors() == direct.errors() == []


@pytest.mark.parametrize("mode", MODES)
def test_kafka_inside_tls_passes_and_is_counted(far: Far, mode: str) -> None:
    expected = sum(far.ends().values())
    with far.place.sidecar(mode) as sidecar, far.place.rules(mode):
        through = read_in_tls(far, expected)
        quiet(sidecar)
        state = sidecar.state()
        assert sum(state["totals"]["client"]["fetches"].values()) == 0
        assert state["totals"]["passthrough"] == {"TLS": state["connections_accepted"]}
        assert brokers_of(sidecar).keys() == {address_of(node, port=TLS_PORT) for node in NODES}
        assert counted(sidecar, "client") == counted(sidecar, "broker")
    assert through == read_in_tls(far, expected)


def read_in_tls(far: Far, count: int) -> dict[tuple[int, int], bytes]:
    """Return records by partition and offset.

    librdkafka reads them with its own TLS connection to the broker.
    """
    settings: dict[str, Any] = {
        "bootstrap.servers": address_of(1, port=TLS_PORT),
        "security.protocol": "SSL",
        "ssl.ca.location": str(far.ca.file),
        "group.id": "unused",
        "enable.auto.commit": False,
    }
    seen: dict[tuple[int, int], bytes] = {}
    with far.place.near.inside():  # and so the threads that it starts
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])

        def come() -> bool:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                assert (partition, offset) not in seen
                seen[partition, offset] = message.value() or b""
            return len(seen) == count

        until(come, "records are missing")
        consumer.close()
    return seen


@pytest.mark.parametrize("mode", ["redirect", pytest.param("tproxy", marks=pytest.mark.soak)])
def test_clients_come_back_to_a_broker_that_restarts(far: Far, mode: str) -> None:
    place, gone = far.place, far.cluster.broker(2)
    with place.sidecar(mode) as sidecar, place.rules(mode):
        with place.consumer(address_of(1), CONFLUENT) as through:
            until(lambda: in_session(sidecar), "not every broker has a session")
            with place.far.inside():
                gone.stop()
            until(lambda: not brokers_of(sidecar)[address_of(2)]["sessions"], "its session stays")
            far.produce(b"while it is away")
            through.wait_ends(far.ends())
            with place.far.inside():
                gone.start()
            before = brokers_of(sidecar)[address_of(2)]["fetches"]
            for partition in BUSY:
                if turned(partition)[0] == gone.node_id:
                    far.move_leader(partition, gone.node_id)
            far.produce(b"when it is back")
            through.wait_ends(far.ends())
            until(lambda: in_session(sidecar), "no session with the one that is back")
            assert brokers_of(sidecar)[address_of(2)]["fetches"] > before
            until(lambda: sidecar.state()["state"] == "ready", "the gateway does not recover")
            through.stop()
        assert sidecar.metric("fetchgate_fetch_session_errors_total", code="71") == 0
    with place.consumer(address_of(1)) as direct:
        direct.wait_ends(far.ends())
        direct.stop()
    assert_same_records(direct, through)
