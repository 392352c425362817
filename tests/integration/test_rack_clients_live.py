"""`--rack-clients` with three real brokers in three racks, and without a replica selector.

Metadata names the replica in the gateway's rack as leader, so that clients read there. They come back from a
replica that fails, and leave one that is not in sync.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Program
from tests.integration.bystander import until
from tests.integration.producing import Producer
from tests.integration.three_racks import (
    HERE,
    LED_ELSEWHERE,
    PARTITIONS,
    RECORDS,
    TOPIC,
    Brokers,
    consumer,
    gateways,
    make_brokers,
    once_and_in_order,
    read_both_ways,
    reads,
    reads_while_killed,
    reads_while_stopped,
)
from tools.gateway import GatewayProcess
from tools.kafka import LATEST
from tools.kafka.admin import Admin
from tools.zones.brokers import Brokers as LaggingBrokers
from tools.zones.readers import usual

PROGRAMS: Final = [AIOKAFKA, CONFLUENT, KAFKA_PYTHON]
CLIENT_IDS: Final = ("aiokafka", "librdkafka", "kafka-python-3", "kafka-python-2")
OPTIONS: Final = ("--rack", f"R{HERE}", "--rack-clients", ",".join(CLIENT_IDS))


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with make_brokers({"replica.lag.time.max.ms": 5000}) as found:
        yield found


@pytest.fixture
def gateway(brokers: Brokers) -> Iterator[GatewayProcess]:
    with GatewayProcess(brokers.cluster.bootstrap, *OPTIONS) as gateway:
        yield gateway


def from_the_zone(gateway: GatewayProcess) -> None:
    """Wait until a client reads from the replica what other brokers lead."""
    until(lambda: any(link.get("replica") for link in gateway.state()["connections"]), "nobody reads there")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_all_records_come_from_the_zone(brokers: Brokers, program: Program) -> None:
    """They are the same as those of a consumer beside it that reads from leaders."""
    for gateway in gateways(brokers, *OPTIONS):
        new = read_both_ways(brokers, gateway, program, from_the_zone)
        named, failures = reads(gateway)["leaders_named"], _failures(gateway)
        if not failures:
            break
    assert not failures
    assert new["same"] > 0
    assert new["unknown"] == new["other"] == 0
    assert named >= LED_ELSEWHERE


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_client_comes_back_from_a_replica_that_is_killed(
    brokers: Brokers, gateway: GatewayProcess, program: Program
) -> None:
    with consumer(program, gateway.address) as through:
        through.wait_ends(brokers.ends())
        from_the_zone(gateway)
        reads_while_killed(brokers, through)
        assert _failures(gateway)
        through.stop()
    once_and_in_order(through)


@pytest.mark.parametrize("program", [AIOKAFKA, CONFLUENT], ids=lambda program: program.name)
def test_a_client_comes_back_from_a_replica_that_is_stopped(
    brokers: Brokers, gateway: GatewayProcess, program: Program
) -> None:
    """Its connections stay open. The gateway closes them when a fetch is late."""
    with consumer(program, gateway.address) as through:
        through.wait_ends(brokers.ends())
        from_the_zone(gateway)
        reads_while_stopped(brokers, through, gateway)
        through.stop()
    once_and_in_order(through)


def test_a_client_leaves_a_replica_that_is_not_in_sync() -> None:
    """The replica lives, but copies nothing. It would serve old records without an error.

    The client asks for Metadata every five minutes, as is usual, so only the gateway can know.
    """
    with LaggingBrokers(LATEST) as brokers:
        brokers.create(TOPIC)
        brokers.settle(TOPIC)
        produce(brokers.bootstrap, b"first")
        with (
            GatewayProcess(brokers.bootstrap, *OPTIONS) as gateway,
            consumer(usual(AIOKAFKA), gateway.address) as through,
        ):
            through.wait_ends(ends(RECORDS))
            from_the_zone(gateway)
            with brokers.fault("lagging"):
                produce(brokers.bootstrap, b"while it lags")
                until(lambda: reads(gateway)["returns"]["isr"] > 0, "nobody leaves")
                through.wait_ends(ends(2 * RECORDS), seconds=90)
            through.stop()
    once_and_in_order(through)


def produce(bootstrap: str, value: bytes) -> None:
    """Append records to every partition. Brokers have the ids from 1 on, in the order of the addresses."""
    addresses = bootstrap.split(",")
    with Admin(addresses[0]) as admin:
        for partition, leader in admin.leaders(TOPIC).items():
            host, port = addresses[leader - 1].rsplit(":", 1)
            with closing(Producer(host, int(port))) as producer:
                producer.produce(TOPIC, partition, [value + b" %d" % number for number in range(RECORDS)])


def ends(offset: int) -> dict[tuple[str, int], int]:
    return {(TOPIC, partition): offset for partition in range(PARTITIONS)}


def _failures(gateway: GatewayProcess) -> dict[str, Any]:
    return {why: count for why, count in reads(gateway)["returns"].items() if count and why != "offsets"}
