"""What a client says to a proxy before it speaks Kafka is passed over, however its packets are cut."""

import pytest

from replay.capture.kafka.connection import NOT_KAFKA
from replay.capture.tls.reasons import TLS
from tests.replay.capture.talk import Talk, request, response

IPV4, IPV6 = b"\1\x0a\0\0\1\x23\x84", b"\4" + bytes(15) + b"\1\x23\x84"
NAMED = b"\3\x05kafka\x23\x84"
PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12)
SPOKEN = {
    "SOCKS5": [b"\5\1\0", b"\5\0", b"\5\1\0" + IPV4, b"\5\0\0" + IPV4],
    "SOCKS5, a name": [b"\5\2\0\2", b"\5\0", b"\5\1\0" + NAMED, b"\5\0\0" + NAMED],
    "SOCKS5, IPv6": [b"\5\1\0", b"\5\0", b"\5\1\0" + IPV6, b"\5\0\0" + IPV6],
    "SOCKS5, a password": [
        b"\5\1\2",
        b"\5\2",
        b"\1\2me\3key",
        b"\1\0",
        b"\5\1\0" + IPV4,
        b"\5\0\0" + IPV4,
    ],
    "SOCKS4": [b"\4\1\x23\x84\x0a\0\0\1me\0", b"\0\x5a" + bytes(6)],
    "SOCKS4a": [b"\4\1\x23\x84\0\0\0\1me\0kafka\0", b"\0\x5a" + bytes(6)],
    "CONNECT": [
        b"CONNECT kafka:9092 HTTP/1.1\r\nHost: kafka:9092\r\n\r\n",
        b"HTTP/1.1 200 Connection established\r\n\r\n",
    ],
    "PROXY": [b"PROXY TCP4 10.0.0.1 10.0.0.2 50000 9092\r\n"],
    "PROXY v2": [PROXY_2],
}
"""What a client and a proxy say in turn, by the protocol."""


def spoken(name: str, most: int = 1 << 20) -> Talk:
    """Return a connection that begins so. A packet has at most so many bytes, except the first one."""
    talk = Talk()
    for place, words in enumerate(SPOKEN[name]):
        size = most if place else len(words)
        for at in range(0, len(words), size):
            talk.say(words[at : at + size], client=not place % 2)
    return talk


@pytest.mark.parametrize("name", SPOKEN)
@pytest.mark.parametrize("most", [1 << 20, 1])
def test_kafka_behind_a_proxy_is_read(name: str, most: int) -> None:
    talk = spoken(name, most)
    for place in range(3):
        talk.client(request(12, 1, place)).broker(response(place))
    exchanges, end = talk.read()

    assert [(one.correlation_id, one.response_bytes > 0) for one in exchanges] == [
        (0, True),
        (1, True),
        (2, True),
    ]
    assert (end.client, end.reason, end.unframed_bytes) == ("10.0.0.1:50000", "", 0)
    assert end.headerless_bytes == sum(map(len, SPOKEN[name]))
    assert end.client_bytes + end.broker_bytes == end.headerless_bytes + 3 * len(
        request(12, 1, 0) + response(0)
    )


@pytest.mark.parametrize("name", SPOKEN)
def test_tls_behind_a_proxy_is_named(name: str) -> None:
    record = b"\x16\x03\x01\x00\x20" + b"c" * 32
    assert spoken(name).client(record).broker(record).read()[1].reason == TLS


@pytest.mark.parametrize("name", ["SOCKS5", "CONNECT"])
def test_a_proxy_that_leads_elsewhere_is_no_kafka(name: str) -> None:
    talk = spoken(name).client(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").broker(b"HTTP/1.1 200 OK\r\n\r\n")
    exchanges, end = talk.read()

    assert (exchanges, end.reason) == ([], NOT_KAFKA)
    assert end.unframed_bytes == end.client_bytes + end.broker_bytes


def test_a_proxy_that_refuses_is_no_kafka() -> None:
    exchanges, end = Talk().client(b"\5\1\0").broker(b"\5\xff").read()
    assert (exchanges, end.reason) == ([], NOT_KAFKA)
