"""The table of rows marked (`FigureRow.figure`) to compare fetchgate with the floor and haproxy."""

from collections.abc import Iterable
from typing import Final

from tools.bench.figures import FLOOR, GATEWAY, HAPROXY, JUDGED, FigureRow, FigureTable

TITLE: Final = "To the floor"
PEERS: Final = (FLOOR, HAPROXY)


def to_floor(tables: Iterable[FigureTable]) -> FigureTable:
    """Return the comparison: the rows marked for it, each with the values of floor, haproxy and fetchgate."""
    rows = [
        FigureRow(row.figure, row.unit, _values(row), limit=row.limit, least=row.least)
        for table in tables
        for row in table.rows
        if row.figure
    ]
    notes = ["All three in the same run, in turns."]
    return FigureTable(TITLE, rows, notes, always=(*PEERS, GATEWAY))


def _values(row: FigureRow) -> dict[str, float]:
    own = [row.values[name] for name in JUDGED if name in row.values]
    peers = {name: row.values[name] for name in PEERS if name in row.values}
    return peers | {GATEWAY: min(own) if row.least else max(own)}
