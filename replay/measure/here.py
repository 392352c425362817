"""Measures captures in this process: small ones in less time than on Spark, which has to start first.

The steps and the report are the same as with Spark (``steps``). Neither Spark nor Java is needed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import plan
from replay.capture.files.spans import SpanReader
from replay.capture.kafka.exchanges import Event
from replay.capture.packets import segments
from replay.measure import steps
from replay.measure.collected import Collected, collect
from replay.measure.options import MOST
from replay.measure.rows import RowFilter, groups
from replay.measure.work import Work

_HELD: Final = 64 << 20
"""The maximum size in bytes of the segments in memory. They have references to their payload, or the payload
itself if the file can't be read again."""
_ROWS: Final = 10_000
"""The maximum number of rows in a batch. It is the same as Spark's default."""


def measure_here(work: Work) -> Collected | None:
    """Measure captures without Spark, if they have at most `MOST` bytes before decompression.

    With `Work.memory`, any size is measured if its segments fit into so many bytes. Return None if Spark is
    needed (`why_spark` gives the reason).

    Raises:
        OSError: a file can no longer be read.
    """
    if work.table or work.parquet or (work.memory is None and work.size > MOST):
        return None
    found = references(work)
    if found is None:
        return None
    batches = [*by_connection(found, segments.REFERENCES, "order")]
    with SpanReader(work.sources) as reader:

        def events(choice: RowFilter, files: list[FileCounts]) -> Iterator[Event]:
            filled = segments.with_payload(batches, reader)
            return steps.events(work.keep.ports, choice, work.secrets, filled, files)

        choice, files = work.choice, list[FileCounts]()
        if work.topics:
            choice = replace(choice, topics=work.topics | steps.topic_ids(work.topics, events(choice, [])))
        return collect(groups(events(choice, files), choice, files))


def references(work: Work) -> list[pa.RecordBatch] | None:
    """Read the segments, with references to payload if possible. None if they need too much memory."""
    found, size, most = [], 0, _HELD if work.memory is None else work.memory
    for share in plan(work.sources, MOST):
        for batch in segments.read_references(share, work.keep, plain=work.choice.plain):
            size += batch.nbytes
            if size > most:
                return None
            found.append(batch)
    return found


def why_spark(work: Work) -> str:
    """Return why Spark has to measure something that `measure_here` does not measure."""
    if work.table:
        return "a table is measured on Spark"
    if work.parquet:
        return "--parquet needs Spark"
    if work.size > MOST:
        return f"captures of more than {MOST >> 20} MiB are measured on Spark"
    return f"captures that need more than {_HELD >> 20} MiB of memory are measured on Spark"


def by_connection(batches: list[pa.RecordBatch], schema: pa.Schema, within: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows sorted by connection. The rows of a connection are sorted by the column `within`."""
    keys = [("connection", "ascending"), (within, "ascending")]
    table = pa.Table.from_batches(batches, schema).sort_by(keys).combine_chunks()
    yield from table.to_batches(max_chunksize=_ROWS)
