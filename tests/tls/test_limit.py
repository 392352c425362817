"""TLS handshakes count as connections for ``--max-connections``, and their duration is limited."""

import asyncio
import socket
import ssl
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from proxy.server import acceptor, server
from proxy.server.server import LIMIT
from tests.shell import (
    BOTH_LOOPS,
    WAIT_SECONDS,
    ClosingGateway,
    WireGateway,
    client,
    gateway,
    run,
    stub_broker,
    until,
)
from tests.tls.secured import Keys


@BOTH_LOOPS
def test_handshakes_count_as_connections(keys: Keys, plain: bool) -> None:
    """Unfinished TLS handshakes count as connections for --max-connections.

    Before the fix, they needed 1,016 file descriptors with a limit of 10 connections.
    """

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, max_connections="3", **keys.to_client()) as gate,
        ):
            with ExitStack() as stack:
                silent = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", gate.listen.port)))
                    for _ in range(40)
                ]
                await until(lambda: gate.server.turned_away[LIMIT] == 37)
                assert len(gate.server.handshakes) == gate.status().connections == 3
                assert not gate.server.links
                assert gate.health().reasons[-1].startswith("all 3 connections are used")
                for sock in silent[3:]:
                    sock.settimeout(0)
                    assert sock.recv(1) == b""
            await until(lambda: not gate.server.handshakes)
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                assert gate.status().connections == 1
            assert gate.server.accepted == 1

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_as_many_clients_as_allowed_are_served_in_tls(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, max_connections="3", **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (first, asks),
            client(gate.listen.port, keys.trust(), "localhost"),
            client(gate.listen.port, keys.trust(), "localhost"),
        ):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                async with client(gate.listen.port, keys.trust(), "localhost"):
                    pass
            asks.write(b"x")
            assert await first.readexactly(1) == b"x"
            assert gate.server.turned_away[LIMIT] == 1
            assert gate.status().connections == len(gate.server.links) == 3

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_handshake_that_takes_too_long_makes_room(
    keys: Keys, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.net.tls.HANDSHAKE_SECONDS", 0.05)

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, WireGateway, max_connections="1", **keys.to_client()) as gate,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.listen.port)
            await until(lambda: gate.server.handshakes)
            assert await reader.read() == b""
            await until(lambda: not gate.server.handshakes)
            writer.close()
            monkeypatch.setattr("proxy.net.tls.HANDSHAKE_SECONDS", WAIT_SECONDS)
            async with client(gate.listen.port, keys.trust(), "localhost"):
                pass

    run(scene(), plain=plain)


async def test_clients_wait_while_no_descriptor_is_left(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "ACCEPT_AGAIN_SECONDS", 0.01)

    async with stub_broker() as broker, gateway(broker.address, WireGateway, **keys.to_client()) as gate:
        accept, failed = socket.socket.accept, 0

        def none_left(sock: socket.socket) -> object:
            nonlocal failed
            failed += 1
            if failed <= 2:
                raise OSError(24, "Too many open files")
            return accept(sock)

        with monkeypatch.context() as patched, capture_logs() as lines:
            patched.setattr(socket.socket, "accept", none_left)
            async with client(gate.listen.port, keys.trust(), "localhost"):
                assert failed >= 3
        assert [line["event"] for line in lines] == ["no file descriptor is left for more clients"]
        assert gate.status().problems


async def test_a_drain_ends_handshakes(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)

    async with (
        stub_broker() as broker,
        gateway(broker.address, ClosingGateway, **keys.to_client()) as gate,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.listen.port)
        await until(lambda: gate.server.handshakes)
        assert await gate.drain(20) == 0
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", gate.listen.port)
