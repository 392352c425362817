"""Groups of the newer protocols through the gateway: KIP-848, and share groups (KIP-932)."""

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer

from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

PARTITIONS = 20
RECORDS = 400
TOPIC = "events"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with Admin(started.address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        yield started


def test_members_of_a_group_of_kip_848_share_its_partitions_and_have_sessions(broker: Broker) -> None:
    with GatewayProcess(broker.address) as gateway:
        producer = Producer({"bootstrap.servers": gateway.address, "linger.ms": 0})
        first, second = (_member(gateway) for _ in range(2))
        seen: list[bytes] = []
        for number in count():
            if number < RECORDS:
                _produce(producer, number)
            for consumer in (first, second):
                message = consumer.poll(0.05)
                if message is not None:
                    assert message.error() is None
                    seen.append(message.value() or b"")
            if len(set(seen)) == RECORDS and number >= RECORDS:
                break

        assigned = [len(consumer.assignment()) for consumer in (first, second)]
        assert assigned == [PARTITIONS // 2, PARTITIONS // 2]
        assert sorted(seen) == sorted(f"{number}".encode() for number in range(RECORDS))
        totals = gateway.state()["totals"]
        first.close()
        second.close()
        assert totals["broker"]["fetches"]["incremental"] > 0
        assert totals["saved_bytes"] > 0


def test_a_share_group_gets_its_records_through_the_gateway_and_no_session_of_it(broker: Broker) -> None:
    with GatewayProcess(broker.address) as gateway:
        producer = Producer({"bootstrap.servers": gateway.address, "linger.ms": 0})
        consumer = ShareConsumer({"bootstrap.servers": gateway.address, "group.id": "shares"})
        consumer.subscribe([TOPIC])
        number = RECORDS
        while not (seen := _poll(consumer)):  # a share group begins at the end of a partition
            _produce(producer, number)
            number += 1
        begun = number
        for number in range(begun, begun + RECORDS):
            _produce(producer, number)
        wanted = {f"{number}".encode() for number in range(begun, begun + RECORDS)}
        while not wanted.issubset(seen):
            seen += _poll(consumer)

        totals = gateway.state()["totals"]
        consumer.close()
        assert len(seen) == len(set(seen))
        assert totals["saved_bytes"] == 0
        assert totals["client"]["bytes_out"] == totals["broker"]["bytes_in"]
        assert totals["refused"] == {}


def _poll(consumer: ShareConsumer) -> list[bytes]:
    messages = list(consumer.poll(0.5) or ())
    assert [message.error() for message in messages if message.error()] == []
    return [message.value() or b"" for message in messages]


def _produce(producer: Producer, number: int) -> None:
    producer.produce(TOPIC, f"{number}".encode(), partition=number % PARTITIONS)
    producer.flush()


def _member(gateway: GatewayProcess) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.address,
            "group.id": "kip-848",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    return consumer
