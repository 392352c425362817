"""Leaders move all the time under produce and fetch, before three brokers: KIP-951 through the gateway.

`LEADERS_SECONDS` has them move for longer (`make soak`).
"""

import asyncio
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]  # no types
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from proxy.protocol.metadata import read_topics, topic_partitions
from tests.integration.bystander import until
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import ALTER_REASSIGNMENTS, ELECT_LEADERS, Admin
from tools.kafka.metadata import request_metadata
from tools.kafka.raw import METADATA, RawConnection, Reader, array, compact_array, compact_string, string

pytestmark = pytest.mark.timeout(300)
"""Three brokers start, and with LEADERS_SECONDS=120 two minutes of moves fit in."""

TOPIC: Final = "moving"
PARTITIONS: Final = 6
SECONDS: Final = float(os.environ.get("LEADERS_SECONDS", "0"))
ROTATIONS: Final = 12
"""At least."""
PATIENCE: Final = 60.0
VERSION: Final = 12
ASKS: Final = compact_array([bytes(16) + compact_string(TOPIC) + b"\0"]) + b"\0\0\0"
"""Metadata v12 of the topic by its name; no topic is made."""
HEADER: Final = 5
"""Bytes of a response's header v1 without tags."""
DESCRIBE_QUORUM: Final = 55
ROUNDS: Final = 10

Epochs = dict[int, tuple[int, int]]
"""By partition: leader epoch and leader."""


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> Iterator[None]:
    """Each partition is on two brokers."""
    nodes = [broker.node_id for broker in cluster.brokers]
    with Admin(cluster.bootstrap) as admin:
        pairs = {at: [nodes[at % 3], nodes[(at + 1) % 3]] for at in range(PARTITIONS)}
        admin.create_topic(TOPIC, assignment=pairs)
        yield
        admin.delete_topic(TOPIC)


def epochs_of(body: bytes) -> Epochs:
    """Read the body of a Metadata v12 response about the topic."""
    _, topics = read_topics(body, VERSION, {})
    start, end = topics[0].span
    told = topic_partitions(body[start:end])
    return {at: (each.leader_epoch, each.leader_id) for at, each in told.items()}


class Watch:
    """Asks for Metadata at each listener of the gateway, and notes what is older than seen before."""

    def __init__(self, gateway: GatewayProcess, nodes: list[int]) -> None:
        self._lock = threading.Lock()
        self.newest: Epochs = {}
        self.asked = 0
        self.older: list[str] = []
        self.ended = threading.Event()
        ports = [gateway.port, *(gateway.port + 1 + node for node in nodes)]
        self.threads = [threading.Thread(target=self._run, args=(gateway.host, port)) for port in ports]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _run(self, host: str, port: int) -> None:
        with RawConnection(host, port) as connection:
            while not self.ended.is_set():
                with self._lock:
                    before = dict(self.newest)
                told = epochs_of(connection.call(METADATA, VERSION, ASKS))
                with self._lock:
                    self.asked += 1
                    for at, (epoch, leader) in told.items():
                        if epoch < before.get(at, (-1, -1))[0]:
                            self.older.append(f"{at}: {leader} in {epoch} after {before[at]}")
                        if epoch > self.newest.get(at, (-1, -1))[0]:
                            self.newest[at] = epoch, leader
                time.sleep(0.01)


@dataclass(slots=True)
class Sent:
    """What one producer sent: numbers that go up in each partition, and which of them were acknowledged."""

    name: str
    count: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    failed: list[str] = field(default_factory=list)

    def next(self, partition: int) -> bytes:
        self.count[partition] += 1
        return json.dumps([self.name, self.count[partition]]).encode()


def produce_librdkafka(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def done(error: Any, _message: Message) -> None:
        if error is not None:
            sent.failed.append(str(error))

    while not ended.is_set():
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, sent.next(partition), b"key", partition=partition, on_delivery=done)
        producer.poll(0.02)
    assert producer.flush(PATIENCE) == 0


def produce_aiokafka(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        futures = []
        while not ended.is_set():
            for partition in range(PARTITIONS):
                value = sent.next(partition)
                futures.append(await producer.send(TOPIC, value, b"key", partition=partition))
            await asyncio.sleep(0.02)
        for result in await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), PATIENCE):
            if isinstance(result, BaseException):
                sent.failed.append(repr(result))
        await producer.stop()

    asyncio.run(run())


@dataclass(slots=True)
class Received:
    """What one consumer received: by partition, in its order."""

    records: list[list[tuple[int, str, int]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """Offset, producer, and its number."""

    def take(self, partition: int, offset: int, value: bytes) -> None:
        self.records[partition].append((offset, *json.loads(value)))


def consume_librdkafka(bootstrap: str, received: Received, ended: threading.Event) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "moving", "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(TOPIC, at, 0) for at in range(PARTITIONS)])
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            received.take(partition, offset, value)
    consumer.close()


def consume_aiokafka(bootstrap: str, received: Received, ended: threading.Event) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100)
        await consumer.start()
        consumer.assign([AiokafkaPartition(TOPIC, at) for at in range(PARTITIONS)])
        await consumer.seek_to_beginning()
        while not ended.is_set():
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                for message in messages:
                    received.take(message.partition, message.offset, message.value)
        await consumer.stop()

    asyncio.run(run())


def elect(connection: RawConnection, partitions: list[int]) -> None:
    """Have the first replica of each lead."""
    indexes = [struct.pack(">i", at) for at in partitions]
    connection.call(ELECT_LEADERS, 0, array([string(TOPIC) + array(indexes)]) + struct.pack(">i", 1000))


def reorder(connection: RawConnection, on: Mapping[int, list[int]]) -> None:
    """Give each partition's replicas an order."""
    places = [
        struct.pack(">i", at) + compact_array([struct.pack(">i", node) for node in replicas]) + b"\0"
        for at, replicas in on.items()
    ]
    topics = compact_array([compact_string(TOPIC) + compact_array(places) + b"\0"])
    reader = Reader(connection.call(ALTER_REASSIGNMENTS, 0, struct.pack(">i", 20_000) + topics + b"\0"))
    reader.int32()
    assert reader.int16() == 0


def rotate(connection: RawConnection, watch: Watch) -> None:
    """Move all leaders; each time all of the moves have been seen before the next ones."""
    end = time.monotonic() + SECONDS
    done = 0
    on = request_metadata(connection, TOPIC).topics[TOPIC].replicas
    while done < ROTATIONS or time.monotonic() < end:
        before = dict(watch.newest)
        # Kept here, for a broker that is asked may not know the last order yet.
        on = {at: replicas[::-1] for at, replicas in on.items()}
        reorder(connection, on)
        until(partial(_moved, connection, watch, before), f"newer leaders than {before}")
        done += 1


def _moved(connection: RawConnection, watch: Watch, before: Epochs) -> bool:
    """Elect, and say whether all have moved. If not, the controller does not know the new order yet."""
    elect(connection, list(before))
    return all(watch.newest[at] > before[at] for at in before)


def test_nothing_is_lost_doubled_or_out_of_order_while_leaders_move(
    cluster: Cluster, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """Case 66; and Metadata is never older than what was seen before."""
    gateway = start_gateway(cluster.bootstrap)
    nodes = [broker.node_id for broker in cluster.brokers]
    ending, over = threading.Event(), threading.Event()
    sent = [Sent("librdkafka"), Sent("aiokafka")]
    received = [Received(), Received()]
    producers = [
        threading.Thread(target=run, args=(gateway.address, each, ending))
        for run, each in zip((produce_librdkafka, produce_aiokafka), sent, strict=True)
    ]
    consumers = [
        threading.Thread(target=run, args=(gateway.address, each, over))
        for run, each in zip((consume_librdkafka, consume_aiokafka), received, strict=True)
    ]
    with ExitStack() as stack:
        stack.callback(over.set)
        stack.callback(ending.set)
        for thread in (*producers, *consumers):
            thread.start()
        with Watch(gateway, nodes) as watch:
            broker = cluster.brokers[0]
            until(lambda: len(watch.newest) == PARTITIONS, "Metadata")
            with RawConnection(broker.host, broker.port) as connection:
                rotate(connection, watch)
        ending.set()
        for thread in producers:
            thread.join(PATIENCE)
        wanted = sum(sum(each.count) for each in sent)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(sum(map(len, each.records)) < wanted for each in received):
            time.sleep(0.1)
        over.set()
        for thread in consumers:
            thread.join(PATIENCE)

    assert [each.failed for each in sent] == [[], []]
    for each in received:
        for partition, records in enumerate(each.records):
            assert [offset for offset, *_ in records] == list(range(len(records)))
            for producer in sent:
                numbers = [number for _, name, number in records if name == producer.name]
                assert numbers == list(range(1, producer.count[partition] + 1)), (partition, producer.name)
    assert watch.older == []


def active_controller(connection: RawConnection) -> int:
    """Return the node that leads the metadata quorum: it must not stand still."""
    partition = compact_array([struct.pack(">i", 0) + b"\0"])
    topic = compact_string("__cluster_metadata") + partition + b"\0"
    reader = Reader(connection.call(DESCRIBE_QUORUM, 0, compact_array([topic]) + b"\0"))
    assert reader.int16() == 0
    reader.uvarint(), reader.compact_string(), reader.uvarint()
    reader.int32(), reader.int16()  # partition, error
    return reader.int32()


def _newer(through: RawConnection, electing: RawConnection, before: Epochs, newest: Epochs) -> bool:
    """Elect, and say whether all have moved; the newest leaders are noted."""
    elect(electing, list(before))
    told = epochs_of(through.call(METADATA, VERSION, ASKS))
    newest.update((at, told[at]) for at in before)
    return all(newest[at] > before[at] for at in before)


def test_a_broker_that_has_missed_moves_leads_nobody_back(
    cluster: Cluster, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """A broker stands still while leaders move, with a request in its socket.

    When it goes on, it says what it knew before: nearly always, so this is tried until it has. Through the
    gateway nobody hears that.
    """
    gateway = start_gateway(cluster.bootstrap)
    with RawConnection(cluster.brokers[0].host, cluster.brokers[0].port) as connection:
        controller = active_controller(connection)
    one = cluster.broker(controller)
    slow = next(broker for broker in cluster.brokers if broker is not one)
    stale = False
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(cluster.bootstrap))
        ours = stack.enter_context(RawConnection(gateway.host, gateway.port + 1 + slow.node_id))
        other = stack.enter_context(RawConnection(gateway.host, gateway.port + 1 + one.node_id))
        direct = stack.enter_context(RawConnection(slow.host, slow.port))
        electing = stack.enter_context(RawConnection(one.host, one.port))
        on = admin.state(TOPIC).topics[TOPIC].replicas
        moving = [at for at, replicas in on.items() if slow.node_id not in replicas]
        for _ in range(ROUNDS):
            if stale:
                break
            state = admin.state(TOPIC).topics[TOPIC]
            for at in moving:
                admin.reorder(TOPIC, at, state.replicas[at][::-1])
            for connection in (ours, direct):
                connection.call(METADATA, VERSION, ASKS)
            told = epochs_of(other.call(METADATA, VERSION, ASKS))
            before, newest = {at: told[at] for at in moving}, Epochs()
            os.kill(slow.pid, signal.SIGSTOP)
            try:
                for connection in (ours, direct):
                    connection.send(METADATA, VERSION, ASKS)
                until(partial(_newer, other, electing, before, newest), f"newer leaders than {before}")
            finally:
                os.kill(slow.pid, signal.SIGCONT)
            through, directly = (epochs_of(each.receive()[HEADER:]) for each in (ours, direct))
            assert all(through[at] >= newest[at] for at in moving), (through, newest)
            stale = any(directly[at] < newest[at] for at in moving)
    assert stale
    assert gateway.metric("fetchgate_leaders_updated_total") >= 1
