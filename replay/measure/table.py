"""The table of exchanges, with a row for each exchange. Sans-IO.

Reports are made from it. `COLUMNS` describes each column. The row of a fetch also has its cost with sessions.
After the exchanges of a connection come a row of the kind `connection` with its figures (`Summary`), and one
of the kind `keys` with its records by key (`Delivered`). A row of the kind `file` has the counts of a capture
file (`FileCounts`).

`measure --parquet` writes the table for people, with the columns `STORED_COLUMNS`: some have other names,
some are added, and what is not known is null.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from proxy.protocol.primitives import Buffer
from replay.capture.files.counts import FileCounts
from replay.capture.kafka.exchange import READ, ConnectionEnd, Exchange, cut, is_cut, without_records
from replay.measure.digest import Summary
from replay.measure.spread import Delivered
from replay.measure.typed import Codec, codec, struct_field
from replay.protocol.errors import SCHEMAS, bare_name, read_errors
from replay.simulate.outcome import Outcome

FETCH: Final = 1
KEYS: Final = "keys"
"""The kind of the row with a connection's records by key. It is never written to files."""
LAST: Final = (1 << 31) - 1
"""The value of `place` in rows with a detail (`DETAILS`), which come after the exchanges of a connection."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table, with its meaning."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nothing: int | str | None = None
    """What the column has in place of null while a table is made. Files have null."""
    stored_as: str = ""
    """The name of the column in files. "" if this is `name`."""

    @property
    def stored_name(self) -> str:
        return self.stored_as or self.name


_EXCHANGE_COLUMNS: Final = (
    TableColumn(
        "row",
        pa.string(),
        "what the row is: exchange, request (unanswered), response (alone), closing, connection or file",
    ),
    TableColumn(
        "connection", pa.string(), "client host:port > broker host:port #n; n counts port reuse", nothing=""
    ),
    TableColumn("place", pa.int32(), "place in the connection, by completion", nothing=LAST),
    TableColumn("client", pa.string(), "host:port", nothing=""),
    TableColumn("broker", pa.string(), "host:port; null for connections that are not Kafka", nothing=""),
    TableColumn("number", pa.int32(), "place in the connection, by request", nothing=-1),
    TableColumn(
        "client_id", pa.string(), "the client id of the last request; null if it has none", nothing=""
    ),
    TableColumn("software", pa.string(), "name and version from ApiVersions v3 or later", nothing=""),
    TableColumn("api_key", pa.int16(), "null if the request was not captured", nothing=-1),
    TableColumn("api_version", pa.int16(), "null if the request was not captured", nothing=-1),
    TableColumn("correlation_id", pa.int32(), "in the request and in its response", nothing=-1),
    TableColumn(
        "request_time",
        pa.int64(),
        "the request's first packet; null if it was not captured",
        "ns since 1970",
        nothing=0,
        stored_as="request_time_ns",
    ),
    TableColumn(
        "response_time",
        pa.int64(),
        "the response's last packet; null if it was not captured",
        "ns since 1970",
        nothing=0,
        stored_as="response_time_ns",
    ),
    TableColumn(
        "request_bytes",
        pa.int64(),
        "the whole frame with its 4-byte length; 0 if it was not captured",
        "bytes",
    ),
    TableColumn(
        "response_bytes",
        pa.int64(),
        "the whole frame with its 4-byte length; 0 if it was not captured",
        "bytes",
    ),
    TableColumn("request_missing", pa.int64(), "the part of request_bytes that was not captured", "bytes"),
    TableColumn("response_missing", pa.int64(), "the part of response_bytes that was not captured", "bytes"),
    TableColumn("answer_due", pa.bool_(), "false if brokers send no response: Produce with acks=0"),
)
FETCH_COLUMNS: Final = (
    TableColumn("kind", pa.string(), "full (epoch 0), incremental, sessionless (0, -1), close (id, -1)"),
    TableColumn("session_id", pa.int32(), "in the request; 0: none"),
    TableColumn("session_epoch", pa.int32(), "in the request"),
    TableColumn("answer_session_id", pa.int32(), "in the response; 0: no session"),
    TableColumn("error_code", pa.int16(), "of the whole response; 0: none"),
    TableColumn(
        "partitions_requested", pa.int64(), "listed entries, without forgotten partitions", "partitions"
    ),
    TableColumn("partitions_answered", pa.int64(), "entries in the response", "partitions"),
    TableColumn("record_bytes", pa.int64(), "contents of the `records` fields", "bytes"),
    TableColumn(
        "listing_bytes",
        pa.int64(),
        "listed topics and partitions in the request, without forgotten ones",
        "bytes",
    ),
    TableColumn("empty_entry_bytes", pa.int64(), "entries of the response with nothing new", "bytes"),
    TableColumn(
        "entry_bytes", pa.int64(), "the other entries of the response, without their records", "bytes"
    ),
    TableColumn(
        "eligible",
        pa.bool_(),
        "whether a session could replace it; if false, the columns below are 0, null, or those of a close",
    ),
    TableColumn(
        "reason", pa.string(), "why it is not eligible, or why it was forwarded unchanged", nothing=""
    ),
    TableColumn("session_kind", pa.string(), "how fetchgate would first send it; null if it is not eligible"),
    TableColumn("session_request_bytes", pa.int64(), "with sessions, including closes and repairs", "bytes"),
    TableColumn("session_response_bytes", pa.int64(), "with sessions, including closes and repairs", "bytes"),
    TableColumn(
        "close_bytes", pa.int64(), "the part of the two columns above for closing a session", "bytes"
    ),
    TableColumn(
        "repair_bytes",
        pa.int64(),
        "the part of the two columns above for fetches that repeat after a lost session",
        "bytes",
    ),
    TableColumn("full", pa.int64(), "sent by fetchgate with epoch 0", "requests", stored_as="sent_full"),
    TableColumn(
        "incremental",
        pa.int64(),
        "sent by fetchgate within a session",
        "requests",
        stored_as="sent_incremental",
    ),
    TableColumn(
        "sessionless",
        pa.int64(),
        "sent by fetchgate without a session",
        "requests",
        stored_as="sent_sessionless",
    ),
    TableColumn(
        "closes", pa.int64(), "sent by fetchgate to close a session", "requests", stored_as="sent_closes"
    ),
    TableColumn("added", pa.int64(), "added to the session by incremental fetches", "partitions"),
    TableColumn("altered", pa.int64(), "changed in the session by incremental fetches", "partitions"),
    TableColumn("forgotten", pa.int64(), "removed from the session by incremental fetches", "partitions"),
    TableColumn(
        "session_partitions_requested", pa.int64(), "entries in requests with sessions", "partitions"
    ),
    TableColumn(
        "session_partitions_answered", pa.int64(), "entries in responses with sessions", "partitions"
    ),
    TableColumn(
        "session_listing_bytes",
        pa.int64(),
        "the part of session_request_bytes that lists partitions (see listing_bytes)",
        "bytes",
    ),
    TableColumn(
        "session_empty_entry_bytes",
        pa.int64(),
        "the part of session_response_bytes that is empty entries (see empty_entry_bytes)",
        "bytes",
    ),
    TableColumn(
        "session_entry_bytes",
        pa.int64(),
        "the part of session_response_bytes that is other entries (see entry_bytes)",
        "bytes",
    ),
    TableColumn(
        "session_record_bytes",
        pa.int64(),
        "the part of session_response_bytes that is records (see record_bytes)",
        "bytes",
    ),
    TableColumn("session_size", pa.int64(), "in the session after the fetch", "partitions"),
)
"""Attributes of `Outcome`; null in rows that are not fetches."""
_COUNTED: Final = TableColumn(
    "counted", pa.bool_(), "whether --client and --topic count this fetch; null in rows that are not fetches"
)
Detail: TypeAlias = Summary | FileCounts | Delivered
DETAILS: Final = {"connection": "summary", "file": "file_counts", KEYS: "delivered"}
"""The column with the detail of a row, by the kind of the row. The column is null in rows of other kinds."""
CODECS: Final[dict[str, Codec]] = {
    "summary": codec(Summary | None),
    "file_counts": codec(FileCounts | None),
    "delivered": codec(Delivered | None),
}
_DETAIL_COLUMNS: Final = (
    TableColumn("summary", CODECS["summary"].type, "figures of a whole connection, in `connection` rows"),
    TableColumn("file_counts", CODECS["file_counts"].type, "figures of a capture file, in `file` rows"),
    TableColumn("delivered", CODECS["delivered"].type, "a connection's records by key, in `keys` rows"),
)
UNSTORED: Final = frozenset({"delivered"})
_ERRORS: Final = TableColumn(
    "errors",
    pa.list_(pa.struct([("code", pa.int16()), ("error", pa.string()), ("count", pa.int32())])),
    "errors of the response and its entries: code, name, count; empty: no error; null: not known",
)
RAW_COLUMNS: Final = (
    TableColumn("request", pa.binary(), "the frame, for Fetch, Metadata, ApiVersions and DescribeCluster"),
    TableColumn("response", pa.binary(), "the frame without the contents of records"),
    TableColumn(
        "cuts", pa.list_(pa.int64()), "pairs: the place in the frame of each cut, and its length", "bytes"
    ),
    _ERRORS,
)
"""Only made with --parquet or --topic; with --topic alone, `errors` is null. A table with these columns can
be measured again."""
_COLUMNS: Final = (*_EXCHANGE_COLUMNS, *FETCH_COLUMNS, _COUNTED, *_DETAIL_COLUMNS)
COLUMNS: Final = (*_COLUMNS, *RAW_COLUMNS)
ADDED_COLUMNS: Final = {
    one.name: one
    for one in (
        TableColumn(
            "time",
            pa.timestamp("us", tz="UTC"),
            "the first packet; in `response` rows the last one",
            "UTC",
        ),
        TableColumn(
            "seconds",
            pa.float64(),
            "the time from the first to the last packet; null in `request`, `response` and `closing` rows",
            "s",
        ),
        TableColumn("api", pa.string(), "the name of api_key: Fetch, Produce ..."),
        TableColumn(
            "saved_bytes",
            pa.int64(),
            "the saving of a session: request and response, minus the same with sessions; below 0: a loss",
            "bytes",
        ),
        TableColumn(
            "run", pa.int32(), "the number of the run of `measure --parquet` that added the row, from 0"
        ),
        TableColumn(
            "day",
            pa.date32(),
            "the day of `time`; in `connection` and `file` rows the day of the last packet",
            "UTC",
        ),
    )
}
"""Only in files, which are partitioned by day and broker. In the rows of capture files and of connections
that are not Kafka, `broker` is null. Otherwise each captured host would get a partition."""
STORED_COLUMNS: Final = (
    _EXCHANGE_COLUMNS[0],
    *(ADDED_COLUMNS[name] for name in ("time", "seconds", "api")),
    *_EXCHANGE_COLUMNS[1:],
    _ERRORS,
    *FETCH_COLUMNS,
    ADDED_COLUMNS["saved_bytes"],
    _COUNTED,
    *(one for one in _DETAIL_COLUMNS if one.name not in UNSTORED),
    *RAW_COLUMNS[:-1],
    *(ADDED_COLUMNS[name] for name in ("run", "day")),
)
"""The columns of a table in files, under their `stored_name`."""


def schema(columns: Iterable[TableColumn]) -> pa.Schema:
    """Return columns as an Arrow schema, with their meanings as metadata."""
    return pa.schema([pa.field(one.name, one.type, metadata={"meaning": one.meaning}) for one in columns])


EXCHANGES_RAW: Final = schema(COLUMNS)
STORED: Final = pa.schema([pa.field(one.stored_name, one.type) for one in STORED_COLUMNS])


class RowWriter:
    """Collects rows of the table, and returns them in batches. `errors` is as in `RowFilter`."""

    _ROWS: Final = 4096
    _BYTES: Final = 4 << 20

    def __init__(self, *, errors: bool = False) -> None:
        self._errors = errors
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._ROWS or self._bytes >= self._BYTES

    def drain(self) -> pa.RecordBatch:
        rows, self._rows, self._bytes = self._rows, [], 0
        columns = list(zip(*rows, strict=True)) or [()] * len(EXCHANGES_RAW)
        arrays = [
            CODECS[field.name].write(column) if field.name in CODECS else pa.array(column, field.type)
            for column, field in zip(columns, EXCHANGES_RAW, strict=True)
        ]
        return pa.record_batch(arrays, schema=EXCHANGES_RAW)

    def exchange(
        self,
        exchange: Exchange,
        outcome: Outcome | None = None,
        *,
        counted: bool | None = None,
        row: str = "",
    ) -> None:
        """Add a row for an exchange. The row of a fetch also has the fetch's outcome.

        The row of a fetch may be added after rows of later places. `counted` is whether the fetch matches
        --client and --topic. `row` is the kind of the row, by default that of the exchange.
        """
        fetch = _fetch_values(outcome) if outcome else _NO_FETCH
        plain = _plain_values(exchange)
        values = row or kind_of(exchange), *plain, *fetch, counted, *_NO_DETAIL
        self._append(values, exchange, outcome)

    def detail(self, kind: str, detail: Detail, end: ConnectionEnd | None = None) -> None:
        """Add a row with a detail. If it is of a connection, `end` has the addresses and the client."""
        connection = end.connection if end else ""
        ends = (end.client, end.broker, LAST, end.client_id, end.software) if end else ("", "", LAST, "", "")
        details = (detail if name == DETAILS[kind] else None for name in CODECS)
        self._append((kind, connection, LAST, *ends, *_NO_EXCHANGE, *_NO_FETCH, None, *details), None)

    def _append(
        self, row: tuple[Any, ...], exchange: Exchange | None, outcome: Outcome | None = None
    ) -> None:
        frames = _frames(exchange) if exchange else (None, None, None)
        self._bytes += sum(map(len, filter(None, frames[:2])))
        errors = _errors_of(exchange, outcome) if exchange and self._errors else None
        self._rows.append((*row, *frames, errors))


_PLAIN: Final = tuple(column.name for column in _EXCHANGE_COLUMNS[1:])
_plain_values: Final = attrgetter(*_PLAIN)
_fetch_values: Final = attrgetter(*(column.name for column in FETCH_COLUMNS))
_NO_FETCH: Final = (None,) * len(FETCH_COLUMNS)
_NO_DETAIL: Final = (None,) * len(CODECS)
_NO_EXCHANGE: Final = (None,) * 10


def kind_of(exchange: Exchange) -> str:
    """Return the kind of an exchange's row."""
    if not exchange.request_bytes:
        return "response"
    return "exchange" if exchange.response_bytes else "request"


def _errors_of(exchange: Exchange, outcome: Outcome | None) -> list[tuple[int, str, int]] | None:
    """Return the error codes in a response, with their names and counts. None if they are not known."""
    if exchange.errors is not None:
        codes = exchange.errors
    elif outcome is not None and outcome.run:
        codes = Counter()
    elif outcome is not None:
        if outcome.response is None:
            return None
        entries = (entry.error_code for entry in outcome.response.other_entries)
        codes = Counter(filter(None, (outcome.error_code, *entries)))
    elif exchange.response and not exchange.response_missing and exchange.api_key in SCHEMAS:
        found = read_errors(exchange.api_key, exchange.api_version, exchange.response)
        if found is None:
            return None
        codes = Counter((*found.whole, *found.entries))
    else:
        return None
    return [(code, bare_name(code), codes[code]) for code in sorted(codes)]


def _frames(exchange: Exchange) -> tuple[bytes, bytes, list[int]]:
    """Return request, response without contents of records, and the offset and size of each cut."""
    kept, cuts, at = [], [], 0
    response = exchange.response if exchange.api_key in READ else []  # others may have secrets
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
    names = ("row", *_PLAIN, *(column.name for column in RAW_COLUMNS))
    columns = (batch.column(name).to_pylist() for name in names)
    for end, *values in zip(connection_ends(batch), *columns, strict=True):
        row = dict(zip(names, values, strict=True))
        if end is not None:
            yield end
        elif row["row"] in {"exchange", "request", "response"}:
            response: list[Buffer] = [*_restored(row["response"] or b"", row["cuts"] or [])]
            plain = {name: row[name] for name in _PLAIN}
            errors = row["errors"]
            yield Exchange(
                **plain,
                request=row["request"] or b"",
                response=response,
                errors=None if errors is None else {one["code"]: one["count"] for one in errors},
            )


def _restored(kept: bytes, cuts: Sequence[int]) -> Iterator[memoryview]:
    """Yield the pieces of a frame. For contents that were cut, yield slices of `CUT`."""
    view, used, at = memoryview(kept), 0, 0
    for place, length in zip(cuts[::2], cuts[1::2], strict=True):
        if place > at:
            yield view[used : used + place - at]
            used += place - at
        yield from cut(length)
        at = place + length
    if used < len(view):
        yield view[used:]


def connection_ends(batch: pa.RecordBatch) -> list[ConnectionEnd | None]:
    """Return for each row the `ConnectionEnd` in its summary. None if it is not a `connection` row."""
    return _END.read(struct_field(batch.column("summary"), "end"))


_END: Final = codec(ConnectionEnd | None)
