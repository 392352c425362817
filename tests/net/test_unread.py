"""Tests that bytes which clients do not read are limited for each client, and counted for all.

Only clients that do not read are slowed down.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from proxy.core import budget
from proxy.net import turns
from proxy.net.endpoint import RECEIVE_BYTES, UNSENT_BYTES, WRITE_HIGH_WATER, unread
from proxy.net.link import PEER_FULL, Link
from proxy.protocol.api import ApiKey
from proxy.server import server
from proxy.server.gateway import Gateway
from tests.shell import (
    BOTH_LOOPS,
    WAIT_SECONDS,
    client,
    frame,
    gateway,
    metadata,
    request,
    response,
    run,
    socket_of,
    stub_broker,
    stub_cluster,
    until,
)

FLOOD = 5_000_000
CLIENTS = 90


def _kernel_bytes(transport: asyncio.Transport | None) -> tuple[int, int]:
    """Return how many bytes the system holds for a socket: bytes to send, and received bytes.

    Both include the system's own overhead (SO_MEMINFO).
    """
    assert transport is not None
    told = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, 55, 36)
    received, _, _, _, _, queued, *_ = struct.unpack("=9I", told)
    return queued, received


def _kept(link: Link) -> int:
    assert link.client.transport is not None
    return link.client.transport.get_write_buffer_size()


@asynccontextmanager
async def _not_reading(gate: Gateway, count: int) -> AsyncIterator[list[socket.socket]]:
    """Connect clients. Each one causes a large response, and reads nothing of it."""
    socks = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        socks.append(sock)
        await gate.process.loop.sock_connect(sock, ("127.0.0.1", gate.listen.port))
        await gate.process.loop.sock_sendall(sock, b"x")
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("turn_seconds", [turns.TURN_SECONDS, 1e-9], ids=["", "busy loop"])
async def test_clients_that_never_read_take_little_each_and_are_counted(
    turn_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that never read take limited memory, which is counted.

    Before the fix, 90 such clients took 112 MB in the process and 350 MB in the system, and the counted
    number of bytes was 0. If a client waited for its turn while its broker connected, it took all that the
    broker sent: 5 MB.
    """
    monkeypatch.setattr(turns, "TURN_SECONDS", turn_seconds)
    monkeypatch.setattr(turns, "SHARE_SECONDS", turn_seconds / 4)
    async with (
        stub_broker(lambda _: bytes(FLOOD)) as broker,
        gateway(broker.address) as gate,
        _not_reading(gate, CLIENTS),
    ):
        await until(lambda: sum(link.broker.holds & PEER_FULL > 0 for link in gate.server.links) == CLIENTS)
        in_process = sum(map(_kept, gate.server.links))
        assert gate.server.budget.total >= in_process
        for link in gate.server.links:
            assert _kept(link) <= WRITE_HIGH_WATER + RECEIVE_BYTES
            assert _kernel_bytes(link.client.transport)[0] <= 2 * UNSENT_BYTES
        assert in_process <= 50_000_000
        in_system = sum(
            unread(cast("asyncio.Transport", link.broker.transport)) for link in gate.server.links
        )

        def counted() -> bool:
            for link in gate.server.links:
                link.look_after()
            return gate.server.budget.total >= in_process + in_system

        await until(counted)  # what a broker has sent counts when its client has read nothing for a while
    await until(lambda: gate.server.budget.total == 0)


@BOTH_LOOPS
def test_over_the_limit_those_that_read_nothing_go_and_those_that_read_stay(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(budget, "STALL_SECONDS", 3.0)
    monkeypatch.setattr(budget, "SILENT_SECONDS", 0.5)

    async def scene() -> None:
        async with (
            stub_broker(lambda data: bytes(FLOOD) if data == b"x" else data) as broker,
            gateway(broker.address, max_inflight_bytes="4000000") as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(b"x")

            async def reads() -> None:
                got = 0
                while got < FLOOD:
                    # Slowly, but each piece lets the system tell the gateway of its progress.
                    data = await reader.read(100_000)
                    assert data, "it was closed"
                    got += len(data)
                    await asyncio.sleep(0.1)

            reading = asyncio.create_task(reads())
            async with _not_reading(gate, 20):
                await until(
                    lambda: (
                        gate.server.accepted == 21
                        and len(gate.server.links) < 20
                        and not gate.server.budget.over
                    )
                )
                await reading
                writer.write(b"still here")
                assert await reader.readexactly(10) == b"still here"

    run(scene(), plain=plain)


async def test_metadata_does_not_wait_for_a_client_that_does_not_read() -> None:
    class Lies:
        buffered_changed_at = 0.0
        can_go_on = False

        def wait_for_budget(self, waits: bool) -> None:
            raise AssertionError(waits)

        def report_buffered(self) -> None:
            """Report nothing, although bytes are buffered.

            With this, the number of buffered bytes does not grow in the test.
            """

    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_inflight_bytes="100") as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        await until(lambda: gate.health().state == "ready" and cluster.open == 1)
        gate.server.budget.update(Lies(), 1_000_000)
        whole = response(7, metadata((1, "127.0.0.1", cluster.port)))
        cluster.responses = lambda _: whole[:20]
        writer.write(request(ApiKey.METADATA, 1, 7, struct.pack(">i", 0)))
        await until(lambda: gate.server.budget.total >= 1_000_000 + 20)
        cluster.writers[0].write(whole[20:])
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await frame(reader))[:4] == struct.pack(">i", 7)


async def test_a_client_whose_response_fits_below_the_high_water_mark_is_counted_at_the_next_look() -> None:
    async with (
        stub_broker(lambda data: data) as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"x")
        await reader.readexactly(1)
        (link,) = gate.server.links
        socket_of(writer).pause_reading()
        while not _kept(link):
            broker.writers[0].write(bytes(100_000))
            await asyncio.sleep(0.005)
        assert not link.broker.holds
        link.look_after()
        assert gate.server.budget.total >= _kept(link) > 0
