"""Conversion between Fetch v4 to v6 and v7, the first version with sessions.

In a session the gateway uses v7 or later. It sends a fetch of v4 to v6 to the broker as v7, and the client
gets the response in its own version. No other version can be raised safely. v4 to v7 differ only in the
session fields, in log_start_offset (v5) and in error 56 (v6): fetch-semantics, traps 3 and 4.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import (
    ERROR_CODE,
    LOG_START_OFFSET,
    Entries,
    FetchLayout,
    session_layout,
)
from proxy.protocol.fetch_request import Listing
from proxy.protocol.fetch_response import PartitionResponse, Received

_REQUEST_LOG_START: Final = slice(12, 20)
"""log_start_offset in an entry of a v7 request."""


def raise_listing(listing: Listing) -> Listing:
    """Return a listing in the layout of its session. In an entry of v4, log_start_offset becomes -1."""
    narrow, wide = listing.layout, session_layout(listing.layout.version)
    if narrow is wide:
        return listing
    entries = listing.entries
    # v5 added log_start_offset; only a follower's has a meaning (fetch-semantics, trap 4).
    if narrow.version == 4:
        bytes_ = np.frombuffer(entries.tobytes(), np.uint8).reshape(-1, narrow.request_entry)
        widened = np.full((len(entries), wide.request_entry), 0xFF, np.uint8)
        widened[:, : _REQUEST_LOG_START.start] = bytes_[:, : _REQUEST_LOG_START.start]
        widened[:, _REQUEST_LOG_START.stop :] = bytes_[:, _REQUEST_LOG_START.start :]
        entries = widened.view(wide.request_item).reshape(-1)
    return Listing(wide, listing.keys, listing.counts, entries)


def narrow_entries(entries: Entries, layout: FetchLayout) -> Entries:
    """Return entries of a session's response in the client's layout. v4 has no log_start_offset."""
    if layout.version > 4:
        return entries
    wide = entries.view(np.uint8).reshape(len(entries), -1)
    parts = [wide[:, : LOG_START_OFFSET.start], wide[:, LOG_START_OFFSET.stop :]]
    narrow = np.ascontiguousarray(np.concatenate(parts, axis=1))
    return narrow.view(layout.response_item).reshape(-1)


def narrow_entry(frame: Received, entry: PartitionResponse, version: int) -> Sequence[memoryview]:
    """Return an entry of a session's response in the client's version.

    v4 has no log_start_offset. In v4 and v5, error 56 becomes error 6.
    """
    if version > 5:
        return entry.sent(frame)
    # KIP-112: clients up to v5 do not know 56, and a broker sends them 6 (fetch-semantics 2.6, case 74).
    if entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
        patched = bytearray(b"".join(entry.sent(frame)))
        patched[ERROR_CODE] = ErrorCode.NOT_LEADER_OR_FOLLOWER.to_bytes(2)
        frame, start, end = Received(bytes(patched)), 0, len(patched)
    else:
        start, end = entry.start, entry.end
    if version == 5:
        return frame.span(start, end)
    before = frame.span(start, start + LOG_START_OFFSET.start)
    return before + frame.span(start + LOG_START_OFFSET.stop, end)
