"""Failed TLS handshakes are logged once in a while for each client, and few clients are remembered."""

import structlog
from structlog.testing import capture_logs

from proxy.addresses import Address
from proxy.server.conditions import HANDSHAKE_SECONDS, MAX_CLIENTS, FailedHandshakes

NO_TLS, UNTRUSTED = "no TLS", "unknown ca"


def test_each_client_is_named_once_in_a_while() -> None:
    with capture_logs() as lines:
        failed = FailedHandshakes(structlog.get_logger()).failed
        for at in range(10):
            failed(Address("10.0.0.1", 4000 + at), NO_TLS, float(at))
        failed(Address("10.0.0.1", 5000), UNTRUSTED, 10.0)
        failed(Address("10.0.0.2", 6000), NO_TLS, 11.0)
        failed(Address("10.0.0.1", 7000), NO_TLS, HANDSHAKE_SECONDS)
    assert [(line["client"], line["reason"], line.get("more_since_the_last_line")) for line in lines] == [
        ("10.0.0.1:4000", NO_TLS, None),
        ("10.0.0.1:5000", UNTRUSTED, None),
        ("10.0.0.2:6000", NO_TLS, None),
        ("10.0.0.1:7000", NO_TLS, 9),
    ]


def test_the_first_clients_are_forgotten_where_there_are_too_many() -> None:
    with capture_logs() as lines:
        failed = FailedHandshakes(structlog.get_logger()).failed
        for number in range(MAX_CLIENTS + 1):
            failed(Address(f"client-{number}", 1), NO_TLS, 1.0)
        failed(Address("client-1", 1), NO_TLS, 2.0)
        failed(Address("client-0", 1), NO_TLS, 2.0)
    assert [line["client"] for line in lines[MAX_CLIENTS:]] == [f"client-{MAX_CLIENTS}:1", "client-0:1"]
