"""The life of a gateway: what it takes on while it runs, what it turns away, how another one follows it."""

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from proxy import reloading, serving
from proxy.account import Health
from proxy.config import load
from proxy.reloading import Reloader
from proxy.server import Gateway
from tools.kafka.ports import free_ports

from .shell import (
    WAIT_SECONDS,
    StubCluster,
    answer,
    client,
    frame,
    gateway,
    request,
    run,
    stub_broker,
    stub_cluster,
    until,
)

LIST_GROUPS = 16


@pytest.fixture(autouse=True)
def _log_defaults() -> Iterator[None]:
    """Take back what a reload set up."""
    yield
    structlog.reset_defaults()


# Reloading


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at files and at connections often."""
    monkeypatch.setattr(reloading, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(serving, "TICK_SECONDS", 0.01)


def _reloader(gate: Gateway, bootstrap: str, file: Path) -> Reloader:
    flags = {"bootstrap": bootstrap, "listen": "127.0.0.1:0"}
    return Reloader(gate, load(flags, {}, str(file)), lambda: load(flags, {}, str(file)), str(file))


@asynccontextmanager
async def _following(file: Path) -> AsyncIterator[tuple[Gateway, Reloader]]:
    """Run a gateway that follows a file."""
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        options = _reloader(gate, cluster.address, file)
        gate.spawn(options.follow())
        yield gate, options


@pytest.mark.usefixtures("_quick")
def test_a_file_that_changes_is_applied_without_a_signal(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_sessions = 5\n")

    async def scene() -> None:
        async with _following(file) as (gate, options):
            aside = tmp_path / "new"
            aside.write_text(
                "max_sessions = 6\nmax_inflight_bytes = 1000\ndrain_timeout = 1.5\ncapture_files = 2\n"
            )
            aside.replace(file)
            await until(lambda: gate.sessions.max_sessions == 6)
            assert gate.budget.limit == 1000
            assert options.config.drain_timeout == 1.5
            (told,) = [each for each in gate.books.happenings if each.kind == "reloaded"]
            assert told.warning
            assert told.text == (
                "options reloaded: max_sessions, max_inflight_bytes, drain_timeout; "
                "a restart is needed for capture_files"
            )

    run(scene())


@pytest.mark.usefixtures("_quick")
def test_a_file_that_broke_changes_nothing_and_one_that_is_mended_counts(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_sessions = 5\n")

    async def scene() -> None:
        async with _following(file) as (gate, _):
            before = gate.sessions.max_sessions

            def told() -> list[str]:
                return [line["reason"] for line in lines if line["event"] == "not reloaded"]

            with capture_logs() as lines:
                file.write_text("max_sessions = -\n")
                await until(told)
                await asyncio.sleep(0.05)
            assert told() == [f"--config {file} is no TOML: Invalid value (at line 1, column 16)"], "once"
            assert gate.sessions.max_sessions == before
            file.write_text("max_sessions = 7\n")
            await until(lambda: gate.sessions.max_sessions == 7)

    run(scene())


def test_a_lower_limit_leaves_sessions_that_stand_and_gives_no_more(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_sessions = 2\n")

    async def scene() -> None:
        async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
            options = _reloader(gate, cluster.address, file)
            assert gate.sessions.take()
            assert gate.sessions.take()
            file.write_text("max_sessions = 1\n")
            options.reload()
            assert gate.sessions.held == 2
            gate.sessions.release()
            assert not gate.sessions.take()
            gate.sessions.release()
            assert gate.sessions.take()

    run(scene())


def test_memory_that_a_lower_limit_makes_short_holds_brokers_back(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("")

    class Holder:
        held_changed_at = 0.0
        can_go_on = True
        waits = False

        def wait_for_budget(self, waits: bool) -> None:
            self.waits = waits

        def count_held(self) -> None:
            pass

    async def scene() -> None:
        async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
            options = _reloader(gate, cluster.address, file)
            first, second = Holder(), Holder()
            gate.budget.update(first, 60)
            gate.budget.update(second, 60)
            file.write_text("max_inflight_bytes = 100\n")
            options.reload()
            assert (first.waits, second.waits, gate.sessions.crowded) == (False, True, True)
            file.write_text("max_inflight_bytes = 200\n")
            options.reload()
            assert (first.waits, second.waits, gate.sessions.crowded) == (False, False, False)

    run(scene())


def test_a_larger_request_is_taken_from_connections_that_come_after_the_reload(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text("max_request_bytes = 100\n")
    large = request(LIST_GROUPS, 0, 1, bytes(200))

    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, max_request_bytes="100") as gate,
        ):
            cluster.others = lambda _: b"taken"
            options = _reloader(gate, cluster.address, file)
            async with client(gate.listen.port) as (reader, writer):
                writer.write(large)
                assert await reader.read() == b""
            file.write_text("max_request_bytes = 1000\n")
            options.reload()
            async with client(gate.listen.port) as (reader, writer):
                writer.write(large)
                assert await reader.readexactly(13) == (9).to_bytes(4) + (1).to_bytes(4) + b"taken"

    run(scene())


# Limits


async def _closed(port: int) -> bool:
    """Connect and tell whether that is closed at once."""
    async with client(port) as (reader, writer):
        writer.write(b"?")
        try:
            return await asyncio.wait_for(reader.read(1), WAIT_SECONDS) == b""
        except ConnectionResetError:
            return True


@pytest.mark.usefixtures("_quick")
def test_one_connection_more_than_there_may_be_is_closed_and_that_is_said_once() -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address, max_connections="2") as gate:
            with capture_logs() as lines:
                async with client(gate.listen.port) as (reader, writer), client(gate.listen.port):
                    await until(lambda: len(gate.links) == 2)
                    assert [await _closed(gate.listen.port) for _ in range(5)] == [True] * 5
                    full = "all 2 connections are taken, others are closed at once; see --max-connections"
                    assert full in gate.health().reasons
                    writer.write(b"still served")
                    assert await reader.readexactly(12) == b"still served"
                await until(lambda: not gate.links)
                assert full not in gate.health().reasons
                async with client(gate.listen.port) as (reader, writer):
                    writer.write(b"room")
                    assert await reader.readexactly(4) == b"room"
            assert gate.turned_away["limit"] == 5
            assert broker.accepted == 3, "those turned away never reached the broker"
            assert gate.accepted == 3
            assert [line["event"] for line in lines].count("no room for more clients, they are closed") == 1

    run(scene())


def test_it_is_degraded_while_all_connections_are_taken() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, max_connections="1") as gate,
        ):
            await until(lambda: gate.health().state == "ready")
            async with client(gate.listen.port):
                await until(lambda: gate.links)
                reason = "all 1 connections are taken, others are closed at once; see --max-connections"
                assert gate.health() == Health(state="degraded", reasons=[reason])

    run(scene())


@asynccontextmanager
async def _served(**options: str) -> AsyncIterator[tuple[Gateway, StubCluster]]:
    """Run a gateway of real cores before a cluster that answers ListGroups."""
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway, **options) as gate:
        cluster.others = lambda _: b"groups"
        await until(lambda: gate.health().ready)
        yield gate, cluster


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    "begun", [b"", b"\0\0", request(LIST_GROUPS, 0, 1)[:9]], ids=["silent", "two", "nine"]
)
def test_a_client_that_never_gets_to_a_request_is_closed(begun: bytes) -> None:
    async def scene() -> None:
        async with (
            _served(handshake_timeout="0.1") as (gate, _),
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(begun)
            assert await reader.read() == b""
            assert gate.turned_away == {"limit": 0, "draining": 0, "no request": 1, "idle": 0}

    run(scene())


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("way", [0, 2], ids=["bootstrap", "broker 1"])
def test_bytes_that_drip_do_not_keep_clients_that_never_get_to_a_request(way: int) -> None:
    """Slow-loris: 50 of them, a byte at a time, of a frame that would be taken whole."""
    drops = (60_000).to_bytes(4) + struct.pack(">hh", 1, 11) + bytes(60_000)

    async def drip(port: int) -> bool:
        async with client(port) as (reader, writer):
            ended = asyncio.create_task(reader.read())
            for byte in drops:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0.02)
                if ended.done():
                    return True
        return False

    async def scene() -> None:
        listen = f"127.0.0.1:{free_ports(4)}"
        async with _served(handshake_timeout="0.5", listen=listen) as (gate, _):
            dripping = asyncio.gather(*(drip(gate.listen.port + way) for _ in range(50)))
            async with client(gate.listen.port + way) as (reader, writer):
                for number in range(20):
                    writer.write(request(LIST_GROUPS, 0, number))
                    assert await frame(reader) == number.to_bytes(4) + b"groups", "others are served"
                assert await dripping == [True] * 50
                assert gate.turned_away["no request"] == 50
                await until(lambda: len(gate.links) == 1)

    run(scene())


@pytest.mark.usefixtures("_quick")
def test_a_connection_that_nobody_uses_is_closed_and_its_session_ended() -> None:
    async def scene() -> None:
        async with (
            _served(idle_timeout="0.2") as (gate, cluster),
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(request(LIST_GROUPS, 0, 1))
            assert await frame(reader) == (1).to_bytes(4) + b"groups"
            assert await reader.read() == b""
            assert gate.turned_away["idle"] == 1
            writer.close()
            await until(lambda: not gate.links and not cluster.writers)

    run(scene())


@pytest.mark.usefixtures("_quick")
def test_a_client_that_waits_for_an_answer_is_not_idle() -> None:
    async def scene() -> None:
        async with _served(idle_timeout="0.05") as (gate, cluster):
            cluster.others = lambda _: b""
            async with client(gate.listen.port) as (reader, writer):
                writer.write(request(LIST_GROUPS, 0, 1))
                await until(lambda: request(LIST_GROUPS, 0, 1) in cluster.received)
                await asyncio.sleep(0.3)
                assert gate.turned_away["idle"] == 0
                for broker in cluster.writers:
                    broker.write(answer(1, b"late"))
                assert await frame(reader) == (1).to_bytes(4) + b"late"
                assert await reader.read() == b""

    run(scene())


@pytest.mark.usefixtures("_quick")
def test_0_is_no_limit_of_time() -> None:
    async def scene() -> None:
        options = {"idle_timeout": "0", "handshake_timeout": "0"}
        async with _served(**options) as (gate, _), client(gate.listen.port) as (reader, writer):
            await asyncio.sleep(0.2)
            writer.write(request(LIST_GROUPS, 0, 1))
            assert await frame(reader) == (1).to_bytes(4) + b"groups"
            await asyncio.sleep(0.2)
            assert len(gate.links) == 1

    run(scene())


@pytest.mark.usefixtures("_quick")
def test_clients_that_vanish_without_a_word_are_ended_and_leave_nothing() -> None:
    """200 of them: TCP_REPAIR closes a socket without FIN or RST where there is the right; else they idle."""

    async def scene() -> None:
        async with _served(idle_timeout="0.5") as (gate, cluster):
            vanishing = []
            for _ in range(200):
                sock = socket.create_connection(("127.0.0.1", gate.listen.port))
                sock.sendall(request(LIST_GROUPS, 0, 1))
                vanishing.append(sock)
                await asyncio.sleep(0)
            await until(lambda: len(gate.links) == 200)
            await until(lambda: all(link.core.tally.client.bytes_out for link in gate.links))
            for sock in vanishing:
                _vanish(sock)
            await until(lambda: not gate.links and len(cluster.writers) == 0)
            assert gate.turned_away["idle"] == 200

    run(scene())


TCP_REPAIR = 19
"""linux/tcp.h."""


def _vanish(sock: socket.socket) -> None:
    """Have a socket gone without telling its peer; without CAP_NET_ADMIN it only says nothing any more."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        _silent.append(sock)
    else:
        sock.close()


_silent: list[socket.socket] = []


# Replacing a gateway


class Group:
    """A client that asks again and again, and comes back whenever it is disconnected."""

    def __init__(self, port: int) -> None:
        self.answered = 0
        self.reconnects = -1
        self.cut_inside = 0
        self.stop = False
        self._port = port

    async def ask(self) -> None:
        """Ask until it is told to stop."""
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


def test_a_new_gateway_takes_over_while_the_old_one_drains() -> None:
    async def scene() -> None:
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
                    assert not old.links
                    before = [each.answered for each in clients]
                    await until(
                        lambda: all(
                            each.answered > then + 10 for each, then in zip(clients, before, strict=True)
                        )
                    )
                    assert len(new.links) == len(clients)
                    for each in clients:
                        each.stop = True
                    await asyncio.gather(*asking)
                    assert all(each.reconnects >= 1 for each in clients)
                    assert sum(each.cut_inside for each in clients) == 0

    run(scene())


def test_without_it_a_second_gateway_does_not_come_up_beside_the_first() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway) as gate,
        ):
            with pytest.raises(OSError, match="Address already in use"):
                async with gateway(cluster.address, Gateway, listen=str(gate.listen), reuse_port="on"):
                    pass

    run(scene())


HANDED_OVER = """
import os, sys
numbers = [int(number) for number in sys.argv[1].split(",")]
for place, number in enumerate(numbers, 3):
    os.dup2(number, place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(numbers))}
os.execv(sys.executable, [sys.executable, "-m", "proxy", "proxy", *sys.argv[2:]])
"""
"""Starts a gateway as systemd does when it listens for it."""


@asynccontextmanager
async def _activated(
    listeners: list[socket.socket], *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway with sockets that listen already."""
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


def test_clients_wait_while_a_gateway_of_systemd_s_sockets_is_restarted() -> None:
    async def scene() -> None:
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
            waiting = [asyncio.create_task(_ask(port)) for port in (first, first + 2)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in waiting)
            async with _activated(listeners, *options):
                assert await asyncio.gather(*waiting) == [b"groups"] * 2
        for sock in listeners:
            sock.close()

    run(scene())


async def _ask(port: int) -> bytes:
    async with client(port) as (reader, writer):
        writer.write(request(LIST_GROUPS, 0, 1))
        return (await asyncio.wait_for(frame(reader), WAIT_SECONDS))[4:]
