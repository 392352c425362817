"""`replay measure` of several captures in one session of Spark: `python -m tools.bench.measured FILE ...`.

The first capture only warms up Spark and its Python workers. For each further capture, the program prints a
line of JSON. A folder is measured as one capture.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from replay.measure.report import report
from replay.measure.spark.run import measure
from replay.measure.spark.session import session
from tools.bench.measured_capture import ABOUT, CORES, MeasuredCapture, work_of


def main() -> None:
    """Measure each file on the command line. A file that is given twice is measured twice."""
    parser = argparse.ArgumentParser(description="Measure captures in one session of Spark.")
    parser.add_argument("files", nargs="+", help="the first one warms up")
    parser.add_argument("--master", default=f"local[{CORES}]", help="that of Spark")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark")
    options = parser.parse_args()
    settings = dict(one.split("=", 1) for one in options.conf)
    with session(options.master, settings) as spark:
        for place, file in enumerate(options.files):
            result = _measured(spark, file)
            if place:
                print(json.dumps(asdict(result)), flush=True)


def _measured(spark: SparkSession, file: str) -> MeasuredCapture:
    work = work_of(file)
    began = time.monotonic()
    made_report: dict[str, Any] = dict(report(measure(spark, work), ABOUT))
    seconds = time.monotonic() - began
    return MeasuredCapture(
        file=file,
        bytes=made_report["input"]["bytes"],
        connections=made_report["input"]["connections"],
        seconds=seconds,
        worker_bytes=max(map(peak, _children("python")), default=0),
        driver_bytes=peak(os.getpid()),
        java_bytes=max(map(peak, _children("java"))),
        actual=made_report["fetch"]["actual"],
    )


def _children(program: str) -> Iterator[int]:
    for child in psutil.Process().children(recursive=True):
        if child.name().startswith(program):
            yield child.pid


def peak(pid: int) -> int:
    """Return the peak of a process's resident bytes (proc(5): VmHWM). 0 for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
