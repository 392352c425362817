import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from proxy import admin
from proxy.admin import MAX_CONNECTIONS, MAX_HEAD_BYTES, Admin, saved_bytes, state
from proxy.events import SideTally, Tally
from proxy.listeners import bind
from proxy.routing import Address
from proxy.server import Gateway

from .shell import Wire, client, gateway, run, stub_broker, stub_cluster, until


@asynccontextmanager
async def _admin(gate: Gateway) -> AsyncIterator[tuple[int, Admin]]:
    sockets = bind(Address("127.0.0.1", 0))
    endpoint = Admin(gate)
    await endpoint.start(sockets)
    try:
        yield sockets[0].getsockname()[1], endpoint
    finally:
        endpoint.close()


async def _send(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read to the end: status, headers, body."""
    async with client(port) as (reader, writer):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Connection"] == "close"
    return int(first.split()[1]), headers, body


async def _get(port: int, path: str) -> tuple[int, Any]:
    status, headers, body = await _send(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return status, json.loads(body) if headers["Content-Type"] == "application/json" else body.decode()


def test_liveness_and_readiness() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0), (70_000, "", 0)) as cluster,
            gateway(cluster.address, Gateway) as gate,
            _admin(gate) as (port, _),
        ):
            assert await _get(port, "/livez") == (200, "alive\n")
            await until(lambda: gate.health().ready)
            left_out = "broker 70000: its port is outside 1-65535; see --broker-ports"
            assert await _get(port, "/readyz") == (200, {"state": "degraded", "reasons": [left_out]})
            del gate.brokers.known[70_000]
            assert await _get(port, "/readyz") == (200, {"state": "ready", "reasons": []})
            await gate.drain(1)
            assert await _get(port, "/readyz") == (503, {"state": "draining", "reasons": []})
            assert await _get(port, "/livez") == (200, "alive\n")

    run(scene())


def test_it_is_not_ready_before_the_bootstrap_answered() -> None:
    async def scene() -> None:
        async with gateway("127.0.0.1:1", Gateway) as gate, _admin(gate) as (port, _):
            await until(lambda: "Connection refused" in gate.health().reasons[0])
            assert await _get(port, "/readyz") == (
                503,
                {"state": "starting", "reasons": ["127.0.0.1:1: Connection refused"]},
            )

    run(scene())


def test_metrics_are_in_prometheus_text_format() -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate, _admin(gate) as (port, _):
            status, headers, body = await _send(port, b"GET /metrics?x=1 HTTP/1.1\r\n\r\n")
            assert status == 200
            assert headers["Content-Type"].startswith("text/plain; version=")
            assert b'\nfetchgate_fetch_request_bytes_total{side="client"} 0.0\n' in body

    run(scene())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /state HTTP/1.1\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /livez\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n" + b"a" * MAX_HEAD_BYTES, 431),
    ],
)
def test_what_is_no_request_for_it_is_refused(request_: bytes, status: int) -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate, _admin(gate) as (port, _):
            got, headers, _ = await _send(port, request_)
            assert got == status
            assert headers.get("Allow") == ("GET" if status == 405 else None)

    run(scene())


def test_a_peer_that_is_slow_or_one_too_many_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with stub_broker() as broker, gateway(broker.address) as gate, _admin(gate) as (port, endpoint):
            streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
            async with client(port) as (reader, _):
                assert await reader.read() == b"", "one too many"
            for _, writer in streams:
                writer.close()
            await until(lambda: not endpoint._open)
            monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.05)
            async with client(port) as (reader, writer):
                writer.write(b"GET /livez")
                assert await reader.read() == b"", "too slow"
            assert (await _get(port, "/livez"))[0] == 200

    run(scene())


def test_the_state_describes_brokers_and_connections() -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, sessions_off_for="b,a") as gate,
            _admin(gate) as (port, _),
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(b"hello")
            await reader.readexactly(5)
            (link,) = gate.links
            core = cast("Wire", link.core)
            core.session_id, core.session_epoch, core.session_partitions = 77, 3, 100
            core.software_name, core.software_version, core.fetch_version = "librdkafka", "2.16", 16
            core.tally.client = SideTally(bytes_in=5, fetch_request_bytes=100, fetch_response_bytes=50)
            core.tally.broker = SideTally(fetch_request_bytes=10, fetch_response_bytes=5)
            told = gate.brokers.resolve("127.0.0.1", 1, "kafka-1", 9092)
            assert told is not None

            status, shown = await _get(port, "/state")

            assert status == 200
            assert shown == json.loads(
                json.dumps(state(gate) | {"uptime_seconds": shown["uptime_seconds"]})
            ) | {"connections": shown["connections"]}
            assert shown["sessions"] == {"on": True, "off_for": ["a", "b"], "held": 0}
            assert shown["totals"]["saved_bytes"] == 135
            assert shown["brokers"] == [
                {"id": 1, "address": "kafka-1:9092", "listener": f"127.0.0.1:{told[1]}", "problem": ""}
            ]
            (connection,) = shown["connections"]
            assert connection.pop("age_seconds") >= 0
            assert connection["client"]["bytes_in"] == 5
            assert connection["saved_bytes"] == 135
            picked = {key: connection[key] for key in connection if key not in {"client", "broker"}}
            assert picked == {
                "client_address": link.client_address,
                "broker_address": broker.address,
                "broker_id": None,
                "phase": "open",
                "client_id": "t",
                "software_name": "librdkafka",
                "software_version": "2.16",
                "fetch_version": 16,
                "session_id": 77,
                "session_epoch": 3,
                "session_partitions": 100,
                "held_bytes": 0,
                "not_read": {"client": [], "broker": []},
                "last_event": "",
                "saved_bytes": 135,
                "session_errors": {},
                "passthrough": {},
            }

    run(scene())


def test_what_is_saved_can_be_less_than_nothing() -> None:
    tally = Tally(
        client=SideTally(fetch_request_bytes=5, fetch_response_bytes=5),
        broker=SideTally(fetch_request_bytes=10, fetch_response_bytes=6),
    )
    assert saved_bytes(tally) == -6


def test_a_long_list_of_connections_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MAX_LISTED", 1)

    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address) as gate,
            client(gate.listen.port) as (reader, writer),
            client(gate.listen.port),
        ):
            writer.write(b"hello")
            await reader.readexactly(5)
            await until(lambda: len(gate.links) == 2)
            shown = state(gate)
            assert shown["connections_open"] == 2
            assert [entry["client"]["bytes_out"] for entry in shown["connections"]] == [5]

    run(scene())
