"""TCP segments of captures as Arrow record batches: runs of payload, in capture order.

A *run* is the payload of consecutive, contiguous TCP segments of one direction of one connection, between
which no packet with payload of the other direction was captured. SYN, FIN and RST without payload make rows of
their own. Retransmissions, overlaps and reordering are left in; a run breaks at them, and it may break
anywhere else (at the end of a share, of a window, of a file, at `MAX_RUN` bytes): adjacent rows that could be one mean
the same as one.
"""

import ipaddress
from collections.abc import Iterator

import pyarrow as pa

from replay.capture.packets import Filter
from replay.capture.sources import Share

FIN, SYN, RST = 1, 2, 4

SEGMENTS = pa.schema(
    [
        # Both endpoints in canonical order, see `endpoints`; b"" in rows that carry FileCounts as JSON.
        pa.field("connection", pa.binary(), nullable=False),
        # The lower endpoint sent it.
        pa.field("from_low", pa.bool_(), nullable=False),
        # Nanoseconds since 1970 of the first and of the last packet of the run.
        pa.field("time", pa.int64(), nullable=False),
        pa.field("end_time", pa.int64(), nullable=False),
        # (file number << 40) + offset of the first packet's record in the file; rows of a connection are
        # to be consumed in this order.
        pa.field("order", pa.int64(), nullable=False),
        # Of the first byte of payload; of the SYN, FIN or RST itself where there is none.
        pa.field("sequence", pa.uint32(), nullable=False),
        # SYN belongs before the payload, FIN after it.
        pa.field("flags", pa.uint8(), nullable=False),
        # Bytes that followed the payload on the wire and were cut by the snap length.
        pa.field("missing", pa.uint32(), nullable=False),
        pa.field("packets", pa.uint32(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def endpoints(connection: bytes) -> tuple[str, str]:
    """Tell the two ends of a connection, the lower one first, as `host:port` or `[v6]:port`.

    The key is a family byte (4 or 6), then address and port of the lower end and of the higher one, compared
    as numbers, address first.
    """
    size = 4 if connection[0] == 4 else 16
    middle = 1 + size + 2
    return _endpoint(connection[1:middle]), _endpoint(connection[middle : middle + size + 2])


def _endpoint(packed: bytes) -> str:
    address, port = packed[:-2], int.from_bytes(packed[-2:])
    host = ipaddress.ip_address(address)
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"


def read(share: Share, keep: Filter = Filter()) -> Iterator[pa.RecordBatch]:
    """Read what a share names, as batches of SEGMENTS, and after each file's part its FileCounts as a row."""
    raise NotImplementedError
