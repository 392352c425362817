"""The command line of the benchmarks: `python -m tools.bench [--only NAME ...] [--quick | --long]`."""

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from tools import debian
from tools.bench import (
    alternatives,
    bulk,
    idle,
    latency,
    law6,
    many,
    memory,
    micro,
    others,
    replay,
    sessions,
    set_up,
    sidecars,
    tls,
    wire,
    zones,
)
from tools.bench.figures import FigureTable, markdown, show
from tools.bench.page import page
from tools.bench.stage import BenchStage

PARTS: Final[dict[str, Callable[[BenchStage], list[FigureTable]]]] = {
    "micro": micro.run,
    "sessions": sessions.run,
    "bytes": wire.run,
    "alternatives": alternatives.run,
    "law6": law6.run,
    "bulk": bulk.run,
    "tls": tls.run,
    "latency": latency.run,
    "connections": many.run,
    "idle": idle.run,
    "memory": memory.run,
    "others": others.run,
    "sidecars": sidecars.run,
    "replay": replay.run,
    "zones": zones.run,
    "setup": set_up.run,
}
ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 20.0
QUICK_SECONDS: Final = 4.0
WIDTH: Final = 110


def main() -> None:
    """Measure the selected parts, print the tables, and write the files that the options name."""
    options = _options()
    os.environ["PATH"] += f"{os.pathsep}{debian.programs()}"  # at its end: installed programs come first
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    tables: list[FigureTable] = []
    measured = _measured() if options.markdown else ""  # the work tree may move on meanwhile
    with BenchStage(seconds=seconds, quick=options.quick, long=options.long, console=console) as stage:
        for name in options.only or PARTS:
            began = time.monotonic()
            for table in PARTS[name](stage):
                show(console, table)
                tables.append(table)
            stage.report(f"{name}: took {time.monotonic() - began:.0f} s")
    missed = [row for table in tables for row in table.rows if row.met is False]
    judged = sum(row.met is not None for table in tables for row in table.rows)
    console.print(f"{judged - len(missed)} of {judged} targets met, on {machine()}.", highlight=False)
    if options.markdown:
        before = options.markdown.read_text() if options.markdown.exists() else ""
        body = page(markdown(tables, measured), before, options.only)
        options.markdown.write_text(f"{_head(seconds)}\n{body}\n")


def machine() -> str:
    """Describe this machine: the properties that influence the figures."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def _measured() -> str:
    """Return the commit that is measured, and its day."""
    command = ("git", "log", "-1", "--format=Measured at %h of %cs.")
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def _head(seconds: float) -> str:
    """Return the start of BENCHMARKS.md. `seconds` is the length of a window."""
    head = (
        "# Benchmarks\n\nMeasured by `make bench`; a part: `.venv/bin/python -m tools.bench --only NAME`.\n"
    )
    where = f"On {machine()}; windows of {seconds:.0f} s unless said. "
    return f"{head}{where}On other machines expect the same bytes, but other times.\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description="Measure what fetchgate costs and saves."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        metavar="NAME",
        help=f"measure only these parts: {', '.join(PARTS)}",
    )
    parser.add_argument("--seconds", type=float, help=f"length of a window (default: {SECONDS:.0f})")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="small and short runs")
    extent.add_argument("--long", action="store_true", help="also what takes minutes, such as large captures")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write them as a page; with --only, replace these parts in it",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
