"""The audit of ``--rack`` with three brokers in three racks: nftables counts the same bytes for each broker.

Client and gateway are in one network namespace, the brokers in another. The counters are between these two,
and know nothing of the gateway.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Final

import pytest
from confluent_kafka import Producer as Confluent

from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Run
from tests.integration.namespaces import LACKING, LISTEN_PORT, PORT, Place, quiet
from tests.integration.producing import Producer
from tests.integration.sidecar import Sidecar
from tools.kafka import Broker, Cluster
from tools.kafka.admin import Admin
from tools.kafka.metadata import request_metadata
from tools.kafka.raw import RawConnection
from tools.kafka.settings import PROTOCOL_MAP
from tools.netns import Namespace, veth
from tools.netns.counters import Counters

pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

RACKS: Final = {1: "R1", 2: "R2", 3: "R3"}
OWN: Final = "R2"
TOPIC: Final = "zones"
PARTITIONS: Final = 6
RECORDS: Final = 200
VALUE: Final = b"v" * 500
PROGRAMS: Final = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
SLACK: Final = 0.001
"""The share by which the figures may differ: what a broker sends to a client that has just left."""
ROUNDS: Final = 5
"""How many rounds are tried until one has no retransmission and no question of the gateway's own."""
Bytes = dict[tuple[str, str], int]


def host_of(node_id: int) -> str:
    return f"10.79.0.{10 + node_id}"


@dataclass(frozen=True, slots=True)
class Zoned:
    """Three brokers in three racks, and a counter for each of them."""

    place: Place
    cluster: Cluster
    wires: Mapping[int, Counters]

    @contextmanager
    def gateway(self, mode: str, *options: str) -> Iterator[tuple[Sidecar, str]]:
        """Run a gateway. Yield it with the bootstrap address for clients."""
        direct, listen = f"{host_of(1)}:{PORT}", f"127.0.0.1:{LISTEN_PORT}"
        if mode == "explicit":
            with Sidecar(self.place.near, "--bootstrap", direct, "--listen", listen, *options) as sidecar:
                yield sidecar, listen
        else:
            with self.place.sidecar(mode, *options) as sidecar, self.place.rules(mode):
                yield sidecar, direct

    def ends(self) -> dict[tuple[str, int], int]:
        with self.place.far.inside(), Admin(self.cluster.bootstrap) as admin:
            return {(TOPIC, partition): end for partition, end in admin.offsets(TOPIC).items()}

    def crossed(self) -> dict[int, int]:
        """Return the payload with each broker, in both directions."""
        return {node: sum(each.payload for each in wire.read()) for node, wire in self.wires.items()}


def reached_from_afar(broker: Broker) -> dict[str, object]:
    """Return settings for a broker with a rack and two listeners. The one on loopback is for tests."""
    told = {"PLAINTEXT": broker.address, "FAR": f"{host_of(broker.node_id)}:{PORT}"}
    bound = told | {"CONTROLLER": f"{broker.host}:{broker.controller_port}"}
    return {
        "broker.rack": RACKS[broker.node_id],
        "listeners": ",".join(f"{name}://{address}" for name, address in bound.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in told.items()),
        PROTOCOL_MAP: ",".join(f"{name}:PLAINTEXT" for name in bound),
    }


@pytest.fixture(scope="module")
def zoned() -> Iterator[Zoned]:
    cluster = Cluster(nodes=len(RACKS))
    for broker in cluster.brokers:
        broker.configure(reached_from_afar(broker))
    with ExitStack() as stack:
        near, far = stack.enter_context(Namespace()), stack.enter_context(Namespace())
        veth(near, far, "wire", [("10.79.0.1/24", "10.79.0.2/24")])
        for node in RACKS:
            far.run("ip", "address", "add", f"{host_of(node)}/24", "dev", "wire")
        with far.inside():
            stack.enter_context(cluster)
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic(TOPIC, assignment={each: [1 + each % 3] for each in range(PARTITIONS)})
            for partition in range(PARTITIONS):
                broker = cluster.broker(1 + partition % 3)
                with closing(Producer(broker.host, broker.port)) as producer:
                    producer.produce(TOPIC, partition, [VALUE] * RECORDS)
        wires = {node: Counters(near, "wire", [PORT], host=host_of(node)) for node in RACKS}
        yield Zoned(Place.joined(near, far), cluster, wires)


def zones_of(sidecar: Sidecar) -> Bytes:
    return {
        (zone, what): int(sidecar.metric("fetchgate_zone_bytes_total", zone=zone, what=what))
        for zone in ("same", "other", "unknown")
        for what in ("records", "listing", "produce", "other")
    }


def asks_metadata(zoned: Zoned, address: str) -> None:
    """Let a Metadata response pass in the gateway, so that it knows the racks."""
    host, _, port = address.rpartition(":")
    with zoned.place.near.inside(), RawConnection(host, int(port)) as connection:
        connection.versions()
        request_metadata(connection, TOPIC)


def produces(zoned: Zoned, address: str) -> None:
    with zoned.place.near.inside():  # and so the threads that it starts
        producer = Confluent({"bootstrap.servers": address, "linger.ms": 5})
        for number in range(RECORDS):
            producer.produce(TOPIC, VALUE, partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        del producer


def reads(zoned: Zoned, address: str) -> None:
    """Let a client of each kind read all records."""
    ends = zoned.ends()
    for program in PROGRAMS:
        with zoned.place.near.inside(), Run(program, address, assign={TOPIC: PARTITIONS}) as through:
            through.wait_ends(ends)
            through.stop()
        assert through.errors() == []


@pytest.mark.parametrize("mode", ["explicit", "redirect"])
def test_the_bytes_of_each_zone_are_those_that_cross(zoned: Zoned, mode: str) -> None:
    with zoned.place.plain_tcp(), zoned.gateway(mode, "--rack", OWN) as (sidecar, address):
        asks_metadata(zoned, address)
        quiet(sidecar)
        for _ in range(ROUNDS):
            again, accepted = zoned.place.retransmitted(), sidecar.state()["connections_accepted"]
            before, record_bytes = zones_of(sidecar), _records(sidecar)
            for wire in zoned.wires.values():
                wire.reset()
            produces(zoned, address)
            reads(zoned, address)
            quiet(sidecar)
            crossed, opened = zoned.crossed(), sum(wire.opened() for wire in zoned.wires.values())
            after, state = zones_of(sidecar), sidecar.state()
            found = {key: after[key] - before[key] for key in after}
            asked = opened - (state["connections_accepted"] - accepted)
            if zoned.place.retransmitted() == again and not asked:
                break
        else:
            pytest.fail(f"in none of {ROUNDS} rounds the counters had only what clients caused")
        by_zone = {zone: sum(n for (of, _), n in found.items() if of == zone) for zone, _ in found}
        expected = {"same": crossed[2], "other": crossed[1] + crossed[3], "unknown": 0}
        for zone, size in expected.items():
            assert 0 <= size - by_zone[zone] <= SLACK * size, (by_zone, expected)
        total = PARTITIONS // 3 * RECORDS * len(VALUE) * len(PROGRAMS)
        assert found["same", "records"] >= total
        assert found["other", "records"] >= 2 * total
        records = sum(n for (_, what), n in found.items() if what == "records")
        assert records == _records(sidecar) - record_bytes
        assert found["same", "produce"] + found["other", "produce"] >= RECORDS * len(VALUE)
        assert sidecar.state()["state"] == "ready", sidecar.state()["reasons"]
        assert _racks(state, mode) == {f"{host_of(node)}:{PORT}": rack for node, rack in RACKS.items()}


def _records(sidecar: Sidecar) -> int:
    return int(sidecar.metric("fetchgate_fetch_record_bytes_total", side="broker"))


def _racks(state: Mapping[str, object], mode: str) -> dict[str, str]:
    brokers = state["brokers"]
    assert isinstance(brokers, list)
    assert mode != "explicit" or [broker["id"] for broker in brokers] == list(RACKS)
    return {broker["address"]: broker["rack"] for broker in brokers}


def test_a_rack_that_no_broker_has_is_told_once_and_the_gateway_is_ready(zoned: Zoned) -> None:
    with zoned.gateway("explicit", "--rack", "R9") as (sidecar, address):
        for _ in range(3):
            asks_metadata(zoned, address)
        quiet(sidecar)
        assert sidecar.metric("fetchgate_zone_brokers", zone="other") == len(RACKS)
        assert sidecar.state()["state"] == "ready"
        said = [line for line in sidecar.log().splitlines() if "no broker is in the gateway's rack" in line]
        assert len(said) == 1, sidecar.log()
        assert "R1, R2, R3" in said[0]
