"""Transparent mode, without netfilter: what passes a connection that may not be Kafka, and destinations."""

import socket

import pytest

from proxy.binding import Binding
from proxy.config import ConfigError
from proxy.connection import Connection
from proxy.events import Passthrough
from proxy.routing import Address
from proxy.session.savings import Sessions
from proxy.transparent import REDIRECT, TPROXY, Ways, is_own, leaving, listen
from tests.playbook import answer, request
from tests.shell import config

IP_TRANSPARENT = 19
TLS = bytes.fromhex("160301020001000001fc0303") + bytes(40)
HTTP = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"


def foreign() -> Connection:
    return Connection(sessions=Sessions(max_sessions=10), resolve=None, foreign=True)


def broker_gets(connection: Connection) -> bytes:
    return b"".join(map(bytes, connection.take_broker()))


def client_gets(connection: Connection) -> bytes:
    return b"".join(map(bytes, connection.take_client()))


@pytest.mark.parametrize(
    ("said", "reason"), [(TLS, "TLS"), (HTTP, "not Kafka"), (b"\xff\xff\xff\xff", "not Kafka")]
)
@pytest.mark.parametrize("cut", [4, 5, 11, 12, 1000])
def test_what_is_not_kafka_passes_both_ways_and_is_counted(said: bytes, reason: str, cut: int) -> None:
    connection = foreign()
    connection.receive_client(said[:cut], 0.0)
    connection.receive_client(said[cut:] + b"more", 0.0)
    assert broker_gets(connection) == said + b"more"
    connection.receive_broker(b"\x15\x03", 0.0)
    connection.receive_broker(b"and so on", 0.0)
    assert client_gets(connection) == b"\x15\x03and so on"
    connection.receive_client(b"again", 0.0)
    assert broker_gets(connection) == b"again"
    assert connection.fault is None
    assert connection.tally.passthrough == {reason: 1}
    assert connection.take_events() == [Passthrough(reason=reason)]


def test_a_server_that_speaks_first_passes() -> None:
    connection = foreign()
    connection.receive_broker(b"220 hi", 0.0)
    connection.receive_broker(b"\r\n", 0.0)
    assert client_gets(connection) == b"220 hi\r\n"
    connection.receive_client(b"EHLO me\r\n", 0.0)
    assert broker_gets(connection) == b"EHLO me\r\n"
    assert connection.tally.passthrough == {"not Kafka": 1}


def test_an_answer_that_is_none_tells_that_a_frame_was_none() -> None:
    connection = foreign()
    said = request(3, 1, 7)
    connection.receive_client(said, 0.0)
    assert broker_gets(connection) == said
    connection.receive_broker(answer(8) + b"rest", 0.0)
    assert client_gets(connection) == answer(8) + b"rest"
    assert connection.fault is None
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


def test_what_waited_for_the_rest_of_an_answer_passes_when_the_client_goes_on() -> None:
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
    connection.receive_broker(answer(7), 0.0)
    connection.receive_client(HTTP, 0.0)
    assert connection.fault is not None
    assert connection.fault.side == "client"


def test_a_bootstrap_has_no_place_in_transparent_mode() -> None:
    assert config(transparent="redirect").bootstrap == ()
    with pytest.raises(ConfigError, match="--bootstrap: leave it out with --transparent"):
        config(transparent="tproxy", bootstrap="kafka:9092")
    with pytest.raises(ConfigError, match="--transparent: 'nat' is none of off, redirect, tproxy"):
        config(transparent="nat")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_both_ip_versions_are_listened_for_at_one_port(host: str) -> None:
    if not is_own("::1"):
        pytest.skip("no IPv6 here")
    sockets = listen(Address(host, 0), REDIRECT, Binding())
    try:
        assert {sock.family for sock in sockets} == {socket.AF_INET, socket.AF_INET6}
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


def test_one_address_is_listened_at_alone() -> None:
    (sock,) = listen(Address("127.0.0.2", 0), REDIRECT, Binding())
    with sock:
        assert sock.getsockname()[0] == "127.0.0.2"


def test_a_way_to_a_broker_has_a_port_of_its_own_before_it_is_used() -> None:
    with leaving(Address("127.0.0.1", 9092)) as one, leaving(Address("127.0.0.1", 9092)) as other:
        assert one.family == socket.AF_INET
        assert 0 < one.getsockname()[1] != other.getsockname()[1] > 0


def test_an_address_is_own_or_not() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.1")
    assert not is_own("2001:db8::1")


def test_the_right_that_tproxy_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("socket.socket.setsockopt", refuse)
    with pytest.raises(ConfigError, match="--transparent tproxy needs CAP_NET_RAW: "):
        listen(Address("127.0.0.1", 0), TPROXY, Binding())


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody make a socket transparent."""
    own = socket.socket.setsockopt

    def refuse(sock: socket.socket, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.SOL_IP, IP_TRANSPARENT):
            raise PermissionError(1, "Operation not permitted")
        own(sock, level, option, value)

    monkeypatch.setattr("socket.socket.setsockopt", refuse)


@pytest.mark.usefixtures("unprivileged")
def test_a_socket_of_systemd_s_that_clients_could_not_come_to_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        pytest.raises(ConfigError, match="give systemd's socket Transparent=yes"),
    ):
        listen(Address(*ours.getsockname()), TPROXY, Binding(inherited=[ours]))


@pytest.mark.usefixtures("unprivileged")
def test_a_transparent_socket_of_systemd_s_needs_no_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as ours:
        monkeypatch.setattr(
            "socket.socket.getsockopt",
            lambda _, level, option: (level, option) == (socket.SOL_IP, IP_TRANSPARENT),
        )
        (sock,) = listen(Address(*ours.getsockname()), TPROXY, Binding(inherited=[ours]))
        with sock:
            assert sock.getsockname() == ours.getsockname()


def test_ways_are_known_to_all_and_forgotten_with_their_process() -> None:
    cells = memoryview(bytearray(4 * Ways.CELLS)).cast("I")
    one, two = Ways(cells, 1), Ways(cells, 2)
    way, other = (65_535, Address("10.0.0.1", 9092)), (1, Address("::1", 65_535))
    one.add(way)
    two.add(other)
    assert way in two
    assert other in one
    assert (65_535, Address("10.0.0.1", 9093)) not in two
    assert (65_535, Address("fe80::1", 9092)) not in two
    one.ended(2)
    assert other not in one
    assert way in one
    two.discard(way)
    assert way not in one
