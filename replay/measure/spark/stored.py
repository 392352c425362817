"""A table of exchanges in Parquet files. Runs write it, add to it, and read it.

The files have the columns `STORED_COLUMNS`, for people. When they are read, they become the table of
exchanges again. They are in folders by day and broker. A run adds its rows with Spark's commit protocol:
files appear in the table only when all of them are written. A failed run leaves the table unchanged.
"""

import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from replay.capture.files.sources import InputError, Source
from replay.capture.files.streams import first_line, is_remote
from replay.measure.table import ADDED_COLUMNS, COLUMNS, EXCHANGES_RAW, STORED, STORED_COLUMNS, UNSTORED
from replay.protocol.names import NAMES

_NOTHING: Final = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})
"""Spark's errors if there is no table: the folder does not exist, or it has no files."""
_NO_PATTERN: Final = {"__globPaths__": "false"}
"""Lets Spark read a path with characters of patterns as it is. Spark writes to such a path, too."""
_FIRST: Final = """
nullif(case row
    when 'connection' then summary.end.first_time
    when 'file' then file_counts.first_time
    else coalesce(nullif(request_time, 0), response_time)
end, 0)
"""
_LAST: Final = """
case row
    when 'connection' then summary.end.last_time
    when 'file' then file_counts.last_time
    when 'exchange' then response_time
end
"""
_DAY: Final = f"if(row in ('connection', 'file'), {_LAST}, {_FIRST})"
_EXPRESSIONS: Final = {
    "time": f"timestamp_micros({_FIRST} div 1000)",
    "seconds": f"({_LAST} - {_FIRST}) / 1e9d",
    "saved_bytes": "if(eligible, request_bytes + response_bytes, 0L)"
    " - session_request_bytes - session_response_bytes",
    "day": f"date_from_unix_date(cast(nullif({_DAY}, 0) div 86400000000000 as int))",
    "broker": "if(row = 'file' or (row = 'connection' and summary.end.reason != ''), null, broker)",
}
"""SQL expressions for the values of stored columns that are not plain copies of columns of the table of
exchanges. `run` and `api` are made without SQL (see `_stored_columns`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What the table already contains: the numbers of runs and files, and the captures."""

    runs: int
    files: int
    """The next free number for a capture file. All files in the table have lower numbers."""
    captures: Mapping[str, str]
    """Names of capture files, by fingerprint."""

    def check(self, path: str, sources: Iterable[Source]) -> None:
        """Check that no capture would be added a second time.

        It could not be replaced later, because a connection's rows may come from several captures.

        Raises:
            InputError: the table already has some of the captures.
        """
        twice = [source for source in sources if source.fingerprint in self.captures]
        if twice:
            first = twice[0].name
            known = self.captures[twice[0].fingerprint]
            named = first if known == first else f"{first} (as {known})"
            more = f" and {len(twice) - 1} more captures" if len(twice) > 1 else ""
            raise InputError(
                f"--parquet {path}: the table has {named}{more} already; name only captures that it does not "
                "have, or a new directory for the table"
            )


def read_stored(spark: SparkSession, path: str) -> DataFrame | None:
    """Read a table. Return None if there is none.

    Raises:
        InputError: the Parquet files lack a column, or a field of a column.
    """
    schema = from_arrow_schema(STORED)
    try:
        names = set(_names(spark.read.options(**_NO_PATTERN).parquet(path).schema))
    except AnalysisException as error:
        if error.getCondition() in _NOTHING:
            return None
        raise
    missing = next((name for name in _names(schema) if name not in names), None)
    if missing is not None:
        raise InputError(
            f"{path}: these Parquet files have no column {missing}, as tables of --parquet have; measure the "
            "captures again, with --parquet and a new directory"
        )
    # With the schema named, Spark does not guess the types of day and broker from the names of folders.
    table = spark.read.schema(schema).options(**_NO_PATTERN).parquet(path)
    return table.select(*_read_columns(), *ADDED_COLUMNS)


def _names(kind: DataType, prefix: str = "") -> Iterator[str]:
    """Yield the names of all columns, and of the fields in them: `summary`, `summary.end` and so on."""
    if isinstance(kind, ArrayType):
        yield from _names(kind.elementType, prefix)
    elif isinstance(kind, MapType):
        yield from _names(kind.valueType, prefix)
    elif isinstance(kind, StructType):
        for one in kind.fields:
            yield prefix + one.name
            yield from _names(one.dataType, f"{prefix}{one.name}.")


def earlier(table: DataFrame) -> Earlier:
    """Return the contents of an existing table."""
    runs = files = 0
    captures = {}
    columns = ("run", "file_counts.number", "file_counts.fingerprint", "file_counts.file")
    for run, number, fingerprint, file in table.where("row = 'file'").select(*columns).toLocalIterator():
        runs, files = max(runs, run + 1), max(files, number + 1)
        if fingerprint:
            captures[fingerprint] = file
    return Earlier(runs=runs, files=files, captures=captures)


def check_new(table: DataFrame, added: DataFrame, path: str) -> None:
    """Check that an existing table has none of the requests that would be added.

    `Earlier.check` does not recognise a capture that was merged from others, or cut.

    Raises:
        InputError: the table already has some of the requests.
    """
    ends = ["client", "broker"]
    times = [f.col(f"summary.end.{name}").alias(name) for name in ("first_time", "last_time")]
    old, new = (one.where("row = 'connection'").select(*ends, *times) for one in (table, added))
    meet = (old.first_time <= new.last_time) & (new.first_time <= old.last_time)
    found = old.join(new, ends).where(meet).select(*ends).distinct()
    # Few connections are in both, so this reads few rows, and none if there is no such connection.
    old, new = (
        one.where("request_time > 0").join(f.broadcast(found), ends, "left_semi") for one in (table, added)
    )
    twice = new.join(old, [*ends, "correlation_id", "request_time"], "left_semi").agg(
        f.count("*"), f.min("connection")
    )
    requests, connection = twice.collect()[0]
    if requests:
        raise InputError(
            f"--parquet {path}: the table has {requests} of these requests already, for example in "
            f"{connection}; leave out the captures with the same traffic, or name a new directory"
        )


def write_stored(spark: SparkSession, table: DataFrame, path: str, run: int) -> DataFrame:
    """Write a new table, or add to an existing one. Return the rows of this run, as read from the table."""
    stored = table.select(*_stored_columns(run))
    with _settings(spark):
        # Tasks have connections to all brokers, each. This makes files of some 64 MB of them, not thousands.
        gathered = stored.hint("rebalance", f.col("day"), f.col("broker"))
        writer = gathered.write.mode("append").partitionBy("day", "broker")
        # Hadoop's FileOutputCommitter moves into the table what it finds in _temporary/ATTEMPT. All of
        # Spark's runs have attempt 0, so what a killed run left would be added with this one.
        writer.option("mapreduce.job.application.attempt.id", uuid.uuid4().int >> 97).parquet(path)
    written = read_stored(spark, path)
    if written is None:
        raise InputError(f"--parquet {path}: nothing was written there")
    return written.where(f.col("run") == run)


@contextmanager
def sole_writer(path: str) -> Iterator[None]:
    """Make the folder of a table, and lock it against other runs during the body.

    Two runs at the same time would use the same numbers for runs and files, and the first one to end would
    remove the files that Spark has written for the other. The lock works on this machine. It works between
    machines if the file system supports it. Object stores have no locks.

    Raises:
        InputError: another run is adding to the table, or the folder can't be made.
    """
    if is_remote(path):
        yield
        return
    folder = Path(path)
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"--parquet {path}: {first_line(error)}; name another directory") from error
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"--parquet {path}: another run adds to it now; wait until it ends, or name another "
                    "directory"
                ) from error
        yield
    finally:
        os.close(lock)
        if new:
            with suppress(OSError):  # it has a table now
                folder.rmdir()


def _stored_columns(run: int) -> Iterator[Column]:
    apis = f.create_map(*(f.lit(part) for key, name in NAMES.items() for part in (int(key), name)))
    key = f.nullif(f.col("api_key").cast("int"), f.lit(-1))
    api = f.coalesce(f.try_element_at(apis, key), f.concat(f.lit("ApiKey"), key))
    made = {"run": f.lit(run), "api": api} | {name: f.expr(text) for name, text in _EXPRESSIONS.items()}
    for one in STORED_COLUMNS:
        value = made.get(one.name, f.col(one.name))
        if one.nothing is not None:
            value = f.nullif(value, f.lit(one.nothing))
        yield value.alias(one.stored_name, metadata={"comment": one.meaning})


def _read_columns() -> Iterator[Column]:
    for one, kind in zip(COLUMNS, from_arrow_schema(EXCHANGES_RAW), strict=True):
        if one.name in UNSTORED:
            value = f.lit(None).cast(kind.dataType)
        elif one.nothing is None:
            value = f.col(one.stored_name)
        else:
            value = f.coalesce(f.col(one.stored_name), f.lit(one.nothing).cast(kind.dataType))
        yield value.alias(one.name)


_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "true",  # `rebalance` needs it to choose the number of tasks
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # not INT96, which is deprecated
}


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
