"""A full fetch response, read for the session that a client has. Sans-IO."""

from collections.abc import Iterator
from typing import TypeAlias

from proxy.protocol.fetch_layout import FetchLayout
from proxy.protocol.fetch_response import EmptyRun, FetchResponseWalk, PartitionResponse

Placed: TypeAlias = tuple[int, EmptyRun | PartitionResponse]
"""The place of an entry, or of the first entry of a run, in the response."""


class OrderedWalk(FetchResponseWalk):
    """A walk that knows the order of runs and entries: it is that of the session afterwards."""

    __slots__ = ("_places",)

    def __init__(self, layout: FetchLayout, isolation_level: int) -> None:
        super().__init__(layout, isolation_level, keep=True)
        self._places: list[int] = []
        """The place of the first entry of each run."""

    def in_order(self) -> Iterator[Placed]:
        """Yield what the response has so far, in its order."""
        entries, place = iter(self.entries), 0
        for run, first in zip(self.runs, self._places, strict=True):
            while place < first:
                yield place, next(entries)
                place += 1
            yield place, run
            place += len(run.entries)
        for entry in entries:
            yield place, entry
            place += 1

    def _run(self, buffer: bytes, at: int) -> int:
        place = self.partitions
        end = super()._run(buffer, at)
        if end:
            self._places.append(place)
        return end
