"""Decides whether a session's response has records of the same partitions as without a session. Sans-IO.

A broker reads partitions in list order until the response limit (max_bytes) is reached (KIP-74). Without a
session, this is the order of the fetch. In a session, partitions that returned records move to the end of the
list (KIP-227; fetch-semantics 2.5, 4 and trap 25a). The order only matters if not all available records fit.
"""

import numpy as np

from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.session.handler import SessionResult
from proxy.session.partitions import PartitionTable


def serves_in_order(
    fetch: FetchRequest, table: PartitionTable, rows: Rows, walk: FetchResponseWalk, result: SessionResult
) -> bool:
    """Return whether a fetch without a session would probably have got records of the same partitions.

    The result follows from the limit of the request, and from partitions that have records at the broker but
    none in the response. A lower limit at the broker (fetch.max.bytes, a quota) is not noticed if every
    partition got some records.

    `table` has the fetch and the response, `rows` the row of each entry of the fetch, and `result` the
    entries of the response that are not empty, in the session's order.
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
        walk.record_bytes >= fetch.max_bytes
        or first.records > table.requests[served[0]].view(table.layout.request_fields)["max_bytes"]
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
    end = "last_stable_offset" if table.isolation_level else "high_watermark"
    ends = table.cached_entries.view(table.layout.response_fields)[end].take(rows)
    offsets = table.requests.view(table.layout.request_fields)["offset"].take(rows)
    more: np.ndarray[tuple[int], np.dtype[np.bool_]] = table.known.take(rows) & (ends > offsets)
    return more
