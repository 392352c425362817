"""Compares the lists of fetches with the table of a steady session (`replay.simulate.runs`). Sans-IO.

For lists of one topic, the core has a fast path: `OneTopic` lets `Rotation` decide as it does there. For
lists of several topics, `SeveralTopics` finds what `FetchSessionHandler.compare` would find. It takes less
time, as most lists are the table's rows in their order, in a few pieces.
"""

from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

import numpy as np

from proxy.core.fetches import Fetches
from proxy.core.plans import FetchTemplate
from proxy.protocol.api import API_KEY_AND_VERSION, REQUEST_START_BYTES
from proxy.protocol.fetch_layout import PARTITION_BYTES, FetchLayout, Rows
from proxy.protocol.fetch_request import FetchRequest, Listing, build_fetch_request, parse_fetch_request
from proxy.protocol.primitives import ProtocolError
from proxy.session.decision import Delta
from proxy.session.partitions import PartitionTable
from proxy.session.rotation import Rotation
from replay.simulate.captured_broker import NewEntry

_MAX_ELEMENTS: Final = 128
"""Lists of more topic elements are left to the core, and those of more than two pieces an element: there the
core takes less time."""
_MOST_FORMS: Final = 20_000
"""The maximum number of topic elements in the known forms of lists: 8 MB for one connection."""
_NO_ROWS: Final = np.zeros(0, np.intp)
_SAME: Final = Delta(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, [], [], turned=False)
"""Stands for all deltas without added and forgotten partitions, where only their sizes matter."""


class ListedTopic(NamedTuple):
    """A topic element of a fetch."""

    key: bytes
    partitions: int
    pieces: Sequence[tuple[int, int]]
    """Its partitions in pieces of the table: for each, its first row, and the row after its last one."""


class Listed(NamedTuple):
    """The list of a fetch, compared with the session."""

    topics: Sequence[ListedTopic]
    altered: list[tuple[int, bytes]]
    """The changed entries of the fetch, each with its row."""
    counts: Mapping[bytes, int]
    """How many of them each topic has. Topics without any are missing."""
    sent: int
    """The size of the incremental fetch."""

    @property
    def rows(self) -> Rows:
        """The row of each partition."""
        return np.concatenate([np.arange(*piece) for topic in self.topics for piece in topic.pieces])


class ListForm(NamedTuple):
    """What lists have in common that differ only in what their entries contain."""

    topics: Sequence[ListedTopic]
    places: Sequence[int]
    """Where the entries of each topic element begin in the fetch."""
    between: Sequence[bytes]
    """The bytes before the entries of each topic element, and all after the last ones."""
    size: int
    """The size of the fetch."""


class OneTopic:
    """Lists of one topic that rotate."""

    def __init__(self, fetches: Fetches, template: FetchTemplate, rotation: Rotation) -> None:
        self.table = rotation.table
        self._fetches, self._template, self._rotation = fetches, template, rotation
        self._key = template.request.topics.keys[0]
        self.suspects: list[int] = []
        """See `SeveralTopics.suspects`."""

    def read(self, frame: bytes) -> Listed | None:
        """Return the list of the next fetch. None if the core has to decide. This changes nothing."""
        rotation, count = self._rotation, self.table.size
        if not self._template.surrounds(frame):
            return None
        first = rotation.first(frame)
        altered = rotation.altered(frame, first) if first >= 0 else None
        if altered is None:
            return None
        topics = (ListedTopic(self._key, count, ((first, count), (0, first))),)
        sent = len(rotation.delta(frame, altered, self._fetches.session.pair))
        return Listed(topics, altered, {self._key: len(altered)} if altered else {}, sent)

    def fetch(self, frame: bytes) -> FetchRequest:
        """Return the parsed form of a fetch that `read` has read."""
        return self._template.request.with_frame(frame)

    def count(self, frame: bytes, sent: int, spared: int, news: Sequence[NewEntry]) -> bool:
        """Count what a fetch saves. Return whether the connection begins to rest.

        `sent` is the size of the incremental fetch. Its response is `spared` bytes smaller than the full one.
        """
        self._rotation.suspect([entry.row for entry in news if entry.records])
        self.suspects = sorted([entry.row for entry in news])
        return self._fetches.eligibility.savings.answered(len(frame) - sent + spared, len(news))


class SeveralTopics:
    """Lists of several topics. The core has processed the fetch `last` of the same list."""

    def __init__(self, fetches: Fetches, last: FetchRequest, listing: Listing, table: PartitionTable) -> None:
        self.table = table
        self._savings = fetches.eligibility.savings
        self._last, self.listing = last, listing
        frame, layout = last.frame, last.layout
        self._kind = frame[API_KEY_AND_VERSION]
        self._before = frame[REQUEST_START_BYTES : last.body + layout.request_head]
        self._after = frame[last.topics_end :]
        bare = build_fetch_request(last, layout, fetches.session.pair)
        self._bare = len(bare) - len(layout.count(0))
        self._bounds: list[int] = [*(np.flatnonzero(np.diff(table.topic)) + 1).tolist(), len(table.topic)]
        """The rows at which another topic begins."""
        self._begin = last.body + layout.request_head
        """Where the topics of a fetch begin."""
        self._forms: dict[bytes, ListForm] = {}
        """The forms of earlier lists, by their first bytes, up to the number of the first partition."""
        self._lengths: set[int] = set()
        """The lengths of the keys of `_forms`."""
        self.suspects: list[int] = []
        """The rows that had news in the last response. They often have news again, and those with records
        have another offset in the next fetch."""

    def read(self, frame: bytes) -> Listed | None:
        """Return the list of the next fetch. None if the core has to decide. This changes nothing."""
        if not self._surrounds(frame):
            return None
        altered = list[tuple[int, bytes]]()
        topics = self._again(frame, altered) or self._compared(frame, altered)
        if topics is None:
            return None
        counts, layout = counted(self.table, [row for row, _ in altered]), self._last.layout
        listed = sum([listing_size(layout, *each) for each in counts.items()])
        sent = self._bare + len(layout.count(len(counts))) + listed
        saves = self._savings.gain(len(frame) - sent, self.table.size, 0, layout, layout) >= 0
        return Listed(topics, altered, counts, sent) if saves else None

    def fetch(self, frame: bytes) -> FetchRequest:
        """Return the parsed form of a fetch that `read` has read."""
        return parse_fetch_request(frame, self._last.layout.version, self._last.body)

    def count(self, frame: bytes, sent: int, spared: int, news: Sequence[NewEntry]) -> bool:
        """Count what a fetch saves. Return whether the connection begins to rest. See `OneTopic`."""
        savings, layout = self._savings, self._last.layout
        savings.weigh(self._last.with_frame(frame), self.listing, _SAME, sent)
        rests = savings.answered(len(frame) - sent + spared, len(news))
        savings.tore(self.table.size, len(news), spared, layout, layout)
        self.suspects = sorted([entry.row for entry in news])
        return rests

    def _surrounds(self, frame: bytes) -> bool:
        """Return whether a fetch differs from the last one only in its topics."""
        return (
            frame.startswith(self._kind, API_KEY_AND_VERSION.start)
            and frame.startswith(self._before, REQUEST_START_BYTES)
            and frame.endswith(self._after)
        )

    def _again(self, frame: bytes, altered: list[tuple[int, bytes]]) -> Sequence[ListedTopic] | None:
        """Compare a list that has the form of an earlier one. It needs no parsing.

        Return its topics, and add its changed entries. None if it has another form; then nothing is added.
        """
        starts = [frame[self._begin : self._begin + length] for length in self._lengths]
        form = next((self._forms[start] for start in starts if start in self._forms), None)
        end, item = self._begin, self.table.layout.request_entry
        if form is None or len(frame) != form.size:
            return None
        for topic, at, between in zip(form.topics, form.places, form.between, strict=False):
            if frame[end:at] != between:
                break
            end = at
            for begin, stop in topic.pieces:
                reached = self._compare(frame, end, begin, stop, altered)
                end += (reached - begin) * item
                if reached < stop:  # then `end` is not where the next bytes between are
                    break
        else:
            if frame[end:] == form.between[-1]:
                return form.topics
        altered.clear()
        return None

    def _compared(self, frame: bytes, altered: list[tuple[int, bytes]]) -> Sequence[ListedTopic] | None:
        """Parse and compare a list. Return its topics, and add its changed entries. None if it is another."""
        fetch = self._parsed(frame)
        if fetch is None:
            return None
        blocks = _blocks(fetch)
        topics = list[ListedTopic]()
        left = 2 * len(blocks) if len(blocks) <= _MAX_ELEMENTS else 0
        for key, at, count in blocks:
            pieces = self._pieces(key, frame, at, count, left, altered)
            left -= len(pieces)
            topics.append(ListedTopic(key, count, pieces))
        if not _each_once([piece for topic in topics for piece in topic.pieces], self.table.size):
            return None
        self._learn(frame, blocks, topics)
        return topics

    def _learn(self, frame: bytes, blocks: list[tuple[bytes, int, int]], topics: list[ListedTopic]) -> None:
        item, places = self.table.layout.request_entry, [at for _, at, _ in blocks]
        ends = [self._begin, *(at + count * item for _, at, count in blocks)]
        begins = [*places, len(frame)]
        between = [frame[end:at] for end, at in zip(ends, begins, strict=True)]
        if len(self._forms) * len(topics) >= _MOST_FORMS:
            self._forms.clear()
        start = frame[self._begin : places[0] + PARTITION_BYTES]
        self._lengths.add(len(start))
        self._forms[start] = ListForm(topics, places, between, len(frame))

    def _parsed(self, frame: bytes) -> FetchRequest | None:
        """Return a fetch of as many partitions. None if it has others or is not understood."""
        try:
            fetch = self.fetch(frame)
        except ProtocolError:
            return None
        known = fetch.topics_end == len(frame) - len(self._after) and not fetch.unsupported_reason
        return fetch if known and fetch.partitions == self.table.size else None

    def _pieces(
        self, key: bytes, frame: bytes, at: int, count: int, most: int, altered: list[tuple[int, bytes]]
    ) -> list[tuple[int, int]]:
        """Return the pieces of a topic element, and add its changed entries to `altered`.

        Partitions are missing in the pieces if the table does not have them, if another field than the offset
        and the epochs has changed, or if there are more than `most` pieces.
        """
        table, item = self.table, self.table.layout.request_entry
        pieces = list[tuple[int, int]]()
        end = at + count * item
        while at < end and len(pieces) < most:
            begin = row = table.row(key, int.from_bytes(frame[at : at + PARTITION_BYTES]))
            if row < 0:
                break
            stop = min(row + (end - at) // item, self._bounds[bisect(self._bounds, row)])
            row = self._compare(frame, at, row, stop, altered)
            if row == begin:
                break
            at += (row - begin) * item
            pieces.append((begin, row))
        return pieces

    def _compare(self, frame: bytes, at: int, row: int, stop: int, altered: list[tuple[int, bytes]]) -> int:
        """Compare entries from `at` on with the table's, from `row` to before `stop`. Add the changed ones.

        Return the first row of which another field than the offset and the epochs has changed, or `stop`.
        """
        known, item = self.table.request_bytes, self.table.layout.request_entry
        while row < stop:
            same = alike(known, item, frame, at, row, stop, self.suspects)
            at, row = at + same * item, row + same
            if row == stop or not self._changed(frame, at, row):
                break
            altered.append((row, frame[at : at + item]))
            at, row = at + item, row + 1
        return row

    def _changed(self, frame: bytes, at: int, row: int) -> bool:
        """Return whether an entry differs from that of a row only in its offset and epochs."""
        layout = self.table.layout
        known = self.table.request_bytes[row * layout.request_entry : (row + 1) * layout.request_entry]
        rest = layout.request_rest
        return frame.startswith(known[:PARTITION_BYTES], at) and frame.startswith(known[rest:], at + rest)


def alike(
    known: memoryview, item: int, frame: bytes, at: int, row: int, stop: int, suspects: Sequence[int]
) -> int:
    """Return how many entries from `at` on are those of the table, from `row` to before `stop`.

    `known` are the table's entries, of `item` bytes each. It takes less time if the rows of different ones
    are among `suspects`, which are sorted.
    """
    first = row
    for suspect in islice(suspects, bisect_left(suspects, row), None):
        if suspect >= stop or not frame.startswith(known[row * item : suspect * item], at):
            break
        at, row = at + (suspect - row) * item, suspect
        if not frame.startswith(known[row * item : (row + 1) * item], at):
            return row - first
        at, row = at + item, row + 1
    if frame.startswith(known[row * item : stop * item], at):
        return stop - first
    same, different = 0, stop - row
    # So many are alike, and among so many is a different one.
    while different - same > 1:
        middle = (same + different) // 2
        if frame.startswith(known[(row + same) * item : (row + middle) * item], at + same * item):
            same = middle
        else:
            different = middle
    return row - first + same


def counted(table: PartitionTable, rows: Iterable[int]) -> Counter[bytes]:
    """Return how many of these rows each topic has."""
    return Counter(map(table.key, map(table.topic.item, rows)))


def listing_size(layout: FetchLayout, key: bytes, count: int) -> int:
    """Return the size of a topic element in a request with so many partitions."""
    return layout.prefix_size(key, count) + count * layout.request_entry + layout.flexible


def _blocks(fetch: FetchRequest) -> list[tuple[bytes, int, int]]:
    """Return for each topic element its key, where its entries begin, and their number.

    Empty if neighbours are of the same topic: a broker's response merges them.
    """
    topics = fetch.topics
    if topics.element:
        start, count = topics.blocks[0]
        return [(key, start + at * topics.element, count) for at, key in enumerate(topics.keys)]
    if len(topics.keys) != len(topics.blocks):
        return []
    return [(key, *block) for key, block in zip(topics.keys, topics.blocks, strict=True)]


def _each_once(pieces: Sequence[tuple[int, int]], size: int) -> bool:
    """Return whether pieces have so many rows, and each only once."""
    ordered = sorted(pieces)
    once = all(before[1] <= after[0] for before, after in pairwise(ordered))
    return once and sum(end - begin for begin, end in pieces) == size
