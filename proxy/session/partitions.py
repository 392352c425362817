"""The partition table: what one fetch session holds, in columns.

A row is a partition, found by (topic, partition), never by its place in a fetch: clients rotate their lists.
Rows cost about 90 bytes and no Python object each; a topic costs an entry in a dict and a span in the lookup.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import Entries, FetchLayout, Rows
from proxy.protocol.fetch_request import Listing
from proxy.protocol.fetch_response import EmptyRun, PartitionResponse

MAX_LOOKUP: Final = 1 << 17
"""Partition numbers that one table may span over all its topics, beside eight for each partition it holds.
The lookup has 8 bytes for each number from 0 to a topic's highest."""

_NO_TOPIC: Final = 0
_NO_ROW: Final = -1

_NONE: Final[Rows] = np.zeros(0, np.intp)

Column32: TypeAlias = npt.NDArray[np.int32]


class PartitionTable:
    """The partitions of a session: what was last asked, and what the broker last answered.

    Args:
        layout: the version that the session is spoken in.
        isolation_level: that of the session's fetches; it tells what an entry without news looks like.
    """

    __slots__ = (
        "_bases",
        "_blank",
        "_described",
        "_free",
        "_keys",
        "_lookup",
        "_spans",
        "_top",
        "arranged",
        "cached_bytes",
        "cached_entries",
        "isolation_level",
        "known",
        "layout",
        "numbers",
        "position",
        "refused",
        "request_bytes",
        "requests",
        "size",
        "topic",
    )

    def __init__(self, layout: FetchLayout, isolation_level: int) -> None:
        self.layout = layout
        self.isolation_level = isolation_level
        self._blank = np.void(bytes(layout.aborted) + layout.empty_ends[1 if isolation_level else 0])
        self.numbers: dict[bytes, int] = {}
        """Topic key -> number of the topic in this table, from 1."""
        self._keys: list[bytes] = [b""]
        self._bases = np.zeros(1, np.intp)
        self._spans = np.zeros(1, np.intp)
        self._lookup: Rows = np.full(1, _NO_ROW, np.intp)
        self._free: list[int] = []
        self._top = 0
        self.size = 0
        """Partitions held."""
        self.requests: Entries = np.zeros(0, layout.request_item)
        """The entries last sent in the session."""
        self.request_bytes = self.requests.view(np.uint8).data
        """`requests` as bytes."""
        self.cached_entries: Entries = np.zeros(0, layout.response_item)
        """What a response says of a partition without news."""
        self.cached_bytes = self.cached_entries.view(np.uint8).data
        """`cached_entries` as bytes."""
        self.known = np.zeros(0, np.bool_)
        """Rows whose image may be filled in: the broker described them in this session, without error."""
        self._described = 0
        """How many rows are `known`."""
        self.refused = np.zeros(0, np.int16)
        """The error that a full fetch of this session gave, 0 for none."""
        self.topic: Column32 = np.zeros(0, np.int32)
        """Topic number, 0 for a free row."""
        self.position: Column32 = np.zeros(0, np.int32)
        """Place in the latest fetch that was compared by it, -1 if it is not there."""
        self.arranged: Callable[[Rows], None] | None = None
        """Told what `arrange` does: for each row the number that it had. For who keeps columns of its own."""

    def __repr__(self) -> str:
        return f"<PartitionTable partitions={self.size} topics={len(self.numbers)} v{self.layout.version}>"

    def key(self, topic: int) -> bytes:
        """Return the name or id of a topic by its number."""
        return self._keys[topic]

    @property
    def bloated(self) -> bool:
        """Whether what was forgotten has come to outweigh what is held; a new table is due then."""
        return len(self._keys) > 4 * self.size + 1024 or len(self._lookup) > MAX_LOOKUP + 8 * self.size

    def locate(self, listing: Listing) -> Rows:
        """Return the row of each entry, -1 where there is none."""
        partitions = listing.entries.view(self.layout.request_fields)["partition"]
        if len(listing.keys) == 1:
            number = self.numbers.get(listing.keys[0], _NO_TOPIC)
            base, span = int(self._bases[number]), int(self._spans[number])
            try:
                rows: Rows = self._lookup[base : base + span].take(partitions)
                return rows  # noqa: TRY300 - the line that may raise is the one above
            except IndexError:  # a partition beyond the span: new to the table
                return self._find(partitions, self._bases[number], self._spans[number])
        get = self.numbers.get
        topics = np.array([get(key, _NO_TOPIC) for key in listing.keys], np.intp)
        bases, spans = self._bases.take(topics), self._spans.take(topics)
        return self._find(partitions, np.repeat(bases, listing.counts), np.repeat(spans, listing.counts))

    def row(self, key: bytes, partition: int) -> int:
        """Return the row of one partition, -1 if there is none."""
        number = self.numbers.get(key, _NO_TOPIC)
        if 0 <= partition < self._spans[number]:
            return int(self._lookup[self._bases[number] + partition])
        return _NO_ROW

    def rows(self, key: bytes, partitions: npt.NDArray[np.uint32]) -> Rows:
        """Return the rows of partitions of one topic, -1 where there is none."""
        number = self.numbers.get(key, _NO_TOPIC)
        return self._find(partitions, self._bases[number], self._spans[number])

    def _find(self, partitions: npt.NDArray[np.uint32], bases: Rows | np.intp, spans: Rows | np.intp) -> Rows:
        # The sum is masked before it is used: slot 0 of the lookup belongs to no topic.
        slots = np.where(partitions < spans, bases + partitions.astype(np.intp), 0)
        rows: Rows = self._lookup.take(slots)
        return rows

    def add(self, listing: Listing, positions: Rows) -> bool:
        """Append the entries at `positions` of `listing`, none of them held yet, as the session's newest.

        Returns:
            False, with nothing changed, if the partition numbers are too sparse for a bounded lookup.
        """
        partitions = listing.entries.view(self.layout.request_fields)["partition"][positions].astype(np.intp)
        if len(listing.keys) == 1:
            elements = np.zeros(len(positions), np.intp)
        else:
            elements = np.searchsorted(np.cumsum(listing.counts), positions, side="right")
        if not self._span(listing, elements, partitions):
            return False
        rows = self._take_rows(len(positions))
        topics = np.array([self.numbers.get(key, _NO_TOPIC) for key in listing.keys], np.intp)[elements]
        self.topic[rows] = topics
        self.requests[rows] = listing.entries[positions]
        self.cached_entries[rows] = self._blank
        self.known[rows] = False
        self.refused[rows] = 0
        self._lookup[self._bases[topics] + partitions] = rows
        self.size += len(rows)
        return True

    def forget(self, rows: Rows) -> None:
        """Drop partitions, their state with them."""
        slots = self._bases[self.topic[rows]] + self.partitions(rows)
        self._lookup[slots] = _NO_ROW
        self.topic[rows] = _NO_TOPIC
        self._described -= int(np.count_nonzero(self.known[rows]))
        self.known[rows] = False
        self.position[rows] = -1
        self._free.extend(rows.tolist())
        self.size -= len(rows)

    def forget_responses(self) -> None:
        """Drop what the broker said of every partition: another session begins."""
        self.known.fill(False)
        self._described = 0
        self.refused.fill(0)

    def apply_run(self, run: EmptyRun, rows: Rows) -> None:
        """Take what the broker said of the partitions in these rows, without news and without error."""
        self.cached_entries[rows] = run.entries
        self.known[rows] = True
        self._described = int(np.count_nonzero(self.known))
        self.refused[rows] = 0

    def apply_entry(self, entry: PartitionResponse, row: int) -> None:
        """Take what the broker said of one partition; its records and errors are not kept."""
        known = bool(self.known[row])
        self.known[row] = described = not entry.error_code
        self._described += described - known
        if described:
            at = row * self.layout.response_entry
            self.cached_bytes[at : at + self.layout.aborted] = entry.fixed
            self.refused[row] = 0

    def partitions(self, rows: Rows) -> Rows:
        """Return the partition numbers of rows."""
        partitions: Rows = self.requests.view(self.layout.request_fields)["partition"][rows].astype(np.intp)
        return partitions

    def unplaced(self) -> Rows:
        """Return the rows that the latest fetch, as `position` has it, does not list."""
        unplaced = (self.position[: self._top] < 0) & (self.topic[: self._top] != _NO_TOPIC)
        rows: Rows = unplaced.nonzero()[0]
        return rows

    def place(self, rows: Rows) -> int:
        """Number the rows of a fetch by their place in it; return how many rows it names."""
        position = self.position
        position.fill(-1)
        position[rows] = _first_numbers(len(rows))
        return int(np.count_nonzero(position >= 0))

    def arrange(self, rows: Rows) -> None:
        """Number all rows that are held anew, in the given order, from 0 on."""
        count, top = len(rows), self._top
        order = np.concatenate([rows, np.array(self._free, np.intp)])
        for column in (self.requests, self.cached_entries, self.known, self.refused, self.topic):
            column[:top] = column[order]
        self._free = list(range(count, top))
        straight = np.arange(count)
        self._lookup[self._bases[self.topic[:count]] + self.partitions(straight)] = straight
        self.place(straight)
        if self.arranged is not None:
            self.arranged(order)

    def unknown(self) -> Rows:
        """Return the rows whose image may not be filled in."""
        if self._described == self.size:
            return _NONE
        rows: Rows = (~self.known[: self._top] & (self.topic[: self._top] != _NO_TOPIC)).nonzero()[0]
        return rows

    @property
    def unmentioned(self) -> bool:
        """Whether the full response of this session left out a partition."""
        mentioned = self.known[: self._top] | (self.refused[: self._top] != 0)
        return int(np.count_nonzero(mentioned)) != self.size

    def _take_rows(self, count: int) -> Rows:
        reused = min(count, len(self._free))
        rows = [self._free.pop() for _ in range(reused)]
        fresh = count - reused
        self._grow(self._top + fresh)
        taken = np.concatenate([np.array(rows, np.intp), np.arange(self._top, self._top + fresh)])
        self._top += fresh
        return taken

    def _grow(self, need: int) -> None:
        have = len(self.topic)
        if need <= have:
            return
        more = max(need, have + have // 4) - have
        self.requests = _extended(self.requests, more)
        self.request_bytes = self.requests.view(np.uint8).data
        self.cached_entries = _extended(self.cached_entries, more)
        self.cached_bytes = self.cached_entries.view(np.uint8).data
        self.known = np.append(self.known, np.zeros(more, np.bool_))
        self.refused = np.append(self.refused, np.zeros(more, np.int16))
        self.topic = np.append(self.topic, np.zeros(more, np.int32))
        self.position = np.append(self.position, np.full(more, -1, np.int32))

    def _span(self, listing: Listing, elements: Rows, partitions: Rows) -> bool:
        """See to it that the lookup reaches the given partitions of the given elements' topics."""
        needs = np.zeros(len(listing.keys), np.intp)
        np.maximum.at(needs, elements, partitions + 1)
        numbers = [self.numbers.get(key, _NO_TOPIC) for key in listing.keys]
        short = [
            (key, int(need), number)
            for key, need, number in zip(listing.keys, needs.tolist(), numbers, strict=True)
            if need > self._spans[number]
        ]
        wanted = sum(need for _, need, _ in short)
        if len(self._lookup) + wanted > MAX_LOOKUP + 8 * (self.size + len(partitions)):
            return False
        extents = dict[bytes, int]()
        for key, need, _ in short:
            extents[key] = max(need, extents.get(key, 0))
        for key in extents:
            if key not in self.numbers:
                self.numbers[key] = len(self._keys)
                self._keys.append(key)
        lack = len(self._keys) - len(self._bases)
        self._bases = np.append(self._bases, np.zeros(lack, np.intp))
        self._spans = np.append(self._spans, np.zeros(lack, np.intp))
        at = len(self._lookup)
        self._lookup = np.append(self._lookup, np.full(sum(extents.values()), _NO_ROW, np.intp))
        for key, need in extents.items():
            number = self.numbers[key]
            base, span = int(self._bases[number]), int(self._spans[number])
            self._lookup[at : at + span] = self._lookup[base : base + span]
            self._bases[number], self._spans[number] = at, need
            at += need
        return True


_numbers: Column32 = np.arange(1024, dtype=np.int32)


def _first_numbers(count: int) -> Column32:
    """Return 0, 1, 2 ..., `count` of them; not to be written to."""
    global _numbers  # noqa: PLW0603 - a table of constants that grows
    if count > len(_numbers):
        _numbers = np.arange(2 * count, dtype=np.int32)
    return _numbers[:count]


def is_rotation(numbers: Rows | Column32) -> bool:
    """Whether they are 0, 1, 2 ... from some number on and round to it."""
    count = len(numbers)
    if not count or not 0 <= (first := int(numbers[0])) < count:
        return False
    straight, behind = _first_numbers(count), count - first
    return bool((numbers[:behind] == straight[first:]).all() and (numbers[behind:] == straight[:first]).all())


def _extended(column: Entries, more: int) -> Entries:
    longer = np.zeros(len(column) + more, column.dtype)
    longer[: len(column)] = column
    return longer
