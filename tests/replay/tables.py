"""Tables of captures, made without Spark."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.exchange import ConnectionEnd, Exchange
from replay.capture.exchanges import read_exchanges
from replay.capture.segments import read
from replay.capture.sources import expand, plan
from replay.report.model import Filters, Report
from replay.rows import Choice, file_rows, rows
from replay.savings import Policy
from replay.totals import SUMMED, About, Group, report

CAPTURES = Path(__file__).parents[2] / "captures"


NO_FILTERS = Filters(ports=[], hosts=[], clients=[], topics=[])


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
    """The table of captures, but for what is told of the files."""
    made = [batch for events in connections(*captures) for batch in rows(events, choice)]
    return pa.Table.from_batches([*made, file_rows([], choice)])


def single(found: Iterable[dict[str, Any]]) -> Iterator[Group]:
    """Each row as a group of its own."""
    for row in found:
        sums = {name: row[name] or 0 for name in SUMMED}
        yield {**row, **sums, "count": 1, "details": [row["detail"]] if row["detail"] else []}


def measured(policy: Policy, *captures: Path) -> Report:
    """What `measure` reports of captures, made without Spark."""
    about = About(version="0", policy=policy, filters=NO_FILTERS)
    return report(single(table(Choice(policy=policy), *captures).to_pylist()), about)
