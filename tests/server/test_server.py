"""The life of a gateway: changes at run time, refused clients, and its replacement by another gateway."""

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from operator import contains
from pathlib import Path
from time import monotonic

import pytest
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.net import link
from proxy.net.listen import Binding
from proxy.protocol.api import ApiKey
from proxy.server import main, server
from proxy.server.gateway import Gateway
from proxy.telemetry.admin import AdminEndpoint
from proxy.telemetry.status import Health
from tests.shell import (
    BOTH_LOOPS,
    WAIT_SECONDS,
    StubCluster,
    client,
    frame,
    gateway,
    link_of,
    overdue_later,
    request,
    response,
    run,
    socket_of,
    stub_broker,
    stub_cluster,
    until,
)
from tools.kafka.ports import free_ports

LIST_GROUPS = 16


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gateway check its connections often, so that the tests are quick."""
    monkeypatch.setattr(server, "TICK_SECONDS", 0.01)


# Limits


async def _closed(port: int) -> bool:
    """Connect, and return whether the gateway closes the connection at once."""
    async with client(port) as (reader, writer):
        writer.write(b"?")
        try:
            return await asyncio.wait_for(reader.read(1), WAIT_SECONDS) == b""
        except ConnectionResetError:
            return True


@pytest.mark.usefixtures("_quick")
async def test_one_connection_more_than_there_may_be_is_closed_and_that_is_said_once() -> None:
    async with stub_broker() as broker, gateway(broker.address, max_connections="2") as gate:
        with capture_logs() as lines:
            async with client(gate.listen.port) as (reader, writer), client(gate.listen.port):
                await until(lambda: len(gate.server.links) == 2)
                assert [await _closed(gate.listen.port) for _ in range(5)] == [True] * 5
                full = "all 2 connections are used, further ones are closed at once; raise --max-connections"
                assert full in gate.health().reasons
                writer.write(b"still served")
                assert await reader.readexactly(12) == b"still served"
            await until(lambda: not gate.server.links)
            assert full not in gate.health().reasons
            async with client(gate.listen.port) as (reader, writer):
                writer.write(b"room")
                assert await reader.readexactly(4) == b"room"
        assert gate.server.turned_away["limit"] == 5
        assert broker.accepted == 3, "those turned away never reached the broker"
        assert gate.server.accepted == 3
        assert [line["event"] for line in lines].count(
            "connection limit reached, further connections are closed"
        ) == 1


async def test_it_is_degraded_while_all_connections_are_taken() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_connections="1") as gate,
    ):
        await until(lambda: gate.health().state == "ready")
        async with client(gate.listen.port):
            await until(lambda: gate.server.links)
            reason = "all 1 connections are used, further ones are closed at once; raise --max-connections"
            assert gate.health() == Health(state="degraded", reasons=[reason])


@asynccontextmanager
async def _served(**options: str) -> AsyncIterator[tuple[Gateway, StubCluster]]:
    """Run a gateway with real cores in front of a stub cluster that answers ListGroups."""
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway, **options) as gate:
        cluster.others = lambda _: b"groups"
        await until(lambda: gate.health().ready)
        yield gate, cluster


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    "begun", [b"", b"\0\0", request(LIST_GROUPS, 0, 1)[:9]], ids=["silent", "two", "nine"]
)
async def test_a_client_that_never_gets_to_a_request_is_closed(begun: bytes) -> None:
    async with (
        _served(handshake_timeout="0.1") as (gate, _),
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(begun)
        assert await reader.read() == b""
        assert gate.server.turned_away == {
            "limit": 0,
            "draining": 0,
            "no request": 1,
            "idle": 0,
            "not reading": 0,
        }


@pytest.mark.usefixtures("_quick")
async def test_a_connection_that_nobody_uses_is_closed_and_its_session_ended() -> None:
    async with (
        _served(idle_timeout="0.2") as (gate, cluster),
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(request(LIST_GROUPS, 0, 1))
        assert await frame(reader) == (1).to_bytes(4) + b"groups"
        assert await reader.read() == b""
        assert gate.server.turned_away["idle"] == 1
        writer.close()
        await until(lambda: not gate.server.links and not cluster.writers)


@pytest.mark.usefixtures("_quick")
async def test_a_client_that_waits_for_a_response_is_not_idle() -> None:
    async with _served(idle_timeout="0.05") as (gate, cluster):
        cluster.others = lambda _: b""
        async with client(gate.listen.port) as (reader, writer):
            writer.write(request(LIST_GROUPS, 0, 1))
            await until(lambda: request(LIST_GROUPS, 0, 1) in cluster.received)
            assert not overdue_later(gate)
            assert gate.server.turned_away["idle"] == 0
            for broker in cluster.writers:
                broker.write(response(1, b"late"))
            assert await frame(reader) == (1).to_bytes(4) + b"late"
            assert await reader.read() == b""


LARGE = 40_000_000
"""Size in bytes of a response that does not fit into the buffers of the system."""


@pytest.mark.usefixtures("_quick")
@BOTH_LOOPS
def test_a_client_that_takes_nothing_of_its_response_is_closed(plain: bool) -> None:
    async def scene() -> None:
        async with _served(idle_timeout="0.2") as (gate, cluster):
            cluster.others = lambda _: bytes(LARGE)
            with capture_logs() as lines:
                async with client(gate.listen.port) as (_, writer):
                    socket_of(writer).pause_reading()
                    writer.write(request(LIST_GROUPS, 0, 1))
                    await until(lambda: gate.server.turned_away["not reading"])
                    link_of(gate).abort()  # what it does not take it may have for ten seconds more, twice
                    await until(lambda: not gate.server.links and not cluster.writers)
            assert gate.server.turned_away["not reading"] == 1
            closed = [line for line in lines if line["event"] == "connection closed"]
            assert [line["reason"] for line in closed] == ["not reading"]

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_client_that_takes_its_response_slowly_is_not_closed(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads its response slowly is not closed. Between its reads nearly two seconds pass, by
    the clock of the test.
    """
    now = monotonic()
    monkeypatch.setattr(link, "monotonic", lambda: now)

    async def scene() -> None:
        nonlocal now

        def is_waited_for() -> bool:
            return not link_of(gate).overdue(now, idle=2, handshake=0)

        async with _served(idle_timeout="2") as (gate, cluster):
            cluster.others = lambda _: bytes(LARGE)
            async with client(gate.listen.port) as (reader, writer):
                writer.write(request(LIST_GROUPS, 0, 1))
                await reader.readexactly(8)
                for _ in range(5):  # the other half fits into the buffers of the system
                    await reader.readexactly(LARGE // 10)
                    now += 1.9
                    await until(is_waited_for)

    run(scene(), plain=plain)


async def test_halves_of_fetches_are_kept_up_to_a_limit_and_pass_beyond_it() -> None:
    half = request(1, 11, 1, bytes(900_000))[:500_000]

    async with _served(max_inflight_bytes="8000000") as (gate, _), AsyncExitStack() as stack:
        for _ in range(10):
            _, writer = await stack.enter_async_context(client(gate.listen.port))
            writer.write(half)
        await until(lambda: gate.server.account().total().client.bytes_in == 10 * len(half))
        assert 0 < gate.server.request_budget.total <= 2_000_000
        assert gate.server.account().total().broker.bytes_out >= 6 * len(half)
        await stack.aclose()
        await until(lambda: not gate.server.links)
        assert gate.server.request_budget.total == 0


async def test_0_is_no_limit_of_time() -> None:
    options = {"idle_timeout": "0", "handshake_timeout": "0"}
    async with _served(**options) as (gate, _), client(gate.listen.port) as (reader, writer):
        await until(lambda: gate.server.links and not link_of(gate).client.holds)
        assert not overdue_later(gate)
        writer.write(request(LIST_GROUPS, 0, 1))
        assert await frame(reader) == (1).to_bytes(4) + b"groups"
        assert not overdue_later(gate)


@pytest.mark.usefixtures("_quick")
async def test_clients_that_vanish_without_a_word_are_ended_and_leave_nothing() -> None:
    """Clients that vanish without closing are closed by the gateway, and nothing of them is left.

    200 clients vanish. With CAP_NET_ADMIN, TCP_REPAIR closes their sockets without FIN or RST. Otherwise the
    clients stay silent.
    """
    async with _served() as (gate, cluster):
        vanishing = []
        for _ in range(200):
            sock = socket.create_connection(("127.0.0.1", gate.listen.port))
            sock.sendall(request(LIST_GROUPS, 0, 1))
            vanishing.append(sock)
            await asyncio.sleep(0)
        await until(lambda: len(gate.server.links) == 200)
        await until(lambda: all(link.core.tally.client.bytes_out for link in gate.server.links))
        for sock in vanishing:
            _vanish(sock)
        # Not before: 200 connections take time.
        gate.process.options.config = replace(gate.process.config, idle_timeout=0.1)
        await until(lambda: not gate.server.links and len(cluster.writers) == 0)
        assert gate.server.turned_away["idle"] == 200


TCP_REPAIR = 19
"""A socket option, from linux/tcp.h."""


def _vanish(sock: socket.socket) -> None:
    """Make a socket vanish without telling its peer. Without CAP_NET_ADMIN, leave it open and silent."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        _silent.append(sock)
    else:
        sock.close()


_silent: list[socket.socket] = []


# Replacing a gateway


class Group:
    """A client that sends one request after the other, and reconnects when it is disconnected."""

    def __init__(self, port: int) -> None:
        self.answered = 0
        self.reconnects = -1
        self.cut_inside = 0
        self.stop = False
        self._port = port

    async def ask(self) -> None:
        """Send requests until `stop` is set."""
        number = 0
        while not self.stop:
            self.reconnects += 1
            async with client(self._port) as (reader, writer):
                while not self.stop:
                    number += 1
                    try:
                        writer.write(request(LIST_GROUPS, 0, number))
                        assert await frame(reader) == number.to_bytes(4) + b"groups"
                    except (asyncio.IncompleteReadError, ConnectionResetError) as error:
                        self.cut_inside += bool(getattr(error, "partial", b""))
                        break
                    self.answered += 1
                    await asyncio.sleep(0)


async def test_a_new_gateway_takes_over_while_the_old_one_drains() -> None:
    async with stub_cluster((1, "", 0)) as cluster:
        cluster.others = lambda _: b"groups"
        options = {"listen": f"127.0.0.1:{free_ports(4)}", "reuse_port": "on"}
        async with gateway(cluster.address, Gateway, **options) as old:
            await until(lambda: old.health().ready)
            clients = [Group(old.listen.port + way) for way in (0, 2) for _ in range(10)]
            asking = [asyncio.create_task(each.ask()) for each in clients]
            await until(lambda: all(each.answered > 10 for each in clients))
            async with gateway(cluster.address, Gateway, **options) as new:
                await until(lambda: new.health().state == "ready")
                assert await old.drain(20) == 0
                assert not old.server.links
                before = [each.answered for each in clients]
                await until(
                    lambda: all(each.answered > then + 10 for each, then in zip(clients, before, strict=True))
                )
                assert len(new.server.links) == len(clients)
                for each in clients:
                    each.stop = True
                await asyncio.gather(*asking)
                assert all(each.reconnects >= 1 for each in clients)
                assert sum(each.cut_inside for each in clients) == 0


async def test_without_it_a_second_gateway_does_not_come_up_beside_the_first() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
    ):
        with pytest.raises(OSError, match="Address already in use"):
            async with gateway(cluster.address, Gateway, listen=str(gate.listen), reuse_port="on"):
                pass


async def test_an_admin_address_that_another_keeps_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "ADMIN_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(main, "ADMIN_LATE_SECONDS", 0.05)

    async with stub_cluster((1, "", 0)) as cluster:
        options = {"listen": f"127.0.0.1:{free_ports(4)}", "reuse_port": "on"}
        async with gateway(cluster.address, Gateway, **options) as gate:
            with socket.create_server(("127.0.0.1", 0)) as stranger, capture_logs() as lines:
                at = Address(*stranger.getsockname())
                admin = AdminEndpoint(gate)
                tries = 0

                def bind() -> list[socket.socket]:
                    nonlocal tries
                    tries += 1
                    return Binding().bind(at)

                assert await main._start_admin(gate, admin, "--admin", at, bind) == at
                await until(lambda: any(line["log_level"] == "warning" for line in lines))
                tried = tries
                await until(lambda: tries > tried + 5)
            told = [line for line in lines if "admin" in line["event"]]
            assert [line["log_level"] for line in told] == ["info", "warning"], "said once"
            assert told[1]["admin"] == str(at)
            assert "--admin" in told[1]["event"]
            await until(lambda: admin._accepting)  # now that the stranger has left
            assert await _is_live(at)
            admin.close()


async def test_ports_are_shared_with_other_gateways_alone() -> None:
    first = free_ports(2)
    options = {
        "listen": f"127.0.0.1:{first}",
        "broker_ports": f"1={first},2={first + 1}",
        "reuse_port": "on",
    }
    async with (
        stub_cluster((1, "", 0), (2, "", 0)) as cluster,
        gateway(cluster.address, Gateway, **options) as gate,
    ):
        reason = (
            f"broker 1: 127.0.0.1:{first} can't be bound: Address already in use; "
            "give it another port with --broker-ports"
        )
        await until(lambda: gate.health() == Health(state="degraded", reasons=[reason]))


async def _is_live(at: Address) -> bool:
    """Return whether the admin endpoint says that the gateway is live."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
    answered = await reader.readline()
    writer.close()
    return b" 200 " in answered


HANDED_OVER = """
import os, sys
numbers = [int(number) for number in sys.argv[1].split(",")]
for place, number in enumerate(numbers, 3):
    os.dup2(number, place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(numbers))}
os.execv(sys.executable, [sys.executable, "-m", "proxy", "proxy", *sys.argv[2:]])
"""
"""A program that starts a gateway as systemd does, with socket activation."""


@asynccontextmanager
async def _activated(
    listeners: list[socket.socket], *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway that gets sockets which already listen."""
    # Above the places that they are put into, so that none is put over another.
    copies = [fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 100) for sock in listeners]
    numbers = ",".join(map(str, copies))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANDED_OVER, numbers, *options, pass_fds=copies, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        for number in copies:
            os.close(number)
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_socket_of_systemd_serves_one_thing(tmp_path: Path) -> None:
    """A gateway exits with code 1 if a socket of systemd is needed for two purposes.

    Here the admin endpoint has the address of a broker's listener. The broker is known from the state file.
    """
    first = free_ports(2)
    listeners = [socket.create_server(("127.0.0.1", port)) for port in (first, first + 1)]
    state = tmp_path / "state.json"
    state.write_text('{"brokers": [{"id": 0, "host": "127.0.0.1", "port": 1}]}', encoding="utf-8")
    options = ("--bootstrap", "127.0.0.1:1", "--listen", f"127.0.0.1:{first}", "--state", str(state))
    async with _activated(listeners, *options, "--admin", f"127.0.0.1:{first + 1}") as gate:
        assert await asyncio.wait_for(gate.wait(), WAIT_SECONDS) == 1
    for sock in listeners:
        sock.close()


@pytest.mark.slow
async def test_clients_wait_while_a_gateway_with_sockets_of_systemd_is_restarted() -> None:
    first = free_ports(3)
    listeners = [socket.create_server(("127.0.0.1", port)) for port in (first, first + 2)]
    async with stub_cluster((1, "", 0)) as cluster:
        cluster.others = lambda _: b"groups"
        options = ("--bootstrap", cluster.address, "--listen", f"127.0.0.1:{first}", "--admin", "off")
        async with _activated(listeners, *options) as gate:
            for port in (first, first + 2):
                assert await _ask(port) == b"groups"
            gate.terminate()
            assert await asyncio.wait_for(gate.wait(), WAIT_SECONDS) == 0
        async with client(first) as one, client(first + 2) as other:
            for _, writer in (one, other):
                writer.write(request(LIST_GROUPS, 0, 1))
            async with _activated(listeners, *options):
                for reader, _ in (one, other):
                    assert (await asyncio.wait_for(frame(reader), WAIT_SECONDS))[4:] == b"groups"
    for sock in listeners:
        sock.close()


async def _ask(port: int) -> bytes:
    async with client(port) as (reader, writer):
        writer.write(request(LIST_GROUPS, 0, 1))
        return (await asyncio.wait_for(frame(reader), WAIT_SECONDS))[4:]


# What the log says of clients


async def test_a_new_client_is_logged_and_its_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's bytes may come before the connection to the broker has begun."""

    async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
        with capture_logs() as lines:
            for _ in range(2):
                async with client(gate.listen.port) as (reader, writer):
                    writer.write(request(ApiKey.API_VERSIONS, 0, 1))
                    await frame(reader)
            begun: list[link.Link] = []
            connect = gate.server.upstream.connect

            async def late(new: link.Link) -> None:
                begun.append(new)
                assert new.log_fields["broker"] == cluster.address
                await connect(new)

            monkeypatch.setattr(gate.server.upstream, "connect", late)
            async with client(gate.listen.port) as (reader, writer):
                writer.write(request(ApiKey.API_VERSIONS, 0, 1))
                await frame(reader)
            assert begun
    new = [line for line in lines if line["event"] == "new client"]
    assert new == [
        {"event": "new client", "log_level": "info", "client_id": "t", "software": "", "host": "127.0.0.1"}
    ]
    named = [line for line in lines if line["event"] == "client sent its name"]
    assert [line["broker"] for line in named] == [cluster.address] * 3


async def test_a_client_that_is_given_the_brokers_own_addresses_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a SaslHandshake v0 for GSSAPI, or after a token without a handshake, nothing is read."""
    kerberos = request(ApiKey.SASL_HANDSHAKE, 0, 1, b"\0\6GSSAPI") + b"\0\0\0\2\x60\x82"
    counted = request(ApiKey.SASL_HANDSHAKE, 0, 1, b"\0\5PLAIN")
    bare = bytes.fromhex("000000126082011006092a864886f71201020201006e")
    async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
        with capture_logs() as lines:
            for sent in (kerberos, kerberos, counted, bare):
                async with client(gate.listen.port) as (_, writer):
                    writer.write(sent)
                    await until(partial(contains, cluster.received, sent))
                    cluster.received.clear()
            monkeypatch.setattr(gate.server, "_transparent", True)
            async with client(gate.listen.port) as (_, writer):
                writer.write(bare)
                await until(partial(contains, cluster.received, bare))
        texts = [event.text for event in gate.process.events if event.kind == "not read" and event.warning]
    told = [line for line in lines if line["event"] == "client is given the brokers' own addresses"]
    assert [(line["client_id"], line["reason"]) for line in told] == [
        ("t", "SASL handshake v0"),
        ("", "GSSAPI token"),
    ]
    assert told[0]["log_level"] == "warning"
    remedy = "let it use SASL handshake v1 (Sarama: Net.SASL.Version = 1), or use --transparent"
    assert told[0]["remedy"] == remedy
    assert texts[0].endswith(f"is given the brokers' own addresses, because of its GSSAPI token: {remedy}")
