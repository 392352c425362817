"""Tests of sockets, back-pressure and ends of connections, with a core that only forwards bytes."""

import asyncio
import gc
import socket
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from proxy.net import link as transports
from proxy.net.endpoint import RECEIVE_BYTES, WRITE_HIGH_WATER
from proxy.net.link import BUDGET, CORE, PEER_FULL, Link, LinkPhase
from proxy.server import upstream
from proxy.server.gateway import Gateway
from tests.shell import (
    BOTH_LOOPS,
    ClosingGateway,
    Wire,
    answers_and_closes,
    client,
    gateway,
    link_of,
    run,
    socket_of,
    stub_broker,
    until,
)


def _wire(gate: Gateway) -> Wire:
    return cast("Wire", link_of(gate).core)


@BOTH_LOOPS
def test_bytes_pass_both_ways(plain: bool) -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            async with client(gate.listen.port) as (reader, writer):
                sent = bytes(range(256)) * 20_000
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
                core = _wire(gate)
            await until(lambda: not gate.server.links)
            await until(lambda: not broker.open)
            assert core.has_ended
            assert gate.server.account().total().client.bytes_in == len(sent)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_what_a_client_sends_before_its_broker_stands_is_kept(plain: bool) -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate:
            with socket.create_connection(("127.0.0.1", gate.listen.port)) as sock:
                sock.sendall(b"a" * 400_000)  # there before the listener is even served
                await until(lambda: len(broker.received) >= 400_000)

    run(scene(), plain=plain)


async def test_both_sockets_have_nodelay_and_keepalive() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port),
    ):
        await until(lambda: gate.server.links and link_of(gate).has_broker)
        for transport in (link_of(gate).client.transport, link_of(gate).broker.transport):
            assert transport is not None
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


@BOTH_LOOPS
def test_a_client_that_half_closes_still_gets_its_response(plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"") as broker,
            gateway(broker.address, ClosingGateway) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(b"request")
            writer.write_eof()
            await until(lambda: broker.received.endswith(b"request<close>"))
            broker.writers[0].write(b"answer")
            assert await reader.readexactly(6) == b"answer"
            broker.writers[0].write(b"<close>")
            assert await reader.read() == b""
            await until(lambda: not gate.server.links)
            await until(lambda: not broker.open)

    run(scene(), plain=plain)


async def test_a_session_is_closed_at_the_broker_when_its_client_resets() -> None:
    """Trap 21: when a client resets its connection, the gateway closes the client's session at the broker."""
    async with stub_broker() as broker, gateway(broker.address, ClosingGateway) as gate:
        async with client(gate.listen.port) as (_, writer):
            writer.write(b"x")
            await until(lambda: broker.received.endswith(b"x"))
        await until(lambda: broker.received.endswith(b"x<close>"))
        await until(lambda: not gate.server.links and not broker.open)


async def test_a_broker_that_does_not_answer_the_close_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(Link.close_session, "__defaults__", (0.05,))

    async with stub_broker(lambda _: b"") as broker, gateway(broker.address, ClosingGateway) as gate:
        async with client(gate.listen.port) as (_, writer):
            writer.write(b"x")
            await until(lambda: broker.received.endswith(b"x"))
        await until(lambda: not gate.server.links and not broker.open)


@BOTH_LOOPS
def test_when_the_broker_closes_the_client_gets_what_is_due_and_is_closed(plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker(lambda _: b"") as broker,
            gateway(broker.address) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            await answers_and_closes(broker, gate, reader, writer)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_fault_ends_that_connection_alone_and_is_logged_once(plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(b"before")
            await reader.readexactly(6)
            with capture_logs() as lines:
                async with client(gate.listen.port) as (bad_reader, bad_writer):
                    bad_writer.write(b"\xff garbage")
                    assert await bad_reader.read() == b""
                await until(lambda: len(gate.server.links) == 1)
            writer.write(b"after")
            assert await reader.readexactly(5) == b"after"
            faults = [line for line in lines if line["event"] == "connection fault"]
            assert [(line["side"], line["reason"]) for line in faults] == [("client", "bad byte")]
            assert gate.server.faults == {"client": 1, "broker": 0}

    run(scene(), plain=plain)


async def test_a_defect_of_the_core_ends_that_connection_alone() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"x")
        await reader.readexactly(1)
        core = _wire(gate)
        async with client(gate.listen.port) as (other_reader, other_writer):
            other_writer.write(b"y")
            await other_reader.readexactly(1)
            core.bad = cast("bytes", 5)  # startswith raises TypeError
            with capture_logs() as lines:
                writer.write(b"x")
                assert await reader.read() == b""
                await until(lambda: len(gate.server.links) == 1)
            assert [line["event"] for line in lines] == [
                "connection closed by a defect of fetchgate; please report it"
            ]
            other_writer.write(b"y")
            assert await other_reader.readexactly(1) == b"y"


@BOTH_LOOPS
def test_a_client_that_does_not_read_holds_back_its_broker_alone(plain: bool) -> None:
    async def scene() -> None:
        def flood(data: bytes) -> bytes:
            return bytes(50_000_000) if data == b"flood" else data

        async with (
            stub_broker(flood) as broker,
            gateway(broker.address) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            socket_of(writer).pause_reading()
            writer.write(b"flood")
            await until(lambda: gate.server.links and link_of(gate).broker.holds == PEER_FULL)
            link = link_of(gate)
            assert link.client.transport is not None
            assert link.client.transport.get_write_buffer_size() <= WRITE_HIGH_WATER + RECEIVE_BYTES
            async with client(gate.listen.port) as (other_reader, other_writer):
                other_writer.write(b"hello")
                assert await other_reader.readexactly(5) == b"hello"
            socket_of(writer).resume_reading()
            assert await reader.readexactly(50_000_000) == bytes(50_000_000)
            assert link.broker.holds == 0

    run(scene(), plain=plain)


async def test_a_broker_that_does_not_read_holds_back_its_client() -> None:
    """Trap 14: if the broker does not read, the gateway stops reading the client."""
    async with (
        stub_broker(lambda _: b"") as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (_, writer),
    ):
        await until(lambda: broker.open and link_of(gate).has_broker)
        socket_of(broker.writers[0]).pause_reading()
        writer.write(bytes(50_000_000))
        await until(lambda: link_of(gate).client.holds == PEER_FULL)
        link = link_of(gate)
        assert link.broker.transport is not None
        assert link.broker.transport.get_write_buffer_size() <= WRITE_HIGH_WATER + RECEIVE_BYTES
        socket_of(broker.writers[0]).resume_reading()
        await until(lambda: len(broker.received) >= 50_000_000)
        await until(lambda: link.client.holds == 0)


async def test_a_core_that_has_enough_holds_back_its_client() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"a")
        await reader.readexactly(1)
        link, core = link_of(gate), _wire(gate)
        core.reads_client = False
        link.pump()
        assert link.client.holds == CORE
        writer.write(b"b")
        await asyncio.sleep(0.05)
        assert not broker.received.endswith(b"b")
        core.reads_client = True
        link.pump()
        assert await reader.readexactly(1) == b"b"


async def test_over_the_budget_a_second_holder_waits_until_the_first_is_through() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address, max_inflight_bytes="1000") as gate,
        client(gate.listen.port) as (reader, writer),
        client(gate.listen.port) as (other_reader, other_writer),
    ):
        writer.write(b"a")
        await reader.readexactly(1)
        first = link_of(gate) if len(gate.server.links) == 1 else _by_port(gate, writer)
        other_writer.write(b"b")
        await other_reader.readexactly(1)
        second = _by_port(gate, other_writer)
        cast("Wire", first.core).buffered = 800
        first.report_buffered()
        cast("Wire", second.core).buffered = 300
        second.report_buffered()
        assert (first.broker.holds, second.broker.holds) == (0, BUDGET)

        writer.write(b"a")
        other_writer.write(b"b")
        assert await reader.readexactly(1) == b"a"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await other_reader.readexactly(1)

        cast("Wire", first.core).buffered = 0
        first.report_buffered()
        assert await other_reader.readexactly(1) == b"b"
        assert gate.server.budget.total == 300
    assert gate.server.budget.total == 0


def _by_port(gate: Gateway, writer: asyncio.StreamWriter) -> Link:
    port = writer.get_extra_info("sockname")[1]
    return next(link for link in gate.server.links if link.client_address == f"127.0.0.1:{port}")


async def test_an_expanded_response_that_a_client_does_not_take_counts_as_held() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address, max_inflight_bytes="1000000") as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"a")
        await reader.readexactly(1)
        link, core = link_of(gate), _wire(gate)
        socket_of(writer).pause_reading()
        core.to_client.append(bytes(40_000_000))
        link.pump()
        assert link.broker.holds == PEER_FULL
        assert gate.server.budget.total > 20_000_000
        assert gate.server.budget.over
        socket_of(writer).resume_reading()
        await reader.readexactly(40_000_000)
        await until(lambda: gate.server.budget.total == 0)


@BOTH_LOOPS
def test_a_broker_that_cant_be_reached_closes_the_client_and_is_reported_once(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "UNREACHABLE_SECONDS", 0.05)

    async def scene() -> None:
        with capture_logs() as lines:
            async with gateway("127.0.0.1:1") as gate:
                for _ in range(5):
                    async with client(gate.listen.port) as (reader, _):
                        assert await reader.read() == b""
                await until(lambda: not gate.server.links)
        said = [line["reason"] for line in lines if line["log_level"] == "warning"]
        assert said == ["127.0.0.1:1: Connection refused"]

    run(scene(), plain=plain)


async def test_bootstrap_addresses_are_tried_in_turn_and_the_one_that_answers_is_kept() -> None:
    async with (
        stub_broker() as broker,
        gateway(["127.0.0.1:1", broker.address]) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert str(gate.server.upstream.targets(None)[0]) == broker.address


async def test_a_broker_is_reachable_again_once_it_has_said_something() -> None:
    """After a failure, a broker counts as reachable again only when it has sent bytes.

    An open connection is not enough. The broker's process may hang, or refuse the gateway after the TLS
    handshake.
    """
    async with stub_broker() as broker, gateway(broker.address) as gate:
        gate.monitor.reach.answered = True
        async with client(gate.listen.port) as (reader, writer):
            await until(lambda: gate.server.links and link_of(gate).has_broker)
            assert gate.health().reasons
            writer.write(b"x")
            await reader.readexactly(1)
            assert not gate.health().reasons


async def test_a_broker_that_never_accepts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(upstream, "UNREACHABLE_SECONDS", 0.05)

    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        at = full.getsockname()
        with socket.create_connection(at), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(at)  # the queue is full now: the next connection hangs
            async with (
                gateway(f"127.0.0.1:{at[1]}") as gate,
                client(gate.listen.port) as (reader, _),
            ):
                assert await reader.read() == b""


async def test_three_hundred_connections_leave_nothing_behind() -> None:
    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    async with stub_broker() as broker, gateway(broker.address) as gate:
        before = descriptors()
        streams = [await asyncio.open_connection("127.0.0.1", gate.listen.port) for _ in range(300)]
        for _, writer in streams:
            writer.write(b"x")
        for reader, _ in streams:
            await reader.readexactly(1)
        assert len(gate.server.links) == 300
        assert descriptors() >= before + 4 * 300
        for number, (_, writer) in enumerate(streams):
            if number % 2:
                writer.close()
            else:
                writer.transport.abort()
        await until(lambda: not gate.server.links and not broker.open)
        del streams, reader, writer
        gc.collect()
        await until(lambda: descriptors() <= before)
        assert gate.server.account().total().client.bytes_in == 300


async def test_a_link_shows_its_state() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"x")
        await reader.readexactly(1)
        link = link_of(gate)
        assert repr(link) == f"<Link {link.client_address} -> {broker.address} OPEN buffered=0>"
        link.finish()
        assert link.phase is LinkPhase.FINISHED
        link.finish()
