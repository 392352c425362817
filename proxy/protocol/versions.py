"""Fetch v4, v5 and v6 over a session: what changes between them and v7, the first version with sessions.

A fetch of these versions goes to the broker as v7. That is the one safe raise: v7 differs from them in the
fields of the session and in log_start_offset (v5) alone.
"""

from typing import Final

import numpy as np

from proxy.protocol.fetch_layout import LAYOUTS, SESSION_VERSION
from proxy.protocol.fetch_request import Listing

_REQUEST_LOG_START: Final = slice(12, 20)
"""log_start_offset in an entry of a v7 request; v4 does not have it."""


def raise_listing(listing: Listing) -> Listing:
    """Return what a fetch lists in the version of its session: v4 to v6 as v7, all others as they are.

    An entry of v4 gains log_start_offset -1.
    """
    version = listing.layout.version
    if version >= SESSION_VERSION:
        return listing
    target = LAYOUTS[SESSION_VERSION]
    entries = listing.entries
    if version == 4:
        narrow = np.frombuffer(entries.tobytes(), np.uint8).reshape(-1, listing.layout.request_entry)
        wide = np.full((len(entries), target.request_entry), 0xFF, np.uint8)
        wide[:, : _REQUEST_LOG_START.start] = narrow[:, : _REQUEST_LOG_START.start]
        wide[:, _REQUEST_LOG_START.stop :] = narrow[:, _REQUEST_LOG_START.start :]
        entries = wide.view(target.request_item).reshape(-1)
    return Listing(target, listing.keys, listing.counts, entries)
