"""Builds the full response to a fetch from the session's response. Sans-IO.

It has the entries of the session's response. For the partitions that are left out there, it has the table's
entries.
"""

from typing import Final

from proxy.core.fetch_in_flight import FetchHandler, Kept
from proxy.core.responses import rewritten_tags
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import REQUEST_CORRELATION_ID
from proxy.protocol.fetch_layout import LAYOUTS, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import FetchResponseWalk, response_head
from proxy.protocol.primitives import NO_TAGS, Buffer
from proxy.protocol.received import Received
from proxy.session.expand import Expansion, expand
from proxy.session.handler import FetchSessionHandler, SessionResult
from proxy.session.partitions import PartitionTable
from proxy.session.state import Action


def full_response(
    fetching: FetchHandler,
    response: Kept,
    walk: FetchResponseWalk,
    result: SessionResult,
    handler: FetchSessionHandler,
    resolve: Resolve | None,
) -> tuple[list[Buffer], int, int]:
    """Return the client's response in pieces, its size, and its number of partitions.

    Args:
        fetching: the fetch.
        response: the session's response to it.
        walk: the walk over that response.
        result: the meaning of that response for the session.
        handler: the session.
        resolve: returns the address of a broker for clients. None keeps addresses unchanged.
    """
    layout, fetch = LAYOUTS[fetching.version], fetching.asked
    correlation_id = fetch.frame[REQUEST_CORRELATION_ID]
    tags = _tags(fetching.version, response, walk, resolve)
    table, rotation = handler.table, handler.rotation
    # Sarama and Java accept a response without any entry if throttle_time_ms is not 0. They accept no
    # response in which only some entries are missing (fetch-semantics, trap 13; cases 81 and 97).
    if result.action is _EMPTY or table is None:
        content = response_head(layout, correlation_id, walk.throttle_time_ms)
        content += layout.count(0) + tags
        return [len(content).to_bytes(4) + content], 4 + len(content), 0
    received = response.frame or Received()
    starved = _starved(fetch, table, walk, result) if table.behind else []
    if rotation is not None:
        rotation.suspect(result.news)
        if fetching.first >= 0 and not starved:
            expanded = rotation.expand(
                fetching.first,
                list(zip(result.rows, result.entries, strict=True)),
                received,
                entry_bytes=result.size,
                correlation_id=correlation_id,
                throttle_time_ms=walk.throttle_time_ms,
                tags=tags,
            )
            return *expanded, fetch.partitions
    listing, rows = located(fetching, table)
    what = Expansion(
        layout=layout,
        listing=listing,
        table=table,
        rows=rows,
        entries=result.entries,
        entry_rows=result.rows,
        entry_bytes=result.size,
        late=result.late,
        starved=starved,
        received=received,
        correlation_id=correlation_id,
        throttle_time_ms=walk.throttle_time_ms,
        tags=tags,
    )
    pieces, size = expand(what)
    return pieces, size, len(listing)


def located(fetching: FetchHandler, table: PartitionTable) -> tuple[Listing, Rows]:
    """Return the partitions of a fetch and the row of each entry. Store their positions in the table."""
    listing, rows = fetching.listing, fetching.rows
    if listing is None:
        raise RuntimeError("only what a plain consumer lists is expanded")
    if rows is None:
        rows = fetching.rows = table.locate(listing)
        table.place(rows)
    return listing, rows


def _tags(version: int, response: Kept, walk: FetchResponseWalk, resolve: Resolve | None) -> bytes:
    """Return the body's tags for the client. Return nothing below v12."""
    if walk.tags_at < 0:
        return b""
    if response.received - walk.tags_at == len(NO_TAGS):
        return NO_TAGS
    frame = response.frame
    tags = b"".join(frame.span(walk.tags_at, response.received)) if frame is not None else NO_TAGS
    return rewritten_tags(tags, walk.tags, version, resolve)


def _starved(
    fetch: FetchRequest, table: PartitionTable, walk: FetchResponseWalk, result: SessionResult
) -> list[int]:
    """Return the rows whose first batch did not fit a read_committed fetch.

    The broker left them out, although they have records below their last stable offset. This differs from
    partitions that the broker did not read at all, because max_bytes was used up (fetch-semantics 1.4).
    """
    if not 0 < walk.record_bytes < fetch.max_bytes:
        return []
    return sorted(table.behind.difference(result.rows))


# Members of an enum are looked up slowly.
_EMPTY: Final = Action.EMPTY
