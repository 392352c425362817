"""Tests that several processes work as one gateway.

The tests run real processes, as `--workers` starts them, behind one admin endpoint.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from proxy.addresses import Address
from proxy.options import ConfigError
from proxy.server import supervisor
from proxy.server.process import Process
from proxy.server.supervisor import Supervisor
from proxy.server.worker_handle import WorkerHandle
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import document
from proxy.telemetry.status import Counts, health_of
from tests.shell import (
    WAIT_SECONDS,
    StubCluster,
    client,
    config,
    frame,
    metadata,
    request,
    response,
    run,
    stub_cluster,
    until,
)
from tools.certificates import Authority

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIST_OFFSETS = 2


@asynccontextmanager
async def starting(
    bootstrap: str, number: int = 2, within: float = WAIT_SECONDS, /, **options: str
) -> AsyncIterator[Supervisor]:
    """Run a gateway with this number of workers.

    A worker may take `within` seconds to respond. On a busy machine it may be later than in use.
    """
    asked = config(bootstrap=bootstrap, workers=str(number), **options)
    gate = Supervisor(Process.of(asked, asyncio.get_running_loop(), structlog.get_logger()))
    with pytest.MonkeyPatch.context() as patch:
        for asks in (WorkerHandle.ask, Supervisor._ask_all):
            patch.setattr(asks, "__kwdefaults__", {"within": within})
        patch.setattr(supervisor, "LISTED_SECONDS", within)
        gate.open()
        try:
            yield gate
        finally:
            gate.close()


@asynccontextmanager
async def workers(
    bootstrap: str, number: int = 2, within: float = WAIT_SECONDS, /, **options: str
) -> AsyncIterator[Supervisor]:
    """Run a gateway with this number of workers, and wait until all of them serve."""
    async with starting(bootstrap, number, within, **options) as gate:
        await ready(gate)
        yield gate


async def ready(gate: Supervisor) -> None:
    await until(lambda: gate.status().bootstrap_answered and not gate.status().problems)


async def state(gate: Supervisor) -> Any:
    return json.loads(await document(gate))


async def ask(ends: Ends, correlation_id: int = 7) -> bytes:
    """Send a request that the stub cluster answers. Return the response."""
    reader, writer = ends
    writer.write(request(LIST_OFFSETS, 1, correlation_id, b"\x00" * 20))
    return await frame(reader)


@asynccontextmanager
async def served(
    number: int = 2, within: float = WAIT_SECONDS, /, **options: str
) -> AsyncIterator[tuple[Supervisor, StubCluster]]:
    async with stub_cluster((1, "", 0)) as cluster:
        cluster.others = lambda message: message[-4:]
        async with workers(cluster.address, number, within, **options) as gate:
            yield gate, cluster


async def connected(stack: AsyncExitStack, port: int, number: int) -> list[Ends]:
    """Connect this number of clients, and wait until each has received a response."""
    clients = []
    for _ in range(number):
        clients.append(await stack.enter_async_context(client(port)))
        await ask(clients[-1])
    return clients


def test_each_worker_gets_its_share_of_each_listener_and_all_is_reported_as_one() -> None:
    async def scene() -> None:
        async with served() as (gate, cluster), AsyncExitStack() as stack:
            listener = gate.brokers.known[1].listener
            assert listener is not None
            await connected(stack, gate.listen.port, 6)
            await connected(stack, listener.port, 4)
            told = await state(gate)
            assert [worker["connections"] for worker in told["workers"]] == [5, 5]
            assert len({worker["pid"] for worker in told["workers"]} | {os.getpid()}) == 3
            assert told["connections_open"] == told["connections_accepted"] == 10
            assert (told["bootstrap"]["connections"], told["brokers"][0]["connections"]) == (6, 4)
            assert len(told["connections"]) == 10
            assert told["totals"]["client"]["bytes_in"] == 10 * len(request(LIST_OFFSETS, 1, 7, b"\x00" * 20))
            assert cluster.accepted >= 10
            text = exposition(await gate.collect_account()).decode()
            assert 'fetchgate_connections{side="client"} 10.0' in text
            assert 'fetchgate_worker_connections{worker="2"} 5.0' in text
        assert gate.status().connections == 0

    run(scene())


def test_full_slots_are_a_problem_if_a_client_of_any_worker_lacks_one() -> None:
    async def scene() -> None:
        async with served(max_sessions="1") as (gate, _):
            gate._slots[1] = 1
            status = await gate.collect_status()
            assert health_of(status).state == "ready"
            status.add(replace(status, slots_lacking=True))
            status.add(replace(status, slots_lacking=False))
            (reason,) = health_of(status).reasons
            assert reason.startswith("all 1 session slots are used")

    run(scene())


def test_clients_that_come_before_the_workers_are_shared_out_as_well() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            starting(cluster.address) as gate,
            AsyncExitStack() as stack,
        ):
            cluster.others = lambda message: message[-4:]
            clients = [await stack.enter_async_context(client(gate.listen.port)) for _ in range(6)]
            await asyncio.gather(*map(ask, clients))
            assert [worker["connections"] for worker in (await state(gate))["workers"]] == [3, 3]

    run(scene())


@pytest.mark.slow
def test_where_a_worker_does_not_come_up_the_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.supervisor.TOGETHER_SECONDS", 0.05)
    start = subprocess.Popen

    def hang(arguments: list[str], **options: Any) -> Any:
        hangs = arguments[-2] == "2"
        return start([sys.executable, "-c", "import time; time.sleep(60)"] if hangs else arguments, **options)

    monkeypatch.setattr("proxy.server.worker_handle.subprocess.Popen", hang)

    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            starting(cluster.address) as gate,
            AsyncExitStack() as stack,
        ):
            cluster.others = lambda message: message[-4:]
            await connected(stack, gate.listen.port, 2)
            assert "worker 2 is not running yet" in health_of(await gate.collect_status()).reasons

    run(scene())


@pytest.mark.slow
def test_a_client_that_left_makes_room() -> None:
    async def scene() -> None:
        async with served(max_connections="4") as (gate, _), AsyncExitStack() as stack:
            clients = await connected(stack, gate.listen.port, 4)
            async with client(gate.listen.port) as (reader, _writer):
                assert await reader.read() == b""
            told = await state(gate)
            assert told["connections_turned_away"]["limit"] == 1
            assert "all 4 connections are used" in told["reasons"][0]
            clients[0][1].close()
            await until(lambda: gate.status().connections == 3)
            await connected(stack, gate.listen.port, 1)
            assert [worker["connections"] for worker in (await state(gate))["workers"]] == [2, 2]

    run(scene())


def test_a_worker_that_dies_takes_its_own_clients_alone_and_another_takes_its_place() -> None:
    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            clients = await connected(stack, gate.listen.port, 4)
            before = await state(gate)
            gate._slots[0], gate._slots[1] = 3, 2
            os.kill(before["workers"][0]["pid"], signal.SIGKILL)
            await until(lambda: gate.status().problems == ["worker 1 is not running yet"])
            ended = "worker 1 ended by signal 9; its clients must reconnect"
            await until(lambda: ended in [kept.text for kept in gate.process.events])  # it has exited
            assert gate.status().slots_used == 2, "what it held is free"
            left = await asyncio.gather(*(_still_served(each) for each in clients))
            assert sorted(left) == [False, False, True, True]
            await ready(gate)
            await connected(stack, gate.listen.port, 2)
            after = await state(gate)
            assert [worker["connections"] for worker in after["workers"]] == [2, 2]
            assert after["workers"][0]["pid"] != before["workers"][0]["pid"]
            assert after["connections_accepted"] == 6, "what it counted is kept"
            assert ended in [event["text"] for event in after["events"]]

    run(scene())


async def _still_served(ends: Ends) -> bool:
    try:
        return bool(await ask(ends))
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


@pytest.mark.slow
def test_of_workers_that_end_together_each_is_reported() -> None:
    async def scene() -> None:
        async with served() as (gate, _):
            for worker in (await state(gate))["workers"]:
                os.kill(worker["pid"], signal.SIGKILL)
            ended = [f"worker {number} ended by signal 9; its clients must reconnect" for number in (1, 2)]
            await until(lambda: {*ended} <= {kept.text for kept in gate.process.events})

    run(scene())


@pytest.mark.slow
def test_without_a_worker_clients_wait_for_the_next() -> None:
    async def scene() -> None:
        async with served(1) as (gate, _), AsyncExitStack() as stack:
            os.kill((await state(gate))["workers"][0]["pid"], signal.SIGKILL)
            await until(lambda: gate.status().problems)
            assert health_of(await gate.collect_status()).state == "starting"
            await connected(stack, gate.listen.port, 1)
            assert health_of(await gate.collect_status()).state == "ready"

    run(scene())


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.supervisor.START_AGAIN_SECONDS", (0.01, 0.01))
    start, failures = subprocess.Popen, [OSError(12, "Cannot allocate memory")]

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return start(*arguments, **options)

    monkeypatch.setattr("proxy.server.worker_handle.subprocess.Popen", fail_once)

    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            assert not failures
            await connected(stack, gate.listen.port, 2)

    run(scene())


@pytest.mark.slow
def test_without_a_descriptor_left_clients_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.acceptor.ACCEPT_AGAIN_SECONDS", 0.05)
    take, failures = socket.socket.accept, [OSError(24, "Too many open files")] * 3

    def fail(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return take(listener)

    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            monkeypatch.setattr(socket.socket, "accept", fail)
            await connected(stack, gate.listen.port, 1)
            assert not failures

    run(scene())


@pytest.mark.slow
def test_more_clients_than_a_worker_can_be_given_at_once_wait_their_turn() -> None:
    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            pids = [worker["pid"] for worker in (await state(gate))["workers"]]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            clients = [await stack.enter_async_context(client(gate.listen.port)) for _ in range(900)]
            await until(lambda: gate.acceptor.waiting)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            assert len(await asyncio.gather(*map(ask, clients))) == len(clients)
            assert (await state(gate))["connections_open"] == len(clients)

    run(scene())


@pytest.mark.slow
def test_a_gateway_that_leaves_while_a_worker_is_missing_ends_the_others() -> None:
    async def scene() -> None:
        async with served() as (gate, _):
            pids = [worker["pid"] for worker in (await state(gate))["workers"]]
            os.kill(pids[0], signal.SIGKILL)
            await until(lambda: gate.status().problems)
            gate.close()
            assert not any(map(_runs, pids))

    run(scene())


@pytest.mark.slow
def test_a_worker_that_dies_while_it_drains_is_not_replaced_and_holds_up_nobody() -> None:
    async def scene() -> None:
        async with served() as (gate, cluster), AsyncExitStack() as stack:
            clients = await connected(stack, gate.listen.port, 2)
            pids = [worker["pid"] for worker in (await state(gate))["workers"]]
            cluster.others = lambda _: b""
            for _reader, writer in clients:
                writer.write(request(LIST_OFFSETS, 1, 8, b"\x00" * 20))
            await until(lambda: cluster.received.count(b"\x00" * 20) == 4)
            draining = asyncio.create_task(gate.drain(0.5))
            await until(lambda: gate.status().draining)
            os.kill(pids[0], signal.SIGKILL)
            assert await draining == 2
            assert not any(map(_runs, pids))

    run(scene())


@pytest.mark.slow
def test_a_late_response_is_none_to_a_later_question() -> None:
    async def scene() -> None:
        async with served() as (gate, _):
            first = gate._workers[1]
            pid = (await state(gate))["workers"][0]["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                assert await first.ask("status", within=0.05) is None
                assert first.silent
                later = asyncio.create_task(first.ask("counts", within=WAIT_SECONDS))
                await asyncio.sleep(0)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert isinstance(await later, Counts)
            assert not first.silent

    run(scene())


@pytest.mark.slow
def test_what_a_worker_counted_that_ends_while_it_is_asked_is_reported_once() -> None:
    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            await connected(stack, gate.listen.port, 4)
            pid = (await state(gate))["workers"][0]["pid"]
            os.kill(pid, signal.SIGSTOP)
            asked = asyncio.create_task(gate.collect_account())
            status = asyncio.create_task(gate.collect_status())
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            assert (await asked).counts.accepted == 4
            assert not (await status).silent, "it is gone, and does not hang"
            assert (await gate.collect_account()).counts.accepted == 4

    run(scene())


@pytest.mark.slow
def test_what_a_worker_counted_is_reported_while_it_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.worker_handle.EXIT_SECONDS", WAIT_SECONDS)

    async def scene() -> None:
        async with served() as (gate, _), AsyncExitStack() as stack:
            await connected(stack, gate.listen.port, 4)
            assert (await gate.collect_account()).counts.accepted == 4
            first = gate._workers[1]
            with monkeypatch.context() as patch:
                patch.setattr(first._process, "poll", lambda: None)
                first._process.kill()
                await until(lambda: not first.up)
                account = await gate.collect_account()
                assert account.counts.accepted == 4
                assert account.status.problems == ["worker 1 is not running yet"]
                assert not account.status.silent
                await connected(stack, gate.listen.port, 2)
                assert gate._workers[1] is first, "it has not exited yet"
            await ready(gate)
            assert gate._workers[1] is not first
            assert (await gate.collect_account()).counts.accepted == 6

    run(scene())


@pytest.mark.slow
def test_workers_run_the_code_that_the_gateway_runs_wherever_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proxy").mkdir()
    (tmp_path / "proxy" / "__init__.py").write_text("raise SystemExit(77)")
    (tmp_path / "queue.py").write_text("raise SystemExit(78)")
    monkeypatch.chdir(tmp_path)

    async def scene() -> None:
        async with served(1) as (gate, _):
            assert "worker" not in " ".join(event["text"] for event in (await state(gate))["events"])

    run(scene())


def test_a_worker_that_could_never_be_started_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("proxy.server.worker_handle.subprocess.Popen", fail)

    async def scene() -> None:
        asked = config(transparent="redirect", workers="2")
        gate = Supervisor(Process.of(asked, asyncio.get_running_loop(), structlog.get_logger()))
        gate.open()
        await asyncio.sleep(0.01)
        try:
            health = health_of(await gate.collect_status())
        finally:
            gate.close()
        assert health.state == "starting"
        assert health.reasons == ["worker 1 is not running yet", "worker 2 is not running yet"]

    run(scene())


def _write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.mark.slow
def test_a_certificate_that_breaks_keeps_only_new_workers_away(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pair = Authority(tmp_path).sign("gate", "localhost")
    good = pair.chain

    async def scene() -> None:
        async with served(tls_cert=str(pair.cert), tls_key=str(pair.key)) as (gate, _):
            _write(pair.cert, "no certificate")
            os.kill((await state(gate))["workers"][0]["pid"], signal.SIGKILL)
            ended = "worker 1 ended with code 1; its clients must reconnect"
            await until(lambda: ended in [kept.text for kept in gate.process.events])
            _write(pair.cert, good)
            await ready(gate)

    run(scene())
    said = capfd.readouterr().err
    assert "worker can't start" in said
    assert "--tls-cert" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_worker_that_hangs_is_reported() -> None:
    async def scene() -> None:
        async with served(2, 0.5) as (gate, _):
            pid = (await state(gate))["workers"][1]["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    # On a busy machine the other one may be late as well, at times.
                    while "worker 1 does not respond" in (
                        reasons := health_of(status := await gate.collect_status()).reasons
                    ):
                        pass
                assert status.silent
                assert reasons == ["worker 2 does not respond"]
                assert [worker["number"] for worker in (await state(gate))["workers"]] == [1, 2]
            finally:
                os.kill(pid, signal.SIGCONT)

    run(scene())


@pytest.mark.slow
def test_what_applies_at_once_applies_in_every_worker() -> None:
    async def scene() -> None:
        async with served() as (gate, _):
            after = config(bootstrap="k:1", workers="2", sessions="off", max_inflight_bytes="1000")
            gate.reconfigure(after)
            told = [status for _, status in await gate._ask_all("status")]
            assert [status.config.sessions for status in told] == [False, False]
            assert [status.config.max_inflight_bytes for status in told] == [500, 500]
            assert not (await gate.collect_status()).config.sessions

    run(scene())


def test_a_broker_that_a_response_names_has_a_listener_before_the_client_hears_of_it() -> None:
    async def scene() -> None:
        async with served() as (gate, cluster), AsyncExitStack() as stack:
            (ends,) = await connected(stack, gate.listen.port, 1)
            cluster.brokers = ((1, "127.0.0.1", cluster.port), (5, "127.0.0.1", cluster.port))
            reader, writer = ends
            writer.write(request(3, 1, 9, b"\xff\xff\xff\xff"))
            told = await frame(reader)
            listener = gate.brokers.known[5].listener
            assert listener is not None
            ours = ((1, "127.0.0.1", listener.port - 4), (5, "127.0.0.1", listener.port))
            assert told == response(9, metadata(*ours))[4:]
            await connected(stack, listener.port, 2)  # one of them is served by the worker that did not ask
            assert (await state(gate))["brokers"][1]["connections"] == 2

    run(scene())


def test_to_drain_finishes_what_is_in_flight_in_every_worker() -> None:
    async def scene() -> None:
        async with served() as (gate, cluster), AsyncExitStack() as stack:
            clients = await connected(stack, gate.listen.port, 4)
            later: list[bytes] = []
            cluster.others = lambda message: _kept(later, message)
            for _reader, writer in clients:
                writer.write(request(LIST_OFFSETS, 1, 8, b"\x00" * 20))
            await until(lambda: len(later) == 4)
            draining = asyncio.create_task(gate.drain(10.0))
            await until(lambda: gate.status().draining)
            for writer in cluster.writers:
                writer.write(response(8, b"late"))
            for reader, _writer in clients:
                assert await frame(reader) == response(8, b"late")[4:]
                assert await reader.read() == b""
                _writer.close()
            assert await draining == 0
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", gate.listen.port)

    run(scene())


def _kept(kept: list[bytes], message: bytes) -> bytes:
    kept.append(message)
    return b""


@pytest.mark.slow
def test_what_takes_longer_than_the_drain_is_cut_off_and_counted() -> None:
    async def scene() -> None:
        async with served() as (gate, cluster), AsyncExitStack() as stack:
            clients = await connected(stack, gate.listen.port, 2)
            cluster.others = lambda _: b""
            clients[0][1].write(request(LIST_OFFSETS, 1, 8, b"\x00" * 20))
            await until(lambda: cluster.received.count(b"\x00" * 20) == 3)
            clients[1][1].close()
            assert await gate.drain(0.3) == 1

    run(scene())


@pytest.mark.slow
def test_workers_end_with_the_gateway_however_it_ends() -> None:
    async def scene() -> None:
        async with stub_cluster((1, "", 0)) as cluster:
            options = [
                "--bootstrap",
                cluster.address,
                "--workers",
                "2",
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "off",
            ]
            gateway = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "proxy", "proxy", *options, stderr=subprocess.PIPE
            )
            try:
                await until(lambda: len(_children(gateway.pid)) == 2)
                children = _children(gateway.pid)
            finally:
                gateway.kill()
                await gateway.communicate()
            await until(lambda: not any(_runs(pid) for pid in children))

    run(scene())


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_tls_of_clients_ends_in_the_workers(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("gate", "localhost")
    trusts = ssl.create_default_context(cafile=authority.file)

    async def scene() -> None:
        async with served(tls_cert=str(pair.cert), tls_key=str(pair.key)) as (gate, _):
            for _ in range(2):
                async with client(gate.listen.port, trusts, "localhost") as ends:
                    assert await ask(ends) == response(7, b"\x00" * 4)[4:]
            async with client(gate.listen.port) as (reader, writer):
                writer.write(b"no TLS at all")
                assert await reader.read() == b""
            # A client sees the end of its connection before the worker has let go of it.
            while (told := await state(gate))["connections_open"]:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)
            assert told["connections_accepted"] == 2

    run(scene())


def test_a_capture_takes_one_process() -> None:
    with pytest.raises(
        ConfigError, match="--capture works with one process only; leave out --workers, or set it to 1"
    ):
        config(bootstrap="k:1", workers="2", capture="/tmp/somewhere")


@pytest.mark.slow
def test_nothing_listens_where_nothing_can_be_bound() -> None:
    async def scene() -> None:
        async with served(1) as (gate, _):
            asked = config(bootstrap="k:1", workers="2", listen=str(Address("127.0.0.1", gate.listen.port)))
            another = Supervisor(Process.of(asked, asyncio.get_running_loop(), structlog.get_logger()))
            with pytest.raises(OSError, match="in use"):
                another.open()
            another.close()

    run(scene())
