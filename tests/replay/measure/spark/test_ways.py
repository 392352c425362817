"""The report is the same, byte for byte, with references to payload and with the payload itself."""

import gzip
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from replay.capture.packets.tcp import Filter
from replay.measure.here import measure_here
from replay.measure.racks import broker_rack, client_rack, racks
from replay.measure.spark import jobs, run
from replay.measure.spark.errors import SparkFailedError
from replay.measure.work import Work
from tests.examples import few
from tests.replay.capture.crafting import (
    RAW,
    Frame,
    capture,
    lose,
    pcap,
    pcapng,
    relink,
    repeat,
    swap,
    take_apart,
)
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.capture.packets_of import packets
from tests.replay.measure.spark.measuring import CAPTURES, measured, work
from tests.replay.tables import reported
from tools.bench.captures import split

MANY = "many-clients-any"
REAL = {name: take_apart(capture(name)) for name in ("librdkafka-midstream", MANY)}


def fragmented(whole: list[Frame]) -> Iterator[Frame]:
    """Cut each fifth IP packet into two fragments."""
    for number, frame in enumerate(whole):
        if number % 5 or len(frame.data) < 100:
            yield frame
            continue
        head, body = frame.data[:20], frame.data[20:]
        for data, flags in ((body[:48], 0x2000), (body[48:], 48 // 8)):
            packed = head[:2] + struct.pack(">HHH", 20 + len(data), number & 0xFFFF, flags) + head[8:] + data
            yield Frame(frame.time, packed, len(packed))


def written(folder: Path, *files: bytes, **more: Any) -> Work:
    for number, data in enumerate(files):
        (folder / f"{number}.pcap").write_bytes(data)
    return work(folder, **more)


def several(folder: Path) -> Work:
    """Return the work for several files. Some are compressed, and one is a pcapng."""
    parts = list(split(capture(MANY), 6))
    (folder / "small.pcap").write_bytes(pcapng(*relink(REAL["librdkafka-midstream"], "ethernet")))
    return written(folder, *(gzip.compress(part) if at % 3 == 1 else part for at, part in enumerate(parts)))


def secret(folder: Path) -> Work:
    both = ends(folder / "keys")
    (folder / "tls").mkdir()
    data = pcap(frames(encrypted(begun(packets(MANY)), both)), RAW, nano=True)
    return written(folder / "tls", data, secrets=both.secrets())


def damaged(folder: Path) -> Work:
    found = swap(repeat(lose(REAL[MANY], 0.02, 1), 0.02, 2), 0.02, 3)
    return written(folder, pcap(*relink(found, "ethernet")))


def cooperative(_: Path) -> Work:
    asked = work(CAPTURES / "librdkafka-rebalance.pcap", CAPTURES / "aiokafka-rebalance.pcap")
    return replace(asked, choice=replace(asked.choice, members=6))


def zoned(_: Path) -> Work:
    asked = work(CAPTURES / f"{MANY}.pcap", CAPTURES / "librdkafka-rebalance.pcap")
    named = racks([broker_rack("1=R1")], [client_rack("127.0.0.0/8=R2")])
    return replace(asked, choice=replace(asked.choice, racks=named))


INPUTS: dict[str, Callable[[Path], Work]] = {
    "captures": lambda _: work(CAPTURES),
    "always": lambda _: work(CAPTURES / f"{MANY}.pcap", policy="always"),
    "gzip": lambda folder: written(folder, gzip.compress(capture(MANY))),
    "pcapng": lambda folder: written(folder, pcapng(*relink(REAL[MANY], "sll2"))),
    "several": several,
    "fragments": lambda folder: written(folder, pcap([*fragmented(REAL[MANY])], RAW)),
    "damaged": damaged,
    "TLS": secret,
    "cooperative": cooperative,
    "hosts": lambda _: work(CAPTURES, keep=Filter(hosts=frozenset({"127.0.0.0/8"}))),
    "clients": lambda _: work(CAPTURES / f"{MANY}.pcap", clients=frozenset({"kpy"})),
    "topics": lambda _: work(CAPTURES / f"{MANY}.pcap", topics=frozenset({"orders"})),
    "racks": zoned,
}
ON_SPARK: Final = ("damaged", "captures", "cooperative", "several", "TLS")
"""What is measured on Spark, too, the first one in `make test`. `make soak` does so with all others, which
differ in how a task reads or filters.
"""


def plain(asked: Work) -> Work:
    return replace(asked, choice=replace(asked.choice, plain=True))


def here(asked: Work) -> str:
    found = measure_here(asked)
    assert found is not None
    return json.dumps(reported(found, asked.choice))


@pytest.mark.parametrize("name", few(INPUTS, "always", "several", "damaged"))
def test_here_references_change_nothing(tmp_path: Path, name: str) -> None:
    asked = INPUTS[name](tmp_path)
    expected = here(plain(asked))

    assert json.loads(expected)["input"]["packets"]
    assert here(asked) == expected


@pytest.mark.integration
@pytest.mark.parametrize(
    "name",
    [
        *few(ON_SPARK, "damaged"),
        *(pytest.param(name, marks=pytest.mark.soak) for name in INPUTS if name not in ON_SPARK),
    ],
)
def test_on_spark_references_change_nothing(spark: SparkSession, tmp_path: Path, name: str) -> None:
    asked = INPUTS[name](tmp_path)

    assert json.dumps(measured(spark, asked)) == here(asked)


@pytest.mark.nightly
@pytest.mark.integration
def test_on_spark_the_payload_itself_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    asked = several(tmp_path)

    assert json.dumps(measured(spark, plain(asked))) == here(asked)


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize("name", ["several", pytest.param("damaged", marks=pytest.mark.soak)])
def test_the_stored_table_is_the_same(spark: SparkSession, tmp_path: Path, name: str) -> None:
    asked = INPUTS[name](tmp_path)
    tables = [str(tmp_path / "references"), str(tmp_path / "plain")]
    reports = [
        json.dumps(measured(spark, replace(one, parquet=table)))
        for one, table in zip((asked, plain(asked)), tables, strict=True)
    ]
    rows = [
        spark.read.parquet(table).orderBy("row", "connection", "place", "correlation_id").toArrow()
        for table in tables
    ]

    assert reports == [here(asked)] * 2
    assert rows[0].num_rows
    assert rows[0].equals(rows[1])


@pytest.mark.integration
def test_a_file_that_shrinks_fails_the_job_with_its_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(CAPTURES / f"{MANY}.pcap", file := tmp_path / "x.pcap")
    asked = work(file)
    make = jobs.from_captures

    def shrinks(*given: Any, **more: Any) -> jobs.TaskRows:
        rows = make(*given, **more)
        read = rows.spread.localCheckpoint()  # the first stage is over
        os.truncate(file, asked.size // 2)
        return replace(rows, spread=read)

    monkeypatch.setattr(run, "from_captures", shrinks)
    with pytest.raises(SparkFailedError) as failed, run._failures_in_one_line():
        run.measure(spark, asked)

    assert str(failed.value) == (
        f"Spark failed: OSError: {file}: shrank while it was measured; measure a copy, or measure it when "
        "nothing writes to it"
    )
