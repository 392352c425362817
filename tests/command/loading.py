"""Loads options that can't be used."""

import pytest

from proxy.command.config import load
from proxy.text.options import ConfigError

NEEDED = {"bootstrap": "kafka:9092"}
"""The options that a gateway needs."""


def error_of(flags: dict[str, str], environ: dict[str, str] | None = None, file: str | None = None) -> str:
    """Return the error of options. It is one line."""
    with pytest.raises(ConfigError) as caught:
        load(flags, environ or {}, file)
    assert "\n" not in str(caught.value)
    return str(caught.value)
