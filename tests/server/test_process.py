"""The messages of a process to systemd, and the memory that it keeps."""

import os
import platform
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


ON_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
_PROGRAM = """
import ctypes, sys
from proxy.server.process import give_back, keep_freed, resident_bytes
end_of_heap = ctypes.CDLL(None).sbrk
end_of_heap.restype = ctypes.c_void_p
if sys.argv[1] == "keep":
    keep_freed()
ends = []
for _ in range(20):
    pieces = [bytes(100_000) for _ in range(20)]
    ends.append(end_of_heap(0))
    del pieces
    ends.append(end_of_heap(0))
resident = resident_bytes()
give_back()
print(sum(before != after for before, after in zip(ends, ends[1:])), resident - resident_bytes())
"""


def _moves(how: str, **variables: str) -> tuple[int, int]:
    """Run a program that allocates memory.

    Return how often the end of its heap moved, and how many bytes of resident memory `give_back` returned.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(command, env=own | variables, capture_output=True, text=True, check=True)
    moves, given_back = map(int, done.stdout.split())
    return moves, given_back


@ON_GLIBC
def test_the_heap_stays_as_large_as_it_was_until_it_is_given_back() -> None:
    moves, given_back = _moves("keep")
    assert moves <= 1 < _moves("")[0]
    assert given_back > 1_000_000


@ON_GLIBC
def test_what_an_operator_asks_of_the_heap_counts() -> None:
    assert _moves("keep", MALLOC_TRIM_THRESHOLD_="100000")[0] > 1
