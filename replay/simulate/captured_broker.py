"""Simulates a broker's incremental responses from the full responses in a capture. Sans-IO.

In a session a broker leaves out partitions that have not changed since it last sent them. It orders
partitions itself: after it has sent records of a partition, it moves this partition to the end
(FetchSession.java: IncrementalFetchContext, CachedPartition).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import Entries, FetchLayout, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import PartitionResponse, response_head
from proxy.protocol.primitives import Buffer
from proxy.session.partitions import PartitionTable, extended
from replay.simulate.captured_response import CapturedResponse

SESSION_ID: Final = 1
"""The id of every simulated session. A connection has only one at a time."""

_LAST: Final = 1 << 48
_BEFORE_READING: Final[dict[int, int]] = {
    ErrorCode.UNKNOWN_TOPIC_ID: _LAST,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2 * _LAST,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 2 * _LAST,
}
"""Errors that the broker finds before it reads the log. Entries with these errors come last in a response,
unknown ids first among them."""
_UNSEEN: Final = -1
_FEW: Final = 16
"""Up to this many partitions are looked up one by one; more are looked up in columns."""

_Offsets = npt.NDArray[np.int64]
_NO_OFFSETS: Final = np.zeros(0, np.int64)
_NO_FLAGS: Final = np.zeros(0, np.bool_)

_HIGH: Final = Struct("<q")
"""The format of offsets for comparisons. They are only compared for equality, so the byte order does not
matter. -1 has the same bytes in both orders."""


@cache
def _bounds(size: int) -> np.dtype[np.void]:
    """Return the numpy type of response entries of this size (v5 and later)."""
    names, formats, offsets = ["partition", "high", "start"], [">u4", "<i8", "<i8"], [0, 6, 22]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


@dataclass(slots=True, eq=False)
class IncludedEntry:
    """An entry of an incremental response."""

    row: int
    key: bytes
    pieces: Sequence[Buffer]
    records: int
    """How many bytes of `pieces` are records."""


class NewEntry(NamedTuple):
    """An entry of a captured response that the broker sends in the session, too."""

    row: int
    start: int
    """Where it begins in the response."""
    end: int
    records: int
    """How many of its bytes are records."""


@dataclass(slots=True, eq=False)
class Element:
    """A topic in a response, with its entries."""

    key: bytes
    partitions: int
    records: int
    pieces: list[Buffer]


class CapturedBroker:
    """A simulated broker with the session of one connection.

    With `moves_all`, every partition sent moves to the end, as in brokers up to 2.8 (KAFKA-12330). In later
    brokers only partitions sent with records move.
    """

    def __init__(self, *, moves_all: bool = False) -> None:
        self.moves_all = moves_all
        self._table: PartitionTable | None = None
        self._high: _Offsets = _NO_OFFSETS
        self._start: _Offsets = _NO_OFFSETS
        self._rank: _Offsets = _NO_OFFSETS
        self._named = _NO_FLAGS
        self._gone = set[bytes]()
        """The ids of topics that were deleted while a fetch waited for records."""
        self._unnamed = frozenset[bytes]()
        """Those of `_gone` that were deleted before the session was made. It never knew their names."""
        self._ranks = 0
        self._size = 0
        """The number of partitions in the session (rows that have a rank)."""

    def make(self, table: PartitionTable, listing: Listing, response: CapturedResponse) -> bool:
        """Create a session from a full fetch (epoch 0) and its response, of v7 or later.

        Return False if the broker created none: the response is an error, or a throttle emptied it.
        """
        walk = response.walk
        if walk.error_code or (not walk.partitions and walk.throttle_time_ms):
            self._table = None
            return False
        self._table = table
        table.arranged = self._arranged
        self._high = self._start = self._rank = _NO_OFFSETS
        self._named = _NO_FLAGS
        self._unnamed = frozenset(self._gone)
        self._ranks = self._size = 0
        self.add(table.locate(listing))
        self._note_empties(response)
        for place, entry in sorted(self._others(response), key=_place):
            if place >= _LAST:
                self._to_the_end(entry.row)
        return True

    def follow(self, sent: FetchRequest) -> tuple[int, int]:
        """Apply an incremental fetch. Return how many partitions it adds and how many it forgets."""
        table = self._session_table()
        if table.size == self._size and self._only_alters(table, sent):
            return 0, 0
        forgotten = self.forget()
        listing = sent.listing
        return self.add(table.locate(listing)) if listing is not None and sent.partitions else 0, forgotten

    def _only_alters(self, table: PartitionTable, sent: FetchRequest) -> bool:
        """Return True if a fetch is known to add no partition. One of more than `_FEW` is not checked."""
        topics, size = sent.topics, sent.layout.request_entry
        if topics.partitions > _FEW or len(topics.keys) != len(topics.blocks):
            return not topics.partitions
        for key, (start, count) in zip(topics.keys, topics.blocks, strict=True):
            for at in range(start, start + count * size, size):
                row = table.row(key, int.from_bytes(sent.frame[at : at + 4]))
                if not 0 <= row < len(self._rank) or not self._rank[row]:
                    return False
        return True

    def add(self, rows: Rows) -> int:
        """Add the partitions of a delta that are new, from their rows in the table. Return how many."""
        table = self._session_table()
        size = len(table.topic)
        if size > len(self._rank):
            self._high = extended(self._high, size, _UNSEEN)
            self._start = extended(self._start, size, _UNSEEN)
            self._rank = extended(self._rank, size)
            self._named = extended(self._named, size)
        new = rows[self._rank[rows] == 0]
        self._high[new] = self._start[new] = _UNSEEN
        self._named[new] = False
        self._rank[new] = np.arange(self._ranks + 1, self._ranks + 1 + len(new))
        self._ranks += len(new)
        self._size += len(new)
        return len(new)

    def forget(self) -> int:
        """Drop the partitions that are no longer in the table. Return how many were dropped."""
        gone = (self._session_table().topic[: len(self._rank)] == 0) & (self._rank > 0)
        self._rank[gone] = 0
        count = int(np.count_nonzero(gone))
        self._size -= count
        return count

    def response(self, response: CapturedResponse, listing: Listing) -> tuple[list[Buffer], list[Element]]:
        """Return the incremental response: the frame in pieces, and its topic elements.

        The captured full response is of v7 or later. All partitions of `listing` are in the session.
        """
        layout, walk = response.layout, response.walk
        if walk.error_code:
            return list(response.pieces), []
        included = sorted(self._included(response, listing), key=_place)
        for _, entry in included:
            if entry.records or self.moves_all:
                self._to_the_end(entry.row)
        head = response_head(layout, response.correlation_id, walk.throttle_time_ms, SESSION_ID)
        elements = _elements(layout, [entry for _, entry in included])
        body = [piece for element in elements for piece in element.pieces]
        pieces: list[Buffer] = [b"", head, layout.count(len(elements)), *body, *response.tags]
        pieces[0] = sum(map(len, pieces)).to_bytes(4)
        return pieces, elements

    def sent(self, rows: Sequence[int], filled: Sequence[int]) -> None:
        """Note the order after a response with entries of `rows`, those of `filled` with records.

        `note_offsets` notes the rest before anything else happens.
        """
        for row in self.in_order(rows if self.moves_all else filled):
            self._to_the_end(row)

    def note_offsets(self, rows: Rows, entries: Entries) -> None:
        """Store the offsets of entries that the session has sent without an error."""
        fields = entries.view(_bounds(self._session_table().layout.response_entry))
        self._high[rows], self._start[rows] = fields["high"], fields["start"]

    def in_order(self, rows: Sequence[int]) -> list[int]:
        """Return these rows in the session's order."""
        return sorted(rows, key=self._rank.item)

    def _arranged(self, order: Rows) -> None:
        for column in (self._high, self._start, self._rank, self._named):
            column[: len(order)] = column[order]

    def _to_the_end(self, row: int) -> None:
        self._ranks += 1
        self._rank[row] = self._ranks

    def _session_table(self) -> PartitionTable:
        if self._table is None:
            raise RuntimeError("no session was made")
        return self._table

    def _included(self, response: CapturedResponse, listing: Listing) -> Iterator[tuple[int, IncludedEntry]]:
        """Yield the entries that a session would send, each with its rank, and store their offsets."""
        if not response.errors and response.lists(listing):
            rows = self._session_table().locate(listing)
            if len(rows) and rows.min() >= 0:
                yield from self._included_of_all(response, rows)
                return
        for key, entries, rows, changed in self._note_empties(response):
            for at in changed.tolist():
                row = int(rows[at])
                yield int(self._rank[row]), IncludedEntry(row, key, [entries[at].tobytes()], 0)
        yield from self._others(response)

    def _included_of_all(self, response: CapturedResponse, rows: Rows) -> Iterator[tuple[int, IncludedEntry]]:
        """Do the same for a response without errors, whose entries are at these rows of the table."""
        table, entries = self._session_table(), response.entries
        fields = entries.view(_bounds(response.layout.response_entry))
        high, start = fields["high"], fields["start"]
        news = (self._high[rows] != high) | (self._start[rows] != start)
        self._high[rows], self._start[rows], self._named[rows] = high, start, True
        for at, entry in response.placed_entries:
            row = int(rows[at])
            if news[at] or entry.records or entry.redirects:
                pieces = response.part(entry.start, entry.end)
                yield int(self._rank[row]), IncludedEntry(row, entry.key, pieces, entry.records)
            news[at] = False
        for at in news.nonzero()[0].tolist():
            row = int(rows[at])
            key = table.key(int(table.topic[row]))
            yield int(self._rank[row]), IncludedEntry(row, key, [entries[at].tobytes()], 0)

    def _note_empties(self, response: CapturedResponse) -> list[tuple[bytes, Entries, Rows, Rows]]:
        """Store the offsets of empty entries.

        Return for each topic with changes its key, its empty entries, their rows, and the positions of the
        changed ones.
        """
        table, layout = self._session_table(), response.layout
        found = []
        for key, entries in response.empty_entries:
            fields = entries.view(_bounds(layout.response_entry))
            rows = table.rows(key, fields["partition"])
            if rows.min() < 0:  # the fetch did not list one of them
                continue
            self._named[rows] = True
            changes = (self._high[rows] != fields["high"]) | (self._start[rows] != fields["start"])
            if not changes.any():
                continue
            known = rows[changes]
            self._high[known], self._start[known] = fields["high"][changes], fields["start"][changes]
            found.append((key, entries, rows, changes.nonzero()[0]))
        return found

    def _others(self, response: CapturedResponse) -> Iterator[tuple[int, IncludedEntry]]:
        """Yield the entries of `_included` that are not empty."""
        table = self._session_table()
        for entry in response.other_entries:
            row = table.row(entry.key, entry.partition)
            if row < 0:
                continue
            if self._changed(entry, row) or entry.records or entry.redirects or entry.error_code:
                pieces, code = self._as_in_session(response, entry, row)
                place = int(self._rank[row]) + _BEFORE_READING.get(code, 0)
                yield place, IncludedEntry(row, entry.key, pieces, entry.records)

    def _as_in_session(
        self, response: CapturedResponse, entry: PartitionResponse, row: int
    ) -> tuple[list[memoryview], int]:
        """Return an entry and its error in the form of a session."""
        start, code = entry.start, entry.error_code
        if code != ErrorCode.UNKNOWN_TOPIC_ID:
            self._named[row] = True
        elif self._named[row] and entry.key not in self._unnamed:  # the session has known the topic id
            code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            patch = memoryview(code.to_bytes(2))
            return [*response.part(start, start + 4), patch, *response.part(start + 6, entry.end)], code
        return response.part(start, entry.end), code

    def _changed(self, entry: PartitionResponse, row: int) -> bool:
        high, start = _high_and_start(entry.fixed, 0)
        changed = bool(self._high[row] != high or self._start[row] != start)
        if entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._high[row] != _UNSEEN:
            self._gone.add(entry.key)  # the partition existed
        self._high[row] = _UNSEEN if entry.error_code else high
        self._start[row] = start
        return changed


def _high_and_start(entries: Buffer, at: int) -> tuple[int, int]:
    """Return the offsets of the entry at a place that decide whether a session sends it."""
    return _HIGH.unpack_from(entries, at + 6)[0], _HIGH.unpack_from(entries, at + 22)[0]


def _place(pair: tuple[int, IncludedEntry]) -> int:
    return pair[0]


def _elements(layout: FetchLayout, included: Sequence[IncludedEntry]) -> list[Element]:
    """Group entries into topic elements. Consecutive entries of one topic share an element."""
    end = b"\x00" if layout.flexible else b""
    elements: list[Element] = []
    start = 0
    for at in range(1, len(included) + 1):
        if at == len(included) or included[at].key != included[start].key:
            entries = included[start:at]
            pieces: list[Buffer] = [layout.prefix(included[start].key, at - start)]
            pieces += [piece for entry in entries for piece in entry.pieces]
            records = sum(entry.records for entry in entries)
            elements.append(Element(included[start].key, at - start, records, [*pieces, end]))
            start = at
    return elements
