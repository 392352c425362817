"""Renews the pinned requirements of the image and of `make dist`, with the hashes of all their files.

    pip install -e '.[release]'    # uv, once
    python -m tools.lock           # the newest versions that pyproject.toml allows

The files hold versions and hashes, and no address to download from: pip asks the index that it is set up for,
and refuses a file of another content.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RUN: Final = ROOT / "tools" / "deploy" / "requirements.txt"
"""What the gateway needs at run time, also with `--cooperative`: installed in the image, told in the SBOM."""
BUILD: Final = ROOT / "tools" / "deploy" / "requirements-build.txt"
"""What makes a wheel of this repository."""
PYTHON: Final = "3.11"
"""The oldest one that is supported; markers tell what later ones need."""
HEADER: Final = "# Renewed by `python -m tools.lock`: versions and hashes, no addresses.\n"
_PINNED: Final = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+?)(?: ; (.*?))? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One requirement of a file."""

    name: str
    version: str
    marker: str
    """For which Pythons and systems it is; empty for all."""
    hashes: tuple[str, ...]
    """Of all its files, as `sha256:...`."""


def parse(text: str) -> list[Pinned]:
    """Return the requirements of a file.

    Raises:
        ValueError: a line is neither a comment nor part of a pinned requirement with hashes.
    """
    found: list[Pinned] = []

    def take(match: re.Match[str]) -> str:
        name, version, marker, hashes = match.groups()
        told = tuple(re.findall(r"--hash=(\S+)", hashes))
        found.append(Pinned(name=name, version=version, marker=marker or "", hashes=told))
        return ""

    rest = _PINNED.sub(take, text)
    for line in rest.splitlines():
        if line and not line.startswith("#"):
            raise ValueError(f"this is no pinned requirement with hashes: {line}")
    return found


def renew(file: Path, wanted: list[str]) -> None:
    """Write a file anew.

    Args:
        file: the file.
        wanted: requirements, as pyproject.toml has them.

    Raises:
        RuntimeError: uv is missing or found no versions; the file is as it was.
    """
    uv = shutil.which(
        "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    )
    if uv is None:
        raise RuntimeError("uv is missing: pip install -e '.[release]'")
    command = [uv, "pip", "compile", "-", "--universal", "--python-version", PYTHON, "--generate-hashes"]
    command += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]
    done = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"uv: {' '.join(done.stderr.split())}")
    parse(done.stdout)
    file.write_text(HEADER + done.stdout)


def wanted_at_run_time(project: dict[str, Any]) -> list[str]:
    """Return the requirements of the image, from what pyproject.toml says."""
    return [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["cooperative"]]


def main() -> int:
    """Renew both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    try:
        renew(RUN, wanted_at_run_time(project))
        renew(BUILD, project["build-system"]["requires"])
    except (RuntimeError, ValueError) as error:
        print(f"tools.lock: {error}", file=sys.stderr)
        return 1
    for file in (RUN, BUILD):
        told = ", ".join(f"{each.name} {each.version}" for each in parse(file.read_text()))
        print(f"{file.relative_to(ROOT)}: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
