"""Requests of clients with sessions, and the full fetches that go on toward the broker. Sans-IO."""

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np

from proxy.fetch_manager.partitions import Partitions, SessionPartitions
from proxy.protocol.api import API_KEY, LENGTH_BYTES, REQUEST_CORRELATION_ID
from proxy.protocol.fetch_layout import LAYOUTS, PARTITION_BYTES, SESSION, SESSION_VERSION
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest
from proxy.protocol.primitives import (
    UUID_BYTES,
    Buffer,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    skip_tags,
)

Forgotten: TypeAlias = list[tuple[bytes, Partitions]]
"""Topic keys, and partition numbers of each."""

_NO_SESSION: Final = SESSION.pack(0, SESSIONLESS_EPOCH)
_NO_TAGS: Final = b"\x00"


def forgotten(fetch: FetchRequest) -> Forgotten:
    """Return the forgotten_topics_data of a fetch that was parsed."""
    return _Elements(fetch).forgotten()


def sessionless(fetch: FetchRequest, version: int) -> bytes:
    """Return a full fetch of a client, without what it says of sessions.

    Args:
        fetch: what it lists goes on as it is.
        version: that of the frame: the fetch's own, or below v7 if it is v7.
    """
    if version >= SESSION_VERSION:
        return fetch.with_session(0, SESSIONLESS_EPOCH)
    start = fetch.body + fetch.layout.request_head
    return _frame(fetch, version, [fetch.frame[start : _Elements(fetch).end]])


def full_fetch(fetch: FetchRequest, partitions: SessionPartitions, version: int) -> bytes:
    """Return the full fetch that stands for an incremental one.

    Args:
        fetch: its header, limits, rack and tags are kept.
        partitions: what is listed, in this order (fetch-semantics, trap 39).
        version: that of the frame: the fetch's own, or below v7 if it is v7.
    """
    layout = LAYOUTS[version]
    entries, size = partitions.entries(layout), layout.request_entry
    elements = partitions.elements()
    parts: list[Buffer] = [layout.count(len(elements))]
    for key, start, end in elements:
        parts += (layout.prefix(key, end - start), entries[start * size : end * size])
        if layout.flexible:
            parts.append(_NO_TAGS)
    return _frame(fetch, version, parts)


def _frame(fetch: FetchRequest, version: int, topics: Iterable[Buffer]) -> bytes:
    """Return a fetch without a session with other topics."""
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


class _Elements:
    """The elements of a request without tags. It was parsed before: nothing here is out of bounds."""

    __slots__ = ("_frame", "_layout", "_read_count", "end")

    def __init__(self, fetch: FetchRequest) -> None:
        self._frame, self._layout = fetch.frame, fetch.layout
        self._read_count = read_compact_count if fetch.layout.flexible else read_count
        count, at = self._read_count(fetch.frame, fetch.body + fetch.layout.request_head)
        for _ in range(count or 0):
            _, entries, at = self._start(at)
            at = self._end(at + entries * fetch.layout.request_entry)
        self.end = at
        """Offset behind ``topics``."""

    def forgotten(self) -> Forgotten:
        found: Forgotten = []
        count, at = self._read_count(self._frame, self.end)
        for _ in range(count or 0):
            key, partitions, at = self._start(at)
            numbers = np.frombuffer(self._frame, ">u4", partitions, at)
            found.append((key, numbers.astype(np.uint32)))
            at = self._end(at + PARTITION_BYTES * partitions)
        return found

    def _start(self, at: int) -> tuple[bytes, int, int]:
        """Return key and number of entries of an element, and the offset of its first entry."""
        frame, layout = self._frame, self._layout
        key: bytes | None
        if layout.topic_ids:
            key, at = frame[at : at + UUID_BYTES], at + UUID_BYTES
        else:
            key, at = (read_compact_string if layout.flexible else read_string)(frame, at)
        count, at = self._read_count(frame, at)
        return key or b"", count or 0, at

    def _end(self, at: int) -> int:
        return skip_tags(self._frame, at)[1] if self._layout.flexible else at
