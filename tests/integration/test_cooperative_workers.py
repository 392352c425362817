"""Tests of a cooperative group whose gateway has several worker processes, with a real broker."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from tests.clients.python.consume_confluent import TLS_CA
from tests.clients.runner import CONFLUENT, Program, Run
from tests.integration.bystander import until
from tests.integration.test_cooperative_groups import RECORDS, Members, broker, group, place, produce, topic
from tools.certificates import Authority
from tools.gateway import GatewayProcess
from tools.kafka import Broker

__all__ = ["broker", "group", "place", "topic"]

pytestmark = pytest.mark.integration

WORKERS = 3


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=["plain"])
def program(request: pytest.FixtureRequest, authority: Authority) -> Program:
    if request.param == "plain":
        return CONFLUENT
    return replace(CONFLUENT, environment={TLS_CA: str(authority.file)})


@pytest.fixture
def gateway(broker: Broker, program: Program, group: str, authority: Authority) -> Iterator[GatewayProcess]:
    options = ["--workers", str(WORKERS), "--cooperative", group]
    if program.environment:
        pair = authority.sign("gate")
        options += ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    with GatewayProcess(broker.address, *options) as gateway:
        serves(gateway)
        yield gateway


def serves(gateway: GatewayProcess) -> None:
    until(lambda: not gateway.state()["reasons"], "all workers to serve")


def owner_of(group: str) -> int:
    return crc32(group.encode()) % WORKERS


def kill(gateway: GatewayProcess, worker: int) -> None:
    os.kill(gateway.state()["workers"][worker]["pid"], signal.SIGKILL)
    until(lambda: gateway.log().count("worker ended") == 1, "its end to be seen")
    serves(gateway)


def assert_first_in_order(run: Run) -> None:
    """Check that each key's new records came in the order of the log. Repeated records are ignored."""
    last: dict[str, int] = {}
    seen: set[int] = set()
    for line in run.of("record"):
        if line["offset"] not in seen:
            seen.add(line["offset"])
            assert last.get(line["key"], -1) < line["offset"]
            last[line["key"]] = line["offset"]


@pytest.mark.parametrize("program", ["plain", "TLS"], indirect=True)
def test_members_come_and_leave(
    program: Program, broker: Broker, gateway: GatewayProcess, topic: str, group: str, place: str
) -> None:
    """Case 38, shortened: members join and leave, while a gateway with workers reloads its options."""
    with Members(program, topic, group, place) as members:
        one = members.join(gateway.address)
        members.settle(one)
        produce(broker, topic, 0, RECORDS)
        two, three = members.join(gateway.address), members.join(gateway.address)
        members.settle(one, two, three)
        produce(broker, topic, RECORDS, RECORDS)
        gateway.reload()
        members.wait(2 * RECORDS)
        told = gateway.state()
        by_worker = [worker["connections"] for worker in told["workers"]]
        assert by_worker[owner_of(group)] == sum(by_worker) == len(told["connections"])
        assert len({each["client_id"] for each in told["connections"]}) == 3
        produce(broker, topic, 2 * RECORDS, RECORDS)
        members.wait(3 * RECORDS)
        later = [
            len([line for line in run.of("record") if line["offset"] >= RECORDS]) for run in members.runs
        ]
        assert min(later) > RECORDS / 4, "each has its share"
        one.ask("commit")
        one.stop()
        produce(broker, topic, 3 * RECORDS, RECORDS)
        members.wait(4 * RECORDS)
        members.assert_ordered()
        assert members.seen() == Counter(range(4 * RECORDS))


@pytest.mark.parametrize("owner", [True, False], ids=["the owner", "another"])
def test_a_worker_that_is_killed_loses_nothing(
    program: Program,
    broker: Broker,
    gateway: GatewayProcess,
    topic: str,
    group: str,
    place: str,
    owner: bool,
) -> None:
    """If the worker that serves the group is killed, only uncommitted records come twice.

    If another worker is killed, no record comes twice.
    """
    with Members(program, topic, group, place) as members:
        runs = [members.join(gateway.address) for _ in range(3)]
        members.settle(*runs)
        produce(broker, topic, 0, RECORDS)
        members.wait(RECORDS)
        for run in runs:
            run.ask("commit")
        produce(broker, topic, RECORDS, RECORDS)
        kill(gateway, (owner_of(group) + (not owner)) % WORKERS)
        produce(broker, topic, 2 * RECORDS, RECORDS)
        members.wait(3 * RECORDS)
        seen = members.seen()
        assert set(seen) == set(range(3 * RECORDS))
        twice = [offset for offset, times in seen.items() if times > 1]
        assert not [offset for offset in twice if offset < RECORDS or not owner]
        for run in runs:
            assert_first_in_order(run)
        last = [{line["key"] for line in run.of("record") if line["offset"] >= 2 * RECORDS} for run in runs]
        assert sum(map(len, last)) == len(set().union(*last)), "each key has one member"


def test_a_gateway_that_is_restarted_in_good_order_delivers_each_record_once(
    program: Program, broker: Broker, gateway: GatewayProcess, topic: str, group: str, place: str
) -> None:
    with Members(program, topic, group, place) as members:
        runs = [members.join(gateway.address) for _ in range(3)]
        members.settle(*runs)
        produce(broker, topic, 0, RECORDS)
        members.wait(RECORDS)
        for run in runs:
            run.ask("commit")
        assert gateway.stop() == 0
        assert "cut_off=0" in gateway.log()
        gateway.start()
        serves(gateway)
        produce(broker, topic, RECORDS, RECORDS)
        members.wait(2 * RECORDS)
        members.assert_ordered()
        assert members.seen() == Counter(range(2 * RECORDS))


def test_a_client_of_another_name_makes_it_a_plain_group(
    program: Program, broker: Broker, gateway: GatewayProcess, topic: str, group: str, place: str
) -> None:
    """Case 36: within one gateway, a client with another kind of client.id makes the group a plain one.

    This client stays at the worker that accepted it.
    """
    with Members(program, topic, group, place) as members:
        one = members.join(gateway.address)
        members.settle(one)
        outsiders = Members(program, topic, group, "outside")
        with outsiders:
            for _ in range(WORKERS):
                outsiders.join(gateway.address)
            time.sleep(8)
            produce(broker, topic, 0, RECORDS)
            everybody = Members(program, topic, group, place)
            everybody.runs = [one, *outsiders.runs]
            everybody.wait(RECORDS)
            assert sorted(len(run.of("record")) for run in everybody.runs) == [0] * WORKERS + [RECORDS]
            for run in outsiders.runs:
                run.stop()
        two = members.join(gateway.address)
        members.settle(one, two)
        produce(broker, topic, RECORDS, RECORDS)
        everybody.runs.append(two)
        everybody.wait(2 * RECORDS)
        assert everybody.seen() == Counter(range(2 * RECORDS))
        later = [len([line for line in run.of("record") if line["offset"] >= RECORDS]) for run in (one, two)]
        assert min(later) > RECORDS / 4
