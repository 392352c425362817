"""structlog's logger, for all modules that log. `proxy.telemetry.logs` sets it up."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Make imports of an optional dependency fail for a while, if it is not imported yet."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # "the import system": such an entry raises ImportError
    try:
        yield
    finally:
        del sys.modules[name]


with _without("rich"):  # structlog would import it for tracebacks: 3 MB, a tenth of the start time
    import structlog
    from structlog.typing import FilteringBoundLogger as Logger

__all__ = ["Logger", "structlog"]
