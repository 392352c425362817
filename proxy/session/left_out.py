"""Finds out that a broker has lost a partition of a session without an error. Sans-IO.

A session's response leaves out only partitions that have not changed since the broker last sent them
(fetch-semantics 2.5). So a full fetch right before a fetch of the session, a *check*, shows what the response
to that must contain.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from proxy.protocol.fetch_layout import HIGH_WATERMARK
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.session.partitions import PartitionTable

_MAX_DUE: Final = 1024
_MAX_UNREAD: Final = 64


@dataclass(slots=True, eq=False)
class Expected:
    """What the next response of a session must contain."""

    due: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Partitions that it must contain, each with the high watermark that the broker last sent in the session.
    They stay due after a response that a throttle emptied."""
    readable: set[tuple[bytes, int]] = field(default_factory=set)
    """Partitions that it must contain if it has no records."""
    _unread: set[tuple[int, int]] = field(default_factory=set)
    """The row and the fetch offset of the first `_MAX_UNREAD` partitions that had more to read when `waits`
    was last called."""
    _stuck: set[int] = field(default_factory=set)
    """The rows of partitions that had more to read at the last two calls of `waits`, at the same fetch
    offset."""

    def waits(self, table: PartitionTable | None) -> bool:
        """Return whether the client does not advance at a partition that has more records.

        It does not advance if its fetch offset is the same as at the last call. The next response should then
        contain records of the partition, unless the limits of the fetch leave no room for them.
        """
        before, self._unread = self._unread, _unread(table)
        self._stuck = {row for row, _ in before & self._unread}
        return len(self._stuck) > 0

    def advances(self, table: PartitionTable | None) -> bool:
        """Like `waits`, but return whether the client advances. If it does not, change nothing."""
        unread = _unread(table)
        if self._unread & unread:
            return False
        self._unread, self._stuck = unread, set()
        return True

    def check(self, walk: FetchResponseWalk, table: PartitionTable) -> None:
        """Note from the response to a check what the session's next response must contain.

        These are the partitions with a higher high watermark in `walk`. A response without any records must
        also contain the partitions that `waits` has found and of which `walk` has records.
        """
        due: dict[tuple[bytes, int], int] = {}
        for run in walk.runs:
            fields = run.entries.view(walk.layout.response_fields)
            rows = table.rows(run.key, fields["partition"])
            reported = table.high_watermarks(rows)
            newer = (rows >= 0) & table.known[rows] & (fields["high_watermark"] > reported)
            due |= {
                (run.key, int(fields["partition"][place])): int(reported[place])
                for place in newer.nonzero()[0][:_MAX_DUE].tolist()
            }
        for entry in walk.entries:
            row = table.row(entry.key, entry.partition)
            if row < 0 or entry.error_code or not table.known[row]:
                continue
            if entry.records and row in self._stuck:
                self.readable.add((entry.key, entry.partition))
            last_reported = int(table.high_watermarks(np.array([row]))[0])
            if int.from_bytes(entry.fixed[HIGH_WATERMARK], signed=True) > last_reported:
                due[entry.key, entry.partition] = last_reported
        self.due = dict(islice(due.items(), _MAX_DUE))

    def missing(self, table: PartitionTable, walk: FetchResponseWalk, sent: set[int]) -> bool:
        """Return whether a response lacks an expected partition. It has entries for the rows in `sent`."""
        due, self.due = self.due, {}
        for (key, partition), reported in due.items():
            row = table.row(key, partition)
            if row < 0 or not table.known[row] or row in sent:
                continue
            if int(table.high_watermarks(np.array([row]))[0]) == reported:
                return True
        if walk.record_bytes or walk.throttle_time_ms:
            return False
        rows = [table.row(key, partition) for key, partition in self.readable]
        return any(row >= 0 and table.known[row] and row not in sent for row in rows)

    def forget(self) -> None:
        self.due, self.readable = {}, set()


def _unread(table: PartitionTable | None) -> set[tuple[int, int]]:
    """Return the row and the fetch offset of partitions that have more to read."""
    if table is None:
        return set()
    rows, offsets = table.unread()
    return set(zip(rows[:_MAX_UNREAD].tolist(), offsets[:_MAX_UNREAD].tolist(), strict=True))
