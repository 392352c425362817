"""Records of a classic pcap file: follows the chain of records. If it is broken, finds the next record."""

import struct
from dataclasses import dataclass

import numpy as np

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import HEADER, Format
from replay.capture.files.window import Column, FileWindow, Records

_CAPTURED = 8
"""Offset of the number of captured bytes in a record header."""


@dataclass(slots=True)
class _Chain:
    places: Column
    position: int
    broken: bool
    """Whether there is no valid record at `position`."""


class PcapRecords:
    """Reads the records of a file in order."""

    def __init__(
        self,
        form: Format,
        counts: FileCounts,
        *,
        start: int = 0,
        stop: int | None = None,
        first_time: int = 0,
    ) -> None:
        """Read the records that begin at `start` or later, and before `stop` (None: up to the end).

        If `start` is 0, the file's header is skipped, otherwise a record begins there. `first_time` is that
        of the file's first packet, in ns since 1970; 0 if unknown.
        """
        self.done = False
        """Whether reading ended at `stop`, or within a record at the end of the file. It stays False if the
        file ends after a whole record before `stop`."""
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

    def read(self, window: FileWindow, *, final: bool) -> Records | None:
        """Return the complete records in the window, or None if more bytes are needed, or none are left.

        The window's `begin` moves past these records. If their chain is broken, there may be none in the
        result. `final` tells whether the window reaches to the end of the file.
        """
        if self._file_header:
            self._move_to(window, window.begin + HEADER)
            self._file_header = False
        if self._seeking:
            place, found = self._search.next(window, final=final)
            self._counts.skipped_bytes += place - window.begin
            self._move_to(window, place)
            self._seeking = not found
        if self.done or self._seeking:
            return None
        chain = self._follow(window)
        self._move_to(window, chain.position)
        if chain.broken:
            self._begin_seeking(window)
        elif self._stop is not None and window.offset(window.begin) >= self._stop:
            self._end_of_share(window.offset(window.begin), self._stop)
        elif final and window.begin < window.end:
            self._leave_out_rest(window)
        return self._columns(window, chain.places) if len(chain.places) or chain.broken else None

    def _follow(self, window: FileWindow) -> _Chain:
        unpack, data = self._captured.unpack_from, window.data
        header, longest = self._form.record_header, self._form.max_record
        last = window.end - header + 1
        if self._stop is not None:
            last = min(last, self._stop - window.offset(0))
        found: list[int] = []
        append = found.append
        length_at, last_length_at = window.begin + _CAPTURED, last + _CAPTURED
        # This is the only Python loop that runs once for each packet of a pcap file.
        while length_at < last_length_at:
            append(length_at)
            (captured,) = unpack(data, length_at)
            length_at += captured + header
            # Behind a broken record, what looks like records may go on to the end of the window.
            if captured > longest:
                break
        places = np.array(found, np.int64) - _CAPTURED
        return self._checked(window, places, length_at - _CAPTURED)

    def _checked(self, window: FileWindow, places: Column, position: int) -> _Chain:
        captured = window.blocks(places, self._header)["captured"]
        bad = np.flatnonzero(captured > self._form.max_record)
        if len(bad):
            return _Chain(places[: bad[0]], int(places[bad[0]]), broken=True)
        if position > window.end:
            return _Chain(places[:-1], int(places[-1]), broken=False)
        return _Chain(places, position, broken=False)

    def _columns(self, window: FileWindow, places: Column) -> Records:
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

    def _move_to(self, window: FileWindow, place: int) -> None:
        self._counts.file_bytes += place - window.begin
        window.begin = place

    def _begin_seeking(self, window: FileWindow) -> None:
        (captured,) = self._captured.unpack_from(window.data, window.begin + 8)
        place = window.offset(window.begin)
        self._counts.bad_records += 1
        self._counts.add_problem(
            f"at byte {place} a record claims {captured} bytes; reading continued at the next one found"
        )
        self._counts.skipped_bytes += 1
        self._move_to(window, window.begin + 1)
        self._seeking = True

    def _end_of_share(self, place: int, stop: int) -> None:
        if place > stop:
            self._counts.bad_records += 1
            self._counts.add_problem(
                f"split at byte {stop}, where no record begins; the next one is at {place}"
            )
        self.done = True

    def _leave_out_rest(self, window: FileWindow) -> None:
        left = window.end - window.begin
        self._counts.trailing_bytes += left
        self._counts.add_problem(f"ends within a record, whose {left} bytes are left out")
        self._move_to(window, window.end)
        self.done = True


def first_time(form: Format, window: FileWindow) -> int:
    """Return the time of the first packet in a window at the start of a file; 0 if no valid one is there."""
    if window.end < HEADER + form.record_header:
        return 0
    second, fraction, captured = struct.unpack_from(f"{form.order}3I", window.data, HEADER)
    if captured > form.max_record or fraction >= form.fraction:
        return 0
    return int(second) * 1_000_000_000 + int(fraction) * (1_000_000_000 // form.fraction)


_CONFIRM_RECORDS = 8
"""This many consecutive headers are enough to accept them as headers of records, if the records are together
longer than the longest possible record."""
_SCAN = 1 << 16
_MAX_WIRE_LENGTH = 1 << 20
"""A header that claims more bytes on the wire is not the header of a record."""
_MAX_PACKET = 66_000
"""The largest size of an IP packet with its link layer header, in bytes."""
_DAY = 86_400
_YEAR_2000 = 946_684_800
_BEFORE, _AFTER = _DAY, 10 * 366 * _DAY
"""How many seconds a record's time may be before or after the time of the file's first packet, in a search.
"""


class RecordSearch:
    """Finds the next record in windows of one file. `first_time` is in ns since 1970; 0 if unknown."""

    def __init__(self, form: Format, first_time: int) -> None:
        self._form = form
        self._unpack = struct.Struct(f"{form.order}4I").unpack_from
        self._dead = bytearray()
        """For each place in the window: whether a chain of records goes from there to something else, and no
        later chain through it can be long enough."""
        self._dead_of = -1
        self._seconds = (1, 1 << 32)
        second = first_time // 1_000_000_000
        # The clock of some machines starts in 1970 and jumps when the time is set.
        if second > _YEAR_2000:
            self._seconds = (second - _BEFORE, second + _AFTER)

    def next(self, window: FileWindow, *, final: bool) -> tuple[int, bool]:
        """Return where the first record from the window's `begin` on begins, and True.

        If there is none, return an offset before which none begins, and False. `final` tells whether the
        window reaches to the end of the file.
        """
        last = window.end - self._form.record_header + 1
        if self._dead_of != window.offset(0):
            self._dead, self._dead_of = bytearray(len(window.data)), window.offset(0)
        for begin in range(window.begin, last, _SCAN):
            for place in self._plausible(window, begin, min(begin + _SCAN, last)).tolist():
                if self._dead[place]:
                    continue
                confirmed = self._confirm(window, place, final=final)
                if confirmed is not False:
                    return place, confirmed is True
        return (window.end if final else max(window.begin, last)), False

    def find_certain(self, window: FileWindow) -> int | None:
        """Find an offset at which a record certainly begins. Return None if there is none.

        Bytes of a payload may look like a record, and real records may come after them. So from the first
        possible offset, the chain of records is followed over more bytes than the longest packet has.
        """
        place, found = self.next(window, final=False)
        if not found:
            return None
        begin = place
        while place - begin <= _MAX_PACKET:
            _, _, captured, _ = self._unpack(window.data, place)
            place += self._form.record_header + captured
        return place

    def _plausible(self, window: FileWindow, begin: int, end: int) -> Column:
        earliest, latest = self._seconds
        order = self._form.order
        word = np.ndarray(len(window.data) - 3, f"{order}u4", window.data, 0, (1,))
        second, fraction = word[begin:end], word[begin + 4 : end + 4]
        captured, length = word[begin + 8 : end + 8], word[begin + 12 : end + 12]
        likely = (captured > 0) & (captured <= self._form.max_record)
        likely &= (captured <= length) & (length <= _MAX_WIRE_LENGTH)
        likely &= (fraction < self._form.fraction) & (second >= earliest) & (second <= latest)
        found: Column = np.flatnonzero(likely) + begin
        return found

    def _confirm(self, window: FileWindow, place: int, *, final: bool) -> bool | None:
        """Return whether consecutive records begin at `place`, or None if the window is too short to tell."""
        header, longest = self._form.record_header, self._form.max_record
        earliest, latest = self._seconds
        position, before = place, 0
        passed: list[int] = []
        while len(passed) < _CONFIRM_RECORDS or position - place <= longest:
            if position + header > window.end:
                return (position == window.end or len(passed) > 1) if final else None
            second, fraction, captured, length = self._unpack(window.data, position)
            if (
                self._dead[position]
                or captured > min(longest, length)
                or length > _MAX_WIRE_LENGTH
                or fraction >= self._form.fraction
                # Bytes of a payload that look like a record, and end where a real one begins, have another
                # time.
                or not earliest <= second <= latest
                or abs(second - (before or second)) > _DAY
            ):
                self._bury(passed, position)
                return False
            before = second
            passed.append(position)
            position += header + captured
        return True

    def _bury(self, passed: list[int], end: int) -> None:
        """Note a chain that ended at `end`. Later ones through it are even shorter: none follows it."""
        if passed and end - passed[0] <= self._form.max_record:
            for position in passed:
                self._dead[position] = 1
