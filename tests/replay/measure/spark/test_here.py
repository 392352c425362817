"""A small capture is measured without Spark, and gives the same report."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from replay import cli
from replay.capture.packets.tcp import Filter
from replay.measure import here
from replay.measure.here import measure_here
from tests.replay.measure.spark.measuring import CAPTURES, measured, reported, work
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
    assert_true(reported(found, "always"), name)


@pytest.mark.integration
@pytest.mark.parametrize("filters", FILTERS)
def test_it_equals_what_spark_measures(spark: SparkSession, filters: dict[str, Any]) -> None:
    asked = work(
        *(CAPTURES / f"{name}.pcap" for name in ("librdkafka-midstream", "many-clients-any")), **filters
    )
    found = measure_here(asked)

    assert found is not None
    assert reported(found, asked.choice.policy) == measured(spark, asked)


def test_no_more_than_so_many_bytes_are_read_however_small_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (CAPTURES / "librdkafka-100p.pcap").read_bytes()
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress(whole))
    asked = work(tmp_path / "a.pcap.gz")
    assert measure_here(asked) is not None

    monkeypatch.setattr(here, "MOST", len(whole) // 2)

    assert asked.size <= here.MOST
    assert measure_here(asked) is None


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
