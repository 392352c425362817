"""Targets `channel` and `admin`: messages between a gateway's processes, and its admin endpoint.

The two ends of a channel are the same program, so pickled data is trusted there. An input determines the
messages, their order, and where reads and packets cut them. Bytes of the input are never unpickled.
"""

import asyncio
import pickle
import socket
import struct
from contextlib import suppress
from functools import cache
from typing import Any, Final, cast
from unittest.mock import patch

import structlog

from proxy.config import load
from proxy.server.gateway import Gateway
from proxy.server.ipc import Channel, HandedOver, Question, receive_connection, respond, send_connection
from proxy.server.process import Process
from proxy.telemetry import logs
from proxy.telemetry.admin import AdminEndpoint
from proxy.telemetry.state import Described
from proxy.telemetry.status import Account, Status
from tools.fuzz.target import FuzzTarget

# channel

_MOST_MESSAGES: Final = 64
_FLAGS: Final = {"bootstrap": "127.0.0.1:1", "listen": "127.0.0.1:0"}


def _channel(data: bytes) -> None:
    """Send messages through a channel, and read their bytes in pieces.

    The input has two bytes for `_packets`, and then the messages. Each message begins with one byte for its
    size, and one byte for the size of a piece.
    """
    if len(data) < 3:
        return
    _packets(data)
    sent: list[Any] = []
    stream, cuts = b"", []
    at = 2
    while at + 2 <= len(data) and len(sent) < _MOST_MESSAGES:
        size, cut = data[at], data[at + 1]
        content = data[at + 2 : at + 2 + size]
        at += 2 + size
        message = (f"name{cut}", *_arguments(content))
        pickled = pickle.dumps(message)
        sent.append(message)
        stream += struct.pack("<I", len(pickled)) + pickled
        cuts.append(1 + cut)
    got: list[Any] = []
    channel = Channel(lambda *message: got.append(message), lambda: None)
    begin = number = 0
    while begin < len(stream):
        size = cuts[number % len(cuts)]
        channel.data_received(stream[begin : begin + size])
        begin += size
        number += 1
    if got != sent:
        raise AssertionError(f"{sent} was sent, {got} was received")
    if channel._buffer:  # noqa: SLF001 - nothing may be kept
        raise AssertionError("bytes of whole messages are kept")
    channel.data_received(stream[: data[0]])
    channel.connection_lost(None)
    channel.send("nobody", data)
    channel.close()


def _arguments(content: bytes) -> list[Any]:
    kinds = content[:1] and content[0] % 6
    match kinds:
        case 0:
            return []
        case 1:
            return [content]
        case 2:
            return [dict.fromkeys(content)]
        case 3:
            return [list(content), content[1:]]
        case 4:
            return [int.from_bytes(content), None]
        case _:
            return [content.decode("latin-1")]


@cache
def _pairs() -> tuple[tuple[socket.socket, socket.socket], ...]:
    pairs = tuple(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
    return pairs


def _packets(data: bytes) -> None:
    """Send requests whose responses come late, and connections with and without a file descriptor."""
    (asks, responds), (sends, receives) = _pairs()
    question = Question(asks)
    asks.setblocking(False)
    for late in range(data[0] & 3):
        responds.send(pickle.dumps((-late, data)))
    number = question._number + 1  # noqa: SLF001 - of the question that follows
    responds.send(pickle.dumps((number, data)))
    if question("what", data) != data:
        raise AssertionError("a late response was taken for the response")
    respond(responds, lambda *_: data[1])
    if pickle.loads(asks.recv(65_536)) != (number, data[1]):  # noqa: S301 - of this function
        raise AssertionError("another response than the one found")
    node_id = int.from_bytes(data[:2], signed=True) if data[0] & 4 else None
    handed = None
    if data[0] & 8:
        name = data.decode("latin-1")[:255]
        handed = HandedOver(
            worker=data[1],
            client_address=name,
            client_subject=name,
            server_name=name,
            reached_at=name,
            broker_address=None,
        )
    send_connection(sends, asks, node_id, handed)
    received = receive_connection(receives)
    if received is None or received.client is None:
        raise AssertionError(f"{received} was received")
    received.client.close()
    if (received.node_id, received.handed) != (node_id, handed):
        raise AssertionError(f"{received} was received")
    sends.send(struct.pack("<q", data[1]))  # its descriptor was lost
    if receive_connection(receives) != (data[1], None, None):
        raise AssertionError("a connection whose descriptor was lost")
    with suppress(BlockingIOError):
        receive_connection(receives)
        raise AssertionError("a connection that nobody sent")


def _channel_seeds() -> list[bytes]:
    return [
        bytes([number, number * 7])
        + b"".join(
            bytes([size, cut]) + bytes([kind]) * size for kind, size in enumerate((0, 3, 30, 200, 8, 1))
        )
        for number in range(8)
        for cut in (0, 3, 255)
    ]


# admin


class _Still:
    """A gateway whose state does not change."""

    def __init__(self, status: Status, account: Account) -> None:
        self._status, self._account = status, account

    async def collect_status(self) -> Status:
        return self._status

    async def collect_account(self) -> Account:
        return self._account

    async def collect_connections(self, most: int) -> list[Described]:
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
        still = _Still(await gate.collect_status(), await gate.collect_account())
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
        name="channel", run=_channel, seeds=_channel_seeds, modules=("proxy.server.ipc",), memory=8 << 20
    ),
    FuzzTarget(
        name="admin",
        run=_admin,
        seeds=_admin_seeds,
        modules=("proxy.telemetry.admin", "proxy.telemetry.state"),
        most_bytes=10_000,
    ),
)
