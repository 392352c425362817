"""Measures captures in this process: small ones in less time than on Spark, which has to start first.

The steps and the report are the same as with Spark (``steps``). Neither Spark nor Java is needed.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.files.sources import plan
from replay.capture.files.spans import SpanReader
from replay.capture.packets import segments
from replay.measure import steps
from replay.measure.collected import Collected, collect_part, groups_in
from replay.measure.options import MOST
from replay.measure.rows import RowFilter
from replay.measure.steps import Batches
from replay.measure.table import EXCHANGES_RAW, KEYS
from replay.measure.work import Work
from replay.simulate.session_cache import CacheEvent, simulate

_HELD: Final = 64 << 20
"""The maximum size in bytes of the segments in memory, and of the table in memory if the table has frames.
Segments have references to their payload, or the payload itself if the file can't be read again."""
_ROWS: Final = 10_000
"""The maximum number of rows in a batch. It is the same as Spark's default."""
_EVENTS: Final = 10_000


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
    choice = replace(work.choice, raw=bool(work.topics))
    with SpanReader(work.sources) as reader:
        batches = segments.with_payload(by_connection(found, segments.REFERENCES, "order"), reader)
        rows = steps.measure(work.keep.ports, choice, work.secrets, batches)
        return collected(rows) if not work.topics else _of_topics(work, choice, rows)


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


def collected(rows: Batches) -> Collected:
    """Collect the figures of the report."""
    whole = Collected()
    sessions: defaultdict[str, list[CacheEvent]] = defaultdict(list)
    for part in collect_part((group for batch in rows for group in groups_in(batch)), _EVENTS):
        if isinstance(part, Collected):
            whole.merge(part)
        else:
            for broker, event in part:
                sessions[broker].append(event)
    whole.slots.update((broker, simulate(events)) for broker, events in sessions.items())
    return whole


def _of_topics(work: Work, choice: RowFilter, measured: Batches) -> Collected | None:
    """Measure the fetches of some topics, from the rows of all. None if these need too much memory."""
    rows, size, most = [], 0, _HELD if work.memory is None else work.memory
    for batch in measured:
        size += batch.nbytes
        if size > most:
            return None
        rows.append(batch)
    choice = replace(choice, topics=work.topics | steps.topic_ids(work.topics, rows), members=0)
    keys = [batch.filter(pc.equal(batch.column("row"), KEYS)) for batch in rows]
    again = steps.measure_again(work.keep, choice, by_connection(rows, EXCHANGES_RAW, "place"))
    return collected(chain(keys, again))
