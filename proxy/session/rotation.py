"""One topic's list in the order in which the table has it, beginning anywhere.

librdkafka begins each fetch with the partition behind the last one's first, and keeps the circle. What such a
fetch changes is found by comparing bytes, and what it is answered is copied in two pieces: no column of the
table is gathered or scattered. All of this is a shorter way to what `handler` and `expand` do with any list.
"""

from collections.abc import Sequence
from typing import Final

from proxy.protocol.api import API_KEY_AND_VERSION, LENGTH_BYTES, REQUEST_CORRELATION_ID, REQUEST_START_BYTES
from proxy.protocol.fetch_layout import PARTITION_BYTES, SESSION
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import PartitionResponse, response_head, slices
from proxy.protocol.primitives import Buffer
from proxy.session.expand import FOUND_BEFORE_READING
from proxy.session.partitions import PartitionTable

_MAX_SUSPECTS: Final = 16
"""With more entries to be looked at one by one it is the columns' turn."""


class Rotation:
    """A fetch whose entries are the table's rows, all of them, from some row on and round to it.

    Args:
        request: such a fetch; its entries lie in one place, and it is of the table's version.
        table: what it lists.
    """

    __slots__ = ("_at", "_element", "_key", "_limits", "_rest", "_start", "_suspects", "table", "topics")

    def __init__(self, request: FetchRequest, table: PartitionTable) -> None:
        frame, layout = request.frame, request.layout
        self.table = table
        self.topics = request.topics
        """Where the entries lie, in this fetch and in all of its form."""
        self._key = request.topics.keys[0]
        self._at = request.topics.blocks[0][0]
        self._start = frame[API_KEY_AND_VERSION]
        self._limits = frame[REQUEST_START_BYTES : request.body + layout.request_session]
        self._rest = layout.count(0) + frame[request.tail :]
        self._element = layout.count(1) + layout.prefix(self._key, table.size)
        self._suspects: list[int] = []

    def suspect(self, rows: Sequence[int]) -> None:
        """Note of which rows the broker sent news: these are what the next fetch is likely to alter."""
        self._suspects = sorted(rows) if len(rows) <= _MAX_SUSPECTS else []

    def first(self, frame: bytes) -> int:
        """Return the row of the first entry of a fetch, -1 if the table has none."""
        return self.table.row(self._key, int.from_bytes(frame[self._at : self._at + PARTITION_BYTES]))

    def altered(self, frame: bytes, first: int) -> list[tuple[int, bytes]] | None:
        """Return row and entry of what a fetch alters, in its order; None if it can't be told from here.

        Args:
            frame: a fetch of the same form.
            first: the row of its first entry.
        """
        held, item = self.table.request_bytes, self.table.layout.request_entry
        found: list[tuple[int, bytes]] = []
        at = self._at
        for start, end in ((first, self.table.size), (0, first)):
            row = start
            for suspect in (*[each for each in self._suspects if start <= each < end], end):
                if not frame.startswith(held[row * item : suspect * item], at):
                    return None
                at += (suspect - row) * item
                row = suspect
                if row < end:
                    if not frame.startswith(held[row * item : row * item + item], at):
                        if not frame.startswith(held[row * item : row * item + PARTITION_BYTES], at):
                            return None  # another partition
                        found.append((row, frame[at : at + item]))
                    at += item
                    row += 1
        return found

    def delta(self, frame: bytes, altered: Sequence[tuple[int, bytes]], session: tuple[int, int]) -> bytes:
        """Return the incremental fetch that tells what a fetch alters.

        Args:
            frame: the fetch.
            altered: what `altered` found.
            session: its id and epoch.
        """
        layout = self.table.layout
        if altered:
            entries = b"".join([entry for _, entry in altered])
            end = b"\x00" if layout.flexible else b""
            listed = layout.count(1) + layout.prefix(self._key, len(altered)) + entries + end
        else:
            listed = layout.count(0)
        content = b"".join(
            (
                self._start,
                frame[REQUEST_CORRELATION_ID],
                self._limits,
                SESSION.pack(*session),
                listed,
                self._rest,
            )
        )
        return len(content).to_bytes(LENGTH_BYTES) + content

    def apply(self, altered: Sequence[tuple[int, bytes]]) -> None:
        """Make the table hold what a fetch alters."""
        held, item = self.table.request_bytes, self.table.layout.request_entry
        for row, entry in altered:
            held[row * item : row * item + item] = entry

    def expand(
        self,
        first: int,
        told: Sequence[tuple[int, PartitionResponse]],
        chunks: Sequence[bytes],
        *,
        correlation_id: bytes,
        throttle_time_ms: int,
        tags: bytes,
    ) -> tuple[list[Buffer], int] | None:
        """Return the response to a fetch, in pieces, and its size, as `expand.expand` does.

        Args:
            first: the row of the fetch's first entry.
            told: row and entry of all that is told as the broker sent it.
            chunks: the broker's frame as received.
            correlation_id: that of the response.
            throttle_time_ms: that of the response.
            tags: the body's tag buffer (v12 and later), else nothing.

        Returns:
            None if it is in another order than the fetch.
        """
        layout, count = self.table.layout, self.table.size
        head = response_head(layout, correlation_id, throttle_time_ms) + self._element
        end = b"\x00" + tags if layout.flexible else tags
        told_bytes = sum([entry.end - entry.start for _, entry in told])
        size = LENGTH_BYTES + len(head) + (count - len(told)) * layout.response_entry + told_bytes + len(end)
        pieces: list[Buffer] = []
        parts: list[Buffer] = [(size - LENGTH_BYTES).to_bytes(LENGTH_BYTES), head]
        done = 0
        for place, entry in sorted([((row - first) % count, entry) for row, entry in told], key=_place):
            if entry.error_code in FOUND_BEFORE_READING:
                return None
            parts += self._cached(first + done, first + place)
            if parts:
                pieces.append(b"".join(parts))
            pieces += slices(chunks, entry.start, entry.end)
            parts = []
            done = place + 1
        parts += self._cached(first + done, first + count)
        parts.append(end)
        pieces.append(b"".join(parts))
        return pieces, size

    def _cached(self, start: int, end: int) -> list[memoryview]:
        """Return the images of rows, of which those behind the last begin anew."""
        cached_entries, item, count = (
            self.table.cached_bytes,
            self.table.layout.response_entry,
            self.table.size,
        )
        if start < count < end:
            return [cached_entries[start * item : count * item], cached_entries[: (end - count) * item]]
        if start >= count:
            start, end = start - count, end - count
        return [cached_entries[start * item : end * item]] if end > start else []


def _place(pair: tuple[int, PartitionResponse]) -> int:
    return pair[0]
