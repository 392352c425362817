"""The messages that the gateway sends to systemd."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.server.process import tell_ready
from tools.kafka.ports import free_ports


@pytest.fixture
def heard() -> Iterator[socket.socket]:
    """Return the socket on which the test listens instead of systemd. Its address is abstract (no file)."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind("")
        sock.settimeout(30)
        yield sock


def _address(sock: socket.socket) -> str:
    name: bytes = sock.getsockname()
    return "@" + name[1:].decode()


def test_systemd_is_told_at_an_abstract_address_or_a_file(heard: socket.socket, tmp_path: Path) -> None:
    tell_ready({"NOTIFY_SOCKET": _address(heard)})
    assert heard.recv(100) == b"READY=1"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as file:
        file.bind(str(tmp_path / "notify"))
        tell_ready({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert file.recv(100) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nobody/there"}])
def test_who_does_not_listen_is_not_told(environ: dict[str, str]) -> None:
    tell_ready(environ)


def test_a_gateway_that_is_ready_hears_a_reload(heard: socket.socket) -> None:
    """A gateway that has said READY=1 reloads after SIGHUP.

    Before that, SIGHUP would end the process, so systemd has to know when the gateway is ready.
    """
    first = free_ports(2)
    options = ("--bootstrap", "127.0.0.1:1", "--listen", f"127.0.0.1:{first}", "--admin", "off")
    gateway = subprocess.Popen(
        [sys.executable, "-m", "proxy", "proxy", *options],
        env={**os.environ, "NOTIFY_SOCKET": _address(heard)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with gateway:
        try:
            assert heard.recv(100) == b"READY=1"
            gateway.send_signal(signal.SIGHUP)
            assert gateway.stderr is not None
            assert any("reloaded" in line for line in gateway.stderr)
            gateway.terminate()
            assert gateway.wait(30) == 0
        finally:
            gateway.kill()
