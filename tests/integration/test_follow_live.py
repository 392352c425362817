"""Leaders move among three brokers. With ``--follow-leader``, a client without KIP-951 continues."""

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Final

import pytest
from confluent_kafka import Producer

from proxy.core.events import NotFollowed
from proxy.protocol.api import ErrorCode
from tests.integration.bystander import until
from tests.integration.moving import TOPIC, Sent
from tests.integration.test_leaders_live import ASKS, PARTITIONS, VERSION, elect, epochs_of, reorder
from tools.gateway import GatewayProcess
from tools.kafka import Cluster
from tools.kafka.admin import Admin
from tools.kafka.raw import FETCH, METADATA, BodyReader, RawConnection, array, string

FETCH_VERSION: Final = 11
"""The last Fetch version that is not flexible. Sarama uses it, and also librdkafka before KIP-951."""
WAIT_MS: Final = 200
MOVES: Final = 4
EACH: Final = 20
"""The number of records that each partition gets before its leader moves again."""
CLIENT: Final = "old"
PATIENCE: Final = 60.0
MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""The errors after which the gateway follows a partition to its new leader."""
LAST_OFFSET_DELTA: Final = 23
"""The position of last_offset_delta in a batch, in bytes. It comes after offset, length, epoch, magic, CRC
and attributes."""


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> Iterator[dict[int, list[int]]]:
    """Create a topic whose partitions have replicas on two brokers. Yield the brokers of each partition."""
    nodes = [broker.node_id for broker in cluster.brokers]
    pairs = {at: [nodes[at % 3], nodes[(at + 1) % 3]] for at in range(PARTITIONS)}
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, assignment=pairs)
        yield pairs
        admin.delete_topic(TOPIC)


class OldConsumer:
    """An older consumer. It fetches from the leaders that it knows, and sends each leader's epoch.

    The responses do not name new leaders. The consumer requests Metadata only after an error.
    """

    def __init__(self, gateway: GatewayProcess, nodes: list[int]) -> None:
        self.offsets = [0] * PARTITIONS
        self.errors: list[int] = []
        self.at = {node: RawConnection(gateway.host, gateway.port + 1 + node) for node in nodes}
        self.refresh()

    def close(self) -> None:
        for connection in self.at.values():
            connection.close()

    def refresh(self) -> None:
        for connection in self.at.values():
            told = connection.call(METADATA, VERSION, ASKS, CLIENT)
        self.leaders = epochs_of(told)

    def poll(self) -> None:
        """Fetch once from each broker."""
        errors = len(self.errors)
        for node, connection in self.at.items():
            mine = [at for at, (_, leader) in self.leaders.items() if leader == node]
            if mine:
                self._fetch(connection, mine)
        if len(self.errors) > errors:
            self.refresh()

    def _fetch(self, connection: RawConnection, mine: list[int]) -> None:
        entries = [
            struct.pack(">iiqqi", at, self.leaders[at][0], self.offsets[at], -1, 1 << 20) for at in mine
        ]
        # replica, max_wait, min_bytes, max_bytes, isolation; session; topics, forgotten, rack
        head = struct.pack(">iiiibii", -1, WAIT_MS, 1, 1 << 24, 0, 0, -1)
        body = head + array([string(TOPIC) + array(entries)]) + array([]) + string("")
        reader = BodyReader(connection.call(FETCH, FETCH_VERSION, body, CLIENT))
        assert (reader.int32(), reader.int16()) == (0, 0)  # throttle, error
        reader.int32()  # session
        for _ in range(reader.int32()):
            reader.string()
            for _ in range(reader.int32()):
                at, error = reader.int32(), reader.int16()
                for _ in range(3):  # high watermark, last stable offset, log start offset
                    reader.int64()
                for _ in range(2 * max(reader.int32(), 0)):  # aborted transactions
                    reader.int64()
                reader.int32()  # preferred replica
                size = reader.int32()
                if error:
                    self.errors.append(error)
                self._take(at, reader.read(max(size, 0)))

    def _take(self, at: int, records: bytes) -> None:
        """Read batches, and advance the partition's offset after them.

        Of each batch, only the base offset and the offset delta of its last record are read.
        """
        while len(records) >= LAST_OFFSET_DELTA + 4:
            offset, length = struct.unpack_from(">qi", records)
            (last,) = struct.unpack_from(">i", records, LAST_OFFSET_DELTA)
            if offset + last >= self.offsets[at]:
                assert offset == self.offsets[at]
                self.offsets[at] += last + 1
            records = records[12 + length :]


def produce(bootstrap: str, ended: threading.Event) -> None:
    """Write records to each partition in turn, so that each partition has records of each leader epoch."""
    sent = Sent("first", PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    while not ended.is_set():
        for _ in range(PARTITIONS):
            partition, value = sent.next()
            producer.produce(TOPIC, value, partition=partition)
        producer.poll(0)
        time.sleep(0.02)
    producer.flush(PATIENCE)


def test_a_consumer_reads_on_while_leaders_move(
    cluster: Cluster, topic: dict[int, list[int]], start_gateway: Callable[..., GatewayProcess]
) -> None:
    """While leaders move, a consumer misses no record.

    Each error of the brokers is either hidden from the consumer, or counted in a metric.
    """
    gateway = start_gateway(cluster.bootstrap, "--follow-leader", "on")
    with closing(OldConsumer(gateway, [broker.node_id for broker in cluster.brokers])) as consumer:
        followed = partial(gateway.metric, "fetchgate_leaders_followed_total", request="fetch")
        follow_moves(cluster, topic, consumer, followed)
        not_followed = [
            gateway.metric("fetchgate_leaders_not_followed_total", reason=reason) for reason in NotFollowed
        ]
        assert followed() >= PARTITIONS
        moved = [error for error in consumer.errors if error in MOVED]
        assert sum(not_followed) == len(moved)
        # The new leader may learn of it last: it knows less than the client.
        assert set(consumer.errors) <= {*MOVED, ErrorCode.UNKNOWN_LEADER_EPOCH}


def follow_moves(
    cluster: Cluster, on: dict[int, list[int]], consumer: OldConsumer, followed: Callable[[], float]
) -> None:
    """Let a consumer read while records are written and leaders move.

    At first, the consumer reads while brokers learn of each move, and an election may fail. The last move is
    certain: each broker knows the new leaders before the consumer, which knows those before, reads on. It is
    repeated if brokers were too slow: the gateway holds a response for 100 ms.
    """
    ended = threading.Event()
    producer = threading.Thread(target=produce, args=(cluster.bootstrap, ended))
    producer.start()

    def advanced(before: list[int]) -> bool:
        consumer.poll()
        return all(now >= then + EACH for now, then in zip(consumer.offsets, before, strict=True))

    try:
        with RawConnection(cluster.brokers[0].host, cluster.brokers[0].port) as connection:
            for _ in range(MOVES - 1):
                until(partial(advanced, consumer.offsets.copy()), "records before the move")
                on = reverse(on)
                reorder(connection, on)
                elect(connection, list(on))
        until(partial(advanced, consumer.offsets.copy()), "records after the moves")
        deadline = time.monotonic() + PATIENCE
        while True:
            move(cluster, on)
            consumer.refresh()
            move(cluster, reverse(on))
            until(partial(advanced, consumer.offsets.copy()), "records after the last move")
            if followed() >= PARTITIONS or time.monotonic() > deadline:
                break
    finally:
        ended.set()
        producer.join()


def reverse(on: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Reverse the order of each partition's replicas."""
    return {at: replicas[::-1] for at, replicas in on.items()}


def move(cluster: Cluster, on: Mapping[int, list[int]]) -> None:
    """Make the first replica of each partition its leader. Wait until every broker knows it."""
    with Admin(cluster.bootstrap) as admin:
        admin.reorder_all(TOPIC, on)
        admin.elect(TOPIC, {at: replicas[0] for at, replicas in on.items()})
