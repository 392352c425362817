"""Target `admin`: the admin endpoint of a gateway."""

import asyncio
from functools import cache
from typing import Final, cast
from unittest.mock import patch

import structlog

from proxy.command.config import load
from proxy.server.gateway import Gateway
from proxy.server.process import Process
from proxy.telemetry import logs
from proxy.telemetry.admin import AdminEndpoint
from proxy.telemetry.state import Described
from proxy.telemetry.status import Account, Status
from tools.fuzz.target import FuzzTarget

_FLAGS: Final = {"bootstrap": "127.0.0.1:1", "listen": "127.0.0.1:0"}


class _Still:
    """A gateway whose state does not change."""

    def __init__(self, status: Status, account: Account) -> None:
        self._status, self._account = status, account

    def status(self) -> Status:
        return self._status

    def account(self) -> Account:
        return self._account

    async def connections(self, most: int) -> list[Described]:
        return [(1, '{"connection": 1}')][:most]


class _ResponseWriter:
    """The writer that gets the response of the admin endpoint."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.transport = self

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class _DefectError(Exception):
    """The endpoint has logged a defect of its own."""


class _RaisingLog:
    """A logger that raises the errors which the admin endpoint logs."""

    def error(self, event: str, *, exc_info: BaseException) -> None:
        raise _DefectError(event) from exc_info


@cache
def _stage() -> tuple[asyncio.AbstractEventLoop, AdminEndpoint]:
    loop = asyncio.new_event_loop()

    async def begin() -> AdminEndpoint:
        gate = Gateway(Process.of(load(_FLAGS, {}, None), loop, structlog.get_logger()))
        gate.open()
        still = _Still(gate.status(), gate.account())
        gate.close()
        return AdminEndpoint(still)

    return loop, loop.run_until_complete(begin())


def _admin(data: bytes) -> None:
    """Send the input to the admin endpoint in pieces of a length that its first byte gives."""
    loop, admin = _stage()
    with patch.object(logs, "logger", _RaisingLog):  # only for this input: other tests run in this process
        loop.run_until_complete(_ask(admin, data[:1], data[1:]))


async def _ask(admin: AdminEndpoint, cut: bytes, data: bytes) -> None:
    reader, writer = asyncio.StreamReader(limit=8192), _ResponseWriter()
    step = max(1, 16 * sum(cut))
    serving = asyncio.ensure_future(admin._client(reader, cast("asyncio.StreamWriter", writer)))  # noqa: SLF001
    for at in range(0, len(data), step):
        reader.feed_data(data[at : at + step])
        if at < 4 * step:
            await asyncio.sleep(0)
    reader.feed_eof()
    await serving
    if not writer.closed or admin._open:  # noqa: SLF001 - nothing may be kept
        raise AssertionError("a connection stays open")
    if b"\r\n\r\n" in data[:8000] and not writer.written.startswith(b"HTTP/1.1 "):
        raise AssertionError("no response")
    if writer.written:
        head, _, body = bytes(writer.written).partition(b"\r\n\r\n")
        if data.split(b"\r\n")[0].split(b" ")[0] == b"HEAD" and not head.startswith(b"HTTP/1.1 431 "):
            if body:
                raise AssertionError("a body for HEAD")
        elif f"\r\nContent-Length: {len(body)}\r\n".encode() not in head:
            raise AssertionError("a response of another length")


def _admin_seeds() -> list[bytes]:
    lines = [
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        for method, host in (
            ("GET", "127.0.0.1"),
            ("GET", "x"),
            ("POST", "[::1]:9464"),
            ("HEAD", "localhost"),
        )
        for path in (
            "/livez",
            "/readyz",
            "/metrics?x=1",
            "/state",
            "/state?connections=3",
            "/state?connections=",
            "*",
        )
    ]
    return [bytes([cut]) + line for cut in (0, 1, 255) for line in lines]


TARGETS: Final = (
    FuzzTarget(
        name="admin",
        run=_admin,
        seeds=_admin_seeds,
        modules=("proxy.telemetry.admin", "proxy.telemetry.state"),
        most_bytes=10_000,
    ),
)
