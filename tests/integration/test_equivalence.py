"""Clients read the same topics directly and through the gateway, while the topics or brokers change.

There are three brokers. Topics that do not change are in test_clients_python.py (headers, timestamps,
transactions, compaction, 5 MB records).
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import pytest

from tests.clients.dataset import KEEP, produce, producing
from tests.clients.runner import Program, Run, Ways, assert_same_records, python_programs
from tests.integration.bystander import until
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration
pytest_plugins = ["tests.clients.fixtures"]

SETTLE_SECONDS = 0.5
"""Enough time for several fetches of a client without new records."""

QUOTA = 35_000
"""The consumer quota in bytes per second. A broker averages over at least ten seconds, so a consumer is
slowed down as soon as it reads 400 kB."""


@pytest.fixture
def topic(admin: Admin, program: Program) -> Iterator[str]:
    """Create a topic of four partitions, each with a replica on all three brokers. Return its name."""
    name = f"{program.name}-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=4, replication=3, config=KEEP)
    yield name
    admin.delete_topic(name)


@pytest.fixture
def quota_topic(admin: Admin) -> Iterator[str]:
    """Create a topic of four partitions on one broker, because quotas count by broker. Return its name."""
    name = f"quota-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, assignment={partition: [1] for partition in range(4)})
    yield name
    admin.delete_topic(name)


@contextmanager
def side_by_side(
    program: Program, ways: Ways, topic: str, *, partitions: int = 4
) -> Iterator[tuple[Run, Run]]:
    """One client reading all partitions of a topic twice: directly, and through the gateway."""
    assign = {topic: partitions}
    with (
        Run(program, ways.direct, assign=assign) as direct,
        Run(program, ways.gateway, assign=assign) as gateway,
    ):
        yield direct, gateway


def put(ways: Ways, topic: str, partitions: int, count: int, *, first: int = 0) -> None:
    """Produce ``count`` records to each partition, directly at the brokers."""
    with producing(ways.direct) as producer:
        for partition in range(partitions):
            produce(producer, topic, partition, count, first=first)


def offsets(run: Run, topic: str, partition: int) -> list[int]:
    return [line["offset"] for line in run.records().get((topic, partition), [])]


def test_new_records_arrive_in_order_with_each_end_told(program: Program, ways: Ways, topic: str) -> None:
    """New records arrive in order, and each end of a partition is reported (case 77)."""
    put(ways, topic, 4, 10)
    with side_by_side(program, ways, topic) as runs:
        for end in (10, 13, 16):
            for run in runs:
                run.wait_ends({(topic, partition): end for partition in range(4)})
            put(ways, topic, 4, 3, first=end)
        for run in runs:
            run.wait_ends({(topic, partition): 19 for partition in range(4)})
            run.stop()
    assert_same_records(*runs)
    assert [offsets(runs[1], topic, partition) for partition in range(4)] == [list(range(19))] * 4
    assert [run.errors() for run in runs] == [[], []]


def test_seek_back_delivers_again(program: Program, ways: Ways, topic: str) -> None:
    """After a client seeks back, it gets the same records again (case 78)."""
    put(ways, topic, 4, 10)
    with side_by_side(program, ways, topic) as runs:
        for run in runs:
            run.wait_records(40)
            run.send("seek", topic=topic, partition=0, offset=3)
            run.send("seek", topic=topic, partition=2, offset=9)
            run.wait_records(40 + 7 + 1)
            assert run.ask("position", topic=topic, partition=0)["offset"] == 10
            run.stop()
    assert_same_records(*runs)
    assert offsets(runs[1], topic, 0) == [*range(10), *range(3, 10)]
    assert offsets(runs[1], topic, 2) == [*range(10), 9]


def test_seek_to_the_end_skips_and_tells_the_end(program: Program, ways: Ways, topic: str) -> None:
    """After a client seeks to the end of a partition, it skips the records before the end (case 77).

    The client also reports the end of the partition.
    """
    with side_by_side(program, ways, topic) as runs:
        for run in runs:
            run.wait_ends({(topic, partition): 0 for partition in range(4)})
            run.send("pause", topic=topic, partition=1)
            run.ask("position", topic=topic, partition=1)
        put(ways, topic, 4, 10)
        for run in runs:
            run.wait_records(30)
            run.send("seek", topic=topic, partition=1, offset=10)
            run.send("resume", topic=topic, partition=1)
            run.wait_ends({(topic, partition): 10 for partition in range(4)})
        put(ways, topic, 4, 2, first=10)
        for run in runs:
            run.wait_ends({(topic, partition): 12 for partition in range(4)})
            run.stop()
    assert_same_records(*runs)
    assert offsets(runs[1], topic, 1) == [10, 11]


def test_a_paused_partition_stays_silent_until_resumed(program: Program, ways: Ways, topic: str) -> None:
    """A paused partition delivers no records until it is resumed (case 79)."""
    put(ways, topic, 4, 10)
    with side_by_side(program, ways, topic) as runs:
        for run in runs:
            run.wait_records(40)
            run.send("pause", topic=topic, partition=0)
            run.ask("position", topic=topic, partition=0)
        put(ways, topic, 4, 5, first=10)
        for run in runs:
            run.wait_records(40 + 15)
        time.sleep(SETTLE_SECONDS)
        assert [offsets(run, topic, 0) for run in runs] == [list(range(10))] * 2
        for run in runs:
            run.send("resume", topic=topic, partition=0)
            run.wait_records(40 + 20)
            run.stop()
    assert_same_records(*runs)


def test_the_log_start_moves_under_a_reader(program: Program, ways: Ways, topic: str, admin: Admin) -> None:
    put(ways, topic, 4, 10)
    with side_by_side(program, ways, topic) as runs:
        for run in runs:
            run.wait_records(40)
        admin.delete_records(topic, dict.fromkeys(range(4), 6))
        for run in runs:
            wait_low(run, topic, 1, 6)
            run.send("seek", topic=topic, partition=1, offset=2)  # below it: auto.offset.reset goes to 6
            run.wait_records(40 + 4)
            run.stop()
    assert_same_records(*runs)
    assert offsets(runs[1], topic, 1) == [*range(10), *range(6, 10)]
    assert [run.errors() for run in runs] == [[], []]


def wait_low(run: Run, topic: str, partition: int, low: int) -> None:
    """Wait until a client reports `low` as the low watermark of a partition.

    The client must show the low watermark of its fetch responses.
    """
    until(
        lambda: run.ask("watermarks", topic=topic, partition=partition)["low"] in (None, low),
        f"{run}: another low watermark than {low}",
    )


def test_watermarks_follow_the_log(program: Program, ways: Ways, topic: str) -> None:
    put(ways, topic, 4, 10)
    with side_by_side(program, ways, topic) as runs:
        for run in runs:
            run.wait_ends({(topic, partition): 10 for partition in range(4)})
        put(ways, topic, 4, 3, first=10)
        for run in runs:
            run.wait_ends({(topic, partition): 13 for partition in range(4)})
        direct, gateway = (
            [run.ask("watermarks", topic=topic, partition=partition) for partition in range(4)]
            for run in runs
        )
    assert direct == gateway
    assert [line["high"] for line in gateway] == [13] * 4


def test_partitions_added_are_read_as_well(program: Program, ways: Ways, topic: str, admin: Admin) -> None:
    put(ways, topic, 4, 5)
    with subscribed(program, ways, topic) as runs:
        for run in runs:
            run.wait_records(20)
        admin.add_partitions(topic, 7)
        put(ways, topic, 7, 5, first=5)
        for run in runs:
            run.wait_records(20 + 35)
            run.stop()
    assert_same_records(*runs)
    assert offsets(runs[1], topic, 6) == list(range(5))


@contextmanager
def subscribed(program: Program, ways: Ways, topic: str) -> Iterator[tuple[Run, Run]]:
    """Run one client that subscribes as the only member of its group: directly, and through the gateway.

    The two runs have different groups.
    """
    with (
        Run(program, ways.direct, subscribe=[topic], group=f"direct-{topic}") as direct,
        Run(program, ways.gateway, subscribe=[topic], group=f"gateway-{topic}") as gateway,
    ):
        yield direct, gateway


def test_a_topic_deleted_and_created_anew_is_read_on(
    program: Program, ways: Ways, topic: str, admin: Admin
) -> None:
    """Clients continue to read a topic after it was deleted and created again (case 80)."""
    if program.name == "kafka-python":
        pytest.skip("kafka-python 3 does not always read on after a topic was made anew, direct as well")
    put(ways, topic, 4, 10)
    with side_by_side(program, ways, topic) as runs:
        for run in runs:
            run.wait_ends({(topic, partition): 10 for partition in range(4)})
        admin.delete_topic(topic)
        time.sleep(SETTLE_SECONDS)
        admin.create_topic(topic, partitions=4, replication=3, config=KEEP)
        for end in (3, 6):
            put(ways, topic, 4, 3, first=100 + end)
            for run in runs:
                run.wait_ends({(topic, partition): end for partition in range(4)})
        for run in runs:
            run.stop()
    assert_same_records(*runs)
    assert offsets(runs[1], topic, 3) == [*range(10), *range(6)]
    assert set(runs[1].errors()) <= {*runs[0].errors(), "UNKNOWN_TOPIC_OR_PART"}, runs[1].of("error")


def test_members_share_a_group_and_one_takes_over(program: Program, ways: Ways, topic: str) -> None:
    """Two members share a group. If one leaves, the other takes over its partitions (case 79)."""
    put(ways, topic, 4, 10)
    with subscribed(program, ways, topic) as firsts:
        for run in firsts:
            run.wait_records(40)
            run.ask("commit")
        with subscribed(program, ways, topic) as seconds:
            for run in (*firsts, *seconds):
                run.wait(lambda run: held(run) == 2, "two partitions")
            put(ways, topic, 4, 10, first=10)
            for first, second in zip(firsts, seconds, strict=True):
                wait_in_all((first, second), 80)
                first.ask("commit")
                second.ask("commit")
                first.stop()
                second.wait(lambda run: held(run) == 4, "all partitions")
            put(ways, topic, 4, 10, first=20)
            for first, second in zip(firsts, seconds, strict=True):
                wait_in_all((first, second), 120)
                second.stop()
    for first, second in zip(firsts, seconds, strict=True):
        for partition in range(4):
            seen = offsets(first, topic, partition) + offsets(second, topic, partition)
            assert sorted(seen) == list(range(30)), "every record once"


def held(run: Run) -> int:
    """Return the number of partitions in a member's last assignment."""
    given = run.of("assigned")
    return len(given[-1]["partitions"]) if given else 0


def wait_in_all(members: tuple[Run, Run], count: int) -> None:
    """Wait until the two members of a group have received ``count`` records in total."""
    members[1].wait(
        lambda _: sum(len(run.of("record")) for run in members) >= count, f"{count} records between two"
    )


def test_leaders_move_under_a_reader(program: Program, ways: Ways, topic: str, admin: Admin) -> None:
    with side_by_side(program, ways, topic) as runs:
        for round_ in range(3):
            for partition in range(4):
                admin.move_leader(topic, partition, (partition + round_) % 3 + 1)
            put(ways, topic, 4, 10, first=10 * round_)
            for run in runs:
                run.wait_records(40 * (round_ + 1))
        for run in runs:
            run.wait_ends({(topic, partition): 30 for partition in range(4)})
            run.stop()
    assert_same_records(*runs)
    assert [offsets(runs[1], topic, partition) for partition in range(4)] == [list(range(30))] * 4
    assert set(runs[1].errors()) <= set(runs[0].errors()), runs[1].of("error")


def test_a_consumer_quota_slows_and_loses_nothing(ways: Ways, quota_topic: str, admin: Admin) -> None:
    """A consumer quota slows clients, but no record is lost (case 81)."""
    programs = python_programs().values()
    with producing(ways.direct) as producer:
        for number in range(100):
            producer.produce(quota_topic, value=number.to_bytes(2) * 2_000, partition=number % 4)
    for program in programs:
        admin.set_quota(program.client_id, {"consumer_byte_rate": QUOTA})
    try:
        with ExitStack() as stack:
            pairs = [stack.enter_context(side_by_side(each, ways, quota_topic)) for each in programs]
            for run in chain.from_iterable(pairs):
                run.wait_ends({(quota_topic, partition): 25 for partition in range(4)}, seconds=80)
                run.stop()
    finally:
        for program in programs:
            admin.set_quota(program.client_id, {"consumer_byte_rate": None})
    for direct, gateway in pairs:
        assert_same_records(direct, gateway)
        assert len(gateway.of("record")) == 100
        assert [direct.errors(), gateway.errors()] == [[], []]
    assert all(run.of("throttled") for run in pairs[0]), "librdkafka tells its application"
