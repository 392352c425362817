"""The partitions of a client's session, as columns in the session's order. Sans-IO.

A broker uses an insertion-ordered hash set of cached partitions (fetch-semantics 2.1). Here a partition is a
row of numpy arrays, about 61 bytes, without a Python object. Rows are in the session's order, so a full fetch
is a copy, and a response in that order is compared column by column. Each row has a *code*: topic number and
partition number in one integer. A sorted index finds the row of a code.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.fetch_layout import PARTITION_BYTES, Entries, FetchLayout, Rows
from proxy.protocol.fetch_request import MAX_TOPICS, Listing

Codes: TypeAlias = npt.NDArray[np.int64]
"""Topic number and partition number of each row, in one integer."""
Partitions: TypeAlias = npt.NDArray[np.uint32]
"""Partition numbers. They are unsigned, so that a negative number becomes a number that no topic has."""
Offsets: TypeAlias = npt.NDArray[np.int64]

NOT_REPORTED: Final = -1
"""The high watermark and log start offset of a partition that no response has reported, and the high
watermark after an error (fetch-semantics 2.3, 2.5)."""
NO_ROW: Final = -1
_TOPIC_SHIFT: Final = 32
_ROW_BYTES: Final = 100
"""The memory for a partition: its row, and its entry in `FetchSession.silent`."""
_KEY_BYTES: Final = 150
"""The memory for a topic without its key. The key is stored twice, once in `FetchSession.silent`."""
_SPARE_TOPICS: Final = 64
"""Topics without partitions are forgotten if there are more topics than this plus twice the partitions."""
_NO_VALUE: Final = {"epoch": -1, "last_epoch": -1, "log_start_offset": -1}
"""The defaults of fields that a request's version lacks (FetchRequest.json)."""


Element: TypeAlias = tuple[bytes, int, int]
"""The topic's key, the index of its first entry, and the index after its last entry."""


class SessionPartitions:
    """The partitions of a session. `layout` is the layout of the session's first request."""

    __slots__ = (
        "_codes",
        "_index",
        "_key_bytes",
        "_keys",
        "_numbers",
        "high_watermarks",
        "layout",
        "log_starts",
        "requests",
    )

    def __init__(self, layout: FetchLayout) -> None:
        self.layout = layout
        """The layout of `requests`: the one with the most fields of all requests so far."""
        self._numbers: dict[bytes, int] = {}
        """The number of each topic, by its key."""
        self._keys: list[bytes] = []
        self._key_bytes = 0
        """The memory that the topics need."""
        self._codes: Codes = np.zeros(0, np.int64)
        self._index: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """Row numbers in the order of their codes."""
        self.requests: Entries = np.zeros(0, layout.request_item)
        """For each row, the partition's entry as the client last sent it."""
        self.high_watermarks: Offsets = np.zeros(0, np.int64)
        """For each row, the one last reported to the client. So is `log_starts`."""
        self.log_starts: Offsets = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._codes)

    def __repr__(self) -> str:
        return f"<SessionPartitions partitions={len(self)} topics={len(self._keys)} v{self.layout.version}>"

    @property
    def weight(self) -> int:
        """The number of partitions, or more if long topic names need much memory."""
        return max(len(self), self._key_bytes // _ROW_BYTES)

    # The request half

    def update(self, listing: Listing) -> None:
        """Apply the entries of a request (fetch-semantics 2.3).

        New partitions are appended in the order of the request. Known partitions get the new values and keep
        their position. If a partition is listed twice, its first position and its last values count.
        """
        if not listing.keys:
            return
        entries = self._as_stored(listing)
        codes = self._codes_of(listing, entries)
        places, latest = _once_each(codes)
        if places is not None:
            codes, entries = codes[places], entries[latest]
        rows = self._find(codes)
        known = rows >= 0
        if known.all():
            self.requests[rows] = entries
            return
        self.requests[rows[known]] = entries[known]
        self._append(codes[~known], entries[~known])

    def forget(self, forgotten: Sequence[tuple[bytes, bytes]]) -> None:
        """Remove partitions, given as topic keys with int32 partition numbers (fetch-semantics 2.3).

        Unknown partitions are ignored.
        """
        topics = [(key, len(numbers) // PARTITION_BYTES) for key, numbers in forgotten]
        numbers = b"".join([numbers for _, numbers in forgotten])
        rows = self.rows(topics, np.frombuffer(numbers, ">u4"))
        keep = np.ones(len(self), np.bool_)
        keep[rows[rows >= 0]] = False
        if not keep.all():
            self.arrange(keep.nonzero()[0])
            self._drop_topics()

    def listed(self, layout: FetchLayout) -> tuple[list[Element], memoryview]:
        """Return the topic elements of a full fetch, and their entries in `layout`, in the session's order.

        In this order topics may be mixed, and each change of topic starts an element with a name of up to 249
        bytes. If there would be more than `MAX_TOPICS` elements, each topic gets only one element instead, at
        the position of its first partition. The session's first partition stays first. So each partition
        comes first in turn, and no partition starves.
        """
        entries = self.requests
        if len(self._keys) == 1:
            elements = [(self._keys[0], 0, len(self))] if len(self) else []
        else:
            topics = self._codes >> _TOPIC_SHIFT
            starts = _changes(topics)
            if len(starts) > MAX_TOPICS:
                _, first, of_row = np.unique(topics, return_index=True, return_inverse=True)
                order = first[of_row].argsort(kind="stable")
                topics, entries = topics[order], entries[order]
                starts = _changes(topics)
            ends = [*starts[1:], len(self)] if starts else []
            keys = [self._keys[topic] for topic in topics[starts].tolist()]
            elements = [*zip(keys, starts, ends, strict=True)]
        return elements, _converted(entries, self.layout, layout).view(np.uint8).data

    # The response half

    def rows(self, topics: Sequence[tuple[bytes, int]], partitions: Partitions) -> Rows:
        """Return the row of each partition in a list, or -1 if the session does not have it.

        Each topic key has the number of its partitions. This is fastest if they are in the session's order.
        """
        get = self._numbers.get
        numbers = np.array([get(key, -1) for key, _ in topics], np.int64) << _TOPIC_SHIFT
        codes = partitions.astype(np.int64)
        codes += np.repeat(numbers, [count for _, count in topics])
        if not len(self):
            return np.full(len(codes), NO_ROW, np.intp)
        rows: Rows = np.minimum(np.arange(len(codes)), len(self) - 1)
        ordered = self._codes.take(rows) == codes
        if not ordered.all():
            strayed = (~ordered).nonzero()[0]
            rows[strayed] = self._find(codes[strayed])
        return rows

    def move_to_end(self, rows: Sequence[int]) -> None:
        """Move rows to the end, in this order: their partitions had records (fetch-semantics 2.5)."""
        size, rows = len(self), list(dict.fromkeys(rows))
        # The most frequent case: the same partitions returned records last time.
        if rows != list(range(size - len(rows), size)):
            stay = np.ones(size, np.bool_)
            stay[rows] = False
            self.arrange(np.concatenate([stay.nonzero()[0], np.array(rows, np.intp)]))

    def arrange(self, order: Rows) -> None:
        """Keep only the rows in `order`, in that order."""
        places = np.full(len(self), NO_ROW, np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        index = places[self._index]
        self._index = index if len(order) == len(self) else index[index >= 0]
        self._codes = self._codes.take(order)
        self.requests = self.requests.take(order)
        self.high_watermarks = self.high_watermarks.take(order)
        self.log_starts = self.log_starts.take(order)

    # Internals

    def _codes_of(self, listing: Listing, entries: Entries) -> Codes:
        """Return the code of each entry. New topics get a number."""
        numbers = self._numbers
        for key in listing.keys:
            if key not in numbers:
                numbers[key] = len(self._keys)
                self._keys.append(key)
                self._key_bytes += _KEY_BYTES + 2 * len(key)
        codes = entries.view(self.layout.request_fields)["partition"].astype(np.int64)
        topics = np.array([numbers[key] for key in listing.keys], np.int64)
        codes += np.repeat(topics << _TOPIC_SHIFT, listing.counts)
        return codes

    def _as_stored(self, listing: Listing) -> Entries:
        """Return a request's entries in the session's layout.

        If the request's layout has more fields, the session first changes to that layout.
        """
        if listing.layout.request_entry > self.layout.request_entry:
            self.requests = _converted(self.requests, self.layout, listing.layout)
            self.layout = listing.layout
        return _converted(listing.entries, listing.layout, self.layout)

    def _find(self, codes: Codes) -> Rows:
        if not len(self):
            return np.full(len(codes), NO_ROW, np.intp)
        index = self._index
        places = np.searchsorted(self._codes, codes, sorter=index)
        rows: Rows = index.take(places, mode="clip").astype(np.intp)
        rows[self._codes[rows] != codes] = NO_ROW
        return rows

    def _append(self, codes: Codes, entries: Entries) -> None:
        order = codes.argsort()
        places = np.searchsorted(self._codes, codes[order], sorter=self._index)
        self._index = np.insert(self._index, places, (order + len(self)).astype(np.int32))
        reported = np.full(len(codes), NOT_REPORTED, np.int64)
        self._codes = np.concatenate((self._codes, codes))
        self.requests = np.concatenate((self.requests, entries))
        self.high_watermarks = np.concatenate((self.high_watermarks, reported))
        self.log_starts = np.concatenate((self.log_starts, reported))

    def _drop_topics(self) -> None:
        if len(self._keys) <= _SPARE_TOPICS + 2 * len(self):
            return
        topics = self._codes >> _TOPIC_SHIFT
        # Topic numbers keep their order, so the index stays valid.
        used, numbers = np.unique(topics, return_inverse=True)
        self._keys = [self._keys[topic] for topic in used.tolist()]
        self._key_bytes = sum(_KEY_BYTES + 2 * len(key) for key in self._keys)
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        self._codes = numbers.astype(np.int64) << _TOPIC_SHIFT | self._codes & 0xFFFF_FFFF


def _changes(topics: Codes) -> list[int]:
    """Return the first row of each sequence of rows with the same topic."""
    places: list[int] = ((topics[1:] != topics[:-1]).nonzero()[0] + 1).tolist()
    return [0, *places] if len(topics) else []


def _once_each(codes: Codes) -> tuple[Rows | None, Rows]:
    """Return the first and the last position of each code, in the order of the first positions.

    If no code occurs twice, return None and all positions, sorted by code.
    """
    order = codes.argsort(kind="stable")
    ordered = codes[order]
    starts = np.ones(len(codes), np.bool_)
    starts[1:] = ordered[1:] != ordered[:-1]
    if starts.all():
        return None, order
    ends = np.append(starts[1:], True)
    first, last = order[starts], order[ends]
    by_place = first.argsort()
    return first[by_place], last[by_place]


def _converted(entries: Entries, layout: FetchLayout, wanted: FetchLayout) -> Entries:
    if layout.request_entry == wanted.request_entry:
        return entries
    old, fields = entries.view(layout.request_fields), wanted.request_fields
    new = np.zeros(len(entries), fields)
    for name in fields.names or ():
        if name in (old.dtype.names or ()):
            new[name] = old[name]
        elif name in _NO_VALUE:
            new[name] = _NO_VALUE[name]
    return new.view(wanted.request_item)
