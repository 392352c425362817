"""Measures `fetchgate replay` with large captures, beside tshark, which only finds the Kafka frames."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.bench.captures import Shape, Truth, make
from tools.bench.cluster import cluster, environment
from tools.bench.figures import FigureRow, FigureTable
from tools.bench.large import GB, RECORDS, LargeCaptures, Traffic, best, row, traffics
from tools.bench.measured_capture import CORES, MB, MeasuredCapture
from tools.bench.stage import BenchStage

_SKEW: Final = 0.8
_ROUNDS: Final = 2
_MANY: Final = Shape(filled=0, connections=250_000, partitions=1, opening=0, each=2)
"""Connections of two small fetches each. More of them would take more than 4 minutes."""
_WORKER_MB: Final = 300
_DRIVER_MB: Final = 200
_SMALL: Final = 3 * MB
_FRAMING: Final = (
    *("-o", "tcp.reassemble_out_of_order:TRUE", "-d", "tcp.port==9092,kafka"),
    *("-Y", "kafka", "-T", "fields", "-e", "kafka.len"),
)
"""Options that make tshark print only the length of every Kafka frame."""
_SPARK_STARTED: Final = re.compile(r"Spark started in ([\d.]+) s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that has ended: its duration and its CPU time, both in seconds, and its stderr."""

    seconds: float
    cpu: float
    errors: str


def run(stage: BenchStage) -> list[FigureTable]:
    """Measure replay with large captures, and with a small capture (cold start)."""
    with tempfile.TemporaryDirectory(prefix="fetchgate-bench-") as scratch:
        folder = Path(scratch)
        return [_large(stage, LargeCaptures(stage, folder)), _cold(stage, folder)]


def _large(stage: BenchStage, captures: LargeCaptures) -> FigureTable:
    part = 10 if stage.quick else 1
    rounds = 1 if stage.quick else _ROUNDS
    size, kinds = GB // part, traffics(part)
    files = {kind.name: captures.make(kind.name, size, kind.shape) for kind in kinds}
    records = files[RECORDS]
    skewed = captures.make("one connection with most", size, Shape(skew=_SKEW))
    measured = captures.measure([*files.values(), skewed] * rounds)
    on_cluster = _on_cluster(captures, records, rounds)
    speeds = {name: best(measured, file).speed for name, file in files.items()}
    peer = {name: ran for name, file in files.items() if (ran := _tshark(stage, file)) is not None}
    start = _replay("measure", captures.make("start", _SMALL, Shape(connections=2))).cpu
    alone = {name: _alone(stage, file) - start for name, file in files.items()}
    inspect = size / MB / _inspected(stage, records, rounds=_ROUNDS)
    rows = [
        *speed_rows(kinds, speeds, {name: size / MB / ran.seconds for name, ran in peer.items()}),
        *cpu_rows(kinds, alone, {name: ran.cpu for name, ran in peer.items()}, size),
        *skew_rows(speeds[RECORDS], best(measured, skewed).speed),
        *cluster_rows(speeds[RECORDS], on_cluster.speed),
    ]
    rows += memory_rows(measured)
    rows += _many_rows(captures) if stage.long else []
    rows.append(row("inspect, one core", "MB/s", inspect, limit=200, least=True))
    notes = [
        *_mix(captures.truth(records), kinds[0].shape),
        *_topics(kinds[1].shape),
        "Without records, 100 partitions have nothing new. Each connection has partitions, offsets and ids",
        "of its own. MB/s: the best of some rounds on Spark, from the file to the report; Spark and its",
        "workers are up. CPU: user and system of `measure --in-process`, without its start.",
        "Cluster: a Master and its Workers on this machine, with the same capture.",
        *_tshark_notes(there=bool(peer)),
    ]
    title = f"Replay: captures of {size // MB:,} MB, {CORES} cores"
    return FigureTable(title, rows, notes)


def speed_rows(
    kinds: Sequence[Traffic], speeds: Mapping[str, float], tshark: Mapping[str, float]
) -> Iterator[FigureRow]:
    """Yield the speed of each kind of traffic in MB/s, beside that of tshark if there is one."""
    for kind in kinds:
        beside, name = tshark.get(kind.name), kind.name
        yield row(name, "MB/s", speeds[name], limit=kind.least, least=True, tshark=beside)


def cpu_rows(
    kinds: Sequence[Traffic], spent: Mapping[str, float], tshark: Mapping[str, float], size: int
) -> Iterator[FigureRow]:
    """Yield the CPU seconds for a GB of each kind of traffic, beside those of tshark if there are any."""
    part = size / GB
    of_tshark = {name: cpu / part for name, cpu in tshark.items()}
    for kind in kinds:
        name, beside = f"{kind.name}, CPU of one process", of_tshark.get(kind.name)
        yield row(name, "s/GB", spent[kind.name] / part, limit=kind.cpu, tshark=beside)


def skew_rows(even: float, skewed: float) -> Iterator[FigureRow]:
    """Yield rows that compare a capture in which one connection is large with one of equal connections."""
    yield row("records, one connection with 80 %", "MB/s", skewed)
    yield row("one connection with 80 %, in that of 20 alike", "times", skewed / even, limit=0.9, least=True)


def cluster_rows(local: float, on_cluster: float) -> Iterator[FigureRow]:
    """Yield rows that compare a cluster with a single machine. The cluster has as many cores."""
    yield row(f"records, cluster of {CORES} workers of one core", "MB/s", on_cluster)
    yield row(f"cluster, in local[{CORES}]'s", "times", on_cluster / local, limit=0.8, least=True)


def memory_rows(measured: Sequence[MeasuredCapture]) -> Iterator[FigureRow]:
    """Yield rows with the peak memory of each kind of process."""
    worker, driver, java = (
        max(values) / MB
        for values in zip(
            *((one.worker_bytes, one.driver_bytes, one.java_bytes) for one in measured), strict=True
        )
    )
    yield row("a worker's Python, peak memory", "MB", worker, limit=_WORKER_MB)
    yield row("the driver's Python, peak memory", "MB", driver, limit=_DRIVER_MB)
    yield row("Java, peak memory", "MB", java)


def many_rows(found: MeasuredCapture) -> Iterator[FigureRow]:
    """Yield rows with the peak memory for very many connections."""
    with_them = f"with {found.connections:,} connections"
    yield row(f"a worker's Python {with_them}", "MB", found.worker_bytes / MB, limit=_WORKER_MB)
    yield row(f"the driver's Python {with_them}", "MB", found.driver_bytes / MB, limit=_DRIVER_MB)


def _on_cluster(captures: LargeCaptures, file: Path, rounds: int) -> MeasuredCapture:
    """Measure a capture on a cluster of workers with one core each. Return the best round."""
    folder = captures.folder / "cluster"
    folder.mkdir()
    with cluster(folder, CORES) as started:
        variables = environment(folder)
        found = captures.measure([file] * rounds, *started.options(), warm=file, environment=variables)
    return best(found, file)


def _many_rows(captures: LargeCaptures) -> list[FigureRow]:
    """Measure a capture with very many connections, in a Spark session of its own."""
    [found] = captures.measure([captures.make("very many connections", 0, _MANY)])
    return [*many_rows(found)]


def _mix(truth: Truth, shape: Shape) -> list[str]:
    request = truth.fetch_request_bytes // truth.fetches
    response = truth.fetch_response_bytes // truth.fetches
    each = truth.partitions_answered // truth.fetches
    return [
        f"{truth.fetches:,} fetches v16 by {truth.connections} connections of librdkafka, of {request:,} +",
        f"{response:,} bytes; of {each} partitions {shape.filled} have {shape.records:,}",
        f"bytes of records, the others with nothing new. {truth.packets:,} packets, of up to",
        "1,448 bytes, acknowledgments among them.",
    ]


def _topics(shape: Shape) -> list[str]:
    each = shape.partitions // shape.topics
    return [
        f"{shape.topics} topics: of {each} partitions each, in one list that is rotated. {shape.filled} of",
        f"them have {shape.records:,} bytes of records.",
    ]


def _inspected(stage: BenchStage, file: Path, *, rounds: int) -> float:
    """Return the shortest duration of the command `inspect` on one core, in seconds."""
    stage.report(f"replay: inspect {file.name} ...")
    with _one_core():
        return min(_replay("inspect", file).seconds for _ in range(rounds))


def _alone(stage: BenchStage, file: Path) -> float:
    """Return the CPU time of `measure` in one process, in seconds, with its start."""
    stage.report(f"replay: measure in one process: {file.stem} ...")
    return _replay("measure", file, "--in-process").cpu


def _replay(command: str, file: Path, *options: str) -> Ran:
    """Run a command of replay as users do."""
    return _run(sys.executable, "-m", "proxy", "replay", command, str(file), "--json", *options)


def _run(*command: str) -> Ran:
    spent, began = _cpu(), time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return Ran(seconds=time.monotonic() - began, cpu=_cpu() - spent, errors=done.stderr)


def _cpu() -> float:
    """Return the CPU time of all processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _one_core() -> Iterator[None]:
    """Run the processes that are started in the `with` block on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _tshark(stage: BenchStage, file: Path) -> Ran | None:
    """Let tshark find the Kafka frames in a file. Return None if tshark is not there."""
    program = shutil.which("tshark")
    if program is None:
        return None
    stage.report(f"replay: tshark, framing alone: {file.stem} ...")
    return _run(program, "-r", str(file), *_FRAMING)


def _tshark_notes(*, there: bool) -> list[str]:
    if not there:
        return ["tshark is not there: `python -m tools.debian` fetches it."]
    return [f"tshark: {' '.join(_FRAMING)}"]


def _cold(stage: BenchStage, folder: Path) -> FigureTable:
    """Measure how long the commands of replay take for a small capture, including their start."""
    file = folder / "small.pcap"
    make(file, _SMALL, Shape(connections=2))
    stage.report("replay: cold starts ...")
    rows = [row("measure", "s", min(_replay("measure", file).seconds for _ in range(_ROUNDS)), limit=8)]
    on_spark = _replay("measure", file, "--master", "local[*]")
    rows.append(row("measure on Spark (--master)", "s", on_spark.seconds))
    if (found := _SPARK_STARTED.search(on_spark.errors)) is not None:
        rows.append(row("Spark's own of it", "s", float(found[1])))
    rows.append(row("inspect", "s", min(_replay("inspect", file).seconds for _ in range(_ROUNDS)), limit=0.5))
    notes = [
        "Whole commands, from their start to their end. measure needs no Spark for so small a capture.",
        "Spark's own: until its session is up.",
    ]
    title = f"Replay: a capture of {_SMALL // MB} MB, from a cold start"
    return FigureTable(title, rows, notes)
