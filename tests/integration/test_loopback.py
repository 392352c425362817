"""The default listen address of a gateway.

The gateway runs in its own network, and the kernel lists its sockets.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.bystander import until
from tools.kafka import reaper
from tools.netns import Namespace, missing

LACKING = missing()
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

LISTENS = "0A"
LOOPBACK = "0100007F"
"""The address 127.0.0.1 as it is written in /proc/net/tcp."""
EVERYWHERE = "00000000"
Start = Callable[..., set[tuple[str, int]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a gateway with the given options.

    The function returns the gateway's listening addresses, once there are two.
    """
    with ExitStack() as stack:
        place = stack.enter_context(Namespace())

        def started(*options: str) -> set[tuple[str, int]]:
            command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", "127.0.0.1:1", *options]
            with place.inside():
                process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            reaper.watch(process.pid)
            stack.callback(reaper.forget, process.pid)
            stack.callback(process.wait)
            stack.callback(process.kill)
            until(lambda: process.poll() is not None or len(listening(process.pid)) > 1, "it does not listen")
            assert process.poll() is None
            return listening(process.pid)

        yield started


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the listening addresses of all processes in the network namespace of a process."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            host, port = local.split(":")
            if state == LISTENS:
                found.add((host, int(port, 16)))
    return found


def test_by_default_loopback_alone_is_listened_at(start: Start) -> None:
    assert start() == {(LOOPBACK, 19092), (LOOPBACK, 9464)}


def test_elsewhere_only_what_was_told(start: Start) -> None:
    assert start("--listen", "0.0.0.0:19092") == {(EVERYWHERE, 19092), (LOOPBACK, 9464)}


def test_the_admin_endpoint_goes_where_it_is_told(start: Start) -> None:
    assert start("--admin", "0.0.0.0:9000") == {(LOOPBACK, 19092), (EVERYWHERE, 9000)}
