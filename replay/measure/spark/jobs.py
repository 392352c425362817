"""The Spark jobs: from captures, or from a table, to the table of exchanges, and from it to its groups.

One shuffle and one sort bring the segments of each connection together, in order. No connection is held in
memory as a whole.
"""

import ipaddress
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from replay.capture.files.sources import Share
from replay.capture.files.streams import first_line, open_stream
from replay.capture.kafka.exchanges import read_exchanges
from replay.capture.packets import segments
from replay.capture.packets.tcp import Filter
from replay.measure.report import GROUPED, SUMMED
from replay.measure.rows import RowFilter, file_rows, rows
from replay.measure.strip_records import STRIPPED, restore_records, strip_records
from replay.measure.table import EXCHANGES, EXCHANGES_RAW, exchanges

Batches: TypeAlias = Iterator[pa.RecordBatch]
Key: TypeAlias = tuple[pa.Scalar, ...]


def from_captures(
    spark: SparkSession,
    shares: list[Share],
    keep: Filter,
    choice: RowFilter,
    partitions: int,
    *,
    elsewhere: bool = False,
) -> DataFrame:
    """Make the table from captures.

    Args:
        spark: the session.
        shares: each is read by one task.
        keep: which hosts and ports are read.
        choice: how exchanges become rows.
        partitions: number of tasks for the connections.
        elsewhere: tasks run on other machines, which may not have the files: then the job fails.
    """
    pickled = [pickle.dumps(share) for share in shares]
    ids = spark.range(0, len(shares), 1, len(shares))
    found = ids.mapInArrow(partial(_read, pickled, keep, elsewhere), from_arrow_schema(STRIPPED))
    spread = found.repartition(partitions, "connection").sortWithinPartitions("connection", "order")
    return _grouped(spread, partial(_measure, keep.ports, choice), choice)


def from_table(table: DataFrame, keep: Filter, choice: RowFilter, partitions: int) -> DataFrame:
    """Make a table again, from one that has the raw columns, with another filter."""
    spread = table.repartition(partitions, "connection").sortWithinPartitions("connection", "place")
    return _grouped(spread, partial(_measure_again, keep, choice), choice)


def groups(table: DataFrame) -> pa.Table:
    """Group the table by `GROUPED`; add up `SUMMED`, count the rows, and collect their details."""
    sums = [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in SUMMED]
    summed = table.groupBy(*GROUPED).agg(
        f.count("*").alias("count"), f.collect_list("detail").alias("details"), *sums
    )
    return summed.toArrow()


def topic_ids(table: DataFrame) -> pa.Table:
    """Return the details of a table's connections. They hold the names of topic ids."""
    return table.where("row = 'connection'").select("detail").toArrow()


def _grouped(spread: DataFrame, function: Callable[..., Batches], choice: RowFilter) -> DataFrame:
    """Run a function over the batches of each connection, one after the other."""

    def over(key: Key, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(key, batches)

    schema = EXCHANGES_RAW if choice.raw else EXCHANGES
    return spread.groupBy("connection").applyInArrow(over, from_arrow_schema(schema))


def _read(pickled: list[bytes], keep: Filter, elsewhere: bool, ids: Iterable[pa.RecordBatch]) -> Batches:
    for batch in ids:
        for number in batch.column(0).to_pylist():
            share: Share = pickle.loads(pickled[number])  # noqa: S301 - pickled above
            if elsewhere:
                check_seen(share)
            for found in segments.read(share, keep):
                yield strip_records(found)


def check_seen(share: Share) -> None:
    """Check that this machine can open what the driver could open.

    Raises:
        FileNotFoundError: it can't. Spark then tries another worker, before the job fails.
    """
    for source in {piece.source.number: piece.source for piece in share.pieces if piece.source.form}.values():
        try:
            open_stream(source.path)[0].close()
        except OSError as error:
            raise FileNotFoundError(
                f"{source.name}: the worker on {socket.gethostname()} can't open {source.path} "
                f"({first_line(error)}); put captures where the driver and all workers see them under the "
                "same path, or in a store such as s3://"
            ) from error


def _measure(ports: frozenset[int], choice: RowFilter, key: Key, batches: Batches) -> Batches:
    own = map(restore_records, batches)
    if not key[0].as_py():
        for batch in own:
            details = [payload.decode() for payload in batch.column("payload").to_pylist()]
            yield file_rows(details, choice)
        return
    yield from rows(read_exchanges(own, ports=ports), choice)


def _measure_again(keep: Filter, choice: RowFilter, key: Key, batches: Batches) -> Batches:
    if not key[0].as_py():
        for batch in batches:
            yield file_rows(batch.column("detail").to_pylist(), choice)
    elif _wanted(keep, key[0].as_py()):
        yield from rows((event for batch in batches for event in exchanges(batch)), choice)


def _wanted(keep: Filter, connection: str) -> bool:
    """Whether a filter keeps a connection (see `Filter`)."""
    ends = [end.rpartition(":") for end in connection.rpartition(" #")[0].split(" > ")]
    hosts = [ipaddress.ip_address(host.strip("[]")) for host, _, _ in ends]
    networks = [ipaddress.ip_network(host, strict=False) for host in keep.hosts]
    return (not keep.ports or any(int(port) in keep.ports for _, _, port in ends)) and (
        not networks or any(host in network for host in hosts for network in networks)
    )
