"""A restart as in docs/users/run.md, with kafka-python: a gap, two gateways, systemd's sockets.

This client gives up early: kafka-python 3.0.12 ends a commit with an error if every address refuses the
connection. Other clients wait and retry.
"""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO, Final, Self

import pytest

from tests.integration.test_deploy_systemd import HAND_OVER
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

TOPIC: Final = "committed"
RESTARTS: Final = 3
GIVEN_UP: Final = {"KafkaConnectionError", "KafkaTimeoutError"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC)
        yield broker


class Member:
    """A member of a group that commits on command."""

    def __init__(self, gateway: GatewayProcess, group: str) -> None:
        command = [sys.executable, "-m", "tests.integration.committing", gateway.address, TOPIC, group]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._offset = 0

    def __enter__(self) -> Self:
        assert self._line() == "joined"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            stream and stream.close()

    def commits(self) -> str:
        """Commit the next offset. Return "" on success, otherwise the error."""
        self._offset += 1
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._offset}\n")
        self._process.stdin.flush()
        said = self._line()
        return "" if said == str(self._offset) else said

    def _line(self) -> str:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        return stdout.readline().strip()


class Activated(GatewayProcess):
    """A gateway that gets its listening sockets from another process, as from systemd.

    The other process keeps the sockets open while the gateway restarts.
    """

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        super().__init__(bootstrap)
        addresses = [(self.host, self.port), (self.host, self.port + 2)]  # the broker's id is 1
        listeners = [stack.enter_context(socket.create_server(address)) for address in addresses]
        # Above the places that they are put into, so that none is put over another.
        self._files = [fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 100) for sock in listeners]
        for number in self._files:
            stack.callback(os.close, number)
        numbers = ",".join(map(str, self._files))
        self._command = [sys.executable, "-c", HAND_OVER, numbers, *self._command]


def test_a_restart_with_a_gap_ends_a_commit_with_an_error(broker: Broker) -> None:
    with GatewayProcess(broker.address) as gateway, Member(gateway, "gap") as member:
        assert member.commits() == ""
        assert gateway.stop() == 0
        assert member.commits() in GIVEN_UP
        gateway.start()


def test_a_restart_with_both_gateways_at_once_ends_no_commit(broker: Broker) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        gateway = stack.enter_context(GatewayProcess(broker.address, "--reuse-port", "on"))
        member = stack.enter_context(Member(gateway, "overlap"))
        for _ in range(RESTARTS):
            next_one = stack.enter_context(gateway.successor())
            stopping = pool.submit(gateway.stop)
            assert [member.commits() for _ in range(5)] == [""] * 5
            assert stopping.result() == 0
            assert member.commits() == ""
            gateway = next_one


def test_a_restart_at_systemd_s_sockets_ends_no_commit(broker: Broker) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        gateway = stack.enter_context(Activated(broker.address, stack))
        member = stack.enter_context(Member(gateway, "activated"))
        for _ in range(RESTARTS):
            assert gateway.stop() == 0
            committing = pool.submit(member.commits)
            gateway.start()
            assert committing.result() == ""
