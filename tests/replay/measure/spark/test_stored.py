"""The table in files: by day and broker, extended by each run, and equal to a table made in one run."""

import gzip
import json
import shutil
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from replay.capture.files.sources import InputError
from replay.measure.spark.stored import read_stored, sole_writer, write_stored
from replay.measure.table import EXCHANGES_RAW, FETCH
from replay.report.model import Report, actual_bytes
from tests.replay.measure.spark.measuring import CAPTURES, measured, work
from tests.replay.tables import measured as at_once
from tools.bench.captures import split

pytestmark = pytest.mark.integration

FIRST, SECOND = CAPTURES / "librdkafka-rebalance.pcap", CAPTURES / "aiokafka-gateway.pcap"
"""Two captures from two different days. `FIRST` is the earlier one."""


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the table of the first capture, and return its path."""
    path = tmp_path_factory.mktemp("stored") / "table"
    measured(spark, work(FIRST, parquet=str(path)))
    return path


@pytest.fixture
def table(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "table"))


def plain(report: Report) -> str:
    return json.dumps(report, indent=2)


def test_runs_add_to_a_table_that_reads_as_if_measured_at_once(spark: SparkSession, table: Path) -> None:
    added = measured(spark, work(SECOND, parquet=str(table)))

    assert plain(added) == plain(at_once("gateway", SECOND))
    assert plain(measured(spark, work(table=str(table)))) == plain(at_once("gateway", FIRST, SECOND))
    assert not [*table.glob("_temporary*")]

    # Any reader finds the rows by day and broker.
    rows = (
        ds.dataset(table, partitioning="hive").to_table(columns=["row", "run", "day", "broker"]).to_pylist()
    )
    runs = {row["day"]: row["run"] for row in rows}
    assert {path.name for path in table.glob("day=*")} == {"day=2026-11-21", "day=2026-11-22"}
    assert runs == {"2026-11-21": 0, "2026-11-22": 1}
    assert {row["broker"] for row in rows if row["row"] == "file"} == {None}
    assert all(row["broker"] for row in rows if row["row"] == "exchange")


def test_a_capture_that_the_table_has_is_refused_under_any_name(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    before = sorted(table.rglob("*"))
    copy = tmp_path / "kept.pcap.gz"
    copy.write_bytes(gzip.compress(FIRST.read_bytes()))
    for given, told in ((FIRST, str(FIRST)), (copy, rf"{copy} \(as {FIRST}\)")):
        with pytest.raises(
            InputError, match=f"^--parquet {table}: the table has {told} already; name only captures that"
        ):
            measured(spark, work(SECOND, given, parquet=str(table)))
    with pytest.raises(InputError, match="and 1 more captures already"):
        measured(spark, work(copy, FIRST, parquet=str(table)))

    assert sorted(table.rglob("*")) == before


def test_traffic_that_the_table_has_is_refused_in_another_capture(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    before = sorted(table.rglob("*"))
    half = tmp_path / "half.pcap"
    half.write_bytes([*split(FIRST.read_bytes(), 2)][1])
    with pytest.raises(InputError, match=rf"^--parquet {table}: the table has \d+ of these requests already"):
        measured(spark, work(SECOND, half, parquet=str(table)))

    assert sorted(table.rglob("*")) == before


@pytest.mark.nightly
def test_a_connection_over_two_runs_is_two_of_other_names(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    for number, half in enumerate(split((CAPTURES / "java-100p.pcap").read_bytes(), 2)):
        (tmp_path / f"{number}.pcap").write_bytes(half)
        measured(spark, work(tmp_path / f"{number}.pcap", parquet=table))
    stored = read_stored(spark, table)
    assert stored is not None
    names = [row.connection for row in stored.where("row = 'connection'").collect()]
    ends = {name.rpartition(" #")[0] for name in names}

    assert len(ends) < len(names)
    assert len({*names}) == len(names)
    assert {name.rpartition(" #")[2] for name in names} == {"0", "1"}


def files_of(table: Path) -> list[Path]:
    """Return the files that a reader of the table finds, without temporary ones.

    A Spark task that outlives its run may leave temporary files.
    """
    return sorted(path for path in table.rglob("*") if "_temporary" not in path.parts)


def test_a_run_that_fails_leaves_the_table_as_it_was(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = read_stored(spark, str(table))
    assert stored is not None
    before, rows = files_of(table), stored.count()
    place = f.when(f.col("row") == "file", f.raise_error(f.lit("broken")).cast("int")).otherwise(
        f.col("place")
    )
    broken = stored.withColumn("place", place)
    monkeypatch.setattr(type(stored), "hint", lambda self, *_: self)  # so that it fails while it writes files
    with pytest.raises(Exception, match="broken"):
        write_stored(spark, broken.select(*EXCHANGES_RAW.names), str(table), 1)

    assert files_of(table) == before
    again = read_stored(spark, str(table))
    assert again is not None
    assert again.count() == rows


@pytest.mark.nightly
def test_what_a_killed_run_left_is_not_added_by_the_next_one(spark: SparkSession, table: Path) -> None:
    """The next run does not add the files that a killed run has left in the table's folder.

    Hadoop's committer moves the files of all finished tasks, also of earlier runs. So the rows of the killed
    run would count twice.
    """
    left = table / "_temporary/0/task_202611230000000000000000_0003_m_000000"
    for day in table.glob("day=*"):
        shutil.copytree(day, left / day.name)

    assert plain(measured(spark, work(SECOND, parquet=str(table)))) == plain(at_once("gateway", SECOND))
    assert plain(measured(spark, work(table=str(table)))) == plain(at_once("gateway", FIRST, SECOND))
    assert not [*table.glob("_temporary*")]


def test_two_runs_at_a_time_do_not_add_to_a_table(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    before = sorted(table.rglob("*"))
    with (
        sole_writer(str(table)),
        pytest.raises(
            InputError, match=f"^--parquet {table}: another run adds to it now; wait until it ends"
        ),
    ):
        measured(spark, work(SECOND, parquet=str(table)))
    assert sorted(table.rglob("*")) == before

    with sole_writer(str(tmp_path / "new/one")):  # nothing is written: nothing is left
        assert (tmp_path / "new/one").is_dir()
    assert not (tmp_path / "new/one").exists()
    with pytest.raises(InputError, match=r"^--parquet /proc/table: No such file or directory; name another "):
        sole_writer("/proc/table").__enter__()


@pytest.mark.nightly
@pytest.mark.parametrize("column", ["errors", "summary.end.reason"])
def test_a_table_that_lacks_a_column_is_refused(
    spark: SparkSession, written: Path, tmp_path: Path, column: str
) -> None:
    name, _, field = column.partition(".")
    stored, older = spark.read.parquet(str(written)), str(tmp_path / "older")
    lacks = stored.withColumn(name, f.col(name).dropFields(field)) if field else stored.drop(name)
    lacks.write.partitionBy("day", "broker").parquet(older)

    for given in (work(table=older), work(FIRST, parquet=older)):
        with pytest.raises(
            InputError, match=f"{older}: .* no column {column}, .*; measure the captures again"
        ):
            measured(spark, given)


@pytest.mark.nightly
def test_a_table_is_measured_into_a_new_one(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    old, new = str(written), str(tmp_path / "new")

    assert plain(measured(spark, work(table=old, parquet=new))) == plain(at_once("gateway", FIRST))
    with pytest.raises(
        InputError, match="it is a table already; only captures can be added to it, not another table"
    ):
        measured(spark, work(table=old, parquet=new))


@pytest.mark.nightly
def test_a_table_is_asked_in_sql(spark: SparkSession, written: Path) -> None:
    """SQL queries of Spark give the figures of the report for a table."""
    spark.read.parquet(str(written)).createOrReplaceTempView("stored")
    report = at_once("gateway", FIRST)

    def asked(query: str) -> dict[str | int, int]:
        return {name: int(count) for name, count in spark.sql(query).collect() if count}

    by_key = asked(
        "SELECT api_key, sum(request_bytes + response_bytes) FROM stored WHERE row = 'exchange' GROUP BY ALL"
    )
    by_client = asked(
        "SELECT client_id, sum(request_bytes + response_bytes) FROM stored WHERE counted GROUP BY ALL"
    )
    by_topic = asked(
        "WITH topics AS (SELECT inline(summary.topics) FROM stored), "
        "names AS (SELECT explode(summary.end.topics) AS (topic_id, name) FROM stored) "
        "SELECT coalesce(topic, name), sum(request_bytes + response_bytes) FROM topics "
        "LEFT JOIN (SELECT DISTINCT * FROM names) USING (topic_id) GROUP BY ALL"
    )
    payload = asked(
        "SELECT summary.end.reason, sum(summary.end.client_bytes + summary.end.broker_bytes) FROM stored "
        "WHERE row = 'connection' GROUP BY ALL"
    )
    packets = asked("SELECT file_counts.file, file_counts.packets FROM stored WHERE row = 'file'")
    latest = asked(
        "SELECT name, max(time) FROM (SELECT inline(summary.sessions) FROM stored) WHERE act = 'make' "
        "GROUP BY ALL"
    )

    assert by_client == {row["client_id"]: actual_bytes(row["fetch"]) for row in report["by_client"]}
    assert by_key[FETCH] == actual_bytes(report["fetch"])
    assert len(by_key) > 3
    assert by_topic == {
        row["topic"]: actual_bytes(row["fetch"]) for row in report["by_topic"] if row["topic"] is not None
    }
    readable = report["readable"]
    assert sum(payload.values()) >= readable["readable_bytes"] > 0
    assert packets == {str(FIRST): report["input"]["packets"]}
    assert latest


@pytest.mark.nightly
def test_the_name_of_a_table_is_no_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """Spark takes the characters of patterns in a path for a pattern, but only when it reads."""
    table = tmp_path / "a b,c=1 {x}[2]*?"
    reports = [measured(spark, work(capture, parquet=str(table))) for capture in (FIRST, SECOND)]

    assert [*map(plain, reports)] == [plain(at_once("gateway", capture)) for capture in (FIRST, SECOND)]
    assert plain(measured(spark, work(table=str(table)))) == plain(at_once("gateway", FIRST, SECOND))
