"""Where the fields of a Fetch entry lie, v4 to v18 (FetchRequest.json, FetchResponse.json).

An entry of a request has a fixed size, one of a response has it when it carries no records and no tags; so
lists of entries are columns (numpy arrays of fixed-size items) over the bytes as received.
"""

import re
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.primitives import encode_uvarint

Rows: TypeAlias = npt.NDArray[np.intp]
"""Numbers of rows or positions."""

Entries: TypeAlias = npt.NDArray[np.void]
"""One item of fixed size for each entry, bytes as on the wire."""

MIN_VERSION: Final = 4
"""Below, brokers convert records down or limit responses otherwise; such fetches pass untouched."""
MAX_VERSION: Final = 18
MAX_RUN_MATCH: Final = 128
"""Up to about so many entries a pattern is faster than columns."""
SESSION_VERSION: Final = 7
"""KIP-227: the first version with session id and epoch."""

# Where the fields stand that an entry of a response begins with, behind the partition number.
ERROR_CODE: Final = slice(4, 6)
HIGH_WATERMARK: Final = slice(6, 14)
LOG_START_OFFSET: Final = slice(22, 30)
"""From v5 on. In v4 aborted_transactions stand here; later they stand behind it."""

PARTITION_BYTES: Final = 4
"""Size of a partition number. Entries of requests and of responses begin with it."""
ABORTED_BYTES: Final = 16
"""Size of an aborted transaction without tags: producer_id and first_offset."""
SESSION: Final = Struct(">ii")
"""session_id and session_epoch of a request."""

_REPLICA_ID_BYTES: Final = 4
_LIMITS_BYTES: Final = 12
_ENDS_EMPTY_CLASSIC: Final = b"\x00\x00\x00\x00"
_NULL_CLASSIC: Final = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLayout:
    """One version's layout. Sizes and offsets are in bytes, offsets from the start of an entry."""

    version: int
    flexible: bool
    """Compact lengths and tag buffers (v12 and later)."""
    topic_ids: bool
    """Topics are named by a 16-byte id (v13 and later)."""
    request_limits: int
    """Offset of max_wait_ms in a request's body; min_bytes, max_bytes and isolation_level follow."""
    request_isolation: int
    """Offset of isolation_level in a request's body."""
    request_session: int
    """Offset of session_id in a request's body; below v7, where there is none, that of ``topics``."""
    request_head: int
    """Bytes of a request body before ``topics``."""
    request_entry: int
    """Size of a request's entry without tags."""
    response_head: int
    """Bytes of a response body before ``responses``."""
    response_entry: int
    """Size of a response's entry without records, aborted transactions and tags."""
    aborted: int
    """Offset of ``aborted_transactions`` in a response's entry."""
    empty_ends: tuple[bytes, bytes]
    """What an error-free entry without records holds from `aborted` on, by isolation level: null for
    read_uncommitted, an empty array for read_committed; no preferred replica; empty records; no tags."""
    empty_runs: tuple[re.Pattern[bytes], re.Pattern[bytes]]
    """Match up to `MAX_RUN_MATCH` error-free entries with such an end in a row, by isolation level."""
    request_item: np.dtype[np.void]
    response_item: np.dtype[np.void]
    request_fields: np.dtype[Any]
    """`request_item` by field: ``partition`` (unsigned: a negative one is far out of range), and from v9
    ``epoch`` (current_leader_epoch)."""
    response_fields: np.dtype[Any]
    """`response_item` by field: ``partition``, ``error``, ``high_watermark``, ``end``."""

    def prefix(self, key: bytes, count: int) -> bytes:
        """Return how a topic element begins, in requests as in responses: its key, how many entries."""
        if self.topic_ids:
            return key + encode_uvarint(count + 1)
        if self.flexible:
            return encode_uvarint(len(key) + 1) + key + encode_uvarint(count + 1)
        return len(key).to_bytes(2) + key + count.to_bytes(4)

    def prefix_size(self, key: bytes, count: int) -> int:
        """Return the size of `prefix` without building it."""
        if not self.flexible:
            return 6 + len(key)
        size = len(key) if self.topic_ids else len(key) + len(encode_uvarint(len(key) + 1))
        return size + (1 if count < 127 else len(encode_uvarint(count + 1)))

    def count(self, count: int) -> bytes:
        """Return the length field of an array of `count` elements."""
        return encode_uvarint(count + 1) if self.flexible else count.to_bytes(4)


def _layout(version: int) -> FetchLayout:
    flexible = version >= 12
    request_entry = 33 if flexible else 28 if version >= 9 else 24 if version >= 5 else 16
    aborted = LOG_START_OFFSET.stop if version >= 5 else LOG_START_OFFSET.start
    preferred = b"\xff\xff\xff\xff" if version >= 11 else b""
    if flexible:
        ends = (b"\x00" + preferred + b"\x01\x00", b"\x01" + preferred + b"\x01\x00")
    else:
        ends = (
            _NULL_CLASSIC + preferred + _ENDS_EMPTY_CLASSIC,
            _ENDS_EMPTY_CLASSIC + preferred + _ENDS_EMPTY_CLASSIC,
        )
    response_entry = aborted + len(ends[0])
    limits = 0 if version >= 15 else _REPLICA_ID_BYTES
    isolation = limits + _LIMITS_BYTES
    session = isolation + 1
    request_fields = {"partition": (">u4", 0)} | ({"epoch": (">i4", 4)} if version >= 9 else {})
    response_fields = {
        "partition": (">u4", 0),
        "error": (">i2", ERROR_CODE.start),
        "high_watermark": (">i8", HIGH_WATERMARK.start),
        "end": (f"V{len(ends[0])}", aborted),
    }
    return FetchLayout(
        version=version,
        flexible=flexible,
        topic_ids=version >= 13,
        request_limits=limits,
        request_isolation=isolation,
        request_session=session,
        request_head=session + (SESSION.size if version >= SESSION_VERSION else 0),
        request_entry=request_entry,
        response_head=10 if version >= SESSION_VERSION else 4,
        response_entry=response_entry,
        aborted=aborted,
        empty_ends=ends,
        empty_runs=(_empty_run(aborted, ends[0]), _empty_run(aborted, ends[1])),
        request_item=np.dtype(f"V{request_entry}"),
        response_item=np.dtype(f"V{response_entry}"),
        request_fields=_fields(request_fields, request_entry),
        response_fields=_fields(response_fields, response_entry),
    )


def _empty_run(aborted: int, end: bytes) -> re.Pattern[bytes]:
    # Any partition, error 0, any offsets. Possessive: an entry once matched is never given up.
    entry = b"....\\x00\\x00" + b"." * (aborted - HIGH_WATERMARK.start) + re.escape(end)
    return re.compile(b"(?:%b){0,%d}+" % (entry, MAX_RUN_MATCH), re.DOTALL)


def _fields(fields: dict[str, tuple[str, int]], size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


LAYOUTS: Final = {version: _layout(version) for version in range(MIN_VERSION, MAX_VERSION + 1)}
