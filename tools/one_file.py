"""Makes one file that runs the gateway without an installation: `fetchgate-VERSION-TAGS.pyz`.

pex puts the wheel, and what the gateway needs, into an executable zip file. Some packages have code for one
version of Python and one kind of processor. So the file has them for each version in `PYTHONS`, on Linux with
the processor of this machine, and its name has these tags. When it starts for the first time, it unpacks
itself.

The packages have the versions and hashes of `tools/deploy/requirements.txt`. Those that only `--cooperative`
needs are left out.
"""

import hashlib
import os
import platform
import subprocess
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tools.lock import ROOT, RUN, Pinned, parse

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
SYSTEM: Final = "manylinux_2_28"
"""The oldest Linux that can run the file, by its C library (PEP 600)."""
_SHEBANG: Final = "/usr/bin/env python3"


def name(version: str, machine: str = platform.machine()) -> str:
    """Return the name of the file. Its tags are written as in the names of wheels (PEP 425)."""
    tags = ".".join(f"cp{python.replace('.', '')}" for python in PYTHONS)
    return f"fetchgate-{version}-{tags}-{SYSTEM}_{machine}.pyz"


def requirements(wheel: str, sha256: str, pinned: Collection[Pinned], left_out: Collection[str]) -> str:
    """Return the requirements for pip, with versions and hashes, except those in `left_out`."""
    distribution, version, *_ = wheel.split("-")
    lines = [f"{distribution.replace('_', '-')}=={version} --hash=sha256:{sha256}"]
    for each in pinned:
        if each.name not in left_out:
            marker = f" ; {each.marker}" if each.marker else ""
            hashes = " ".join(f"--hash={digest}" for digest in each.hashes)
            lines.append(f"{each.name}=={each.version}{marker} {hashes}")
    return "".join(f"{line}\n" for line in lines)


def build(wheel: Path, scratch: Path, python: Path, epoch: int) -> bytes:
    """Return the file, made by `python` (with pex); what is in it has the time `epoch`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = parse(RUN.read_text())
    left_out = [
        each.name for each in pinned if any(text.startswith(each.name) for text in extras["cooperative"])
    ]
    wanted, made = scratch / "requirements.txt", scratch / "made.pyz"
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wanted.write_text(requirements(wheel.name, sha256, pinned, left_out))
    command = [str(python), "-m", "pex", "--requirement", str(wanted), "--output-file", str(made)]
    command += ["--find-links", str(wheel.parent), "--pex-root", str(scratch / "root")]
    command += ["--no-build", "--no-transitive", "--use-pip-config"]
    for version in PYTHONS:
        short = version.replace(".", "")
        command += ["--platform", f"{SYSTEM}_{platform.machine()}-cp-{version}.0-cp{short}"]
    # In an environment of its own, sys.executable can start workers.
    command += ["--venv", "--console-script", "fetchgate", "--python-shebang", _SHEBANG]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PEX_")}
    environment |= {"SOURCE_DATE_EPOCH": str(epoch), "PEX_IGNORE_RCFILES": "1", "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pex: {(done.stderr or done.stdout)[-2000:]}")
    return made.read_bytes()
