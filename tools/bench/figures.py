"""What the benchmarks tell: rows with one value for each route, and the target of fetchgate's own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table as RichTable

GATEWAY: Final = "gateway"
REPLAY: Final = "replay"
"""What `fetchgate replay` does."""
TSHARK: Final = "tshark"
EXPLICIT: Final = "explicit"
TRANSPARENT: Final = ("redirect", "tproxy")
ONE_WORKER, TWO_WORKERS = "1 worker", "2 workers"
COLUMNS: Final = (
    *("direct", "Java", "haproxy", "floor"),
    *(GATEWAY, EXPLICIT, *TRANSPARENT, ONE_WORKER, TWO_WORKERS),
    *(TSHARK, REPLAY),
)
"""Routes, in the order in which they are shown."""
JUDGED: Final = (GATEWAY, *TRANSPARENT, TWO_WORKERS, REPLAY)
"""What is held against a limit; the others are there to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    name: str
    unit: str
    values: Mapping[str, float]
    """By route: one of `COLUMNS`."""
    limit: float | None = None
    """What our own values are held against: the gateway's, in its modes, or replay's."""
    least: bool = False
    """Whether `limit` is the least that will do, and not the most."""

    @property
    def met(self) -> bool | None:
        """Tell whether all of our own values keep their limit, as they are shown; None without either."""
        own = [shown(self.values[name]) for name in JUDGED if name in self.values]
        if self.limit is None or not own:
            return None
        limit = shown(self.limit)
        return min(own) >= limit if self.least else max(own) <= limit

    @property
    def target(self) -> str:
        """Write the limit as people read it."""
        if self.limit is None:
            return ""
        return f"{'≥' if self.least else '≤'} {number(self.limit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows that one measurement gave."""

    part: str
    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default=())
    """What a reader must know: what was missing, what is counted where."""

    @property
    def columns(self) -> list[str]:
        """Give the routes that have any value."""
        return [name for name in COLUMNS if any(name in row.values for row in self.rows)]


def number(value: float) -> str:
    """Write a value with about three digits that count."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def shown(value: float) -> float:
    """Return a value with the digits that a reader sees."""
    return float(number(value).replace(",", ""))


def _cells(table: Table, row: Row) -> list[str]:
    values = [number(row.values[name]) if name in row.values else "-" for name in table.columns]
    verdict = {None: "", True: "met", False: "missed"}[row.met]
    return [row.name, row.unit, *values, row.target, verdict]


def _head(table: Table) -> list[str]:
    return ["", "unit", *table.columns, "target", ""]


def show(console: Console, table: Table) -> None:
    """Print a table for the terminal."""
    printed = RichTable(title=table.title, title_justify="left", title_style="bold")
    for place, name in enumerate(_head(table)):
        printed.add_column(name, justify="left" if place < 2 else "right")
    for row in table.rows:
        cells = _cells(table, row)
        style = {None: "", True: "green", False: "red"}[row.met]
        printed.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/]" if style else cells[-1])
    console.print(printed)
    for note in table.notes:
        console.print(f"  {note}", style="dim", highlight=False)
    console.print()


def markdown(tables: Sequence[Table]) -> str:
    """Write tables for a page."""
    lines: list[str] = []
    for table in tables:
        head = _head(table)
        lines += [f"**{table.title}**", "", _line(head), _line(["---", "---", *["---:"] * (len(head) - 2)])]
        lines += [_line(_cells(table, row)) for row in table.rows]
        lines += ["", *(f"{note}  " for note in table.notes), ""]
    return "\n".join(lines)


def prose(page: str) -> str:
    """Return what people wrote between a page's head and its first table, from its first heading on."""
    text = page.split("\n**", 1)[0]
    return text[text.index("## ") :].strip() if "## " in text else ""


def sections(page: str) -> dict[str, str]:
    """Split what `markdown` wrote: by title, a table and its notes each."""
    parts = re.split(r"^(?=\*\*)", page, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.rstrip("\n") for part in parts if part.startswith("**")}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def document(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Give tables as what JSON can hold."""
    return [
        {
            "part": table.part,
            "title": table.title,
            "notes": list(table.notes),
            "rows": [
                {
                    "name": row.name,
                    "unit": row.unit,
                    "values": dict(row.values),
                    "limit": row.limit,
                    "least": row.least,
                    "met": row.met,
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]
