"""The processes of a measurement: proxies, whose CPU is counted, and loads, which tell what they saw."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

import psutil

from tools.kafka import reaper
from tools.kafka.ports import free_ports

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
"""Within which a process must be there; loads that wait for a broker included."""


class Meter:
    """CPU and memory of one process.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @property
    def cpu(self) -> float:
        """CPU seconds so far, user and system."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def by_process(self) -> dict[int, float]:
        """CPU seconds so far of the process and of those that it started, by number."""
        family = [self._process, *self._process.children(recursive=True)]
        return {each.pid: sum(each.cpu_times()[:2]) for each in family}

    @property
    def resident(self) -> int:
        """Resident bytes now."""
        return int(self._process.memory_info().rss)


class Proxy:
    """A process that listens; `with` ends it.

    Args:
        command: what to run.
        port: where it will listen.
        host: the IP of that.

    Raises:
        RuntimeError: it did not listen in time; with what it wrote.
    """

    def __init__(self, command: Sequence[str], port: int, host: str = HOST) -> None:
        self.port = port
        self._host = host
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        reaper.watch(self._process.pid)
        self.meter = Meter(self._process.pid)
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
        """Where clients go."""
        return f"{self._host}:{self.port}"

    def close(self) -> None:
        """End it: SIGTERM, and SIGKILL where that does not do."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        reaper.forget(self._process.pid)
        self._log.close()

    def end(self) -> float:
        """Send SIGTERM; return the seconds until it has left."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(START_SECONDS)
        return time.monotonic() - began

    def log(self) -> str:
        """Give what it wrote."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _listens(self) -> bool:
        """Wait until it does; False when it ended or took too long."""
        until = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            try:
                socket.create_connection((self._host, self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return True
        return False


class Gateway(Proxy):
    """`fetchgate proxy`, as its users start it.

    Args:
        bootstrap: the broker's address.
        options: more of the command line.
        node_id: the highest id of a broker behind it.
    """

    def __init__(self, bootstrap: str, *options: str, node_id: int = 1) -> None:
        port = free_ports(node_id + 3)
        self._admin = f"{HOST}:{port + node_id + 2}"
        command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", bootstrap]
        command += ["--listen", f"{HOST}:{port}", "--admin", self._admin, *options]
        super().__init__(command, port)
        self.node_port = port + 1 + node_id
        """Where that broker is reached."""

    def ready(self) -> Self:
        """Wait until it says that it serves, with all of its processes.

        Raises:
            RuntimeError: it did not come to that; with what it wrote.
        """
        until = time.monotonic() + START_SECONDS
        while self.state()["state"] != "ready":
            if time.monotonic() > until:
                raise RuntimeError(f"the gateway is not ready:\n{self.log()}")
            time.sleep(0.05)
        return self

    def state(self) -> dict[str, Any]:
        """Give /state."""
        with urllib.request.urlopen(f"http://{self._admin}/state", timeout=10) as response:
            document: dict[str, Any] = json.load(response)
        return document


class Load:
    """A load program (`tools.bench.load`) or another module that speaks as it does.

    It writes a line when it is set up and, after its stdin was closed or it is done, one JSON object.

    Args:
        arguments: module and its arguments.
    """

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
        """Wait for its first line.

        Raises:
            RuntimeError: it ended without.
        """
        if self._process.stdout is None or not self._process.stdout.readline():
            raise RuntimeError(f"{self._process.args!r} ended before it was ready")
        return self

    def go(self) -> None:
        """Have it begin, where it waits for that."""
        if self._process.stdin is not None:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def rest(self) -> dict[str, Any]:
        """Have it pause until it is to go on; give what it tells of the time since it began."""
        self.go()
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait until it is done by itself; give what it tells.

        Raises:
            RuntimeError: it told nothing.
        """
        if self._process.stdout is None:
            raise RuntimeError("no pipe")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended without a result")
        document: dict[str, Any] = json.loads(line)
        return document

    def finish(self) -> dict[str, Any]:
        """Tell it to end; give what it tells."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None  # communicate() would flush it
        return self.result()


def haproxy_command(program: str, folder: Path, port: int, target: int, tls: str = "") -> list[str]:
    """Write haproxy's configuration for TCP on one thread and give the command.

    Args:
        program: haproxy.
        folder: for the configuration.
        port: where it listens, in plain text.
        target: the broker's port.
        tls: its words for TLS toward the broker.
    """
    config = folder / f"haproxy-{port}.cfg"
    config.write_text(
        "global\n  maxconn 4000\n  nbthread 1\n"
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
        f"listen kafka\n  bind {HOST}:{port}\n  server broker {HOST}:{target}{tls}\n"
    )
    return [program, "-f", str(config), "-db"]
