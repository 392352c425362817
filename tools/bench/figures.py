"""The tables of the benchmarks: a value for each route from client to broker, and limits for fetchgate."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

DIRECT: Final = "direct"
FLOOR: Final = "floor"
HAPROXY: Final = "haproxy"
GATEWAY: Final = "gateway"
REPLAY: Final = "replay"
TSHARK: Final = "tshark"
PLAIN_GROUP, ONE_FOR_ALL, ONE_EACH = "plain group", "one gateway", "one each"
"""The columns of groups without a gateway, with one gateway for all members, and with one for each."""
AUDIT, NAMED = "--rack", "--rack-clients"
"""Gateways with a rack: it counts; it names the replica as leader."""
MIN_BYTES, FEWER, RAISED = "fetch.min.bytes", "10 partitions", "--fetch-min-bytes"
"""A client with this setting, one with a tenth of the partitions, a gateway with this option."""
INSTALLED: Final = "fetchgate"
COLUMNS: Final = (
    *(DIRECT, MIN_BYTES, FEWER, "Java", FLOOR, HAPROXY),
    *(GATEWAY, RAISED),
    *(AUDIT, NAMED),
    *(TSHARK, REPLAY),
    INSTALLED,
    *(PLAIN_GROUP, ONE_FOR_ALL, ONE_EACH),
)
"""All columns that a table can have, in their order. Most are routes between client and broker."""
JUDGED: Final = (GATEWAY, REPLAY, INSTALLED, ONE_FOR_ALL, ONE_EACH, AUDIT, NAMED)
"""The columns of fetchgate. The other columns are shown for comparison."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A row of a table: one figure, with a value for each route."""

    name: str
    unit: str
    values: Mapping[str, float]
    """The value of each route. The keys are some of `COLUMNS`."""
    _: KW_ONLY
    limit: float | None = None
    judged: Sequence[str] = JUDGED
    least: bool = False
    """Whether `limit` is a minimum. If false, `limit` is a maximum."""

    @property
    def met(self) -> bool | None:
        """Whether all judged values, rounded as shown, are within the limit; None without either."""
        own = [shown(self.values[name]) for name in self.judged if name in self.values]
        if self.limit is None or not own:
            return None
        limit = shown(self.limit)
        return min(own) >= limit if self.least else max(own) <= limit

    @property
    def target(self) -> str:
        """The limit of the row, formatted as text."""
        if self.limit is None:
            return ""
        return f"{'≥' if self.least else '≤'} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class FigureTable:
    """The table of one measurement of the benchmarks."""

    title: str
    rows: Sequence[FigureRow]
    notes: Sequence[str] = field(default=())
    """Remarks for readers, such as routes that are missing, and where the figures were counted."""
    brief: bool = False
    """Whether BENCHMARKS.md has only the rows with a limit."""

    @property
    def columns(self) -> list[str]:
        """Return the routes that have a column in the table, in order."""
        return [name for name in COLUMNS if any(name in row.values for row in self.rows)]


def number(value: float) -> str:
    """Format a value with about three significant digits."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def shown(value: float) -> float:
    """Round a value to the number of digits that the table shows (`number`)."""
    return float(number(value).replace(",", ""))


def _cells(table: FigureTable, row: FigureRow) -> list[str]:
    values = [number(row.values[name]) if name in row.values else "-" for name in table.columns]
    result = {None: "", True: "met", False: "missed"}[row.met]
    return [row.name, row.unit, *values, row.target, result]


def _head(table: FigureTable) -> list[str]:
    return ["", "unit", *table.columns, "target", ""]


def show(console: Console, table: FigureTable) -> None:
    """Print a table."""
    # As `Text`: in a string, rich takes the name of an extra in brackets for markup.
    printed = RichTable(title=Text(table.title), title_justify="left", title_style="bold")
    for place, name in enumerate(_head(table)):
        printed.add_column(Text(name), justify="left" if place < 2 else "right")
    for row in table.rows:
        *cells, result = _cells(table, row)
        style = {None: "", True: "green", False: "red"}[row.met]
        printed.add_row(*map(Text, cells), Text(result, style))
    console.print(printed)
    for note in table.notes:
        console.print(f"  {note}", style="dim", highlight=False, markup=False)
    console.print()


def markdown(tables: Sequence[FigureTable], measured: str) -> str:
    """Format tables as Markdown. `measured` says below each one when it was measured."""
    lines: list[str] = []
    for table, after in zip(tables, [*tables[1:], None], strict=True):
        head = _head(table)
        lines += [f"**{table.title}**", "", _line(head), _line(["---", "---", *["---:"] * (len(head) - 2)])]
        rows = [row for row in table.rows if row.limit is not None or not table.brief]
        lines += [_line(_cells(table, row)) for row in rows]
        # Notes that are those of the next table as well stand below that one.
        notes = table.notes if after is None or after.notes != table.notes else ()
        lines += ["", *(f"{note}  " for note in (*notes, measured)), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
