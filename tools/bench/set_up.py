"""Measures the set-up of the last commit without caches: `make demo`, each extra, and the one file."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools import dist
from tools.bench.figures import INSTALLED, FigureRow, FigureTable
from tools.bench.stage import BenchStage
from tools.lock import ROOT

MB: Final = 1e6
DEMO_LIMIT, DEMO_SECONDS = 400.0, 120.0
"""The limits for `make demo` with cold caches: MB installed, and seconds."""
EXTRAS: Final = ("", "cooperative", "tls", "measure", "replay")
QUICK_EXTRAS: Final = ("", "measure")


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation takes."""

    size: float
    """In MB, as on disk."""
    seconds: float


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure the demo, the extras and, unless it has to be quick, the one file. Return the tables."""
    with TemporaryDirectory(prefix="fetchgate-set-up-") as name:
        folder = Path(name)
        clone = folder / "clone"
        _run(["git", "clone", "--quiet", str(ROOT), str(clone)], cwd=folder)
        stage.report("setup: make demo, from a clean clone ...")
        tables = [_demo(clone, folder / "maven")]
        rows = list(_extras(stage, clone, folder))
        if not stage.quick:
            stage.report("setup: one file ...")
            rows += _file(folder)
    notes = [
        "`pip install` into a new virtual environment, whose own packages are not counted; nothing cached.",
        "The file has the packages for each Python that can run it.",
    ]
    return [*tables, FigureTable("Set-up: what is installed", rows, notes)]


def _demo(clone: Path, maven: Path) -> FigureTable:
    """Measure `make demo`. Leaves the environment of the demo in the clone."""
    maven.mkdir()
    taken = _timed(["make", "demo"], clone, {"MAVEN_OPTS": f"-Dmaven.repo.local={maven}"}, clone)
    parts = {path.name: disk_usage(path) for path in (clone / ".venv", clone / ".cache")}
    rows = [
        _row("packages, Java runtime and Kafka", "MB", sum(parts.values()), DEMO_LIMIT),
        _row("make demo, with its 20 s of reading", "s", taken.seconds, DEMO_SECONDS),
    ]
    largest = sorted(_packages(clone / ".venv"), reverse=True)[:4]
    notes = [
        "`.venv` and `.cache` of a clean clone; the caches of pip and Maven are empty.",
        "The largest are "
        + ", ".join(f"{name} {size:.0f} MB" for size, name in largest)
        + ", and Kafka's jars "
        f"{parts['.cache']:.0f} MB.",
    ]
    return FigureTable("Set-up: make demo from a clean clone", rows, notes)


def _extras(stage: BenchStage, clone: Path, folder: Path) -> Iterator[FigureRow]:
    for extra in QUICK_EXTRAS if stage.quick else EXTRAS:
        stage.report(f"setup: pip install, extra {extra or 'none'} ...")
        venv = folder / f"venv-{extra}"
        _run([_python(), "-m", "venv", str(venv)], cwd=folder)
        before = disk_usage(venv)
        wanted = f"{clone}[{extra}]" if extra else str(clone)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        taken = _timed([*pip, wanted], folder, {}, venv)
        name = f"the gateway with [{extra}]" if extra else "the gateway"
        yield _row(name, "MB", taken.size - before)
        yield _row(f"{name}: pip install", "s", taken.seconds)


def _file(folder: Path) -> list[FigureRow]:
    """Build the file once, and start it twice: the first time it unpacks itself."""
    home, made = folder / "home", folder / "fetchgate.pyz"
    home.mkdir(mode=0o700)
    files = dist.build_commit(folder / "build", dist.environment(folder / "venv-build"))
    made.write_bytes(next(data for name, data in files.items() if name.endswith(".pyz")))
    made.chmod(0o755)
    first, again = (
        _timed([_python(), "-I", str(made), "--version"], home, {"HOME": str(home)}, home) for _ in "12"
    )
    return [
        _row("one file", "MB", made.stat().st_size / MB),
        _row("one file, unpacked", "MB", again.size),
        _row("one file: first start, to --version", "s", first.seconds),
        _row("one file: later starts, to --version", "s", again.seconds),
    ]


def _timed(command: Sequence[str], cwd: Path, environment: Mapping[str, str], measured: Path) -> Installed:
    began = time.monotonic()
    _run(command, cwd=cwd, environment=environment)
    seconds = time.monotonic() - began
    return Installed(disk_usage(measured), seconds)


def _run(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    clean = {key: value for key, value in os.environ.items() if key not in {"FETCHGATE_CACHE", "VIRTUAL_ENV"}}
    clean |= {"PIP_NO_CACHE_DIR": "1", "PYTHON": _python(), **(environment or {})}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout)[-2000:]}")


def _python() -> str:
    """Return the Python that this environment was made with."""
    return os.path.realpath(sys.executable)


def disk_usage(folder: Path) -> float:
    """Return the size of a folder on disk in MB, as `du` counts it: what has several names counts once."""
    found = [folder, *folder.rglob("*")]
    states = {(state.st_dev, state.st_ino): state.st_blocks for state in map(os.lstat, found)}
    return sum(states.values()) * 512 / MB


def _packages(venv: Path) -> Iterator[tuple[float, str]]:
    """Yield the size and the name of each package's folder. `.libs` belong to the package beside them."""
    (packages,) = venv.glob("lib/python3*/site-packages")
    sizes: dict[str, float] = {}
    for path in packages.iterdir():
        if path.is_dir():
            name = path.name.removesuffix(".libs")
            sizes[name] = sizes.get(name, 0.0) + disk_usage(path)
    yield from ((size, name) for name, size in sizes.items())


def _row(name: str, unit: str, value: float, limit: float | None = None) -> FigureRow:
    return FigureRow(name, unit, {INSTALLED: value}, limit=limit)
