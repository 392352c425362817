"""The broker of one connection, as far as its captured responses tell what it would have said in a session.

A capture of a client without sessions holds full responses. What an incremental response would have held
follows from them: the broker leaves out what it has said before in the session, keeps its own order, and
moves what it sent records of to the end (FetchSession.java: IncrementalFetchContext, CachedPartition).
Sans-IO.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import FetchLayout, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import PartitionResponse, response_head
from proxy.protocol.primitives import Buffer
from proxy.session.partitions import PartitionTable
from replay.simulate.captured_response import CapturedResponse

SESSION_ID: Final = 1
"""Every session that is modelled has this id: a connection holds one at a time."""

_LAST: Final = 1 << 48
_BEFORE_READING: Final[dict[int, int]] = {
    ErrorCode.UNKNOWN_TOPIC_ID: _LAST,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2 * _LAST,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 2 * _LAST,
}
"""Errors found before anything is read: their entries stand after all others, unknown ids first."""
_UNSEEN: Final = -1
_FEW: Final = 16
"""With more partitions it is the columns' turn."""

_Offsets = npt.NDArray[np.int64]

_HIGH: Final = Struct("<q")
"""Offsets are only compared, so their bytes are taken as they lie; -1 is -1 either way."""


@cache
def _bounds(size: int) -> np.dtype[np.void]:
    """Return where the bounds of a log stand in an entry of that size, v5 and later."""
    names, formats, offsets = ["partition", "high", "start"], [">u4", "<i8", "<i8"], [0, 6, 22]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


@dataclass(slots=True, eq=False)
class Told:
    """What a response tells of one partition, and where its bytes are."""

    row: int
    key: bytes
    pieces: Sequence[Buffer]
    records: int
    """Bytes of records among `pieces`."""


@dataclass(slots=True, eq=False)
class Element:
    """A topic element of a response."""

    key: bytes
    partitions: int
    records: int
    pieces: list[Buffer]


class CapturedBroker:
    """What the broker holds of the one session of a connection.

    Args:
        moves_all: brokers up to 2.8 move every partition that they send to the end (KAFKA-12330), later ones
            those with records.
    """

    def __init__(self, *, moves_all: bool = False) -> None:
        self.moves_all = moves_all
        self._table: PartitionTable | None = None
        self._high: _Offsets = np.zeros(0, np.int64)
        self._start: _Offsets = np.zeros(0, np.int64)
        self._rank: _Offsets = np.zeros(0, np.int64)
        self._named = np.zeros(0, np.bool_)
        self._ranks = 0
        self._size = 0
        """Partitions in the session: those that have a rank."""

    def make(self, table: PartitionTable, listing: Listing, response: CapturedResponse) -> bool:
        """Take a full fetch with epoch 0 and its response, of v7 or later.

        Returns:
            False if the broker made no session: the response is an error, or was thrown away to throttle.
        """
        walk = response.walk
        if walk.error_code or (not walk.partitions and walk.throttle_time_ms):
            self._table = None
            return False
        self._table = table
        table.arranged = self._arranged
        self._high, self._start, self._rank = (np.zeros(0, np.int64) for _ in range(3))
        self._named = np.zeros(0, np.bool_)
        self._ranks = self._size = 0
        self.add(table.locate(listing))
        for place, entry in sorted(self._included(response), key=_place):
            if place >= _LAST:
                self._to_the_end(entry.row)
        return True

    def follow(self, sent: FetchRequest) -> tuple[int, int]:
        """Take an incremental fetch; return how many partitions it adds, and how many it drops."""
        table = self._held()
        if table.size == self._size and self._only_alters(table, sent):
            return 0, 0
        forgotten = self.forget()
        listing = sent.listing
        return self.add(table.locate(listing)) if listing is not None and sent.partitions else 0, forgotten

    def _only_alters(self, table: PartitionTable, sent: FetchRequest) -> bool:
        """Whether a fetch lists a few partitions, all of them held; not to be asked for more."""
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
        """Append what a delta lists and the session lacks; return how many partitions that is.

        Args:
            rows: the table's row of each entry of the delta.
        """
        table = self._held()
        lack = len(table.topic) - len(self._rank)
        if lack > 0:
            self._high = np.append(self._high, np.full(lack, _UNSEEN, np.int64))
            self._start = np.append(self._start, np.full(lack, _UNSEEN, np.int64))
            self._rank = np.append(self._rank, np.zeros(lack, np.int64))
            self._named = np.append(self._named, np.zeros(lack, np.bool_))
        new = rows[self._rank[rows] == 0]
        self._high[new] = self._start[new] = _UNSEEN
        self._named[new] = False
        self._rank[new] = np.arange(self._ranks + 1, self._ranks + 1 + len(new))
        self._ranks += len(new)
        self._size += len(new)
        return len(new)

    def forget(self) -> int:
        """Drop what the table no longer holds; return how many partitions that is."""
        gone = (self._held().topic[: len(self._rank)] == 0) & (self._rank > 0)
        self._rank[gone] = 0
        count = int(np.count_nonzero(gone))
        self._size -= count
        return count

    def response(self, response: CapturedResponse) -> tuple[list[Buffer], list[Element]]:
        """Return the incremental response: the whole frame in pieces, and its topic elements.

        Args:
            response: the full response that was captured, of v7 or later.
        """
        layout, walk = response.layout, response.walk
        if walk.error_code:
            return list(response.pieces), []
        told = sorted(self._included(response), key=_place)
        for _, entry in told:
            if entry.records or self.moves_all:
                self._to_the_end(entry.row)
        head = response_head(layout, response.correlation_id, walk.throttle_time_ms, SESSION_ID)
        elements = _elements(layout, [entry for _, entry in told])
        body = [piece for element in elements for piece in element.pieces]
        pieces: list[Buffer] = [b"", head, layout.count(len(elements)), *body, *response.tags]
        pieces[0] = sum(map(len, pieces)).to_bytes(4)
        return pieces, elements

    def _arranged(self, order: Rows) -> None:
        """Follow the table, whose rows have other numbers now."""
        for column in (self._high, self._start, self._rank, self._named):
            column[: len(order)] = column[order]

    def _to_the_end(self, row: int) -> None:
        self._ranks += 1
        self._rank[row] = self._ranks

    def _held(self) -> PartitionTable:
        if self._table is None:
            raise RuntimeError("no session was made")
        return self._table

    def _included(self, response: CapturedResponse) -> Iterator[tuple[int, Told]]:
        """Give what a session would send of a full response, with its place; what is sent is remembered."""
        table, layout = self._held(), response.layout
        for key, entries in response.quiet():
            fields = entries.view(_bounds(layout.response_entry))
            rows = table.rows(key, fields["partition"])
            if rows.min() < 0:  # no response to this fetch
                continue
            self._named[rows] = True
            changes = (self._high[rows] != fields["high"]) | (self._start[rows] != fields["start"])
            if not changes.any():
                continue
            known = rows[changes]
            self._high[known], self._start[known] = fields["high"][changes], fields["start"][changes]
            for at in changes.nonzero()[0].tolist():
                row = int(rows[at])
                yield int(self._rank[row]), Told(row, key, [entries[at].tobytes()], 0)
        for entry in response.changes:
            row = table.row(entry.key, entry.partition)
            if row < 0:
                continue
            if self._changed(entry, row) or entry.records or entry.redirects or entry.error_code:
                pieces, code = self._as_in_session(response, entry, row)
                place = int(self._rank[row]) + _BEFORE_READING.get(code, 0)
                yield place, Told(row, entry.key, pieces, entry.records)

    def _as_in_session(
        self, response: CapturedResponse, entry: PartitionResponse, row: int
    ) -> tuple[list[memoryview], int]:
        """Return an entry and its error as a session tells them: a topic once named stays known."""
        start, code = entry.start, entry.error_code
        if code != ErrorCode.UNKNOWN_TOPIC_ID:
            self._named[row] = True
        elif self._named[row]:
            code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            patch = memoryview(code.to_bytes(2))
            return [*response.part(start, start + 4), patch, *response.part(start + 6, entry.end)], code
        return response.part(start, entry.end), code

    def _changed(self, entry: PartitionResponse, row: int) -> bool:
        high, start = _HIGH.unpack_from(entry.fixed, 6)[0], _HIGH.unpack_from(entry.fixed, 22)[0]
        changed = bool(self._high[row] != high or self._start[row] != start)
        self._high[row] = _UNSEEN if entry.error_code else high
        self._start[row] = start
        return changed


def _place(pair: tuple[int, Told]) -> int:
    return pair[0]


def _elements(layout: FetchLayout, told: Sequence[Told]) -> list[Element]:
    """Return entries as topic elements; neighbours of one topic share one."""
    end = b"\x00" if layout.flexible else b""
    elements: list[Element] = []
    start = 0
    for at in range(1, len(told) + 1):
        if at == len(told) or told[at].key != told[start].key:
            entries = told[start:at]
            pieces: list[Buffer] = [layout.prefix(told[start].key, at - start)]
            pieces += [piece for entry in entries for piece in entry.pieces]
            records = sum(entry.records for entry in entries)
            elements.append(Element(told[start].key, at - start, records, [*pieces, end]))
            start = at
    return elements
