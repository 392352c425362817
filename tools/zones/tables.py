"""The outcomes as tables, for a terminal and as Markdown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.table import Table

from tools.zones.outcome import Row


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Row], str]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _gap(seconds: float, missing: int) -> str:
    return f"> {seconds:.1f} s" if missing else f"{seconds:.1f} s"


_COLUMNS: Final = (
    _Column("from the zone", lambda row: _percent(row.from_zone)),
    _Column("lost", lambda row: str(row.findings.lost + row.findings.changed)),
    _Column("twice", lambda row: str(row.findings.doubled)),
    _Column("out of order", lambda row: str(row.findings.disordered)),
    _Column("out of range", lambda row: str(row.out_of_range)),
    _Column("fetches/s", lambda row: str(row.busiest)),
    _Column(
        "gap, led elsewhere", lambda row: _gap(row.findings.gap_elsewhere, row.findings.missing_elsewhere)
    ),
    _Column("gap, led here", lambda row: _gap(row.findings.gap_here, row.findings.missing_here)),
)


def by_fault(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield a table for each release and fault: its title, its headings, and its lines.

    A cell has the values of all modes, in the order in which they were run. Equal values are there once.
    """
    for (release, fault), several in groupby(
        sorted(rows, key=lambda row: (_order(rows, row.release), _order(rows, row.fault))),
        key=lambda row: (row.release, row.fault),
    ):
        own = list(several)
        modes = list(dict.fromkeys(row.mode for row in own))
        clients = list(dict.fromkeys(row.client for row in own))
        lines = []
        for client in clients:
            same = [row for mode in modes for row in own if (row.client, row.mode) == (client, mode)]
            if not all(row.ran for row in same):
                lines.append([client, f"not run: {next(row.note for row in same if not row.ran)}"])
                continue
            lines.append([client, *(_joined([column.cell(row) for row in same]) for column in _COLUMNS)])
        title = f"Kafka {release}, {fault} ({' / '.join(modes)})"
        yield title, ["client", *(column.heading for column in _COLUMNS)], lines


def _order(rows: Sequence[Row], value: str) -> int:
    return next(at for at, row in enumerate(rows) if value in (row.release, row.fault))


def _joined(cells: Sequence[str]) -> str:
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the tables for a terminal."""
    for title, headings, lines in by_fault(rows):
        table = Table(title=title, title_justify="left")
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left")
        for line in lines:
            table.add_row(*line)
        yield table


def markdown(rows: Sequence[Row]) -> str:
    """Return the tables as Markdown."""
    parts = []
    for title, headings, lines in by_fault(rows):
        rules = ["---", *("---:" for _ in headings[1:])]
        table = [headings, rules, *(line + [""] * (len(headings) - len(line)) for line in lines)]
        parts.append(f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in table))
    return "\n\n".join(parts) + "\n"
