"""The effective options and their sources, for people (``--show-config``) and for ``/state``.

No option holds a secret: keys and tokens are in files, and only the names of these files are shown.
"""

import json
from typing import Final

from proxy.config import OPTIONS, Config
from proxy.options import Given
from proxy.version import VERSION

MAX_SHOWN: Final = 1000
"""The limit of characters of a value in ``/state``. The list of lanes may be long."""
_WIDEST: Final = 56
"""The comments of lines up to this width are aligned."""


def as_toml(config: Config) -> str:
    """Return the options as a file for ``--config``, with each one's source in a comment."""
    lines = [(f"{name} = {json.dumps(given.text)}", _origin(given)) for name, given in _given(config)]
    widest = min(_WIDEST, max(len(line) for line, _ in lines))
    return f"# The options of fetchgate {VERSION} that are in force, and where each came from.\n" + "".join(
        f"{line:{widest}}  # {origin}\n" for line, origin in lines
    )


def as_json(config: Config) -> dict[str, dict[str, str]]:
    """Return the options for ``/state``."""
    return {name: {"value": _cut(given.text), "source": given.source} for name, given in _given(config)}


def _given(config: Config) -> list[tuple[str, Given]]:
    return [(option.name, config.given[option.name]) for option in OPTIONS]


def _origin(given: Given) -> str:
    return given.source if given.source == "default" else f"{given.source}: {given.place}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
