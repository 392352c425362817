"""`--rack-clients` with two gateways at one port: what one of them has found, the other one comes to know."""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.runner import AIOKAFKA, CONFLUENT, Program
from tests.integration.bystander import until
from tests.integration.three_racks import (
    HERE,
    PARTITIONS,
    TOPIC,
    Brokers,
    consumer,
    make_brokers,
    once_and_in_order,
    reads_while_stopped,
)
from tools.gateway import GatewayProcess
from tools.kafka.metadata import request_metadata
from tools.kafka.raw import FETCH, BodyReader, RawConnection, array, string

CLIENT: Final = "spec"
DELETE_RECORDS: Final = 21
BEYOND: Final = 10_000
"""An offset that no partition has."""
CONSUMERS: Final = 6


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with make_brokers({}) as made:
        yield made


@pytest.fixture
def two(brokers: Brokers) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    options = ("--rack", f"R{HERE}", "--rack-clients", f"{CLIENT},aiokafka,librdkafka", "--reuse-port", "on")
    with GatewayProcess(brokers.cluster.bootstrap, *options) as one, one.successor() as other:
        yield one, other


def connected(to: GatewayProcess, port: int) -> RawConnection:
    """Return a connection that has come to one of the gateways at the port."""
    while True:
        made = RawConnection(to.host, port)
        made.versions()
        host, number = made.socket.getsockname()
        if f"{host}:{number}" in {each["client_address"] for each in to.state()["connections"]}:
            return made
        made.close()


def delete(replica: RawConnection, partition: int) -> int:
    """Delete no record. Return the error code."""
    topic = string(TOPIC) + array([struct.pack(">iq", partition, 0)])
    reader = BodyReader(replica.call(DELETE_RECORDS, 0, array([topic]) + struct.pack(">i", 9_000)))
    reader.read(4 + 4)  # throttle, one topic
    reader.string()
    reader.read(4 + 4 + 8)  # one partition, its number, its low watermark
    return reader.int16()


def fetch_beyond(replica: RawConnection, partition: int) -> int:
    """Fetch with an offset that the partition does not have. Return the error code."""
    topic = string(TOPIC) + array([struct.pack(">iiqqi", partition, -1, BEYOND, -1, 1_000)])
    head = struct.pack(">iiiibii", -1, 100, 1, 1_000, 0, 0, -1)
    reader = BodyReader(replica.call(FETCH, 11, head + array([topic]) + array([]) + string("")))
    reader.read(4 + 2 + 4 + 4)  # throttle, error, session, one topic
    reader.string()
    reader.read(4 + 4)  # one partition, its number
    return reader.int16()


@pytest.mark.parametrize("ask", [delete, fetch_beyond])
def test_a_client_whose_metadata_come_from_the_other_gateway_is_sent_to_the_leader(
    two: tuple[GatewayProcess, GatewayProcess], ask: Callable[[RawConnection, int], int]
) -> None:
    """The gateway of the first connection to the replica sees the error, the other one answers Metadata."""
    one, other = two
    port = one.ports[1 + HERE]
    with closing(connected(other, other.port)) as asking:
        replica = connected(one, port)

        def leaders() -> dict[int, int]:
            return request_metadata(asking, TOPIC).topics[TOPIC].leaders

        partition = next(number for number in range(PARTITIONS) if ask(replica, number) == 6)
        assert leaders()[partition] == HERE

        def leaves() -> bool:
            nonlocal replica
            try:
                assert ask(replica, partition) == 6
            except ConnectionError:
                replica.close()
                replica = RawConnection(one.host, port)
            return leaders()[partition] != HERE

        until(leaves, "the other gateway still names the replica", patience=60)
        replica.close()


def test_clients_beyond_the_end_ask_the_leader_and_begin_again(
    brokers: Brokers, two: tuple[GatewayProcess, GatewayProcess]
) -> None:
    settings = {
        "bootstrap.servers": two[0].address,
        "client.id": "librdkafka",
        "group.id": "unused",
        "auto.offset.reset": "earliest",
    }
    consumers = [Consumer(settings) for _ in range(CONSUMERS)]
    received = [0] * CONSUMERS
    try:
        for each in consumers:
            each.assign([TopicPartition(TOPIC, number, BEYOND) for number in range(PARTITIONS)])

        def all_received() -> bool:
            for number, each in enumerate(consumers):
                messages = each.consume(1_000, 0.1)
                received[number] += sum(message.error() is None for message in messages)
            return received == [sum(brokers.ends().values())] * CONSUMERS

        until(all_received, f"{received} records", patience=60)
    finally:
        for each in consumers:
            each.close()


@pytest.mark.parametrize("program", [AIOKAFKA, CONFLUENT], ids=lambda program: program.name)
def test_a_client_comes_back_from_a_replica_that_is_stopped(
    brokers: Brokers, two: tuple[GatewayProcess, GatewayProcess], program: Program
) -> None:
    with consumer(program, two[0].address) as run:
        run.wait_ends(brokers.ends())
        reads_while_stopped(brokers, run, *two)
        run.stop()
    once_and_in_order(run)
