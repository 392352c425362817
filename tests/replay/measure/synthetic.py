"""Rows of as many connections as wanted, as the table has them, without captures."""

import json
from collections.abc import Iterator
from typing import Any

from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure.digest import Digest
from replay.measure.table import COLUMNS, LAST, end_to_json

_SECOND = 1_000_000_000
_START = 1_800_000_000 * _SECOND


def connection_rows(number: int) -> Iterator[dict[str, Any]]:
    """The rows of one connection: its fetches, then the row of the connection."""
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
    digest = Digest(connection)
    digest.timeline.add(at, 6000, 5000)
    digest.log.make(at, connection, 10)
    digest.log.close(at + 100 * _SECOND, connection)
    topic = {"topic": f"topic-{number % 50}", "request_bytes": 1000, "partitions_requested": 10}
    starved = {
        "since": at,
        "version": 11,
        "until": at + number % 997 * 1_000_000,
        "responses": 1,
        "behind": 1,
    }
    detail = {
        "end": end_to_json(end),
        **digest.detail(),
        "differing": 0,
        "saved_by_other": 1,
        "exchanges": 2,
        "sample": [],
        "topics": [topic],
    }
    detail["limits"] = {
        "by_version": [{"fetch_version": 11, "responses": 2, "max_bytes": 50}],
        "starved": [{"topic": "topic-1", "partition": 3, **starved}],
    }
    yield {**plain, "row": "connection", "place": LAST, "answer_due": False, "detail": json.dumps(detail)}


def complete(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a value, or none, in each column."""
    return {**dict.fromkeys(column.name for column in COLUMNS), **row}
