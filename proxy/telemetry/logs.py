"""Log lines: structlog on stderr, for people or as JSON, with a limit on repeated lines.

No log line contains a client's records. The lines for events of connections are in `proxy.telemetry.history`.
"""

import logging
import sys
import time
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from socket import gaierror
from typing import Any, TextIO

from proxy.logger import Logger, structlog
from proxy.text.printable import printable

BURST = 20
"""How many lines with the same event are written within `WINDOW` seconds. More lines are dropped."""
WINDOW = 10.0
"""In seconds. The first line after a window says how many lines were dropped."""


def configure(*, style: str, level: str, stream: TextIO | None = None) -> None:
    """Set the format (``console`` or ``json``) and the lowest level of log lines, also at run time."""
    out = stream or sys.stderr
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            Throttle(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([] if style == "json" else [_printable]),  # the JSON renderer escapes control characters
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,  # a new level must also apply to existing loggers
    )


def _printable(
    _logger: structlog.typing.WrappedLogger, _method: str, line: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    # Terminals obey control characters, and clients choose their client.id and software name.
    for key, value in line.items():
        if isinstance(value, str):
            lines = value.split("\n") if key == "exception" else [value]
            line[key] = "\n".join(map(printable, lines))
    return line


def logger() -> Logger:
    """Return the logger that `configure` set up."""
    log: Logger = structlog.get_logger()
    return log


def silent() -> Logger:
    """Return a logger that writes nothing: it lets only critical lines through, and the gateway has none."""
    wrapper = structlog.make_filtering_bound_logger(logging.CRITICAL)
    log: Logger = structlog.wrap_logger(structlog.PrintLogger(), wrapper_class=wrapper)
    return log


class Throttle:
    """Drops lines of an event that is logged too often, so that many faulty peers can't fill the disk.

    Debug lines are never dropped, because someone who turns them on wants to see all of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, method: str, line: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Return the line, with the number of earlier lines that were dropped, or raise DropEvent."""
        if method == "debug":
            return line
        event, now = str(line["event"]), self._clock()
        start, count = self._windows.get(event, (now, 0))
        suppressed = 0
        if now - start >= WINDOW:
            suppressed, start, count = max(0, count - BURST), now, 0
        self._windows[event] = (start, count + 1)
        if count >= BURST:
            raise structlog.DropEvent
        if suppressed:
            line["suppressed"] = suppressed
        return line


def unexpected(_loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that nobody has caught in the event loop (`asyncio.loop.set_exception_handler`)."""
    error = context.get("exception")
    if isinstance(error, gaierror) and not isinstance(context.get("future"), Task):
        return  # uvloop continues a look-up whose caller has given up; the caller has reported that
    logger().error("event loop", reason=str(context.get("message")), exc_info=error)


def ignored(raised: "sys.UnraisableHookArgs") -> None:
    """Log an exception that nobody can catch (`sys.unraisablehook`)."""
    if isinstance(raised.exc_value, UnicodeDecodeError) and isinstance(raised.object, bytes):
        return  # ssl could not read a client's server name: the failed handshake is reported elsewhere
    logger().error("exception ignored", reason=f"in {raised.object!r}", exc_info=raised.exc_value)
