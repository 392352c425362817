"""The logger of structlog, for all modules that log. `proxy.telemetry.logs` configures it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Make imports of an optional dependency fail while the block runs, unless it is already imported."""
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
