"""Members of a cooperative group share a partition without declared key ranges, with a real broker.

The members are behind one gateway, or each is behind its own.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Final, Self

import confluent_kafka
import pytest

from tests.clients.runner import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Program, Run
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

RECORDS: Final = 3_000
BATCHES_UNTIL_SHARED: Final = 10
"""Members share again within so many batches of records after a fault, four seconds apart or more."""
STICKY: Final = replace(
    CONFLUENT,
    name="cooperative-sticky",
    command=(*CONFLUENT.command, "--strategy", "cooperative-sticky"),
)
"""Incremental rebalancing (KIP-429)."""
_numbers = count()


class Gateways:
    """One gateway for all members, or one for each.

    Args:
        broker: the broker.
        group: the name of the cooperative group.
        alone: whether each member has a gateway for itself.
    """

    def __init__(self, broker: Broker, group: str, *, alone: bool) -> None:
        self._broker, self._group, self._alone = broker, group, alone
        self._stack = ExitStack()
        self.started: list[GatewayProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def next(self) -> str:
        """Return the address for the next member. Start its gateway if there is none."""
        if self._alone or not self.started:
            gateway = GatewayProcess(self._broker.address, "--cooperative", self._group)
            self.started.append(self._stack.enter_context(gateway))
        return self.started[-1].address


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def program() -> Program:
    return CONFLUENT


@pytest.fixture
def place(program: Program) -> str:
    """Return the end of a group's name.

    The group's name begins like the client ids of the programs, so that the programs are members of the
    group.
    """
    return f".{next(_numbers)}"


@pytest.fixture
def group(program: Program, place: str) -> str:
    return program.client_id + place


@pytest.fixture(
    params=[
        pytest.param(False, marks=pytest.mark.soak, id="one-gateway"),
        pytest.param(True, id="a-gateway-each"),
    ]
)
def gateways(request: pytest.FixtureRequest, broker: Broker, group: str) -> Iterator[Gateways]:
    with Gateways(broker, group, alone=request.param) as gateways:
        yield gateways


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


def has_part(run: Run) -> bool:
    """Return whether the member has partitions. With incremental rebalancing it is told of changes only."""
    had = 0
    for line in run.lines:
        if line["kind"] in {"assigned", "revoked"}:
            had += len(line["partitions"]) * (1 if line["kind"] == "assigned" else -1)
    return had > 0


class Members:
    """Programs that subscribe to a topic, as members of one group."""

    def __init__(self, program: Program, topic: str, group: str, place: str) -> None:
        self.program, self.topic, self.group, self.place = program, topic, group, place
        self.runs: list[Run] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, address: str, name: str = "") -> Run:
        run = Run(
            self.program,
            address,
            subscribe=[self.topic],
            group=self.group,
            suffix=f"{self.place}.{name or len(self.runs)}",
        )
        self.runs.append(self._stack.enter_context(run))
        return run

    def settle(self, *runs: Run) -> None:
        """Wait until each of these members has a part of the partition."""
        for run in runs:
            run.wait(has_part, "a part")
        time.sleep(4)  # until all are in one generation

    def wait(self, number: int) -> None:
        """Wait until this many offsets were delivered."""
        deadline = time.monotonic() + 120
        while len(self.seen()) < number:
            assert time.monotonic() < deadline, [len(run.of("record")) for run in self.runs]
            time.sleep(0.2)

    def seen(self) -> Counter[int]:
        return Counter(line["offset"] for run in self.runs for line in run.of("record"))

    def keys(self, first: int) -> list[set[str]]:
        """Return each member's keys of the records from an offset on."""
        return [{line["key"] for line in run.of("record") if line["offset"] >= first} for run in self.runs]

    def assert_ordered(self) -> None:
        """Check that each member got the records of each key in order."""
        for run in self.runs:
            last: dict[str, int] = {}
            for line in run.of("record"):
                assert last.get(line["key"], -1) < line["offset"]
                last[line["key"]] = line["offset"]


PROGRAMS: Final = pytest.mark.parametrize(
    "program", [CONFLUENT, STICKY, AIOKAFKA, KAFKA_PYTHON], ids=lambda program: program.name
)
LIBRDKAFKA: Final = pytest.mark.parametrize("program", [CONFLUENT, STICKY], ids=lambda program: program.name)


@PROGRAMS
def test_two_members_share_a_partition(
    program: Program, broker: Broker, gateways: Gateways, topic: str, group: str, place: str
) -> None:
    """Two members without settings of their own each get some keys of a partition (case C34)."""
    with Members(program, topic, group, place) as members:
        one, two = members.join(gateways.next()), members.join(gateways.next())
        members.settle(one, two)
        produce(broker, topic, 0, RECORDS)
        members.wait(RECORDS)
        assert set(members.seen().values()) == {1}
        members.assert_ordered()
        keys = [{line["key"] for line in run.of("record")} for run in (one, two)]
        assert keys[0].isdisjoint(keys[1])
        assert min(len(run.of("record")) for run in (one, two)) > RECORDS / 4


@pytest.mark.parametrize(
    "program",
    [CONFLUENT, pytest.param(STICKY, marks=pytest.mark.soak), KAFKA_PYTHON],
    ids=lambda program: program.name,
)
def test_members_come_and_leave(
    program: Program, broker: Broker, gateways: Gateways, topic: str, group: str, place: str
) -> None:
    """Case C38, the short form: if members leave gracefully, no record is lost, and no record comes twice.

    kafka-python keeps its position in a partition that it gets again.
    """
    with Members(program, topic, group, place) as members:
        one = members.join(gateways.next())
        members.settle(one)
        produce(broker, topic, 0, RECORDS)
        two = members.join(gateways.next())
        members.settle(two)
        produce(broker, topic, RECORDS, RECORDS)
        three = members.join(gateways.next())
        members.settle(three)
        produce(broker, topic, 2 * RECORDS, RECORDS)
        members.wait(3 * RECORDS)
        one.ask("commit")
        one.stop()
        produce(broker, topic, 3 * RECORDS, RECORDS)
        members.wait(4 * RECORDS)
        members.assert_ordered()
        assert set(members.seen()) == set(range(4 * RECORDS))
        assert set(members.seen().values()) == {1}


@LIBRDKAFKA
def test_a_member_that_is_killed_loses_nothing(
    broker: Broker, gateways: Gateways, topic: str, group: str, place: str, program: Program
) -> None:
    """Case C41: if one member is killed once, no record is lost. Sessions end after 6 s, not 45."""
    program = replace(program, command=(*program.command, "--session-ms", "6000"))
    with Members(program, topic, group, place) as members:
        one, two = members.join(gateways.next()), members.join(gateways.next())
        members.settle(one, two)
        produce(broker, topic, 0, RECORDS)
        one._process.kill()
        produce(broker, topic, RECORDS, RECORDS)
        members.wait(2 * RECORDS)
        members.assert_ordered()


@LIBRDKAFKA
def test_a_gateway_that_is_killed_loses_nothing(
    broker: Broker, gateways: Gateways, topic: str, group: str, place: str, program: Program
) -> None:
    """Case C43: after a gateway is killed, its successor knows no members, and makes them join again."""
    with Members(program, topic, group, place) as members:
        one, two = members.join(gateways.next()), members.join(gateways.next())
        members.settle(one, two)
        produce(broker, topic, 0, RECORDS)
        members.wait(RECORDS)
        gateways.started[0].kill()
        gateways.started[0].start()
        produce(broker, topic, RECORDS, RECORDS)
        members.wait(2 * RECORDS)
        # The members commit nothing. So if they join again within a batch, as they do on a slow machine,
        # they read its first records once more, and a key may now be the other member's.
        first, keys = RECORDS, members.keys(RECORDS)
        for _ in range(BATCHES_UNTIL_SHARED):
            if all(keys) and keys[0].isdisjoint(keys[1]):
                break
            members.settle(one, two)
            first += RECORDS
            produce(broker, topic, first, RECORDS)
            members.wait(first + RECORDS)
            keys = members.keys(first)
        else:
            pytest.fail(f"not shared again, of the last batch: {[len(each) for each in keys]} keys")


def test_a_member_from_elsewhere_makes_it_a_plain_group(
    broker: Broker, gateways: Gateways, topic: str, group: str, place: str, program: Program
) -> None:
    """If a member joins directly at the broker, the group becomes a plain one (case C36)."""
    with Members(program, topic, group, place) as members:
        one, two = members.join(gateways.next()), members.join(broker.address)
        time.sleep(8)
        produce(broker, topic, 0, RECORDS)
        members.wait(RECORDS)
        assert sorted(len(run.of("record")) for run in (one, two)) == [0, RECORDS]
        two.stop()
        three = members.join(gateways.next())
        members.settle(one, three)
        produce(broker, topic, RECORDS, RECORDS)
        members.wait(2 * RECORDS)
        assert min(len(run.of("record")) for run in (one, three)) > RECORDS / 4
