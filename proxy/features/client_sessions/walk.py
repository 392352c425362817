"""Reads a full fetch response as columns of numbers. They are used for a client's session. Sans-IO."""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proxy.features.client_sessions.partitions import Offsets, Partitions
from proxy.protocol.fetch_layout import HIGH_WATERMARK, Entries, FetchLayout, Rows
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse

_OFFSETS: Final = Struct(">qqq")  # high_watermark, last_stable_offset, log_start_offset
_UNSIGNED: Final = 0xFFFF_FFFF


class OrderedWalk(FetchResponseWalk):
    """A walk of a fetch response that also records the position of each run of empty entries.

    The order of the entries in the first response becomes the order of the session's partitions.
    """

    __slots__ = ("run_places",)

    def __init__(self, layout: FetchLayout, isolation_level: int) -> None:
        super().__init__(layout, isolation_level, keep=True)
        self._list_at = layout.aborted  # how a run's entries end does not matter here
        self.run_places: list[int] = []
        """The position of each run's first entry in the response."""

    def _run(self, buffer: bytes, at: int, base: int) -> int:
        place = self.partitions
        end = super()._run(buffer, at, base)
        if end:
            self.run_places.append(place)
        return end


class ResponseColumns:
    """The partitions of a complete response, in the order of the response."""

    __slots__ = ("entries", "entry_places", "high_watermarks", "items", "log_starts", "partitions", "topics")

    def __init__(self, walk: OrderedWalk) -> None:
        self.topics = [(key, count) for key, count in walk.elements if count > 0]
        """The topic key and the number of entries of each element that has entries."""
        self.entries: Sequence[PartitionResponse] = walk.entries
        """The entries that are not part of a run of empty entries."""
        self.entry_places: Rows = np.zeros(0, np.intp)
        """The position of each of `entries` in the response."""
        runs = [run.entries for run in walk.runs]
        nothing = np.zeros(0, walk.layout.response_item)
        self.items: Entries = runs[0] if len(runs) == 1 else np.concatenate(runs or [nothing])
        """The entries of all runs of empty entries."""
        fields = self.items.view(walk.layout.response_fields)
        self.partitions: Partitions = fields["partition"]
        self.high_watermarks: Offsets = fields["high_watermark"]
        self.log_starts: Offsets = fields["log_start_offset"]
        if walk.entries:
            self._insert(walk)

    def _insert(self, walk: OrderedWalk) -> None:
        """Merge the values of single entries and of runs."""
        in_run = np.zeros(walk.partitions, np.bool_)
        for run, place in zip(walk.runs, walk.run_places, strict=True):
            in_run[place : place + len(run.entries)] = True
        self.entry_places = (~in_run).nonzero()[0]
        offsets = [_OFFSETS.unpack_from(entry.fixed, HIGH_WATERMARK.start) for entry in walk.entries]
        self.partitions = _mixed(
            in_run, self.partitions, [entry.partition & _UNSIGNED for entry in walk.entries]
        )
        self.high_watermarks = _mixed(in_run, self.high_watermarks, [offset for offset, _, _ in offsets])
        self.log_starts = _mixed(in_run, self.log_starts, [offset for _, _, offset in offsets])


def _mixed(in_run: npt.NDArray[np.bool_], runs: npt.NDArray[Any], entries: Sequence[int]) -> npt.NDArray[Any]:
    column = np.empty(len(in_run), np.int64)
    column[in_run] = runs
    column[~in_run] = entries
    return column
