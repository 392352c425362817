import asyncio
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from proxy.core.events import (
    ClientNamed,
    Event,
    Fault,
    Passthrough,
    SessionClosed,
    SessionLost,
    SessionMade,
    SessionRefused,
)
from proxy.session.decision import Reason
from proxy.telemetry.history import write_event
from proxy.telemetry.logs import (
    BURST,
    WINDOW,
    Throttle,
    configure,
    ignored,
    logger,
    unexpected,
)


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_have_level_time_and_fields() -> None:
    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)

    logger().info("ready", brokers=[1, 2])
    logger().debug("not seen")

    (line,) = _lines(stream)
    assert line.pop("timestamp")
    assert line == {"event": "ready", "level": "info", "brokers": [1, 2]}


def test_console_lines_are_plain_text_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    configure(style="console", level="info", stream=stream)

    logger().warning("broker left out", reason="taken")

    assert stream.getvalue().endswith("[warning  ] broker left out reason=taken\n")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["console", "json"])
@pytest.mark.parametrize(
    "name", ["\x1b]0;x\x07b", "x\nfake", "a b\r\n[info] fake", "\x9b2J", "\u202egnp", "\udc80"]
)
def test_nothing_of_a_client_moves_the_terminal_or_makes_a_line(style: str, name: str) -> None:
    """For the review (docs/users/security.md): whether a client can forge lines of the log."""
    stream = io.StringIO()
    configure(style=style, level="info", stream=stream)
    logger().warning("client refused", client=name, names=[name])
    assert stream.getvalue().rstrip("\n").isprintable()


@pytest.mark.parametrize("style", ["console", "json"])
def test_nothing_of_an_exception_moves_the_terminal(style: str) -> None:
    stream = io.StringIO()
    configure(style=style, level="info", stream=stream)
    logger().error("event loop", exc_info=ValueError("\x1b[2J"))
    assert "\x1b" not in stream.getvalue()
    assert "[2J" in stream.getvalue()
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))


def test_a_line_of_json_has_what_a_client_sent() -> None:
    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)
    logger().warning("client refused", client="\x1b[2J")
    assert json.loads(stream.getvalue())["client"] == "\x1b[2J"


def test_what_the_event_loop_could_not_handle_is_told_but_a_name_that_nobody_waits_for_any_more() -> None:
    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)
    loop = asyncio.new_event_loop()
    never = {"message": "Future exception was never retrieved"}

    unexpected(loop, {**never, "exception": socket.gaierror(-3, "Temporary failure in name resolution")})
    unexpected(loop, {**never, "exception": ValueError("no such thing")})

    loop.close()
    (line,) = _lines(stream)
    assert line["reason"] == never["message"]
    assert "no such thing" in str(line["exception"])


def test_an_exception_that_nobody_can_catch_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("no such thing")

    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)
    monkeypatch.setattr(sys, "unraisablehook", ignored)

    Broken()

    (line,) = _lines(stream)
    assert (line["event"], line["level"]) == ("exception ignored", "error")
    assert "Broken.__del__" in str(line["reason"])
    assert "no such thing" in str(line["exception"])


def test_the_level_can_change_for_a_logger_that_is_held() -> None:
    stream = io.StringIO()
    configure(style="json", level="warning", stream=stream)
    log = logger()
    log.info("not seen")

    configure(style="json", level="debug", stream=stream)
    log.debug("seen")

    assert [line["event"] for line in _lines(stream)] == ["seen"]


def test_an_exception_is_written_with_its_traceback() -> None:
    stream = io.StringIO()
    configure(style="json", level="info", stream=stream)
    logger().error("defect", exc_info=KeyError("k"))

    assert "KeyError: 'k'" in str(_lines(stream)[0]["exception"])


def test_a_flood_of_one_event_is_bounded_and_counted() -> None:
    now = 0.0
    throttle = Throttle(clock=lambda: now)

    def passes(event: str, method: str = "warning") -> dict[str, object] | None:
        try:
            return dict(throttle(None, method, {"event": event}))
        except structlog.DropEvent:
            return None

    flood = [passes("fault") for _ in range(BURST + 500)]
    assert [line for line in flood if line] == [{"event": "fault"}] * BURST
    assert passes("another") == {"event": "another"}
    assert passes("fault", "debug") == {"event": "fault"}
    now = WINDOW
    assert passes("fault") == {"event": "fault", "suppressed": 500}
    assert passes("fault") == {"event": "fault"}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            ClientNamed(client_id="c", software_name="librdkafka", software_version="2"),
            {"event": "client sent its name", "level": "debug", "client_id": "c", "software": "librdkafka 2"},
        ),
        (
            SessionMade(session_id=5, partitions=9),
            {"event": "session made", "level": "debug", "session_id": 5, "partitions": 9},
        ),
        (
            SessionRefused(),
            {
                "event": "session refused",
                "level": "warning",
                "remedy": "its fetches are forwarded unchanged, and it requests a session less often; "
                "raise max.incremental.fetch.session.cache.slots at the broker",
            },
        ),
        (
            SessionLost(session_id=5, error_code=70, reason="r"),
            {"event": "session lost", "level": "info", "session_id": 5, "code": 70, "reason": "r"},
        ),
        (
            SessionClosed(session_id=5, reason="r"),
            {"event": "session closed", "level": "debug", "session_id": 5, "reason": "r"},
        ),
        (Passthrough(reason="r"), {"event": "forwarded unchanged", "level": "debug", "reason": "r"}),
        (
            Fault(side="broker", reason="r"),
            {"event": "connection fault", "level": "warning", "side": "broker", "reason": "r"},
        ),
    ],
)
def test_events_become_lines(event: Event, line: dict[str, object]) -> None:
    stream = io.StringIO()
    configure(style="json", level="debug", stream=stream)

    write_event(logger(), event, client="1.1.1.1:5", client_id="")

    (written,) = _lines(stream)
    del written["timestamp"]
    assert written == {"client": "1.1.1.1:5", "client_id": ""} | line


@pytest.mark.parametrize("style", ["console", "json"])
def test_reasons_look_like_strings(style: str) -> None:
    stream = io.StringIO()
    configure(style=style, level="debug", stream=stream)

    write_event(logger(), Passthrough(reason=Reason.SASL_V0))

    expected = "reason='SASL handshake v0'" if style == "console" else '"reason": "SASL handshake v0"'
    assert expected in stream.getvalue()


def test_a_gateway_does_not_import_rich() -> None:
    asked = (
        "import sys, proxy.server.main, proxy.__main__; "
        "print('structlog' in sys.modules, 'rich' in sys.modules)"
    )

    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert told.stdout == "True False\n"
