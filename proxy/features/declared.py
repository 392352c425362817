"""The features: each is a folder here that can be deleted, with its name in `NAMES`.

The base (core, server, telemetry, command) names no feature: it takes all from `FEATURES`. `replay` uses the
rules of some features without this module, which imports the options of all.
"""

from importlib import import_module
from typing import Any, Final

from proxy.features.feature import Feature

NAMES: Final[tuple[str, ...]] = (
    "racks",
    "client_sessions",
    "limits",
    "leaders",
    "cooperative",
    "connection_age",
)
"""The folders, in the order of their stages from the client to the broker."""


def _declared(name: str) -> Feature[Any, Any]:
    feature: Feature[Any, Any] = import_module(f"proxy.features.{name}").FEATURE
    return feature


FEATURES: Final = tuple(_declared(name) for name in NAMES)
WORDS: Final = {word: text for each in FEATURES for word, text in each.words.items()}
"""See `Feature.words`."""
