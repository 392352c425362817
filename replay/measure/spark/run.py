"""Runs a measurement of captures or of a table on Spark, with a progress bar."""

import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Final

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from replay.capture.files.sources import InputError, plan
from replay.measure.collected import Collected
from replay.measure.spark.errors import SparkFailedError
from replay.measure.spark.jobs import collected, from_captures, from_table, parts_of, uses_of_ports
from replay.measure.spark.session import interrupted, is_local, session
from replay.measure.spark.stored import check_new, earlier, read_stored, sole_writer, write_stored
from replay.measure.table import KEYS
from replay.measure.work import Work
from replay.report.wording import size

_LEAST_SHARE: Final = 16 << 20
_MOST_SHARE: Final = 512 << 20
_CLUSTER_SHARE: Final = 64 << 20
_MOST_PARTITIONS: Final = 10_000
_PARTITION: Final = 16 << 20
"""The number of bytes of captures, or of a table, for which there is one task that measures connections."""
_POLL_SECONDS: Final = 0.25
_FULL: Final = "No space left on device"
_NOEXEC: Final = "failed to map segment from shared object"
_GONE: Final = (
    "Spark's Java process has ended; if --master is spark://, check that a Spark master of the same version "
    "listens there (its web page has another port)"
)
_EXECUTOR_SECONDS: Final = 12
_NO_EXECUTOR: Final = (
    "No executor has registered yet: the cluster has no worker with enough free cores and memory "
    "(--conf spark.executor.memory=512m asks for less). Still waiting; Ctrl-C ends it."
)
_EXCEPTION: Final = re.compile(r"(?!org\.apache|java\.|py4j|scala)[\w.]*(Error|Exception)(:|$)")
"""The line of a Python traceback that has the name of the exception."""


def run_on_spark(work: Work, master: str | None, settings: Mapping[str, str], console: Console) -> Collected:
    """Start Spark, measure, and return the figures of the report.

    `master` and `settings` are as in `session`. The console gets the progress bar, and messages.

    Raises:
        NoJavaError: there is no Java for Spark.
        SparkFailedError: Spark did not start, or the measurement failed.
        InputError: the table can't be read, or can't be written or extended.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    began = time.monotonic()
    quiet = not console.is_terminal
    if quiet:
        console.print("Starting Spark ...", highlight=False)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as progress:
        bar = progress.add_task("starting Spark", total=None)
        # Spark tells why it failed only while it runs, so the inner one comes first.
        with _failures_in_one_line(), session(master, settings) as spark, _failures_in_one_line():
            up = time.monotonic()
            progress.update(bar, description="measuring")
            if quiet:
                what = size(work.size) if work.size else "the table" if work.table else "captures"
                console.print(f"Measuring {what} ...", highlight=False)
            if page := spark.sparkContext.uiWebUrl:
                console.print(f"Spark's web page: {page}", style="dim", highlight=False)
            with _task_progress(spark, progress, bar):
                found = measure(spark, work)
            done = time.monotonic()
    times = f"Spark started in {up - began:.1f} s; measured in {done - up:.1f} s"
    rate = f", {size(round(work.size / (done - up)))}/s" if work.size else ""
    console.print(times + rate, style="dim", highlight=False)
    return found


def measure(spark: SparkSession, work: Work) -> Collected:
    """Measure captures or a table in a running Spark session."""
    with sole_writer(work.parquet) if work.parquet else nullcontext():
        return _measure(spark, work)


def _measure(spark: SparkSession, work: Work) -> Collected:
    local = is_local(spark.sparkContext.master)
    cores = spark.sparkContext.defaultParallelism if local else None
    choice = replace(work.choice, errors=bool(work.parquet))
    target = read_stored(spark, work.parquet) if work.parquet else None
    runs = 0
    if work.table is None:
        partitions = partitions_for(work.size, cores)
        sources, uses = work.sources, None
        if target is not None and work.parquet:
            known = earlier(target)
            known.check(work.parquet, sources)
            runs, uses = known.runs, uses_of_ports(target)
            sources = tuple(replace(one, number=one.number + known.files) for one in sources)
        shares = plan(sources, share_of(work.size, cores))
        rows = from_captures(
            spark, shares, work.keep, choice, partitions, work.secrets, elsewhere=not local, uses=uses
        )
    else:
        if target is not None:
            raise InputError(
                f"--parquet {work.parquet}: it is a table already; only captures can be added "
                "to it, not another table"
            )
        stored = read_stored(spark, work.table)
        if stored is None:
            raise InputError(f"{work.table}: there is no table")
        partitions = partitions_for(_stored(stored), cores)
        rows = from_table(stored, work.keep, choice, partitions)
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    if work.topics:
        rows = rows.of_topics(work.topics)
    if not work.parquet:
        return collected(rows.parts(), partitions)
    table, keys = rows.table(), None
    if choice.members:  # files have no keys
        table = table.persist(StorageLevel.DISK_ONLY)
        keys = table.where(f.col("row") == KEYS)
        table = table.where(f.col("row") != KEYS)
    if target is not None:
        table = table.persist(StorageLevel.DISK_ONLY)
        check_new(target, table, work.parquet)
    parts = parts_of(write_stored(spark, table, work.parquet, runs), partitions)
    if keys is not None:
        parts = parts.union(parts_of(keys, partitions))
    return collected(parts, partitions)


def partitions_for(size: int, cores: int | None) -> int:
    """Return the number of tasks that measure connections, for captures or a table of so many bytes.

    `cores` is how many Spark uses on this machine. None on a cluster: executors come and go there, so only
    the size decides, and there are enough tasks for cores that are added later.
    """
    partitions = size // _PARTITION + 1
    return min(partitions, _MOST_PARTITIONS if cores is None else 4 * cores)


def share_of(size: int, cores: int | None) -> int:
    """Return the number of bytes of captures that one task reads. `partitions_for` has the same arguments."""
    if cores is None:
        return max(size // _MOST_PARTITIONS + 1, _CLUSTER_SHARE)
    return min(max(size // (2 * cores) + 1, _LEAST_SHARE), _MOST_SHARE)


def _stored(table: DataFrame) -> int:
    """Return the size of a stored table's files as Spark estimates it, in bytes."""
    return int(str(table._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))  # noqa: SLF001 - PySpark has no other way


@contextmanager
def _failures_in_one_line() -> Iterator[None]:
    """If Spark fails, raise a SparkFailedError of one line, or after Ctrl-C a KeyboardInterrupt."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if interrupted(error):
            raise KeyboardInterrupt from error
        raise SparkFailedError(f"Spark failed: {_cause(str(error))}") from error
    except ConnectionError as error:
        raise SparkFailedError(_GONE) from error


def _cause(text: str) -> str:
    """Return the cause of a failure in one line, from the output of Python and Java.

    This is the last exception of Python in it, else Java's last "Caused by", else Java's exception, else the
    first line.
    """
    if _FULL in text:
        return (
            f"{_FULL}: Spark's scratch files are in {tempfile.gettempdir()} (set TMPDIR for another folder), "
            "and --parquet writes to its directory"
        )
    if _NOEXEC in text:
        folder = tempfile.gettempdir()
        return f"{folder} lets no library run (noexec), as --parquet needs: set TMPDIR to another folder"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    of_java = [line.partition(": ")[2] for line in lines if line.startswith((": ", "Caused by: "))]
    of_python = [line for line in lines if _EXCEPTION.match(line)]
    return next(reversed([*lines[:1], *of_java, *of_python]), "")


@contextmanager
def _task_progress(spark: SparkSession, progress: Progress, bar: TaskID) -> Iterator[None]:
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, progress, bar, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, progress: Progress, bar: TaskID, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    began = time.monotonic()
    waiting = not is_local(spark.sparkContext.master)
    while not over.wait(_POLL_SECONDS):
        if waiting and (waiting := not _executors(spark)) and time.monotonic() - began > _EXECUTOR_SECONDS:
            progress.console.print(_NO_EXECUTOR, highlight=False)
            waiting = False
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        for stage in filter(None, stages):
            done = stage.numCompletedTasks
            progress.update(bar, completed=done, total=stage.numTasks)


def _executors(spark: SparkSession) -> int:
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 - PySpark has no other way
    return int(status.size()) - 1  # the driver is one of them
