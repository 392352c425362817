"""The gateway does not connect to a broker address that leads back to one of its own listeners."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.net.listen import LeadsBackError, check_not_own
from proxy.server import upstream
from proxy.server.gateway import Gateway
from proxy.telemetry.status import Health
from tests.shell import WAIT_SECONDS, client, gateway, stub_cluster, until
from tools.kafka.ports import free_ports

LEADS_BACK = (
    "it leads back to this gateway; make sure that --bootstrap and the brokers' advertised.listeners"
    " name the brokers themselves"
)


@pytest.mark.parametrize(
    ("host", "listener"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("127.0.0.7", "0.0.0.0"),
        ("::1", "::"),
    ],
)
def test_an_address_of_the_gateway_itself_is_refused(host: str, listener: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")

    with pytest.raises(LeadsBackError):
        check_not_own(["192.0.2.1", host], 9, [Address("127.0.0.9", 9), Address(listener, 9)])


@pytest.mark.parametrize(
    ("host", "listener"),
    [
        ("127.0.0.1", "127.0.0.2"),
        ("127.0.0.1", "::1"),
        ("127.0.0.1", "::"),
        ("192.0.2.1", "0.0.0.0"),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "::"),
    ],
)
def test_an_address_of_another_is_left_alone(host: str, listener: str) -> None:
    check_not_own([host], 9, [Address(listener, 9)])


def test_a_listener_at_another_port_is_no_matter() -> None:
    check_not_own(["127.0.0.1"], 9, [Address("127.0.0.1", 8)])


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a short time limit after which clients of unreachable brokers are closed."""
    monkeypatch.setattr(upstream, "UNREACHABLE_SECONDS", 0.05)


async def _closed(port: int) -> None:
    async with client(port) as (reader, _):
        assert await asyncio.wait_for(reader.read(), WAIT_SECONDS) == b""


@pytest.mark.usefixtures("_quick")
async def test_a_bootstrap_that_is_the_gateway_itself_opens_no_connection() -> None:
    port = free_ports(2)
    with capture_logs() as lines:
        options = {"listen": f"127.0.0.1:{port}", "max_connections": "100"}
        async with gateway(f"localhost:{port}", Gateway, **options) as gate:
            reason = f"localhost:{port}: {LEADS_BACK}"
            await until(lambda: gate.health() == Health(state="starting", reasons=[reason]))
            await _closed(port)
            assert gate.server.accepted == 1
    assert [line["event"] for line in lines] == ["bootstrap unreachable, trying again"]


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("behind", [0, 2], ids=["that of --listen", "its own"])
async def test_a_broker_whose_address_is_a_listener_of_the_gateway_is_not_connected_to(behind: int) -> None:
    port = free_ports(3)
    with capture_logs() as lines:
        async with (
            stub_cluster((1, "127.0.0.1", port + behind)) as cluster,
            gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}") as gate,
        ):
            await until(lambda: gate.health().state == "ready")
            for _ in range(3):
                await _closed(port + 2)
            reason = f"127.0.0.1:{port + behind}: {LEADS_BACK}"
            assert gate.health() == Health(state="degraded", reasons=[reason])
            assert gate.server.accepted == 3
    assert [line["event"] for line in lines].count(
        "broker unreachable, connections of its clients are closed"
    ) == 1


async def test_a_broker_at_a_port_that_the_gateway_could_not_have_is_no_loop() -> None:
    """A broker on the gateway's machine may occupy a port that the gateway wanted for a listener. A
    connection to this port reaches the broker, so it is not a loop.
    """
    port = free_ports(3)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(stub_cluster((1, "", 0), port=port + 2))
        gate = await stack.enter_async_context(gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}"))
        await until(lambda: "can't be bound: Address already in use" in str(gate.health().reasons))
        assert gate.health().state == "starting"
        async with client(port):
            await until(lambda: cluster.open == 1 and gate.server.links)
