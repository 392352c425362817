"""Renews the pinned requirements of the images and of `make dist`, with the hashes of all their files.

    pip install -e '.[release]'    # uv, once
    python -m tools.lock           # the newest versions that pyproject.toml allows

The files have versions and hashes, but no download address: pip uses its configured index, and refuses a file
with another hash.
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
"""The gateway's requirements at run time, with `--cooperative`, in the image and the SBOM."""
BUILD: Final = ROOT / "tools" / "deploy" / "requirements-build.txt"
PEX: Final = ROOT / "tools" / "deploy" / "requirements-pex.txt"
INJECTOR: Final = ROOT / "tools" / "deploy" / "webhook" / "requirements.txt"
"""The requirements of the injector's image, beside the gateway's. `requirements.in` has their bounds."""
PYTHON: Final = "3.11"
"""The oldest supported version. Markers select the requirements of later versions."""
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
    """The Pythons and systems that need it; empty for all."""
    hashes: tuple[str, ...]


def parse(text: str) -> list[Pinned]:
    """Return the requirements of a file. ValueError: a line is not part of a pinned one with hashes."""
    found: list[Pinned] = []

    def take(match: re.Match[str]) -> str:
        name, version, marker, hashes = match.groups()
        digests = tuple(re.findall(r"--hash=(\S+)", hashes))
        found.append(Pinned(name=name, version=version, marker=marker or "", hashes=digests))
        return ""

    rest = _PINNED.sub(take, text)
    for line in rest.splitlines():
        if line and not line.startswith("#"):
            raise ValueError(f"this is no pinned requirement with hashes: {line}")
    return found


def renew(file: Path, wanted: list[str]) -> None:
    """Renew a file from requirements as in pyproject.toml. If uv fails, it is unchanged."""
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
    """Return the requirements of the image, from pyproject.toml."""
    return [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["cooperative"]]


def wanted_by_injector() -> list[str]:
    """Return the requirements that the injector has beside the gateway's."""
    return INJECTOR.with_suffix(".in").read_text().splitlines()


def wanted_by_one_file(project: dict[str, Any]) -> list[str]:
    """Return the requirements of `tools.one_file`, from pyproject.toml."""
    extra = project["project"]["optional-dependencies"]["release"]
    return [requirement for requirement in extra if requirement.startswith("pex")]


def main() -> int:
    """Renew all files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    try:
        renew(RUN, wanted_at_run_time(project))
        renew(BUILD, project["build-system"]["requires"])
        renew(PEX, wanted_by_one_file(project))
        renew(INJECTOR, wanted_by_injector())
    except (RuntimeError, ValueError) as error:
        print(f"tools.lock: {error}", file=sys.stderr)
        return 1
    for file in (RUN, BUILD, PEX, INJECTOR):
        versions = ", ".join(f"{each.name} {each.version}" for each in parse(file.read_text()))
        print(f"{file.relative_to(ROOT)}: {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
