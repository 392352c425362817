"""A link measures since when a response is late. Only delays by the broker count."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import cast

from proxy.net.link import BUDGET, Link
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from proxy.telemetry.status import WithBroker
from tests.shell import (
    BOTH_LOOPS,
    StubCluster,
    client,
    frame,
    gateway,
    link_of,
    request,
    response,
    run,
    stub_cluster,
    until,
)

LATER = 100.0
"""The time at which the tests ask whether a response is late, in seconds from now."""
HEARTBEAT, PRODUCE = ApiKey.HEARTBEAT, ApiKey.PRODUCE


@asynccontextmanager
async def _silent(
    sent: bytes,
) -> AsyncIterator[tuple[Gateway, StubCluster, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Run a gateway and a client that has sent `sent`. The broker answers only ApiVersions and Metadata."""
    async with (
        stub_cluster() as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        writer.write(request(ApiKey.API_VERSIONS, 0, 1))
        await frame(reader)
        reach = gate.monitor.reach
        await until(lambda: reach.answered and cluster.open == 1)  # the gateway itself asks no more
        writer.write(sent)
        yield gate, cluster, reader, writer


def _late(link: Link) -> bool:
    return link.late_since(monotonic() + LATER) is not None


@BOTH_LOOPS
def test_it_is_late_until_bytes_come(plain: bool) -> None:
    async def scene() -> None:
        before = monotonic()
        async with _silent(request(HEARTBEAT, 0, 2)) as (gate, cluster, reader, _):
            link = link_of(gate)
            await until(lambda: link.core.state.outstanding)
            assert link.late_since(before) is None, "that was before"
            due = link.late_since(monotonic() + LATER)
            assert due is not None
            assert before <= link.responded_at <= due <= monotonic()
            with_broker = gate.server.account().links[None]
            assert with_broker.outstanding == 1
            assert 0 < with_broker.oldest_seconds < monotonic() - before
            cluster.writers[-1].write(response(2, b"\0\0"))
            assert await frame(reader)
            assert not _late(link)
            assert link.responded_at > due
            assert gate.server.account().links[None] == WithBroker(connections=1, reached=1)

    run(scene(), plain=plain)


async def test_what_the_gateway_does_not_read_is_not_late() -> None:
    async with _silent(request(HEARTBEAT, 0, 2)) as (gate, cluster, _, _):
        link = link_of(gate)
        await until(lambda: link.core.state.outstanding)
        link.wait_for_budget(True)
        assert link.broker.holds == BUDGET
        assert not _late(link)
        cluster.writers[-1].write(response(2, b"\0\0"))
        await cluster.writers[-1].drain()
        link.broker.holds = 0  # as just before it is read again: the response is in the system's buffer
        await until(lambda: not _late(link))
        link.broker.holds = BUDGET


async def test_half_a_request_is_late_only_if_the_broker_does_not_read_it() -> None:
    whole = request(PRODUCE, 2, 2, b"\0\1" + bytes(30_000_000))
    async with _silent(whole[:100]) as (gate, cluster, _reader, writer):
        link = link_of(gate)
        await until(lambda: link.core.state.outstanding)
        assert not _late(link), "the client has not sent the rest"
        cast("asyncio.Transport", cluster.writers[-1].transport).pause_reading()
        writer.write(whole[100:])
        await until(lambda: link.client.holds)
        due = link.late_since(monotonic() + LATER)
        assert due is not None
        assert due >= link.active_at


async def test_a_broker_that_is_not_connected_owes_nothing() -> None:
    async with _silent(request(HEARTBEAT, 0, 2)) as (gate, _cluster, _reader, _):
        link = link_of(gate)
        await until(lambda: link.core.state.outstanding)
        assert _late(link)
        link.abort()
        await until(lambda: not gate.server.links)
        assert not _late(link)
        assert link.responded_at > 0, "it is known after the end"
        assert gate.server.account().links == {}
