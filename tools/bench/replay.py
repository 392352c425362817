"""Measures how long `fetchgate replay` takes for large captures, compared with tshark.

tshark only finds the Kafka frames in the same file. The captures are generated (`tools.bench.captures`), so
the correct figures for `measure` are known.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tools.bench import drive
from tools.bench.captures import Shape, Truth, make
from tools.bench.figures import REPLAY, TSHARK, FigureRow, FigureTable
from tools.bench.stage import BenchStage

_MB: Final = 1_000_000
_GB: Final = 1_000 * _MB
_CORES: Final = 2
_SKEW: Final = 0.8
_ROUNDS: Final = 2
_SMALL: Final = 3 * _MB
_WARM: Final = 30 * _MB
_FRAMING: Final = (
    *("-o", "tcp.reassemble_out_of_order:TRUE", "-d", "tcp.port==9092,kafka"),
    *("-Y", "kafka", "-T", "fields", "-e", "kafka.len"),
)
"""Options that make tshark print only the length of every Kafka frame."""
_SPARK_STARTED: Final = re.compile(r"Spark started in ([\d.]+) s")


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure replay with large captures, with a small capture (cold start), and with the command `drive`."""
    with tempfile.TemporaryDirectory(prefix="fetchgate-bench-") as scratch:
        folder = Path(scratch)
        tables = [_large(stage, folder), _listing(stage, folder), _cold(stage, folder)]
    return [*tables, *drive.run(stage)]


def _large(stage: BenchStage, folder: Path) -> FigureTable:
    """Measure a capture whose connections have equal sizes, and a capture with one very large connection."""
    size = _GB // 10 if stage.quick else _GB
    shape = Shape()
    stage.report(f"replay: making captures of {size // _MB:,} MB ...")
    even, skewed, long = folder / "even.pcap", folder / "skewed.pcap", folder / "long.pcap"
    truths = {str(even): make(even, size, shape), str(skewed): make(skewed, size, Shape(skew=_SKEW))}
    files = [even, skewed] * (1 if stage.quick else _ROUNDS)
    if stage.long:
        truths[str(long)] = make(long, 4 * size, shape)
        files.append(long)
    measured = _measured(stage, folder, files, truths)
    best = {file: min(each["seconds"] for each in measured if each["file"] == file) for file in truths}
    rows = [*_measure_rows(measured, best, truths, even, skewed)]
    if stage.long:
        times = best[str(long)] / best[str(even)]
        rows.append(_row("four times as large", "times", times, limit=4.2))
    tshark, notes = _tshark(stage, even)
    rows += _beside(tshark, "measure", rows[0].values[REPLAY], 2.5)
    inspect = size / _MB / _inspected(stage, even, rounds=_ROUNDS)
    rows.append(_row("inspect, one core", "MB/s", inspect, limit=250, least=True, tshark=tshark))
    rows += _beside(tshark, "inspect", inspect, 4)
    title = f"Replay: captures of {size // _MB:,} MB, {_CORES} cores"
    notes = [
        *_mix(truths[str(even)], shape),
        "The best of some rounds. measure: from the file to the report, Spark and its workers are up.",
        *notes,
    ]
    return FigureTable(part="replay", title=title, rows=rows, notes=notes)


def _listing(stage: BenchStage, folder: Path) -> FigureTable:
    """Measure captures of fetches without records. Sessions save the most bytes in such traffic."""
    size = _GB // 10 if stage.quick else _GB
    stage.report(f"replay: making captures of {size // _MB:,} MB without records ...")
    counts = [(20, 150), (2_000, 100), (5_000 if stage.quick else 50_000, 60)]
    shapes = {
        str(folder / f"listing-{count}.pcap"): Shape(filled=0, connections=count) for count, _ in counts
    }
    truths = {file: make(Path(file), size, shape) for file, shape in shapes.items()}
    files = [Path(file) for file in truths]
    measured = _measured(stage, folder, files * (1 if stage.quick else _ROUNDS), truths)
    rows = []
    for file, (count, limit) in zip(truths, counts, strict=True):
        of_file = [each for each in measured if each["file"] == file]
        speed = truths[file].bytes / _MB / min(each["seconds"] for each in of_file)
        tshark, notes = _tshark(stage, Path(file))
        name = f"measure, {count:,} connections"
        rows.append(_row(name, "MB/s", speed, limit=limit, least=True, tshark=tshark))
        rows += _beside(tshark, "it", speed, 2.5)
        cpu = min(each["cpu"] for each in of_file) / truths[file].bytes * _GB
        rows.append(_row("CPU of it, all cores", "s/GB", cpu))
    rows += _memory(measured)
    notes = [
        "100 partitions, nothing new in any. Each connection has partitions, offsets and ids of its own.",
        *notes,
    ]
    title = f"Replay: captures of {size // _MB:,} MB without records, {_CORES} cores"
    return FigureTable(part="replay", title=title, rows=rows, notes=notes)


def _measure_rows(
    measured: list[dict[str, Any]], best: dict[str, float], truths: dict[str, Truth], even: Path, skewed: Path
) -> Iterator[FigureRow]:
    speed = {file: truths[file].bytes / _MB / seconds for file, seconds in best.items()}
    cpu = min(each["cpu"] / truths[each["file"]].bytes for each in measured) * _GB
    share = speed[str(skewed)] / speed[str(even)]
    yield _row("measure", "MB/s", speed[str(even)], limit=180, least=True)
    yield _row("measure, one connection with 80 %", "MB/s", speed[str(skewed)])
    yield _row("in that of 20 alike", "times", share, limit=0.9, least=True)
    yield _row("CPU of measure, all cores", "s/GB", cpu)
    yield from _memory(measured)


def _memory(measured: list[dict[str, Any]]) -> Iterator[FigureRow]:
    """Yield rows with the peak memory of each kind of process, in MB."""
    peaks = {name: max(each[name] for each in measured) / _MB for name in measured[0] if name in _PROCESSES}
    for name, (process, limit) in _PROCESSES.items():
        yield _row(f"{process}, peak memory", "MB", peaks[name], limit=limit)


_PROCESSES: Final = {
    "driver_bytes": ("the driver's Python", 512),
    "worker_bytes": ("a worker's Python", 600),
    "java_bytes": ("Java", None),
}
"""For each figure of `tools.bench.measured` on memory: the name of the process, and the limit in MB or
None."""


def _beside(tshark: float | None, name: str, speed: float, limit: float) -> list[FigureRow]:
    """Return a row that compares a speed with the speed of tshark, or no row if tshark was not measured."""
    if tshark is None:
        return []
    return [_row(f"{name} in tshark's", "times", speed / tshark, limit=limit, least=True)]


def _row(
    name: str,
    unit: str,
    value: float,
    *,
    limit: float | None = None,
    least: bool = False,
    tshark: float | None = None,
) -> FigureRow:
    values = {REPLAY: value} if tshark is None else {TSHARK: tshark, REPLAY: value}
    return FigureRow(name=name, unit=unit, values=values, limit=limit, least=least)


def _mix(truth: Truth, shape: Shape) -> list[str]:
    """Describe the traffic of a generated capture in a few lines."""
    request = truth.fetch_request_bytes // truth.fetches
    response = truth.fetch_response_bytes // truth.fetches
    each = truth.partitions_answered // truth.fetches
    return [
        f"{truth.fetches:,} fetches v16 by {truth.connections} connections of librdkafka, of {request:,} +",
        f"{response:,} bytes; of {each} partitions {shape.filled} have {shape.records:,}",
        f"bytes of records, the others with nothing new. {truth.packets:,} packets, of up to",
        "1,448 bytes, acknowledgments among them.",
    ]


def _measured(
    stage: BenchStage, folder: Path, files: Sequence[Path], truths: dict[str, Truth]
) -> list[dict[str, Any]]:
    """Measure capture files, and compare the results with the known figures of the generated captures.

    Raises:
        RuntimeError: the results differ from the known figures, or a measurement has failed.
    """
    warm = folder / "warm.pcap"
    make(warm, _WARM, Shape())
    stage.report("replay: measure, first a small one to warm up ...")
    command = [sys.executable, "-m", "tools.bench.measured", f"--cores={_CORES}", str(warm), *map(str, files)]
    results: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            results.append(each := json.loads(line))
            stage.report(f"replay: {Path(each['file']).name} took {each['seconds']:.1f} s")
    if running.returncode:
        raise RuntimeError(f"measure ended with {running.returncode}")
    for each in results:
        truth, actual = truths[each["file"]], each["actual"]
        wanted = truth.fetches, truth.fetch_request_bytes, truth.fetch_response_bytes, truth.record_bytes
        names = "requests", "request_bytes", "response_bytes", "record_bytes"
        if tuple(actual[name] for name in names) != wanted:
            raise RuntimeError(f"measure finds other fetches than were generated: {actual}, {truth}")
    return results


def _inspected(stage: BenchStage, file: Path, *, rounds: int) -> float:
    """Return the shortest duration of the command `inspect` on one core, in seconds."""
    stage.report(f"replay: inspect {file.name} ...")
    with _one_core():
        return min(_seconds("inspect", file)[0] for _ in range(rounds))


def _seconds(command: str, file: Path, *options: str) -> tuple[float, str]:
    """Run a command of replay as users do. Return its duration in seconds, and its stderr."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "replay", command, str(file), "--json", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.monotonic() - began, done.stderr


@contextmanager
def _one_core() -> Iterator[None]:
    """Run the processes that are started in the `with` block on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _tshark(stage: BenchStage, file: Path) -> tuple[float | None, list[str]]:
    """Return how fast tshark finds Kafka frames in a file, in MB/s, and notes about the measurement.

    The speed is None if tshark is not installed.
    """
    program = shutil.which("tshark")
    if program is None:
        return None, ["tshark is not installed here."]
    stage.report("replay: tshark, framing alone ...")
    began = time.monotonic()
    command = [program, "-r", str(file), *_FRAMING]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return file.stat().st_size / _MB / (time.monotonic() - began), [f"tshark: {' '.join(_FRAMING)}"]


def _cold(stage: BenchStage, folder: Path) -> FigureTable:
    """Measure how long the commands of replay take for a small capture, including their start."""
    file = folder / "small.pcap"
    make(file, _SMALL, Shape(connections=2))
    stage.report("replay: cold starts ...")
    rows = [_row("measure", "s", min(_seconds("measure", file)[0] for _ in range(_ROUNDS)), limit=8)]
    took, output = _seconds("measure", file, "--master", "local[*]")
    rows.append(_row("measure on Spark (--master)", "s", took))
    if (found := _SPARK_STARTED.search(output)) is not None:
        rows.append(_row("Spark's own of it", "s", float(found[1])))
    rows.append(_row("inspect", "s", min(_seconds("inspect", file)[0] for _ in range(_ROUNDS)), limit=0.5))
    notes = [
        "Whole commands, from their start to their end. measure needs no Spark for so small a capture.",
        "Spark's own: until its session is up.",
    ]
    title = f"Replay: a capture of {_SMALL // _MB} MB, from a cold start"
    return FigureTable(part="replay", title=title, rows=rows, notes=notes)
