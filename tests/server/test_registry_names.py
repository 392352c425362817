"""If DNS does not answer for the host name of one broker, clients of other brokers are not delayed."""

import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from proxy.protocol.api import ApiKey
from proxy.server import registry
from proxy.server.gateway import Gateway
from proxy.telemetry.status import Health
from tests.names import Names
from tests.shell import (
    BOTH_LOOPS,
    WAIT_SECONDS,
    StubCluster,
    client,
    frame,
    gateway,
    link_of,
    metadata,
    request,
    run,
    stub_cluster,
    until,
)
from tests.telemetry.test_admin import admin_of, send
from tools.kafka.ports import free_ports

METADATA = request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0))
LIST_GROUPS = request(ApiKey.LIST_GROUPS, 0, 9)
LOOKING_UP = "broker {}: the name b-{}.silent.example is being looked up"


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time limit for responses that wait until listeners are ready."""
    monkeypatch.setattr(registry, "OPEN_SECONDS", WAIT_SECONDS)


async def _exchange(port: int) -> bytes:
    async with client(port) as (reader, writer):
        writer.write(LIST_GROUPS)
        return await frame(reader)


@asynccontextmanager
async def _named(*brokers: int) -> AsyncIterator[tuple[Gateway, StubCluster]]:
    """Run a gateway whose broker listeners have host names.

    The stub cluster lists `brokers` in its answers to clients, but not in its answers to the gateway itself.
    """
    port = free_ports(2)
    rule = f"b-{{id}}.silent.example:{port + 1}"
    async with (
        stub_cluster() as cluster,
        gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}", broker_ports=rule) as gate,
    ):
        cluster.others = lambda _: b"ok"
        await until(lambda: gate.health().state == "ready")
        cluster.brokers = tuple((each, "127.0.0.1", cluster.port) for each in brokers)
        yield gate, cluster


@BOTH_LOOPS
def test_clients_of_a_broker_whose_name_hangs_delay_no_other(fake_names: Names, plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_cluster() as cluster,
            gateway(cluster.address, Gateway) as gate,
            AsyncExitStack() as stack,
        ):
            await until(lambda: gate.health().state == "ready")
            cluster.others = lambda _: b"ok"
            cluster.brokers = ((1, "a.silent.example", 9092), (2, "broker.example", cluster.port))
            async with client(gate.listen.port) as (reader, writer):
                writer.write(METADATA)
                await frame(reader)
            waiting = [await stack.enter_async_context(client(gate.listen.port + 2)) for _ in range(60)]
            await until(
                lambda: fake_names.lookups["a.silent.example"] and len(gate.server.links) == len(waiting)
            )

            assert await _exchange(gate.listen.port + 3) == struct.pack(">i", 9) + b"ok"

            assert fake_names.lookups == {"a.silent.example": 1, "broker.example": 1}
            assert not fake_names.ended
            fake_names.speak({"a.silent.example": "127.0.0.1"})

    run(scene(), plain=plain)


@pytest.mark.usefixtures("_patient")
async def test_a_response_waits_for_a_name_and_nobody_else_does(fake_names: Names) -> None:
    async with (
        _named(1) as (gate, _),
        admin_of(gate) as (admin, _endpoint),
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(METADATA)
        writer.write(LIST_GROUPS)
        await until(lambda: fake_names.lookups["b-1.silent.example"])

        assert (await send(admin, b"GET /livez HTTP/1.1\r\n\r\n"))[0] == 200
        assert gate.health() == Health(state="starting", reasons=[LOOKING_UP.format(1, 1)])
        assert await _exchange(gate.listen.port) == struct.pack(">i", 9) + b"ok"
        assert isinstance(gate.brokers, registry.BrokerRegistry)
        gate.brokers.retry()  # as every 5 seconds
        assert await _exchange(gate.listen.port) == struct.pack(">i", 9) + b"ok"
        assert fake_names.lookups["b-1.silent.example"] == 1
        assert not fake_names.ended

        fake_names.speak({"b-1.silent.example": "127.0.0.1"})
        at = gate.listen.port + 1
        assert await frame(reader) == struct.pack(">i", 5) + metadata((1, "b-1.silent.example", at))
        assert await frame(reader) == struct.pack(">i", 9) + b"ok", "its next response comes after that"
        assert gate.health().state == "ready"
        assert await _exchange(at) == struct.pack(">i", 9) + b"ok"


async def test_a_name_that_takes_long_is_left_out(fake_names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OPEN_SECONDS", 0.02)

    async with _named(1) as (gate, _), client(gate.listen.port) as (reader, writer):
        for _ in range(2):
            writer.write(METADATA)
            assert await frame(reader) == struct.pack(">i", 5) + metadata()
        assert gate.health() == Health(state="starting", reasons=[LOOKING_UP.format(1, 1)])
        assert not fake_names.ended
        fake_names.speak({"b-1.silent.example": "127.0.0.1"})
        await until(lambda: gate.health().state == "ready")
        writer.write(METADATA)
        at = gate.listen.port + 1
        assert await frame(reader) == struct.pack(">i", 5) + metadata((1, "b-1.silent.example", at))


@pytest.mark.usefixtures("_patient")
async def test_a_broker_that_closes_ends_the_wait_for_a_name(fake_names: Names) -> None:
    async with _named(1) as (gate, cluster), client(gate.listen.port) as (reader, writer):
        writer.write(METADATA)
        await until(lambda: fake_names.lookups["b-1.silent.example"])
        cluster.writers[-1].close()
        assert await frame(reader) == struct.pack(">i", 5) + metadata()
        assert await reader.read() == b""
        assert not fake_names.ended


async def test_a_bootstrap_whose_name_hangs_stops_no_other(fake_names: Names) -> None:
    async with (
        stub_cluster((1, "broker.example", 0)) as cluster,
        gateway(f"a.silent.example:9092,{cluster.address}", Gateway) as gate,
    ):
        await until(lambda: fake_names.lookups["a.silent.example"])
        fake_names.end()
        await until(lambda: gate.health().state == "ready")
        assert str(gate.monitor.reach.bootstrap[0]) == cluster.address


@pytest.mark.usefixtures("_patient")
async def test_what_a_waiting_response_took_of_the_budget_is_free_again(fake_names: Names) -> None:
    async with _named(1) as (gate, _), client(gate.listen.port) as (reader, writer):
        writer.write(METADATA)
        await until(lambda: gate.server.budget.total)
        fake_names.speak({"b-1.silent.example": "127.0.0.1"})
        await frame(reader)
        assert gate.server.budget.total == 0


@pytest.mark.usefixtures("_patient")
async def test_a_client_that_left_meanwhile_is_no_defect(fake_names: Names) -> None:
    """If a client leaves while its response waits for a listener, no error is logged.

    When the response is ready, the client's socket is already closing.
    """
    with capture_logs() as lines:
        async with _named(1) as (gate, _), client(gate.listen.port) as (_reader, writer):
            writer.write(METADATA)
            await until(lambda: fake_names.lookups["b-1.silent.example"])
            link = link_of(gate)
            link.finish()
            fake_names.speak({"b-1.silent.example": "127.0.0.1"})
            await until(lambda: gate.health().state == "ready")
            await until(lambda: not gate.server.links)
    assert not [line for line in lines if line["log_level"] == "error"]
