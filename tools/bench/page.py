"""Makes BENCHMARKS.md (`--markdown`). What was not measured, and what people wrote, is kept."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tools.bench.figures import FigureTable, markdown

_CELL: Final = " | "


def page(
    summary: FigureTable, tables: Sequence[FigureTable], before: str, only: Collection[str] | None
) -> str:
    """Format the tables as the body of the page.

    `only` has the parts that were measured, or is None for all. Others are copied from the old page `before`,
    except tables whose titles begin like that of a new one, up to a colon. Text written by people is kept.
    """
    kept, rows = {}, {}
    made = sections(markdown(tables))
    if only is not None:
        kept = sections(before)
        rows = _rows(before, summary.title)
    parts = _placed(kept, made) | made
    written = prose(before, summary.title)
    return "\n\n".join([_section(summary, rows), _missed(parts), *filter(None, [written]), *parts.values()])


def _placed(kept: Mapping[str, str], made: Mapping[str, str]) -> dict[str, str]:
    """Return the old tables, with new ones in the place of those whose titles begin alike, up to a colon."""
    placed: dict[str, str] = {}
    for title, text in kept.items():
        head, colon, _ = title.partition(": ")
        alike = _beginning(f"{head}: ", made) if colon else {}
        placed |= alike or {title: text}
    return placed


def _beginning(start: str, made: Mapping[str, str]) -> dict[str, str]:
    return {title: text for title, text in made.items() if title.startswith(start)}


def _section(table: FigureTable, before: Mapping[str, str]) -> str:
    """Format a table with its own heading. `before` has the old rows, by their first cell."""
    head, rule, *own = [line for line in markdown([table]).splitlines() if line.startswith("|")]
    rows = {**before, **{_first(line): line for line in own}}
    return "\n".join([f"## {table.title}", "", head, rule, *rows.values(), "", *table.notes])


def _rows(text: str, title: str) -> dict[str, str]:
    """Return the rows of the table under a heading. The keys are the first cells of the rows."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0].partition("\n**")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return {_first(line): line for line in lines[2:]}


def _missed(parts: Mapping[str, str]) -> str:
    """Return a text with the number of targets that are met, and a list of the missed targets."""
    judged = [
        (title.strip("*"), line)
        for title, part in parts.items()
        for line in part.splitlines()
        if line.endswith(("| met |", "| missed |"))
    ]
    missed = [
        f"- {title}: {_first(line)} ({line.rsplit(_CELL, 2)[-2]})"
        for title, line in judged
        if line.endswith("| missed |")
    ]
    met = f"{len(judged) - len(missed)} of {len(judged)} targets are met{'. Missed:' if missed else '.'}"
    return "\n".join([met, "", *missed]).rstrip()


def _first(line: str) -> str:
    return line.split(_CELL, 1)[0].removeprefix("| ")


def prose(text: str, summary: str) -> str:
    """Return what people wrote between the first heading and the first table, without `summary`."""
    headed = re.split(r"^(?=## )", text.partition("\n**")[0], flags=re.MULTILINE)[1:]
    return "".join(part for part in headed if not part.startswith(f"## {summary}\n")).strip()


def sections(text: str) -> dict[str, str]:
    """Split the output of `markdown`. Return each table with its notes, by title."""
    parts = re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.rstrip("\n") for part in parts if part.startswith("**")}
