"""Decides whether a session's response has records of the same partitions as without a session. Sans-IO.

A broker reads partitions in list order until the response limit (max_bytes) is reached (KIP-74). Without a
session, this is the order of the fetch. In a session, partitions that returned records move to the end of the
list (KIP-227; fetch-semantics 2.5, 4 and trap 25a). The order only matters if not all available records fit.
"""

from functools import cache
from typing import Final

import numpy as np

from proxy.protocol.fetch_layout import FetchLayout, Rows
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.session.handler import SessionResult
from proxy.session.partitions import PartitionTable

_HIGH_WATERMARK: Final = 6
_LAST_STABLE_OFFSET: Final = 14
_PARTITION_MAX_BYTES: Final = 4


def serves_in_order(
    fetch: FetchRequest, table: PartitionTable, rows: Rows, walk: FetchResponseWalk, result: SessionResult
) -> bool:
    """Return whether a fetch without a session would probably have got records of the same partitions.

    The result follows from the limit of the request, and from partitions that have records at the broker but
    none in the response. A lower limit at the broker (fetch.max.bytes, a quota) is not noticed if every
    partition got some records.

    Args:
        fetch: the client's fetch.
        table: the session's partitions. The fetch and the response have been applied.
        rows: the row of each entry of the fetch.
        walk: the broker's response.
        result: the entries of the response that are not empty, in the session's order.
    """
    pairs = zip(result.rows, result.entries, strict=True)
    served = [row for row, entry in pairs if entry.records]
    if not served:
        return True
    places = table.position.take(served)
    last = int(places.max())
    # The first partition read may return a batch larger than its own limit (fetch-semantics 4, step 3).
    first = next(entry for entry in result.entries if entry.records)
    ordered = bool((places[1:] > places[:-1]).all())
    if not ordered and (
        walk.record_bytes >= fetch.max_bytes or first.records > _partition_max_bytes(table, served[0])
    ):
        return False
    # Partitions listed behind all served ones are safe: without a session they are also read last, so their
    # first batch fits even less.
    listed = rows[:last] if ordered else rows
    waiting = _has_more(table, listed)
    waiting[places[places < len(listed)]] = False
    # Redirected partitions were not read: to a replica (KIP-392) or to an earlier epoch.
    elsewhere = [row for row, entry in zip(result.rows, result.entries, strict=True) if entry.redirects]
    if elsewhere:
        led = table.position.take(elsewhere)
        waiting[led[led < len(listed)]] = False
    return not waiting.any()


def _has_more(table: PartitionTable, rows: Rows) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return, for each row, whether the partition has records at or after the client's fetch offset."""
    layout = table.layout
    end_at = _LAST_STABLE_OFFSET if table.isolation_level else _HIGH_WATERMARK
    ends = table.cached_entries.view(_offset(layout.response_entry, end_at))["offset"].take(rows)
    offsets = table.requests.view(_offset(layout.request_entry, _fetch_offset(layout)))["offset"].take(rows)
    more: np.ndarray[tuple[int], np.dtype[np.bool_]] = table.known.take(rows) & (ends > offsets)
    return more


def _fetch_offset(layout: FetchLayout) -> int:
    """Return where fetch_offset begins in a partition's entry of a request, in bytes.

    From v9 on, the leader epoch is before it.
    """
    return 8 if layout.version >= 9 else 4


def _partition_max_bytes(table: PartitionTable, row: int) -> int:
    """Return the partition_max_bytes of a row. It is the last field of a request's entry before the tags."""
    layout = table.layout
    end = (row + 1) * layout.request_entry - layout.flexible
    return int.from_bytes(table.request_bytes[end - _PARTITION_MAX_BYTES : end], signed=True)


@cache
def _offset(size: int, at: int) -> "np.dtype[np.void]":
    """Return the dtype of an entry of `size` bytes that has one int64 field at the offset `at`."""
    return np.dtype({"names": ["offset"], "formats": [">i8"], "offsets": [at], "itemsize": size})
