"""Tools to develop, demonstrate and measure the project. None of them is installed."""

import sys
from importlib.util import find_spec
from types import TracebackType


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ModuleNotFoundError):
        sys.stderr.write(f"{error}\n")
    else:
        sys.__excepthook__(kind, error, trace)
    sys.stderr.write(
        f"{sys.executable} has no fetchgate: run `make check` once, then `.venv/bin/python -m ...`\n"
    )


# Some tools need no packages, so only a tool that fails ends with this line.
if find_spec("structlog") is None:
    sys.excepthook = _end
