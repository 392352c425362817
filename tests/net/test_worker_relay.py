"""A relay between two connections forwards the bytes of each side, and also its end, to the other side."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from proxy.net import worker_relay as module
from proxy.net.worker_relay import Relay
from tests.shell import BOTH_LOOPS, run, until

LARGE = b"x" * 3_000_000

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Scene:
    """A client, the worker that serves the client, and the relay between them."""

    client: Ends
    worker: Ends
    relay: Relay
    ended: list[Relay] = field(default_factory=list)


@asynccontextmanager
async def relayed(first: bytes = b"") -> AsyncIterator[Scene]:
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(cast("asyncio.Transport", transport))

    server = await loop.create_server(Accepting, "127.0.0.1", 0)
    client = await asyncio.open_connection(*server.sockets[0].getsockname())
    ended: list[Relay] = []
    relay = Relay(loop, await accepted, ended.append)
    ours, theirs = socket.socketpair()
    worker = await asyncio.open_unix_connection(sock=theirs)
    ours.setblocking(False)
    await relay.begin(first, ours)
    try:
        yield Scene(client, worker, relay, ended)
    finally:
        relay.abort()
        for _, writer in (client, worker):
            if not writer.is_closing():
                writer.transport.abort()
        server.close()
        await until(lambda: ended)


@BOTH_LOOPS
def test_all_that_comes_reaches_the_other_side_behind_what_had_come(plain: bool) -> None:
    async def scene() -> None:
        async with relayed(b"first ") as each:
            each.client[1].write(b"second" + LARGE)
            assert await each.worker[0].readexactly(12 + len(LARGE)) == b"first second" + LARGE
            each.worker[1].write(LARGE)
            assert await each.client[0].readexactly(len(LARGE)) == LARGE

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_sends_no_more_still_gets_what_is_due(plain: bool) -> None:
    async def scene() -> None:
        async with relayed() as each:
            each.client[1].write(b"last")
            each.client[1].write_eof()
            assert await each.worker[0].read() == b"last"
            each.worker[1].write(LARGE)
            each.worker[1].close()
            assert await each.client[0].read() == LARGE
            each.client[1].close()
            await until(lambda: each.ended)
            assert each.ended == [each.relay]

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize("which", ["client", "worker"])
def test_an_end_without_a_farewell_ends_the_other_side(plain: bool, which: str) -> None:
    async def scene() -> None:
        async with relayed() as each:
            sides = {"client": each.client, "worker": each.worker}
            sides.pop(which)[1].transport.abort()
            ((reader, writer),) = sides.values()
            assert await reader.read() == b""
            writer.close()
            await until(lambda: each.ended)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_does_not_read_stops_the_worker(plain: bool) -> None:
    async def scene() -> None:
        async with relayed() as each:
            writer = each.worker[1]
            for _ in range(20):
                writer.write(LARGE)
            await asyncio.sleep(0.2)
            kept = writer.transport.get_write_buffer_size()
            assert kept > len(LARGE), "it would take all"
            await each.client[0].readexactly(20 * len(LARGE))
            assert not writer.transport.get_write_buffer_size()

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_never_reads_is_cut_off(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CUT_OFF_SECONDS", 0.05)

    async def scene() -> None:
        async with relayed() as each:
            each.client[1].transport.pause_reading()  # type: ignore[attr-defined]  # it is a read transport
            for _ in range(10):
                each.worker[1].write(LARGE)
            await asyncio.sleep(0.2)
            each.worker[1].transport.abort()
            await until(lambda: each.ended)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_stays_when_all_was_said_is_cut_off(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CUT_OFF_SECONDS", 0.5)  # it has to read all of it within

    async def scene() -> None:
        async with relayed() as each:
            each.worker[1].write(LARGE)
            each.worker[1].close()
            assert await each.client[0].read() == LARGE
            await until(lambda: each.ended)

    run(scene(), plain=plain)


def test_a_client_that_left_before_the_worker_was_there_ends_it() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        peer, far = socket.socketpair()
        far.setblocking(False)
        transport, _ = await loop.create_unix_connection(asyncio.Protocol, sock=far)
        ended: list[Relay] = []
        relay = Relay(loop, transport, ended.append)
        relay.abort()
        await until(lambda: ended)
        ours.setblocking(False)
        await relay.begin(b"late", ours)
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        assert await reader.read() == b""
        writer.close()
        peer.close()

    run(scene())
