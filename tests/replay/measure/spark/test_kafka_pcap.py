"""Tests of `replay.source`, the data source for Spark. They are in this folder to share the Spark session."""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from replay.source.columns import COLUMNS
from replay.source.kafka_pcap import KafkaPcap
from tests.replay.capture.crafting import RAW, pcap
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.capture.packets_of import packets
from tests.replay.measure.spark.measuring import CAPTURES
from tests.replay.source.test_columns import rows
from tools.bench.captures import split

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(KafkaPcap)
    spark.conf.set("spark.sql.shuffle.partitions", 2)


def test_a_ring_of_files_is_a_table_with_each_connection_whole(spark: SparkSession, tmp_path: Path) -> None:
    whole = CAPTURES / "many-clients-any.pcap"
    for number, part in enumerate(split(whole.read_bytes(), 5)):
        (tmp_path / f"{number}.pcap").write_bytes(part)
    table = spark.read.format("kafka-pcap").option("partitions", 3).load(str(tmp_path))

    assert table.rdd.getNumPartitions() == 3
    assert [(field.name, field.metadata["comment"]) for field in table.schema.fields] == [
        (one.name, one.meaning) for one in COLUMNS
    ]
    assert sorted(map(repr, table.toArrow().to_pylist())) == sorted(map(repr, rows(whole)))


@pytest.mark.nightly
def test_several_paths_and_ports(spark: SparkSession) -> None:
    paths = [str(CAPTURES / f"{name}.pcap") for name in ("java-100p", "librdkafka-midstream")]
    table = spark.read.format("kafka-pcap").load(paths)
    expected = rows(*map(Path, paths))
    port = expected[0]["broker"].rpartition(":")[2]
    of_port = spark.read.format("kafka-pcap").option("ports", port).load(paths)

    assert table.count() == len(expected)
    assert of_port.count() == sum(row["broker"].endswith(f":{port}") for row in expected)


@pytest.mark.nightly
def test_tls_is_read_with_a_key_log(spark: SparkSession, tmp_path: Path) -> None:
    both, plain = ends(tmp_path), begun(packets("java-100p"))
    (tmp_path / "plain.pcap").write_bytes(pcap(frames(plain), RAW, nano=True))
    (tmp_path / "tls.pcap").write_bytes(pcap(frames(encrypted(plain, both)), RAW, nano=True))
    table = spark.read.format("kafka-pcap").option("keylog", str(both.keylog))
    found = [table.load(str(tmp_path / name)).drop("time", "seconds") for name in ("tls.pcap", "plain.pcap")]
    read, expected = (sorted(map(repr, one.toArrow().to_pylist())) for one in found)

    assert expected
    assert read == expected
    assert "Scan kafka-pcap" in (plan := found[0]._jdf.queryExecution().toString())
    assert not any(secret.hex() in plan for secret in both.secrets().by_connection.values())


@pytest.mark.nightly
def test_what_is_wrong_is_told_when_it_is_read(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="no option port; there are keylog, partitions, ports"):
        spark.read.format("kafka-pcap").option("port", "9092").load(str(CAPTURES)).count()


@pytest.mark.nightly
def test_the_notebook_answers_its_questions(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    notebook: dict[str, Any] = runpy.run_path("docs/users/questions.py")
    expected = rows(*CAPTURES.glob("*.pcap"))

    assert notebook["spark"] is spark
    assert os.environ["PYSPARK_PYTHON"] == sys.executable  # else Spark's workers run the python3 of PATH
    assert capsys.readouterr().out.count("+\n") == 3 * 5
    most = notebook["most_bytes"].collect()
    assert sum(row.requests for row in most) == sum(row["api"] is not None for row in expected)
    assert most[0].api == "Fetch"
    assert {row.error for row in notebook["failed"].collect()} == {row["error"] for row in expected} - {None}
    notebook["exchanges"].unpersist()
