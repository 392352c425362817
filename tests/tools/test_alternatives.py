"""docs/users/decide.md: its commands print what it says, with figures of the benchmarks."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from replay import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "users" / "decide.md").read_text(encoding="utf-8")
ZONES = (ROOT / "docs" / "users" / "zones.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
BLOCKS = [
    [line.strip() for line in block.splitlines()]
    for block in re.findall(r"(?:^    \S.*\n)+", PAGE, flags=re.MULTILINE)
]
"""The indented blocks: commands, each before the block with the lines that it prints."""
MEASURES = [
    (block, BLOCKS[at + 1]) for at, block in enumerate(BLOCKS) if block[0].startswith("fetchgate replay ")
]
SIDE_BY_SIDE = {
    "with default settings": "direct",
    "`fetch.min.bytes=65536`": "fetch.min.bytes",
    "one of ten, with 10 partitions": "10 partitions",
    "Java, with its own sessions": "Java",
    "with fetchgate": "gateway",
    "with `fetchgate proxy --fetch-min-bytes 64KiB`": "--fetch-min-bytes",
}
"""The rows of the page's first table, and their columns in BENCHMARKS.md."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def benchmark(title: str) -> dict[str, dict[str, str]]:
    """Return a table of BENCHMARKS.md: the values of each row, by column."""
    text = BENCHMARKS.partition(f"**{title}**")[2].partition("\n**")[0]
    head, _, *rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_the_page_begins_with_when_not_to_use_it_and_is_short() -> None:
    assert re.findall(r"^## (.*)", PAGE, flags=re.MULTILINE)[0] == "When not to use it"
    assert len(re.findall(r"\S*\w\S*", PAGE)) <= 1_000


def test_the_first_screen_of_the_readme_leads_to_it() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    assert "(docs/users/decide.md)" in "".join(first)


def test_consumers_side_by_side_have_the_figures_of_the_benchmark() -> None:
    found = benchmark("Alternatives: one consumer, other ways to fewer bytes")
    names = ("fetches", "bytes without records", "below direct", "below direct, records included")
    rows = {row[0]: row[1:] for row in map(cells, PAGE.splitlines()) if row[0] in SIDE_BY_SIDE}
    assert rows.keys() == SIDE_BY_SIDE.keys()
    for name, (*figures, latency) in rows.items():
        column = SIDE_BY_SIDE[name]
        expected = [found[row][column] for row in names]
        assert [figure.removesuffix(" %") or "-" for figure in figures] == expected, name
        measured = found["produce to consume: p50"][column]
        assert latency == ("not measured" if measured == "-" else f"{measured} ms"), name


@pytest.mark.parametrize("rate", ["2", "10", "100", "1,000"])
def test_records_come_later_from_a_follower_as_in_the_benchmark(rate: str) -> None:
    found = benchmark("Zones, latency: produce to consume, records of 200 bytes")
    leader, follower = (found[f"{rate} records/s, {name}: p50"]["direct"] for name in ("leader", "replica"))
    assert f"| {rate} | {leader} ms | {follower} ms |" in ZONES


@pytest.mark.parametrize(("command", "printed"), MEASURES, ids=[block[0] for block, _ in MEASURES])
def test_a_capture_says_what_the_page_says(
    command: list[str],
    printed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    (line,) = command
    assert cli.main(shlex.split(line)[2:]) == 0
    report = " ".join(capsys.readouterr().out.split())
    for told in printed:
        assert told in report


def test_each_block_is_a_command_its_output_or_a_setting() -> None:
    others = [block for block in BLOCKS if not any(block in pair for pair in MEASURES)]
    bench, settings = others[0], others[1:]
    assert bench == [".venv/bin/python -m tools.bench --only alternatives"]
    assert settings == [["fetch.min.bytes=65536", "fetch.max.wait.ms=500"]]
    assert len(MEASURES) == 3


@pytest.mark.soak
def test_the_benchmark_runs_as_it_is_written() -> None:
    run = subprocess.run(
        shlex.split(".venv/bin/python -m tools.bench --only alternatives"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Alternatives: one consumer, other ways to fewer bytes" in run.stdout
