"""Builds the files of a release into `dist/`: wheel, sdist, SBOM, a file that runs by itself, and their sums.

    python -m tools.dist

The last commit is built twice, in two folders. If the bytes differ, nothing is written. A later build of the
same commit gives the same files: `requirements-build.txt` and `requirements-pex.txt` in `tools/deploy` pin
the build tools.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools import one_file
from tools.lock import BUILD, PEX, ROOT, RUN, parse
from tools.sbom import sbom

DIST: Final = ROOT / "dist"
SUMS: Final = "SHA256SUMS"


def build(source: Path, into: Path, python: Path, epoch: int) -> dict[str, bytes]:
    """Return wheel and sdist by name, built by `python` (with hatchling) with files of the time `epoch`."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"}
    command = [str(python), "-I", "-m", "hatchling", "build", "--directory", str(into)]
    _run(command, cwd=source, env=environment)
    return {file.name: file.read_bytes() for file in sorted(into.iterdir())}


def differing(first: dict[str, bytes], second: dict[str, bytes]) -> list[str]:
    """Return the names of files that are missing in one of the builds, or have other bytes there."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def build_commit(folder: Path, python: Path) -> dict[str, bytes]:
    """Return wheel, sdist and the one file of the last commit by name; see `environment`."""
    epoch = _epoch()
    source, into, pex = (folder / name for name in ("source", "dist", "pex"))
    for each in (source, into, pex):
        each.mkdir(parents=True)
    _run(["git", "archive", "--output", str(folder / "source.tar"), "HEAD"], cwd=ROOT)
    with tarfile.open(folder / "source.tar") as packed:
        packed.extractall(source, filter="data")
    files = build(source, into, python, epoch)
    (wheel,) = into.glob("*.whl")
    name = one_file.name(wheel.name.split("-")[1])
    return {**files, name: one_file.build(wheel, pex, python, epoch)}


def main() -> int:
    """Build twice, and write the files and print their hashes. Return 1 if the builds differ."""
    commit = _run(["git", "rev-parse", "HEAD"], cwd=ROOT)
    if _run(["git", "status", "--porcelain"], cwd=ROOT):
        print("The last commit is built; changes that are not committed are not in it.", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python = environment(folder / "venv")
        builds = [build_commit(folder / number, python) for number in ("first", "second")]
    if names := differing(*builds):
        print(f"tools.dist: two builds differ, nothing is written: {', '.join(names)}", file=sys.stderr)
        return 1
    files = builds[0]
    files |= _bill(files, datetime.fromtimestamp(_epoch(), UTC).isoformat())
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    files[SUMS] = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, data in files.items():
        (DIST / name).write_bytes(data)
        if name.endswith(".pyz"):
            (DIST / name).chmod(0o755)
    print(f"Built commit {commit} twice, to the same bytes, into {DIST}:")
    print(files[SUMS].decode(), end="")
    return 0


def _bill(files: dict[str, bytes], made_at: str) -> dict[str, bytes]:
    (wheel,) = (name for name in files if name.endswith(".whl"))
    version = wheel.split("-")[1]
    sha256 = hashlib.sha256(files[wheel]).hexdigest()
    pinned = parse(RUN.read_text())
    bill = sbom(wheel=wheel, version=version, sha256=sha256, made_at=made_at, pinned=pinned)
    return {f"{wheel.rpartition('-py')[0]}.cdx.json": f"{json.dumps(bill, indent=2)}\n".encode()}


def environment(folder: Path) -> Path:
    """Make a virtual environment with the packages that build the files. Return its Python."""
    _run([sys.executable, "-m", "venv", str(folder)], cwd=ROOT)
    python = folder / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes"]
    _run([str(python), "-m", "pip", "install", *options, "-r", str(BUILD), "-r", str(PEX)], cwd=ROOT)
    return python


def _epoch() -> int:
    return int(_run(["git", "log", "-1", "--format=%ct"], cwd=ROOT))


def _run(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
