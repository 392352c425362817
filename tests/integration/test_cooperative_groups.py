"""Members of a cooperative group share a partition without declaring anything, through a real broker."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Final

import confluent_kafka
import pytest

from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Program, Run
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

RECORDS: Final = 3_000
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def group() -> str:
    return f"billing-{next(_numbers)}"


@pytest.fixture
def gateway(broker: Broker, group: str) -> Iterator[GatewayProcess]:
    with GatewayProcess(broker.address, "--cooperative", group) as gateway:
        yield gateway


@pytest.fixture
def topic(broker: Broker, group: str) -> str:
    name = f"orders-{group}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, partitions=1)
    return name


def produce(broker: Broker, topic: str, first: int, number: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 5})
    for each in range(first, first + number):
        producer.produce(topic, key=b"key-%d" % (each % 101), value=b"%d" % each)
    assert producer.flush(30) == 0


def member(program: Program, gateway: GatewayProcess, topic: str, group: str, suffix: str) -> Run:
    return Run(program, gateway.address, subscribe=[topic], group=group, suffix=suffix)


def assigned(run: Run) -> bool:
    return any(line["partitions"] for line in run.of("assigned"))


def assert_exact(runs: list[Run], number: int) -> None:
    """Every record went to one member, and those of a key to one, in order."""
    seen = Counter(line["offset"] for run in runs for line in run.of("record"))
    assert [offset for offset in range(number) if seen[offset] != 1] == []
    owners: dict[str, set[int]] = {}
    for place, run in enumerate(runs):
        last: dict[str, int] = {}
        for line in run.of("record"):
            owners.setdefault(line["key"], set()).add(place)
            assert last.get(line["key"], -1) < line["offset"]
            last[line["key"]] = line["offset"]
    assert {len(each) for each in owners.values()} == {1}


@pytest.mark.parametrize("program", [CONFLUENT, AIOKAFKA, KAFKA_PYTHON], ids=lambda program: program.name)
def test_two_members_share_a_partition(
    program: Program, broker: Broker, gateway: GatewayProcess, topic: str, group: str
) -> None:
    """Case 34."""
    with (
        member(program, gateway, topic, group, ".one") as one,
        member(program, gateway, topic, group, ".two") as two,
    ):
        for run in (one, two):
            run.wait(assigned, "an assignment")
        time.sleep(4)  # both are in one generation
        produce(broker, topic, 0, RECORDS)
        deadline = time.monotonic() + 60
        while len(one.of("record")) + len(two.of("record")) < RECORDS:
            assert time.monotonic() < deadline, (len(one.of("record")), len(two.of("record")))
            time.sleep(0.2)
        assert_exact([one, two], RECORDS)
        assert min(len(run.of("record")) for run in (one, two)) > RECORDS / 4
        for run in (one, two):
            run.stop()
