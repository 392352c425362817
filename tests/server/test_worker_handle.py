"""The supervisor learns that a worker has ended, and its exit code, without blocking the event loop."""

import asyncio
import subprocess
import sys
from typing import Any, Final

import pytest
import structlog

from proxy.server.process import Process
from proxy.server.worker_handle import WorkerHandle
from tests.shell import WAIT_SECONDS, config, until

_CLOSES_ITS_CHANNEL: Final = "import os, sys; os.close(int(sys.argv[1])); sys.exit(int(sys.stdin.readline()))"
"""A program that first closes the channel to the supervisor. Later it exits with the code that it reads from
stdin."""


def _start(monkeypatch: pytest.MonkeyPatch, ends: list[int | None]) -> WorkerHandle:
    """Start a process in place of a worker. It closes its channel first and ends later.

    Args:
        monkeypatch: the fixture of pytest.
        ends: the list to which the reported exit codes are added.
    """
    start = subprocess.Popen

    def instead(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        channel = command[command.index("proxy.server.worker") + 1]
        options["stdin"] = subprocess.PIPE
        return start([sys.executable, "-c", _CLOSES_ITS_CHANNEL, channel], **options)

    def received(_worker: WorkerHandle, name: str, code: int | None) -> None:
        assert name == "ended"
        ends.append(code)

    monkeypatch.setattr("proxy.server.worker_handle.subprocess.Popen", instead)
    process = Process.of(config(bootstrap="localhost:9"), asyncio.get_running_loop(), structlog.get_logger())
    return WorkerHandle(process, 1, 0, received, lambda: None)


async def test_a_worker_that_exits_late_is_reported_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.worker_handle.EXIT_SECONDS", WAIT_SECONDS)
    ends: list[int | None] = []

    worker = _start(monkeypatch, ends)
    worker.up = True
    await worker.begin()
    try:
        assert await worker.ask("status", within=WAIT_SECONDS) is None
        assert not worker.silent, "its channel is closed"
        assert not worker.up
        assert not ends, "it has not exited yet"
        worker._process.communicate(b"3\n")
        await until(lambda: ends)
        assert ends == [3]
    finally:
        worker.end()


async def test_a_worker_that_closes_its_channel_and_stays_is_reported_without_a_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.server.worker_handle.EXIT_SECONDS", 0.02)
    ends: list[int | None] = []

    worker = _start(monkeypatch, ends)
    await worker.begin()
    try:
        await until(lambda: ends)
        assert ends == [None]
    finally:
        worker.end()
        assert worker._process.stdin is not None
        worker._process.stdin.close()
