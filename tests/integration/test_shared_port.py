"""Several gateways at one port: each gets a part of the clients, and the others go on if one ends."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.integration.bystander import PARTITIONS, Bystander, until
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

CLIENTS = 8


def test_two_gateways_at_one_port_share_the_clients(broker: Broker, tmp_path: Path) -> None:
    """Real clients use both gateways at the same time. When one is killed, they lose and double no record.

    `top` and `/state` show each gateway.
    """
    topics = [f"shared-port-{number}" for number in range(CLIENTS)]
    with Admin(broker.address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=PARTITIONS)

    def options(name: str) -> tuple[str, ...]:
        return "--reuse-port", "on", "--state", str(tmp_path / name), "--max-sessions", "250"

    with ExitStack() as stack:
        first = stack.enter_context(GatewayProcess(broker.address, *options("one.json")))
        at = first.address
        second = GatewayProcess(broker.address, *options("two.json"), "--listen", at)
        stack.enter_context(second)
        loads = [
            stack.enter_context(Bystander(at, at, topic, settings={"enable.idempotence": True}))
            for topic in topics
        ]
        for load in loads:
            load.check()
        states = [gateway.state() for gateway in (first, second)]
        assert [state["listen"] for state in states] == [at, at]
        assert len({state["process"]["pid"] for state in states}) == 2
        for state in states:
            assert state["connections_open"] > 0
            assert state["totals"]["client"]["bytes_in"] > 0
        admins = "--admin", first.admin, "--admin", second.admin
        top = [sys.executable, "-m", "proxy", "top", "--once", *admins]
        shown = subprocess.run(top, capture_output=True, text=True, timeout=60, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")
        for gateway in (first, second):
            (row,) = [line for line in shown.stdout.splitlines() if gateway.admin in line]
            assert "ready" in row
        second.kill()
        for load in loads:
            load.check()
        until(lambda: first.state()["connections_open"] >= 3 * CLIENTS, "not all clients came to the other")
        for load in loads:
            load.finish()
            assert load.errors == []
