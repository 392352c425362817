"""Whether a response of the session serves partitions as a fetch without a session would. Sans-IO.

A broker reads partitions in a list's order until the response limit (max_bytes) is reached (KIP-74). A fetch
without a session has its own list; a session has another order, since who got records goes to its end
(KIP-227; fetch-semantics 2.5, 4 and trap 25a). Where the limit cuts nothing, the order does not matter.
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
    """Return whether a fetch without a session would have got the same records, as far as can be told.

    It can be told from the limit of the request, and from partitions that got no records although they have
    some. What a broker cuts by a lower limit of its own (fetch.max.bytes, a quota) can't be seen if every
    partition got something.

    Args:
        fetch: the fetch.
        table: what the session holds; the response has been applied, and the fetch was placed.
        rows: the row of each entry of the fetch.
        walk: the response.
        result: its entries that are not empty, in the session's order.
    """
    pairs = zip(result.rows, result.entries, strict=True)
    served = [row for row, entry in pairs if entry.records]
    if not served:
        return True
    places = table.position.take(served)
    last = int(places.max())
    # Who is read first may get a batch that is larger than its own limit (fetch-semantics 4, step 3).
    first = next(entry for entry in result.entries if entry.records)
    ordered = bool((places[1:] > places[:-1]).all())
    if not ordered and (
        walk.record_bytes >= fetch.max_bytes or first.records > _partition_max_bytes(table, served[0])
    ):
        return False
    # The first batch of a partition that is listed behind all who were served fits even less without a
    # session, where they are read before it.
    listed = rows[:last] if ordered else rows
    waiting = _has_more(table, listed)
    waiting[places[places < len(listed)]] = False
    # It was not read, but led elsewhere: to a replica (KIP-392) or to an earlier epoch.
    elsewhere = [row for row, entry in zip(result.rows, result.entries, strict=True) if entry.redirects]
    if elsewhere:
        led = table.position.take(elsewhere)
        waiting[led[led < len(listed)]] = False
    return not waiting.any()


def _has_more(table: PartitionTable, rows: Rows) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return which partitions have records that the client may read, from their fetch offset on."""
    layout = table.layout
    end_at = _LAST_STABLE_OFFSET if table.isolation_level else _HIGH_WATERMARK
    ends = table.cached_entries.view(_offset(layout.response_entry, end_at))["offset"].take(rows)
    offsets = table.requests.view(_offset(layout.request_entry, _fetch_offset(layout)))["offset"].take(rows)
    more: np.ndarray[tuple[int], np.dtype[np.bool_]] = table.known.take(rows) & (ends > offsets)
    return more


def _fetch_offset(layout: FetchLayout) -> int:
    """Return where fetch_offset stands in a request's entry: behind the leader epoch, from v9 on."""
    return 8 if layout.version >= 9 else 4


def _partition_max_bytes(table: PartitionTable, row: int) -> int:
    """Return a partition's own limit, the last field of a request's entry before its tags."""
    layout = table.layout
    end = (row + 1) * layout.request_entry - layout.flexible
    return int.from_bytes(table.request_bytes[end - _PARTITION_MAX_BYTES : end], signed=True)


@cache
def _offset(size: int, at: int) -> "np.dtype[np.void]":
    """Return entries of that size as offsets that stand at one place in them."""
    return np.dtype({"names": ["offset"], "formats": [">i8"], "offsets": [at], "itemsize": size})
