"""A client that half-closes its connection still gets all responses that it waits for, as from a broker."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import cast

import pytest

from proxy.net import link as transports
from proxy.net.link import Link, LinkPhase
from proxy.server import server
from proxy.server.gateway import Gateway
from tests.shell import (
    BOTH_LOOPS,
    WAIT_SECONDS,
    ClosingGateway,
    StubBroker,
    Wire,
    client,
    gateway,
    link_of,
    run,
    stub_broker,
    until,
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    _close_within(monkeypatch, 0.1)
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)


def _close_within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set how long a client may take to read its last bytes, in seconds."""
    monkeypatch.setattr(transports, "CLOSE_SECONDS", seconds)
    monkeypatch.setattr(Link.close_session, "__defaults__", (seconds,))


@asynccontextmanager
async def _half_closed(
    longest_wait: float = 0.0, **options: str
) -> AsyncIterator[tuple[Gateway, StubBroker, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Run a gateway and a client that has sent a request and then half-closed its connection.

    The broker has not responded yet.
    """
    async with (
        stub_broker(lambda _: b"") as broker,
        gateway(broker.address, ClosingGateway, **options) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        await until(lambda: gate.server.links and link_of(gate).has_broker)
        cast("Wire", link_of(gate).core).busy = True
        cast("Wire", link_of(gate).core).longest_wait = longest_wait
        writer.write(b"request")
        writer.write_eof()
        await until(lambda: broker.received.endswith(b"request<close>"))
        yield gate, broker, reader, writer


@BOTH_LOOPS
def test_it_waits_as_long_as_the_broker_does(plain: bool) -> None:
    async def scene() -> None:
        async with _half_closed() as (gate, broker, reader, _):
            await asyncio.sleep(0.5)
            broker.writers[0].write(b"answer")
            assert await reader.readexactly(6) == b"answer"
            broker.writers[0].write(b"<close>")
            assert await reader.read() == b""
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_once_it_has_its_responses_a_broker_has_a_while_to_close_the_session(plain: bool) -> None:
    async def scene() -> None:
        async with _half_closed() as (gate, broker, reader, _):
            broker.writers[0].write(b"answer")
            assert await reader.readexactly(6) == b"answer"
            cast("Wire", link_of(gate).core).busy = False
            assert await reader.read() == b""
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_one_that_resets_is_gone(plain: bool) -> None:
    async def scene() -> None:
        async with _half_closed() as (gate, broker, _, writer):
            await asyncio.sleep(0.3)
            assert link_of(gate).phase is LinkPhase.CLOSING
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_one_that_has_left_is_noticed_when_it_is_written_to(plain: bool) -> None:
    async def scene() -> None:
        async with _half_closed() as (gate, broker, _, writer):
            writer.transport.abort()
            await asyncio.sleep(0.3)
            assert gate.server.links
            broker.writers[0].write(b"answer")
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


async def test_one_whose_broker_says_nothing_is_idle_at_last() -> None:
    began = monotonic()
    async with _half_closed(idle_timeout="1") as (gate, _broker, reader, _):
        assert await reader.read() == b""
        assert monotonic() - began >= 1
        await until(lambda: not gate.server.links)
        assert gate.server.turned_away["idle"] == 1


async def test_one_whose_broker_says_nothing_waits_longer_only_where_its_fetch_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the broker does not respond, a half-closed client is closed, unless its fetch allows a longer wait.

    Most half-closed clients have left. If the broker hangs, each of them would keep two sockets open.
    """
    monkeypatch.setattr(transports, "HALF_CLOSED_SECONDS", 0.3)

    async with _half_closed(longest_wait=3600.0) as (gate, _broker, reader, _):
        await asyncio.sleep(0.6)
        assert link_of(gate).phase is LinkPhase.CLOSING
        cast("Wire", link_of(gate).core).longest_wait = 0.0
        assert await reader.read() == b""
        await until(lambda: not gate.server.links)
        assert gate.server.turned_away["idle"] == 1


async def test_a_drain_has_its_own_limit() -> None:
    """The time limit of the test itself is below the hour that the client's fetch may take."""
    async with _half_closed(longest_wait=3600.0) as (gate, _broker, _reader, _):
        began = gate.process.loop.time()
        await gate.drain(0.3)
        assert gate.process.loop.time() - began > 0.2
        await until(lambda: not gate.server.links)


@BOTH_LOOPS
def test_a_request_that_came_with_its_end_before_the_broker_stood_is_answered(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    _close_within(monkeypatch, WAIT_SECONDS)  # the broker may answer late, on a busy machine

    async def scene() -> None:
        async with stub_broker(lambda _: b"") as broker, gateway(broker.address, ClosingGateway) as gate:
            with socket.create_connection(("127.0.0.1", gate.listen.port)) as sock:
                sock.sendall(b"request")
                sock.shutdown(socket.SHUT_WR)
                sock.setblocking(False)
                await until(lambda: broker.received.endswith(b"request<close>"))
                broker.writers[0].write(b"answer")
                assert await asyncio.get_running_loop().sock_recv(sock, 100) == b"answer"
                broker.writers[0].write(b"<close>")

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_one_that_reads_its_last_response_slowly_gets_all_of_it(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """A client that reads its last response slowly gets the whole response.

    Reading may take longer than the time limit for clients that read nothing.
    """
    _close_within(monkeypatch, 3.0)  # on a busy machine the reader may pause for two seconds
    size = 12_000_000

    async def scene() -> None:
        async with _half_closed() as (gate, _broker, reader, writer):
            link = link_of(gate)
            cast("asyncio.Transport", writer.transport).pause_reading()
            cast("Wire", link.core).to_client.append(bytes(size))
            link.core.tally.client.bytes_out += size
            link.pump()
            cast("Wire", link.core).done = True
            link.pump()
            assert link.phase is LinkPhase.FINISHED
            cast("asyncio.Transport", writer.transport).resume_reading()
            got = 0
            while got < size:
                some = await reader.read(150_000)
                assert some, f"cut off after {got} of {size} bytes"
                got += len(some)
                await asyncio.sleep(0.05)
            assert await reader.read() == b""

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_one_that_does_not_read_its_last_response_is_cut_off(plain: bool) -> None:
    async def scene() -> None:
        async with _half_closed() as (gate, broker, _, writer):
            link = link_of(gate)
            cast("asyncio.Transport", writer.transport).pause_reading()
            cast("Wire", link.core).to_client.append(bytes(40_000_000))
            link.pump()
            cast("Wire", link.core).done = True
            link.pump()
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_one_that_resets_while_its_connection_ends_is_not_sent_an_end(plain: bool) -> None:
    """A client that resets its connection while the gateway ends it causes no error.

    asyncio's own loop raises in `write_eof` if the socket is not connected any more.
    """

    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            sock = socket.create_connection(("127.0.0.1", gate.listen.port))
            await until(lambda: gate.server.links and link_of(gate).has_broker)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            link_of(gate).finish()
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_the_end_of_a_client_is_not_sent_to_a_broker_that_resets(plain: bool) -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate, client(gate.listen.port):
            await until(lambda: gate.server.links and link_of(gate).has_broker and broker.open)
            cast("Wire", link_of(gate).core).wire = True
            sock = broker.writers[0].get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            broker.writers[0].transport.abort()
            await asyncio.sleep(0)
            link_of(gate).client_ended()
            await until(lambda: not gate.server.links)

    run(scene(), plain=plain)
