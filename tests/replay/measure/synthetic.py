"""Rows in the form of the table of `measure`, for any number of connections. They need no captures."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure.digest import Digest, TopicTotals
from replay.measure.limits import Starved, VersionFigures
from replay.measure.table import CODECS, COLUMNS, EXCHANGES_RAW, LAST

_SECOND = 1_000_000_000
_START = 1_800_000_000 * _SECOND


def connection_rows(number: int) -> Iterator[dict[str, Any]]:
    """Return the rows of one connection: the rows of its fetches, then one row for the connection."""
    broker = f"10.1.0.{number % 30}:9092"
    client = f"10.2.{number >> 16 & 255}.{number >> 8 & 255}:{20_000 + (number & 255)}"
    connection, client_id = f"{client} > {broker} #0", f"client-{number % 100}"
    at = _START + number * 10_000_000
    plain = {
        "connection": connection,
        "client": client,
        "broker": broker,
        "client_id": client_id,
        "software": "x",
    }
    fetch = {"row": "exchange", "api_key": 1, "api_version": 11, "answer_due": True, "counted": True}
    for place, eligible in enumerate((True, False)):
        sizes = {"request_bytes": 1000 + number % 977, "response_bytes": 5000, "record_bytes": 4000}
        reason = None if eligible else "one partition"
        yield {**plain, **fetch, **sizes, "place": place, "eligible": eligible, "reason": reason}
    end = ConnectionEnd(
        connection=connection, client=client, broker=broker, client_id=client_id, client_bytes=9
    )
    digest = Digest()
    digest.timeline.add(at, 6000, 5000)
    digest.log.make(at, connection, 10)
    digest.log.close(at + 100 * _SECOND, connection)
    summary = digest.summary(end)
    summary.saved_by_other, summary.exchanges = 1, 2
    summary.topics = [TopicTotals(topic=f"topic-{number % 50}", request_bytes=1000, partitions_requested=10)]
    summary.limits = {11: VersionFigures(responses=2, max_bytes=50)}
    until = at + number % 997 * 1_000_000
    summary.starved = [Starved("topic-1", None, 3, at, 11, until, responses=1, behind=1)]
    yield {**plain, "row": "connection", "place": LAST, "answer_due": False, "summary": summary}


def complete(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in which each column has a value or None."""
    return {**dict.fromkeys(column.name for column in COLUMNS), **row}


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as a batch of the table."""
    columns = {name: [row.get(name) for row in rows] for name in EXCHANGES_RAW.names}
    arrays = [
        CODECS[name].write(column) if name in CODECS else pa.array(column, EXCHANGES_RAW.field(name).type)
        for name, column in columns.items()
    ]
    return pa.record_batch(arrays, schema=EXCHANGES_RAW)
