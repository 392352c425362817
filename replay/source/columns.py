"""The columns of the table of exchanges that SQL can query, each with its meaning. Sans-IO."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.primitives import ProtocolError
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.protocol.errors import bare_name, read_errors
from replay.protocol.fetches import read_fetch
from replay.protocol.names import name_of
from replay.protocol.naming import count_partitions

_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column, with its meaning."""

    name: str
    type: pa.DataType
    meaning: str


COLUMNS: Final = (
    SourceColumn(
        "time",
        pa.timestamp("us", tz="UTC"),
        "the request's first packet, or the response's last packet if the request was not captured",
    ),
    SourceColumn(
        "seconds",
        pa.float64(),
        "the time from the request to the response; null if one of them was not captured",
    ),
    SourceColumn("connection", pa.string(), "client host:port > broker host:port #n; n counts port reuse"),
    SourceColumn("client", pa.string(), "host:port"),
    SourceColumn("broker", pa.string(), "host:port"),
    SourceColumn("client_id", pa.string(), "the client id of the request"),
    SourceColumn("software", pa.string(), "name and version from ApiVersions v3 or later, else empty"),
    SourceColumn("api", pa.string(), "Fetch, Produce ...; null if the request was not captured"),
    SourceColumn("version", pa.int16(), "of the API; null if the request was not captured"),
    SourceColumn("correlation_id", pa.int32(), "null if the request was not captured"),
    SourceColumn(
        "request_bytes", pa.int64(), "the whole frame with its 4-byte length; null if it was not captured"
    ),
    SourceColumn(
        "response_bytes", pa.int64(), "the whole frame with its 4-byte length; null if it was not captured"
    ),
    SourceColumn(
        "partitions",
        pa.int32(),
        "the number of listed partitions; null if incomplete, or if this API is not read",
    ),
    SourceColumn(
        "error_code",
        pa.int16(),
        "the error of the response, or of its first entry with an error; 0: none; null if incomplete",
    ),
    SourceColumn("error", pa.string(), "Kafka's name for error_code; null if there is none"),
)
EXCHANGES: Final = pa.schema([pa.field(one.name, one.type) for one in COLUMNS])


def batches(events: Iterable[Exchange | ConnectionEnd]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of exchanges. The frames of all requests and responses must have been kept."""
    rows: list[tuple[Any, ...]] = []
    for event in events:
        if isinstance(event, Exchange):
            rows.append(_row(event))
        if len(rows) == _ROWS:
            yield _batch(rows)
            rows = []
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), EXCHANGES.types, strict=True)
    return pa.record_batch([pa.array(column, kind) for column, kind in columns], schema=EXCHANGES)


def _row(exchange: Exchange) -> tuple[Any, ...]:
    asked, answered = exchange.request_time, exchange.response_time
    known = exchange.api_key >= 0
    partitions, isolation_level = _named(exchange)
    error = _error(exchange, isolation_level)
    return (
        (asked or answered) // 1000,
        (answered - asked) / 1e9 if asked and answered else None,
        exchange.connection,
        exchange.client,
        exchange.broker,
        exchange.client_id,
        exchange.software,
        name_of(exchange.api_key) if known else None,
        exchange.api_version if known else None,
        exchange.correlation_id if known else None,
        exchange.request_bytes or None,
        exchange.response_bytes or None,
        partitions,
        error,
        bare_name(error) if error else None,
    )


def _named(exchange: Exchange) -> tuple[int | None, int | None]:
    """Return how many partitions a request lists, and the isolation level of a fetch. None if unknown."""
    frame, key, version = exchange.request, exchange.api_key, exchange.api_version
    if not frame or exchange.request_missing:
        return None, None
    try:
        body = request_header(frame, 4)[-1]
        if key != ApiKey.FETCH:
            return count_partitions(key, version, frame, body), None
        if version not in LAYOUTS:
            return None, None
        fetch = parse_fetch_request(frame, version, body)
    except ProtocolError:
        return None, None
    return fetch.partitions, fetch.isolation_level


def _error(exchange: Exchange, isolation_level: int | None) -> int | None:
    """Return the first error code in a response, 0 if it has no error, or None if it can't be read."""
    key, version, response = exchange.api_key, exchange.api_version, exchange.response
    if key < 0 or not response or exchange.response_missing:
        return None
    if key != ApiKey.FETCH:
        errors = read_errors(key, version, response)
        return None if errors is None else next(iter((*errors.whole, *errors.entries)), 0)
    fetch = None if isolation_level is None else read_fetch(version, isolation_level, response)
    return None if fetch is None else next(filter(None, (fetch.error_code, *fetch.partition_errors)), 0)
