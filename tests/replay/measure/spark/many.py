"""Measures very many connections in a Spark driver with a heap of 512 MB.

Run it with `python -m tests.replay.measure.spark.many 1000000`. It prints the number of connections, and the
peak of this process's resident bytes. In local mode the driver's heap is also the executor's heap.
"""

import json
import resource
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from replay.measure.spark.jobs import collected, parts_of
from replay.measure.spark.session import session
from replay.measure.table import EXCHANGES_RAW
from tests.replay.measure.synthetic import batch_of, complete, connection_rows

_TASKS: Final = 64


def many_connections(spark: SparkSession, connections: int, tasks: int) -> DataFrame:
    """Return a table with `connections` connections, which as many `tasks` make."""
    return spark.range(0, connections, 1, tasks).mapInArrow(_rows, from_arrow_schema(EXCHANGES_RAW))


def _rows(ids: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in ids:
        for start in range(0, batch.num_rows, 1000):
            numbers = batch.column(0).slice(start, 1000).to_pylist()
            rows = [complete(row) for number in numbers for row in connection_rows(number)]
            yield batch_of(rows)


def main() -> None:
    """Make as many connections as the command line says, and collect them on Spark."""
    with session("local[2]", {"spark.driver.memory": "512m"}) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", _TASKS)
        found = collected(parts_of(many_connections(spark, int(sys.argv[1]), _TASKS), _TASKS), _TASKS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"connections": found.kafka_connections, "peak_bytes": peak}) + "\n")


if __name__ == "__main__":
    main()
