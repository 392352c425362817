"""The table of exchanges, with a row for each exchange. Reports are made from this table. Sans-IO.

`COLUMNS` describes each column. `measure --parquet` writes this table, with the columns `STORED_COLUMNS`. The
row of a fetch also has its cost with the session engine. The last row of a connection has the kind
`connection` and the figures of the whole connection (`Summary`). A row of the kind `file` has the counts of a
capture file (`FileCounts`). The columns for these two kinds have the fields of `Summary` and `FileCounts`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from proxy.protocol.primitives import Buffer
from replay.capture.files.counts import FileCounts
from replay.capture.kafka.exchange import CUT, ConnectionEnd, Exchange, is_cut, without_records
from replay.measure import sums
from replay.measure.digest import Summary
from replay.measure.spread import Delivered
from replay.measure.typed import Codec, codec, struct_field
from replay.simulate.outcome import Outcome

FETCH: Final = 1
"""The API key of Fetch."""
KEYS: Final = "keys"
"""The kind of the row with a connection's records by key. It is never written to files."""
LAST: Final = (1 << 31) - 1
"""The value of `place` in a connection's last row."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table, with its meaning."""

    name: str
    type: pa.DataType
    meaning: str


_EXCHANGE_COLUMNS: Final = (
    TableColumn(
        "row",
        pa.string(),
        "exchange (request and response), request (no response seen), response (its request was not seen), "
        "closing (not captured: the close that the gateway sends when the client is gone), "
        "connection (what is known of the whole connection), file (what was found in a capture file), "
        "keys (with --cooperative, never written: a connection's records by the hashes of their keys)",
    ),
    TableColumn("connection", pa.string(), "client host:port > broker host:port #n; n counts port reuse"),
    TableColumn(
        "place", pa.int32(), "place in the connection, by completion; 2147483647 in its `connection` row"
    ),
    TableColumn("client", pa.string(), "host:port"),
    TableColumn("broker", pa.string(), "host:port"),
    TableColumn("number", pa.int32(), "place in the connection, by request"),
    TableColumn("client_id", pa.string(), "as the request header has it"),
    TableColumn("software", pa.string(), "name and version from ApiVersions v3 or later, else empty"),
    TableColumn("api_key", pa.int16(), "-1 where the request was not seen"),
    TableColumn("api_version", pa.int16(), "-1 where the request was not seen"),
    TableColumn("correlation_id", pa.int32(), "-1 in rows that are no exchange"),
    TableColumn("request_time", pa.int64(), "ns since 1970 of the request's first packet, 0 if unseen"),
    TableColumn("response_time", pa.int64(), "ns since 1970 of the response's last packet, 0 if unseen"),
    TableColumn("request_bytes", pa.int64(), "whole frame, its 4-byte length included; 0 if unseen"),
    TableColumn("response_bytes", pa.int64(), "whole frame, its 4-byte length included; 0 if unseen"),
    TableColumn("request_missing", pa.int64(), "of request_bytes, those that the capture lacks"),
    TableColumn("response_missing", pa.int64(), "of response_bytes, those that the capture lacks"),
    TableColumn("answer_due", pa.bool_(), "false if brokers send no response: Produce with acks=0"),
)
FETCH_COLUMNS: Final = (
    TableColumn("kind", pa.string(), "full (epoch 0), incremental, sessionless (0, -1), close (id, -1)"),
    TableColumn("session_id", pa.int32(), "in the request"),
    TableColumn("session_epoch", pa.int32(), "in the request"),
    TableColumn("answer_session_id", pa.int32(), "in the response; 0: no session"),
    TableColumn("error_code", pa.int16(), "of the whole response"),
    TableColumn("partitions_requested", pa.int64(), "entries listed; forgotten ones are not counted"),
    TableColumn("partitions_answered", pa.int64(), "entries in the response"),
    TableColumn("record_bytes", pa.int64(), "contents of the `records` fields"),
    TableColumn(
        "listing_bytes", pa.int64(), "request: partition entries, topic elements, forgotten ones included"
    ),
    TableColumn("empty_entry_bytes", pa.int64(), "response: entries with nothing new"),
    TableColumn("entry_bytes", pa.int64(), "response: the other entries, without their records"),
    TableColumn(
        "eligible",
        pa.bool_(),
        "it went through the session engine; then the next columns are its cost, else 0",
    ),
    TableColumn("reason", pa.string(), "why it is not eligible, or why it was forwarded unchanged"),
    TableColumn("session_kind", pa.string(), "what it was first sent as; null where it is not eligible"),
    TableColumn("session_request_bytes", pa.int64(), "through the engine, closes and repairs included"),
    TableColumn("session_response_bytes", pa.int64(), "through the engine, closes and repairs included"),
    TableColumn("close_bytes", pa.int64(), "of both: what closing a session cost"),
    TableColumn("repair_bytes", pa.int64(), "of both: what was fetched again after a session was lost"),
    TableColumn("full", pa.int64(), "requests with epoch 0 that the engine sent"),
    TableColumn("incremental", pa.int64(), "requests within a session that the engine sent"),
    TableColumn("sessionless", pa.int64(), "requests without a session that the engine sent"),
    TableColumn("closes", pa.int64(), "requests that close a session"),
    TableColumn("added", pa.int64(), "partitions that deltas add"),
    TableColumn("altered", pa.int64(), "partitions whose entries deltas change"),
    TableColumn("forgotten", pa.int64(), "partitions that deltas drop"),
    TableColumn("session_partitions_requested", pa.int64(), "entries in requests through the engine"),
    TableColumn("session_partitions_answered", pa.int64(), "entries in responses through the engine"),
    TableColumn("session_listing_bytes", pa.int64(), "part of session_request_bytes, as listing_bytes"),
    TableColumn(
        "session_empty_entry_bytes", pa.int64(), "part of session_response_bytes, as empty_entry_bytes"
    ),
    TableColumn("session_entry_bytes", pa.int64(), "part of session_response_bytes, as entry_bytes"),
    TableColumn("session_record_bytes", pa.int64(), "part of session_response_bytes, as record_bytes"),
    TableColumn("session_size", pa.int64(), "partitions in the session after the fetch"),
)
"""Attributes of `Outcome`; null in rows that are not fetches."""
_COUNTED: Final = TableColumn(
    "counted",
    pa.bool_(),
    "whether --client and --topic count this fetch; null in rows that are not fetches",
)
Detail: TypeAlias = Summary | FileCounts | Delivered
DETAILS: Final = {"connection": "summary", "file": "file_counts", KEYS: "delivered"}
"""The column with the detail of a row, by the kind of the row. The column is null in rows of other kinds."""
CODECS: Final[dict[str, Codec]] = {
    "summary": codec(Summary | None),
    "file_counts": codec(FileCounts | None),
    "delivered": codec(Delivered | None),
}
"""The codecs of the table columns that hold a detail, by the column's name."""
_DETAIL_COLUMNS: Final = (
    TableColumn(
        "summary", CODECS["summary"].type, "what is known of a whole connection, in `connection` rows"
    ),
    TableColumn(
        "file_counts", CODECS["file_counts"].type, "what was found in a capture file, in `file` rows"
    ),
    TableColumn("delivered", CODECS["delivered"].type, "a connection's records by key, in `keys` rows"),
)
UNSTORED: Final = frozenset({"delivered"})
"""The columns that are not written to files."""
RAW_COLUMNS: Final = (
    TableColumn("request", pa.binary(), "the frame, of Fetch, Metadata and ApiVersions"),
    TableColumn("response", pa.binary(), "the frame without contents of records, which were cut"),
    TableColumn("cuts", pa.list_(pa.int64()), "place in the frame and length of each stretch cut, in turn"),
)
"""The columns that are only written with --parquet. A table with these columns can be measured again."""
_COLUMNS: Final = (*_EXCHANGE_COLUMNS, *FETCH_COLUMNS, _COUNTED, *_DETAIL_COLUMNS)
COLUMNS: Final = (*_COLUMNS, *RAW_COLUMNS)
STORED_COLUMNS: Final = (
    TableColumn("run", pa.int32(), "which run of `measure --parquet` added the row, from 0"),
    TableColumn(
        "day",
        pa.date32(),
        "UTC, of the request, or of the response where the request was not seen; in `connection` and `file` "
        "rows of the last packet; null if there is none",
    ),
)
"""The columns that are only in files. Files are partitioned by day and broker. In the rows of capture files
and of connections that are not Kafka, `broker` is null. Otherwise each captured host would get a
partition."""


def schema(columns: Iterable[TableColumn]) -> pa.Schema:
    """Return columns as an Arrow schema, with their meanings as metadata."""
    return pa.schema([pa.field(one.name, one.type, metadata={"meaning": one.meaning}) for one in columns])


EXCHANGES: Final = schema(
    (*_COLUMNS, TableColumn("count", pa.int64(), "how many exchanges the row stands for"))
)
"""The schema of the table without the raw columns. Such a table is only made to be summed. So a row may stand
for several fetches that are alike: it has their sums in the columns that are added up, and the values of the
first fetch in all others."""
EXCHANGES_RAW: Final = schema(COLUMNS)
STORED: Final = schema(one for one in (*COLUMNS, *STORED_COLUMNS) if one.name not in UNSTORED)
"""The schema of a table in files."""


class RowWriter:
    """Collects rows of the table, and returns them in batches of bounded size.

    Args:
        raw: whether to write the frames as well.
    """

    _ROWS: Final = 4096
    _BYTES: Final = 4 << 20

    def __init__(self, *, raw: bool) -> None:
        self.schema = EXCHANGES_RAW if raw else EXCHANGES
        self._raw = raw
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether there are enough rows for a batch."""
        return len(self._rows) >= self._ROWS or self._bytes >= self._BYTES

    def drain(self) -> pa.RecordBatch:
        """Return the collected rows as a batch, and empty the writer."""
        rows, self._rows, self._bytes = self._rows, [], 0
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [
            CODECS[field.name].write(column) if field.name in CODECS else pa.array(column, field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.record_batch(arrays, schema=self.schema)

    def exchange(
        self,
        exchange: Exchange,
        place: int,
        outcome: Outcome | None = None,
        *,
        counted: bool | None = None,
        row: str = "",
        times: int = 1,
    ) -> None:
        """Add a row for an exchange. The row of a fetch also has the fetch's outcome.

        Args:
            exchange: the exchange.
            place: the position of the exchange in its connection. Positions follow the order of the calls.
            outcome: the outcome of the fetch. None if the exchange is not a fetch.
            counted: whether the fetch matches --client and --topic. None if the exchange is not a fetch.
            row: the kind of the row. "" to choose the kind by the exchange.
            times: how many fetches the row stands for. With raw columns only 1.
        """
        fetch = _fetch_values(outcome) if outcome else _NO_FETCH
        plain = _plain_values(exchange)
        values = row or _kind(exchange), exchange.connection, place, *plain, *fetch, counted, *_NO_DETAIL
        if times > 1:
            pairs = zip(values, _IS_SUMMED, strict=True)
            values = tuple(value * times if summed else value for value, summed in pairs)
        self._append(values, exchange, times)

    def detail(self, kind: str, detail: Detail, end: ConnectionEnd | None = None) -> None:
        """Add a row with a detail.

        If the detail belongs to a connection, also add the connection's addresses and client.

        Args:
            kind: the kind of the row.
            detail: the detail.
            end: the end of the connection. None if the detail belongs to no connection.
        """
        connection = end.connection if end else ""
        ends = (end.client, end.broker, LAST, end.client_id, end.software) if end else ("", "", LAST, "", "")
        details = (detail if name == DETAILS[kind] else None for name in CODECS)
        self._append((kind, connection, LAST, *ends, *_NO_EXCHANGE, *_NO_FETCH, None, *details), None, 1)

    def _append(self, row: tuple[Any, ...], exchange: Exchange | None, times: int) -> None:
        if self._raw:
            frames = _frames(exchange) if exchange else (None, None, None)
            self._bytes += sum(map(len, filter(None, frames[:2])))
            row = (*row, *frames)
        else:
            row = (*row, times)
        self._rows.append(row)


_PLAIN: Final = tuple(column.name for column in _EXCHANGE_COLUMNS[3:])
_plain_values: Final = attrgetter(*_PLAIN)
_fetch_values: Final = attrgetter(*(column.name for column in FETCH_COLUMNS))
_SUMMED: Final = sums.SUMMED | {"request_bytes", "response_bytes"}
_IS_SUMMED: Final = tuple(column.name in _SUMMED for column in _COLUMNS)
_NO_FETCH: Final = (None,) * len(FETCH_COLUMNS)
_NO_DETAIL: Final = (None,) * len(CODECS)
_NO_EXCHANGE: Final = (-1, -1, -1, 0, 0, 0, 0, 0, 0, False)


def _kind(exchange: Exchange) -> str:
    if not exchange.request_bytes:
        return "response"
    return "exchange" if exchange.response_bytes else "request"


def _frames(exchange: Exchange) -> tuple[bytes, bytes, list[int]]:
    """Return the frames of an exchange, without the contents of records in the response.

    Returns:
        The request, the response without these contents, and for each part that was cut its offset and its
            size.
    """
    kept, cuts, at = [], [], 0
    response = exchange.response
    if exchange.api_key == FETCH:
        response = without_records(response, exchange.api_version)
    for piece in response:
        if is_cut(piece):
            cuts += [at, len(piece)]
        else:
            kept.append(piece)
        at += len(piece)
    return exchange.request, b"".join(kept), cuts


def exchanges(batch: pa.RecordBatch) -> Iterator[Exchange | ConnectionEnd]:
    """Yield the exchanges and the ends of connections in rows of a table with the raw columns."""
    names = ("row", "connection", *_PLAIN, *(column.name for column in RAW_COLUMNS))
    columns = (batch.column(name).to_pylist() for name in names)
    for end, *values in zip(connection_ends(batch), *columns, strict=True):
        row = dict(zip(names, values, strict=True))
        if end is not None:
            yield end
        elif row["row"] in {"exchange", "request", "response"}:
            response: list[Buffer] = [*_restored(row["response"] or b"", row["cuts"] or [])]
            plain = {name: row[name] for name in _PLAIN}
            yield Exchange(
                connection=row["connection"], **plain, request=row["request"] or b"", response=response
            )


def _restored(kept: bytes, cuts: Sequence[int]) -> Iterator[memoryview]:
    """Yield the pieces of a frame. For contents that were cut, yield slices of `CUT`."""
    view, used, at = memoryview(kept), 0, 0
    for place, length in zip(cuts[::2], cuts[1::2], strict=True):
        if place > at:
            yield view[used : used + place - at]
            used += place - at
        for start in range(0, length, len(CUT)):
            yield CUT[: min(len(CUT), length - start)]
        at = place + length
    if used < len(view):
        yield view[used:]


def connection_ends(batch: pa.RecordBatch) -> list[ConnectionEnd | None]:
    """Return the end of each row's connection. Other parts of the summary are not read."""
    return _END.read(struct_field(batch.column("summary"), "end"))


_END: Final = codec(ConnectionEnd | None)
