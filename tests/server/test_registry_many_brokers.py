"""A response that names very many brokers does not delay other clients.

Such a response makes the gateway use no more resources than a large cluster needs.
"""

import asyncio
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proxy.addresses import Address
from proxy.net.listen import Binding
from proxy.protocol.api import ApiKey
from proxy.server import registry, state_file
from proxy.server.gateway import Gateway
from proxy.server.registry import AT_ONCE, BrokerRegistry
from tests.shell import (
    WAIT_SECONDS,
    client,
    frame,
    gateway,
    metadata,
    request,
    run,
    stub_cluster,
    until,
)
from tools.kafka.ports import free_ports

METADATA = request(ApiKey.METADATA, 1, 5, struct.pack(">i", 0))
LIST_GROUPS = request(ApiKey.LIST_GROUPS, 0, 9)


class Steps:
    """Counts the sockets that are bound in each step of the event loop, and the files that are written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bound: Counter[int] = Counter()
        self.written = 0
        self._step = 0
        bind, replace = Binding.bind, Path.replace

        def counted(binding: Binding, *more: Any, **named: Any) -> Any:
            self.bound[self._step] += 1
            return bind(binding, *more, **named)

        def written(path: Path, target: Path) -> Path:
            self.written += 1
            return replace(path, target)

        monkeypatch.setattr(Binding, "bind", counted)
        monkeypatch.setattr(Path, "replace", written)

    def watch(self) -> None:
        self._step += 1
        asyncio.get_running_loop().call_soon(self.watch)


def test_2000_brokers_in_a_response_stop_no_other_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A response with 2,000 brokers does not delay other clients.

    Before the fix, all clients waited 16 s, or 43 s with `--state`, because the state file was written again
    for each broker.
    """
    monkeypatch.setattr(registry, "MAX_BROKERS", 300)
    monkeypatch.setattr(registry, "AT_ONCE", 4)
    monkeypatch.setattr(state_file, "SAVE_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(registry, "OPEN_SECONDS", WAIT_SECONDS)
    steps = Steps(monkeypatch)
    state = tmp_path / "state.json"

    async def scene() -> None:
        port = free_ports(301)
        async with (
            stub_cluster() as cluster,
            gateway(
                cluster.address, Gateway, listen=f"127.0.0.1:{port}", state=str(state), handshake_timeout="0"
            ) as gate,
            client(port) as (reader, writer),
            client(port) as (other, asks),
        ):
            cluster.others = lambda _: b"ok"
            await until(lambda: gate.health().state == "ready")
            cluster.brokers = tuple((each, "kafka", 9092) for each in range(2000))
            steps.watch()
            writer.write(METADATA)
            naming = asyncio.create_task(frame(reader))
            exchanges = 0
            while not naming.done():
                asks.write(LIST_GROUPS)
                assert await frame(other) == struct.pack(">i", 9) + b"ok"
                exchanges += 1
            assert exchanges > 1, "others went on meanwhile"
            told = metadata(*((each, "127.0.0.1", port + 1 + each) for each in range(300)))
            assert await naming == struct.pack(">i", 5) + told
            assert len(gate.brokers.known) == 300
            assert gate.health().state == "degraded"
            assert gate.health().reasons == [
                "a gateway serves at most 300 brokers: broker 300 and others are left out"
            ]
            assert sum(steps.bound.values()) == 300 + 1
            assert max(steps.bound.values()) <= registry.AT_ONCE
            cluster.brokers = cluster.brokers[:3]
            writer.write(METADATA)
            assert len(await frame(reader)) < 200

    run(scene())
    assert steps.written == 1
    assert len(json.loads(state.read_text())["brokers"]) == 300


async def test_a_cluster_of_250_brokers_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)

    steps.watch()
    port = free_ports(251)
    brokers = [(each, "", 0) for each in range(250)]
    async with (
        stub_cluster(*brokers) as cluster,
        gateway(cluster.address, Gateway, listen=f"127.0.0.1:{port}") as gate,
    ):
        cluster.others = lambda _: b"ok"
        await until(lambda: gate.health().state == "ready")
        assert max(steps.bound.values()) <= AT_ONCE
        for broker in (0, 125, 249):
            async with client(port + 1 + broker) as (reader, writer):
                writer.write(METADATA)
                told = metadata(*((each, "127.0.0.1", port + 1 + each) for each in range(250)))
                assert await frame(reader) == struct.pack(">i", 5) + told


async def test_brokers_that_leave_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_BROKERS", 2)
    monkeypatch.setattr(registry, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(registry, "FORGET_SECONDS", 0.03)

    async with (
        stub_cluster((0, "", 0), (1, "", 0), (2, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
    ):
        await until(lambda: gate.health().state == "degraded")
        assert list(gate.brokers.known) == [0, 1]
        cluster.brokers = cluster.brokers[1:]
        await until(lambda: gate.health().state == "ready")
        assert list(gate.brokers.known) == [1, 2]


async def test_a_gateway_that_drains_opens_no_listener() -> None:
    """A gateway that is draining opens no new listeners. With `--reuse-port`, a new listener would take
    clients away from the next gateway.
    """
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (_, writer),
    ):
        writer.write(LIST_GROUPS)
        await until(lambda: LIST_GROUPS in cluster.received)
        draining = asyncio.create_task(gate.drain(WAIT_SECONDS))
        await asyncio.sleep(0.05)
        assert not draining.done()
        address = Address("127.0.0.1", cluster.port)
        assert isinstance(gate.brokers, BrokerRegistry)
        assert gate.brokers.learn(2, address)
        assert gate.brokers.resolve("127.0.0.1", 2, address.host, address.port)
        with pytest.raises(ConnectionRefusedError):
            async with client(gate.listen.port + 3):
                pass
        assert not draining.done()
        for broker in cluster.writers:
            broker.transport.abort()
        await draining
