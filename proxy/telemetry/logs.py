"""Log lines: structlog on stderr, for people or as JSON, and a bound on how many of a kind there are.

What connections report becomes lines here. No record, key or value of a client is ever in one.
"""

import logging
import sys
import time
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from socket import gaierror
from typing import Any, TextIO

from proxy.logger import Logger, structlog

BURST = 20
"""Lines of one event that may follow each other ..."""
WINDOW = 10.0
"""... in so many seconds; what goes beyond is counted and told by the next line."""


class Throttle:
    """Drop lines of an event that comes too often; a thousand faulting peers must not fill a disk.

    Debug lines pass: who turns them on wants to see each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, method: str, line: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Pass the line on, with what was suppressed before it, or drop it."""
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


def configure(*, style: str, level: str, stream: TextIO | None = None) -> None:
    """Set how lines look and which are written; can be called again at run time.

    Args:
        style: ``console`` or ``json``.
        level: the lowest that is written.
        stream: where to; stderr by default.
    """
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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,  # so that a changed level is seen by those who have a logger
    )


def logger() -> Logger:
    """Give the logger that `configure` set up."""
    log: Logger = structlog.get_logger()
    return log


def silent() -> Logger:
    """Give a logger that writes nothing but what is critical, which nothing is."""
    wrapper = structlog.make_filtering_bound_logger(logging.CRITICAL)
    log: Logger = structlog.wrap_logger(structlog.PrintLogger(), wrapper_class=wrapper)
    return log


def unexpected(_loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write what the event loop could not handle (`asyncio.loop.set_exception_handler`)."""
    error = context.get("exception")
    if isinstance(error, gaierror) and not isinstance(context.get("future"), Task):
        return  # uvloop looks for a name after who asked for it has given up: that was told
    logger().error("event loop", reason=str(context.get("message")), exc_info=error)


def ignored(told: "sys.UnraisableHookArgs") -> None:
    """Write an exception that nobody can catch (`sys.unraisablehook`)."""
    if isinstance(told.exc_value, UnicodeDecodeError) and isinstance(told.object, bytes):
        return  # ssl could not read the name that a client asks for: its handshake fails, which is told
    logger().error("exception ignored", reason=f"in {told.object!r}", exc_info=told.exc_value)
