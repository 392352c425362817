"""If a client repeats a mistake, the log does not have a line for each time.

For this the gateway remembers only a few clients.
"""

import io
import json

import structlog
from structlog.testing import capture_logs

from proxy.server.conditions import AGAIN_SECONDS, LINES, MAX_CLIENTS, MAX_WORDS, Repeated
from proxy.telemetry.logs import Throttle, configure, logger

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
        for client in ("client-0", "client-0", "client-1", "client-1"):
            failed(client, NO_TLS, 0.0)
        for number in range(2, MAX_CLIENTS + 1):
            failed(f"client-{number}", NO_TLS, float(number))
        failed("client-1", NO_TLS, MAX_CLIENTS + 1.0)
        failed("client-0", NO_TLS, MAX_CLIENTS + 2.0)
    assert [(line["client"], line.get("more_since_the_last_line")) for line in lines[-2:]] == [
        ("client-1", 1),
        ("client-0", None),
    ]


def test_what_a_client_chooses_takes_little_memory() -> None:
    with capture_logs() as lines:
        failed = Repeated(structlog.get_logger(), EVENT)
        failed.happens("c" * 32_767, "r" * 32_767, 0.0)
    (line,) = lines
    assert (line["client"], line["reason"]) == ("c" * MAX_WORDS, "r" * MAX_WORDS)
    assert sum(len(text) for key in failed._told for text in key) == 2 * MAX_WORDS


def test_a_client_whose_line_was_not_written_is_named_later() -> None:
    """If `Throttle` drops the log line of a client, a later line names the client.

    50 clients fail once a second in this test.
    """
    now = 0.0
    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)
    structlog.configure(processors=[Throttle(lambda: now), *structlog.get_config()["processors"][1:]])
    try:
        failed = Repeated(logger(), EVENT).happens
        for second in range(60):
            now = float(second)
            for number in range(50):
                failed(f"client-{number}", NO_TLS, now)
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["client"] for line in lines] == [f"client-{number}" for number in range(50)]
    assert lines[LINES]["suppressed"] == 10 * 40
