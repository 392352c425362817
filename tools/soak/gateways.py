"""The gateway of a soak test, the gateways that replace it, and the resources of each."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import psutil

from tools.gateway import GatewayProcess
from tools.kafka import reaper

DRAIN_SECONDS: Final = 10
MOST_BYTES: Final = 512 << 20
"""The maximum memory of a gateway. It is the limit in the deployment files."""
SPARE_DESCRIPTORS: Final = 12
"""How many more descriptors than at its start a gateway may have at the end, for its admin endpoint."""
QUIET_SECONDS: Final = 60.0
"""The time in seconds for which a gateway may still have connections after all its clients have left."""
TROUBLE: Final = re.compile(r"defect|Traceback|MemoryError|never retrieved")


@dataclass(frozen=True, slots=True)
class Used:
    """The resources that a gateway uses."""

    memory: int
    descriptors: int

    def __str__(self) -> str:
        return f"{self.memory / 1e6:.0f} MB, {self.descriptors} descriptors"


@dataclass(slots=True)
class Gateways:
    """The present gateway, with its options in a file. `near` enters its namespace."""

    bootstrap: str
    near: Callable[[], AbstractContextManager[None]]
    most: int = 0
    problems: list[str] = field(default_factory=list)
    first: Used = Used(0, 0)
    takeovers: int = 0
    slowest: float = 0.0
    saved: int = 0
    fetches: dict[str, int] = field(default_factory=dict)
    _current: GatewayProcess | None = None
    _folder: Path = Path()

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="soak-"))
        reaper.remove(self._folder)
        self.configure()
        file, state = str(self._folder / "gate.toml"), str(self._folder / "state.json")
        options = ("--reuse-port", "on", "--config", file, "--state", state)
        with self.near():
            gateway = GatewayProcess(self.bootstrap, *options, "--drain-timeout", str(DRAIN_SECONDS))
            gateway.start()
        self._current = gateway
        self.first = self.used()
        return self

    def __exit__(self, *_: object) -> None:
        if self._current is not None:
            self._current.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def current(self) -> GatewayProcess:
        """The gateway that runs now."""
        if self._current is None:
            raise RuntimeError("no gateway was started")
        return self._current

    @property
    def address(self) -> str:
        """The bootstrap address for clients."""
        return self.current.address

    def configure(self, **options: object) -> None:
        """Write the file with the options that can be changed at run time."""
        lines = {"max_sessions": 500, "sessions": True} | options
        words = {True: "true", False: "false"}
        text = "".join(
            f"{name} = {words[value] if isinstance(value, bool) else value}\n"
            for name, value in lines.items()
        )
        (self._folder / "gate.toml").write_text(text)

    def reload(self, **options: object) -> None:
        """Change options that apply at run time. The gateway reads them when it gets SIGHUP."""
        self.configure(**options)
        self.current.reload()

    def take_over(self) -> None:
        """Start a new gateway on the same ports, and end the old one."""
        old = self.current
        new = old.successor()
        with self.near():
            try:
                began = time.monotonic()
                new.start()
                self.slowest = max(self.slowest, time.monotonic() - began)
            except RuntimeError as error:
                self.problems.append(f"a new gateway did not take over: {error}")
                new.close()
                return
            self._current = new
            self.takeovers += 1
            self.first = self.used()
            self._leave(old)

    def finish(self) -> Used:
        """End the last gateway when all clients have left. Return what it used then."""
        self.quiet()
        with self.near():
            last = self.used()
            self._leave(self.current)
        if last.descriptors > self.first.descriptors + SPARE_DESCRIPTORS:
            self.problems.append(f"the gateway kept descriptors: {self.first} before, {last} after")
        if self.most > MOST_BYTES:
            self.problems.append(f"the gateway used {self.most / 1e6:.0f} MB")
        return last

    def quiet(self) -> None:
        """Wait until no client is connected. If some still are after `QUIET_SECONDS`, that is a problem."""
        deadline = time.monotonic() + QUIET_SECONDS
        while (state := self.state()).get("connections_open") and time.monotonic() < deadline:
            time.sleep(0.5)
        if left := state.get("connections"):
            who = sorted(link["client_id"] or "nobody yet" for link in left)
            self.problems.append(f"the gateway has connections although all clients have left: {who}")

    def state(self) -> dict[str, Any]:
        """Return /state of the running gateway. The result is empty if the gateway does not respond."""
        with self.near(), suppress(OSError):
            return self.current.state()
        return {}

    def used(self) -> Used:
        """Return the resources that the running gateway uses."""
        memory = descriptors = 0
        with suppress(psutil.Error):
            process = psutil.Process(self.current.pid)
            memory, descriptors = process.memory_info().rss, process.num_fds()
        self.most = max(self.most, memory)
        return Used(memory, descriptors)

    def _leave(self, gateway: GatewayProcess) -> None:
        """End a gateway with SIGTERM. Check its log, and add its counts to the counts so far."""
        with suppress(OSError):
            totals = gateway.state()["totals"]
            self.saved += totals["saved_bytes"]
            for side in ("client", "broker"):
                counts = totals[side]["fetches"]
                self.fetches[side] = self.fetches.get(side, 0) + sum(counts.values())
        code = gateway.stop(timeout=DRAIN_SECONDS + 30)
        if code:
            self.problems.append(f"the gateway ended with {code}")
        lines = [line for line in gateway.log().splitlines() if TROUBLE.search(line)]
        if lines:
            self.problems.append(f"the gateway logged {len(lines)} lines like: {lines[0]}")
            kept = Path(tempfile.gettempdir()) / f"soak-gateway-{os.getpid()}-{self.takeovers}.log"
            kept.write_text(gateway.log())
            self.problems.append(f"its log is in {kept}")
        gateway.close()
