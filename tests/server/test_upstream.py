"""Connections to brokers: the broker that a client gets, its address, and what is kept of it."""

import socket
import struct
from typing import Any

import pytest

from proxy.addresses import LOOPED, Address
from proxy.net.link import Link
from proxy.net.transparent import Destinations
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from proxy.server.registry import BrokerRegistry
from tests.shell import client, frame, gateway, request, stub_cluster, until


async def test_readyz_tells_of_a_loop_whatever_was_refused_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is refused for another reason does not take the place of the loop."""
    there = Address("127.0.0.1", 9092)
    destination = [there]

    class Redirected:
        """A socket that netfilter has redirected."""

        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1", 19092)

    monkeypatch.setattr(Destinations, "of", lambda *_: (0, destination[0]))

    async with gateway("", transparent="redirect", listen="127.0.0.1:0") as gate:
        upstream = gate.server.upstream
        upstream.outbound.add((40_000, there))
        link = Link(gate.server, None)
        link.client_address, link.client_host = "127.0.0.1:40000", "127.0.0.1"
        assert upstream.broker_of(link, Redirected()) == LOOPED
        destination[0] = Address("127.0.0.1", gate.server.brokers.listen.port)
        link.client_address = "127.0.0.1:40001"
        assert upstream.broker_of(link, Redirected()) == LOOPED
        (said,) = upstream.problems()
        assert said.startswith("netfilter sent the gateway's own connection back to it")


async def test_a_changed_address_of_a_broker_is_used_for_new_connections() -> None:
    async with stub_cluster() as cluster, gateway(cluster.address, Gateway) as gate:
        assert isinstance(gate.brokers, BrokerRegistry)
        gate.brokers.update({5: Address("a", 1)}, (), 0.0)
        assert gate.server.upstream.targets(5) == (Address("a", 1),)
        gate.brokers.resolve("127.0.0.1", 5, "b", 2)
        assert gate.server.upstream.targets(5) == (Address("b", 2),)
        assert gate.server.upstream.targets(6) == ()


async def test_connections_to_one_address_share_what_the_broker_said_of_itself() -> None:
    async with stub_cluster((1, "", 0)) as cluster, gateway(cluster.address, Gateway) as gate:
        await until(lambda: gate.health().state == "ready")
        async with client(gate.listen.port + 2), client(gate.listen.port + 2):
            await until(lambda: len(gate.server.links) == 2)
            assert len({id(link.core._versions) for link in gate.server.links}) == 1


async def test_all_ips_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first IP of a host name does not accept the connection, the gateway tries the next IPs."""
    real = socket.getaddrinfo

    def both(host: Any, *more: Any, **named: Any) -> Any:
        if host != "two.example":
            return real(host, *more, **named)
        return real("127.0.0.3", *more, **named) + real("127.0.0.1", *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", both)

    async with stub_cluster() as cluster:
        cluster.others = lambda _: b"ok"
        async with gateway(f"two.example:{cluster.port}", Gateway) as gate:
            await until(lambda: gate.health().state == "ready")
            async with client(gate.listen.port) as (reader, writer):
                writer.write(request(ApiKey.LIST_GROUPS, 0, 9))
                assert await frame(reader) == struct.pack(">i", 9) + b"ok"
