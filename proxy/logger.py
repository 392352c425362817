"""structlog's logger, for everyone who writes a log line; `proxy.telemetry.logs` sets it up."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Have a package that nobody has imported yet not be found meanwhile.

    Args:
        name: of a package that others do without where it is not installed.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # "the import system": such an entry is an ImportError
    try:
        yield
    finally:
        del sys.modules[name]


with _without("rich"):  # which structlog would import for tracebacks: 3 MB of memory, a tenth of a start
    import structlog
    from structlog.typing import FilteringBoundLogger as Logger

__all__ = ["Logger", "structlog"]
