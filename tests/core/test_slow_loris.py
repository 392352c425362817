"""Peers that send very slowly (slow loris) are closed in time on every listener, and other clients are
served. For the review (docs/users/security.md): memory, slow connections.
"""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace

import pytest
import structlog

from proxy.addresses import Address
from proxy.net import tls, transparent
from proxy.net.listen import Binding
from proxy.protocol.api import ApiKey
from proxy.server import server
from proxy.server.gateway import Gateway
from proxy.server.process import Process
from proxy.telemetry import admin
from proxy.telemetry.admin import AdminEndpoint
from tests.shell import (
    WAIT_SECONDS,
    StubCluster,
    client,
    config,
    frame,
    gateway,
    request,
    run,
    stub_cluster,
    until,
)
from tools.certificates import Authority
from tools.kafka.ports import free_ports

pytestmark = pytest.mark.slow

PEERS = 10
DROP_SECONDS = 0.01
NAMES = "kafka.local", "broker-1.kafka.local"


def large(api_key: ApiKey, version: int, body: bytes = b"") -> bytes:
    """Build a request of 60,000 bytes."""
    head = struct.pack(">ihhih", 60_000, api_key, version, 1, 0)
    return head + body + bytes(60_004 - len(head) - len(body))


FRAMES = {
    "fetch": large(ApiKey.FETCH, 11),
    "metadata": large(ApiKey.METADATA, 1),
    "produce": large(ApiKey.PRODUCE, 2, b"\xff\xff"),
    "unanswered produce": large(ApiKey.PRODUCE, 2),
}
"""Requests by name. A fetch is forwarded when it is complete, the other requests as their bytes arrive."""
FRAME = FRAMES["fetch"]
SIZES = 4, 12, 14, 20, 1000
"""Sizes in bytes of partial requests: the length alone, parts of the header, and some of the body."""


async def dripping(
    port: int, drops: bytes, trust: ssl.SSLContext | None = None, name: str | None = None
) -> bool:
    """Send one byte at a time until the other side closes. Return whether it closed before the last byte."""
    async with client(port, trust, name) as (reader, writer):
        ended = asyncio.create_task(reader.read())
        for byte in drops:
            writer.write(bytes((byte,)))
            await asyncio.sleep(DROP_SECONDS)
            # A reset can close the transport before its reader learns of it.
            if ended.done() or writer.is_closing():
                return True
    return False


async def serves(port: int, trust: ssl.SSLContext | None = None, name: str | None = None) -> None:
    async with client(port, trust, name) as (reader, writer):
        await asks(reader, writer)


async def asks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for number in range(20):
        writer.write(request(ApiKey.LIST_GROUPS, 0, number))
        assert await frame(reader) == number.to_bytes(4) + b"groups"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("loris"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> dict[str, str]:
    pair = authority.sign("gate", *NAMES)
    return {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use short time limits and frequent checks.

    The limits that good clients must meet are still a few seconds, because a machine may be busy.
    """
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 2.0)
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 2.0)


def waits(gate: Gateway, seconds: float) -> None:
    """Set how long the gateway waits for a first request.

    Tests shorten this time once the good clients have sent their first requests.
    """
    gate.process.options.config = replace(gate.process.config, handshake_timeout=seconds)


@asynccontextmanager
async def served(**options: str) -> AsyncIterator[tuple[Gateway, StubCluster]]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(stub_cluster((1, "", 0)))
        cluster.others = lambda _: b"groups"
        gate = await stack.enter_async_context(gateway(cluster.address, Gateway, **options))
        await until(lambda: gate.health().ready)
        yield gate, cluster


def hello(name: str) -> bytes:
    """Build the ClientHello of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("said", FRAMES)
@pytest.mark.parametrize("way", [0, 2], ids=["bootstrap", "broker 1"])
def test_plain(way: int, said: str) -> None:
    async def scene() -> None:
        async with served(listen=f"127.0.0.1:{free_ports(4)}") as (gate, _):
            port = gate.listen.port + way
            ended = asyncio.gather(*(dripping(port, FRAMES[said]) for _ in range(5 * PEERS)))
            async with client(port) as (reader, writer):
                await asks(reader, writer)
                waits(gate, 0.5)
                assert await ended == [True] * 5 * PEERS
                assert gate.server.turned_away["no request"] == 5 * PEERS
                await until(lambda: len(gate.server.links) == 1)
                await asks(reader, writer)

    run(scene())


async def closed_after(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, part: bytes) -> None:
    """Send only a part of a request, and check that the gateway closes the connection without a response."""
    writer.write(part)
    assert await reader.read() == b""


@pytest.mark.parametrize("said", FRAMES)
def test_half_of_a_first_request(said: str) -> None:
    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            halves = []
            for size in SIZES:
                reader, writer = await stack.enter_async_context(client(gate.listen.port))
                halves.append(closed_after(writer, reader, FRAMES[said][:size]))
            waits(gate, 0.5)
            await asyncio.gather(*halves)
            assert gate.server.turned_away["no request"] == len(SIZES)

    run(scene())


@pytest.mark.parametrize("said", FRAMES)
def test_half_of_a_second_request(said: str) -> None:
    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            halves = []
            for size in SIZES:
                reader, writer = await stack.enter_async_context(client(gate.listen.port))
                await asks(reader, writer)
                halves.append(closed_after(writer, reader, FRAMES[said][:size]))
            gate.process.options.config = replace(gate.process.config, idle_timeout=0.5)
            await asyncio.gather(*halves)
            assert gate.server.turned_away["idle"] == len(SIZES)

    run(scene())


@pytest.mark.parametrize("by_name", [False, True], ids=["a port each", "one port by name"])
@pytest.mark.parametrize("drops", ["handshake", "request"])
@pytest.mark.parametrize("name", NAMES)
def test_tls(
    authority: Authority, certificate: dict[str, str], *, by_name: bool, drops: str, name: str
) -> None:
    trust = ssl.create_default_context(cafile=authority.file)
    first = free_ports(4)
    port = first if by_name or name == NAMES[0] else first + 2
    rule = {"broker_ports": f"broker-{{id}}.kafka.local:{first}"} if by_name else {}

    async def scene() -> None:
        async with served(listen=f"127.0.0.1:{first}", **certificate, **rule) as (gate, _):
            if drops == "handshake":
                said = hello(name)
                peers = [dripping(port, said) for _ in range(PEERS)]
            else:
                peers = [dripping(port, FRAME, trust, name) for _ in range(PEERS)]
            ended = asyncio.gather(*peers)
            await serves(port, trust, name)
            waits(gate, 0.5)
            assert await ended == [True] * PEERS
            await until(lambda: not gate.server.links)
            assert gate.server.turned_away["no request"] == (PEERS if drops == "request" else 0)
            waits(gate, WAIT_SECONDS)
            await serves(port, trust, name)

    run(scene())


def test_transparent_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    options = config(transparent="redirect")

    async def scene() -> None:
        async with stub_cluster((1, "", 0)) as cluster:
            cluster.others = lambda _: b"groups"
            meant = Address("127.0.0.1", cluster.port)
            monkeypatch.setattr(transparent, "original_destination", lambda _: meant)
            gate = Gateway(Process.of(options, asyncio.get_running_loop(), structlog.get_logger()))
            gate.open()
            ended = asyncio.gather(*(dripping(gate.listen.port, FRAME) for _ in range(PEERS)))
            await serves(gate.listen.port)
            waits(gate, 0.5)
            assert await ended == [True] * PEERS
            await until(lambda: not gate.server.links)
            assert gate.server.turned_away["no request"] == PEERS
            gate.close()

    run(scene())


def test_the_admin_endpoint() -> None:
    asked = b"GET /livez HTTP/1.1\r\nHost: "

    async def livez(port: int) -> bytes:
        async with client(port) as (reader, writer):
            writer.write(asked + b"localhost\r\n\r\n")
            return await reader.read()

    async def scene() -> None:
        async with served() as (gate, _):
            sockets = Binding().bind(Address("127.0.0.1", 0))
            port = sockets[0].getsockname()[1]
            with closing(AdminEndpoint(gate)) as endpoint:  # uvloop waits for a server that is left open
                endpoint.start(sockets)
                ended = asyncio.gather(*(dripping(port, asked + bytes(8000)) for _ in range(PEERS)))
                for _ in range(10):
                    assert (await livez(port)).startswith(b"HTTP/1.1 200 ")
                assert await ended == [True] * PEERS
                assert (await livez(port)).startswith(b"HTTP/1.1 200 ")

    run(scene())
