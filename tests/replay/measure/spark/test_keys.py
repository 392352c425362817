"""Spark counts the records of each key with the same result as this process.

A stored table does not contain keys.
"""

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from replay.measure.report import report
from replay.measure.spark.run import measure
from replay.report.model import Report
from tests.features.cooperative.batch import Record, batch
from tests.replay.measure.consumers import Consumer, asked, captured, measured

pytestmark = pytest.mark.integration

KEYS = [b"a-key-of-%02d" % number for number in range(40)]


def on_spark(spark: SparkSession, capture: Path, **chosen: Any) -> Report:
    work, about = asked(capture, 5, **chosen)
    return report(measure(spark, work), about)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    records = batch([Record(at, key, b"v" * 99) for at, key in enumerate(KEYS)], 3)
    consumers = [
        Consumer(client_id=f"billing-{port}", port=port, version=version, group="billing")
        .fetch({port: records, 9: b""})
        .fetch({0: records}, topic="audit")
        for port, version in ((1, 11), (2, 12), (3, 4))
    ]
    return captured(tmp_path, *consumers, Consumer(client_id="other", port=4).fetch({0: records}))


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        pytest.param({"topics": ["audit"]}, marks=pytest.mark.nightly),
        pytest.param({"clients": ["billing-2", "other"]}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_it_is_what_this_process_counts(spark: SparkSession, capture: Path, chosen: dict[str, Any]) -> None:
    told = on_spark(spark, capture, **chosen)

    assert told == measured(capture, 5, **chosen)
    assert told["cooperative"]["groups"][0]["hottest_key"] is not None


@pytest.mark.nightly
@pytest.mark.parametrize("chosen", [{}, {"topics": ["audit"]}], ids=str)
def test_a_table_has_no_key(
    spark: SparkSession, capture: Path, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    told = on_spark(spark, capture, parquet=str(tmp_path / "table"), **chosen)
    rows = ds.dataset(tmp_path / "table", partitioning="hive").to_table().to_pylist()

    assert told == measured(capture, 5, **chosen)
    assert {row["row"] for row in rows} <= {"exchange", "connection", "file", "closing"}
    assert not [row for row in rows if "a-key-of" in str(row)]
