"""The commands that install missing packages, with the tool that has installed fetchgate. Sans-IO."""

from typing import Final

DISTRIBUTION: Final = "kafka-fetchgate"
PIPX_FILE: Final = "pipx_metadata.json"
"""A file that pipx writes into each environment (``sys.prefix``) that it creates."""


def command_for(package: str, python: str, *, pipx: bool) -> str:
    """Return the command that adds a package to the environment of fetchgate."""
    return f"pipx inject {DISTRIBUTION} {package}" if pipx else f"{python} -m pip install {package}"


def command_for_extra(extra: str, python: str, *, pipx: bool) -> str:
    """Return the command that installs fetchgate with an extra.

    It must be run in fetchgate's source folder.
    """
    return f"pipx install --force '.[{extra}]'" if pipx else f"{python} -m pip install '.[{extra}]'"
