"""A client sends thousands of requests at once. It gets all its responses, and other clients are not
delayed.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

from proxy.addresses import Address
from proxy.core.budget import SILENT_SECONDS, STALL_SECONDS
from proxy.core.connection_state import ConnectionState
from proxy.core.in_flight import AT_ONCE, MAX_IN_FLIGHT, REQUEST_BYTES
from proxy.net import link as transports
from proxy.net import turns
from proxy.net.endpoint import unread
from proxy.net.link import CORE, IDLE, PEER_FULL, TURN, Link
from proxy.protocol.api import ApiKey
from proxy.server import server
from proxy.server.gateway import Gateway
from proxy.server.upstream import Upstream
from tests.shell import (
    BOTH_LOOPS,
    WAIT_SECONDS,
    StubCluster,
    client,
    frame,
    gateway,
    link_of,
    request,
    response,
    run,
    socket_of,
    stub_cluster,
    until,
)
from tools.certificates import Authority

UNKNOWN: Final = 99
"""A version of ApiVersions that no broker has, so that the gateway answers it."""
MANY: Final = 5000
ERROR: Final = b"\0\0"


@asynccontextmanager
async def _route() -> AsyncIterator[
    tuple[StubCluster, Gateway, asyncio.StreamReader, asyncio.StreamWriter, Link]
]:
    """Run a gateway and a client whose broker is connected and has responded."""
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
    """Requests that the gateway answers itself do not delay other clients.

    Before the fix, one client with 1.7 MB/s of such requests raised the heartbeat latency of another client
    from 0.3 to 220 ms.
    """
    monkeypatch.setattr(transports, "SHARE_SECONDS", 1e-9)
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e-9)

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
            await until(lambda: link.client.holds == 0)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_busy_connections_wait_for_their_turns_and_all_is_answered(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SHARE_SECONDS", 1e-9)
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e-9)

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            _, gate, *_ = await stack.enter_async_context(_route())
            peers = [await stack.enter_async_context(client(gate.listen.port)) for _ in range(5)]
            waited = set[str]()

            def look() -> None:
                for link in gate.server.links:
                    if link.client.holds & link.broker.holds & TURN:
                        waited.add(link.client_address)
                asyncio.get_running_loop().call_soon(look)

            look()
            for _, writer in peers:
                writer.write(_requests(ApiKey.HEARTBEAT, 0))
            for reader, _ in peers:
                for number in range(MANY):
                    assert await frame(reader) == response(number, ERROR)[4:]
            assert len(waited) >= len(peers)
            await until(lambda: not any(link.client.holds | link.broker.holds for link in gate.server.links))

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
            await until(lambda: not gate.server.links)

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_what_waits_is_counted(plain: bool) -> None:
    async def scene() -> None:
        async with _route() as (cluster, gate, reader, writer, link):
            cluster.others = lambda _: b""
            writer.write(_requests(ApiKey.HEARTBEAT, 0))
            await until(lambda: link.client.holds & CORE and not link.core.state.goes_on)
            assert gate.server.budget.total >= MAX_IN_FLIGHT * REQUEST_BYTES
            cluster.writers[-1].transport.abort()
            assert await reader.read(-1) == b""
            await until(lambda: not gate.server.links)
            assert gate.server.budget.total == 0

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_one_that_resets_while_responses_wait_for_it_is_let_go_before_the_time_limit(plain: bool) -> None:
    async def scene() -> None:
        async with _route() as (cluster, gate, _, writer, link):
            numbers, asked = range(1000), list[bytes]()

            def answers_later(message: bytes) -> bytes:
                asked.append(message)
                return b""

            cluster.others = answers_later
            # Otherwise the system gives the socket up to 6 MB on a busy machine, and nothing waits.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            socket_of(writer).pause_reading()
            writer.write(b"".join(request(ApiKey.HEARTBEAT, 0, number) for number in numbers))
            await until(lambda: len(asked) == len(numbers))
            # All at once, so that the gateway reads several together.
            cluster.writers[-1].write(b"".join(response(number, bytes(9000)) for number in numbers))
            async with asyncio.timeout(WAIT_SECONDS):
                while not (link.core.state.responses_wait and link.broker.holds & PEER_FULL):
                    if link.broker.holds & PEER_FULL:  # nothing waits: the client lets more come
                        socket_of(writer).resume_reading()
                    await asyncio.sleep(0.005)
                    socket_of(writer).pause_reading()
            link.close_session("drain", within=3600.0)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: link.client.transport is None)
            await until(lambda: link.core.state.done)
            await until(lambda: not gate.server.links)

    run(scene(), plain=plain)


async def test_requests_that_came_before_the_broker_was_connected_are_bounded_too() -> None:
    async with (
        stub_cluster((1, "", 0)) as cluster,
        gateway(cluster.address, Gateway) as gate,
        client(gate.listen.port) as (reader, writer),
    ):
        cluster.others = lambda _: ERROR
        writer.write(struct.pack(">ihhih", 10, ApiKey.HEARTBEAT, 0, 0, -1) * MANY)
        await reader.readexactly(10 * MANY)
        assert link_of(gate).client.holds == 0


@BOTH_LOOPS
def test_all_is_answered_that_came_with_the_clients_end_before_the_broker_was_connected(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        connects, connect = asyncio.Event(), Upstream.connect_to

        async def later(connecting: Upstream, address: Address, link: Link) -> None:
            await connects.wait()
            await connect(connecting, address, link)

        monkeypatch.setattr(Upstream, "connect_to", later)
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway) as gate,
            client(gate.listen.port) as (reader, _writer),
        ):
            cluster.others = lambda _: ERROR
            await until(lambda: len(gate.server.links) == 1)
            link = link_of(gate)
            link.client_received(_requests(ApiKey.HEARTBEAT, 0))  # as in the event loop's first read
            link.client_ended()
            connects.set()
            got = await reader.read(-1)
            assert len(got) == MANY * len(response(0, ERROR))
            await until(lambda: not gate.server.links)

    run(scene(), plain=plain)


@asynccontextmanager
async def _held(
    monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> AsyncIterator[tuple[Gateway, StubCluster, asyncio.StreamWriter, Link]]:
    """Run a gateway that has stopped reading its client.

    Args:
        monkeypatch: the fixture of pytest.
        reads: whether the broker reads. If True, the gateway has stopped because too many requests are in
            flight. If False, it has stopped because the broker does not read.
    """
    monkeypatch.setattr(transports, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(Link.close_session, "__defaults__", (0.1,))
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)
    async with _route() as (cluster, gate, _, writer, link):
        cluster.others = lambda _: b""
        if reads:
            writer.write(_requests(ApiKey.HEARTBEAT, 0))
            await until(lambda: link.client.holds & CORE and not link.core.state.goes_on)
        else:
            socket_of(cluster.writers[-1]).pause_reading()
            writer.write(request(ApiKey.PRODUCE, 3, 1, struct.pack(">hhi", -1, 1, 1000) + bytes(20_000_000)))
            await until(lambda: link.client.holds & PEER_FULL)
        yield gate, cluster, writer, link


@BOTH_LOOPS
@pytest.mark.parametrize("reads", [True, False], ids=["silent broker", "broker that does not read"])
def test_one_that_is_not_read_and_resets_is_let_go(
    plain: bool, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is not being read and resets its connection is closed.

    Before the fix, ten such clients kept 20 file descriptors and 99 MB for as long as the broker waited.
    """

    async def scene() -> None:
        async with _held(monkeypatch, reads=reads) as (gate, cluster, writer, _link):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: not gate.server.links)
            assert gate.server.budget.total == 0
            for each in cluster.writers:
                socket_of(each).resume_reading()

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize("sends_no_more", [True, False])
def test_one_with_too_much_in_flight_waits_as_long_as_one_that_sends_no_more(
    plain: bool, sends_no_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with too many requests in flight is closed after the same time as a half-closed client.

    The reason: the gateway reads no more from this client, so the client's end may be in the unread bytes.
    """

    async def scene() -> None:
        async with _held(monkeypatch, reads=True) as (gate, _cluster, writer, link):
            if sends_no_more:
                writer.write_eof()
            at = link.active_at
            assert link.overdue(at + 29, idle=0, handshake=0) == ""
            assert link.overdue(at + 31, idle=0, handshake=0) == IDLE
            monkeypatch.setattr(transports, "HALF_CLOSED_SECONDS", 0.0)
            await until(lambda: not gate.server.links)
            assert gate.server.turned_away[IDLE] == 1

    run(scene(), plain=plain)


async def test_one_with_a_long_wait_and_too_much_in_flight_waits_for_twice_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _held(monkeypatch, reads=True) as (_gate, _cluster, _writer, link):
        at = link.active_at
        monkeypatch.setattr(ConnectionState, "longest_wait", 1e6)
        assert link.overdue(at + 59, idle=0, handshake=0) == ""
        assert link.overdue(at + 61, idle=0, handshake=0) == IDLE


@BOTH_LOOPS
def test_one_whose_broker_does_not_read_is_idle_after_the_usual_time(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does not read a client that is over its quota, for minutes. Meanwhile, its bytes are counted.

    Before the fix, a producer with acks=0 was closed after 30 s, and 80 of its 90 records were lost.
    """

    async def scene() -> None:
        async with _held(monkeypatch, reads=False) as (gate, cluster, _writer, link):
            budget, at = gate.server.budget, link.active_at
            assert link.overdue(at + 599, idle=600, handshake=60) == ""
            assert link.overdue(at + 601, idle=600, handshake=60) == IDLE
            assert link.overdue(at + 601, idle=0, handshake=60) == ""
            assert budget.total == 0
            link.active_at -= SILENT_SECONDS
            link.look_after()
            assert link.client.transport is not None
            for _ in range(2):  # as each time before it is decided who waits or is closed
                assert budget.stalled(monotonic()) is None
                assert budget.total > unread(link.client.transport) > 0
            assert budget.stalled(monotonic() + STALL_SECONDS) is None
            budget.limit = 1
            assert budget.stalled(monotonic() + STALL_SECONDS) is link
            budget.limit = 1 << 30
            link.active_at -= gate.process.config.idle_timeout
            await until(lambda: not gate.server.links)
            assert gate.server.turned_away[IDLE] == 1
            socket_of(cluster.writers[-1]).resume_reading()

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("api_key", "version"), [(ApiKey.HEARTBEAT, 0), (ApiKey.API_VERSIONS, UNKNOWN)], ids=["broker", "gateway"]
)
def test_within_tls_all_is_answered_in_order(plain: bool, api_key: int, version: int, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("gate", "localhost")

    async def scene() -> None:
        trusting = ssl.create_default_context(cafile=authority.file)
        options = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)}
        async with (
            stub_cluster((1, "", 0)) as cluster,
            gateway(cluster.address, Gateway, **options) as gate,
            client(gate.listen.port, trusting, "localhost") as (reader, writer),
        ):
            cluster.others = lambda _: ERROR
            writer.write(_requests(api_key, version))
            for number in range(MANY):
                assert (await frame(reader))[:4] == number.to_bytes(4)
            await until(lambda: link_of(gate).client.holds == 0)

    run(scene(), plain=plain)
