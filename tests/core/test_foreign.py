"""In transparent mode, connections that are not Kafka are forwarded unchanged.

Either the client or the server may send first.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import Fault, Passthrough
from proxy.net.link import OWN_FULL, Link
from proxy.server import server as serving
from proxy.server.gateway import Gateway
from tests.connections import connect
from tests.playbook import Playbook, request, response
from tests.shell import (
    BOTH_LOOPS,
    WireGateway,
    client,
    gateway,
    link_of,
    overdue_later,
    run,
    socket_of,
    until,
)

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

TLS = bytes.fromhex("160301020001000001fc0303") + bytes(40)
HTTP = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"
SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""PostgreSQL's request for TLS. It has a length that includes itself, and a code. The server answers with one
byte, then TLS begins."""


def foreign() -> Connection:
    return connect(sessions=SessionLimits(max_sessions=10), resolve=None, maybe_not_kafka=True)


def broker_gets(connection: Connection) -> bytes:
    return b"".join(map(bytes, connection.drain_broker()))


def client_gets(connection: Connection) -> bytes:
    return b"".join(map(bytes, connection.drain_client()))


# --- what the client says tells -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (TLS, "TLS"),
        (HTTP, "not Kafka"),
        (b"\xff\xff\xff\xff", "not Kafka"),
        (SSL_REQUEST, "not Kafka"),
        (b"\x00\x00\x00\x09more", "not Kafka"),
    ],
)
@pytest.mark.parametrize("cut", [4, 5, 11, 12, 1000])
def test_what_is_not_kafka_passes_both_ways_and_is_counted(said: bytes, reason: str, cut: int) -> None:
    connection = foreign()
    connection.receive_client(said[:cut], 0.0)
    assert broker_gets(connection) == said[:cut]
    connection.receive_client(said[cut:] + b"more", 0.0)
    assert broker_gets(connection) == said[cut:] + b"more"
    connection.receive_broker(b"\x15\x03", 0.0)
    connection.receive_broker(b"and so on", 0.0)
    assert client_gets(connection) == b"\x15\x03and so on"
    connection.receive_client(b"again", 0.0)
    assert broker_gets(connection) == b"again"
    assert connection.state.fault is None
    assert connection.tally.passthrough == {reason: 1}
    assert connection.drain_events() == [Passthrough(reason=reason)]


def test_an_encrypted_postgresql_connection_begins() -> None:
    connection = foreign()
    connection.receive_client(SSL_REQUEST, 0.0)
    assert broker_gets(connection) == SSL_REQUEST
    connection.receive_broker(b"S", 0.0)
    assert client_gets(connection) == b"S"
    connection.receive_client(TLS, 0.0)
    assert broker_gets(connection) == TLS


@pytest.mark.parametrize("length", [8, 9])
def test_in_explicit_mode_a_request_too_short_for_its_header_is_a_fault(length: int) -> None:
    """In explicit mode, a request that is too short for its header is a fault and ends the connection.

    A broker also closes the connection in this case.
    """
    play = Playbook().client(length.to_bytes(4)).nothing()
    assert play.connection.fault == Fault(side="client", reason=f"a request of {length} bytes")


@pytest.mark.parametrize("api_key", [3, 16, 999])
def test_the_shortest_request_waits_for_its_response(api_key: int) -> None:
    """A request without client id and body is recognised as Kafka, and waits for its response. It has ten
    bytes.
    """
    connection = foreign()
    said = b"\0\0\0\x0a" + api_key.to_bytes(2) + bytes(2) + (7).to_bytes(4) + b"\xff\xff"
    for at in range(len(said)):
        connection.receive_client(said[at : at + 1], 0.0)
    assert broker_gets(connection) == said
    connection.receive_broker(response(7, b"fine"), 0.0)
    assert client_gets(connection) == response(7, b"fine")
    assert not connection.tally.passthrough


# --- what the broker says tells -------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"+", b"+OK\r\n", b"220 smtp.example ESMTP\r\n", b"\x4a\0\0\0\x0a8.4.0\0"])
def test_a_server_that_speaks_first_passes(said: bytes) -> None:
    connection = foreign()
    for at in range(len(said)):
        connection.receive_broker(said[at : at + 1], 0.0)
        assert client_gets(connection) == said[at : at + 1]
    connection.receive_client(request(3, 1, 7), 0.0)
    assert broker_gets(connection) == request(3, 1, 7)
    assert connection.tally.passthrough == {"not Kafka": 1}


@pytest.mark.parametrize("size", range(1, 8))
def test_what_a_broker_says_before_it_closes_reaches_the_client(size: int) -> None:
    """The last bytes of a closing broker reach the client, even if they are not a Kafka response.

    For example, a TLS port answers a plaintext request with an alert of seven bytes.
    """
    alert = bytes.fromhex("15030300020246")[:size]
    connection = foreign()
    connection.receive_client(request(3, 1, 7), 0.0)
    connection.receive_broker(alert, 0.0)
    connection.broker_ended()
    assert client_gets(connection) == alert
    assert connection.state.fault is None
    assert connection.tally.passthrough == {"not Kafka": 1}


def test_a_broker_that_closes_without_a_word_tells_nothing() -> None:
    connection = foreign()
    connection.receive_client(request(3, 1, 7), 0.0)
    connection.broker_ended()
    assert client_gets(connection) == b""
    assert not connection.tally.passthrough


def test_a_response_cut_short_by_its_end_is_none() -> None:
    """If a Kafka connection ends in the middle of a response, the received part is dropped.

    Its bytes may belong to a response for the gateway itself, so the client must not get them.
    """
    connection = foreign()
    connection.receive_client(request(3, 1, 7) + request(3, 1, 8), 0.0)
    connection.receive_broker(response(7) + response(8)[:5], 0.0)
    connection.broker_ended()
    assert client_gets(connection) == response(7)
    assert not connection.tally.passthrough


# --- until it is known ----------------------------------------------------------------------------


def test_a_response_that_is_none_tells_that_a_frame_was_none() -> None:
    connection = foreign()
    said = request(3, 1, 7)
    connection.receive_client(said, 0.0)
    assert broker_gets(connection) == said
    connection.receive_broker(response(8) + b"rest", 0.0)
    assert client_gets(connection) == response(8) + b"rest"
    assert connection.state.fault is None
    assert connection.tally.passthrough == {"not Kafka": 1}


@pytest.mark.parametrize("waiting", [b"\n", request(3, 1, 7)[:5], request(1, 16, 7, bytes(9))[:-1]])
def test_what_waited_for_the_rest_of_a_request_passes_when_the_server_speaks(waiting: bytes) -> None:
    connection = foreign()
    connection.receive_client(waiting, 0.0)
    assert broker_gets(connection) == b""
    connection.receive_broker(b"220 hi\r\n", 0.0)
    assert broker_gets(connection) == waiting
    assert client_gets(connection) == b"220 hi\r\n"
    connection.receive_client(b"1", 0.0)
    assert broker_gets(connection) == b"1"


def test_what_waited_for_the_rest_of_a_response_passes_when_the_client_goes_on() -> None:
    connection = foreign()
    connection.receive_client(request(3, 1, 7), 0.0)
    connection.receive_broker(b"\x15\x03", 0.0)
    assert client_gets(connection) == b""
    connection.receive_client(HTTP, 0.0)
    assert broker_gets(connection) == request(3, 1, 7) + HTTP
    assert client_gets(connection) == b"\x15\x03"
    connection.receive_broker(b"\x03", 0.0)
    assert client_gets(connection) == b"\x03"


def test_once_a_request_was_answered_it_is_kafka_and_faults_count() -> None:
    connection = foreign()
    connection.receive_client(request(3, 1, 7), 0.0)
    connection.receive_broker(response(7), 0.0)
    connection.receive_client(HTTP, 0.0)
    assert connection.state.fault is not None
    assert connection.state.fault.side == "client"


# --- between sockets ------------------------------------------------------------------------------


class ForeignGateway(WireGateway):
    """A gateway in transparent mode that needs no netfilter rules."""

    def make_core(self, _link: Link, _reached_at: str, _versions: BrokerVersions, _broker: str) -> Connection:
        return foreign()


@asynccontextmanager
async def before_server(serve: Serve, **options: str) -> AsyncIterator[Gateway]:
    """Run a gateway in front of a server whose behaviour is the function `serve`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, gateway(at, ForeignGateway, **options) as gate:
        yield gate


@asynccontextmanager
async def through_gateway(
    serve: Serve, **options: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect a client through a gateway to a server whose behaviour is the function `serve`."""
    async with before_server(serve, **options) as gate, client(gate.listen.port) as ends:
        yield ends


@BOTH_LOOPS
def test_a_conversation_that_the_server_opens(plain: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK\r\n")
        assert await reader.readexactly(6) == b"QUIT\r\n"
        writer.write(b"+OK\r\n")
        writer.close()

    async def scene() -> None:
        async with through_gateway(serve) as (reader, writer):
            assert await reader.readexactly(5) == b"+OK\r\n"
            writer.write(b"QUIT\r\n")
            assert await reader.read() == b"+OK\r\n"

    run(scene(), plain=plain)


@BOTH_LOOPS
def test_a_refusal_of_a_few_bytes_arrives_before_the_end(plain: bool) -> None:
    alert = bytes.fromhex("15030300020246")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(request(3, 1, 7)))
        writer.write(alert)
        writer.close()

    async def scene() -> None:
        async with through_gateway(serve) as (reader, writer):
            writer.write(request(3, 1, 7))
            assert await reader.read() == alert

    run(scene(), plain=plain)


@BOTH_LOOPS
@pytest.mark.parametrize("said", [HTTP, b"hi\n", b"\0\0\0\x0bhi"])
def test_a_client_that_half_closes_still_gets_its_response(said: bytes, plain: bool) -> None:
    """A client that half-closes its connection still gets its response.

    The server also gets the client's end, even if the bytes before the end could be the start of a Kafka
    request.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == said
        writer.write(b"answer")
        writer.close()

    async def scene() -> None:
        async with through_gateway(serve) as (reader, writer):
            writer.write(said)
            writer.write_eof()
            assert await reader.read() == b"answer"

    run(scene(), plain=plain)


def test_nobody_is_idle_once_both_have_spoken() -> None:
    """A connection that is not Kafka is never idle once both sides have sent something.

    The gateway can't know whether one side waits for the other. TCP finds out if a side is dead.
    """
    asked, late = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(TLS)) == TLS
        writer.write(b"hello")
        assert await reader.readexactly(6) == b"a long"
        asked.set()
        await late.wait()
        writer.write(b"answer")
        writer.close()

    async def scene() -> None:
        async with (
            before_server(serve, idle_timeout="60") as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            writer.write(TLS)
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"a long")
            await asked.wait()
            assert not overdue_later(gate)
            late.set()
            assert await reader.read() == b"answer"

    run(scene())


def test_a_client_of_a_wire_reads_when_it_likes() -> None:
    """A client of a connection that is not Kafka may stop reading for a long time.

    For example, its user may still read the last page. A Kafka client would be closed in this case.
    """
    flood = bytes(40_000_000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(HTTP)) == HTTP
        writer.write(flood)
        writer.close()

    async def scene() -> None:
        async with (
            before_server(serve, idle_timeout="60") as gate,
            client(gate.listen.port) as (reader, writer),
        ):
            socket_of(writer).pause_reading()
            writer.write(HTTP)
            await until(lambda: gate.server.links and link_of(gate).client.holds & OWN_FULL)
            assert not overdue_later(gate)
            socket_of(writer).resume_reading()
            assert await reader.read() == flood

    run(scene())


def test_a_client_that_nobody_answers_is_idle_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TICK_SECONDS", 0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == HTTP
        writer.close()

    async def scene() -> None:
        async with through_gateway(serve, idle_timeout="0.1") as (reader, writer):
            writer.write(HTTP)
            assert await reader.read() == b""

    run(scene())
