"""The server name (SNI) tells which broker a client wants, if brokers share a port. To each broker, the
gateway sends the right name.
"""

import asyncio
import socket
import ssl
import struct
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.addresses import Address, BrokerPorts
from proxy.net.link import Link
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from proxy.server.process import Process
from tests.shell import (
    client,
    config,
    frame,
    gateway,
    metadata,
    request,
    response,
    stub_cluster,
    until,
)
from tests.tls.secured import Keys
from tools.certificates import Authority
from tools.kafka.ports import free_ports


@pytest.mark.parametrize(
    ("template", "name", "node_id"),
    [
        ("broker-{id}.kafka.local:9", "broker-3.kafka.local", 3),
        ("broker-{id}.kafka.local:9", "BROKER-0.Kafka.Local.", 0),
        ("broker-{id}.kafka.local:9", "broker-03.kafka.local", None),
        ("broker-{id}.kafka.local:9", "broker-.kafka.local", None),
        ("broker-{id}.kafka.local:9", "broker-3xkafka.local", None),
        ("broker-{id}.kafka.local:9", "kafka.local", None),
        ("b{id}.az{id}.kafka:9", "b12.az12.kafka", 12),
        ("b{id}.az{id}.kafka:9", "b12.az1.kafka", None),
        ("{id}:9", "77", 77),
        ("29100", "broker-3.kafka.local", None),
    ],
)
def test_a_name_tells_the_broker(template: str, name: str, node_id: int | None) -> None:
    assert BrokerPorts.parse(template).called(name) == node_id


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("one_port", [True, False])
async def test_brokers_share_a_port_and_are_told_apart_by_name(
    keys: Keys, tmp_path: Path, one_port: bool
) -> None:
    names = ["kafka.local", *(f"broker-{number}.kafka.local" for number in (1, 2, 9))]
    pair = Authority(tmp_path).sign("wide", *names)
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    first = free_ports(2)
    shared = first if one_port else first + 1
    options = {
        "listen": f"127.0.0.1:{first}",
        "broker_ports": f"broker-{{id}}.kafka.local:{shared}",
        "tls_cert": str(pair.cert),
        "tls_key": str(pair.key),
    }

    async def called(name: str, port: int) -> bytes:
        async with client(port, trust, name) as (reader, writer):
            writer.write(request(ApiKey.LIST_GROUPS, 0, 9))
            return await frame(reader)

    async with stub_cluster() as two, stub_cluster((1, "", 0)) as one:
        one.brokers = (*one.brokers, (2, "127.0.0.1", two.port))
        one.others, two.others = lambda _: b"one", lambda _: b"two"
        async with gateway(one.address, Gateway, **options) as gate:
            await until(lambda: gate.health().state == "ready")
            async with client(first, trust, "kafka.local") as (reader, writer):
                writer.write(request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0)))
                assert await frame(reader) == struct.pack(">i", 5) + metadata(
                    (1, "broker-1.kafka.local", shared), (2, "broker-2.kafka.local", shared)
                )
            assert await called("broker-1.kafka.local", shared) == response(9, b"one")[4:]
            assert await called("broker-2.kafka.local", shared) == response(9, b"two")[4:]
            assert await called("kafka.local", first) == response(9, b"one")[4:]
            with capture_logs() as lines, pytest.raises(asyncio.IncompleteReadError):
                await called("broker-9.kafka.local", shared)
            assert next(line["reason"] for line in lines if "reason" in line) == (
                "a client asked for broker-9.kafka.local, but this broker is not known yet"
            )
            assert gate.health().state == "ready"


async def test_a_shared_port_that_is_taken_degrades(keys: Keys) -> None:
    first = free_ports(2)
    options = keys.to_client() | {
        "listen": f"127.0.0.1:{first}",
        "broker_ports": f"broker-{{id}}.kafka.local:{first + 1}",
    }

    async with stub_cluster((1, "", 0), (2, "", 0)) as cluster:
        with socket.create_server(("127.0.0.1", first + 1)):
            async with gateway(cluster.address, Gateway, **options) as gate:
                reason = "can't be bound: Address already in use; see --broker-ports"
                taken = f"127.0.0.1:{first + 1} {reason}"
                reasons = [f"broker 1: {taken}", f"broker 2: {taken}"]
                await until(lambda: gate.health().reasons == reasons)


@pytest.mark.parametrize(
    ("options", "asked_for", "name"),
    [
        ({}, "", "10.0.0.1"),
        ({}, "kafka.example", "kafka.example"),
        ({"broker_tls_server_name": "other.example"}, "kafka.example", "other.example"),
    ],
)
async def test_in_transparent_mode_the_name_that_a_client_asked_for_is_asked_of_the_broker(
    keys: Keys, options: dict[str, str], asked_for: str, name: str
) -> None:
    configured = config(transparent="redirect", **keys.to_broker(**options))
    gate = Gateway(Process.of(configured, asyncio.get_running_loop(), structlog.get_logger()))
    link = Link(gate.server, None)
    link.server_name = asked_for
    assert gate.server.upstream.tls_args(link, Address("10.0.0.1", 9093))["server_hostname"] == name


async def test_in_explicit_mode_each_broker_is_asked_for_by_its_own_host(keys: Keys) -> None:
    configured = config(bootstrap="kafka:9093", **keys.to_broker())
    gate = Gateway(Process.of(configured, asyncio.get_running_loop(), structlog.get_logger()))
    link = Link(gate.server, 1)
    link.server_name = "gate.example"
    assert gate.server.upstream.tls_args(link, Address("kafka1", 9093))["server_hostname"] == "kafka1"
