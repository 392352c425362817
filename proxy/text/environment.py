"""Reads how fetchgate was installed, for messages that say how to install what is missing."""

import sys
from pathlib import Path

from proxy.text.installing import Environment


def environment() -> Environment:
    """Return the environment of this process."""
    return Environment.of(sys.executable, _read)


def _read(name: str) -> str | None:
    try:
        return (Path(sys.prefix) / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
