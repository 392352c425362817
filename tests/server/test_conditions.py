"""Problems are logged once: the limit of connections, missing descriptors, and the mistakes of one client."""

import io
import json

import structlog
from structlog.testing import capture_logs

from proxy.server.conditions import (
    AGAIN_SECONDS,
    CALM_SECONDS,
    LINES,
    MAX_CLIENTS,
    MAX_WORDS,
    NO_DESCRIPTOR,
    WARN_AGAIN_SECONDS,
    ConnectionLimit,
    Descriptors,
    NewClients,
    Repeated,
)
from proxy.telemetry.logs import WINDOW, Throttle, configure, logger


def test_the_connection_limit_is_logged_once_per_episode_and_not_too_often() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("limit", True)
        noted.append(text)

    with capture_logs() as lines:
        limit = ConnectionLimit(structlog.get_logger(), note)
        now = 100.0
        assert limit.admits(9, 10, now)
        assert not limit.admits(10, 10, now)
        assert not limit.admits(10, 10, now)
        for wave in range(10):  # all leave and come back
            assert limit.admits(0, 10, now + wave / 10)
            assert not limit.admits(10, 10, now + wave / 10)
        assert len(lines) == len(noted) == 1
        later = now + WARN_AGAIN_SECONDS
        assert not limit.admits(10, 10, later), "there was none in between"
        assert len(lines) == 1
        assert limit.admits(8, 10, later)
        assert not limit.admits(10, 10, later)
    assert len(lines) == len(noted) == 2


def test_missing_descriptors_are_logged_once_until_there_were_enough_for_a_while() -> None:
    noted: list[str] = []

    def note(kind: str, text: str, *, warning: bool = False) -> None:
        assert (kind, warning) == ("descriptors", True)
        noted.append(text)

    with capture_logs() as lines:
        descriptors = Descriptors(structlog.get_logger(), note)
        descriptors.update(left=True, now=1.0)
        assert (descriptors.problem, noted) == ("", [])
        for wave in range(10):
            descriptors.update(left=False, now=10.0 + wave)
            descriptors.update(left=True, now=10.5 + wave)
            assert descriptors.problem == NO_DESCRIPTOR
        descriptors.update(left=True, now=19.0 + CALM_SECONDS)
        assert descriptors.problem == ""
        assert len(lines) == len(noted) == 1
        descriptors.update(left=False, now=20.0 + CALM_SECONDS)
    assert len(lines) == len(noted) == 2


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


def test_each_client_is_logged_once_when_it_is_new() -> None:
    with capture_logs() as lines:
        named = NewClients(structlog.get_logger()).named
        for _ in range(2):
            named("orders", "librdkafka 2.5.0", "10.0.0.1", 1.0)
            named("orders", "librdkafka 2.6.0", "10.0.0.1", 2.0)
            named("orders", "librdkafka 2.5.0", "10.0.0.2", 3.0)
    assert lines[0] == {
        "event": "new client",
        "log_level": "info",
        "client_id": "orders",
        "software": "librdkafka 2.5.0",
        "host": "10.0.0.1",
    }
    assert [(line["software"], line["host"]) for line in lines[1:]] == [
        ("librdkafka 2.6.0", "10.0.0.1"),
        ("librdkafka 2.5.0", "10.0.0.2"),
    ]


def test_new_clients_fill_neither_log_nor_memory() -> None:
    with capture_logs() as lines:
        clients = NewClients(structlog.get_logger())
        for again in range(2):
            for number in range(2 * LINES):
                clients.named(f"client-{number}", "", "10.0.0.1", again * WINDOW)
        assert [line["client_id"] for line in lines] == [f"client-{number}" for number in range(2 * LINES)]
        for number in range(2 * MAX_CLIENTS):
            clients.named(f"client-{number}", "", "10.0.0.1", number * WINDOW)
    assert len(lines) == MAX_CLIENTS + 1
    assert lines[-1]["event"] == "further new clients are not logged"
    assert len(clients._known) == MAX_CLIENTS
