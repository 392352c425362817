"""The gateway as its users run it: a process with options, an address, an admin endpoint and a log."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tools.kafka import reaper
from tools.kafka.ports import free_ports

START_TIMEOUT = 30.0
"""Seconds until /readyz must say so; half a second is usual."""

HIGHEST_NODE = 10
"""Brokers 0 to 10 have a port: the listen port and one for each of them follow each other."""


class GatewayProcess:
    """`fetchgate proxy` in front of a bootstrap address; `with` starts it and ends it.

    Args:
        bootstrap: address or addresses of the brokers.
        options: more of the command line.
        environment: variables on top of this process's own.
        ready: whether to wait for /readyz; without, start returns as soon as /livez responses.
    """

    def __init__(
        self,
        bootstrap: str,
        *options: str,
        environment: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> None:
        first = free_ports(HIGHEST_NODE + 3)
        self.host = "127.0.0.1"
        self.port = first
        self.admin = f"{self.host}:{first + HIGHEST_NODE + 2}"
        self.folder = Path(tempfile.mkdtemp(prefix="fetchgate-"))
        reaper.remove(self.folder)
        self._environment = {**os.environ, **(environment or {})}
        self._command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", bootstrap]
        self._command += ["--listen", self.address, "--admin", self.admin, *options]
        self._ready = ready
        self._files: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where clients connect to first."""
        return f"{self.host}:{self.port}"

    @property
    def ports(self) -> range:
        """Where clients connect: first, and for each broker."""
        return range(self.port, self.port + HIGHEST_NODE + 2)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._started().pid

    def address_of(self, node_id: int) -> str:
        """Where a broker is reached through the gateway."""
        return f"{self.host}:{self.port + 1 + node_id}"

    def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            RuntimeError: it left or was not ready in time; with its log.
        """
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._files,
            )
        reaper.watch(self.pid)
        page = "/readyz" if self._ready else "/livez"
        began = time.monotonic()
        while self._process.poll() is None and time.monotonic() - began < START_TIMEOUT:
            if self._status(page) == 200:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the gateway was not up (left with {self._process.poll()}):\n{self.log()}")

    def stop(self, *, timeout: float = 60.0) -> int:
        """End it with SIGTERM and give its exit code.

        Raises:
            subprocess.TimeoutExpired: it was still there after so many seconds.
        """
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL, 10)

    def close(self) -> None:
        """End it at once, when it still runs, and remove its log."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def reload(self) -> None:
        """Send SIGHUP."""
        self._started().send_signal(signal.SIGHUP)

    def log(self) -> str:
        """Give what it wrote so far."""
        return (self.folder / "log").read_text(errors="replace")

    def state(self) -> dict[str, Any]:
        """Give /state."""
        response: dict[str, Any] = json.loads(self._get("/state"))
        return response

    def totals(self, *, timeout: float = 15.0) -> dict[str, Any]:
        """Give what all connections counted, once the last of them is closed.

        Raises:
            RuntimeError: some are still open after so many seconds.
        """
        deadline = time.monotonic() + timeout
        while (state := self.state())["connections_open"]:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"connections are still open:\n{json.dumps(state['connections'], indent=1)}"
                )
            time.sleep(0.05)
        totals: dict[str, Any] = state["totals"]
        return totals

    def metrics(self) -> dict[str, float]:
        """Give /metrics by name and sorted labels: `fetchgate_fetches_total{kind="full",side="broker"}`."""
        found = {}
        for family in text_string_to_metric_families(self._get("/metrics")):
            for sample in family.samples:
                found[_key(sample.name, sample.labels)] = sample.value
        return found

    def metric(self, name: str, **labels: str) -> float:
        """Give one value; 0 when it was not counted yet."""
        return self.metrics().get(_key(name, labels), 0.0)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the gateway was not started")
        return self._process

    def _end(self, number: signal.Signals, timeout: float) -> int:
        process = self._started()
        process.send_signal(number)
        code = process.wait(timeout)
        reaper.forget(process.pid)
        return code

    def _status(self, page: str) -> int:
        try:
            self._get(page)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0
        return 200

    def _get(self, page: str) -> str:
        with urllib.request.urlopen(f"http://{self.admin}{page}", timeout=5) as response:
            text: bytes = response.read()
        return text.decode()


def _key(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name
