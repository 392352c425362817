"""TCP segments of captures as Arrow record batches: runs of payload, in capture order.

A *run* is the payload of consecutive TCP segments, in one direction of one connection. It has no gap, and no
payload of the other direction was captured in between. All segments have the same ACK number, so their sender
received nothing new meanwhile. A SYN, FIN or RST without payload has a row of its own. Retransmissions,
overlaps and reordering stay as they are, and end a run.

A run also ends with a file, share or window, after `MAX_RUN` bytes, and at a pause of `MAX_PAUSE`. Splitting
a run into two rows does not change its meaning.

If the file can be read again at offsets, rows first have references in place of payload (`read_references`).
After the rows are sorted by connection, `with_payload` gets it.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.files.counts import FileCounts
from replay.capture.files.reading import windows
from replay.capture.files.sources import FilePiece, TaskInput
from replay.capture.files.spans import SpanReader, Spans, joined
from replay.capture.files.window import Column, FileWindow
from replay.capture.packets.tcp import EVERYTHING, FIN, RST, SYN, Filter, Packets, decode

MAX_RUN = 1 << 20
MAX_PAUSE = 1_000_000
"""A pause between two packets that ends a run, in nanoseconds. A frame gets its time from its run. Without
this limit, a run could contain frames from before and after a round trip, if a packet was captured late."""
MAX_BATCH = 4 << 20
"""The maximum number of payload bytes in a batch."""
_FILE_SHIFT = 40
_IPV4_BYTES = 4

SEGMENTS = pa.schema(
    [
        # Both endpoints in canonical order, see `endpoints`; b"" in rows that hold FileCounts as JSON.
        pa.field("connection", pa.binary(), nullable=False),
        # The lower endpoint sent it.
        pa.field("from_low", pa.bool_(), nullable=False),
        # Nanoseconds since 1970 of the first and of the last packet of the run.
        pa.field("time", pa.int64(), nullable=False),
        pa.field("end_time", pa.int64(), nullable=False),
        # (file number << 40) + offset in the file of the first packet's record. The rows of a connection
        # must be read in this order.
        pa.field("order", pa.int64(), nullable=False),
        # Of the first byte of payload; without payload, of the SYN, FIN or RST itself.
        pa.field("sequence", pa.uint32(), nullable=False),
        # Of all its packets: how far the sender had seen the other direction, as a sequence number; -1: none.
        pa.field("ack", pa.int64(), nullable=False),
        # SYN belongs before the payload, FIN after it.
        pa.field("flags", pa.uint8(), nullable=False),
        # Bytes that followed the payload on the wire, and that the snap length cut.
        pa.field("missing", pa.uint32(), nullable=False),
        pa.field("packets", pa.uint32(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

REFERENCES = pa.schema(
    [
        *SEGMENTS,
        # Where the payload is in the file, a _SPAN for each packet. If there is any, `payload` is empty.
        pa.field("spans", pa.binary(), nullable=False),
    ]
)
_SPAN = np.dtype([("begin", "<i4"), ("size", "<i4")])
"""Where a packet's payload begins, counted in bytes from the beginning of the run's first record, and its
size."""


def endpoints(connection: bytes) -> tuple[str, str]:
    """Return the two ends of a connection, the lower one first, as `host:port` or `[v6]:port`.

    `connection` is one byte (the IP version, 4 or 6), then address and port of the lower end, then address
    and port of the higher end. Ends are compared as numbers, address first.
    """
    size = 4 if connection[0] == 4 else 16
    middle = 1 + size + 2
    return _endpoint(connection[1:middle]), _endpoint(connection[middle : middle + size + 2])


def ports_of(connection: bytes) -> tuple[int, int]:
    """Return the ports of the two ends of a connection, the lower end first (see `endpoints`)."""
    middle = len(connection) // 2 + 1
    return int.from_bytes(connection[middle - 2 : middle]), int.from_bytes(connection[-2:])


def connection_key(one: str, other: str) -> bytes:
    """Return the key of the connection between two ends, in either order: the reverse of `endpoints`."""
    low, high = sorted((_packed(one), _packed(other)))
    return bytes([4 if len(low) == 6 else 6]) + low + high


def _packed(endpoint: str) -> bytes:
    host, _, port = endpoint.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")).packed + int(port).to_bytes(2)


def _endpoint(packed: bytes) -> str:
    address, port = packed[:-2], int.from_bytes(packed[-2:])
    if len(address) == _IPV4_BYTES:  # in a third of the time
        return f"{'.'.join(map(str, address))}:{port}"
    return f"[{ipaddress.ip_address(address)}]:{port}"


def read(share: TaskInput, keep: Filter = EVERYTHING) -> Iterator[pa.RecordBatch]:
    """Read a share as batches of SEGMENTS. The last row of each part of a file has its FileCounts."""
    for piece in share.pieces:
        yield from _read(piece, keep, runs)


def read_references(
    share: TaskInput, keep: Filter = EVERYTHING, *, plain: bool = False
) -> Iterator[pa.RecordBatch]:
    """Read a share as batches of REFERENCES, with the same rows as `read`.

    With `plain`, or if the file can't be read at offsets, rows have their payload.
    """
    for piece in share.pieces:
        refer = piece.source.at_offsets and not plain
        for batch in _read(piece, keep, references if refer else runs):
            yield batch if batch.schema == REFERENCES else _carried(batch)


def with_payload(batches: Iterable[pa.RecordBatch], reader: SpanReader) -> Iterator[pa.RecordBatch]:
    """Turn batches of REFERENCES into batches of SEGMENTS, with about MAX_BATCH bytes of payload at most.

    Raises:
        OSError: a file can't be read any more, shrank, or was overwritten.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        spans, places = _spans_of(batch)
        before = np.append(0, np.cumsum(spans.size))
        for begin, end in parts(bytes_of(batch.column("payload"))[1] + spans.bytes_read()[places]):
            own = places[begin : end + 1]
            data = reader.read(spans[own[0] : own[-1]])
            edges = (before[own] - before[own[0]]).astype(np.int32)
            yield _segments(batch.slice(begin, end - begin), _binary(edges, data))


def _read(
    piece: FilePiece, keep: Filter, make: Callable[[FileWindow, Packets, int], pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    source = piece.source
    counts = FileCounts(file=source.name, number=source.number, fingerprint=source.fingerprint)
    base = source.number << _FILE_SHIFT
    for window, records in windows(piece, counts):
        yield from split(make(window, decode(window, records, keep, counts), base))
    yield _counts_row(counts, base + piece.start)


def counts_in(batch: pa.RecordBatch) -> FileCounts | None:
    """Return the counts of a part of a file, if this is the batch with its last row (see `read`)."""
    if batch.num_rows != 1 or batch.column("connection")[0].as_py():
        return None
    return FileCounts.from_json(batch.column("payload")[0].as_py())


def split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into batches of at most MAX_BATCH bytes of payload."""
    for begin, end in parts(bytes_of(batch.column("payload"))[1]):
        yield batch.slice(begin, end - begin)


def parts(edges: Column) -> Iterator[tuple[int, int]]:
    """Divide rows into parts of at most MAX_BATCH bytes, or one row. `edges`: the bytes before each row."""
    begin = 0
    while begin < len(edges) - 1:
        end = max(begin + 1, int(np.searchsorted(edges, edges[begin] + MAX_BATCH, "right")) - 1)
        yield begin, end
        begin = end


def runs(window: FileWindow, packets: Packets, base: int) -> pa.RecordBatch:
    """Join packets into runs, grouped by connection. The column `order` is `base` plus a packet's offset."""
    sort = _by_connection(packets.ends)
    first = _breaks(packets, sort)
    filled = packets.size > 0
    order = (np.cumsum(filled) - 1)[sort[filled[sort]]]
    payload = joined(window.data, packets.begin[filled], packets.size[filled], order)
    columns = _columns(packets, sort, first, base)
    edges = _edges_of_rows(packets.size[sort], first)
    return pa.RecordBatch.from_arrays([*columns, _binary(edges, payload)], schema=SEGMENTS)


def references(window: FileWindow, packets: Packets, base: int) -> pa.RecordBatch:
    """Join packets into the rows of `runs`, with references (REFERENCES) in place of payload."""
    sort = _by_connection(packets.ends)
    first = _breaks(packets, sort)
    filled = packets.size[sort] > 0
    chosen = sort[filled]
    record = np.repeat(packets.order[sort[first]], np.diff(first, append=len(sort)))[filled]
    spans = np.empty(len(chosen), _SPAN)
    spans["begin"] = packets.begin[chosen] + window.offset(0) - record
    spans["size"] = packets.size[chosen]
    edges = _edges_of_rows(filled * _SPAN.itemsize, first)
    columns = [
        *_columns(packets, sort, first, base),
        _binary(np.zeros(len(first) + 1, np.int32), b""),
        _binary(edges, spans),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REFERENCES)


def _columns(packets: Packets, sort: Column, first: Column, base: int) -> list[pa.Array]:
    """Make the columns of runs but the payload. `first`: where each run begins in the order `sort`."""
    last = np.append(first[1:], len(sort))[: len(first)] - 1
    opening, closing = sort[first], sort[last]
    flags = np.bitwise_or.reduceat(packets.flags[sort], first) if len(first) else packets.flags
    return [
        _keys(packets.ends[:, opening]),
        _array(packets.from_low[opening]),
        _array(packets.time[opening]),
        _array(packets.time[closing]),
        _array(packets.order[opening] + base),
        _array(packets.sequence[opening]),
        _array(packets.ack[opening]),
        _array(flags),
        _array(packets.missing[closing].astype(np.uint32)),
        _array((last - first + 1).astype(np.uint32)),
    ]


def _edges_of_rows(sizes: Column, first: Column) -> Column:
    """Return the offsets of a binary column, by the bytes that each packet adds to its run."""
    edges = np.zeros(len(first) + 1, np.int32)
    edges[:-1] = (np.cumsum(sizes) - sizes)[first]
    edges[-1] = sizes.sum()
    return edges


def _carried(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [*batch.columns, _binary(np.zeros(batch.num_rows + 1, np.int32), b"")]
    return pa.RecordBatch.from_arrays(columns, schema=REFERENCES)


def _spans_of(batch: pa.RecordBatch) -> tuple[Spans, Column]:
    """Return the spans in a batch, and the place of each row's first one among them, and of the end."""
    data, edges = bytes_of(batch.column("spans"))
    found = np.frombuffer(data, _SPAN)
    places = edges // _SPAN.itemsize
    order = np.repeat(batch.column("order").to_numpy(), np.diff(places))
    found = found[places[0] : places[-1]]
    begin = (order & (1 << _FILE_SHIFT) - 1) + found["begin"]
    return Spans(order >> _FILE_SHIFT, begin, found["size"].astype(np.int64)), places - places[0]


def _segments(batch: pa.RecordBatch, read: pa.Array) -> pa.RecordBatch:
    """Turn a batch of REFERENCES into SEGMENTS. Rows with spans get their payload from `read`."""
    columns = [batch.column(name) for name in SEGMENTS.names]
    carried = pc.greater(pc.binary_length(columns[-1]), 0)
    if not pc.all(carried).as_py():
        columns[-1] = pc.if_else(carried, columns[-1], read) if pc.any(carried).as_py() else read
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENTS)


def bytes_of(column: pa.Array) -> tuple[memoryview, Column]:
    """Return the joined values of a binary column, where each one begins, and where the last one ends."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(data if data is not None else b"").cast("B"), edges.astype(np.int64)


def connections_in(batch: pa.RecordBatch) -> list[tuple[Any, int, int]]:
    """Return the connections of sorted rows, each with its first row, and the place after its last one."""
    runs = pc.run_end_encode(batch.column("connection"))
    ends = runs.run_ends.to_pylist()
    return [*zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)]


def _binary(edges: Column, data: Any) -> pa.Array:
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), buffer])


def _array(values: Column) -> pa.Array:
    """Return a column as an Arrow array. `pa.array` would import pandas, which takes 0.2 s."""
    bits = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    data = pa.py_buffer(np.ascontiguousarray(bits))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def _by_connection(ends: Column) -> Column:
    """Return an order by a hash of the two ends. Packets with equal hashes stay in captured order."""
    # If two connections have the same hash, the only effect is that their runs end more often.
    mixed = np.zeros(ends.shape[1], np.uint64)
    for part in ends:
        mixed = (mixed ^ part) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    # numpy sorts 16 bits by radix, several times as fast.
    order: Column = np.argsort((mixed >> np.uint64(48)).astype(np.uint16), kind="stable")
    return order


def _breaks(packets: Packets, sort: Column) -> Column:
    if not len(sort):
        return sort
    ends, from_low = packets.ends[:, sort], packets.from_low[sort]
    sequence, flags, ack = packets.sequence[sort], packets.flags[sort], packets.ack[sort]
    size, missing = packets.size[sort], packets.missing[sort]
    alone = size == 0
    new = np.ones(len(sort), np.bool_)
    new[1:] = (ends[:, 1:] != ends[:, :-1]).any(axis=0) | (from_low[1:] != from_low[:-1])
    new[1:] |= sequence[1:] != sequence[:-1] + size[:-1].astype(np.uint32)
    new[1:] |= (missing[:-1] > 0) | (flags[:-1] & (FIN | RST) != 0) | (flags[1:] & SYN != 0)
    new[1:] |= alone[1:] | alone[:-1] | (ack[1:] != ack[:-1])
    new[1:] |= np.abs(np.diff(packets.time[sort])) > MAX_PAUSE
    begin = np.cumsum(size) - size
    since = begin - np.maximum.accumulate(np.where(new, begin, 0))
    new[1:] |= since[1:] // MAX_RUN != since[:-1] // MAX_RUN
    found: Column = np.flatnonzero(new)
    return found


_KEY4 = np.dtype(
    [("version", "u1"), ("low", ">u4"), ("low_port", ">u2"), ("high", ">u4"), ("high_port", ">u2")]
)
_KEY6 = np.dtype(
    [("version", "u1"), ("low", ">u8", 2), ("low_port", ">u2"), ("high", ">u8", 2), ("high_port", ">u2")]
)


def _keys(ends: Column) -> pa.Array:
    version = ends[4] >> np.uint64(32)
    short = _pack(_KEY4, ends, ends[1], ends[3])
    if (version == 4).all():
        return short
    return pc.if_else(_array(version == 4), short, _pack(_KEY6, ends, ends[0:2].T, ends[2:4].T))


def _pack(dtype: np.dtype[np.void], ends: Column, low: Column, high: Column) -> pa.Array:
    key = np.empty(ends.shape[1], dtype)
    key["version"] = ends[4] >> np.uint64(32)
    key["low"], key["high"] = low, high
    key["low_port"], key["high_port"] = (
        ends[4] >> np.uint64(16) & np.uint64(0xFFFF),
        ends[4] & np.uint64(0xFFFF),
    )
    return _binary(np.arange(len(key) + 1, dtype=np.int32) * dtype.itemsize, key)


def _counts_row(counts: FileCounts, order: int) -> pa.RecordBatch:
    row = dict.fromkeys(SEGMENTS.names, 0) | {
        "connection": b"",
        "from_low": False,
        "time": counts.first_time,
        "end_time": counts.last_time,
        "order": order,
        "payload": counts.to_json().encode(),
    }
    return pa.RecordBatch.from_arrays(
        [_one(row[field.name], field.type) for field in SEGMENTS], schema=SEGMENTS
    )


def _one(value: object, kind: pa.DataType) -> pa.Array:
    if isinstance(value, bytes):
        return _binary(np.array([0, len(value)], np.int32), value)
    return _array(np.array([value], kind.to_pandas_dtype()))
