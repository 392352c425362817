"""Measures a gateway without clients: time from start to ready, size of packages."""

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final

from tools.bench.figures import GATEWAY, FigureRow, FigureTable
from tools.bench.processes import HOST, START_SECONDS
from tools.bench.stage import BenchStage
from tools.kafka import reaper
from tools.kafka.ports import free_ports

ROUNDS: Final = 7
READY_LIMIT, INSTALLED_LIMIT = 0.5, 120.0
"""The limits of a gateway: 0.5 s until ready, 120 MB installed."""
_ROOT: Final = Path(__file__).parents[2]
_NO_CODE: Final = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "tests", "tools")
_POLL_SECONDS: Final = 0.005


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure a gateway without clients."""
    address = stage.broker.address
    stage.report("operations: from start to ready ...")
    ready = median(_ready(address) for _ in range(ROUNDS))
    rows = [FigureRow(name="from start to ready", unit="s", values={GATEWAY: ready}, limit=READY_LIMIT)]
    stage.report("operations: an installation of its own ...")
    notes = [f"Ready: /readyz says 200, a broker was there; median of {ROUNDS} starts."]
    with tempfile.TemporaryDirectory(prefix="fetchgate-bench-") as scratch:
        size = _installed(Path(scratch))
    if size is None:
        notes.append("Packages were not measured: pip could not install them here.")
    else:
        values = {GATEWAY: size / 1e6}
        rows.append(FigureRow(name="installed packages", unit="MB", values=values, limit=INSTALLED_LIMIT))
        notes.append("Packages: what pip installs for the gateway alone, compiled, without pip itself.")
    return [FigureTable(part="operations", title="A gateway before it has clients", rows=rows, notes=notes)]


def _ready(bootstrap: str) -> float:
    """Start a gateway. Return the seconds until /readyz says that it is ready."""
    port = free_ports(6)
    admin = f"{HOST}:{port + 5}"
    command = [sys.executable, "-m", "proxy", "proxy", "--bootstrap", bootstrap]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "--listen", f"{HOST}:{port}", "--admin", admin], stderr=subprocess.DEVNULL
    )
    reaper.watch(process.pid)
    try:
        while time.monotonic() < began + START_SECONDS:
            with suppress(OSError), urllib.request.urlopen(f"http://{admin}/readyz", timeout=1):
                return time.monotonic() - began
            time.sleep(_POLL_SECONDS)
    finally:
        process.terminate()
        process.wait()
        reaper.forget(process.pid)
    raise RuntimeError(f"a gateway was not ready after {START_SECONDS:.0f} s")


def _installed(folder: Path) -> int | None:
    """Return the size on disk of the packages that pip installs. Return None if pip fails."""
    source, target = folder / "source", folder / "packages"
    shutil.copytree(_ROOT, source, ignore=_NO_CODE)  # a build writes into its source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None
    return sum(512 * each.stat().st_blocks for each in target.rglob("*"))
