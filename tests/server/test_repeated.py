"""What is wrong with clients is logged once in a while for each, and few clients are remembered."""

import structlog
from structlog.testing import capture_logs

from proxy.server.conditions import AGAIN_SECONDS, MAX_CLIENTS, Repeated

EVENT, NO_TLS, UNTRUSTED = "TLS handshake of a client failed", "no TLS", "unknown ca"


def test_each_client_is_named_once_in_a_while() -> None:
    with capture_logs() as lines:
        failed = Repeated(structlog.get_logger(), EVENT).happens
        for at in range(10):
            assert failed("10.0.0.1", NO_TLS, float(at), shown=f"10.0.0.1:{4000 + at}") == (at == 0)
        failed("10.0.0.1", UNTRUSTED, 10.0)
        failed("10.0.0.2", NO_TLS, 11.0)
        failed("10.0.0.1", NO_TLS, AGAIN_SECONDS)
    assert [(line["client"], line["reason"], line.get("more_since_the_last_line")) for line in lines] == [
        ("10.0.0.1:4000", NO_TLS, None),
        ("10.0.0.1", UNTRUSTED, None),
        ("10.0.0.2", NO_TLS, None),
        ("10.0.0.1", NO_TLS, 9),
    ]


def test_the_first_clients_are_forgotten_where_there_are_too_many() -> None:
    with capture_logs() as lines:
        failed = Repeated(structlog.get_logger(), EVENT).happens
        for number in range(MAX_CLIENTS + 1):
            failed(f"client-{number}", NO_TLS, 1.0)
        failed("client-1", NO_TLS, 2.0)
        failed("client-0", NO_TLS, 2.0)
    assert [line["client"] for line in lines[MAX_CLIENTS:]] == [f"client-{MAX_CLIENTS}", "client-0"]
