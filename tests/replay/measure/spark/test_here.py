"""`measure` without Spark gives the same report for a small capture as with Spark."""

import gzip
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from replay import cli
from replay.capture.packets.tcp import Filter
from replay.measure import here
from replay.measure.here import measure_here
from replay.measure.options import MOST
from replay.measure.rows import RowFilter
from replay.measure.work import Work
from tests.replay.measure.spark.measuring import CAPTURES, measured, work
from tests.replay.tables import reported
from tests.replay.truths import assert_true

FILTERS: list[dict[str, Any]] = [
    {},
    {"policy": "always"},
    {"topics": frozenset({"orders", "events"})},
    {"clients": frozenset({"kpy"})},
    {"keep": Filter(hosts=frozenset({"10.0.0.1"}))},
]


@pytest.mark.parametrize("name", ["java-100p", "librdkafka-100p", "librdkafka-midstream", "many-clients-any"])
def test_it_equals_the_truth(name: str) -> None:
    found = measure_here(work(CAPTURES / f"{name}.pcap", policy="always"))

    assert found is not None
    assert_true(reported(found, RowFilter(policy="always")), name)


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize("filters", FILTERS)
def test_it_equals_what_spark_measures(spark: SparkSession, filters: dict[str, Any]) -> None:
    asked = work(
        *(CAPTURES / f"{name}.pcap" for name in ("librdkafka-midstream", "many-clients-any")), **filters
    )
    found = measure_here(asked)

    assert found is not None
    assert reported(found, asked.choice) == measured(spark, asked)


def test_no_more_than_so_many_bytes_are_read_however_small_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (CAPTURES / "librdkafka-100p.pcap").read_bytes()
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress(whole))
    asked = work(tmp_path / "a.pcap.gz")
    assert measure_here(asked) is not None

    monkeypatch.setattr(here, "_HELD", len(whole) // 2)

    assert asked.size <= MOST
    assert measure_here(asked) is None


def test_a_file_that_is_read_again_may_be_larger_than_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = work(CAPTURES / "librdkafka-100p.pcap")
    monkeypatch.setattr(here, "_HELD", asked.size // 8)
    assert measure_here(asked) is not None
    assert measure_here(replace(asked, topics=frozenset({"orders"}))) is not None
    assert measure_here(replace(asked, choice=replace(asked.choice, plain=True))) is None

    monkeypatch.setattr(here, "MOST", asked.size - 1)
    assert measure_here(asked) is None


def test_what_the_user_wants_measured_here_may_be_as_large_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = work(CAPTURES / "librdkafka-100p.pcap", topics=frozenset({"orders"}))
    expected = measure_here(asked)
    monkeypatch.setattr(here, "_HELD", 1)
    monkeypatch.setattr(here, "MOST", asked.size - 1)
    assert measure_here(asked) is None
    assert measure_here(replace(asked, memory=1)) is None

    found = measure_here(replace(asked, memory=16 * asked.size))
    assert expected is not None
    assert found is not None
    assert reported(found, asked.choice) == reported(expected, asked.choice)


@pytest.mark.parametrize("change", [os.truncate, lambda path, size: path.write_bytes(bytes(4 * size))])
def test_a_file_that_changes_while_it_is_measured_is_an_error_that_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path, int], object],
) -> None:
    shutil.copy(CAPTURES / "librdkafka-100p.pcap", file := tmp_path / "x.pcap")
    found = here.references

    def changed(work: Work) -> list[pa.RecordBatch] | None:
        read = found(work)
        change(file, file.stat().st_size // 2)
        return read

    monkeypatch.setattr(here, "references", changed)
    code = cli.main(["measure", str(file)])
    told = capsys.readouterr()

    how = "shrank" if change is os.truncate else "was changed"
    assert (code, told.out) == (1, "")
    assert told.err == (
        f"fetchgate replay measure: {file}: {how} while it was measured; measure a copy, or measure it when "
        "nothing writes to it\n"
    )


def test_what_is_a_table_or_becomes_one_is_left_to_spark(tmp_path: Path) -> None:
    capture = CAPTURES / "librdkafka-100p.pcap"

    assert measure_here(work(capture, parquet=str(tmp_path / "table"))) is None
    assert measure_here(work(table=str(tmp_path))) is None


def test_it_needs_no_java(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    assert cli.main(["measure", str(CAPTURES / "librdkafka-100p.pcap")]) == 0
    told = capsys.readouterr()
    assert "Sessions would save" in told.out
    assert told.err.startswith("Measured in ")
