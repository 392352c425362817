"""`fetchgate proxy` as its users run it, for the demo: a process, an address, and what it counted."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from tools.kafka import reaper
from tools.kafka.ports import free_ports

START_TIMEOUT = 30.0
"""Seconds until /readyz must say so; half a second is usual."""
STOP_TIMEOUT = 40.0
HIGHEST_NODE = 2
"""Brokers 0 to 2 have a port behind the listen port."""


class Gateway:
    """A running gateway; `with` starts it and ends it.

    Args:
        bootstrap: address or addresses of the brokers.
        options: more of the command line.
    """

    def __init__(self, bootstrap: str, *options: str) -> None:
        first = free_ports(HIGHEST_NODE + 3)
        self.address = f"127.0.0.1:{first}"
        self.ports = range(first, first + HIGHEST_NODE + 2)
        """Those at which clients connect."""
        self.admin = f"127.0.0.1:{first + HIGHEST_NODE + 2}"
        self._folder = Path(tempfile.mkdtemp(prefix="fetchgate-"))
        reaper.remove(self._folder)
        command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", bootstrap]
        self._command = [*command, "--listen", self.address, "--admin", self.admin, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def state(self) -> dict[str, Any]:
        """Give /state.

        Raises:
            OSError: the gateway does not answer.
        """
        with urllib.request.urlopen(f"http://{self.admin}/state", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

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

    def stop(self) -> None:
        """End it, and wait until it has."""
        if (process := self._process) is not None:
            self._process = None
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reaper.forget(process.pid)

    def log(self) -> str:
        """Give what it wrote so far."""
        return (self._folder / "log").read_text(errors="replace")

    def _start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            RuntimeError: it left or was not ready in time; with its log.
        """
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._process = process
        reaper.watch(process.pid)
        deadline = time.monotonic() + START_TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            if self._ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"the gateway was not ready (left with {process.poll()}):\n{self.log()}")

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.admin}/readyz", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _end(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
