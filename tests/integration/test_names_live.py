"""Look-ups by the C library, with a name server that does not respond for some names.

The gateway is a process with its own network and /etc/resolv.conf.
"""

import asyncio
import json
import os
import shlex
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.protocol.api import ApiKey
from tests.shell import StubCluster, client, frame, metadata, request, run, stub_cluster, until
from tests.telemetry.test_admin import send
from tools.kafka import reaper
from tools.netns import Namespace, missing

LACKING = missing("unshare", "mount")
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

LISTEN: Final = 19092
ADMIN: Final = 9464
BEHIND: Final = 9192
"""The port of the listeners with names."""
CLIENTS: Final = 12
METADATA: Final = request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0))
LIST_GROUPS: Final = request(ApiKey.LIST_GROUPS, 0, 9)
GROUPS: Final = struct.pack(">i", 9) + b"ok"
_TYPE_A: Final = 1


class NameServer(asyncio.DatagramProtocol):
    """Answers queries for its own names, and no others."""

    def __init__(self) -> None:
        self.ips: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answer one question (RFC 1035, 4.1). There are no IPv6 addresses."""
        labels, at = [], 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode())
            at += 1 + size
        name, question = ".".join(labels), data[12 : at + 5]
        self.asked[name] += 1
        if name not in self.ips:
            return
        answers = []
        if struct.unpack_from(">H", data, at + 1) == (_TYPE_A,):
            ip = bytes(map(int, self.ips[name].split(".")))
            answers = [b"\xc0\x0c" + struct.pack(">HHIH", _TYPE_A, 1, 0, 4) + ip]
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(answers), 0, 0)
        self._transport.sendto(head + question + b"".join(answers), addr)


@pytest.fixture
def place() -> Iterator[Namespace]:
    with Namespace() as place:
        yield place


@asynccontextmanager
async def _gateway(folder: Path, cluster: StubCluster, *options: str) -> AsyncIterator[NameServer]:
    """Run a gateway, and its name server."""
    server = NameServer()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, ("127.0.0.1", 53)
    )
    resolv = folder / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:5 attempts:2\n")
    command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", cluster.address, *options]
    script = f"mount --bind {shlex.quote(str(resolv))} /etc/resolv.conf && exec {shlex.join(command)}"
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment
        ["unshare", "--mount", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    reaper.watch(process.pid)
    try:
        yield server
    finally:
        process.kill()
        process.wait()
        reaper.forget(process.pid)
        transport.close()


async def _get(path: str) -> tuple[int, Any]:
    status, _, body = await send(ADMIN, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return status, body


async def _reasons() -> list[str]:
    return list(json.loads((await _get("/readyz"))[1])["reasons"])


async def _serves() -> None:
    """Wait until the gateway has asked the cluster for its brokers."""
    async with asyncio.timeout(60):
        while True:
            try:
                if (await _get("/readyz"))[0] == 200:
                    return
            except (OSError, ValueError):
                pass  # it has not started yet
            await asyncio.sleep(0.05)


async def _exchange(port: int, host: str = "127.0.0.1") -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(LIST_GROUPS)
        return await frame(reader)
    finally:
        writer.transport.abort()


def test_a_silent_name_server_delays_no_client_of_another_broker(place: Namespace, tmp_path: Path) -> None:
    async def scene() -> None:
        async with stub_cluster() as cluster, AsyncExitStack() as stack:
            cluster.others = lambda _: b"ok"
            cluster.brokers = ((1, "one.silent.example", 9092), (2, "two.example", cluster.port))
            server = await stack.enter_async_context(_gateway(tmp_path, cluster))
            server.ips["two.example"] = "127.0.0.1"
            await _serves()
            for _ in range(CLIENTS):
                await stack.enter_async_context(client(LISTEN + 2))
            await until(lambda: server.asked["one.silent.example"])

            assert await _exchange(LISTEN + 3) == GROUPS
            assert (await _get("/livez"))[0] == 200

            assert await _reasons() == [], "the look-ups still wait for the name server"

    with place.inside():
        run(scene())


def test_a_silent_name_server_of_a_listener_delays_nobody(place: Namespace, tmp_path: Path) -> None:
    async def scene() -> None:
        rule = f"b-{{id}}.example:{BEHIND}"
        async with stub_cluster() as cluster, AsyncExitStack() as stack:
            cluster.others = lambda _: b"ok"
            server = await stack.enter_async_context(_gateway(tmp_path, cluster, "--broker-ports", rule))
            server.ips["b-2.example"] = "127.0.0.2"
            await _serves()
            cluster.brokers = ((1, "127.0.0.1", cluster.port), (2, "127.0.0.1", cluster.port))
            reader, writer = await stack.enter_async_context(client(LISTEN))
            writer.write(METADATA)
            await until(lambda: server.asked["b-1.example"])

            assert (await _get("/livez"))[0] == 200
            assert await _exchange(LISTEN) == GROUPS
            assert await frame(reader) == struct.pack(">i", 5) + metadata((2, "b-2.example", BEHIND))
            assert await _exchange(BEHIND, "127.0.0.2") == GROUPS
            assert await _reasons() == ["broker 1: the name b-1.example is being looked up"]

            server.ips["b-1.example"] = "127.0.0.3"
            async with asyncio.timeout(60):
                while await _reasons():  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
            writer.write(METADATA)
            both = metadata((1, "b-1.example", BEHIND), (2, "b-2.example", BEHIND))
            assert await frame(reader) == struct.pack(">i", 5) + both

    with place.inside():
        run(scene())
