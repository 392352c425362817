"""TCP segments of captures as Arrow record batches: runs of payload, in capture order.

A *run* is the payload of consecutive TCP segments, in one direction of one connection. It has no gap, and no
payload of the other direction was captured in between. All segments have the same ACK number, so their sender
received nothing new meanwhile. A SYN, FIN or RST without payload has a row of its own. Retransmissions,
overlaps and reordering stay as they are, and end a run.

A run also ends at the end of a file, share or window, after `MAX_RUN` bytes, and at a pause of `MAX_PAUSE`.
Splitting a run into two rows does not change its meaning.
"""

import ipaddress
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.files.counts import FileCounts
from replay.capture.files.reading import windows
from replay.capture.files.sources import TaskInput
from replay.capture.files.window import Column, FileWindow
from replay.capture.packets.tcp import EVERYTHING, FIN, RST, SYN, Filter, Packets, decode

MAX_RUN = 1 << 20
"""After this many bytes of payload a run ends."""
MAX_PAUSE = 1_000_000
"""A pause between two packets, in ns, that ends a run. Frames get their times from runs. Without this rule,
if a packet was captured late, frames before and after a round trip could be in one run."""
MAX_BATCH = 4 << 20
"""The maximum of payload bytes in a batch."""
_FILE_SHIFT = 40

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


def endpoints(connection: bytes) -> tuple[str, str]:
    """Return the two ends of a connection, the lower one first, as `host:port` or `[v6]:port`.

    `connection` is one byte (the IP version, 4 or 6), then address and port of the lower end, then address
    and port of the higher end. Ends are compared as numbers, address first.
    """
    size = 4 if connection[0] == 4 else 16
    middle = 1 + size + 2
    return _endpoint(connection[1:middle]), _endpoint(connection[middle : middle + size + 2])


def connection_key(one: str, other: str) -> bytes:
    """Return the key of the connection between two ends, in either order.

    This is the reverse of `endpoints`.
    """
    low, high = sorted((_packed(one), _packed(other)))
    return bytes([4 if len(low) == 6 else 6]) + low + high


def _packed(endpoint: str) -> bytes:
    host, _, port = endpoint.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")).packed + int(port).to_bytes(2)


def _endpoint(packed: bytes) -> str:
    address, port = packed[:-2], int.from_bytes(packed[-2:])
    host = ipaddress.ip_address(address)
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"


def read(share: TaskInput, keep: Filter = EVERYTHING) -> Iterator[pa.RecordBatch]:
    """Read a share as batches of SEGMENTS. The last row of each part of a file has its FileCounts."""
    for piece in share.pieces:
        source = piece.source
        counts = FileCounts(file=source.name, number=source.number, fingerprint=source.fingerprint)
        base = source.number << _FILE_SHIFT
        for window, records in windows(piece, counts):
            yield from split(runs(window, decode(window, records, keep, counts), base))
        yield _counts_row(counts, base + piece.start)


def split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into batches of at most MAX_BATCH bytes of payload."""
    ends = np.frombuffer(batch.column("payload").buffers()[1], np.int32)[: batch.num_rows + 1]
    begin = 0
    while begin < batch.num_rows:
        end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + MAX_BATCH, "right")) - 1)
        yield batch.slice(begin, end - begin)
        begin = end


def runs(window: FileWindow, packets: Packets, base: int) -> pa.RecordBatch:
    """Join the packets of one window into runs, grouped by connection.

    Args:
        window: where the payload is.
        packets: in the order of the capture.
        base: added to each packet's offset, to get `order`.
    """
    sort = _by_connection(packets.ends)
    first = _breaks(packets, sort)
    last = np.append(first[1:], len(sort))[: len(first)] - 1
    opening, closing = sort[first], sort[last]
    payload = _gather(window, packets, sort)
    behind = np.cumsum(packets.size[sort])
    edges = np.zeros(len(first) + 1, np.int32)
    edges[1:] = behind[last]
    ends = packets.ends[:, opening]
    flags = np.bitwise_or.reduceat(packets.flags[sort], first) if len(first) else packets.flags
    return pa.RecordBatch.from_arrays(
        [
            _keys(ends),
            _array(packets.from_low[opening]),
            _array(packets.time[opening]),
            _array(packets.time[closing]),
            _array(packets.order[opening] + base),
            _array(packets.sequence[opening]),
            _array(packets.ack[opening]),
            _array(flags),
            _array(packets.missing[closing].astype(np.uint32)),
            _array((last - first + 1).astype(np.uint32)),
            pa.Array.from_buffers(pa.binary(), len(first), [None, pa.py_buffer(edges), payload]),
        ],
        schema=SEGMENTS,
    )


def _array(values: Column) -> pa.Array:
    """Return a column as an Arrow array. `pa.array` would import pandas, which takes 0.2 s."""
    bits = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    data = pa.py_buffer(np.ascontiguousarray(bits))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def _by_connection(ends: Column) -> Column:
    """Return an order by a hash of the two ends. Packets with equal hashes stay in captured order.

    If two connections have the same hash, their runs only end more often.
    """
    mixed = np.zeros(ends.shape[1], np.uint64)
    for part in ends:
        mixed = (mixed ^ part) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    # numpy sorts 16 bits by radix, several times as fast.
    order: Column = np.argsort((mixed >> np.uint64(48)).astype(np.uint16), kind="stable")
    return order


def _breaks(packets: Packets, sort: Column) -> Column:
    """Return where, in sorted order, each run begins."""
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


def _gather(window: FileWindow, packets: Packets, sort: Column) -> pa.Buffer:
    """Copy the payloads of the packets, in sorted order, one after the other.

    An Arrow array covers the window. Its elements alternate between a payload and the bytes up to the next
    payload. Its `take` then copies the payloads at the speed of memory.
    """
    filled = np.flatnonzero(packets.size > 0)
    edges = np.empty(2 * len(filled), np.int32)
    edges[0::2] = packets.begin[filled]
    edges[1::2] = packets.begin[filled] + packets.size[filled]
    elements = max(len(edges) - 1, 0)
    array = pa.Array.from_buffers(
        pa.binary(), elements, [None, pa.py_buffer(edges), pa.py_buffer(window.data)]
    )
    element = np.cumsum(packets.size > 0) - 1
    wanted = element[sort[packets.size[sort] > 0]] * 2
    return array.take(_array(wanted)).buffers()[2] or pa.py_buffer(b"")


_KEY4 = np.dtype(
    [("version", "u1"), ("low", ">u4"), ("low_port", ">u2"), ("high", ">u4"), ("high_port", ">u2")]
)
_KEY6 = np.dtype(
    [("version", "u1"), ("low", ">u8", 2), ("low_port", ">u2"), ("high", ">u8", 2), ("high_port", ">u2")]
)


def _keys(ends: Column) -> pa.Array:
    """Make the `connection` column."""
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
    edges = np.arange(len(key) + 1, dtype=np.int32) * dtype.itemsize
    return pa.Array.from_buffers(pa.binary(), len(key), [None, pa.py_buffer(edges), pa.py_buffer(key)])


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
        edges = np.array([0, len(value)], np.int32)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(edges), pa.py_buffer(value)])
    return _array(np.array([value], kind.to_pandas_dtype()))
