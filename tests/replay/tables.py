"""Tables of captures, made without Spark."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import expand, plan
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.packets.segments import read
from replay.measure.collected import Collected, collect
from replay.measure.groups import SUMMED, Group
from replay.measure.report import About, report
from replay.measure.rows import RowFilter, rows
from replay.measure.steps import events
from replay.measure.table import CODECS, EXCHANGES_RAW
from replay.report.model import Filters, Report
from replay.simulate.engine import Policy

CAPTURES = Path(__file__).parents[2] / "captures"


NO_FILTERS = Filters(ports=[], hosts=[], clients=[], topics=[])


def _batches(captures: Iterable[Path]) -> dict[bytes, list[pa.RecordBatch]]:
    """Return the record batches of each pair of ports. The key b"" has the counts of the files."""
    found: dict[bytes, list[pa.RecordBatch]] = defaultdict(list)
    for share in plan(expand(map(str, captures)), 1 << 30):
        for batch in read(share):
            for key in batch.column("connection").unique().to_pylist():
                found[key].append(batch.filter(pc.equal(batch.column("connection"), key)))
    return found


def connections(*captures: Path) -> Iterator[list[Exchange | ConnectionEnd]]:
    """Return the events of each pair of ports."""
    for key, found in _batches(captures).items():
        if key:
            yield [*Connections().read(found)]


def table(choice: RowFilter, *captures: Path) -> pa.Table:
    """Return the table that `measure` makes of these captures."""
    found = [batch for share in plan(expand(map(str, captures)), 1 << 30) for batch in read(share)]
    segments = pa.Table.from_batches(found).sort_by([("connection", "ascending"), ("order", "ascending")])
    files: list[FileCounts] = []
    known = events(frozenset(), choice, None, iter(segments.combine_chunks().to_batches()), files)
    return pa.Table.from_batches([*rows(known, choice, files)], EXCHANGES_RAW)


def rows_of(found: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, with details as objects."""
    plain = found.select([name for name in found.column_names if name not in CODECS]).to_pylist()
    details = [codec.read(found.column(name).combine_chunks()) for name, codec in CODECS.items()]
    return [
        row | dict(zip(CODECS, values, strict=True)) for row, *values in zip(plain, *details, strict=True)
    ]


def single(found: Iterable[dict[str, Any]]) -> Iterator[Group]:
    """Yield each row as a group with only this row."""
    for row in found:
        sums = {name: row[name] or 0 for name in SUMMED}
        details = [row[name] for name in CODECS if row.get(name) is not None]
        yield {"count": 1, **row, **sums, "details": details}


def report_of(groups: Iterable[Group], about: About) -> Report:
    """Return the report of a table's groups, made without Spark."""
    return report(collect(groups), about)


def reported(found: Collected, choice: RowFilter) -> Report:
    """Return the report of collected figures."""
    about = About(
        version="0",
        policy=choice.policy,
        filters=NO_FILTERS,
        max_fetch_bytes=choice.max_fetch_bytes,
        floors=choice.floors,
        members=choice.members,
        racks=choice.racks,
    )
    return report(found, about)


def measured(policy: Policy, *captures: Path, price_per_gb: float | None = None) -> Report:
    """Return `measure`'s report of captures, made without Spark."""
    about = About(version="0", policy=policy, filters=NO_FILTERS, price_per_gb=price_per_gb)
    return report_of(single(rows_of(table(RowFilter(policy=policy), *captures))), about)
