"""The complete gateway with the real core, in front of a stub cluster."""

import asyncio
import socket
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.core.budget import STALL_SECONDS
from proxy.core.events import SideTally, Tally
from proxy.protocol.api import ApiKey
from proxy.server import registry, server
from proxy.server.gateway import Gateway
from proxy.telemetry.status import Health
from tests.shell import (
    client,
    expire_once_connected,
    frame,
    gateway,
    metadata,
    request,
    response,
    stub_cluster,
    until,
)
from tools.kafka.ports import free_ports

LIST_GROUPS = ApiKey.LIST_GROUPS


async def test_it_is_ready_once_the_cluster_was_asked_and_its_listeners_are_open() -> None:
    async with stub_cluster((0, "", 0), (1, "", 0)) as cluster:
        async with gateway(cluster.address, Gateway) as gate:
            assert gate.health() == Health(state="starting", reasons=["the bootstrap has not been asked yet"])
            await until(lambda: gate.health().state == "ready")
            assert gate.health() == Health(state="ready", reasons=[])
            for node_id in (0, 1):
                async with client(gate.listen.port + 1 + node_id):
                    pass
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", gate.listen.port)


async def test_an_unreachable_bootstrap_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RETRY_SECONDS", (0.02, 0.05))

    port = free_ports()
    with capture_logs() as lines:
        async with gateway(f"127.0.0.1:{port}", Gateway) as gate:
            reason = f"127.0.0.1:{port}: Connection refused"
            await until(lambda: gate.health().reasons == [reason])
            assert gate.health().state == "starting"
            await asyncio.sleep(0.2)
            async with stub_cluster((1, "", 0), port=port):
                await until(lambda: gate.health().state == "ready")
    said = [(line["log_level"], line["event"]) for line in lines if line["event"] != "listening"]
    assert said == [("warning", "bootstrap unreachable, trying again"), ("info", "ready")]


async def test_a_bootstrap_that_goes_away_degrades_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RETRY_SECONDS", (0.02, 0.05))
    monkeypatch.setattr(registry, "REFRESH_SECONDS", 0.02)

    port = free_ports()
    async with stub_cluster((1, "", 0), port=port) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        await cluster.stop()
        await until(lambda: gate.health().state == "degraded")
        assert gate.health().ready
        async with stub_cluster((1, "", 0), port=port):
            await until(lambda: gate.health().state == "ready")


async def test_a_bootstrap_that_hangs_after_a_response_is_not_asked_for_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "RETRY_SECONDS", (0.02, 0.05))
    monkeypatch.setattr(registry, "REFRESH_SECONDS", 0.02)

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        cluster.responses = lambda _: b""
        expire_once_connected(monkeypatch)
        await until(lambda: gate.health().state == "degraded")
        assert f"{cluster.address}: no response in 10 s" in gate.health().reasons


async def test_a_broker_whose_port_is_taken_degrades_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "TICK_SECONDS", 0.02)

    port = free_ports(4)
    with closing(socket.create_server(("127.0.0.1", port + 2))):
        async with (
            stub_cluster((0, "", 0), (1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}") as gate,
        ):
            reason = (
                f"broker 1: 127.0.0.1:{port + 2} can't be bound: Address already in use; "
                "give it another port with --broker-ports"
            )
            await until(lambda: gate.health() == Health(state="degraded", reasons=[reason]))
            async with client(port) as (reader, writer):
                writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
                assert await frame(reader) == struct.pack(">i", 5) + metadata((0, "127.0.0.1", port + 1))
    async with (
        stub_cluster((0, "", 0), (1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}") as gate,
    ):
        await until(lambda: gate.health().state == "ready")


async def test_where_no_broker_has_a_listener_the_gateway_is_not_ready() -> None:
    """With ids of nine digits, as in some clouds, there is no port by the id."""
    first, second = 900_000_001, 900_000_002
    port = free_ports(3)
    async with (
        stub_cluster((first, "", 0), (second, "", 0)) as cluster,
        gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}") as gate,
    ):
        left_out = (
            "broker {}: its port is outside 1-65535; give it a port with --broker-ports, or all brokers with "
            "--listen-ports"
        )
        reasons = [left_out.format(first), left_out.format(second)]
        await until(lambda: gate.health() == Health(state="starting", reasons=reasons))
        assert not gate.health().ready
    async with (
        stub_cluster((first, "", 0), (second, "", 0)) as cluster,
        gateway(
            cluster.address, Gateway, listen=f"127.0.0.1:{port}", listen_ports=f"{port + 1}-{port + 1}"
        ) as gate,
    ):
        reason = f"broker {second}: all ports of --listen-ports are used; give more of them"
        await until(lambda: gate.health() == Health(state="degraded", reasons=[reason]))
        async with client(port) as (reader, writer):
            writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
            assert await frame(reader) == struct.pack(">i", 5) + metadata((first, "127.0.0.1", port + 1))


async def test_a_client_gets_the_address_of_a_broker_whose_listener_leads_to_it() -> None:
    async with stub_cluster() as other, stub_cluster() as cluster:
        other.others = lambda _: b"from the other"
        async with (
            gateway(cluster.address, Gateway) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            await until(lambda: gate.health().state == "ready")
            cluster.brokers = ((3, "127.0.0.1", other.port),)
            writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
            at = gate.listen.port + 4
            assert await frame(reader) == struct.pack(">i", 5) + metadata((3, "127.0.0.1", at))
            async with client(at) as (broker_reader, broker_writer):
                broker_writer.write(request(LIST_GROUPS, 0, 9))
                assert await frame(broker_reader) == struct.pack(">i", 9) + b"from the other"


@pytest.mark.parametrize(
    ("options", "told"), [({}, "127.0.0.2"), ({"advertise": "gate.example"}, "gate.example")]
)
async def test_behind_a_wildcard_a_client_is_told_where_it_found_the_gateway(
    options: dict[str, str], told: str
) -> None:
    port = free_ports(3)
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, listen=f"0.0.0.0:{port}", **options),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.2", port)
        writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
        assert await frame(reader) == struct.pack(">i", 5) + metadata((1, told, port + 2))
        writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_at_all_ipv6_addresses_clients_of_ipv4_are_served_as_well(host: str) -> None:
    port = free_ports(3)
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, listen=f"[::]:{port}"),
    ):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
        assert await frame(reader) == struct.pack(">i", 5) + metadata((1, host, port + 2))
        writer.close()
        _, writer = await asyncio.open_connection(host, port + 2)
        writer.close()


async def test_after_a_restart_listeners_are_open_before_the_cluster_responses(tmp_path: Path) -> None:
    port, state = free_ports(3), str(tmp_path / "state.json")
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}", state=state) as gate,
    ):
        await until(lambda: gate.health().state == "ready")
    async with (
        gateway("127.0.0.1:1", Gateway, listen=f"127.0.0.1:{port}", state=state),
        client(port + 2),
    ):
        pass


async def test_a_drain_finishes_what_is_in_flight_and_takes_nobody_new() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
        client(gate.listen.port) as (idle, idle_writer),
    ):
        writer.write(request(LIST_GROUPS, 0, 1))
        await until(lambda: request(LIST_GROUPS, 0, 1) in cluster.received)
        draining = asyncio.create_task(gate.drain(20))
        assert await idle.read() == b""
        idle_writer.close()
        assert gate.health().state == "draining"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", gate.listen.port)
        assert not draining.done()
        for broker in cluster.writers:
            broker.write(response(1, b"late"))
        assert await frame(reader) == struct.pack(">i", 1) + b"late"
        assert await reader.read() == b""
        writer.close()
        assert await draining == 0


@pytest.mark.parametrize(
    ("count", "waits"),
    [
        (0, []),
        (1, [0.0]),
        (3, [0.0, 0.1, 0.2]),
        (1000, [number * 0.01 for number in range(1000)]),
    ],
)
def test_clients_end_one_after_the_other_in_the_first_half_of_a_drain(count: int, waits: list[float]) -> None:
    """Otherwise all clients would come to another gateway in one moment."""
    assert server.drain_waits(count, 20.0) == pytest.approx(waits)


async def test_all_connections_of_a_client_end_together_in_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of cooperative groups need all their connections at one process."""
    ended: list[int] = []

    def at_once(count: int, _within: float) -> list[float]:
        ended.append(count)
        return [0.0] * count

    monkeypatch.setattr(server, "drain_waits", at_once)
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (one, _),
        client(gate.listen.port) as (other, _),
    ):
        await until(lambda: len(gate.server.links) == 2)
        assert await gate.drain(20) == 0
        assert await one.read() == await other.read() == b""
    assert ended == [1]


async def test_a_drain_ends_when_its_time_is_over() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(request(LIST_GROUPS, 0, 1))
        await until(lambda: request(LIST_GROUPS, 0, 1) in cluster.received)
        assert await gate.drain(0.1) == 1
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await frame(reader)


async def test_a_drain_with_no_client_is_over_at_once() -> None:
    async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
        assert await gate.drain(20) == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff\x00\x01",
        b"\x00\x00\x00\x02\x00\x01",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["http", "negative", "empty", "huge", "short", "tls"],
)
async def test_a_client_that_sends_garbage_is_closed_and_others_are_unharmed(garbage: bytes) -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        cluster.others = lambda _: b"ok"
        with capture_logs() as lines:
            async with client(gate.listen.port) as (bad_reader, bad_writer):
                bad_writer.write(garbage)
                assert await bad_reader.read() == b""
            await until(lambda: len(gate.server.links) == 1)
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["connection fault"]
        writer.write(request(LIST_GROUPS, 0, 1))
        assert await frame(reader) == struct.pack(">i", 1) + b"ok"


async def test_a_connection_cut_at_any_byte_of_a_request_leaves_nothing_behind() -> None:
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        cluster.others = lambda _: b"ok"
        sent = request(LIST_GROUPS, 0, 1) + request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0))
        for size in range(len(sent)):
            async with client(gate.listen.port) as (_, writer):
                writer.write(sent[:size])
                await writer.drain()
        await until(lambda: not gate.server.links)
        await until(lambda: not cluster.open)
        assert gate.server.sessions.used == 0
        assert gate.server.budget.total == 0


async def test_a_broker_cut_at_any_byte_of_a_response_closes_its_client() -> None:
    whole = response(1, metadata((1, "kafka-1", 9092)))
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready" and not cluster.open)
        for size in range(len(whole)):
            async with client(gate.listen.port) as (reader, writer):
                await until(lambda: cluster.open == 1)
                cluster.writers[0].write(whole[:size])
                cluster.writers[0].close()
                assert await reader.read() in {b"", whole[:size]}
                writer.close()
            await until(lambda: not gate.server.links and not cluster.open)
        assert gate.server.budget.total == 0


async def test_a_broker_that_sends_a_response_to_no_request_ends_that_connection() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
    ):
        await until(lambda: gate.health().state == "ready" and not cluster.open)
        with capture_logs() as lines:
            async with client(gate.listen.port) as (reader, _):
                await until(lambda: cluster.open == 1)
                cluster.writers[0].write(response(1, b"nobody asked"))
                assert await reader.read() == b""
        faults = [line["side"] for line in lines if line["event"] == "connection fault"]
        assert faults == ["broker"]


async def test_the_switch_turns_for_all_connections_at_once() -> None:
    async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
        assert (gate.server.sessions.on, gate.server.sessions.off_for) == (True, frozenset())
        gate.reconfigure(replace(gate.process.config, sessions=False, sessions_off_for=frozenset({"a"})))
        assert (gate.server.sessions.on, gate.server.sessions.off_for) == (False, frozenset({"a"}))


async def test_a_link_that_stalls_while_others_wait_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)

    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway, max_inflight_bytes="100") as gate,
        client(gate.listen.port) as (reader, _),
    ):
        await until(lambda: len(gate.server.links) == 1)
        (link,) = gate.server.links
        async with client(gate.listen.port):
            await until(lambda: len(gate.server.links) == 2)
            (other,) = gate.server.links - {link}
            gate.server.budget.update(link, 200)
            gate.server.budget.update(other, 1)
            link.buffered_changed_at = -STALL_SECONDS
            monkeypatch.setattr(type(link), "report_buffered", lambda _: None)
            assert await _closed(reader)


async def test_what_has_passed_through_the_heap_is_returned_once_there_is_much_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory that is free again is returned to the system when there is much of it. 300 clients that had sent
    headers of 200 kB and were idle left 126 MB of free memory.
    """
    monkeypatch.setattr(server, "TICK_SECONDS", 0.001)
    resident, returned, ticks = [60_000_000], list[int](), list[int]()

    def look() -> int:
        ticks.append(resident[0])
        return resident[0]

    def give_back() -> None:
        returned.append(resident[0])
        resident[0] -= 10_000_000

    monkeypatch.setattr(server, "resident_bytes", look)
    monkeypatch.setattr(server, "give_back", give_back)

    async def becomes(size: int) -> None:
        resident[0] = size
        seen = len(ticks)
        await until(lambda: len(ticks) > seen + 3)

    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway):
        await becomes(60_000_000)
        await becomes(60_000_000 + server.TRIM_BYTES)
        assert not returned
        await becomes(100_000_000)
        assert returned == [100_000_000]  # what is left is in use
        await becomes(90_000_000 + server.TRIM_BYTES)
        assert len(returned) == 1
        await becomes(50_000_000)
        await becomes(90_000_000)  # it has shrunk meanwhile
        assert returned == [100_000_000, 90_000_000]
        monkeypatch.setattr(server, "TRIM_SECONDS", 0.0)  # what was in use then may be free now
        await until(lambda: resident[0] == 60_000_000)


async def _closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_tallies_add_up() -> None:
    total = Tally(client=SideTally(bytes_in=1, fetches=[1, 2, 3, 4]))
    part = Tally(
        client=SideTally(
            bytes_in=10,
            bytes_out=20,
            fetch_request_bytes=30,
            fetch_response_bytes=40,
            fetch_record_bytes=50,
            fetches=[1, 1, 1, 1],
            partitions_requested=60,
            partitions_answered=70,
        ),
        broker=SideTally(bytes_in=5),
    )
    part.session_errors[70] += 1
    part.passthrough["opaque"] += 2

    total.add(part)
    total.add(part)

    assert total.client == SideTally(
        bytes_in=21,
        bytes_out=40,
        fetch_request_bytes=60,
        fetch_response_bytes=80,
        fetch_record_bytes=100,
        fetches=[3, 4, 5, 6],
        partitions_requested=120,
        partitions_answered=140,
    )
    assert total.broker == SideTally(bytes_in=10)
    assert total.session_errors == {70: 2}
    assert total.passthrough == {"opaque": 4}
