"""The options in use and their sources, for the option ``--show-config`` and the endpoint ``/state``.

The options contain no secrets. Keys and tokens are in files, and only the names of the files are shown.
"""

import json
from typing import Final

from proxy.command.config import OPTIONS, Config
from proxy.text.options import Given
from proxy.version import VERSION

MAX_SHOWN: Final = 1000
"""How many characters of a value ``/state`` shows. The list of lanes may be long."""
_WIDEST: Final = 56
"""The width up to which comments are aligned. A longer line does not move the comments of other lines."""


def as_toml(config: Config) -> str:
    """Return the options in the format of the file for ``--config``, with the sources as comments."""
    lines = [(f"{name} = {json.dumps(given.text)}", _origin(given)) for name, given in _given(config)]
    widest = min(_WIDEST, max(len(line) for line, _ in lines))
    return f"# The options of fetchgate {VERSION} that are in force, and where each came from.\n" + "".join(
        f"{line:{widest}}  # {origin}\n" for line, origin in lines
    )


def as_json(config: Config) -> dict[str, dict[str, str]]:
    """Return the value and the source of each option, for the endpoint ``/state``."""
    return {name: {"value": _cut(given.text), "source": given.source} for name, given in _given(config)}


def _given(config: Config) -> list[tuple[str, Given]]:
    return [(option.name, config.given[option.name]) for option in OPTIONS]


def _origin(given: Given) -> str:
    return given.source if given.source == "default" else f"{given.source}: {given.place}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
