"""Removes the contents of records from segments before a shuffle, and puts zeros there after it. Sans-IO.

Most bytes are contents of records, and no figure depends on them. Bytes are cut only if they are certainly
contents of records: of a whole response that follows its whole fetch request, and that was parsed to the end.
All other bytes are kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import ProtocolError, Span
from replay.capture.kafka.exchange import cut
from replay.capture.kafka.stretches import Stretches
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
"""The smallest response that is examined, in bytes."""
_LEAST: Final = 512
"""The shortest `records` field that is cut, in bytes. Shorter fields stay complete."""
_CUT: Final = 8
"""The size in bytes of one cut in the column `cuts`."""

_Numbers: TypeAlias = npt.NDArray[np.int64]


def strip_records(batch: pa.RecordBatch, *, keep: bool = False) -> pa.RecordBatch:
    """Remove the contents of records from the payload of a batch of SEGMENTS or REFERENCES.

    The schema of the result is `stripped`. With `keep`, nothing is removed: only the schema changes.
    """
    data, edges = bytes_of(batch.column("payload"))
    schema = stripped(batch.schema)
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)]
    cuts = pa.array([b""] * batch.num_rows, pa.binary())
    spans = [*_spans(batch)] if edges[-1] - edges[0] >= _WORTH and not keep else []
    if spans:
        columns[schema.get_field_index("payload")], cuts = _without(data, edges, spans)
    return pa.RecordBatch.from_arrays([*columns, cuts], schema=schema)


def restore_records(batch: pa.RecordBatch, schema: pa.Schema = SEGMENTS) -> pa.RecordBatch:
    """Return a stripped batch in the schema that it had before. Cut contents are replaced by zeros."""
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    lengths = pc.binary_length(batch.column("cuts"))
    if pc.sum(lengths).as_py():
        zeroed = _with_zeros(batch.column("payload"), batch.column("cuts").to_pylist())
        columns[schema.get_field_index("payload")] = zeroed
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def restored_edges(batch: pa.RecordBatch) -> _Numbers:
    """Return the bytes of payload before each row of a stripped batch, and in all, if zeros are put back."""
    data, places = bytes_of(batch.column("cuts"))
    lengths = np.frombuffer(data[: int(places[-1])], np.int32)[1::2]
    zeros = np.append(0, np.cumsum(lengths, dtype=np.int64))
    edges: _Numbers = bytes_of(batch.column("payload"))[1] + zeros[places // _CUT]
    return edges


def _spans(batch: pa.RecordBatch) -> Iterator[Span]:
    """Yield where the payloads of a batch have contents of records to cut."""
    found = Stretches(batch)
    turns = found.turns
    is_fetch = found.pair & (turns.kind >> 16 == ApiKey.FETCH)
    for turn in np.flatnonzero(is_fetch & (np.append(np.diff(turns.edges)[1:], 0) >= _WORTH)).tolist():
        begin, end = turns.edges[turn + 1 : turn + 3].tolist()
        for start, stop in _records(bytes(turns.payload[begin:end]), int(turns.kind[turn]) & 0xFFFF):
            if stop - start >= _LEAST:
                yield begin + start, begin + stop


def _records(response: bytes, version: int) -> Iterable[Span]:
    """Return the spans of records in a response, or nothing if it can't be parsed to its end."""
    if version not in LAYOUTS:
        return ()
    walk = FetchResponseWalk(LAYOUTS[version], 0, keep=False, spans=True)
    try:
        walk.feed(response)
    except ProtocolError:
        return ()
    return walk.record_spans or () if walk.done else ()


def _without(data: memoryview, edges: _Numbers, spans: Iterable[Span]) -> tuple[pa.Array, pa.Array]:
    """Return the payloads without the spans to cut, and for each payload a description of its cuts."""
    kept: list[memoryview] = []
    sizes = np.diff(edges)
    cuts: defaultdict[int, list[int]] = defaultdict(list)
    at = int(edges[0])
    for start, stop in spans:
        kept.append(data[at:start])
        at = start
        row = int(np.searchsorted(edges, start, "right")) - 1
        while at < stop:
            end = min(stop, int(edges[row + 1]))
            cuts[row] += at - int(edges[row]), end - at
            sizes[row] -= end - at
            at, row = end, row + 1
    kept.append(data[at : int(edges[-1])])
    packed = [np.array(cuts.get(row, ()), np.int32).tobytes() for row in range(len(sizes))]
    return _column(b"".join(kept), sizes), pa.array(packed, pa.binary())


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
            pieces += [data[at:until], *cut(length)]
            at, gone = until, gone + length
        sizes[row] += gone
    pieces.append(data[at : int(edges[-1])])
    return _column(b"".join(pieces), sizes)


def _column(data: bytes, sizes: _Numbers) -> pa.Array:
    edges = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=edges[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(data)])
