"""Two gateway processes serve one address, as during a restart with `--reuse-port`. The system gives each new
connection to any of them.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.clients.runner import CONFLUENT, KAFKA_PYTHON, Program
from tests.integration.test_cooperative_groups import RECORDS, Members, produce
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("ss") is None, reason="ss (iproute2) ends connections"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


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
            subprocess.run(["ss", "-K", "-t", f"dport = :{port}"], check=True, capture_output=True)
        time.sleep(0.2)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("program", [CONFLUENT, KAFKA_PYTHON], ids=lambda program: program.name)
def test_nothing_is_lost_if_a_member_joins_at_the_new_process_and_fetches_at_the_old_one(
    broker: Broker, program: Program
) -> None:
    """Case 68. Another member leaves, so that its keys belong to those that are left."""
    topic = f"two-processes-{program.name}"
    place, group = f".{topic}", f"{program.client_id}.{topic}"
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=1)
    with ExitStack() as stack:
        options = ("--cooperative", group, "--reuse-port", "on")
        old = stack.enter_context(GatewayProcess(broker.address, *options))
        members = stack.enter_context(Members(program, topic, group, place))
        runs = [members.join(old.address) for _ in range(3)]
        members.settle(*runs)
        produce(broker, topic, 0, RECORDS)
        members.wait(RECORDS)
        new = stack.enter_context(old.successor())
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(runs[2].stop)
            for number in range(2):
                move(f"{group}.{number}", old, new)
            leaving.result()
        for number in range(1, 6):
            produce(broker, topic, number * RECORDS, RECORDS)
            time.sleep(3)
        old.stop()
        members.wait(6 * RECORDS)
        assert set(members.seen()) == set(range(6 * RECORDS))
