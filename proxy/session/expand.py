"""Expands a session's response to the response that a broker would have sent without a session.

It has an entry for each requested partition, in the order of the request (`_order`; `Rotation` for the lists
that it knows). Entries with errors of `FOUND_BEFORE_READING` are last. The entry is the broker's, or the
cached one if the broker sent none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from proxy.protocol.api import LENGTH_BYTES, ErrorCode
from proxy.protocol.fetch_layout import FetchLayout, Rows
from proxy.protocol.fetch_request import Listing
from proxy.protocol.fetch_response import PartitionResponse, Received, response_head
from proxy.protocol.primitives import Buffer
from proxy.protocol.versions import narrow_entries, narrow_entry
from proxy.session.partitions import PartitionTable

FOUND_BEFORE_READING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors that a broker finds before it reads. It sends entries with these errors after the entries that it
read (fetch-semantics 2.4). In request order are only the entry of a partition that is dropped while the fetch
waits, and up to Kafka 1.1 that of an unknown partition of a known topic. fetchgate does not imitate this,
because error 3 also means an unknown topic. No client depends on this order (trap 23)."""
COPIED: Final = 1 << 12
"""Entries below this many bytes are copied, because a separate piece would cost more."""
_UNIFORM_WORTH: Final = 8
"""From this many topics on, topics of one shape are written as columns, without a step for each."""


@dataclass(slots=True, eq=False, kw_only=True)
class Expansion:
    """The parts from which an expanded response is made."""

    layout: FetchLayout
    """That of the client's version. For v4 to v6, the table's layout is v7."""
    listing: Listing
    table: PartitionTable
    rows: Rows
    """For each partition of `listing`, its row in the table."""
    entries: Sequence[PartitionResponse]
    """The entries that are forwarded as the broker sent them."""
    entry_rows: Sequence[int]
    """The row of each of `entries`."""
    entry_bytes: int
    """The size of `entries` in bytes."""
    late: bool
    """Whether some of `entries` have errors of `FOUND_BEFORE_READING`."""
    received: Received
    """The frame that the broker sent."""
    starved: Sequence[int]
    """The rows of partitions whose records did not fit into the response."""
    correlation_id: bytes
    throttle_time_ms: int
    tags: bytes
    """The tag buffer at the end of the body. Empty below v12."""


def expand(expansion: Expansion) -> tuple[list[Buffer], int]:
    """Return the complete frame for the client, in pieces, and its size.

    Large pieces are views of `expansion.received`, so records are not copied.
    """
    order = _order(expansion)
    rows: Rows = expansion.rows
    positions = expansion.table.position.take(np.array(expansion.entry_rows, np.intp)).astype(np.intp)
    if order is None:
        keys, counts = expansion.listing.keys, expansion.listing.counts
    else:
        keys, counts = _regrouped(expansion.listing, order)
        rows = expansion.rows.take(order)
        places = np.empty(len(order), np.intp)
        places[order] = np.arange(len(order))
        positions = places[positions]
    template, starts = _template(expansion, keys, counts, rows)
    return _spliced(expansion, template, starts, counts, positions.tolist())


def _order(expansion: Expansion) -> Rows | None:
    """Return the request's positions in the order of the response. None if both orders are equal."""
    if not expansion.late:
        return None
    found = sorted(
        # A broker looks up all topic ids first, so 100 comes before 3 and 29 (fetch-semantics 2.4).
        (entry.error_code != ErrorCode.UNKNOWN_TOPIC_ID, int(expansion.table.position[row]))
        for entry, row in zip(expansion.entries, expansion.entry_rows, strict=True)
        if entry.error_code in FOUND_BEFORE_READING
    )
    late = [position for _, position in found]
    mask = np.ones(len(expansion.listing), np.bool_)
    mask[late] = False
    return np.concatenate([mask.nonzero()[0], np.array(late, np.intp)])


def _regrouped(listing: Listing, order: Rows) -> tuple[list[bytes], list[int]]:
    owners = np.repeat(np.arange(len(listing.keys)), listing.counts)[order].tolist()
    keys: list[bytes] = []
    counts: list[int] = []
    for owner in owners:
        key = listing.keys[owner]
        # Only neighbours share a topic element, as in the broker's response (fetch-semantics 2.5, case 36).
        if keys and keys[-1] == key:
            counts[-1] += 1
        else:
            keys.append(key)
            counts.append(1)
    return keys, counts


def _template(
    expansion: Expansion, keys: list[bytes], counts: list[int], rows: Rows
) -> tuple[bytearray, list[int]]:
    """Return a response with only cached entries, and the offset of each topic's entries in it."""
    layout = expansion.layout
    head = response_head(layout, expansion.correlation_id, expansion.throttle_time_ms) + layout.count(
        len(keys)
    )
    # For v4 to v6 the session speaks v7; log_start_offset came with v5 (fetch-semantics 1.4, trap 4).
    cached = expansion.table.cached_entries.take(rows)
    if expansion.starved:
        # A partition that did not fit gets an empty read without aborted transactions: null, never an empty
        # list (fetch-semantics 1.4 and 4, step 3).
        without_list = np.void(expansion.table.layout.empty_ends[0])
        cached.view(expansion.table.layout.response_fields)["end"][np.isin(rows, expansion.starved)] = (
            without_list
        )
    cached_entries = cached if layout is expansion.table.layout else narrow_entries(cached, layout)
    size = layout.response_entry
    end = 1 if layout.flexible else 0
    at = LENGTH_BYTES + len(head)
    if len(keys) >= _UNIFORM_WORTH and len(set(counts)) == 1 and len(set(map(len, keys))) == 1:
        first = layout.prefix(keys[0], counts[0])
        element = len(first) + counts[0] * size + end
        out = bytearray(at + len(keys) * element + len(expansion.tags))
        cells = np.ndarray((len(keys), element), np.uint8, out, at)
        cells[:, : len(first)] = np.frombuffer(first, np.uint8)
        key_at = len(first) - len(keys[0]) - len(layout.count(counts[0]))
        key_end = key_at + len(keys[0])
        cells[:, key_at:key_end] = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
        entries = cached_entries.view(np.uint8).reshape(len(keys), -1)
        cells[:, len(first) : len(first) + counts[0] * size] = entries
        starts = list(range(at + len(first), at + len(first) + len(keys) * element, element))
    else:
        body = cached_entries.view(np.uint8).data
        parts: list[Buffer] = [bytes(LENGTH_BYTES), head]
        starts = []
        done = 0
        for key, count in zip(keys, counts, strict=True):
            prefix = layout.prefix(key, count)
            at += len(prefix)
            starts.append(at)
            parts += (prefix, body[done : done + count * size], b"\x00"[:end])
            done += count * size
            at += count * size + end
        parts.append(expansion.tags)
        return bytearray().join(parts), starts
    out[LENGTH_BYTES : LENGTH_BYTES + len(head)] = head
    out[len(out) - len(expansion.tags) :] = expansion.tags
    return out, starts


def _spliced(
    expansion: Expansion, template: bytearray, starts: list[int], counts: list[int], positions: list[int]
) -> tuple[list[Buffer], int]:
    """Replace cached entries by the broker's entries, and write the frame's length."""
    size = expansion.layout.response_entry
    firsts = [0, *accumulate(counts)]
    pieces: list[Buffer] = []
    parts: list[Buffer] = []
    view = memoryview(template)
    done, topic = 0, 0
    total = len(template) + expansion.entry_bytes - len(positions) * expansion.table.layout.response_entry
    template[:LENGTH_BYTES] = (total - LENGTH_BYTES).to_bytes(LENGTH_BYTES)
    version = expansion.layout.version
    for number in sorted(range(len(positions)), key=positions.__getitem__):
        position, entry = positions[number], expansion.entries[number]
        while firsts[topic + 1] <= position:
            topic += 1
        at = starts[topic] + (position - firsts[topic]) * size
        if at > done:
            parts.append(view[done:at])
        if version > 5:
            sent = entry.views or expansion.received.span(entry.start, entry.end)
        else:
            sent = narrow_entry(expansion.received, entry, version)
        if entry.end - entry.start < COPIED:
            parts += sent
        else:
            if parts:
                pieces.append(b"".join(parts) if len(parts) > 1 else parts[0])
                parts = []
            pieces += sent
        done = at + size
    parts.append(view[done:])
    pieces.append(b"".join(parts))
    return pieces, total
