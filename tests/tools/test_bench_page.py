"""BENCHMARKS.md: how it is written, and that no figure is much older than the code that it describes."""

import re
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest

from tools.bench.figures import FigureRow, FigureTable, markdown
from tools.bench.page import page, prose, sections

ROOT = Path(__file__).parents[2]
MEASURED = "Measured at 123abcd of 2026-11-30."
MOST_DAYS = 14
"""Between the commit that a table measured and the last one that changed its code. It bounds for how long
figures may be of code that is gone, and leaves time for changes between two nights of `make bench`."""


def table(value: float, title: str = "Idle", *, brief: bool = False) -> FigureTable:
    values = {"direct": 9.0, "floor": 1.0, "gateway": value}
    rows = [
        FigureRow("CPU in the floor's", "times", values, limit=1.25),
        FigureRow("CPU", "% of a core", {"gateway": 3.0}),
    ]
    return FigureTable(title, rows, ["A note."], brief=brief)


def write(*tables: FigureTable, before: str = "", only: list[str] | None = None) -> str:
    return page(markdown(tables, MEASURED), before, only)


def test_it_begins_with_the_targets_and_each_table_says_when_it_was_measured() -> None:
    assert write(table(1.3), table(1.2, "Bulk", brief=True)) == (
        "1 of 2 targets are met.\n\n"
        "**Idle**\n\n"
        "|  | unit | direct | floor | gateway | target |  |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| CPU in the floor's | times | 9 | 1 | 1.30 | ≤ 1.25 | missed |\n"
        "| CPU | % of a core | - | - | 3 |  |  |\n\n"
        f"{MEASURED}  \n\n"
        "**Bulk**\n\n"
        "|  | unit | direct | floor | gateway | target |  |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| CPU in the floor's | times | 9 | 1 | 1.20 | ≤ 1.25 | met |\n\n"
        f"A note.  \n{MEASURED}  "
    )


def test_parts_alone_replace_their_tables_and_keep_the_others() -> None:
    before = write(table(1.3), table(1.4, "Bulk"))
    text = write(table(1.2), before=before, only=["idle"])

    assert text.startswith("1 of 2 targets are met.")
    assert [*sections(text)] == ["**Idle**", "**Bulk**"]


def test_the_text_of_people_stays_before_the_tables() -> None:
    before = f"# Benchmarks\n\n{write(table(1.3))}".replace(
        "**Idle**", "## Why\n\nWords.\n\n## All\n\n**Idle**"
    )
    text = write(table(1.2), before=before)

    assert text.startswith("1 of 1 targets are met.\n\n## Why\n\nWords.\n\n## All\n\n**Idle**")
    assert prose(text) == "## Why\n\nWords.\n\n## All"


def committed(*arguments: str) -> str:
    command = ("git", "log", "-1", "--format=%cs", *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the history")
def test_no_figure_is_much_older_than_its_code() -> None:
    for title, text in sections((ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")).items():
        package = "replay" if title.startswith("**Replay") else "proxy"
        (day,) = re.findall(r"^Measured at \w+ of (\S+)\.", text, re.MULTILINE)
        oldest = date.fromisoformat(committed("--", package)) - timedelta(days=MOST_DAYS)
        assert date.fromisoformat(day) >= oldest, f"{title}: measure it again, with `make bench`"
