"""Tests that each column of the table has a description.

They also check that frames and ends of connections can be read back.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from replay.capture.files.counts import FileCounts
from replay.capture.kafka.exchange import CUT, ConnectionEnd, Exchange, without_records
from replay.measure.digest import Digest
from replay.measure.rows import RowFilter
from replay.measure.table import (
    CODECS,
    COLUMNS,
    EXCHANGES_RAW,
    FETCH,
    FETCH_COLUMNS,
    LAST,
    RowWriter,
    connection_ends,
    exchanges,
)
from replay.simulate.outcome import Outcome
from tests.replay.measure.test_strip_records import response
from tests.replay.tables import CAPTURES, connections, table

EXCHANGE = Exchange(
    connection="a:1 > b:2 #0",
    client="a:1",
    broker="b:2",
    number=3,
    client_id="id",
    software="lib 1",
    api_key=3,
    api_version=12,
    correlation_id=9,
    request_time=100,
    response_time=200,
    request_bytes=7,
    response_bytes=1_500_000,
    request=b"request",
    response=[b"head", CUT, CUT[: 1_500_000 - 8 - len(CUT)], memoryview(b"tail")],
)


def test_every_column_says_what_it_holds() -> None:
    assert [column.name for column in COLUMNS] == EXCHANGES_RAW.names
    assert all(field.metadata[b"meaning"] for field in EXCHANGES_RAW)
    assert len(set(EXCHANGES_RAW.names)) == len(COLUMNS)


def test_the_columns_of_a_fetch_are_what_the_engine_tells() -> None:
    parsed = {"exchange", "topics", "request", "response", "run"}
    told = {field.name for field in dataclasses.fields(Outcome)} - parsed

    assert {column.name for column in FETCH_COLUMNS} == told


@pytest.mark.parametrize(
    ("request_bytes", "response_bytes", "row"), [(7, 9, "exchange"), (7, 0, "request"), (0, 9, "response")]
)
def test_a_row_is_of_a_kind(request_bytes: int, response_bytes: int, row: str) -> None:
    writer = RowWriter()
    writer.exchange(
        dataclasses.replace(EXCHANGE, request_bytes=request_bytes, response_bytes=response_bytes, place=5)
    )
    (found,) = writer.drain().to_pylist()

    assert (found["row"], found["place"], found["kind"], found["counted"]) == (row, 5, None, None)
    assert found["client_id"] == "id"


def test_what_was_cut_is_not_stored_and_comes_back_as_zeros() -> None:
    writer = RowWriter()
    writer.exchange(EXCHANGE)
    batch = writer.drain()
    (row,) = batch.to_pylist()
    (again,) = exchanges(batch)

    assert batch.schema == EXCHANGES_RAW
    assert (row["response"], row["cuts"][0], sum(row["cuts"][1::2])) == (b"headtail", 4, 1_500_000 - 8)
    assert isinstance(again, Exchange)
    assert b"".join(again.response) == b"head" + bytes(1_500_000 - 8) + b"tail"
    assert dataclasses.replace(again, response=[]) == dataclasses.replace(EXCHANGE, response=[])


def test_errors_are_stored_and_frames_of_other_apis_are_not() -> None:
    def written(exchange: Exchange) -> tuple[dict[str, Any], Exchange | ConnectionEnd]:
        writer = RowWriter(errors=True)
        writer.exchange(exchange)
        batch = writer.drain()
        (row,), (again,) = batch.to_pylist(), exchanges(batch)
        return row, again

    frame = bytes.fromhex("00000006 00000009 001b")
    heartbeat = dataclasses.replace(EXCHANGE, api_key=12, api_version=0, response=[frame])
    row, again = written(heartbeat)
    assert isinstance(again, Exchange)
    row_again, _ = written(again)

    assert (row["request"], row["response"]) == (b"request", b"")
    assert row["errors"] == [{"code": 27, "error": "REBALANCE_IN_PROGRESS", "count": 1}]
    assert row_again["errors"] == row["errors"]
    unknown: list[dict[str, Any]] = [
        {"api_key": 999},
        {"response_missing": 1},
        {"response": []},
        {"response": [frame[:9]]},
    ]
    for changed in unknown:
        assert written(dataclasses.replace(heartbeat, **changed))[0]["errors"] is None
    assert written(dataclasses.replace(heartbeat, response=[frame[:-1] + b"\0"]))[0]["errors"] == []


@pytest.mark.parametrize("size", [10, 5000])
def test_contents_of_records_are_not_stored(size: int) -> None:
    """The contents of records are not stored in a table.

    Contents in plain text were already cut in an earlier step. Contents that were decrypted from TLS are cut
    only here.
    """
    frame = response(b"SECRET" * size, b"", b"SECRET" * size, correlation_id=9)
    fetch = dataclasses.replace(
        EXCHANGE, api_key=FETCH, api_version=11, response=[frame[:100], memoryview(frame)[100:]]
    )
    writer = RowWriter()
    writer.exchange(fetch)
    batch = writer.drain()
    (row,) = batch.to_pylist()
    (again,) = exchanges(batch)

    assert b"SECRET" not in row["response"]
    assert sum(row["cuts"][1::2]) == 12 * size
    assert isinstance(again, Exchange)
    assert b"".join(again.response) == frame.replace(b"SECRET", bytes(6))


def test_a_writer_is_full_by_rows_or_by_bytes() -> None:
    rows, heavy = RowWriter(), RowWriter()
    told = []
    for _ in range(4096):
        rows.exchange(EXCHANGE)
        told.append(rows.full)
    heavy.exchange(dataclasses.replace(EXCHANGE, request=bytes(5 << 20)))

    assert told == [False] * 4095 + [True]
    assert heavy.full
    assert [rows.drain().num_rows, rows.drain().num_rows] == [4096, 0]


def test_details_come_back_with_the_kind_of_their_row() -> None:
    end = ConnectionEnd(connection="c", client="a:1", broker="b:2", gaps=2, topics={b"\x01" * 16: "events"})
    summary, counts = Digest().summary(end), FileCounts(file="f", link_types={1: 2}, stretches=[[3, 4]])
    writer = RowWriter()
    writer.exchange(EXCHANGE)
    writer.detail("connection", summary, end)
    writer.detail("file", counts)
    batch = writer.drain()

    assert connection_ends(batch) == [None, end, None]
    assert CODECS["summary"].read(batch.column("summary")) == [None, summary, None]
    assert CODECS["file_counts"].read(batch.column("file_counts")) == [None, None, counts]
    assert batch.column("row").to_pylist() == ["exchange", "connection", "file"]
    assert batch.column("connection").to_pylist() == ["a:1 > b:2 #0", "c", ""]


def all_events() -> Iterator[Exchange | ConnectionEnd]:
    for events in connections(*sorted(CAPTURES.glob("*.pcap"))):
        yield from events


def comparable(event: Exchange | ConnectionEnd) -> Exchange | ConnectionEnd:
    if isinstance(event, ConnectionEnd):
        return event
    pieces = event.response
    if event.api_key == FETCH:
        pieces = without_records(pieces, event.api_version)
    return dataclasses.replace(event, response=[b"".join(pieces)], place=0)


@pytest.mark.slow
def test_real_captures_come_back_from_their_table() -> None:
    captures = sorted(CAPTURES.glob("*.pcap"))
    made = table(RowFilter(), *captures)
    keyed = made.sort_by([("connection", "ascending"), ("place", "ascending")])
    again = [event for batch in keyed.to_batches() for event in exchanges(batch)]
    first = sorted(all_events(), key=lambda one: one.connection)

    assert pa.types.is_string(made.schema.field("connection").type)
    ends = sum(isinstance(one, ConnectionEnd) for one in again)
    assert keyed.column("place").to_pylist().count(LAST) == ends + len(captures)
    assert list(map(comparable, again)) == list(map(comparable, first))
