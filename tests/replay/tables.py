"""Tables of captures, made without Spark."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.exchange import ConnectionEnd, Exchange
from replay.capture.exchanges import read_exchanges
from replay.capture.segments import read
from replay.capture.sources import expand, plan
from replay.rows import Choice, file_rows, rows

CAPTURES = Path(__file__).parents[2] / "captures"


def connections(*captures: Path) -> Iterator[list[Exchange | ConnectionEnd]]:
    """The events of each pair of ports."""
    batches: dict[bytes, list[pa.RecordBatch]] = defaultdict(list)
    for share in plan(expand(map(str, captures)), 1 << 30):
        for batch in read(share):
            for key in batch.column("connection").unique().to_pylist():
                batches[key].append(batch.filter(pc.equal(batch.column("connection"), key)))
    for key, found in batches.items():
        if key:
            yield list(read_exchanges(iter(found)))


def table(choice: Choice, *captures: Path) -> pa.Table:
    """The table of captures."""
    made = [batch for events in connections(*captures) for batch in rows(events, choice)]
    return pa.Table.from_batches([*made, file_rows([], choice)])
