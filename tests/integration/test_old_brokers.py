"""An unmodified librdkafka consumer reads through the gateway, from brokers of all supported releases."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

PARTITIONS = 20
RECORDS = 150
PAUSE = 0.02
PATIENCE = 60.0

Seen = list[tuple[int, int, bytes | None, bytes | None, tuple[int, int]]]


@pytest.mark.parametrize(
    ("version", "sessions"),
    [
        ("4.4.0", True),
        ("3.9.1", True),
        ("2.8.2", True),
        # 2.1 to 2.4: a session forgets leader epochs (KAFKA-9338), and librdkafka sends them.
        ("2.4.1", False),
        ("1.1.1", True),
        ("1.0.2", False),
    ],
)
def test_records_are_the_same_direct_and_through(
    version: str,
    sessions: bool,
    broker_of: Callable[[str], Broker],
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    broker = broker_of(version)
    gateway = start_gateway(broker.address)
    with Admin(broker.address) as admin:
        admin.create_topic("events", partitions=PARTITIONS)

    with producing(broker.address):
        through = read(gateway.address)
    direct = read(broker.address)

    assert through == direct
    kinds = gateway.state()["totals"]["broker"]["fetches"]
    assert (kinds["incremental"] > 0) == sessions, kinds


@contextmanager
def producing(bootstrap: str) -> Iterator[None]:
    """While the `with` block runs, produce records to three partitions, slowly enough for many fetches."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def work() -> None:
        for number in range(RECORDS):
            producer.produce("events", b"x" * 200, str(number), partition=number % 3)
            producer.poll(PAUSE)
            time.sleep(PAUSE)
        producer.flush(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def read(bootstrap: str) -> Seen:
    """Read all partitions from the beginning, until every produced record is received."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "old", "auto.offset.reset": "earliest"})
    seen: Seen = []
    try:
        consumer.assign([TopicPartition("events", index, 0) for index in range(PARTITIONS)])
        deadline = time.monotonic() + PATIENCE
        while len(seen) < RECORDS:
            assert time.monotonic() < deadline, f"{len(seen)} of {RECORDS} records came"
            message = consumer.poll(0.5)
            if message is None:
                continue
            assert message.error() is None
            place = message.partition(), message.offset()
            assert place[0] is not None
            assert place[1] is not None
            seen.append((place[0], place[1], message.key(), message.value(), message.timestamp()))
    finally:
        consumer.close()
    return sorted(seen)
