"""The commands that install missing packages, with the tool that has installed fetchgate. Sans-IO."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Final, Self

DISTRIBUTION: Final = "kafka-fetchgate"
_PIPX_FILE: Final = "pipx_metadata.json"
"""pipx writes it into each environment (``sys.prefix``) that it creates."""
_UV_FILE: Final = "uv-receipt.toml"
"""The same of ``uv tool``. Such an environment has no pip."""
_EXTRAS: Final = re.compile(r"(?:^[\w.-]+\s*\[([\w.,\s-]+)\]|\[([\w.,\s-]+)\]\s*$)", re.ASCII)
"""The extras in what pipx installed: ``name[extras]`` at the beginning, or ``path[extras]``."""
_NOT_UNDERSTOOD: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The errors if a tool's file is not as the tool writes it. The commands are then shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment of fetchgate, and what the tool that has created it says about it."""

    python: str
    pipx: str | None = None
    """The text of pipx's file. None if pipx did not create the environment."""
    uv: str | None = None
    """The same of ``uv tool``."""

    @classmethod
    def of(cls, python: str, read: Callable[[str], str | None]) -> Self:
        """Return the environment. `read` returns the text of a file in it, None if it is absent."""
        return cls(python=python, pipx=read(_PIPX_FILE), uv=read(_UV_FILE))

    def command_for(self, package: str) -> str:
        if self.uv is not None:
            return _uv(self.uv, package=package)
        if self.pipx is not None:
            return f"pipx inject {DISTRIBUTION}{_of_pipx(self.pipx)[1]} {package}"
        return f"{self.python} -m pip install {package}"

    def command_for_extra(self, extra: str) -> str:
        """Return the command that installs fetchgate with an extra. It is for fetchgate's source folder."""
        if self.uv is not None:
            return _uv(self.uv, extra=extra)
        if self.pipx is not None:
            extras, suffix = _of_pipx(self.pipx)
            # pipx remembers the extras of this command alone, and installs only these when it upgrades.
            spec = _with_extras(".", [*extras, extra])
            return f"pipx install --force{f' --suffix={suffix}' if suffix else ''} {spec}"
        return f"{self.python} -m pip install '.[{extra}]'"


def _of_pipx(text: str) -> tuple[list[str], str]:
    """Return the extras with which pipx installed fetchgate, and its ``--suffix``."""
    extras: list[str] = []
    suffix = ""
    with suppress(*_NOT_UNDERSTOOD):
        package = json.loads(text)["main_package"]
        suffix = quote(package["suffix"]) if package.get("suffix") else ""
        if found := _EXTRAS.search(package["package_or_url"]):
            extras = [name.strip().lower() for name in (found[1] or found[2]).split(",") if name.strip()]
    return extras, suffix


def _uv(text: str, *, extra: str = "", package: str = "") -> str:
    # uv forgets the extras and packages that are not in its last command.
    import tomllib  # noqa: PLC0415 - only an environment of uv needs it

    extras: list[str] = []
    packages: list[str] = []
    source = "."
    with suppress(*_NOT_UNDERSTOOD):
        for each in tomllib.loads(text)["tool"]["requirements"]:
            if each["name"] == DISTRIBUTION:
                extras = each.get("extras", [])
                source = each.get("directory", source) if package else source
            else:
                packages.append(each["name"] + each.get("specifier", ""))
    more = "".join(f" --with {quote(name)}" for name in dict.fromkeys([*packages, package]) if name)
    return f"uv tool install{more} {_with_extras(source, [*extras, extra])}"


def _with_extras(source: str, extras: list[str]) -> str:
    names = ",".join(name for name in dict.fromkeys(extras) if name)
    return quote(f"{source}[{names}]" if names else source)
