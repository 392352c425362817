"""No client gives up a fetch that waits the longest `--fetch-max-wait`, as docs/users/fetch-floors.md says.

A client that gives up connects again and repeats its fetch. With a min_bytes that is never reached, it would
never get a record. kafka-go is such a client, so the gateway leaves its fetches as they are.
"""

from collections.abc import Iterator

import pytest

from tests.clients.programs import PROGRAMS
from tests.clients.runner import Run, python_programs
from tests.integration.mirror import Live
from tools.gateway import GatewayProcess
from tools.kafka import Broker

pytestmark = pytest.mark.clients

ALL = (*PROGRAMS, "confluent-kafka", "aiokafka", "kafka-python", "kafka-python-2.0.2")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Broker() as broker, Live(broker) as live:
        yield live


@pytest.mark.parametrize("name", ALL)
def test_a_client_gets_records_for_which_it_waits_longest(live: Live, name: str) -> None:
    """Each record is alone in its response, and the broker waits for more of them to the end."""
    program = PROGRAMS[name]() if name in PROGRAMS else python_programs()[name]
    topic = f"waits-{name}"
    live.create_topic(topic, 1)
    floors = "--fetch-min-bytes", "64KiB", "--fetch-max-wait", f"{program.client_id}=5s"
    with (
        GatewayProcess(live.broker.address, *floors) as gateway,
        Run(program, gateway.address, assign={topic: 1}) as run,
    ):
        for number in (1, 2):
            live.producer.produce(topic, 0, [b"%d" % number])
            run.wait_records(number, seconds=90)
        assert [line["offset"] for line in run.records()[topic, 0]] == [0, 1]
        assert run.errors() == []
