"""Measures a small capture in this process, in less time than Spark takes to start.

The steps and the report are the same as with Spark (``steps``). No Java is needed.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.files.sources import plan
from replay.capture.packets import segments
from replay.measure import steps
from replay.measure.collected import Collected, collect_part, groups_in
from replay.measure.strip_records import STRIPPED, strip_records
from replay.measure.table import EXCHANGES_RAW, KEYS
from replay.measure.work import Work
from replay.simulate.session_cache import CacheEvent, simulate

MOST: Final = 64 << 20
"""Above this many bytes, Spark is faster and takes less memory."""
_ROWS: Final = 10_000
"""The maximum of rows in a batch, as in Spark's default."""
_EVENTS: Final = 10_000


def measure_here(work: Work) -> Collected | None:
    """Measure captures of at most `MOST` bytes, compressed or not.

    Returns:
        The figures of the report. None if Spark is needed: for more bytes, or to read or write a table.

    Raises:
        OSError: a file can no longer be read.
    """
    if work.table or work.parquet or work.size > MOST:
        return None
    found = _stripped(work)
    if found is None:
        return None
    choice = replace(work.choice, raw=bool(work.topics))
    batches = _sorted(found, STRIPPED, "order")
    rows = list(steps.measure(work.keep.ports, choice, work.secrets, batches))
    if work.topics:
        choice = replace(choice, topics=work.topics | steps.topic_ids(work.topics, rows), members=0)
        keys = [batch.filter(pc.equal(batch.column("row"), KEYS)) for batch in rows]
        rows = [*keys, *steps.measure_again(work.keep, choice, _sorted(rows, EXCHANGES_RAW, "place"))]
    return _collected(pa.Table.from_batches(rows, steps.table_schema(choice)))


def _stripped(work: Work) -> list[pa.RecordBatch] | None:
    """Read the segments, without contents of records if possible.

    Return None if the segments have more than `MOST` bytes.
    """
    found, size = [], 0
    for share in plan(work.sources, MOST):
        for batch in segments.read(share, work.keep):
            size += batch.nbytes
            if size > MOST:
                return None
            found.append(strip_records(batch, keep=work.choice.members > 0))
    return found


def _sorted(batches: list[pa.RecordBatch], schema: pa.Schema, within: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows sorted by connection, and within a connection by the column `within`."""
    keys = [("connection", "ascending"), (within, "ascending")]
    table = pa.Table.from_batches(batches, schema).sort_by(keys).combine_chunks()
    yield from table.to_batches(max_chunksize=_ROWS)


def _collected(table: pa.Table) -> Collected:
    """Collect the figures of the report."""
    whole = Collected()
    sessions: defaultdict[str, list[CacheEvent]] = defaultdict(list)
    for part in collect_part(groups_in(table), _EVENTS):
        if isinstance(part, Collected):
            whole.merge(part)
        else:
            for broker, event in part:
                sessions[broker].append(event)
    whole.fit()
    whole.slots.update((broker, simulate(events)) for broker, events in sessions.items())
    return whole
