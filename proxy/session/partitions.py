"""The partition table: the partitions of one fetch session, in columns.

Each row is a partition. Clients rotate their lists, so a row is found by topic and partition number, never by
its position in a fetch. A row costs about 80 bytes and no Python object. A topic costs an entry of a dict,
and a span of slots in an array, the *lookup*, which gives the row of each partition number.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import LAST_STABLE_OFFSET, Entries, FetchLayout, Rows
from proxy.protocol.fetch_request import Listing
from proxy.protocol.fetch_response import NO_ABORTED, NULL, EmptyRun, PartitionResponse

MAX_LOOKUP: Final = 1 << 17
"""The limit of slots in the lookup, in addition to eight slots for each partition. A topic needs one slot of
8 bytes for each partition number from 0 to its highest."""
MAX_FORGOTTEN: Final = 8192
"""A table is created again if it has more topics than this plus 1,024, or than four for each partition plus
1,024. Names of forgotten topics are counted, too."""

_KEY_BYTES: Final = 200
"""The memory for a topic without its key: an entry of a dict, an entry of a list, and a span."""
_NUMBER_BYTES: Final = 100
"""The memory for a row number in a set or list."""
_SLOT_BYTES: Final = 8

_NO_TOPIC: Final = 0
_NO_ROW: Final = -1
_NO_PLACE: Final = -1

_NONE: Final[Rows] = np.zeros(0, np.intp)

Column32: TypeAlias = npt.NDArray[np.int32]
_T = TypeVar("_T", bound=np.generic)


def row_bytes(layout: FetchLayout) -> int:
    """Return how many bytes one row of a `PartitionTable` needs in all columns."""
    return layout.request_entry + layout.response_entry + 11


def memory_of(listing: Listing) -> int:
    """Return an upper limit, in bytes, for the memory of a table that is made from a listing."""
    partitions = listing.entries.view(listing.layout.request_fields)["partition"]
    slots = (int(partitions.max(initial=0)) + 1) * len(listing.keys)
    return (
        len(listing) * row_bytes(listing.layout)
        + min(slots, MAX_LOOKUP + 8 * len(listing)) * _SLOT_BYTES
        + sum(map(len, listing.keys))
        + len(listing.keys) * _KEY_BYTES
    )


class PartitionTable:
    """The partitions of a session, with the entries last requested and the entries last received.

    A response entry without records ends as Kafka writes it for the isolation level of the session's
    fetches, until the broker has shown that it writes it in another form.
    """

    __slots__ = (
        "_bases",
        "_blank",
        "_described",
        "_end_unknown",
        "_ends_vary",
        "_free",
        "_key_bytes",
        "_keys",
        "_lookup",
        "_no_aborted",
        "_row_bytes",
        "_spans",
        "_top",
        "_usual",
        "arranged",
        "behind",
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

    def __init__(self, layout: FetchLayout, isolation_level: int, room: int = 0) -> None:
        """Create an empty table that has room for so many rows. It grows when more are added."""
        self.layout = layout
        self.isolation_level = isolation_level
        # Records are empty unless the broker writes null: librdkafka terminates on null (KAFKA-18646;
        # fetch-semantics 6.2).
        self._blank = np.void(bytes(layout.aborted) + layout.empty_ends[1 if isolation_level else 0])
        # Kafka writes a list for read_committed and null for read_uncommitted; others, like franz-go's kfake,
        # write null for both. A client is to get the form that its broker writes.
        self._usual = NO_ABORTED if isolation_level else NULL
        self._no_aborted = self._usual
        """How the broker last wrote an empty list of aborted transactions: `NULL` or `NO_ABORTED`."""
        self._ends_vary = False
        """Whether the broker has ended entries in another way than Kafka usually does: with null records, or
        with the other form of an empty list of aborted transactions."""
        self._end_unknown: set[int] = set()
        """The rows for which the broker has not yet shown how it writes an entry without aborted
        transactions."""
        self.numbers: dict[bytes, int] = {}
        """The number of each topic in this table, from 1, by its key."""
        self._keys: list[bytes] = [b""]
        self._key_bytes = 0
        """The memory that the topics need."""
        self._row_bytes = row_bytes(layout)
        self._bases = np.zeros(1, np.intp)
        self._spans = np.zeros(1, np.intp)
        self._lookup: Rows = np.full(1, _NO_ROW, np.intp)
        self._free: list[int] = []
        self._top = 0
        self.size = 0
        """The number of partitions."""
        self.requests: Entries = np.zeros(room, layout.request_item)
        """For each row, the entry last sent to the broker in the session. Without a session, that of the last
        fetch."""
        self.request_bytes = self.requests.view(np.uint8).data
        self.cached_entries: Entries = np.zeros(room, layout.response_item)
        """For each row, the entry to use if the broker leaves the partition out of a response."""
        self.cached_bytes = self.cached_entries.view(np.uint8).data
        self.known = np.zeros(room, np.bool_)
        """For each row, whether the cached entry is usable: the broker's latest entry for the partition in
        this session had no error."""
        self._described = 0
        """The number of rows that are `known`."""
        self.behind: set[int] = set()
        """The rows of partitions for which a read_committed fetch may get records: the fetch offset is below
        the last stable offset in the broker's latest entry."""
        self.refused = np.zeros(room, np.int16)
        """For each row, the error code in the full response that began this session. 0 if it had none, or if
        the broker has sent an entry without an error since."""
        self.topic: Column32 = np.zeros(room, np.int32)
        """For each row, the number of its topic, or 0 for a free row."""
        self.position: Column32 = np.full(room, _NO_PLACE, np.int32)
        """For each row, its position in the current fetch, or -1."""
        self.arranged: Callable[[Rows], None] | None = None
        """Called by `arrange` with the old number of each row, so that callers can arrange their own
        columns."""

    def __repr__(self) -> str:
        return f"<PartitionTable partitions={self.size} topics={len(self.numbers)} v{self.layout.version}>"

    def key(self, topic: int) -> bytes:
        return self._keys[topic]

    @property
    def memory(self) -> int:
        """In bytes."""
        numbers = len(self._free) + len(self.behind) + len(self._end_unknown)
        return (
            len(self.topic) * self._row_bytes
            + len(self._lookup) * _SLOT_BYTES
            + self._key_bytes
            + numbers * _NUMBER_BYTES
        )

    @property
    def bloated(self) -> bool:
        """Whether most of the memory is for forgotten topics and unused slots: create the table again."""
        return (
            len(self._keys) > min(4 * self.size, MAX_FORGOTTEN) + 1024
            or len(self._lookup) > MAX_LOOKUP + 8 * self.size
        )

    def locate(self, listing: Listing) -> Rows:
        """Return the row of each entry of a listing, or -1 if the partition is not in the table."""
        partitions = listing.entries.view(self.layout.request_fields)["partition"]
        if len(listing.keys) == 1:
            return self.rows(listing.keys[0], partitions)
        get = self.numbers.get
        topics = np.array([get(key, _NO_TOPIC) for key in listing.keys], np.intp)
        bases, spans = self._bases.take(topics), self._spans.take(topics)
        return self._find(partitions, np.repeat(bases, listing.counts), np.repeat(spans, listing.counts))

    def row(self, key: bytes, partition: int) -> int:
        number = self.numbers.get(key, _NO_TOPIC)
        if 0 <= partition < self._spans[number]:
            return int(self._lookup[self._bases[number] + partition])
        return _NO_ROW

    def located(self, runs: Sequence[EmptyRun]) -> tuple[EmptyRun, Rows]:
        """Merge runs of several topics. Return the merged run, and the row of each entry or -1."""
        if len(runs) == 1:
            run = runs[0]
            return run, self.rows(run.key, run.entries.view(self.layout.response_fields)["partition"])
        get = self.numbers.get
        topics = np.array([get(run.key, _NO_TOPIC) for run in runs], np.intp)
        counts = [len(run.entries) for run in runs]
        run = EmptyRun(b"", np.concatenate([run.entries for run in runs]))
        partitions = run.entries.view(self.layout.response_fields)["partition"]
        bases, spans = self._bases.take(topics), self._spans.take(topics)
        return run, self._find(partitions, np.repeat(bases, counts), np.repeat(spans, counts))

    def rows(self, key: bytes, partitions: npt.NDArray[np.uint32]) -> Rows:
        number = self.numbers.get(key, _NO_TOPIC)
        base, span = int(self._bases[number]), int(self._spans[number])
        try:
            rows: Rows = self._lookup[base : base + span].take(partitions)
            return rows  # noqa: TRY300 - the line that may raise is the one above
        except IndexError:  # a partition beyond the span: it is not in the table
            return self._find(partitions, self._bases[number], self._spans[number])

    def _find(self, partitions: npt.NDArray[np.uint32], bases: Rows | np.intp, spans: Rows | np.intp) -> Rows:
        # Numbers beyond the span go to slot 0 of the lookup, which belongs to no topic.
        slots = np.where(partitions < spans, bases + partitions.astype(np.intp), 0)
        rows: Rows = self._lookup.take(slots)
        return rows

    def add(self, listing: Listing, positions: Rows) -> bool:
        """Add the entries at these positions of a listing. None of them may be in the table yet.

        If the partition numbers are too sparse for the lookup, return False, with nothing changed.
        """
        entries = listing.entries[positions]
        partitions = entries.view(self.layout.request_fields)["partition"].astype(np.intp)
        keys, elements = listing.keys, None
        if len(keys) == 1:
            needs = [int(partitions.max(initial=-1)) + 1]
        else:
            elements = np.cumsum(listing.counts).searchsorted(positions, side="right")
            highest = np.zeros(len(keys), np.intp)
            np.maximum.at(highest, elements, partitions + 1)
            needs = highest.tolist()
        if not self._span(keys, needs, len(partitions)):
            return False
        rows = self._allocate(len(positions))
        numbers = [self.numbers.get(key, _NO_TOPIC) for key in keys]
        topics = numbers[0] if elements is None else np.array(numbers, np.intp)[elements]
        self.topic[rows] = topics
        self.requests[rows] = entries
        self.cached_entries[rows] = self._blank
        self._lookup[self._bases[topics] + partitions] = rows
        self.size += len(rows)
        return True

    def forget(self, rows: Rows) -> None:
        slots = self._bases[self.topic[rows]] + self.partitions(rows)
        self._lookup[slots] = _NO_ROW
        self.topic[rows] = _NO_TOPIC
        self._described -= int(np.count_nonzero(self.known[rows]))
        self.known[rows] = False
        self.refused[rows] = 0
        self.behind.difference_update(rows.tolist() if self.behind else ())
        self._end_unknown.difference_update(rows.tolist() if self._end_unknown else ())
        self.position[rows] = -1
        self._free.extend(rows.tolist())
        self.size -= len(rows)

    def forget_responses(self) -> None:
        """Forget the cached entries of all partitions, because a new session begins.

        Entries of the old session must not be used in the new session (fetch-semantics 6.2).
        """
        self.known.fill(False)
        self.behind.clear()
        self._end_unknown.clear()
        self._described = 0
        self.refused.fill(0)

    def apply_run(self, run: EmptyRun, rows: Rows) -> None:
        self.cached_entries[rows] = run.entries
        self._end_unknown.difference_update(rows.tolist() if self._end_unknown else ())
        self.known[rows] = True
        self._described = int(np.count_nonzero(self.known))
        self.refused[rows] = 0
        if self.isolation_level:
            self._weigh(rows)

    def apply_entry(self, entry: PartitionResponse, row: int) -> None:
        """Store an entry without its records. If it has an error, the cached entry becomes unusable."""
        known = bool(self.known[row])
        # An error entry has -1 for all offsets, so it is never filled in (fetch-semantics 6.2, trap 25; case
        # 25).
        self.known[row] = described = not entry.error_code
        self._described += described - known
        if described:
            self.refused[row] = 0
            self.describe(row, entry.fixed)
            if entry.aborted != self._usual or entry.null_records or self._end_unknown or self._ends_vary:
                self._learn_end(entry, row, first=not known)
        elif self.isolation_level:
            self._weigh_row(row)

    def describe(self, row: int, fixed: bytes) -> None:
        """Store the fields of an entry before the aborted transactions. The row must be `known`."""
        at = row * self.layout.response_entry
        self.cached_bytes[at : at + len(fixed)] = fixed
        if self.isolation_level:
            self._weigh_row(row)

    def _learn_end(self, entry: PartitionResponse, row: int, *, first: bool) -> None:
        """Learn which bytes the broker writes at the end of an entry without records."""
        if entry.redirects:  # made without a read
            return
        layout, aborted = self.layout, entry.aborted
        if not entry.records:
            self._write(row, layout.response_records, layout.no_items(null=entry.null_records))
        # A list with items does not show how an empty one is written. Nor does null after a read that did not
        # fit: such an entry always has null (fetch-semantics 1.4).
        if aborted > NO_ABORTED or (aborted == NULL and not entry.records and row in self.behind):
            if first:
                self._write(row, layout.aborted, layout.no_items(null=self._no_aborted == NULL))
                self._end_unknown.add(row)
        else:
            self._end_unknown.discard(row)
            for each in (row, *(self._end_unknown if aborted != self._no_aborted else ())):
                self._write(each, layout.aborted, layout.no_items(null=aborted == NULL))
            self._no_aborted = aborted
        self._ends_vary |= entry.null_records or self._no_aborted != self._usual

    def _write(self, row: int, offset: int, data: bytes) -> None:
        at = row * self.layout.response_entry + offset
        self.cached_bytes[at : at + len(data)] = data

    def alter(self, rows: Rows, entries: Entries) -> None:
        """Replace the requested entries of these rows."""
        self.requests[rows] = entries
        if self.isolation_level:
            self._weigh(rows)

    def alter_row(self, row: int, entry: bytes) -> None:
        at = row * self.layout.request_entry
        self.request_bytes[at : at + len(entry)] = entry
        if self.isolation_level:
            self._weigh_row(row)

    def _weigh(self, rows: Rows) -> None:
        offsets = self.requests[rows].view(self.layout.request_fields)["offset"]
        stable = self.cached_entries[rows].view(self.layout.response_fields)["last_stable_offset"]
        behind = rows[self.known[rows] & (offsets < stable)]
        self.behind.difference_update(rows.tolist())
        self.behind.update(behind.tolist())

    def _weigh_row(self, row: int) -> None:
        layout = self.layout
        at = row * layout.request_entry + layout.request_offset
        offset = int.from_bytes(self.request_bytes[at : at + 8], signed=True)
        at = row * layout.response_entry + LAST_STABLE_OFFSET.start
        stable = int.from_bytes(self.cached_bytes[at : at + 8], signed=True)
        if offset < stable and self.known[row]:
            self.behind.add(row)
        else:
            self.behind.discard(row)

    def unread(self) -> tuple[Rows, npt.NDArray[np.int64]]:
        """Return the rows of partitions with records that the client has not read, and its fetch offsets.

        This is as far as known from the cached entries.
        """
        stable = "last_stable_offset" if self.isolation_level else "high_watermark"
        ends = self.cached_entries[: self._top].view(self.layout.response_fields)[stable]
        offsets = self.requests[: self._top].view(self.layout.request_fields)["offset"]
        rows = (self.known[: self._top] & (offsets < ends)).nonzero()[0]
        return rows, offsets[rows].astype(np.int64)

    def high_watermarks(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the high watermark in the cached entry of each row. Only those of `known` rows are valid."""
        fields = self.cached_entries[rows].view(self.layout.response_fields)
        marks: npt.NDArray[np.int64] = fields["high_watermark"].astype(np.int64)
        return marks

    def partitions(self, rows: Rows) -> Rows:
        partitions: Rows = self.requests.view(self.layout.request_fields)["partition"][rows].astype(np.intp)
        return partitions

    def unplaced(self) -> Rows:
        """Return the rows of the partitions that the current fetch does not list."""
        unplaced = (self.position[: self._top] < 0) & (self.topic[: self._top] != _NO_TOPIC)
        rows: Rows = unplaced.nonzero()[0]
        return rows

    def place(self, rows: Rows) -> int:
        """Store the positions of these rows in the current fetch. Return the number of different rows."""
        position = self.position
        position.fill(-1)
        # By content, not by place: librdkafka rotates its lists (fetch-semantics, trap 47).
        position[rows] = _first_numbers(len(rows))
        return int(np.count_nonzero(position >= 0))

    def arrange(self, rows: Rows) -> None:
        """Renumber all rows from 0 on, in the given order."""
        count, top = len(rows), self._top
        order = np.concatenate([rows, np.array(self._free, np.intp)])
        for column in (self.requests, self.cached_entries, self.known, self.refused, self.topic):
            column[:top] = column[order]
        self._free = list(range(count, top))
        if self.behind:
            self.behind = {row for row, old in enumerate(rows.tolist()) if old in self.behind}
        if self._end_unknown:
            self._end_unknown = {row for row, old in enumerate(rows.tolist()) if old in self._end_unknown}
        straight = np.arange(count)
        self._lookup[self._bases[self.topic[:count]] + self.partitions(straight)] = straight
        self.place(straight)
        if self.arranged is not None:
            self.arranged(order)

    @property
    def ends_as_usual(self) -> bool:
        """Whether all cached entries end as Kafka writes them for the session's isolation level."""
        return not (self._ends_vary or self._end_unknown)

    @property
    def undescribed(self) -> int:
        return self.size - self._described

    def unknown(self) -> Rows:
        if self._described == self.size:
            return _NONE
        rows: Rows = (~self.known[: self._top] & (self.topic[: self._top] != _NO_TOPIC)).nonzero()[0]
        return rows

    @property
    def unmentioned(self) -> bool:
        """Whether the full response that began this session had no entry for some partition of the table."""
        return self._described + int(np.count_nonzero(self.refused)) != self.size

    def _allocate(self, count: int) -> Rows:
        reused = min(count, len(self._free))
        rows = [self._free.pop() for _ in range(reused)]
        top = self._top + count - reused
        self._grow(top)
        allocated: Rows = np.arange(self._top, top)
        self._top = top
        return np.concatenate([np.array(rows, np.intp), allocated]) if rows else allocated

    def _grow(self, need: int) -> None:
        have = len(self.topic)
        if need <= have:
            return
        size = max(need, have + have // 4)
        self.requests = extended(self.requests, size)
        self.request_bytes = self.requests.view(np.uint8).data
        self.cached_entries = extended(self.cached_entries, size)
        self.cached_bytes = self.cached_entries.view(np.uint8).data
        self.known = extended(self.known, size)
        self.refused = extended(self.refused, size)
        self.topic = extended(self.topic, size)
        self.position = extended(self.position, size, _NO_PLACE)

    def _span(self, keys: Sequence[bytes], needs: Sequence[int], partitions: int) -> bool:
        """Make room in the lookup for more partitions. If it would exceed its limit, change nothing.

        `needs` is the highest partition number plus one, for each topic element to add.
        """
        short = [
            (key, need)
            for key, need in zip(keys, needs, strict=True)
            if need > self._spans[self.numbers.get(key, _NO_TOPIC)]
        ]
        wanted = sum(need for _, need in short)
        if len(self._lookup) + wanted > MAX_LOOKUP + 8 * (self.size + partitions):
            return False
        extents = dict[bytes, int]()
        for key, need in short:
            extents[key] = max(need, extents.get(key, 0))
        for key in extents:
            if key not in self.numbers:
                self.numbers[key] = len(self._keys)
                self._keys.append(key)
                self._key_bytes += len(key) + _KEY_BYTES
        self._bases = extended(self._bases, len(self._keys))
        self._spans = extended(self._spans, len(self._keys))
        at = len(self._lookup)
        self._lookup = extended(self._lookup, at + sum(extents.values()), _NO_ROW)
        for key, need in extents.items():
            number = self.numbers[key]
            base, span = int(self._bases[number]), int(self._spans[number])
            self._lookup[at : at + span] = self._lookup[base : base + span]
            self._bases[number], self._spans[number] = at, need
            at += need
        return True


_numbers: Column32 = np.arange(1024, dtype=np.int32)


def _first_numbers(count: int) -> Column32:
    """Return the numbers from 0 to `count` - 1. The result must not be modified."""
    global _numbers  # noqa: PLW0603 - a table of constants that grows
    if count > len(_numbers):
        _numbers = np.arange(2 * count, dtype=np.int32)
    return _numbers[:count]


def is_rotation(numbers: Column32) -> bool:
    """Return whether these are the numbers 0 to n - 1, ascending from any number on, wrapping around."""
    count = len(numbers)
    if not count or not 0 <= (first := int(numbers[0])) < count:
        return False
    straight = _first_numbers(count)
    return numbers.tobytes() == straight[first:].tobytes() + straight[:first].tobytes()


def extended(column: npt.NDArray[_T], size: int, blank: int = 0) -> npt.NDArray[_T]:
    """Return a copy of a column with `size` elements. The new ones have the value `blank`."""
    have = len(column)
    longer = np.zeros(size, column.dtype)
    longer[:have] = column
    if blank:
        longer[have:] = blank
    return longer
