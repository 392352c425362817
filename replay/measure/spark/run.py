"""One measurement on Spark, from its start to the groups that the report is made of, and its progress."""

import dataclasses
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
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

from replay.capture.files.sources import InputError, Source, plan
from replay.capture.packets.tcp import Filter
from replay.measure.rows import RowFilter
from replay.measure.spark.jobs import from_captures, from_table, groups, topic_ids
from replay.measure.spark.session import SparkFailedError, session
from replay.measure.table import EXCHANGES_RAW, end_from_json
from replay.report.wording import size
from replay.simulate.outcome import TopicKey

_LEAST_SHARE: Final = 16 << 20
_MOST_SHARE: Final = 512 << 20
_PARTITION: Final = 16 << 20
"""About so many bytes of capture are worth a task of their own."""
_GLANCE_SECONDS: Final = 0.25
_NAMED: Final = re.compile(r"(?!org\.apache|java\.|py4j|scala)[\w.]*(Error|Exception)\b")
"""How Python's own lines tell of an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be measured, and how."""

    keep: Filter
    choice: RowFilter
    topics: frozenset[str]
    """Names; the ids that stand for them in requests are found in the table."""
    sources: tuple[Source, ...] = field(default=())
    table: str | None = None
    """A directory with a table, in place of sources."""
    parquet: str | None = None
    """Where the table is to be written."""

    @property
    def size(self) -> int:
        """Bytes of the captures, as far as they are known."""
        return sum(max(source.size, 0) for source in self.sources)


def run_on_spark(work: Work, master: str, console: Console) -> pa.Table:
    """Start Spark, measure, and return the table's groups (see `replay.measure.report`).

    Raises:
        NoJavaError: there is no Java to run Spark on.
        SparkFailedError: it did not come up, or failed at its work.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    began = time.monotonic()
    quiet = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as progress:
        shown = progress.add_task("starting Spark", total=None)
        with session(master) as spark:
            up = time.monotonic()
            progress.update(shown, description="reading captures")
            with _watched(spark, progress, shown), _failures_told():
                found = measure(spark, work)
            done = time.monotonic()
    told = f"Spark was up after {up - began:.1f} s; measured in {done - up:.1f} s"
    rate = f", {size(round(work.size / (done - up)))}/s" if work.size else ""
    console.print(told + rate, style="dim", highlight=False)
    return found


def measure(spark: SparkSession, work: Work) -> pa.Table:
    """Measure within a session that is there."""
    cores = spark.sparkContext.defaultParallelism
    partitions = min(4 * cores, work.size // _PARTITION + 1) if work.sources else cores
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    choice = dataclasses.replace(work.choice, raw=bool(work.parquet or work.topics))
    if work.table is None:
        share = min(max(work.size // (2 * cores) + 1, _LEAST_SHARE), _MOST_SHARE)
        table = from_captures(spark, plan(work.sources, share), work.keep, choice, partitions)
    else:
        table = spark.read.parquet(work.table)
        if set(EXCHANGES_RAW.names) - set(table.columns):
            raise InputError(f"{work.table}: no table that --parquet wrote")
    if work.topics:
        table = table.persist(StorageLevel.DISK_ONLY)
        choice = dataclasses.replace(choice, topics=_keys(table, work.topics))
    if work.topics or work.table is not None:
        table = from_table(table, work.keep, choice, partitions)
    if work.parquet:
        table.write.parquet(work.parquet)
        table = spark.read.parquet(work.parquet)
    return groups(table)


def _keys(table: DataFrame, topics: frozenset[str]) -> frozenset[TopicKey]:
    """Return topics' names, and the ids that the captured Metadata responses give them."""
    named = topic_ids(table).column("detail").to_pylist()
    ends = (end_from_json(json.loads(detail)["end"]) for detail in named)
    ids = {topic_id for end in ends for topic_id, name in end.topics.items() if name in topics}
    return topics | ids


@contextmanager
def _failures_told() -> Iterator[None]:
    """Tell of a failure in one line: the last of what a worker or Spark said."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if _interrupted(error):
            raise KeyboardInterrupt from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in reversed(lines) if _NAMED.match(line)), lines[0] if lines else "")
        raise SparkFailedError(f"Spark failed at its work: {told}") from error


def _interrupted(error: BaseException | None) -> bool:
    """Whether the user stopped it: what PySpark raises then hides that."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def _watched(spark: SparkSession, progress: Progress, shown: TaskID) -> Iterator[None]:
    """Show how many of the tasks are done, while they are."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, progress, shown, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, progress: Progress, shown: TaskID, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(_GLANCE_SECONDS):
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        for stage in filter(None, stages):
            done = stage.numCompletedTasks
            told = "reading captures" if stage.stageId == 0 else "measuring sessions"
            progress.update(shown, description=told, completed=done, total=stage.numTasks)
