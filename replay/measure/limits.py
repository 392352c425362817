"""How far responses exceed a response limit (KIP-74), and which partitions starve because of it. Sans-IO.

A response limit is the max_bytes of a fetch. A broker reads partitions in order until it has this many bytes
of records; the first batch may exceed it. The other partitions are empty in the response, even if they have
records (fetch-semantics 4). A partition starves from its first such entry until it gets records, while others
get some.
"""

from collections import Counter
from copy import copy
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

import numpy as np

from proxy.protocol.api import LENGTH_BYTES, request_header
from proxy.protocol.fetch_layout import HIGH_WATERMARK, LAST_STABLE_OFFSET, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.old_fetch import LIMITED
from proxy.protocol.primitives import ProtocolError, read_count, read_int32, read_string
from proxy.session.handler import FetchSessionHandler
from proxy.session.partitions import PartitionTable
from replay.measure.typed import bounded
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.outcome import Outcome, TopicKey

NO_LIMIT: Final = 52_428_800
"""The limit that is assumed for fetches of v0 to v2, which have no max_bytes: the Java client's default
(fetch.max.bytes, KIP-74)."""
WORST: Final = 10
"""How many starved partitions are kept: those that starved longest."""
_THROTTLED: Final = 1
"""The first Fetch version whose response has throttle_time_ms."""
_MAX_BYTES_AT: Final = 12
"""Offset of max_bytes in the body of a request of v3."""
_RECORDS_AT: Final = 14
"""In an entry of a response up to v3: after partition, error code and high watermark."""


@dataclass(slots=True)
class VersionFigures:
    """The figures of fetches. In a `LimitLog`, of all fetches with one Fetch version."""

    responses: int = 0
    max_bytes: int = 0
    """The largest max_bytes of a fetch. 0 below v3."""
    largest_record_bytes: int = 0
    """The most bytes of records in one response."""
    over_limit: int = 0
    """How many responses had more bytes of records than the limit."""
    over_limit_bytes: int = 0
    """The bytes above the limit, of all responses."""
    starved: int = 0
    """How often a partition began to starve."""
    starved_ns: int = 0
    """For how long partitions starved, added up."""

    def add(self, other: "VersionFigures") -> None:
        self.responses += other.responses
        self.max_bytes = max(self.max_bytes, other.max_bytes)
        self.largest_record_bytes = max(self.largest_record_bytes, other.largest_record_bytes)
        self.over_limit += other.over_limit
        self.over_limit_bytes += other.over_limit_bytes
        self.starved += other.starved
        self.starved_ns = bounded(self.starved_ns + other.starved_ns)


@dataclass(slots=True)
class Starved:
    """A partition that got no records for a time, although it had some and other partitions got records."""

    topic: str | None
    """Its name. None if the fetch has topic ids."""
    topic_id: bytes | None
    """The topic id, if the fetch has topic ids (v13 and later). Else None."""
    partition: int
    """Its number."""
    since: int
    """The time of the first response without records of this partition, in ns since 1970."""
    version: int
    """The version of Fetch."""
    until: int = 0
    """The time of the response with which it stopped starving: it got records, had no more, had an error, or
    was not in the fetch. If it has not stopped, the time of the last response in which it starved."""
    responses: int = 0
    """How many responses had records of other partitions, but none of this one."""
    behind: int = 0
    """How many offsets the client was behind at most, from its fetch offset to the last that it may read."""

    @property
    def lasted(self) -> int:
        return self.until - self.since


class LimitLog:
    """Compares the responses of one connection with the limits in their requests.

    A limit above `max_fetch_bytes`, if this is not 0, is lowered to it. The memory depends on the number of
    partitions in a fetch, not on the number of fetches.
    """

    __slots__ = (
        "_ceiling",
        "_counted",
        "_ends",
        "_handler",
        "_isolation_level",
        "_offsets",
        "_starving",
        "_worst",
    )

    def __init__(self, max_fetch_bytes: int = 0) -> None:
        self._ceiling = max_fetch_bytes
        self._counted: dict[int, VersionFigures] = {}
        self._handler = FetchSessionHandler()
        """The handler whose table has the partitions of the client's own session, or of the last full fetch
        whose response had records or a session."""
        self._offsets = np.zeros(0, np.int64)
        """The fetch offset of each row of the table."""
        self._ends = np.zeros(0, np.int64)
        """For each row, the end of the part of the log that the client may read, as an offset."""
        self._isolation_level = 0
        self._starving: dict[tuple[TopicKey, int], Starved] = {}
        self._worst: list[Starved] = []
        """The partitions that starved longest, of those that no longer starve."""

    def __repr__(self) -> str:
        return f"<LimitLog versions={len(self._counted)} starving={len(self._starving)}>"

    def add(self, outcome: Outcome) -> None:
        request, response = outcome.request, outcome.response
        if request is None:
            self._add_old(outcome)
        elif response is not None or outcome.run:
            for record_bytes, times in Counter(fetch.records for fetch in outcome.fetches).items():
                self._count(outcome.exchange.api_version, request.max_bytes, record_bytes, times)
            if response is not None:
                self._note_starved(outcome, request, response)
        elif request.session_id:  # the response is missing, so the session's state is unknown
            self._handler.drop()

    def is_calm(self, table: PartitionTable) -> bool:
        """Whether no partition starves, and the last fetch with records listed those of this table.

        Then full fetches of these partitions change no more than figures, unless one begins to starve.
        """
        own = self._handler.table
        if self._starving or own is None or own.layout is not table.layout or own.size != table.size:
            return False
        for number in set(table.topic.tolist()) - {0}:  # 0 is that of a free row
            partitions = table.partitions((table.topic == number).nonzero()[0]).astype(np.uint32)
            if own.rows(table.key(number), partitions).min() < 0:
                return False
        return True

    def by_version(self) -> dict[int, VersionFigures]:
        """Return the figures by Fetch version, also those of partitions that still starve."""
        counted = {version: copy(one) for version, one in self._counted.items()}
        for starved in self._starving.values():
            one = counted[starved.version]
            one.starved_ns = bounded(one.starved_ns + starved.lasted)
        return counted

    def longest(self) -> list[Starved]:
        return nlargest(WORST, [*self._worst, *self._starving.values()], key=lambda one: one.lasted)

    def _count(self, version: int, max_bytes: int, record_bytes: int, times: int = 1) -> None:
        counted = self._counted.setdefault(version, VersionFigures())
        counted.responses += times
        counted.largest_record_bytes = max(counted.largest_record_bytes, record_bytes)
        if version >= LIMITED:
            counted.max_bytes = max(counted.max_bytes, max_bytes)
        limit = max_bytes if version >= LIMITED else NO_LIMIT
        limit = min(limit, self._ceiling) if self._ceiling else limit
        if record_bytes > limit >= 0:
            counted.over_limit += times
            counted.over_limit_bytes += times * (record_bytes - limit)

    def _add_old(self, outcome: Outcome) -> None:
        """Add a fetch that was not parsed, if it is of v0 to v3: its limit, and the record bytes it got."""
        exchange = outcome.exchange
        whole = exchange.request and exchange.response and not exchange.request_missing
        if not whole or exchange.response_missing or not 0 <= exchange.api_version <= LIMITED:
            return
        try:
            body = request_header(exchange.request, LENGTH_BYTES)[4]
            max_bytes, _ = read_int32(exchange.request, body + _MAX_BYTES_AT)  # of v3; else it is not used
            record_bytes = _record_bytes(b"".join(exchange.response), exchange.api_version)
        except ProtocolError:
            return
        self._count(exchange.api_version, max_bytes, record_bytes)

    # Starving

    def _note_starved(self, outcome: Outcome, request: FetchRequest, response: CapturedResponse) -> None:
        in_session = request.session_id > 0 and request.session_epoch > 0
        if request.unsupported_reason or response.walk.error_code:
            self._handler.drop()
            return
        # Without records in the response no partition starves. A session's state changes nevertheless.
        if not response.walk.record_bytes and not in_session and not response.walk.session_id:
            return
        listed = self._follow(request, in_session=in_session)
        if listed is None:
            return
        rows, behind = self._hungry(request, response, listed)
        if not response.walk.record_bytes:
            return
        table, ids = self._handler.table, request.layout.topic_ids
        starving: dict[tuple[TopicKey, int], Starved] = {}
        time, version = outcome.exchange.response_time, outcome.exchange.api_version
        if table is not None and len(rows):
            for row, partition, lag in zip(
                rows.tolist(), table.partitions(rows).tolist(), behind.tolist(), strict=True
            ):
                key = table.key(int(table.topic[row]))
                name = (key if ids else key.decode(errors="replace")), partition
                starved = self._starving.pop(name, None)
                if starved is None:
                    text, topic_id = (None, key) if ids else (key.decode(errors="replace"), None)
                    starved = Starved(text, topic_id, partition, time, version)
                    self._counted[version].starved += 1
                starved.until = time
                starved.responses += 1
                starved.behind = max(starved.behind, lag)
                starving[name] = starved
        for starved in self._starving.values():
            self._end(starved, time)
        self._starving = starving

    def _end(self, starved: Starved, time: int) -> None:
        starved.until = time
        counted = self._counted[starved.version]
        counted.starved_ns = bounded(counted.starved_ns + starved.lasted)
        self._worst.append(starved)
        if len(self._worst) > 4 * WORST:
            self._worst = nlargest(WORST, self._worst, key=lambda one: one.lasted)

    def _follow(self, request: FetchRequest, *, in_session: bool) -> Rows | None:
        """Store the partitions and offsets of a fetch. Return the row of each entry, None if not known."""
        listing = request.listing
        if listing is None:
            return None
        rows = self._session_rows(request, listing) if in_session else self._listed_rows(listing)
        if rows is None:
            self._handler.drop()
            return None
        if not in_session:
            self._isolation_level = request.isolation_level
            self._ends.fill(_UNKNOWN)
        self._offsets[rows] = listing.entries.view(listing.layout.request_fields)["offset"]
        if in_session:
            self._forget(request)
        return rows

    def _listed_rows(self, listing: Listing) -> Rows | None:
        """Return the table's row for each entry of a full fetch. Other rows are removed from the table."""
        handler, table = self._handler, self._handler.table
        if table is not None and table.layout is listing.layout and table.size == len(listing):
            rows = table.locate(listing)
            if not len(rows) or rows.min() >= 0:
                return rows
        if not handler.learn_listing(listing, 0) or (table := handler.table) is None:
            return None
        self._offsets, self._ends = (np.zeros(len(table.topic), np.int64) for _ in range(2))
        return table.locate(listing)

    def _session_rows(self, request: FetchRequest, listing: Listing) -> Rows | None:
        """Return the row of each entry of a fetch in the client's session. None if it is not known."""
        table = self._handler.table
        if (
            table is None
            or table.layout is not listing.layout
            or request.isolation_level != self._isolation_level
        ):
            return None
        rows = table.locate(listing)
        new = rows < 0
        if not new.any():
            return rows
        if not table.add(listing, new.nonzero()[0]):
            return None
        more = np.full(len(table.topic) - len(self._ends), _UNKNOWN, np.int64)
        self._offsets, self._ends = np.append(self._offsets, more), np.append(self._ends, more)
        return table.locate(listing)

    def _forget(self, request: FetchRequest) -> None:
        table = self._handler.table
        gone = (
            {
                table.row(key, partition)
                for key, numbers in request.forgotten
                for partition in np.frombuffer(numbers, ">i4").tolist()
            }
            if table
            else set()
        )
        if table is not None and (left := sorted(gone - {-1})):
            table.forget(np.array(left, np.intp))
            self._ends[left] = _UNKNOWN

    def _hungry(self, request: FetchRequest, response: CapturedResponse, listed: Rows) -> tuple[Rows, Rows]:
        """Return the rows of partitions that had records, but got none in this response.

        Also return how many offsets the client has not read in each. `listed` has the row of each entry of
        the fetch.
        """
        table, walk, ends = self._handler.table, response.walk, self._ends
        if table is None or table.layout is not response.layout:
            return _NONE, _NONE
        end, span = _ENDS[request.isolation_level != 0]
        if not request.forgotten and request.listing is not None and response.lists(request.listing):
            ends[listed] = response.entries.view(table.layout.response_fields)[end]
        elif walk.runs:
            run, rows = table.located(walk.runs)
            if rows.min() < 0:
                self._handler.drop()
                return _NONE, _NONE
            ends[rows] = run.entries.view(table.layout.response_fields)[end]
        fed = []
        for entry in walk.entries:
            row = table.row(entry.key, entry.partition)
            if row < 0:
                continue
            ends[row] = _UNKNOWN if entry.error_code else int.from_bytes(entry.fixed[span], signed=True)
            # The broker did not read one that has a preferred replica or a diverging epoch (KIP-392,
            # KIP-595).
            if entry.records or entry.redirects:
                fed.append(row)
        if not walk.record_bytes:
            return _NONE, _NONE
        lacks: Rows = ends - self._offsets
        lacks[fed] = 0
        hungry: Rows = ((lacks > 0) & (ends >= 0)).nonzero()[0]
        return hungry, lacks[hungry]


_UNKNOWN: Final = -1
"""Stands for the unknown end of a partition: its entry has an error, or it had no entry yet."""
_ENDS: Final = (("high_watermark", HIGH_WATERMARK), ("last_stable_offset", LAST_STABLE_OFFSET))
"""The field that limits what a client may read, and its place in an entry: first for read_uncommitted, then
for read_committed."""
_NONE: Final[Rows] = np.zeros(0, np.intp)


def _record_bytes(frame: bytes, version: int) -> int:
    """Return how many bytes of records a response of v0 to v3 has."""
    at = 2 * LENGTH_BYTES + (4 if version >= _THROTTLED else 0)
    topics, at = read_count(frame, at)
    total = 0
    for _ in range(topics or 0):
        _, at = read_string(frame, at)
        partitions, at = read_count(frame, at)
        for _ in range(partitions or 0):
            records, at = read_count(frame, at + _RECORDS_AT)
            total += records or 0
            at += records or 0
    return total
