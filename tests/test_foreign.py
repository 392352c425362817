"""Transparent mode: connections that turn out not to be Kafka pass as they are, whoever speaks first."""

import pytest

from proxy.connection import Connection
from proxy.events import Fault, Passthrough
from proxy.session.savings import Sessions
from tests.playbook import Playbook, answer

TLS = bytes.fromhex("160301020001000001fc0303") + bytes(40)
HTTP = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"
SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""PostgreSQL's: a length that counts itself and a code. The server answers one byte, then TLS begins."""


def foreign() -> Connection:
    return Connection(sessions=Sessions(max_sessions=10), resolve=None, foreign=True)


def broker_gets(connection: Connection) -> bytes:
    return b"".join(map(bytes, connection.take_broker()))


def client_gets(connection: Connection) -> bytes:
    return b"".join(map(bytes, connection.take_client()))


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
    assert connection.fault is None
    assert connection.tally.passthrough == {reason: 1}
    assert connection.take_events() == [Passthrough(reason=reason)]


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
    """As it is to a broker, which closes."""
    play = Playbook().client(length.to_bytes(4)).nothing()
    assert play.connection.fault == Fault(side="client", reason=f"a request of {length} bytes")


@pytest.mark.parametrize("api_key", [3, 16, 999])
def test_the_shortest_request_waits_for_its_answer(api_key: int) -> None:
    """Ten bytes: no client id, no body."""
    connection = foreign()
    said = b"\0\0\0\x0a" + api_key.to_bytes(2) + bytes(2) + (7).to_bytes(4) + b"\xff\xff"
    for at in range(len(said)):
        connection.receive_client(said[at : at + 1], 0.0)
    assert broker_gets(connection) == said
    connection.receive_broker(answer(7, b"fine"), 0.0)
    assert client_gets(connection) == answer(7, b"fine")
    assert not connection.tally.passthrough
