"""`replay measure` of several captures in one session of Spark: `python -m tools.bench.measured FILE ...`.

The first capture only warms up Spark and its Python workers; then each is told as JSON in a line of its own.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from replay.capture.files.sources import expand
from replay.capture.packets.tcp import Filter
from replay.measure.report import About, report
from replay.measure.rows import RowFilter
from replay.measure.spark.run import Work, measure
from replay.measure.spark.session import session
from replay.report.model import Filters


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement."""

    file: str
    seconds: float
    """From the files to the report; Spark was there."""
    cpu: float
    """Seconds of all cores, of Python workers and of Java."""
    worker_bytes: int
    """The most that one Python worker has had resident so far."""
    actual: dict[str, int]
    """The report's fetches on the client's side."""


def main() -> None:
    """Measure each file, as often as it is named."""
    parser = argparse.ArgumentParser(description="Measure captures in one session of Spark.")
    parser.add_argument("files", nargs="+", help="the first one warms up")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    with session(f"local[{options.cores}]") as spark:
        for place, file in enumerate(options.files):
            told = _measured(spark, file)
            if place:
                print(json.dumps(asdict(told)), flush=True)


def _measured(spark: SparkSession, file: str) -> Measured:
    work = Work(keep=Filter(), choice=RowFilter(), topics=frozenset(), sources=tuple(expand([file])))
    about = About(version="", policy="gateway", filters=Filters(ports=[], hosts=[], clients=[], topics=[]))
    before, began = _cpu(), time.monotonic()
    made: dict[str, Any] = dict(report(measure(spark, work).to_pylist(), about))
    seconds = time.monotonic() - began
    return Measured(
        file=file,
        seconds=seconds,
        cpu=_cpu() - before,
        worker_bytes=max(map(_peak, _workers())),
        actual=made["fetch"]["actual"],
    )


def _cpu() -> float:
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))


def _workers() -> Iterator[psutil.Process]:
    """Give Spark's Python processes: they live as long as Spark."""
    for child in psutil.Process().children(recursive=True):
        if child.name().startswith("python"):
            yield child


def _peak(process: psutil.Process) -> int:
    """Return the most that a process had resident (proc(5): VmHWM), in bytes."""
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


if __name__ == "__main__":
    main()
