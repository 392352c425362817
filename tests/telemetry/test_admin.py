import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from socket import create_connection
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.command.config import load
from proxy.features.declared import FEATURES
from proxy.net.listen import Binding
from proxy.server.gateway import Gateway
from proxy.telemetry import admin
from proxy.telemetry.admin import MAX_CONNECTIONS, MAX_HEAD_BYTES, METRICS_AT_ONCE, AdminEndpoint
from proxy.telemetry.metrics import exposition
from proxy.telemetry.status import Account
from tests.shell import BOTH_LOOPS, client, gateway, run, stub_broker, stub_cluster, until


@asynccontextmanager
async def admin_of(gate: Gateway) -> AsyncIterator[tuple[int, AdminEndpoint]]:
    sockets = Binding().bind(Address("127.0.0.1", 0))
    endpoint = AdminEndpoint(gate, ["Gateway.example"])
    endpoint.start(sockets)
    try:
        yield sockets[0].getsockname()[1], endpoint
    finally:
        endpoint.close()


async def send(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, and read until the connection ends. Return status, headers and body."""
    async with client(port) as (reader, writer):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head, "closed without a response"
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Connection"] == "close"
    return int(first.split()[1]), headers, body


async def get(port: int, path: str) -> tuple[int, Any]:
    status, headers, body = await send(port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n".encode())
    return status, json.loads(body) if headers["Content-Type"] == "application/json" else body.decode()


async def test_liveness_and_readiness() -> None:
    async with (
        stub_cluster((1, "", 0), (70_000, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        admin_of(gate) as (port, _),
    ):
        assert await get(port, "/livez") == (200, "alive\n")
        await until(lambda: gate.health().ready)
        left_out = (
            "broker 70000: its port is outside 1-65535; "
            "give it a port with --broker-ports, or all brokers with --listen-ports"
        )
        assert await get(port, "/readyz") == (200, {"state": "degraded", "reasons": [left_out]})
        del gate.brokers.known[70_000]
        assert await get(port, "/readyz") == (200, {"state": "ready", "reasons": []})
        await gate.drain(1)
        assert await get(port, "/readyz") == (503, {"state": "draining", "reasons": []})
        assert await get(port, "/livez") == (200, "alive\n")


async def test_it_is_not_ready_before_the_bootstrap_answered() -> None:
    async with gateway("127.0.0.1:1", Gateway) as gate, admin_of(gate) as (port, _):
        await until(lambda: "Connection refused" in gate.health().reasons[0])
        assert await get(port, "/readyz") == (
            503,
            {"state": "starting", "reasons": ["127.0.0.1:1: Connection refused"]},
        )


async def test_metrics_are_in_prometheus_text_format() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        status, headers, body = await send(port, b"GET /metrics?x=1 HTTP/1.1\r\n\r\n")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=")
        assert b'\nfetchgate_fetch_request_bytes_total{side="client"} 0.0\n' in body


async def test_the_text_of_metrics_is_kept_for_peers_that_read_it_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = 0

    def counted(account: Account) -> bytes:
        nonlocal written
        written += 1
        return exposition(account)

    monkeypatch.setattr(admin, "exposition", counted)
    monkeypatch.setattr(admin, "METRICS_SECONDS", 600.0)
    async with (
        stub_broker() as broker,
        gateway(broker.address, Gateway) as gate,
        admin_of(gate) as (port, _),
    ):
        texts = [(await get(port, "/metrics"))[1] for _ in range(20)]
        assert written == METRICS_AT_ONCE
        assert {*texts[METRICS_AT_ONCE:]} == {texts[METRICS_AT_ONCE - 1]}
        monkeypatch.setattr(admin, "METRICS_SECONDS", 0.0)
        await get(port, "/metrics")
        assert written == METRICS_AT_ONCE + 1


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
async def test_what_is_no_request_for_it_is_refused(request_: bytes, status: int) -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        got, headers, _ = await send(port, request_)
        assert got == status
        assert headers.get("Allow") == ("GET, HEAD" if status == 405 else None)


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics/"])
async def test_at_another_path_it_says_which_paths_there_are(path: str) -> None:
    of_features = "".join(f", {each.page}" for each in FEATURES if each.page)
    told = f"nothing is at this path; fetchgate answers at /livez, /readyz, /metrics, /state{of_features}\n"
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        assert await get(port, path) == (404, told)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("", 200),  # HTTP/1.0
        ("Host: localhost", 200),
        ("host:LOCALHOST:9464", 200),
        ("Host: 127.0.0.1:9464", 200),
        ("Host: 10.1.2.3", 200),  # of a pod, as the kubelet and Prometheus ask
        ("Host: [::1]:9464", 200),
        ("Host: gateway.example", 200),
        ("Host: Gateway.Example.:9464", 200),
        ("Host: evil.example", 421),
        ("Host: evil.example:9464", 421),
        ("Host: localhost.evil.example", 421),
        ("Host: 127.0.0.1.evil.example", 421),
        ("Host: [evil.example]", 421),
        ("Host:", 421),
    ],
)
@pytest.mark.parametrize("path", ["/livez", "/metrics", "/state"])
async def test_a_web_page_can_not_ask_by_a_name_of_its_own(path: str, host: str, status: int) -> None:
    """The admin endpoint refuses a request (421) whose Host header has a name that the gateway does not know.

    Otherwise a web page could read the answer by DNS rebinding: it would let its own name lead to the
    gateway.
    """
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        request = "\r\n".join([f"GET {path} HTTP/1.1", *filter(None, [host]), "", ""])
        got, _, body = await send(port, request.encode())
        assert got == status
        assert (b"--admin-names" in body) == (status == 421)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/state", "/nothing"])
async def test_head_has_the_fields_of_get_without_its_body(path: str) -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        heads = []
        for method in ("GET", "HEAD"):
            async with client(port) as (reader, writer):
                writer.write(f"{method} {path} HTTP/1.1\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            heads.append(re.sub(rb"Content-Length: \d+", b"", head))
            assert bool(body) == (method == "GET")
        assert heads[0] == heads[1]
        assert b"Content-Type" in heads[1]


async def test_a_slow_peer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, _):
        monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.05)
        async with client(port) as (reader, writer):
            writer.write(b"GET /livez")
            assert await reader.read() == b""


async def test_a_peer_is_not_closed_because_its_response_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        admin_of(gate) as (port, end),
    ):
        monkeypatch.setattr(admin, "REQUEST_SECONDS", 1.0)

        async def takes_long(_query: str) -> admin.Response:
            await asyncio.sleep(1.5)
            return HTTPStatus.OK, "text/plain", b"at last\n"

        end._routes["/livez"] = takes_long
        assert await get(port, "/livez") == (200, "at last\n")


async def test_a_peer_is_not_closed_because_the_gateway_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the gateway may read a request seconds after it has arrived."""
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        admin_of(gate) as (port, end),
    ):
        monkeypatch.setattr(admin, "REQUEST_SECONDS", 3.0)
        async with client(port) as (reader, writer):
            await until(lambda: end._open)
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            time.sleep(3.5)  # noqa: ASYNC251 - the gateway of this test runs in this thread
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


async def test_a_peer_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        admin_of(gate) as (port, end),
    ):
        monkeypatch.setattr(admin, "RESPONSE_SECONDS", 0.05)
        size = 50_000_000  # more than sockets hold

        async def large(_query: str) -> admin.Response:
            return HTTPStatus.OK, "text/plain", bytes(size)

        end._routes["/livez"] = large
        async with client(port) as (reader, writer):
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            reader._transport.pause_reading()  # type: ignore[attr-defined] # no public way not to read
            await until(lambda: end._open)
            await until(lambda: not end._open)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            received = 0
            with suppress(ConnectionError):
                while data := await reader.read(1 << 20):
                    received += len(data)
            assert received < size, "the gateway kept the rest for this peer"


async def test_peers_that_send_nothing_do_not_keep_out_a_probe() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        admin_of(gate) as (port, end),
    ):
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        await until(lambda: len(end._open) == MAX_CONNECTIONS)
        assert (await get(port, "/livez"))[0] == 200
        with suppress(ConnectionError):
            assert await streams[0][0].read() == b"", "who came first made room"
        assert len(end._open) <= MAX_CONNECTIONS
        for _, writer in streams:
            writer.close()
        await until(lambda: not end._open)


@BOTH_LOOPS
def test_a_probe_is_answered_amid_more_connections_than_are_kept(plain: bool) -> None:
    async def scene() -> None:
        async with (
            stub_broker() as broker,
            gateway(broker.address, Gateway) as gate,
            admin_of(gate) as (port, _),
        ):
            with ExitStack() as opened:
                # The loop does not run meanwhile, so that all of them wait to be accepted.
                peers = [
                    opened.enter_context(create_connection(("127.0.0.1", port)))
                    for _ in range(3 * MAX_CONNECTIONS)
                ]
                probe = peers[MAX_CONNECTIONS]
                probe.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
                probe.setblocking(False)
                answer = await asyncio.get_running_loop().sock_recv(probe, 100)
                assert answer.startswith(b"HTTP/1.1 200 OK")

    run(scene(), plain=plain)


def test_it_binds_loopback_unless_told_otherwise() -> None:
    given = load({"bootstrap": "kafka:9092"}, {}, None)
    assert given.admin == Address("127.0.0.1", 9464)


async def test_the_listing_can_be_short() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address) as gate,
        admin_of(gate) as (port, _),
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(b"hello")
        await reader.readexactly(5)
        assert len((await get(port, "/state"))[1]["connections"]) == 1
        assert (await get(port, "/state?connections=0"))[1]["connections"] == []
        assert (await get(port, "/state?connections=-1"))[0] == 400
        assert (await get(port, "/state?connections=1e3"))[0] == 400
        assert (await get(port, f"/state?connections={'9' * 5000}"))[0] == 400


async def test_the_state_says_which_options_are_in_force_also_after_a_reload() -> None:
    async with (
        stub_broker() as broker,
        gateway(broker.address, max_sessions="7") as gate,
        admin_of(gate) as (port, _),
    ):
        config = (await get(port, "/state"))[1]["config"]
        assert config["max_sessions"] == {"value": "7", "source": "flag"}
        assert config["reuse_port"] == {"value": "off", "source": "default"}
        environ = {"FETCHGATE_MAX_SESSIONS": "8", "FETCHGATE_REUSE_PORT": "on"}
        gate.reconfigure(load({"bootstrap": broker.address}, environ, None))
        config = (await get(port, "/state"))[1]["config"]
        assert config["max_sessions"] == {"value": "8", "source": "environment"}
        assert config["reuse_port"] == {"value": "off", "source": "default"}


async def test_a_defect_is_answered_and_reported() -> None:
    async with stub_broker() as broker, gateway(broker.address) as gate, admin_of(gate) as (port, end):

        async def broken(_query: str) -> admin.Response:
            raise ZeroDivisionError

        end._routes["/livez"] = broken
        with capture_logs() as lines:
            assert await get(port, "/livez") == (500, "Internal Server Error\n")
        (line,) = [line for line in lines if line["log_level"] == "error"]
        assert line["event"] == "no response of the admin endpoint: a defect of fetchgate; please report it"
        assert isinstance(line["exc_info"], ZeroDivisionError)
