"""A process that works on records and logs each: `tools.group_member`, or a program in another language."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from tools.kafka import reaper
from tools.work_log import ASSIGNED, Entries, last, read, records

_LEAVE_SECONDS: Final = 30.0


class LoggedWorker:
    """A worker process, to whose command line its log is added. It ends when its stdin is closed."""

    def __init__(self, command: Sequence[str], log: Path, *options: str) -> None:
        self._command = [*command, str(log), *options]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.with_suffix(".stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=stderr, stderr=stderr, start_new_session=True
            )
        reaper.watch(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        process = self._started()
        if process.stdin is not None:
            process.stdin.close()

    @property
    def entries(self) -> Entries:
        """The entries in the worker's log so far."""
        if self._started().poll() not in {None, 0, -signal.SIGKILL}:
            raise RuntimeError(f"a consumer failed:\n{self._log.with_suffix('.stderr').read_text()}")
        return read(self._log)

    @property
    def done(self) -> int:
        """The number of records that the worker has handled."""
        return len(records(self.entries))

    @property
    def partitions(self) -> int | None:
        """The number of partitions (or parts of them) that the worker has. None before its assignment."""
        return last(self.entries, ASSIGNED)

    def go(self) -> None:
        """Let a member with `--gate` get records: write the line for which it waits to its stdin."""
        stdin = self._started().stdin
        if stdin is not None:
            stdin.write(b"go\n")
            stdin.flush()

    def leave(self) -> None:
        """Close the worker's stdin, so that the worker leaves its group and ends."""
        process = self._started()
        if process.stdin is not None:
            process.stdin.close()

    def wait(self) -> None:
        """Wait until the worker has ended."""
        process = self._started()
        try:
            process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self._command[:4]} does not end") from None
        _ = self.entries

    def kill(self) -> int:
        """Kill the worker. Return the time of the kill (monotonic, ns)."""
        process = self._started()
        at = time.monotonic_ns()
        process.kill()
        process.wait()
        reaper.forget(process.pid)
        return at

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("it was not started")
        return self._process


def group_member(
    address: str,
    topic: str,
    group: str,
    number: int,
    folder: Path,
    *,
    work_ms: float,
    gate: bool = False,
    entries: int,
) -> LoggedWorker:
    """Return a member, not started yet. With `gate`, it gets no records before `go`."""
    name = f"{group}.{number}"
    command = [sys.executable, "-m", "tools.group_member", address, topic, group, name]
    options = [f"--work={work_ms}", f"--entries={entries}", *(["--gate"] if gate else [])]
    return LoggedWorker(command, folder / name, *options)


def wait_steady(workers: Sequence[LoggedWorker], seconds: float, *, at_most: float) -> None:
    """Wait until workers are assigned partitions, and none got new ones for `seconds`."""
    deadline = time.monotonic() + at_most
    assigned: list[int] = []
    since = time.monotonic()
    while None in assigned or not assigned or time.monotonic() - since < seconds:
        now = [int((worker.entries["key"] == ASSIGNED).sum()) for worker in workers]
        if now != assigned or 0 in now or not any(worker.partitions for worker in workers):
            assigned, since = now, time.monotonic()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the members did not come to rest in {at_most:.0f} s")
        time.sleep(0.05)
