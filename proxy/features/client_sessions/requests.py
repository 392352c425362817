"""Builds the full fetches that replace a client's fetches of a session. Sans-IO."""

from collections.abc import Iterable
from typing import Final

from proxy.features.client_sessions.partitions import SessionPartitions
from proxy.protocol.api import API_KEY, LENGTH_BYTES, REQUEST_CORRELATION_ID
from proxy.protocol.fetch_layout import LAYOUTS, SESSION, SESSION_VERSION
from proxy.protocol.fetch_request import MAX_TOPICS, SESSIONLESS_EPOCH, FetchRequest
from proxy.protocol.primitives import NO_TAGS, Buffer

_NO_SESSION: Final = SESSION.pack(0, SESSIONLESS_EPOCH)


def sessionless(fetch: FetchRequest, version: int) -> bytes:
    """Return a client's full fetch as a fetch without a session.

    `version` is that of the fetch, or v5 or v6 for a fetch of v7.
    """
    if version >= SESSION_VERSION:
        return fetch.with_session(0, SESSIONLESS_EPOCH)
    start = fetch.body + fetch.layout.request_head
    return _frame(fetch, version, [fetch.frame[start : fetch.topics_end]])


def full_fetch(fetch: FetchRequest, partitions: SessionPartitions, version: int) -> bytes | None:
    """Return the full fetch that replaces an incremental fetch. None if it has more than `MAX_TOPICS` topics.

    It keeps the fetch's header, limits, rack and tags, and lists `partitions` in their order
    (fetch-semantics, trap 39). `version` is as in `sessionless`.
    """
    layout = LAYOUTS[version]
    elements, entries = partitions.listed(layout)
    if len(elements) > MAX_TOPICS:
        return None
    size = layout.request_entry
    parts: list[Buffer] = [layout.count(len(elements))]
    for key, start, end in elements:
        parts += (layout.prefix(key, end - start), entries[start * size : end * size])
        if layout.flexible:
            parts.append(NO_TAGS)
    return _frame(fetch, version, parts)


def _frame(fetch: FetchRequest, version: int, topics: Iterable[Buffer]) -> bytes:
    frame = fetch.frame
    parts: list[Buffer] = [
        frame[API_KEY],
        version.to_bytes(2),
        frame[REQUEST_CORRELATION_ID.start : fetch.body + fetch.layout.request_session],
    ]
    if version >= SESSION_VERSION:
        parts.append(_NO_SESSION)
    parts += topics
    if version >= SESSION_VERSION:
        parts.append(LAYOUTS[version].count(0))
    parts.append(frame[fetch.tail :])
    return b"".join([sum(map(len, parts)).to_bytes(LENGTH_BYTES), *parts])
