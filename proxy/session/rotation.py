"""A fast path for fetches of one topic that list the table's rows in order, starting at any row.

librdkafka rotates its list: each fetch starts one partition later, and continues with the first partition
after the last one. Such a fetch is compared as bytes, and its response is copied in two pieces, without
reordering columns. The result is the same as that of `handler` and `expand`, which work for any list: what
changes in the frame to the broker changes in `Rotation` and in `FetchSessionHandler.incremental`.
"""

from collections.abc import Sequence
from typing import Final

from proxy.protocol.api import (
    API_KEY_AND_VERSION,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START_BYTES,
    RESPONSE_START_BYTES,
    ErrorCode,
)
from proxy.protocol.fetch_layout import PARTITION_BYTES, SESSION
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import PartitionResponse, Received, response_head
from proxy.protocol.primitives import Buffer
from proxy.session.expand import COPIED, FOUND_BEFORE_READING
from proxy.session.partitions import PartitionTable

_CORRELATION_ID_BYTES: Final = RESPONSE_START_BYTES - LENGTH_BYTES
_MAX_SUSPECTS: Final = 16
"""With more suspected rows than this, comparing columns is faster."""


class Rotation:
    """A template of fetches that list all rows of a table in order, from any row on.

    `request` must be such a fetch, in the table's version, with contiguous entries.
    """

    __slots__ = (
        "_at",
        "_bare",
        "_bare_kind",
        "_element",
        "_end",
        "_first",
        "_full",
        "_full_bytes",
        "_key",
        "_limits",
        "_rest",
        "_start",
        "_suspects",
        "table",
        "topics",
    )

    def __init__(self, request: FetchRequest, table: PartitionTable) -> None:
        frame, layout = request.frame, request.layout
        self.table = table
        self.topics = request.topics
        """All fetches that match the template share this object."""
        self._key = request.topics.keys[0]
        self._at = request.topics.blocks[0][0]
        self._start = frame[API_KEY_AND_VERSION]
        self._limits = frame[REQUEST_START_BYTES : request.body + layout.request_session]
        self._rest = layout.count(0) + frame[request.tail :]
        self._element = layout.count(1) + layout.prefix(self._key, table.size)
        self._bare = layout.count(0) + self._rest
        """The last bytes of an incremental fetch that changes nothing."""
        size = len(self._start) + _CORRELATION_ID_BYTES + len(self._limits) + SESSION.size + len(self._bare)
        self._bare_kind = size.to_bytes(LENGTH_BYTES) + self._start
        self._full = response_head(layout, b"", 0) + self._element
        """The first bytes of a full response that is not throttled, after the correlation id."""
        self._end = b"\0\0" if layout.flexible else b""
        self._full_bytes = _CORRELATION_ID_BYTES + len(self._full) + len(self._end)
        """The size of a response that is not throttled, without its length field and its entries."""
        self._suspects: list[int] = []
        self._first = 0
        """The row of the last fetch's first entry."""

    def suspect(self, rows: Sequence[int]) -> None:
        """Store the rows for which the broker sent entries: the next fetch will probably change them."""
        self._suspects = sorted(rows) if len(rows) <= _MAX_SUSPECTS else []

    def first(self, frame: bytes) -> int:
        """Return the table row of the first partition in a fetch, or -1 if the table does not have it."""
        table, at = self.table, self._at
        item, last = table.layout.request_entry, self._first
        # Usually it is the row after the last fetch's first row, or that row itself. The table's lookup
        # touches more memory than the whole rest of such a fetch.
        for row in ((last + 1) % table.size, last):
            if frame.startswith(table.request_bytes[row * item : row * item + PARTITION_BYTES], at):
                break
        else:
            row = table.row(self._key, int.from_bytes(frame[at : at + PARTITION_BYTES]))
        self._first = max(row, 0)
        return row

    def altered(self, frame: bytes, first: int) -> list[tuple[int, bytes]] | None:
        """Return the changed entries of a fetch, each with its row and its bytes, in the order of the fetch.

        Return None if the fetch is not a rotation, or if an entry has changed that is not in the rows given
        to `suspect`, or in another field than its offset and epochs. `first` is the row of the fetch's first
        entry.
        """
        requested, layout = self.table.request_bytes, self.table.layout
        item, rest = layout.request_entry, layout.request_rest
        found: list[tuple[int, bytes]] = []
        at, suspects = self._at, self._suspects
        if not suspects:
            behind = at + (self.table.size - first) * item
            alike = frame.startswith(requested[first * item : self.table.size * item], at)
            return found if alike and frame.startswith(requested[: first * item], behind) else None
        for start, end in ((first, self.table.size), (0, first)):
            row = start
            for suspect in (*[each for each in suspects if start <= each < end], end):
                if not frame.startswith(requested[row * item : suspect * item], at):
                    return None
                at += (suspect - row) * item
                row = suspect
                if row < end:
                    known = requested[row * item : row * item + item]
                    if not frame.startswith(known, at):
                        if not frame.startswith(known[:PARTITION_BYTES], at):
                            return None  # another partition
                        if not frame.startswith(known[rest:], at + rest):
                            return None  # another limit: a stage may change the fetch by it
                        found.append((row, frame[at : at + item]))
                    at += item
                    row += 1
        return found

    def delta(self, frame: bytes, altered: Sequence[tuple[int, bytes]], session: tuple[int, int]) -> bytes:
        """Build the incremental fetch with the entries that `altered` has returned."""
        correlation_id, pair = frame[REQUEST_CORRELATION_ID], SESSION.pack(*session)
        if not altered:
            return b"".join((self._bare_kind, correlation_id, self._limits, pair, self._bare))
        layout = self.table.layout
        entries = b"".join([entry for _, entry in altered])
        end = b"\x00" if layout.flexible else b""
        listed = layout.count(1) + layout.prefix(self._key, len(altered)) + entries + end
        content = b"".join(
            (
                self._start,
                correlation_id,
                self._limits,
                pair,
                listed,
                self._rest,
            )
        )
        return len(content).to_bytes(LENGTH_BYTES) + content

    def apply(self, altered: Sequence[tuple[int, bytes]]) -> None:
        for row, entry in altered:
            self.table.alter_row(row, entry)

    def expand(
        self,
        first: int,
        entries: Sequence[tuple[int, PartitionResponse]],
        received: Received,
        *,
        entry_bytes: int,
        correlation_id: bytes,
        throttle_time_ms: int,
        tags: bytes,
    ) -> tuple[list[Buffer], int]:
        """Return the full response to a fetch in pieces, and its size in bytes. See `expand.expand`.

        `first` is the row of the fetch's first entry. `entries` are forwarded unchanged, each with its row,
        and have `entry_bytes` bytes together. `tags` is the tag buffer of the body, empty below v12.
        """
        layout, count = self.table.layout, self.table.size
        head = response_head(layout, correlation_id, throttle_time_ms) + self._element
        end = b"\x00" + tags if layout.flexible else tags
        cached_bytes = (count - len(entries)) * layout.response_entry
        size = LENGTH_BYTES + len(head) + cached_bytes + entry_bytes + len(end)
        pieces: list[Buffer] = []
        parts: list[Buffer] = [(size - LENGTH_BYTES).to_bytes(LENGTH_BYTES), head]
        late: list[PartitionResponse] = []
        done = 0
        places = [(row - first) % count for row, _ in entries]
        for number in sorted(range(len(places)), key=places.__getitem__):
            place, entry = places[number], entries[number][1]
            if place > done:
                parts += self._cached(first + done, first + place)
            done = place + 1
            # Errors found before reading come after all entries that were read (fetch-semantics 2.4).
            if entry.error_code and entry.error_code in FOUND_BEFORE_READING:
                late.append(entry)
            elif entry.end - entry.start < COPIED:
                parts += entry.views or received.span(entry.start, entry.end)
            else:
                if parts:
                    pieces.append(b"".join(parts))
                    parts = []
                pieces += entry.views or received.span(entry.start, entry.end)
        parts += self._cached(first + done, first + count)
        # A broker looks up all topic ids first, so 100 comes before 3 and 29 (fetch-semantics 2.4).
        for entry in sorted(late, key=_after_unknown_ids):
            parts += entry.sent(received)
        parts.append(end)
        pieces.append(b"".join(parts))
        return pieces, size

    def full(self, first: int, row: int, sent: bytes, correlation_id: bytes) -> bytes:
        """Return the full response for the client, like `expand`, but for a simple response of the broker.

        A simple response is not throttled, has no tags, and has at most one entry, without an error. `row` is
        the row of that entry, or -1, and `sent` are its bytes.
        """
        table = self.table
        cached, item = table.cached_bytes, table.layout.response_entry
        at, end, size = first * item, table.size * item, self._full_bytes + table.size * item
        if row < 0:
            entries: list[Buffer] = [cached[at:end], cached[:at]]
        else:
            place, size = row * item, size - item + len(sent)
            if row >= first:
                entries = [cached[at:place], sent, cached[place + item : end], cached[:at]]
            else:
                entries = [cached[at:end], cached[:place], sent, cached[place + item : at]]
        return b"".join((size.to_bytes(LENGTH_BYTES), correlation_id, self._full, *entries, self._end))

    def _cached(self, start: int, end: int) -> list[memoryview]:
        """Return the cached entries of the rows from `start` to `end`, wrapping around at the last row."""
        table, item, count = self.table, self.table.layout.response_entry, self.table.size
        if start < count < end:
            return [
                table.cached_bytes[start * item : count * item],
                table.cached_bytes[: (end - count) * item],
            ]
        if start >= count:
            start, end = start - count, end - count
        return [table.cached_bytes[start * item : end * item]] if end > start else []


def _after_unknown_ids(entry: PartitionResponse) -> bool:
    return entry.error_code != ErrorCode.UNKNOWN_TOPIC_ID
