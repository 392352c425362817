"""The commands that install missing packages, with the tool that has installed fetchgate. Sans-IO."""

import json
import re
from contextlib import suppress
from typing import Final

DISTRIBUTION: Final = "kafka-fetchgate"
PIPX_FILE: Final = "pipx_metadata.json"
"""A file that pipx writes into each environment (``sys.prefix``) that it creates."""
_EXTRAS: Final = re.compile(r"(?:^[\w.-]+\s*\[([\w.,\s-]+)\]|\[([\w.,\s-]+)\]\s*$)", re.ASCII)
"""The extras in what pipx installed: ``name[extras]`` at the beginning, or ``path[extras]``."""


def command_for(package: str, python: str, *, pipx: bool) -> str:
    """Return the command that adds a package to the environment of fetchgate."""
    return f"pipx inject {DISTRIBUTION} {package}" if pipx else f"{python} -m pip install {package}"


def command_for_extra(extra: str, python: str, *, pipx: str | None) -> str:
    """Return the command that installs fetchgate with an extra.

    It must be run in fetchgate's source folder.

    Args:
        extra: the extra.
        python: the Python of fetchgate's environment.
        pipx: the text of `PIPX_FILE`, or None if pipx did not create this environment.
    """
    if pipx is None:
        return f"{python} -m pip install '.[{extra}]'"
    # pipx remembers the extras of this command alone, and installs only these when it upgrades.
    extras = dict.fromkeys([*_installed(pipx), extra])
    return f"pipx install --force '.[{','.join(extras)}]'"


def _installed(pipx: str) -> list[str]:
    """Return the extras with which pipx installed fetchgate, as far as its file tells."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        spec = json.loads(pipx)["main_package"]["package_or_url"]
        if found := _EXTRAS.search(spec):
            return [name.strip().lower() for name in (found[1] or found[2]).split(",") if name.strip()]
    return []
