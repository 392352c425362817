"""TLS to clients and to brokers: tests of the bytes, the back-pressure and the ends of connections."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import cast

import pytest
import structlog

from proxy.capture.tap import Capture, Files
from proxy.net.endpoint import RECEIVE_BYTES, WRITE_HIGH_WATER
from proxy.net.link import PEER_FULL
from proxy.protocol.api import ApiKey
from tests.captured import read_directory, streams
from tests.shell import (
    BOTH_LOOPS,
    ClosingGateway,
    Wire,
    WireGateway,
    answers_and_closes,
    client,
    gateway,
    link_of,
    request,
    run,
    socket_of,
    stub_broker,
    until,
)
from tests.tls.secured import Keys, serving


@BOTH_LOOPS
def test_bytes_pass_both_ways_inside_tls_on_both_sides(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        sent = bytes(range(256)) * 40_000
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
            await until(lambda: not gate.server.links and not broker.open)
            assert gate.server.account().total().client.bytes_in == len(sent)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_does_not_read_holds_back_its_broker(keys: Keys, plain: bool) -> None:
    flood = bytes(range(250)) * 100_000

    async def scene() -> None:
        async with (
            stub_broker(lambda _: flood, tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            socket_of(writer).pause_reading()
            writer.write(b"flood")
            await until(lambda: gate.server.links and link_of(gate).broker.holds == PEER_FULL)
            link = link_of(gate)
            assert link.client.transport is not None
            # TLS adds 22 bytes to a record of 16 KiB.
            assert link.client.transport.get_write_buffer_size() <= 1.01 * (WRITE_HIGH_WATER + RECEIVE_BYTES)
            socket_of(writer).resume_reading()
            assert await reader.readexactly(len(flood)) == flood
            assert link.broker.holds == 0

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_broker_that_does_not_read_holds_back_its_client(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (_, writer),
        ):
            await until(lambda: broker.open and link_of(gate).has_broker)
            socket_of(broker.writers[0]).pause_reading()
            writer.write(bytes(25_000_000))
            await until(lambda: link_of(gate).client.holds == PEER_FULL)
            link = link_of(gate)
            assert link.broker.transport is not None
            assert link.broker.transport.get_write_buffer_size() <= 1.01 * (WRITE_HIGH_WATER + RECEIVE_BYTES)
            socket_of(broker.writers[0]).resume_reading()
            await until(lambda: len(broker.received) == 25_000_000)
            await until(lambda: link.client.holds == 0)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_when_the_broker_closes_the_client_gets_what_is_due_and_is_closed(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            await answers_and_closes(broker, gate, reader, writer)

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize("orderly", [True, False])
def test_a_session_is_closed_when_its_client_leaves(keys: Keys, plain: bool, orderly: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, ClosingGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(b"x")
                await reader.readexactly(1)
                if orderly:
                    writer.close()
                    await writer.wait_closed()
            await until(lambda: broker.received.endswith(b"x<close>"))
            await until(lambda: not gate.server.links and not broker.open)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_drain_lets_responses_in_flight_arrive(keys: Keys, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
            gateway(broker.address, ClosingGateway, **keys.to_broker(), **keys.to_client()) as gate,
            client(gate.listen.port, keys.trust(), "localhost") as (reader, writer),
        ):
            writer.write(b"x")
            await until(lambda: broker.received.endswith(b"x"))
            drained = asyncio.create_task(gate.drain(20))
            await until(lambda: broker.received.endswith(b"<close>"))
            broker.writers[0].write(b"y" * 3_000_000)
            assert await reader.readexactly(3_000_000) == b"y" * 3_000_000
            broker.writers[0].write(b"<close>")
            assert await reader.read() == b""
            writer.close()
            assert await drained == 0

    run(scene(), plain=plain)


async def test_responses_to_a_client_that_has_said_the_end_go_nowhere(keys: Keys) -> None:
    async with (
        stub_broker(lambda _: b"", tls=serving(keys.good)) as broker,
        gateway(broker.address, ClosingGateway, **keys.to_broker(), **keys.to_client()) as gate,
        client(gate.listen.port, keys.trust(), "localhost") as (_, writer),
    ):
        writer.write(b"x")
        await until(lambda: broker.received.endswith(b"x"))
        writer.close()
        await until(lambda: broker.received.endswith(b"<close>"))
        for _ in range(10):  # five are the loop's patience with who writes after the end
            broker.writers[0].write(b"late")
            await asyncio.sleep(0.002)
        broker.writers[0].write(b"<close>")
        await until(lambda: not gate.server.links)


async def test_a_response_of_many_pieces_is_one_record(keys: Keys) -> None:
    async with (
        stub_broker(tls=serving(keys.good)) as broker,
        gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
    ):
        sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", gate.listen.port))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaken = keys.trust().wrap_bio(incoming, outgoing, server_hostname="localhost")
        await asyncio.to_thread(_shake, sock, shaken, incoming, outgoing)
        await until(lambda: link_of(gate).has_broker)
        wire = cast("Wire", link_of(gate).core)
        wire.to_client += [b"a", b"b", b"c"] * 30
        link_of(gate).pump()
        with sock:
            while not (record := await asyncio.to_thread(sock.recv, 5)):
                pass
            assert record[:1] == b"\x17"
            size = int.from_bytes(record[3:])
            incoming.write(record + await asyncio.to_thread(sock.recv, size))
        assert shaken.read(1000) == b"abc" * 30


def _shake(
    sock: socket.socket, shaken: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """Do the TLS handshake.

    Then read the two session tickets that the server sends after it (RFC 8446, 4.6.1).
    """
    while True:
        try:
            shaken.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65_536))
        else:
            break
    sock.sendall(outgoing.read())
    tickets = 0
    while tickets < 2:
        head = sock.recv(5, socket.MSG_WAITALL)
        incoming.write(head + sock.recv(int.from_bytes(head[3:]), socket.MSG_WAITALL))
        tickets += 1
    with pytest.raises(ssl.SSLWantReadError):
        shaken.read(1)


def test_a_capture_sees_what_is_inside(keys: Keys, tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            stub_broker(tls=serving(keys.good)) as broker,
            gateway(broker.address, WireGateway, **keys.to_broker(), **keys.to_client()) as gate,
        ):
            files = Files(tmp_path, most_bytes=1 << 20, most_files=4)
            capture = Capture(files, records=True, loop=gate.process.loop, log=structlog.get_logger())
            gate.server.set_tap(capture)
            async with client(gate.listen.port, keys.trust(), "localhost") as (reader, writer):
                writer.write(request(ApiKey.LIST_GROUPS, 0, 7))
                await reader.readexactly(15)
                await until(lambda: gate.server.links)
            await until(lambda: not gate.server.links)
            capture.close()

    run(scene())

    seen = streams(read_directory(tmp_path))
    assert len(seen) == 4
    assert set(seen.values()) == {request(ApiKey.LIST_GROUPS, 0, 7)}
