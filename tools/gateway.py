"""The gateway as users run it: a process with options, an address, an admin endpoint and a log."""

import copy
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
from collections import deque
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from proxy.telemetry.admin import METRICS_AT_ONCE, METRICS_SECONDS
from tools.kafka import reaper
from tools.kafka.ports import free_ports

START_TIMEOUT = 120.0
"""The time limit for /readyz to report ready. Half a second is usual; on a busy machine, half a minute."""

ADMIN_TIMEOUT = 30.0
"""The time limit for a response of the admin endpoint. On a busy machine, 2,000 clients take some seconds."""

HIGHEST_NODE = 10
"""The highest node id. Each of the brokers 0 to 10 has a port at the gateway, after the listen port."""


class GatewayProcess:
    """`fetchgate proxy` as a process. Unless `ready`, the start waits for /livez, not /readyz."""

    def __init__(
        self, bootstrap: str, *options: str, environment: Mapping[str, str] | None = None, ready: bool = True
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
        self._read = deque([-inf] * METRICS_AT_ONCE, maxlen=METRICS_AT_ONCE)
        """The times of the last reads of /metrics."""
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

    def successor(self) -> Self:
        """Return a gateway to take over at the same addresses, but with an admin endpoint of its own."""
        new = copy.copy(self)
        new.admin = f"{self.host}:{free_ports()}"
        new.folder = Path(tempfile.mkdtemp(prefix="fetchgate-"))
        reaper.remove(new.folder)
        new._command = [new.admin if word == self.admin else word for word in self._command]  # noqa: SLF001 - a copy
        new._process = None  # noqa: SLF001
        return new

    @property
    def address(self) -> str:
        """The bootstrap address for clients."""
        return f"{self.host}:{self.port}"

    @property
    def ports(self) -> range:
        """The ports for clients: the listen port, and one for each broker."""
        return range(self.port, self.port + HIGHEST_NODE + 2)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started().pid

    def address_of(self, node_id: int) -> str:
        """Return the gateway's address for this broker."""
        return f"{self.host}:{self.port + 1 + node_id}"

    def start(self) -> None:
        """Start the gateway and wait until it is ready."""
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
        raise RuntimeError(f"the gateway did not start (exit code {self._process.poll()}):\n{self.log()}")

    def stop(self, *, timeout: float = 60.0) -> int:
        """Stop with SIGTERM and return the exit code. TimeoutExpired: it still ran after `timeout` s."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """Kill the gateway with SIGKILL."""
        self._end(signal.SIGKILL, 10)

    def close(self) -> None:
        """Kill the gateway if it is running, and remove its log."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def reload(self) -> None:
        """Send SIGHUP, so that the gateway reloads its options."""
        self._started().send_signal(signal.SIGHUP)

    def log(self) -> str:
        """Return the output of the gateway process so far."""
        return (self.folder / "log").read_text(errors="replace")

    def state(self) -> dict[str, Any]:
        """Return the contents of the gateway's /state."""
        response: dict[str, Any] = json.loads(self._get("/state"))
        return response

    def outstanding(self) -> int:
        """Return how many requests have no response yet."""
        state = self.state()
        return sum(one["outstanding_requests"] for one in (state["bootstrap"], *state["brokers"]))

    def totals(self, *, timeout: float = 60.0) -> dict[str, Any]:
        """Return the totals when all connections are closed, which takes at most `timeout` seconds."""
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
        """Return /metrics by name and sorted labels: `fetchgate_fetches_total{kind="full",side="broker"}`."""
        found = {}
        # Beyond this rate, the gateway would respond with an earlier text.
        time.sleep(max(self._read[0] + METRICS_SECONDS - time.monotonic(), 0))
        text = self._get("/metrics")
        self._read.append(time.monotonic())
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[_key(sample.name, sample.labels)] = sample.value
        return found

    def metric(self, name: str, **labels: str) -> float:
        """Return one value of /metrics; 0 if it was not counted yet."""
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
        with urllib.request.urlopen(f"http://{self.admin}{page}", timeout=ADMIN_TIMEOUT) as response:
            text: bytes = response.read()
        return text.decode()


def _key(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name
