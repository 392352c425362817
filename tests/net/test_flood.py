"""A client that sends thousands of requests at once has its turn like others, and gets all its responses."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final

import pytest

from proxy.core.client_side import AT_ONCE
from proxy.core.in_flight import MAX_IN_FLIGHT, REQUEST_BYTES
from proxy.net import link as transports
from proxy.net.link import CORE, Link
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from tests.shell import (
    BOTH_LOOPS,
    StubCluster,
    client,
    gateway,
    link_of,
    request,
    response,
    run,
    stub_cluster,
    until,
)

UNKNOWN: Final = 99
"""A version of ApiVersions that no broker has: the gateway answers."""
MANY: Final = 5000
ERROR: Final = b"\0\0"


@asynccontextmanager
async def _route() -> AsyncIterator[
    tuple[StubCluster, Gateway, asyncio.StreamReader, asyncio.StreamWriter, Link]
]:
    """A client whose broker is connected and has responded."""
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        cluster.others = lambda _: ERROR
        writer.write(request(ApiKey.HEARTBEAT, 0, 0))
        assert await reader.readexactly(10) == response(0, ERROR)
        yield cluster, gate, reader, writer, link_of(gate)


def _requests(api_key: int, version: int) -> bytes:
    return b"".join(request(api_key, version, number) for number in range(MANY))


@BOTH_LOOPS
def test_what_the_gateway_answers_itself_leaves_turns_to_others(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client at 1.7 MB/s raised the heartbeats of another one from 0.3 to 220 ms."""
    monkeypatch.setattr(transports, "STEP_SECONDS", 0.0)

    async def scene() -> None:
        async with _route() as (_, _gate, reader, writer, link):
            answered = [link.core.tally.client.bytes_out]
            size = len(request(ApiKey.API_VERSIONS, UNKNOWN, 0))

            def turn() -> None:
                answered.append(link.core.tally.client.bytes_out)
                asyncio.get_running_loop().call_soon(turn)

            turn()
            writer.write(_requests(ApiKey.API_VERSIONS, UNKNOWN))
            told = await reader.readexactly(4)
            each = 4 + int.from_bytes(told)
            got = told + await reader.readexactly(MANY * each - 4)
            assert [got[at + 4 : at + 8] for at in range(0, len(got), each)] == [
                number.to_bytes(4) for number in range(MANY)
            ]
            most = max(after - before for before, after in pairwise(answered))
            assert 0 < most <= 2 * AT_ONCE * each
            assert len(answered) > MANY * size / (1 << 18)
            await until(lambda: link.client_holds == 0)

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("api_key", "version"), [(ApiKey.HEARTBEAT, 0), (ApiKey.API_VERSIONS, UNKNOWN)], ids=["broker", "gateway"]
)
def test_all_is_answered_before_the_end_of_a_client_that_sends_no_more(
    plain: bool, api_key: int, version: int
) -> None:
    async def scene() -> None:
        async with _route() as (_, gate, reader, writer, _link):
            writer.write(_requests(api_key, version))
            writer.write_eof()
            got = await reader.read(-1)
            size = 4 + int.from_bytes(got[:4])
            assert len(got) == MANY * size
            assert got[-size:][4:8] == (MANY - 1).to_bytes(4)
            await until(lambda: not gate.links)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_what_waits_is_counted(plain: bool) -> None:
    async def scene() -> None:
        async with _route() as (cluster, gate, reader, writer, link):
            cluster.others = lambda _: b""
            writer.write(_requests(ApiKey.HEARTBEAT, 0))
            await until(lambda: link.client_holds & CORE and not link.core.goes_on)
            assert gate.budget.total >= MAX_IN_FLIGHT * REQUEST_BYTES
            cluster.writers[-1].transport.abort()
            assert await reader.read(-1) == b""
            await until(lambda: not gate.links)
            assert gate.budget.total == 0

    run(scene(), plain=plain)


def test_requests_that_came_before_the_broker_was_connected_are_bounded_too() -> None:
    async def scene() -> None:
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway) as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            cluster.others = lambda _: ERROR
            writer.write(struct.pack(">ihhih", 10, ApiKey.HEARTBEAT, 0, 0, -1) * MANY)
            await reader.readexactly(10 * MANY)
            assert link_of(gate).client_holds == 0

    run(scene())
