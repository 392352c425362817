"""Connections end at `--max-connection-age` while clients in other languages read."""

from contextlib import closing

import pytest

from tests.clients.programs import PROGRAMS
from tests.clients.runner import Program, Run, assert_same_records
from tests.integration.bystander import until
from tests.integration.producing import Producer
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.clients
PARTITIONS = 8
ENDED = 10
ENDS = {"sarama": {"EOF"}}
"""What a client tells the application when a connection ends, also one with a broker. Others tell nothing."""


@pytest.fixture(scope="module", params=["java", "sarama", "franz-go"])
def foreign(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]()


def test_no_record_is_lost_or_doubled_while_connections_end(broker: Broker, foreign: Program) -> None:
    topic = f"aged-{foreign.name}"
    parts = {topic: PARTITIONS}
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    with (
        GatewayProcess(broker.address, "--max-connection-age", "2s") as gateway,
        Run(foreign, gateway.address, assign=parts) as through,
        Run(foreign, broker.address, assign=parts) as direct,
        closing(Producer(broker.host, broker.port)) as producer,
    ):
        sent = 0

        def ended() -> bool:
            nonlocal sent
            for partition in range(PARTITIONS):
                producer.produce(topic, partition, [b"%d" % (sent + partition)])
            sent += PARTITIONS
            return gateway.metric("fetchgate_connections_aged_total") >= ENDED

        until(ended, "connections do not end", patience=240)
        for run in (through, direct):
            run.wait_records(sent)
        assert_same_records(direct, through)
        assert direct.errors() == []
        told = {line["text"].rpartition(": ")[2] for line in through.of("error")}
        assert told == ENDS.get(foreign.name, set())
