"""Clients with sessions through a gateway, before brokers without and with sessions."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.features.client_sessions.cases import Case, every_case
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tests.integration.test_fetch_manager_live import Connections, live_script
from tests.tools.test_deploy import IN_A_ROW
from tools.gateway import GatewayProcess
from tools.kafka import LATEST, Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

PARTITIONS = 20
ROUNDS = 30


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker(properties=LIVE_PROPERTIES) as broker, Live(broker) as connected:
        yield connected


@pytest.fixture(scope="module")
def gateway(live: Live) -> Iterator[GatewayProcess]:
    # Below, the gateway may have a session of its own, whose order would decide who is served first where
    # there is not room for all (trap 25a).
    with GatewayProcess(live.broker.address, "--client-sessions", "on", "--keep-order", "on") as started:
        yield started


@every_case(7, 12, 16)
def test_a_gateways_sessions_are_as_the_brokers(
    live: Live, gateway: GatewayProcess, case: Case, version: int
) -> None:
    """Cases 14 to 27, 30 to 43, and 45 to 48: the gateway's session responses equal those of a broker."""
    with (
        closing(Connections(gateway.host, gateway.port)) as through,
        live_script(live, version, through.begin) as script,
    ):
        case(script)


KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, TopicPartition

bootstrap, topic, partitions, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
consumer = KafkaConsumer(
    bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50, metadata_max_age_ms=5000
)
consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
while count > 0:
    for records in consumer.poll(timeout_ms=1000).values():
        for record in records:
            print(record.partition, record.offset, record.value.decode(), flush=True)
            count -= 1
consumer.close()
"""
"""Reads this many records and ends. It runs in its own process, because its import warns of deprecated
functions."""


def consume(bootstrap: str, topic: str, producer: Producer) -> list[tuple[int, int, bytes]]:
    """Read with kafka-python, which has sessions. Each record is produced after the last one was read."""
    command = [sys.executable, "-c", KAFKA_PYTHON, bootstrap, topic, str(PARTITIONS), str(ROUNDS)]
    seen = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number in range(ROUNDS):
            producer.produce(topic, f"{number}".encode(), partition=number % 3)
            producer.flush()
            partition, offset, value = process.stdout.readline().split()
            seen.append((int(partition), int(offset), value.encode()))
        assert process.wait(60) == 0
    return sorted(seen)


def consume_plain(bootstrap: str, topic: str, producer: Producer) -> list[tuple[int, int, bytes]]:
    """Read with librdkafka, which has no sessions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "plain", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen: list[tuple[int, int, bytes]] = []
    for number in range(ROUNDS):
        producer.produce(topic, f"{number}".encode(), partition=number % 3)
        producer.flush()
        while len(seen) <= number:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            seen.append((message.partition() or 0, message.offset() or 0, message.value() or b""))
    consumer.close()
    return sorted(seen)


@pytest.mark.parametrize("version", [LATEST, "1.0.2"])
def test_kafka_python_has_a_session_where_the_broker_gives_none(
    version: str, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """The gateway gives a session if the broker has no sessions or no free slot (trap 38)."""
    properties = {"max.incremental.fetch.session.cache.slots": 0} if version == LATEST else {}
    with Broker(version, properties=properties) as broker, Admin(broker.address) as admin:
        admin.create_topic("events", partitions=PARTITIONS)
        gateway = start_gateway(broker.address)
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})

        seen = consume(gateway.address, "events", producer)

        assert seen == sorted((n % 3, n // 3, f"{n}".encode()) for n in range(ROUNDS))
        state = gateway.state()
        client, toward = (state["totals"][side]["fetches"] for side in ("client", "broker"))
        assert client["incremental"] >= ROUNDS - 1  # one is full, and makes the session
        # With 0 slots the gateway itself asks for one each time, as Java does.
        assert (toward["incremental"], toward["full"] + toward["sessionless"] >= ROUNDS) == (0, True)
        assert state["client_sessions"]["max"] == 1000
        assert state["client_sessions"]["evictions"] == 0


def test_two_gateways_in_a_row_have_sessions_between_them(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    """Two gateways use a session between them. The client and Kafka 1.0 use none."""
    options = [[word for word in line.split() if word.startswith("--")] for line in IN_A_ROW]
    assert options == [["--bootstrap", "--listen"], ["--bootstrap"]], (
        "as docs/users/two-gateways.md says, and as here"
    )
    with Broker("1.0.2") as broker, Admin(broker.address) as admin:
        admin.create_topic("events", partitions=PARTITIONS)
        far = start_gateway(broker.address)
        near = start_gateway(far.address)
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})

        seen = consume_plain(near.address, "events", producer)

        assert seen == sorted((n % 3, n // 3, f"{n}".encode()) for n in range(ROUNDS))
        link = near.state()["totals"]["broker"]
        assert link["fetches"]["incremental"] >= ROUNDS // 2
        assert far.state()["totals"]["client"]["fetches"]["incremental"] == link["fetches"]["incremental"]
        assert far.state()["totals"]["broker"]["fetches"]["incremental"] == 0
