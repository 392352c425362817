"""Tests of the benchmark of `replay measure`: its tables, and how it makes and measures captures."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tools.bench import replay
from tools.bench.captures import Shape, Truth
from tools.bench.figures import REPLAY, TSHARK, FigureRow
from tools.bench.large import GB, LargeCaptures, best, check, traffics
from tools.bench.measured import peak
from tools.bench.measured_capture import MB, MeasuredCapture
from tools.bench.stage import BenchStage

ACTUAL = {"requests": 4, "request_bytes": 5, "response_bytes": 6, "record_bytes": 7}
TRUTH = Truth(connections=3, fetches=4, fetch_request_bytes=5, fetch_response_bytes=6, record_bytes=7)
FOUND = MeasuredCapture(
    file="a.pcap",
    bytes=GB,
    connections=3,
    seconds=8.0,
    worker_bytes=250 * MB,
    driver_bytes=150 * MB,
    java_bytes=900 * MB,
    actual=ACTUAL,
)


def shown(rows: list[FigureRow]) -> list[tuple[str, float, bool | None]]:
    return [(row.name, row.values[REPLAY], row.met) for row in rows]


def stage(*, quick: bool = True, long: bool = False) -> BenchStage:
    return BenchStage(seconds=1, quick=quick, long=long, console=Console(quiet=True))


def test_the_targets_of_traffic_are_those_for_a_gigabyte() -> None:
    assert {kind.name: (kind.least, kind.cpu) for kind in traffics()} == {
        "records": (150, 7),
        "3 topics": (120, 9),
        "20 connections": (260, 4.8),
        "2,000 connections": (95, 7),
        "50,000 connections": (25, 45),
    }
    assert tuple(kind.name for kind in traffics(10)) == (
        *("records", "3 topics", "20 connections", "200 connections", "5,000 connections"),
    )


def test_speeds_stand_beside_those_of_tshark() -> None:
    kinds = traffics()
    speeds = {kind.name: kind.least for kind in kinds}
    rows = [*replay.speed_rows(kinds, speeds, dict.fromkeys(speeds, 40.0))]

    assert [row.name for row in rows[:2]] == ["records", "3 topics"]
    assert rows[0].values == {TSHARK: 40.0, REPLAY: 150}
    assert [row.met for row in rows] == [True] * 5


def test_cpu_is_that_of_a_gigabyte_beside_that_of_tshark() -> None:
    kinds = traffics()
    spent, beside = {kind.name: kind.cpu / 4 for kind in kinds}, dict.fromkeys((k.name for k in kinds), 8.0)
    rows = [*replay.cpu_rows(kinds, spent, beside, GB // 5)]

    assert rows[0].name == "records, CPU of one process"
    assert rows[0].values == {TSHARK: 40.0, REPLAY: 8.75}
    assert [row.met for row in rows] == [False] * 5


def test_without_tshark_there_is_a_note() -> None:
    kinds = traffics()
    speeds = {kind.name: 24.0 for kind in kinds}

    assert shown([*replay.speed_rows(kinds, speeds, {})]) == [(kind.name, 24.0, False) for kind in kinds]
    assert replay._tshark_notes(there=False) == ["tshark is not there: `python -m tools.debian` fetches it."]


def test_tshark_is_not_run_if_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert replay._tshark(stage(), tmp_path / "none.pcap") is None


def test_the_other_rows_of_the_table_are_judged() -> None:
    large = replace(FOUND, file="b.pcap", worker_bytes=301 * MB, driver_bytes=201 * MB)

    assert shown([*replay.skew_rows(100, 89)]) == [
        ("records, one connection with 80 %", 89, None),
        ("one connection with 80 %, in that of 20 alike", 0.89, False),
    ]
    assert shown([*replay.cluster_rows(100, 80)]) == [
        ("records, cluster of 2 workers of one core", 80, None),
        ("cluster, in local[2]'s", 0.8, True),
    ]
    assert shown([*replay.memory_rows([FOUND, large])]) == [
        ("a worker's Python, peak memory", 301, False),
        ("the driver's Python, peak memory", 201, False),
        ("Java, peak memory", 900, None),
    ]
    assert shown([*replay.many_rows(replace(FOUND, connections=250_000))]) == [
        ("a worker's Python with 250,000 connections", 250, True),
        ("the driver's Python with 250,000 connections", 150, True),
    ]


def test_the_best_round_of_a_capture_counts() -> None:
    slow, other = replace(FOUND, seconds=10.0), replace(FOUND, file="b.pcap", seconds=1.0)
    assert best([slow, FOUND, other], Path("a.pcap")) is FOUND
    assert FOUND.speed == 125


@pytest.mark.parametrize("wrong", [{"connections": 2}, {"actual": ACTUAL | {"requests": 3}}])
def test_a_result_that_is_not_true_is_an_error(wrong: dict[str, Any]) -> None:
    check(FOUND, TRUTH)
    with pytest.raises(RuntimeError, match="something else than was generated"):
        check(replace(FOUND, **wrong), TRUTH)


@pytest.mark.integration
@pytest.mark.soak
def test_captures_are_measured_and_compared_with_what_is_in_them(tmp_path: Path) -> None:
    captures = LargeCaptures(stage(), tmp_path)
    file = captures.make("a few, small", 600_000, Shape(connections=3))
    many = captures.make("many", 0, Shape(filled=0, connections=500, partitions=1, opening=0, each=2))

    whole, each = captures.measure([file, many], warm=file)

    assert file.name == "a-few-small.pcap"
    assert whole.bytes == file.stat().st_size
    assert each.connections == 500
    assert min(each.worker_bytes, each.driver_bytes, each.java_bytes) > 10 * MB


def test_a_process_that_has_ended_has_no_peak() -> None:
    """A Python worker of Spark may end while it is looked at."""
    with subprocess.Popen(["true"]) as ended:
        pass
    assert peak(ended.pid) == 0
    assert peak(os.getpid()) > MB
