"""Removes the contents of records from segments before a shuffle, and puts zeros there after it. Sans-IO.

Most bytes are contents of records, and no figure depends on them. Bytes are cut only if they are certainly
contents of records: the rows have exactly one fetch request, and then exactly its response, which was parsed
to the end. All other bytes are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from proxy.protocol.api import (
    API_KEY,
    API_VERSION,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    ApiKey,
    request_header,
)
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import ProtocolError, Span
from replay.capture.packets.segments import SEGMENTS, bytes_of

_SIGNED: Final = {pa.uint8(): pa.int16(), pa.uint32(): pa.int64()}
"""For each unsigned type, the signed type that is used instead, because Spark has no unsigned numbers."""


def stripped(schema: pa.Schema) -> pa.Schema:
    """Return the schema of rows that are stripped: with signed types, and with the column `cuts`.

    That column has for each cut its offset in the payload and its length, as int32. Empty if nothing is cut.
    """
    columns = [pa.field(one.name, _SIGNED.get(one.type, one.type), nullable=False) for one in schema]
    return pa.schema([*columns, pa.field("cuts", pa.binary(), nullable=False)])


STRIPPED: Final = stripped(SEGMENTS)
_WORTH: Final = 4096
"""The smallest first run of a response that is examined, in bytes."""
_LEAST: Final = 512
"""The shortest `records` field that is cut, in bytes. Shorter fields stay complete."""

_Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class _BatchPayloads:
    """The payloads of a batch of rows, and the parts to cut from them."""

    data: memoryview
    """All payloads, concatenated."""
    edges: _Numbers
    """Row n has the bytes from `edges[n]` to `edges[n + 1]` of `data`."""
    spans: dict[int, list[Span]] = field(default_factory=dict)
    """The spans to cut, by row. A span is a begin and an end in `data`."""

    def head(self, row: int) -> bytes:
        start = int(self.edges[row])
        return bytes(self.data[start : start + REQUEST_START_BYTES])


def strip_records(batch: pa.RecordBatch, *, keep: bool = False) -> pa.RecordBatch:
    """Remove the contents of records from the payload of a batch of SEGMENTS or REFERENCES.

    The schema of the result is `stripped`. With `keep`, nothing is removed: only the schema changes.
    """
    payload = batch.column("payload")
    found = _BatchPayloads(*bytes_of(payload))
    if not keep:
        sides = _sides(batch)
        for row in _requests(found, sides):
            _look_into(found, row, sides)
    schema = stripped(batch.schema)
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)]
    cuts = pa.array([b""] * batch.num_rows, pa.binary())
    if found.spans:
        columns[schema.get_field_index("payload")], cuts = _without(found, batch.num_rows)
    return pa.RecordBatch.from_arrays([*columns, cuts], schema=schema)


def restore_records(batch: pa.RecordBatch, schema: pa.Schema = SEGMENTS) -> pa.RecordBatch:
    """Return a stripped batch in the schema that it had before. Cut contents are replaced by zeros."""
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    lengths = pc.binary_length(batch.column("cuts"))
    if pc.sum(lengths).as_py():
        zeroed = _with_zeros(batch.column("payload"), batch.column("cuts").to_pylist())
        columns[schema.get_field_index("payload")] = zeroed
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sides(batch: pa.RecordBatch) -> _Numbers:
    """Return a number for the sender of each row. Those of a connection differ only in the last bit."""
    connections = batch.column("connection").dictionary_encode().indices.to_numpy()
    low = batch.column("from_low").to_numpy(zero_copy_only=False)
    sides: _Numbers = 2 * connections.astype(np.int64) + low
    return sides


def _requests(found: _BatchPayloads, sides: _Numbers) -> Sequence[int]:
    """Return the rows that are exactly one fetch request, before a large row from the other side."""
    sizes = np.diff(found.edges)
    rows = np.flatnonzero(
        (sizes[:-1] > REQUEST_START_BYTES) & (sizes[1:] >= _WORTH) & (sides[1:] ^ sides[:-1] == 1)
    )
    if not len(rows):
        return []
    data = np.frombuffer(found.data, np.uint8)
    heads = data[found.edges[rows][:, None] + np.arange(API_KEY.stop)]
    lengths = heads[:, :LENGTH_BYTES].copy().view(">u4")[:, 0].astype(np.int64)
    fetch = heads[:, API_KEY].copy().view(">u2")[:, 0] == ApiKey.FETCH
    whole: list[int] = rows[fetch & (lengths + LENGTH_BYTES == sizes[rows])].tolist()
    return whole


def _look_into(found: _BatchPayloads, row: int, sides: _Numbers) -> None:
    """Find the record bytes to cut in the response to one request. `row` is the row of the request."""
    start, end = int(found.edges[row]), int(found.edges[row + 1])
    request_head = found.head(row)
    version = int.from_bytes(request_head[API_VERSION])
    response_head = found.head(row + 1)
    last = _last_row(found, row + 1, LENGTH_BYTES + int.from_bytes(response_head[:LENGTH_BYTES]))
    if not last or (sides[row + 1 : last + 1] != sides[row + 1]).any():
        return
    if (
        request_head[REQUEST_CORRELATION_ID] != response_head[RESPONSE_CORRELATION_ID]
        or version not in LAYOUTS
    ):
        return
    try:
        isolation = _isolation(bytes(found.data[start:end]), version)
        walk = FetchResponseWalk(LAYOUTS[version], isolation, keep=False, spans=True)
        first = int(found.edges[row + 1])
        walk.feed(bytes(found.data[first : int(found.edges[last + 1])]))
    except (ProtocolError, IndexError):
        return
    if walk.done:
        large = [span for span in walk.record_spans or [] if span[1] - span[0] >= _LEAST]
        _spread(found, row + 1, [(first + begin, first + stop) for begin, stop in large])


def _last_row(found: _BatchPayloads, row: int, size: int) -> int:
    """Return the row that ends `size` bytes after the start of `row`; 0 if there is no such row."""
    end = int(found.edges[row]) + size
    last = int(np.searchsorted(found.edges, end)) - 1
    return last if last + 1 < len(found.edges) and found.edges[last + 1] == end else 0


def _isolation(request: bytes, version: int) -> int:
    body = request_header(request, LENGTH_BYTES)[4]
    return request[body + LAYOUTS[version].request_isolation]


def _spread(found: _BatchPayloads, row: int, spans: Sequence[Span]) -> None:
    """Assign spans of the whole response to the rows that contain them."""
    for start, stop in spans:
        at = start
        while at < stop:
            while found.edges[row + 1] <= at:
                row += 1
            end = min(stop, int(found.edges[row + 1]))
            found.spans.setdefault(row, []).append((at, end))
            at = end


def _without(found: _BatchPayloads, rows: int) -> tuple[pa.Array, pa.Array]:
    """Return the payloads without the spans to cut, and for each payload a description of its cuts."""
    kept: list[memoryview] = []
    sizes = np.diff(found.edges)
    cuts = [b""] * rows
    at = int(found.edges[0])
    for row in sorted(found.spans):
        base = int(found.edges[row])
        pairs: list[int] = []
        for start, stop in found.spans[row]:
            kept.append(found.data[at:start])
            pairs += (start - base, stop - start)
            at = stop
        cuts[row] = np.array(pairs, np.int32).tobytes()
        sizes[row] -= sum(pairs[1::2])
    kept.append(found.data[at : int(found.edges[-1])])
    return _column(b"".join(kept), sizes), pa.array(cuts, pa.binary())


def _with_zeros(payload: pa.Array, cuts: Sequence[bytes]) -> pa.Array:
    data, edges = bytes_of(payload)
    pieces: list[memoryview] = []
    sizes = np.diff(edges)
    at = int(edges[0])
    for row, packed in enumerate(cuts):
        if not packed:
            continue
        place = int(edges[row])
        pairs = np.frombuffer(packed, np.int32).tolist()
        gone = 0
        for offset, length in zip(pairs[::2], pairs[1::2], strict=True):
            until = place + offset - gone
            pieces += (data[at:until], _zeros(length))
            at, gone = until, gone + length
        sizes[row] += gone
    pieces.append(data[at : int(edges[-1])])
    return _column(b"".join(pieces), sizes)


def _zeros(length: int) -> memoryview:
    return memoryview(_ZEROS)[:length] if length <= len(_ZEROS) else memoryview(bytes(length))


_ZEROS: Final = bytes(1 << 20)


def _column(data: bytes, sizes: _Numbers) -> pa.Array:
    edges = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=edges[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(data)])
