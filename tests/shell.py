"""Shared helpers for tests with sockets.

They are a gateway in this process, a stub broker, and a core that only forwards bytes.
"""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self, TypeVar, cast

import pytest
import structlog
import uvloop

from proxy.command.config import Config, load
from proxy.core.connection import Connection
from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import Event, Fault, SessionClosed, Tally
from proxy.core.fast_path import FastPath
from proxy.core.histograms import Measured
from proxy.net import bootstrap, resolve
from proxy.net.link import Link
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from proxy.server.process import Process
from proxy.server.registry import BrokerRegistry
from tools.kafka.ports import free_ports

_Running = TypeVar("_Running")
WAIT_SECONDS = 60.0
"""The time limit of a test step, in seconds. It is long because the machine may be very busy: a process then
takes half a minute to start."""
BROKERS = 12
"""Number of brokers. The ports for node ids below this number are free."""
CHUNK = 65_536
BOTH_LOOPS = pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])


def run(work: Coroutine[Any, Any, None], *, plain: bool = False) -> None:
    """Run a test on uvloop. If `plain` is true, run it on asyncio's own event loop."""
    factory = asyncio.new_event_loop if plain else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(work, 4 * WAIT_SECONDS))


def config(**options: str) -> Config:
    """Return options for a gateway on a free port. The next ports are also free, for the brokers.

    Environment variables are not read.
    """
    return load({"listen": f"127.0.0.1:{free_ports(BROKERS + 1)}", "admin": "off"} | options, {}, None)


def request(api_key: int, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    """Write a request with header v1 and the client id `t`."""
    message = struct.pack(">hhih", api_key, version, correlation_id, 1) + b"t" + body
    return struct.pack(">i", len(message)) + message


def response(correlation_id: int, body: bytes) -> bytes:
    """Write a response with header v0."""
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def api_versions(*ranges: tuple[int, int, int], error: int = 0) -> bytes:
    """Encode the body of an ApiVersions v0 response.

    Each entry is an API key with its lowest and highest version.
    """
    return struct.pack(">hi", error, len(ranges)) + b"".join(struct.pack(">hhh", *entry) for entry in ranges)


def metadata(*brokers: tuple[int, str, int], racks: dict[int, str] | None = None) -> bytes:
    """Write the body of a Metadata v1 response without topics.

    Each broker is a node id, a host and a port. Brokers that are not in `racks` have no rack.
    """
    racks = racks or {}
    entries = [
        struct.pack(">ih", node_id, len(host))
        + host.encode()
        + struct.pack(">ih", port, len(racks[node_id]) if node_id in racks else -1)
        + racks.get(node_id, "").encode()
        for node_id, host, port in brokers
    ]
    return struct.pack(">i", len(entries)) + b"".join(entries) + struct.pack(">ii", 1, 0)


async def frame(reader: asyncio.StreamReader) -> bytes:
    """Read one frame, and return it without its length field."""
    size = int.from_bytes(await reader.readexactly(4))
    return await reader.readexactly(size)


async def asks_until(told: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Request metadata until the response is `told`.

    On a busy machine the gateway may answer the first request too early, with other content.
    """
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
            if await frame(reader) == told:
                return
            await asyncio.sleep(0.05)


def expire_once_connected(
    monkeypatch: pytest.MonkeyPatch, reached: Callable[[], object] = lambda: True
) -> None:
    """Let a bootstrap request time out as soon as it has connected and `reached` returns true.

    A short timeout would not work, because connecting may take longer on a busy machine.
    """
    limits: list[asyncio.Timeout] = []
    tasks: set[asyncio.Task[None]] = set()
    timeout, try_each = asyncio.timeout, resolve.try_each

    def limit(delay: float | None) -> asyncio.Timeout:
        made = timeout(delay)
        if delay == bootstrap.ASK_SECONDS:
            limits.append(made)
        return made

    async def connect(*arguments: Any) -> Any:
        of_ask = limits[-1]  # `try_each` has limits of its own
        connected = await try_each(*arguments)
        tasks.add(asyncio.create_task(expire(of_ask)))
        return connected

    async def expire(made: asyncio.Timeout) -> None:
        await until(reached)
        made.reschedule(asyncio.get_running_loop().time() + 0.1)

    monkeypatch.setattr(asyncio, "timeout", limit)
    monkeypatch.setattr(bootstrap, "try_each", connect)


async def until(true: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not true():  # noqa: ASYNC110 - what is waited for has no event to set
            await asyncio.sleep(0.005)


def _nothing_passes() -> FastPath:
    limits = SessionLimits(max_sessions=0)
    state = ConnectionState(limits, Measured(), foreign=False)
    return FastPath(state, max_request_bytes=1 << 20, on=False)


@dataclass
class Wire:
    """A core that does not know Kafka and forwards bytes unchanged. On closing, it sends `closing`."""

    closing: bytes = b""
    bad: bytes = b"\xff"
    tally: Tally = field(default_factory=Tally)
    reads_client: bool = True
    goes_on: bool = False
    responses_wait: bool = False
    full: bool = False
    queued: int = 0
    buffered: int = 0
    completes_soon: bool = False
    longest_wait: float = 0.0
    outstanding: int = 0
    due_at: float | None = None
    awaits_client: bool = False
    done: bool = False
    begun: bool = True
    busy: bool = False
    wire: bool = False
    has_ended: bool = False
    fault: Fault | None = None
    fast_path: FastPath = field(default_factory=_nothing_passes)
    client_id: str = "t"
    software_name: str = ""
    software_version: str = ""
    fetch_version: int = -1
    session_id: int = 0
    session_epoch: int = 0
    session_partitions: int = 0
    lacks_slot: bool = False
    to_client: list[bytes | memoryview] = field(default_factory=list)
    to_broker: list[bytes | memoryview] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def state(self) -> Self:
        """This object, because it has all that is read of a state."""
        return self

    def attach(self, _wake: object, _alarm: object) -> None:
        """Do nothing, because this core starts no work of its own."""

    def shrink(self) -> None:
        """Do nothing, because this core keeps nothing."""

    def receive_client(self, data: bytes, _now: float) -> None:
        self.tally.client.bytes_in += len(data)
        if data.startswith(self.bad):
            self.fault = Fault(side="client", reason="bad byte")
            return
        self.tally.broker.bytes_out += len(data)
        self.to_broker.append(data)

    def receive_broker(self, data: bytes, _now: float) -> None:
        self.tally.broker.bytes_in += len(data)
        if self.closing and data.endswith(self.closing):
            self.done = True
            return
        self.tally.client.bytes_out += len(data)
        self.to_client.append(data)

    def close_session(self, _now: float) -> None:
        if self.closing:
            self.to_broker.append(self.closing)
            self.events.append(SessionClosed(session_id=7, reason="test"))
        else:
            self.done = True

    def client_ended(self) -> None:
        """Do nothing, because this core holds no bytes back."""

    def broker_ended(self) -> None:
        """Do nothing, because this core holds no bytes back."""

    def ended(self, now: float) -> None:
        self.has_ended = True

    def drain_client(self) -> list[bytes | memoryview]:
        due, self.to_client = self.to_client, []
        return due

    def drain_broker(self) -> list[bytes | memoryview]:
        due, self.to_broker = self.to_broker, []
        return due

    def drain_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events


class StubBroker:
    """A TCP server that stores the received bytes. The test itself sends the responses.

    With `tls`, it uses TLS.
    """

    def __init__(
        self, responses: Callable[[bytes], bytes] = bytes, tls: ssl.SSLContext | None = None
    ) -> None:
        self.responses = responses
        self.tls = tls
        self.received = bytearray()
        self.writers: list[asyncio.StreamWriter] = []
        self.accepted = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        return len(self.writers)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.accepted += 1
        try:
            while data := await self._read(reader):
                self.received += data
                writer.write(self.responses(data))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.writers.remove(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        return await reader.read(CHUNK)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await until(lambda: not self.writers)


@asynccontextmanager
async def stub_broker(
    responses: Callable[[bytes], bytes] = bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[StubBroker]:
    """Run a stub broker."""
    broker = StubBroker(responses, tls)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class StubCluster(StubBroker):
    """A stub cluster. It answers ApiVersions and Metadata v1. The test itself answers all other requests."""

    def __init__(self, *brokers: tuple[int, str, int], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._response, tls)
        self.brokers = brokers
        self.racks: dict[int, str] = {}
        self.others: Callable[[bytes], bytes] = lambda _: b""

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Read one complete request."""
        with suppress(asyncio.IncompleteReadError):
            size = await reader.readexactly(4)
            return size + await reader.readexactly(int.from_bytes(size))
        return b""

    def _response(self, data: bytes) -> bytes:
        message = data[4:]
        api_key, _version, correlation_id = struct.unpack_from(">hhi", message)
        if api_key == ApiKey.API_VERSIONS:
            return response(correlation_id, api_versions((1, 0, 11), (3, 0, 1), (18, 0, 0)))
        if api_key == ApiKey.METADATA:
            return response(correlation_id, metadata(*self.brokers, racks=self.racks))
        body = self.others(message)
        return response(correlation_id, body) if body else b""


@asynccontextmanager
async def stub_cluster(
    *brokers: tuple[int, str, int], port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[StubCluster]:
    """Run a stub cluster. An entry in `brokers` without a host means the stub itself."""
    stub = StubCluster(tls=tls)
    await stub.start(port)
    stub.brokers = tuple((id_, host or "127.0.0.1", at or stub.port) for id_, host, at in brokers)
    try:
        yield stub
    finally:
        await stub.stop()


class WireGateway(Gateway):
    """A gateway whose cores only forward bytes, for tests of the sockets alone."""

    closing = b""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.server.make_core = self.make_core  # type: ignore[method-assign,assignment]

    def make_core(self, _link: Link, _reached_at: str, _versions: BrokerVersions, _broker: str) -> Connection:
        return cast("Connection", Wire(closing=self.closing))

    def open(self) -> None:
        """Open the gateway without a request to the brokers. An echo stub can't answer a Metadata request."""
        if isinstance(self.brokers, BrokerRegistry):
            self.brokers.begin = lambda *_: None  # type: ignore[method-assign]
        super().open()


class ClosingGateway(WireGateway):
    """A gateway whose core sends a closing message to the broker when a test closes the session."""

    closing = b"<close>"


@asynccontextmanager
async def gateway(
    bootstrap: Sequence[str] | str, kind: type[Gateway] = WireGateway, **options: str
) -> AsyncIterator[Gateway]:
    """Run a gateway whose broker is at a bootstrap address."""
    addresses = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
    asked = config(bootstrap=addresses, **options)
    gate = kind(Process.of(asked, asyncio.get_running_loop(), structlog.get_logger()))
    gate.open()
    await asyncio.sleep(0)
    try:
        yield gate
    finally:
        # A connection that is aborted in the turn in which uvloop accepted it stays among the links.
        await asyncio.sleep(0.01)
        gate.close()
        with suppress(TimeoutError):
            await until(lambda: not gate.server.links)


@asynccontextmanager
async def client(
    port: int, tls: ssl.SSLContext | None = None, name: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a port as a client. With `tls`, use TLS and send `name` as the server name (SNI)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def running(gate: Gateway, kind: type[_Running]) -> _Running:
    """Return a running feature of a gateway."""
    return next(each for each in gate.server.features.running if isinstance(each, kind))


def link_of(gate: Gateway) -> Link:
    """Return the only link of a gateway."""
    (link,) = gate.server.links
    return link


def overdue_later(gate: Gateway) -> set[str]:
    """Return the reasons for which the gateway would close its only link after one to five idle hours.

    Several hours are tried because the first check counts bytes that the client has received since the last
    check as activity.
    """
    idle, handshake = gate.process.config.idle_timeout, gate.process.config.handshake_timeout
    hours = [monotonic() + 3600 * hour for hour in range(1, 6)]
    return {link_of(gate).overdue(now, idle=idle, handshake=handshake) for now in hours} - {""}


def socket_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    """Return the transport of a writer. It can also read, but typeshed declares only the writing part."""
    return cast("asyncio.Transport", writer.transport)


async def answers_and_closes(
    broker: StubBroker, gate: Gateway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Check that the client gets all of a large response and then the end of the connection.

    The broker sends the response and closes its connection at once.
    """
    writer.write(b"x")
    await until(lambda: broker.received.endswith(b"x"))
    broker.writers[0].write(b"y" * 3_000_000)
    broker.writers[0].close()
    assert await reader.read() == b"y" * 3_000_000
    writer.close()
    await until(lambda: not gate.server.links)
