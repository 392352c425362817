"""Reads what pipx says about the environment of fetchgate."""

import sys
from pathlib import Path

from proxy.installing import PIPX_FILE


def pipx_metadata() -> str | None:
    """Return the text of `PIPX_FILE`; None if pipx did not create this environment."""
    try:
        return (Path(sys.prefix) / PIPX_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
