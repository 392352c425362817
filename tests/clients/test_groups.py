"""Clients in other languages than Python share a partition as members of a cooperative group.

The members are behind one gateway, or each is behind its own.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Final, Self

import confluent_kafka
import pytest

from tests.clients.programs import COOPERATIVE, PROGRAMS
from tests.clients.runner import Program, Run, python_programs
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.clients

RECORDS: Final = 2_000
KEYS: Final = 101
SETTLED_SECONDS: Final = 6.0
"""Two heartbeat intervals, in seconds. After this time, each member knows whether it must rejoin."""
PATIENCE: Final = 90.0
ALL: Final = (*COOPERATIVE, "kafka-python-2.0.2")
GATEWAYS: Final = pytest.mark.parametrize("alone", [False, True], ids=["one-gateway", "a-gateway-each"])
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def program_of(name: str) -> Program:
    return PROGRAMS[name]() if name in PROGRAMS else python_programs()[name]


class Group:
    """Members of a cooperative group that share one partition.

    Args:
        broker: the broker.
        programs: the programs of the members.
        alone: whether each member has a gateway for itself.
    """

    def __init__(self, broker: Broker, programs: list[Program], *, alone: bool) -> None:
        self.programs, self._alone = programs, alone
        place = f".{next(_numbers)}"
        # A program's client.id begins with its own name, so each is a group's name here.
        self._names = [program.client_id + place for program in programs]
        self.name, self._place = self._names[0], place
        self.topic = f"orders-{self.name}"
        self._broker = broker
        self._stack = ExitStack()
        self.runs: list[Run] = []
        self.gateways: list[GatewayProcess] = []

    def __enter__(self) -> Self:
        with Admin(self._broker.address) as admin:
            admin.create_topic(self.topic, partitions=1)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, program: Program) -> Run:
        """Start a member, and a gateway before it if it has none."""
        if self._alone or not self.gateways:
            gateway = GatewayProcess(self._broker.address, "--cooperative", ",".join({*self._names}))
            self.gateways.append(self._stack.enter_context(gateway))
        suffix = f"{self._place}.{len(self.runs)}"
        run = Run(program, self.gateways[-1].address, subscribe=[self.topic], group=self.name, suffix=suffix)
        self.runs.append(self._stack.enter_context(run))
        return run

    def produce(self, first: int, number: int) -> None:
        """Produce records with keys, numbered from `first`."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self._broker.address, "linger.ms": 5})
        for each in range(first, first + number):
            producer.produce(self.topic, key=b"key-%d" % (each % KEYS), value=b"%d" % each)
        assert producer.flush(30) == 0

    def produce_transactions(self, number: int) -> list[int]:
        """Produce transactions of two records, each followed by a plain record. Return the offsets of all
        records.
        """
        offsets: list[int] = []

        def delivered(_: object, message: confluent_kafka.Message) -> None:
            offsets.append(message.offset() or 0)

        bootstrap = {"bootstrap.servers": self._broker.address, "linger.ms": 0}
        plain = confluent_kafka.Producer(bootstrap)
        producer = confluent_kafka.Producer(bootstrap | {"transactional.id": self.topic})
        producer.init_transactions(PATIENCE)
        for each in range(number):
            producer.begin_transaction()
            for one in range(2):
                producer.produce(self.topic, key=b"key-%d" % ((3 * each + one) % KEYS), on_delivery=delivered)
            producer.commit_transaction(PATIENCE)
            plain.produce(self.topic, key=b"key-%d" % ((3 * each + 2) % KEYS), on_delivery=delivered)
            assert plain.flush(30) == 0
        return offsets

    def wait_shared(self) -> int:
        """Produce until each member has received a record. Then wait until no more records arrive.

        Returns:
            The number of records that were produced.
        """
        number = 0
        deadline = time.monotonic() + PATIENCE
        while min(len(run.of("record")) for run in self.runs) == 0:
            told = [
                (run.program.name, len(run.of("record")), run.told_on_stderr()[-800:]) for run in self.runs
            ]
            assert time.monotonic() < deadline, told
            self.produce(number, KEYS)
            number += KEYS
            time.sleep(1)
        time.sleep(SETTLED_SECONDS)
        return number

    def _told(self) -> list[tuple[str, int, str]]:
        """Return the name, the number of records and the last error output of each member's program."""
        return [(run.program.name, len(run.of("record")), run.told_on_stderr()[-800:]) for run in self.runs]

    def wait(self, number: int) -> None:
        """Wait until the members have received `number` different offsets."""
        deadline = time.monotonic() + PATIENCE
        while len({line["offset"] for run in self.runs for line in run.of("record")}) < number:
            told = [
                (run.program.name, len(run.of("record")), run.told_on_stderr()[-800:]) for run in self.runs
            ]
            assert time.monotonic() < deadline, told
            time.sleep(0.2)

    def check(self, first: int, number: int) -> None:
        """Check that each record from offset `first` to `number` - 1 went to exactly one member.

        Also check that all records with the same key went to the same member, in order.
        """
        offsets: list[int] = []
        owners: list[set[str]] = []
        for run in self.runs:
            lines = [line for line in run.of("record") if line["offset"] >= first]
            for key in {line["key"] for line in lines}:
                mine = [line["offset"] for line in lines if line["key"] == key]
                assert mine == sorted(set(mine)), (run.program.name, key)
            owners.append({line["key"] for line in lines})
            offsets += [line["offset"] for line in lines]
        assert sorted(offsets) == list(range(first, number))
        assert len(set.union(*owners)) == sum(map(len, owners))
        assert all(owners)


@GATEWAYS
@pytest.mark.parametrize("name", ALL)
def test_two_members_share_a_partition(name: str, alone: bool, broker: Broker) -> None:
    """Case C34: two members of a cooperative group, with the same client library, share a partition."""
    program = program_of(name)
    with Group(broker, [program], alone=alone) as group:
        group.join(program)
        group.join(program)
        first = group.wait_shared()
        group.produce(first, RECORDS)
        group.wait(first + RECORDS)
        group.check(first, first + RECORDS)


@GATEWAYS
@pytest.mark.parametrize("name", ["sarama", "kafkajs", "kafka-python"])
def test_nothing_is_lost_among_transactions(name: str, alone: bool, broker: Broker) -> None:
    """Each member gets all transaction markers, and skips the other members' records between the markers."""
    program = program_of(name)
    with Group(broker, [program], alone=alone) as group:
        group.join(program)
        group.join(program)
        first = group.wait_shared()
        offsets = group.produce_transactions(200)
        group.wait(first + len(offsets))
        found = [line["offset"] for run in group.runs for line in run.of("record")]
        assert sorted(each for each in found if each >= first) == sorted(offsets)


@GATEWAYS
def test_many_libraries_share_a_partition(alone: bool, broker: Broker) -> None:
    """Case C35: members with different client libraries share a partition. They have no common assignor.

    Java joins last, so that another member leads the group. As a leader Java can't read the subscription of
    kafka-go, also without a gateway: v1 without the list of owned partitions.
    """
    names = [
        "sarama",
        "franz-go",
        "kafka-go",
        "kafkajs",
        "confluent-kafka",
        "aiokafka",
        "kafka-python",
        "java",
    ]
    programs = [program_of(name) for name in names]
    with Group(broker, programs, alone=alone) as group:
        for program in programs:
            group.join(program)
        first = group.wait_shared()
        group.produce(first, RECORDS)
        group.wait(first + RECORDS)
        group.check(first, first + RECORDS)
