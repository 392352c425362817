"""The outcomes as tables in Markdown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from tools.zones.outcome import Findings, Row


class TableText(NamedTuple):
    """A table: all its cells as text."""

    title: str
    headings: list[str]
    lines: list[list[str]]
    """A line that has only two cells says why a client was not run."""


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


_WRONG: Final[tuple[Callable[[Findings], int], ...]] = (
    lambda found: found.lost + found.changed,
    lambda found: found.doubled,
    lambda found: found.disordered,
)


def by_fault(rows: Sequence[Row]) -> Iterator[TableText]:
    """Yield a table for each release and fault, with the values of all modes, equal ones once."""
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
        yield TableText(title, ["client", *(column.heading for column in _COLUMNS)], lines)


def _order(rows: Sequence[Row], value: str) -> int:
    return next(at for at, row in enumerate(rows) if value in (row.release, row.fault))


def _joined(cells: Sequence[str]) -> str:
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells)


def by_release(rows: Sequence[Row]) -> Iterator[TableText]:
    """Yield a table for each release. The columns of faults have the gap elsewhere, in seconds."""
    for release in dict.fromkeys(row.release for row in rows):
        own = [row for row in rows if row.release == release]
        modes = list(dict.fromkeys(row.mode for row in own))
        faults = list(dict.fromkeys(row.fault for row in own))
        lines = []
        for client in dict.fromkeys(row.client for row in own):
            same = [[row for row in own if (row.client, row.mode) == (client, mode)] for mode in modes]
            if not any(row.ran for each in same for row in each):
                lines.append([client, f"not run: {same[0][0].note}"])
                continue
            gaps = [
                _joined([_brief(row) for each in same for row in each if row.fault == fault])
                for fault in faults
            ]
            wrong = [
                _joined([str(sum(wrong(row.findings) for row in each)) for each in same]) for wrong in _WRONG
            ]
            ranges = _joined([str(sum(row.out_of_range for row in each)) for each in same])
            busiest = _joined([str(max(row.busiest for row in each)) for each in same])
            shares = _joined(
                [
                    _percent(next((row.from_zone for row in each if row.ran), None)).removesuffix("%")
                    for each in same
                ]
            )
            lines.append([client, shares, *gaps, *wrong, ranges, busiest])
        wrongs = ["lost", "twice", "out of order", "out of range", "fetches/s"]
        headings = ["client", "from the zone, %", *faults, *wrongs]
        yield TableText(f"Kafka {release} ({' / '.join(modes)})", headings, lines)


def _brief(row: Row) -> str:
    if not row.ran:
        return "-"
    gap, missing = row.findings.gap_elsewhere, row.findings.missing_elsewhere
    return f"{'>' if missing else ''}{gap:.{0 if gap >= 10 else 1}f}"


def markdown(found: Iterable[TableText]) -> str:
    """Return tables as Markdown."""
    parts = []
    for title, headings, lines in found:
        rules = ["---", *("---:" for _ in headings[1:])]
        table = [headings, rules, *(line + [""] * (len(headings) - len(line)) for line in lines)]
        parts.append(f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in table) + "\n")
    return "\n".join(parts)
