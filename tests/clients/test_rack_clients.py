"""`--rack-clients` with real clients, and brokers in three racks without a replica selector.

Metadata calls broker 2 the leader of all partitions. What only leaders answer is asked of them: clients read
from their own zone from the start, and get the records of clients that read from the brokers directly.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.clients.programs import PROGRAMS
from tests.clients.runner import AIOKAFKA, Program, Run, assert_same_records
from tests.integration.three_racks import (
    HERE,
    PARTITIONS,
    TOPIC,
    Brokers,
    make_brokers,
    record_bytes,
)
from tools.gateway import GatewayProcess
from tools.kafka.admin import Admin

pytestmark = pytest.mark.clients

RECORDS: Final = 40
CLIENTS: Final = ("kafka-go", "franz-go", "kafkajs", "platformatic", "sarama", "java", "aiokafka")


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    """Three brokers in three racks. They have the topic for the offsets of groups: KafkaJS needs it."""
    with make_brokers({}) as found:
        with Admin(found.cluster.bootstrap) as admin:
            admin.await_coordinator("group")
        yield found


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Program:
    name: str = request.param
    return AIOKAFKA if name == AIOKAFKA.name else PROGRAMS[name]()


@pytest.fixture
def gateway(brokers: Brokers, client: Program) -> Iterator[GatewayProcess]:
    options = "--rack", f"R{HERE}", "--rack-clients", client.client_id
    with GatewayProcess(brokers.cluster.bootstrap, *options) as gateway:
        yield gateway


def test_a_client_reads_from_the_replica_in_the_rack_from_the_start(
    brokers: Brokers, gateway: GatewayProcess, client: Program
) -> None:
    """Also what is produced later. kafka-go has Fetch v10, which no follower answers."""
    parts = {TOPIC: PARTITIONS}
    with (
        Run(client, gateway.address, assign=parts) as through,
        Run(client, brokers.cluster.bootstrap, assign=parts) as direct,
    ):
        for _ in range(5):
            brokers.produce(*(b"later %d" % number * 100 for number in range(RECORDS)))
            for run in (through, direct):
                run.wait_records(sum(brokers.ends().values()))
        assert_same_records(direct, through)
        assert through.errors() == direct.errors() == []
        bytes_of = record_bytes(gateway)
        assert bytes_of["same"] > 0
        assert (bytes_of["other"], bytes_of["unknown"]) == (0, 0)
