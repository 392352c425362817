"""Tests with a real broker: an idle lane causes no error, and a static member that returns has its lane."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from proxy.features.cooperative.key_hash import murmur2
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

DOUBLINGS: Final = 10
"""How often librdkafka doubles its fetch limit, beginning with the default, before it gives up."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(properties={"group.min.session.timeout.ms": 500}) as broker:
        yield broker


def test_an_idle_lane_is_no_error(broker: Broker) -> None:
    """A librdkafka consumer whose lane has no record reaches the end of the partition without an error.

    librdkafka treats a response without a record as incomplete, and requests more. After `DOUBLINGS` such
    responses it would report an error.
    """
    with Admin(broker.address) as admin:
        admin.create_topic("idle", partitions=1)
    low = murmur2(b"busy")
    lane = f"billing.kr-{low + 1:08x}-{low + 1:08x}"
    with GatewayProcess(broker.address, "--cooperative", "billing") as gateway:
        consumer = Consumer(
            {
                "bootstrap.servers": gateway.address,
                "group.id": "unused",
                "client.id": lane,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([TopicPartition("idle", 0, 0)])
        producer = Producer({"bootstrap.servers": broker.address})
        number = 2 * DOUBLINGS
        for at in range(number):
            producer.produce("idle", key=b"busy", value=b"%d" % at)
            assert producer.flush(30) == 0
            ended = False
            deadline = time.monotonic() + 60
            while not ended and time.monotonic() < deadline:
                message = consumer.poll(0.5)
                error = message and message.error()
                assert message is None or (error and error.code() == KafkaError._PARTITION_EOF), error
                ended = message is not None and message.offset() == at + 1
            assert ended
        consumer.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("gateways", [1, 2], ids=["one-gateway", "a-gateway-each"])
def test_a_static_member_that_comes_back_has_its_lane(broker: Broker, gateways: int, strategy: str) -> None:
    """If a static member returns, the other member keeps its lane without a rebalance (case C40, KIP-345)."""
    topic = group = f"static-{gateways}-{strategy}"
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.address})
    rebalances: list[str] = []

    def member(name: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": addresses[name],
                "group.id": group,
                "client.id": f"{group}.{name}",
                "group.instance.id": name,
                "partition.assignment.strategy": strategy,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 20_000,
                "heartbeat.interval.ms": 500,
            }
        )
        consumer.subscribe([topic], on_assign=lambda *_: rebalances.append(name))
        return consumer

    def read(members: list[Consumer], end: int) -> list[set[bytes]]:
        """Read all expected records up to an offset. Return the keys of each member."""
        keys: list[set[bytes]] = [set() for _ in members]
        got = 0
        deadline = time.monotonic() + 120
        while got < end and time.monotonic() < deadline:
            for each, of_member in zip(members, keys, strict=True):
                for message in each.consume(200, 0.1):
                    assert message.error() is None
                    of_member.add(message.key() or b"")
                    got += 1
        assert got == end
        return keys

    def produce() -> None:
        for at in range(400):
            producer.produce(topic, key=b"key-%d" % (at % 50), value=b"")
        assert producer.flush(30) == 0

    with ExitStack() as stack:
        started = [
            stack.enter_context(GatewayProcess(broker.address, "--cooperative", group))
            for _ in range(gateways)
        ]
        addresses = {"one": started[0].address, "two": started[-1].address}
        one, two = member("one"), member("two")
        settled = 0.0
        while not (settled and time.monotonic() > settled + 4):
            for each in (one, two):
                each.poll(0.2)
            both = bool(one.assignment()) and bool(two.assignment())
            settled = (settled or time.monotonic()) if both else 0.0
        produce()
        before = read([one, two], 400)
        assert before[0].isdisjoint(before[1])
        assert all(before)
        one.close()  # a static member does not leave
        rebalances.clear()
        one = member("one")
        produce()
        assert read([one, two], 400) == before
        assert rebalances == ["one"]
        for each in (one, two):
            each.close()
