"""The records of a classic pcap file, found in windows of it."""

import struct
from dataclasses import dataclass

import numpy as np

from replay.capture.counts import FileCounts
from replay.capture.formats import HEADER, Format
from replay.capture.recordsearch import RecordSearch
from replay.capture.window import Column, Records, Window

_CAPTURED = 8
"""Where a record header has the number of captured bytes."""


@dataclass(slots=True)
class _Chain:
    places: Column
    position: int
    """Behind the last record."""
    broken: bool
    """What stands at `position` is no record."""


class PcapRecords:
    """Follows the chain of record headers; where it breaks, searches for the next one."""

    def __init__(
        self,
        form: Format,
        counts: FileCounts,
        *,
        start: int = 0,
        stop: int | None = None,
        first_time: int = 0,
    ) -> None:
        """Gives the records that begin from `start` on and before `stop`.

        Args:
            form: The file's format.
            counts: Filled as records pass.
            start: 0, where the file header is passed over, or the place of a record.
            stop: None for all up to the end.
            first_time: Nanoseconds since 1970 of the file's first packet, 0 when unknown.
        """
        self.done = False
        """All records before `stop` were given."""
        self._form = form
        self._counts = counts
        self._stop = stop
        self._search = RecordSearch(form, first_time)
        self._captured = struct.Struct(f"{form.order}I")
        self._header = np.dtype(
            [(name, f"{form.order}u4") for name in ("second", "fraction", "captured", "length")]
        )
        self._file_header = start == 0
        self._seeking = False

    def take(self, window: Window, *, final: bool) -> Records | None:
        """Give the whole records in the window; None when more bytes are needed.

        Args:
            window: Its `begin` moves on.
            final: The file ends where the window does.
        """
        if self._file_header:
            self._pass(window, window.begin + HEADER)
            self._file_header = False
        if self._seeking:
            place, found = self._search.next(window, final=final)
            self._counts.skipped_bytes += place - window.begin
            self._pass(window, place)
            self._seeking = not found
        if self.done or self._seeking:
            return None
        chain = self._follow(window)
        self._pass(window, chain.position)
        if chain.broken:
            self._lost(window)
        elif self._stop is not None and window.offset(window.begin) >= self._stop:
            self._end(window.offset(window.begin), self._stop)
        elif final and window.begin < window.end:
            self._cut(window)
        return self._columns(window, chain.places) if len(chain.places) or chain.broken else None

    def _follow(self, window: Window) -> _Chain:
        """Follow the chain to the end of the window; the one loop in Python that sees every packet."""
        unpack, data, header = self._captured.unpack_from, window.data, self._form.record_header
        last = window.end - header + 1
        if self._stop is not None:
            last = min(last, self._stop - window.offset(0))
        found: list[int] = []
        append = found.append
        length_at, last_length_at = window.begin + _CAPTURED, last + _CAPTURED
        while length_at < last_length_at:
            append(length_at)
            length_at += unpack(data, length_at)[0] + header
        places = np.array(found, np.int64) - _CAPTURED
        return self._believed(window, places, length_at - _CAPTURED)

    def _believed(self, window: Window, places: Column, position: int) -> _Chain:
        """Keep the records before the first one that is too long to be one, or is here in part."""
        captured = window.blocks(places, self._header)["captured"]
        bad = np.flatnonzero(captured > self._form.max_record)
        if len(bad):
            return _Chain(places[: bad[0]], int(places[bad[0]]), broken=True)
        if position > window.end:
            return _Chain(places[:-1], int(places[-1]), broken=False)
        return _Chain(places, position, broken=False)

    def _columns(self, window: Window, places: Column) -> Records:
        header = window.blocks(places, self._header)
        unit = 1_000_000_000 // self._form.fraction
        seconds, fractions = header["second"].astype(np.int64), header["fraction"].astype(np.int64)
        return Records(
            at=places + self._form.record_header,
            captured=header["captured"].astype(np.int64),
            length=header["length"].astype(np.int64),
            time=seconds * 1_000_000_000 + fractions * unit,
            offset=places + window.offset(0),
            link=np.full(len(places), self._form.link, np.int64),
        )

    def _pass(self, window: Window, place: int) -> None:
        self._counts.file_bytes += place - window.begin
        window.begin = place

    def _lost(self, window: Window) -> None:
        (captured,) = self._captured.unpack_from(window.data, window.begin + 8)
        place = window.offset(window.begin)
        self._counts.bad_records += 1
        self._counts.note(f"at byte {place} a record claims {captured} bytes; went on at the next one found")
        self._counts.skipped_bytes += 1
        self._pass(window, window.begin + 1)
        self._seeking = True

    def _end(self, place: int, stop: int) -> None:
        """Make sure that the next share begins where the records of this one end."""
        if place > stop:
            self._counts.bad_records += 1
            self._counts.note(f"split at byte {stop}, where no record begins; the next one is at {place}")
        self.done = True

    def _cut(self, window: Window) -> None:
        left = window.end - window.begin
        self._counts.trailing_bytes += left
        self._counts.note(f"ends within a record, whose {left} bytes are left out")
        self._pass(window, window.end)
        self.done = True


def first_time(form: Format, window: Window) -> int:
    """Tell the time of the first packet of a file that begins where the window does; 0 without one."""
    if window.end < HEADER + form.record_header:
        return 0
    second, fraction, captured = struct.unpack_from(f"{form.order}3I", window.data, HEADER)
    if captured > form.max_record or fraction >= form.fraction:
        return 0
    return int(second) * 1_000_000_000 + int(fraction) * (1_000_000_000 // form.fraction)
