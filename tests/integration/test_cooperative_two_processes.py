"""Two gateway processes serve one address, as during a restart with `--reuse-port`. The system gives each new
connection to any of them.

`TWO_PROCESS_RUNS` sets how often each test runs (`make soak`).
"""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

import pytest

from tests.clients.programs import program_of
from tests.integration.test_cooperative_groups import RECORDS, Members, produce
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.soak.groups.history import Did, MemberLife
from tools.soak.groups.judge import TWICE_COMMITTED, GroupsVerdict, judge

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("ss") is None, reason="ss (iproute2) ends connections"),
    pytest.mark.parametrize("run", range(int(os.environ.get("TWO_PROCESS_RUNS", "1")))),
    pytest.mark.parametrize(
        "name", ["confluent-kafka", "kafka-python", pytest.param("java", marks=pytest.mark.clients)]
    ),
]

STEPS: Final = 24
BATCH: Final = 500
KINDS: Final = {"assigned": "assigned", "revoked": "revoked", "acknowledged": "committed", "record": "record"}
"""What each line of a program is called in `tools.soak.groups.history`."""


class Two(NamedTuple):
    """Two gateways at one address, and the members of a group. `new` does not run yet."""

    old: GatewayProcess
    new: GatewayProcess
    members: Members


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@contextmanager
def two_processes(broker: Broker, name: str, topic: str) -> Iterator[Two]:
    program = program_of(name)
    place, group = f".{topic}", f"{program.client_id}.{topic}"
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=1)
    options = ("--cooperative", group, "--reuse-port", "on")
    with ExitStack() as stack:
        old = stack.enter_context(GatewayProcess(broker.address, *options))
        new = old.successor()
        stack.callback(new.close)
        yield Two(old, new, stack.enter_context(Members(program, topic, group, place)))


def cut(port: str, gateway: GatewayProcess) -> None:
    """End a client's connection, by its port. Another connection may have the same port at its other end."""
    ports = gateway.ports
    one = f"dport = :{port} and sport >= :{ports[0]} and sport <= :{ports[-1]}"
    subprocess.run(["ss", "-K", "-t", one], check=True, capture_output=True)


def apart(gateway: GatewayProcess, client_id: str) -> list[str]:
    """Return the ports of a client's connections on which it has not fetched."""
    return [
        each["client_address"].rpartition(":")[2]
        for each in gateway.state()["connections"]
        if each["client_id"] == client_id and each["fetch_version"] < 0
    ]


def move(client_id: str, old: GatewayProcess, new: GatewayProcess) -> None:
    """End the client's connection to its coordinator until the next one reaches the new process."""
    deadline = time.monotonic() + 60
    while not apart(new, client_id) or apart(old, client_id):
        assert time.monotonic() < deadline
        for port in apart(old, client_id):
            cut(port, old)
        time.sleep(0.2)


def check(members: Members, records: int) -> None:
    """Check that each record was processed, and none again after its member's commit was accepted."""
    lives: list[MemberLife] = []
    for run in members.runs:
        did = [
            Did(
                at,
                KINDS[line["kind"]],
                line.get("partition", -1),
                line.get("offset", -1),
                line.get("key", ""),
            )
            for at, line in zip(run.heard_at, run.lines, strict=False)
            if line["kind"] in KINDS
        ]
        lives.append(MemberLife(f"member {len(lives)}", did))
    assert any(each.kind == "committed" for life in lives for each in life.did)
    log = {(0, offset): (b"key-%d" % (offset % 101)).hex() for offset in range(records)}
    verdict = GroupsVerdict()
    judge(log, lives, {}, verdict)
    assert set(members.seen()) == set(range(records))
    assert verdict.counts[TWICE_COMMITTED] == 0, "\n".join(verdict.problems)


def test_nothing_is_lost_if_a_member_joins_at_the_new_process_and_fetches_at_the_old_one(
    broker: Broker, name: str, run: int
) -> None:
    """Case C68. Another member leaves, so that its keys belong to those that are left."""
    with two_processes(broker, name, f"restart-{name}-{run}") as (old, new, members):
        runs = [members.join(old.address) for _ in range(3)]
        members.settle(*runs)
        produce(broker, members.topic, 0, RECORDS)
        members.wait(RECORDS)
        new.start()
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(runs[2].stop)
            for number in range(2):
                move(f"{members.group}.{number}", old, new)
            leaving.result()
        for number in range(1, 6):
            produce(broker, members.topic, number * RECORDS, RECORDS)
            time.sleep(3)
        old.stop()
        members.wait(6 * RECORDS)
        check(members, 6 * RECORDS)


def test_nothing_is_lost_if_each_connection_reaches_any_of_two_gateways(
    broker: Broker, name: str, run: int
) -> None:
    """Case C68. Members join and leave, and connections end, until one of the gateways ends."""
    chance = random.Random(run)
    with two_processes(broker, name, f"any-{name}-{run}") as (one, other, members):
        other.start()
        runs = [members.join(one.address) for _ in range(3)]
        for each in runs:  # one that fetches elsewhere may have no part yet
            each.wait(lambda member: bool(member.of("assigned")), "an assignment")
        for step in range(STEPS):
            produce(broker, members.topic, step * BATCH, BATCH)
            if step % 8 == 3:
                runs.append(members.join(one.address))
            elif step % 8 == 7:
                runs.pop(chance.randrange(len(runs))).stop()
            connections = [each for gateway in (one, other) for each in gateway.state()["connections"]]
            if step % 4 == 2:
                # Before a member joins or leaves: the fetches of the others stay where their lanes are old.
                connections = [each for each in connections if each["fetch_version"] < 0]
            else:
                connections = [chance.choice(connections)] if step % 4 == 0 else []
            for connection in connections:
                cut(connection["client_address"].rpartition(":")[2], one)
            time.sleep(chance.uniform(0.5, 2))
        other.stop()
        members.wait(STEPS * BATCH)
        check(members, STEPS * BATCH)
