"""A worker hands a client of a cooperative group over to the worker that owns the group.

It does not matter which worker has accepted the client.
"""

import asyncio
import math
import os
import signal
import ssl
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.server.supervisor import Supervisor
from tests.server.test_supervisor import Ends, ready, served, starting, state
from tests.shell import WAIT_SECONDS, StubCluster, client, frame, response, run, stub_cluster, until
from tools.certificates import Authority

OWNER = 2
"""The number of the worker that owns the group "a". There are two workers."""
LIST_OFFSETS = 2


def request_of(client_id: str, correlation_id: int = 7) -> bytes:
    name = client_id.encode()
    message = struct.pack(">hhih", LIST_OFFSETS, 1, correlation_id, len(name)) + name + b"\x00" * 20
    return struct.pack(">i", len(message)) + message


@pytest.fixture(autouse=True)
def _equally_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assign clients to workers in turn, so that the CPU time of the workers makes no difference."""
    monkeypatch.setattr("proxy.server.worker_handle.INTERVAL_SECONDS", math.inf)


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> Authority | None:
    """Return the CA of the gateway's certificate, or None if clients use no TLS."""
    return Authority(tmp_path) if request.param else None


class Scene:
    """A gateway with two workers, and its clients."""

    def __init__(self, gate: Supervisor, cluster: StubCluster, authority: Authority | None) -> None:
        self.gate, self.cluster = gate, cluster
        self._authority = authority
        self.stack = AsyncExitStack()
        self.addresses: list[str] = []

    async def connect(self, client_id: str) -> Ends:
        """Connect a client, and send a request with this client id."""
        tls = name = None
        if self._authority is not None:
            tls, name = ssl.create_default_context(cafile=self._authority.file), "localhost"
        ends = await self.stack.enter_async_context(client(self.gate.listen.port, tls, name))
        self.addresses.append("{}:{}".format(*ends[1].get_extra_info("sockname")))
        ends[1].write(request_of(client_id))
        return ends

    async def connected(self, client_ids: Iterable[str]) -> list[Ends]:
        """Connect these clients, and wait until each has received a response."""
        clients = [await self.connect(client_id) for client_id in client_ids]
        for reader, _ in clients:
            await frame(reader)
        return clients

    async def by_worker(self) -> list[int]:
        return [worker["connections"] for worker in (await state(self.gate))["workers"]]


@asynccontextmanager
async def scene(authority: Authority | None, **options: str) -> AsyncIterator[Scene]:
    if authority is not None:
        pair = authority.sign("gate", "localhost")
        options |= {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
    async with served(2, cooperative="a", **options) as (gate, cluster):
        made = Scene(gate, cluster, authority)
        async with made.stack:
            yield made


IDS = ("a.1", "a.2", "other", "a.3", "a.kr-0-ff", "x.kr-0-ff")


def test_the_owner_serves_them_and_each_is_counted_once(authority: Authority | None) -> None:
    async def act() -> None:
        async with scene(authority) as at:
            clients = await at.connected(IDS)
            told = await state(at.gate)
            assert [worker["connections"] for worker in told["workers"]] == [1, 5]
            assert told["connections_open"] == told["connections_accepted"] == len(IDS)
            assert sorted(each["client_address"] for each in told["connections"]) == sorted(at.addresses)
            assert told["totals"]["client"]["bytes_in"] == sum(len(request_of(name)) for name in IDS)
            for name, (reader, writer) in zip(IDS, clients, strict=True):
                writer.write(request_of(name, 8))
                assert (await frame(reader))[:4] == (8).to_bytes(4)
                writer.close()
            await until(lambda: at.gate.status().connections == 0)
            assert (await state(at.gate))["connections_accepted"] == len(IDS)

    run(act())


def test_each_counts_once_toward_the_limit(authority: Authority | None) -> None:
    async def act() -> None:
        async with scene(authority, max_connections="3") as at:
            clients = await at.connected(["a.1", "a.2", "a.3"])
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await at.connected(["a.4"])
            clients[0][1].close()
            await until(lambda: at.gate.status().connections == 2)
            await at.connected(["a.5"])
            assert await at.by_worker() == [0, 3]

    run(act())


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, OWNER])
def test_a_worker_that_dies_takes_those_it_has_accepted_and_those_it_serves(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.server.supervisor.HAND_OVER_SECONDS", WAIT_SECONDS)  # the next one starts late

    async def act() -> None:
        async with scene(None) as at:
            clients = await at.connected(["a.1", "a.2", "a.3", "a.4"])
            os.kill((await state(at.gate))["workers"][number - 1]["pid"], signal.SIGKILL)
            ends = [asyncio.create_task(reader.read()) for reader, _ in clients]
            left = 0 if number == OWNER else 2
            await until(lambda: sum(end.done() for end in ends) == len(ends) - left)
            for end, (_, writer) in zip(ends, clients, strict=True):
                if end.done():
                    writer.close()
            await until(lambda: at.gate.status().connections == left)
            await at.connected(["a.5", "a.6"])
            await ready(at.gate)
            assert await at.by_worker() == [0, left + 2]

    run(act())


def test_a_client_waits_for_its_worker_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.supervisor.TOGETHER_SECONDS", 0.05)
    monkeypatch.setattr("proxy.server.supervisor.HAND_OVER_SECONDS", 0.3)
    start = subprocess.Popen

    def hang(arguments: list[str], **options: Any) -> Any:
        hangs = arguments[-2] == str(OWNER)
        return start([sys.executable, "-c", "import time; time.sleep(60)"] if hangs else arguments, **options)

    monkeypatch.setattr("proxy.server.worker_handle.subprocess.Popen", hang)

    async def act() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            starting(cluster.address, cooperative="a") as gate,
            AsyncExitStack() as stack,
        ):
            cluster.others = lambda message: message[-4:]
            at = Scene(gate, cluster, None)
            await stack.enter_async_context(at.stack)
            reader, _ = await at.connect("a.1")
            assert await reader.read() == b""
            await until(lambda: gate.status().connections == 0)
            await at.connected(["other"])

    run(act())


def test_a_gateway_that_drains_finishes_what_they_wait_for(authority: Authority | None) -> None:
    async def act() -> None:
        async with scene(authority) as at:
            clients = await at.connected(["a.1", "a.2", "a.3"])
            asked = at.cluster.received.count(bytes(20))
            at.cluster.others = lambda _: b""
            for number, (_, writer) in enumerate(clients, 1):
                writer.write(request_of(f"a.{number}", 9))
            await until(lambda: at.cluster.received.count(bytes(20)) == asked + len(clients))
            draining = asyncio.create_task(at.gate.drain(WAIT_SECONDS))
            await until(lambda: at.gate.status().draining)
            await asyncio.sleep(0.1)
            for writer in at.cluster.writers:
                writer.write(response(9, b"late"))
            for reader, writer in clients:
                assert await frame(reader) == (9).to_bytes(4) + b"late"
                assert await reader.read() == b""
                writer.close()
            assert await draining == 0

    run(act())
