"""How to install what is missing, in the words of what installed fetchgate. Sans-IO."""

from typing import Final

DISTRIBUTION: Final = "kafka-fetchgate"
PIPX_FILE: Final = "pipx_metadata.json"
"""pipx writes this file into the environment (``sys.prefix``) that it makes."""


def command_for(package: str, python: str, *, pipx: bool) -> str:
    """Return the command that adds a package to the environment of fetchgate.

    Args:
        package: its name.
        python: the Python of this environment.
        pipx: pipx made the environment, so `PIPX_FILE` is in it.
    """
    return f"pipx inject {DISTRIBUTION} {package}" if pipx else f"{python} -m pip install {package}"


def command_for_extra(extra: str, python: str, *, pipx: bool) -> str:
    """Return the command that installs fetchgate with an extra, to be typed in its source folder.

    Args:
        extra: its name.
        python: the Python of this environment.
        pipx: as for `command_for`.
    """
    return f"pipx install --force '.[{extra}]'" if pipx else f"{python} -m pip install '.[{extra}]'"
