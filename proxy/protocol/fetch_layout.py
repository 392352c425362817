"""Offsets and sizes of the fields of Fetch, v4 to v18 (FetchRequest.json, FetchResponse.json).

All entries of a request without tags have the same size. All entries of a response without records, aborted
transactions and tags have the same size, too. So entries are processed as numpy arrays of fixed-size items
over the received bytes. Tags have no fixed size: `_TopicsWalk` in `fetch_request.py` and `FetchResponseWalk`
find them. A new version begins here, with `MAX_VERSION`.
"""

import re
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.primitives import encode_uvarint

Rows: TypeAlias = npt.NDArray[np.intp]
"""An array of row numbers, or of positions in a list."""

Entries: TypeAlias = npt.NDArray[np.void]
"""An array with one item of fixed size for each entry: its bytes in a frame."""

MIN_VERSION: Final = 4
"""The lowest version that is parsed. For lower ones, brokers down-convert records or limit responses
differently (fetch-semantics 1.6, trap 3): these fetches have no session. Only the limits of v2 and v3 may be
changed (`old_fetch`)."""
MAX_VERSION: Final = 18
"""The highest version that is parsed: that of brokers 4.1 to 4.3 (KIP-1166). The gateway offers no higher one
to clients (fetch-semantics 1.7, trap 5)."""
MAX_RUN_MATCH: Final = 128
"""For more entries than this, numpy arrays are faster than a regular expression."""
SESSION_VERSION: Final = 7
"""The first version of Fetch with session id and epoch (KIP-227; fetch-semantics 1.3)."""

RACK_VERSION: Final = 11
"""The first version of Fetch with the client's rack, and with preferred_read_replica (KIP-392)."""

HINTS_VERSION: Final = 16
"""The first version of Fetch in which responses with error 6 or 74 contain the new leader (KIP-951;
fetch-semantics 5)."""

# Fields of a response entry after the partition number
ERROR_CODE: Final = slice(4, 6)
HIGH_WATERMARK: Final = slice(6, 14)
LAST_STABLE_OFFSET: Final = slice(14, 22)
LOG_START_OFFSET: Final = slice(22, 30)
"""From v5 on. In v4, aborted_transactions begins at this place."""

PARTITION_BYTES: Final = 4
"""The size of a partition number, the first field of entries in requests and responses."""
ABORTED_BYTES: Final = 16
"""The size of an aborted transaction without tags: producer_id and first_offset."""
SESSION: Final = Struct(">ii")
"""session_id and session_epoch of a request."""

_REPLICA_ID_BYTES: Final = 4
_LIMITS_BYTES: Final = 12
_ENDS_EMPTY_CLASSIC: Final = b"\x00\x00\x00\x00"
_NULL_CLASSIC: Final = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLayout:
    """The layout of one version of Fetch. Sizes and offsets are in bytes."""

    version: int
    flexible: bool
    """Compact lengths and tag buffers (v12 and later)."""
    topic_ids: bool
    """Whether topics have a 16-byte id instead of a name (v13 and later)."""
    request_limits: int
    """Offset of max_wait_ms in a request's body. min_bytes, max_bytes and isolation_level follow."""
    request_isolation: int
    """Offset of isolation_level in a request's body."""
    request_session: int
    """Offset of session_id in a request's body. Below v7, the offset of ``topics``."""
    request_head: int
    """The number of bytes of a request's body before ``topics``."""
    request_offset: int
    """Offset of fetch_offset in a request's entry."""
    request_rest: int
    """Offset of the fields after fetch_offset and the epochs: log_start_offset, partition_max_bytes, tags."""
    request_entry: int
    """Size of a request's entry that has no tags."""
    response_head: int
    """The number of bytes of a response's body before ``responses``."""
    response_entry: int
    """The size of a response's entry that has no records, no aborted transactions and no tags."""
    response_records: int
    """Offset of ``records`` in a response's entry, if the entry has no aborted transactions."""
    aborted: int
    """Offset of ``aborted_transactions`` in a response's entry."""
    empty_ends: tuple[bytes, bytes]
    """The last bytes of an entry without an error and without records, from the field `aborted` on, by
    isolation level: null for read_uncommitted or an empty array for read_committed, no preferred replica,
    empty records, no tags."""
    empty_runs: tuple[re.Pattern[bytes], re.Pattern[bytes]]
    """Match up to `MAX_RUN_MATCH` consecutive entries without errors, records and tags, by isolation
    level."""
    request_item: np.dtype[np.void]
    response_item: np.dtype[np.void]
    request_fields: np.dtype[Any]
    """The fields of `request_item`: ``partition`` (unsigned, so that a negative number is far out of range),
    ``epoch`` (current_leader_epoch, v9), ``offset`` (fetch_offset), ``last_epoch`` (last_fetched_epoch, v12),
    ``log_start_offset`` (v5), ``max_bytes`` and ``tags`` (v12)."""
    response_fields: np.dtype[Any]
    """The fields of `response_item`: ``partition``, ``error``, ``high_watermark``, ``last_stable_offset``,
    ``log_start_offset`` (v5), ``end``."""

    def no_items(self, *, null: bool) -> bytes:
        """Return the bytes of an array or of records with no content, either null or empty."""
        if self.flexible:
            return b"\x00" if null else b"\x01"
        return _NULL_CLASSIC if null else _ENDS_EMPTY_CLASSIC

    def prefix(self, key: bytes, count: int) -> bytes:
        """Return the bytes before the entries of a topic element: topic name or id, and number of entries."""
        if self.topic_ids:
            return key + encode_uvarint(count + 1)
        if self.flexible:
            return encode_uvarint(len(key) + 1) + key + encode_uvarint(count + 1)
        return len(key).to_bytes(2) + key + count.to_bytes(4)

    def prefix_size(self, key: bytes, count: int) -> int:
        """Return the size of `prefix`, without building it."""
        if not self.flexible:
            return 6 + len(key)
        size = len(key) if self.topic_ids else len(key) + len(encode_uvarint(len(key) + 1))
        return size + (1 if count < 127 else len(encode_uvarint(count + 1)))

    def count(self, count: int) -> bytes:
        """Return the length field of an array."""
        return encode_uvarint(count + 1) if self.flexible else count.to_bytes(4)


def _layout(version: int) -> FetchLayout:
    # KIP-482; entry sizes and offsets: fetch-semantics 1.5.
    flexible = version >= 12
    aborted = LOG_START_OFFSET.stop if version >= 5 else LOG_START_OFFSET.start
    # KIP-392: preferred_read_replica, -1 for none.
    preferred = b"\xff\xff\xff\xff" if version >= RACK_VERSION else b""
    if flexible:
        ends = (b"\x00" + preferred + b"\x01\x00", b"\x01" + preferred + b"\x01\x00")
    else:
        ends = (
            _NULL_CLASSIC + preferred + _ENDS_EMPTY_CLASSIC,
            _ENDS_EMPTY_CLASSIC + preferred + _ENDS_EMPTY_CLASSIC,
        )
    response_entry = aborted + len(ends[0])
    # KIP-903: from v15 on replica_id is in a tag (fetch-semantics 1.3).
    limits = 0 if version >= 15 else _REPLICA_ID_BYTES
    isolation = limits + _LIMITS_BYTES
    session = isolation + 1
    # FetchRequest.json; KIP-320 brought the epochs.
    request_fields = [("partition", ">u4")]
    request_fields += [("epoch", ">i4")] if version >= 9 else []
    request_fields += [("offset", ">i8")]
    request_fields += [("last_epoch", ">i4")] if flexible else []
    request_fields += [("log_start_offset", ">i8")] if version >= 5 else []
    request_fields += [("max_bytes", ">i4")]
    request_fields += [("tags", "u1")] if flexible else []
    request_item = np.dtype(request_fields)
    response_fields = {
        "partition": (">u4", 0),
        "error": (">i2", ERROR_CODE.start),
        "high_watermark": (">i8", HIGH_WATERMARK.start),
        "last_stable_offset": (">i8", LAST_STABLE_OFFSET.start),
        "end": (f"V{len(ends[0])}", aborted),
    }
    response_fields |= {"log_start_offset": (">i8", LOG_START_OFFSET.start)} if version >= 5 else {}
    return FetchLayout(
        version=version,
        flexible=flexible,
        topic_ids=version >= 13,  # KIP-516
        request_limits=limits,
        request_isolation=isolation,
        request_session=session,
        request_head=session + (SESSION.size if version >= SESSION_VERSION else 0),
        request_offset=8 if version >= 9 else 4,
        request_rest=request_item.itemsize - (8 if version >= 5 else 0) - 4 - flexible,
        request_entry=request_item.itemsize,
        response_head=10 if version >= SESSION_VERSION else 4,
        response_entry=response_entry,
        response_records=response_entry - (2 if flexible else len(_ENDS_EMPTY_CLASSIC)),
        aborted=aborted,
        empty_ends=ends,
        empty_runs=(_empty_run(aborted, ends[0]), _empty_run(aborted, ends[1])),
        request_item=np.dtype(f"V{request_item.itemsize}"),
        response_item=np.dtype(f"V{response_entry}"),
        request_fields=request_item,
        response_fields=_fields(response_fields, response_entry),
    )


def _empty_run(aborted: int, end: bytes) -> re.Pattern[bytes]:
    # Any partition, error 0, any offsets. The quantifier is possessive: it never backtracks.
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


def session_layout(version: int) -> FetchLayout:
    """Return the layout that fetches of a version have in a session: for v4 to v6, that of v7."""
    return LAYOUTS[max(version, SESSION_VERSION)]
