"""Values that the gateway reads from requests other than fetches, and from the first bytes of a request."""

import pytest

from proxy.core.requests import describe_length, read_client_names, read_wait, readable
from proxy.protocol.api import ApiKey
from proxy.protocol.api_versions import ClientSoftware
from proxy.protocol.primitives import ProtocolError
from tests.playbook import join_group, request

PROXY = ", which fetchgate does not read: turn it off at the load balancer"


@pytest.mark.parametrize(
    ("data", "length", "reason"),
    [
        (b"\x16\x03\x01\x00", 0x16030100, "TLS on a plaintext listener"),
        (b"GET / HTTP/1.1\r\n", 0x47455420, 'HTTP on a port of Kafka ("GET / HT")'),
        (b"PRI * HTTP/2.0\r\n", 0x50524920, 'HTTP on a port of Kafka ("PRI * HT")'),
        (b"POST", 0x504F5354, 'HTTP on a port of Kafka ("POST")'),
        (b"PROXY TCP4 10.0.0.1 ", 0x50524F58, f"the PROXY protocol v1{PROXY}"),
        (b"\r\n\r\n\0\r\nQUIT\n", 0x0D0A0D0A, f"the PROXY protocol v2{PROXY}"),
        (b"\x00\x00\x03\xe9", 1001, "a request of 1001 bytes; max_request_bytes is 1000"),
        (b"\xff\xff\xff\xff", -1, "a request of -1 bytes"),
    ],
)
def test_lengths_that_no_broker_takes(data: bytes, length: int, reason: str) -> None:
    assert describe_length(data, length, 1000) == reason


def test_a_client_names_itself_and_from_3_on_its_software() -> None:
    assert read_client_names(request(18, 2, 1), 2) == ("c", None)
    software = b"\0" + b"\x05java" + b"\x064.3.0" + b"\0"
    assert read_client_names(request(18, 3, 1, software), 3) == (
        "c",
        ClientSoftware(name="java", version="4.3.0"),
    )
    with pytest.raises(ProtocolError):
        read_client_names(request(18, 3, 1, software[:-3]), 3)


def test_names_are_shown_without_what_a_terminal_obeys() -> None:
    assert readable(None) == ""
    assert readable("größe".encode()) == "größe"
    assert readable(b"\x1b[2J\xff") == "\ufffd[2J\ufffd"
    assert readable(b"a" * 300) == "a" * 256


@pytest.mark.parametrize(
    ("frame", "seconds"),
    [
        (join_group(1, 0, 45_000), 45.0),
        (join_group(1, 1, 45_000, 300_000), 300.0),
        (join_group(1, 9, 45_000, 300_000), 300.0),
        (join_group(1, 1, 45_000, 0xFFFF_FFFF), 0.0),
        (request(ApiKey.SHARE_FETCH, 1, 1, b"\0\2g\2m" + bytes(4) + (500).to_bytes(4)), 0.5),
    ],
)
def test_how_long_a_request_lets_the_broker_wait(frame: bytes, seconds: float) -> None:
    assert read_wait(frame) == seconds
    with pytest.raises(ProtocolError):
        read_wait(frame[: frame.index(b"g")])
