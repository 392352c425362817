"""Describes a table for its output formats: terminal (`terminal`) and HTML (`page/`).

A table has columns. Each column has a unit, which formats its values. Values are formatted only when they are
written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Final

from replay.report.wording import duration, number, percent, plural, shown, size


@dataclass(frozen=True, slots=True)
class SavedBytes:
    """The number of saved bytes, of so many in all. It is negative if sessions cost more than they save."""

    saved_bytes: int
    whole: int

    def __add__(self, other: "SavedBytes") -> "SavedBytes":
        return SavedBytes(self.saved_bytes + other.saved_bytes, self.whole + other.whole)

    @property
    def ratio(self) -> float:
        return self.saved_bytes / self.whole if self.whole else 0.0


def neutral(_: object) -> int:
    """Return 0: the value is neither a gain nor a loss."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Formats the values of a column in a table of the report."""

    write: Callable[[Any], str]
    number: bool = True
    """Whether values are numbers. They are aligned to the right, and do not wrap."""
    sign: Callable[[Any], int] = neutral
    """Returns the direction of a value: above 0 for a gain, below 0 for a loss. Gains and losses have
    colours."""
    hint: Callable[[Any], str] = lambda _: ""
    """Returns the text that is shown when the mouse points at the value."""


TEXT: Final = Unit(write=str, number=False)
"""Printable text that needs no escapes."""
NAME: Final = Unit(write=shown, number=False)
"""A name that a client or a broker sent. Unprintable characters are escaped."""
VERSION: Final = Unit(write=lambda version: f"v{version}", number=False)
COUNT: Final = Unit(write=number)
BYTES: Final = Unit(write=size)
LIMIT: Final = Unit(write=lambda limit: size(limit) if limit else "none")
RATIO: Final = Unit(write=percent)
SECONDS: Final = Unit(write=duration)
SAVING: Final = Unit(
    write=lambda saving: percent(saving.ratio),
    sign=lambda saving: saving.saved_bytes,
    hint=lambda saving: size(saving.saved_bytes),
)
FIGURE: Final = Unit(write=str)
"""A figure that is already formatted as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """A column of a table in the report."""

    title: str
    unit: Unit = TEXT
    key: str = ""
    """The field of the report's rows that the column has, for `of_rows`."""
    short: str | None = None
    """The title in a terminal. None if it is the lower-case form of the other title."""
    wide: bool = False
    """Whether the column is left out in a terminal, which has only 80 columns."""
    soft: bool = False
    """Whether the column has a fainter colour, for explaining texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """A row of a table in the report."""

    values: Sequence[Any]
    note: str = ""
    """A note that is shown below the first value of the row."""
    total: bool = False
    bar: tuple[int, int] | None = None
    """Captured and predicted bytes of the row, drawn as a bar in HTML."""
    key: str = ""
    """The CSS class of the colour that this row has in a plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table of the report with its heading."""

    title: str
    columns: Sequence[ReportColumn]
    lines: Sequence[ReportLine]

    @property
    def longest(self) -> int:
        """The number of bytes of the longest bar, or 0 if there are no bars."""
        return max((max(line.bar) for line in self.lines if line.bar), default=0)


def of_rows(title: str, rows: Iterable[Mapping[str, Any]], *columns: ReportColumn) -> ReportTable:
    """Return a table of rows of the report: each column names the field that it has."""
    lines = [ReportLine(values=[row[column.key] for column in columns]) for row in rows]
    return ReportTable(title=title, columns=columns, lines=lines)


def summed(names: Sequence[str], lines: Sequence[ReportLine], *, total: bool = False) -> ReportLine:
    """Return a line with these names that adds up the figures of others, which have as many names."""
    figures = zip(*(line.values[len(names) :] for line in lines), strict=True)
    return ReportLine(values=(*names, *(reduce(add, column) for column in figures)), total=total)


def with_rest(lines: Sequence[ReportLine], limit: int, *, names: int, noun: str = "") -> list[ReportLine]:
    """Return at most `limit` lines, the last of which adds up the rest. The first values are names."""
    if len(lines) <= limit:
        return [*lines]
    others = lines[limit - 1 :]
    name = plural(len(others), f"other {noun}") if noun else "others"
    return [*lines[: limit - 1], summed([name, *[""] * (names - 1)], others)]
