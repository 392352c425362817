"""A gateway imports only what its options need: most of the memory of an idle one is imported modules."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tools.kafka.ports import free_ports

_WATCHED: Final = """
import atexit, gc, sys
before, started = set(sys.modules), set()
atexit.register(lambda: print(*sorted(set(sys.modules) - before)))
atexit.register(lambda: print(*sorted(set(sys.modules) - started)))
gc.freeze = lambda: started.update(sys.modules)  # the last step of the start
from proxy.__main__ import main
sys.exit(main())
"""
NEEDED: Final = {"numpy", "structlog", "uvloop"}
"""The libraries that every gateway imports."""
LATE: Final = {
    # for --capture, --check and `fetchgate top`; and for features that ask other brokers
    "proxy.capture.pcap",
    "proxy.capture.tap",
    "proxy.core.asking.asker",
    "proxy.core.asking.siblings",
    "proxy.server.preflight",
    "proxy.dashboard",
    # of Python: 8 MB together
    "decimal",
    "difflib",
    "email",
    "http.client",
    "http.server",
    "importlib.metadata",
    "tomllib",
    "urllib.request",
    "zipfile",
}
"""Modules that a gateway imports only if an option, another command or a mistake needs them."""


def imported(*options: str) -> tuple[set[str], int]:
    """Run a gateway until it has had a client and told its metrics.

    Return the modules that it has imported, and the number of its threads. No package but Python's own is
    imported after the start: an upgrade may have replaced its files, and a client would wait.
    """
    listen, admin = (f"127.0.0.1:{port}" for port in (free_ports(1), free_ports(1)))
    command = [sys.executable, "-c", _WATCHED, "proxy", "--bootstrap", "127.0.0.1:1"]
    process = subprocess.Popen(
        [*command, "--listen", listen, "--admin", admin, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("started" in line for line in process.stderr)
        host, _, port = listen.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(bytes.fromhex("0000000a00120000000000010000"))
            for page in ("metrics", "state"):
                urllib.request.urlopen(f"http://{admin}/{page}", timeout=30).close()
        threads = len(os.listdir(f"/proc/{process.pid}/task"))  # noqa: PTH208 - only their number counts
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    late, modules = told.splitlines()
    assert {name for name in late.split() if name.partition(".")[0] not in sys.stdlib_module_names} == set()
    return set(modules.split()), threads


def test_a_gateway_with_default_options_imports_little() -> None:
    modules, threads = imported()
    libraries = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"proxy"}
    libraries.discard("colorama")  # structlog imports it if it is there; here, the site of the docs brings it
    assert {name for name in libraries if "cython" not in name} == NEEDED  # uvloop's runtime has such names
    assert not modules & LATE
    assert threads == 1, "numpy's library for linear algebra has one for each CPU, if nobody stops it"


def test_what_is_imported_late_exists() -> None:
    assert all(find_spec(name) for name in LATE)


@pytest.mark.slow
def test_what_is_imported_late_is_there_when_an_option_needs_it(tmp_path: Path) -> None:
    modules, _ = imported("--capture", str(tmp_path))
    assert {"dpkt", "proxy.capture.tap"} <= modules
