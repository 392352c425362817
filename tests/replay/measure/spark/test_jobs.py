"""Spark gives the known true figures of real captures, for any master and any split."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import expand, plan
from replay.capture.kafka.exchange import ConnectionEnd
from replay.capture.kafka.exchanges import Event, payloads
from replay.capture.packets import segments
from replay.capture.packets.tcp import EVERYTHING, Filter
from replay.measure.rows import RowFilter
from replay.measure.spark.jobs import from_captures, from_table
from replay.measure.spark.stored import read_stored
from replay.measure.steps import Batches, events_again, restored
from replay.measure.strip_records import restore_records, strip_records
from replay.report.model import Report
from tests.replay.capture.crafting import RAW, pcap
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.capture.packets_of import packets
from tests.replay.measure.spark.measuring import CAPTURES, measured, work
from tests.replay.report.sample import assert_adds_up
from tests.replay.truths import assert_true, truth
from tools.bench.captures import Shape, make, split

pytestmark = pytest.mark.integration

NAMES = ("java-100p", "librdkafka-100p", "librdkafka-midstream", "many-clients-any")


def capture(name: str) -> Path:
    return CAPTURES / f"{name}.pcap"


def counted(report: Report) -> Report:
    """Return a report without the figures about files."""
    return {**report, "input": {**report["input"], "files": 0, "bytes": 0, "packets": 0}}


@pytest.fixture(scope="module")
def many(spark: SparkSession) -> Report:
    return measured(spark, work(capture("many-clients-any")))


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_the_truth(spark: SparkSession, name: str) -> None:
    report = measured(spark, work(capture(name), policy="always"))
    found = report["input"]

    assert_true(report, name)
    assert (found["files"], found["bytes"]) == (1, capture(name).stat().st_size)
    assert found["packets"] == truth(name)["capture"]["packets"]


def test_records_are_put_back_for_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without records, a batch of many rows may be small. All its rows may be of one connection."""
    make(tmp_path / "made.pcap", 600_000, Shape(connections=3))
    [share] = plan(expand([str(tmp_path / "made.pcap")]), 1 << 30)
    found = list(map(strip_records, segments.read(share)))

    monkeypatch.setattr(segments, "MAX_BATCH", 50_000)
    put_back = list(restored(iter(found)))

    at_once = [restore_records(batch) for batch in found]
    assert pa.Table.from_batches(put_back).equals(pa.Table.from_batches(at_once))
    sizes = [sum(map(len, payloads(batch))) for batch in put_back]
    assert max(sizes) <= 50_000
    assert len(sizes) < 30 < sum(batch.num_rows for batch in found)


@pytest.mark.nightly
def test_records_of_a_file_that_is_read_only_once_stay_out_of_the_shuffle(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A compressed file can't be read at offsets, so the rows have its payload, but without the records."""
    make(tmp_path / "made.pcap", 600_000, Shape(connections=3))
    (tmp_path / "made.pcap.gz").write_bytes(gzip.compress((tmp_path / "made.pcap").read_bytes()))
    shares = plan(expand([str(tmp_path / "made.pcap.gz")]), 1 << 30)

    rows = from_captures(spark, shares, EVERYTHING, RowFilter(), 1).spread
    kept, all_bytes = (
        rows.select(f.sum(f.length("payload"))).first(),
        sum(len(payload) for batch in segments.read(shares[0]) for payload in payloads(batch)),
    )

    assert kept is not None
    assert 0 < kept[0] < all_bytes / 2


@pytest.mark.nightly
def test_one_connection_over_fifty_files_of_any_kind(spark: SparkSession, tmp_path: Path) -> None:
    whole = capture("librdkafka-100p")
    for number, part in enumerate(split(whole.read_bytes(), 50)):
        if number % 10:
            (tmp_path / f"{number}.pcap").write_bytes(part)
        else:
            (tmp_path / f"{number}.pcap.gz").write_bytes(gzip.compress(part))
    report = measured(spark, work(tmp_path))

    assert report["input"]["files"] == 50
    assert counted(report) == counted(measured(spark, work(whole)))


@pytest.mark.nightly
def test_a_file_larger_than_a_share(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, many: Report
) -> None:
    monkeypatch.setattr("replay.measure.spark.run._LEAST_SHARE", 200_000)
    monkeypatch.setattr("replay.measure.spark.run._MOST_SHARE", 200_000)

    assert measured(spark, work(capture("many-clients-any"))) == many


@pytest.mark.nightly
def test_from_the_table_again_with_another_policy(spark: SparkSession, tmp_path: Path, many: Report) -> None:
    table = str(tmp_path / "table")
    assert measured(spark, work(capture("many-clients-any"), parquet=table)) == many

    assert measured(spark, work(table=table)) == many
    always = measured(spark, work(capture("many-clients-any"), policy="always"))
    assert measured(spark, work(table=table, policy="always")) == always


@pytest.mark.nightly
def test_filters_mean_the_same_from_captures_and_from_the_table(
    spark: SparkSession, tmp_path: Path, many: Report
) -> None:
    table = str(tmp_path / "table")
    measured(spark, work(capture("many-clients-any"), parquet=table))
    broker = int(many["by_broker"][0]["broker"].rpartition(":")[2])
    for filters in (
        {"clients": frozenset({"rdk", "kpy"})},
        {"topics": frozenset({"orders"})},
        {"keep": Filter(hosts=frozenset({"127.0.0.0/8"}), ports=frozenset({broker}))},
        {"keep": Filter(hosts=frozenset({"10.0.0.1"}))},
    ):
        direct = measured(spark, work(capture("many-clients-any"), **filters))
        again = measured(spark, work(table=table, **filters))
        assert_adds_up(direct)
        assert direct["fetch"] == again["fetch"]
        assert direct["by_topic"] == again["by_topic"]


@pytest.mark.nightly
def test_ids_of_topics_are_found_without_the_exchanges_of_a_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    measured(spark, work(capture("many-clients-any"), parquet=path))
    table = read_stored(spark, path)
    assert table is not None

    def only_ends(batches: Batches, files: list[FileCounts]) -> Iterator[Event]:
        for event in events_again(EVERYTHING, RowFilter(), batches, files):
            assert isinstance(event, ConnectionEnd)
            yield event

    rows = replace(from_table(table, EVERYTHING, RowFilter(), 2), read=only_ends)
    topics = rows.of_topics(frozenset({"orders"})).choice.topics

    assert len(topics) == 2
    assert topics > {"orders"}


@pytest.mark.nightly
def test_a_client_and_a_topic_are_picked_out(spark: SparkSession, many: Report) -> None:
    by_client = {row["client_id"]: row["fetch"] for row in many["by_client"]}
    kpy = measured(spark, work(capture("many-clients-any"), clients=frozenset({"kpy"})))
    orders = measured(spark, work(capture("many-clients-any"), topics=frozenset({"orders"})))
    rows = {row["topic"]: row["fetch"] for row in orders["by_topic"]}

    assert kpy["fetch"] == by_client["kpy"]
    assert kpy["input"] == many["input"]
    whole = {row["topic"]: row["fetch"] for row in many["by_topic"]}
    assert rows["orders"]["actual"] == whole["orders"]["actual"]
    assert orders["fetch"]["actual"]["requests"] < many["fetch"]["actual"]["requests"]


def test_what_can_not_be_read_is_told_beside_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "broken.pcap").write_bytes(b"no capture at all, but called like one")
    good = capture("java-100p")
    report = measured(spark, work(tmp_path / "broken.pcap", good))

    assert [problem["file"] for problem in report["input"]["problems"]] == [str(tmp_path / "broken.pcap")]
    assert report["fetch"] == measured(spark, work(good))["fetch"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["many-clients-any", pytest.param("librdkafka-100p", marks=pytest.mark.soak)]
)
def test_tls_with_its_key_log_gives_the_report_of_plain_text(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    both, rows = ends(tmp_path / "keys"), begun(packets(name))
    (tmp_path / "plain.pcap").write_bytes(pcap(frames(rows), RAW, nano=True))
    (tmp_path / "tls.pcap").write_bytes(pcap(frames(encrypted(rows, both)), RAW, nano=True))
    parquet = tmp_path / "table"
    expected = measured(spark, work(tmp_path / "plain.pcap"))
    secrets = both.secrets()
    found = measured(spark, work(tmp_path / "tls.pcap", secrets=secrets, parquet=str(parquet)))

    opened, found["input"]["decrypted_connections"] = found["input"]["decrypted_connections"], 0
    assert opened == sum(name.startswith("CLIENT_TRAFFIC") for name in both.keylog.read_text().split())
    assert counted(found) == counted(expected)
    stored = [file.read_bytes() for file in parquet.rglob("*.parquet")]
    assert stored
    values = list(secrets.by_connection.values())
    assert not any(secret in data or secret.hex().encode() in data for data in stored for secret in values)

    without = measured(spark, work(tmp_path / "tls.pcap"))
    assert without["input"]["encrypted_connections"] == {"TLS": opened}
    assert "--keylog FILE" in without["decision"]["next_step"]
