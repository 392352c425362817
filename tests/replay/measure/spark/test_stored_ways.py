"""With `--parquet`, the report is the same from captures and from the table, by the fast and plain ways."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from replay.capture.packets.tcp import Filter
from replay.measure.floors import Floors
from replay.measure.here import measure_here
from replay.measure.work import Work
from tests.replay.capture.crafting import CAPTURES, RAW, pcapng, relink, take_apart
from tests.replay.capture.crafting import pcap as pcap_of
from tests.replay.capture.encrypting import frames
from tests.replay.measure.spark.measuring import measured, work
from tests.replay.measure.traffic import every_kind, traffic
from tests.replay.tables import reported

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

WRITTEN: Mapping[str, dict[str, Any]] = {
    "cooperative": {"members": 4},
    "cooperative and topics": {"members": 4, "policy": "always", "topics": frozenset({"orders"})},
    "clients and a host": {
        "clients": frozenset({"client-0"}),
        "keep": Filter(hosts=frozenset({"10.0.0.2"})),
    },
}
READ: Mapping[str, dict[str, Any]] = {
    "always": {"policy": "always"},
    "always, plain": {"policy": "always", "plain": True},
    "topics": {"policy": "always", "topics": frozenset({"orders"}), "max_fetch_bytes": 100},
    "floors": {"floors": Floors(min_bytes=300, max_wait_ms=2_000)},
}


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Return two files: made consumers of several Fetch versions, and real ones."""
    folder = tmp_path_factory.mktemp("captures")
    (folder / "made.pcap").write_bytes(
        pcap_of(frames(traffic([every_kind(4), every_kind(13)])), RAW, nano=True)
    )
    real = take_apart((CAPTURES / "aiokafka-rebalance.pcap").read_bytes())
    (folder / "real.pcap").write_bytes(pcapng(*relink(real[: len(real) // 2], "sll2")))
    return work(folder)


def chosen(asked: Work, options: Mapping[str, Any]) -> Work:
    """Return work with other options."""
    of_work = {name: options[name] for name in ("topics", "keep") if name in options}
    of_rows = {name: value for name, value in options.items() if name not in of_work}
    return replace(asked, choice=replace(asked.choice, **of_rows), **of_work)


def here(asked: Work) -> str:
    found = measure_here(asked)
    assert found is not None
    return json.dumps(reported(found, asked.choice))


def sorted_rows(spark: SparkSession, table: Path) -> DataFrame:
    return spark.read.parquet(str(table)).orderBy(
        "row", "connection", "place", "correlation_id", "file_counts.file"
    )


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, captures: Work, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Write a table by the fast way, and one by the plain way."""
    folder = tmp_path_factory.mktemp("tables")
    found = folder / "fast", folder / "plain"
    expected = here(captures)
    for plain, table in enumerate(found):
        asked = chosen(captures, {"plain": bool(plain)})
        assert json.dumps(measured(spark, replace(asked, parquet=str(table)))) == expected
    return found


def test_both_ways_write_the_same_rows(spark: SparkSession, tables: tuple[Path, Path]) -> None:
    fast, plain = (sorted_rows(spark, table).toArrow() for table in tables)

    assert fast.num_rows > 500
    assert fast.equals(plain)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_report_is_the_same_while_a_table_is_written(
    spark: SparkSession, captures: Work, tmp_path: Path, name: str
) -> None:
    asked = chosen(captures, WRITTEN[name])

    assert json.dumps(measured(spark, replace(asked, parquet=str(tmp_path / "table")))) == here(asked)


@pytest.mark.parametrize("name", READ)
def test_a_report_is_the_same_from_the_table(
    spark: SparkSession, captures: Work, tables: tuple[Path, Path], name: str
) -> None:
    asked = chosen(captures, READ[name])
    expected = here(chosen(captures, {**READ[name], "plain": True}))

    assert json.dumps(measured(spark, replace(asked, sources=(), table=str(tables[0])))) == expected
