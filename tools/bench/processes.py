"""The processes of a measurement: proxies, whose CPU use is measured, and loads, which print results."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from sysconfig import get_path
from typing import IO, Any, Final, Self

import psutil

from tools import debian
from tools.bench.figures import HAPROXY
from tools.kafka import reaper
from tools.kafka.ports import free_ports

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
"""The time limit for a process, or a load that waits for a broker, to be ready."""


_ROOT: Final = Path(__file__).parents[2]
_CPU_CLOCK: Final = 2
"""The number of the kernel's clock for a process's CPU time (clock_getcpuclockid(3))."""


@dataclass(frozen=True, slots=True)
class Times:
    """CPU seconds of a process and its children, in steps of clock ticks."""

    user: float
    system: float

    def kernel_since(self, before: "Times") -> float:
        """Return the share of kernel time in the CPU time since `before`, in percent."""
        system = self.system - before.system
        return 100 * system / max(self.user - before.user + system, 1e-9)


class ProcessMeter:
    """Measures CPU and memory of one process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @property
    def cpu(self) -> float:
        """CPU seconds of the process so far, user and system together."""
        return _cpu(self._process)

    @property
    def times(self) -> Times:
        """The CPU seconds of process and children in coarse steps: use them over several seconds only."""
        family = [each.cpu_times() for each in (self._process, *self._process.children(recursive=True))]
        return Times(sum(each.user for each in family), sum(each.system for each in family))

    @property
    def resident(self) -> int:
        """The resident memory of the process now, in bytes."""
        return int(self._process.memory_info().rss)

    @property
    def peak(self) -> int:
        """The most resident memory that the process has had so far, in bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    @property
    def buffered(self) -> int | None:
        """The bytes that the system has buffered for the sockets of the process. None if `ss` is missing."""
        if shutil.which("ss") is None:
            return None
        command = ["ss", "-tmpnH"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        mine = f"pid={self._process.pid},"
        own = [after for line, after in pairwise([*lines, ""]) if mine in line]
        return sum(int(size) for line in own for size in re.findall(r"\b[rw](\d+)", line))

    @property
    def own(self) -> int:
        """The resident memory without the pages of files, in bytes. Gateways of a machine share those."""
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)


def _cpu(process: psutil.Process) -> float:
    """Return a process's CPU seconds by its clock, to the nanosecond: `/proc` has steps of 10 ms."""
    return time.clock_gettime(~process.pid << 3 | _CPU_CLOCK)


class Proxy:
    """A process that listens. Use it with `with`: the process ends with the body."""

    def __init__(self, command: Sequence[str], port: int, host: str = HOST) -> None:
        self.port = port
        self._host = host
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        reaper.watch(self._process.pid)
        self.meter = ProcessMeter(self._process.pid)
        if not self._listens():
            text = self.log()
            self.close()
            raise RuntimeError(f"nothing listens on {self.address}:\n{text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"{self._host}:{self.port}"

    def close(self) -> None:
        """End the process with SIGTERM, and after a while with SIGKILL."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        reaper.forget(self._process.pid)
        self._log.close()

    def log(self) -> str:
        """Return the output of the process."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _listens(self) -> bool:
        """Wait until the process listens. Return False if it has ended or takes too long."""
        until = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            try:
                socket.create_connection((self._host, self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return True
        return False


class BenchGateway(Proxy):
    """`fetchgate proxy` as users run it. `node_id` is the highest id of a broker."""

    def __init__(self, bootstrap: str, *options: str, node_id: int = 1) -> None:
        port = free_ports(node_id + 3)
        self._admin = f"{HOST}:{port + node_id + 2}"
        # As where it is installed: what Python imports at its start in a development environment takes 3 MB.
        path = f"PYTHONPATH={_ROOT}:{get_path('purelib')}"
        command = ["env", path, sys.executable, "-S", "-m", "proxy", "proxy", "--bootstrap", bootstrap]
        command += ["--listen", f"{HOST}:{port}", "--admin", self._admin, *options]
        super().__init__(command, port)
        self.node_port = port + 1 + node_id

    def ready(self) -> Self:
        """Wait until the gateway is ready."""
        until = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if time.monotonic() > until:
                raise RuntimeError(f"the gateway is not ready:\n{self.log()}")
            time.sleep(0.05)
        return self

    def _is_ready(self) -> bool:
        try:
            return bool(self.state()["state"] == "ready")
        except OSError:  # clients' listeners open shortly before the admin endpoint
            return False

    def state(self) -> dict[str, Any]:
        """Return the gateway's state, as `/state` gives it."""
        with urllib.request.urlopen(f"http://{self._admin}/state", timeout=10) as response:
            document: dict[str, Any] = json.load(response)
        return document


class Load:
    """A load program: it prints a line when ready, and a JSON object when done or stdin is closed."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        reaper.watch(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        reaper.forget(self._process.pid)

    def ready(self) -> Self:
        """Wait until the load has written that it is ready."""
        if self._process.stdout is None or not self._process.stdout.readline():
            raise RuntimeError(f"{self._process.args!r} ended before it was ready")
        return self

    def go(self) -> None:
        """Start the load, or continue it, if the load waits for this call."""
        if self._process.stdin is not None:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def pause(self) -> dict[str, Any]:
        """Pause the load until the next `go`. Return its result since the last one."""
        self.go()
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait until the load is done. Return its result."""
        if self._process.stdout is None:
            raise RuntimeError("no pipe")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended without a result")
        document: dict[str, Any] = json.loads(line)
        return document

    def finish(self) -> dict[str, Any]:
        """Stop the load, and return its result."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None  # communicate() would flush it
        return self.result()


def haproxy_program() -> str:
    """Return the path of haproxy, which is downloaded if it is missing."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(debian.programs())])
    if (program := shutil.which(HAPROXY, path=path)) is not None:
        return program
    failed = {HAPROXY: ""} if debian.link_installed(HAPROXY) else debian.fetch([HAPROXY])
    if (program := shutil.which(HAPROXY, path=path)) is None:
        raise RuntimeError(f"haproxy is measured beside the gateway; please install it: {failed[HAPROXY]}")
    return program


def haproxy_command(program: str, folder: Path, port: int, target: int, tls: str = "") -> list[str]:
    """Write haproxy's configuration, with `tls` toward the broker. Return its command line."""
    config = folder / f"haproxy-{port}.cfg"
    config.write_text(
        "global\n  maxconn 4000\n  nbthread 1\n"
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
        f"listen kafka\n  bind {HOST}:{port}\n  server broker {HOST}:{target}{tls}\n"
    )
    return [program, "-f", str(config), "-db"]
