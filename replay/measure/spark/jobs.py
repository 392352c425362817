"""From shares of captures, or a table written before, to the table of exchanges and its groups.

One job with one exchange and one sort brings each connection's segments together, in order; nothing holds a
connection as a whole.
"""

import ipaddress
import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from replay.capture.files.sources import Share
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
    spark: SparkSession, shares: list[Share], keep: Filter, choice: RowFilter, partitions: int
) -> DataFrame:
    """Make the table of what shares hold.

    Args:
        spark: the session.
        shares: what one task each reads.
        keep: hosts and ports that are wanted.
        choice: what is made of the exchanges.
        partitions: tasks that connections are spread over.
    """
    pickled = [pickle.dumps(share) for share in shares]
    ids = spark.range(0, len(shares), 1, len(shares))
    found = ids.mapInArrow(partial(_read, pickled, keep), from_arrow_schema(STRIPPED))
    spread = found.repartition(partitions, "connection").sortWithinPartitions("connection", "order")
    return _grouped(spread, partial(_measure, keep.ports, choice), choice)


def from_table(table: DataFrame, keep: Filter, choice: RowFilter, partitions: int) -> DataFrame:
    """Make a table anew from one that has the raw columns, with another choice."""
    spread = table.repartition(partitions, "connection").sortWithinPartitions("connection", "place")
    return _grouped(spread, partial(_measure_again, keep, choice), choice)


def groups(table: DataFrame) -> pa.Table:
    """Sum the table up: by `GROUPED`, what is `SUMMED`, with the count of rows and their details."""
    sums = [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in SUMMED]
    summed = table.groupBy(*GROUPED).agg(
        f.count("*").alias("count"), f.collect_list("detail").alias("details"), *sums
    )
    return summed.toArrow()


def topic_ids(table: DataFrame) -> pa.Table:
    """Return the details of a table's connections; they name the topics that have ids."""
    return table.where("row = 'connection'").select("detail").toArrow()


def _grouped(spread: DataFrame, function: Callable[..., Batches], choice: RowFilter) -> DataFrame:
    """Run a function over each connection's batches, as they come."""

    def over(key: Key, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(key, batches)

    schema = EXCHANGES_RAW if choice.raw else EXCHANGES
    return spread.groupBy("connection").applyInArrow(over, from_arrow_schema(schema))


def _read(pickled: list[bytes], keep: Filter, ids: Iterable[pa.RecordBatch]) -> Batches:
    for batch in ids:
        for number in batch.column(0).to_pylist():
            for found in segments.read(pickle.loads(pickled[number]), keep):  # noqa: S301 - pickled above
                yield strip_records(found)


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
    """Whether one of a connection's hosts and one of its ports are among those named."""
    ends = [end.rpartition(":") for end in connection.rpartition(" #")[0].split(" > ")]
    hosts = [ipaddress.ip_address(host.strip("[]")) for host, _, _ in ends]
    networks = [ipaddress.ip_network(host, strict=False) for host in keep.hosts]
    return (not keep.ports or any(int(port) in keep.ports for _, _, port in ends)) and (
        not networks or any(host in network for host in hosts for network in networks)
    )
