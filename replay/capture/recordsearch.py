"""Where the next record of a pcap file begins, searched from any byte of it on."""

import struct

import numpy as np

from replay.capture.formats import Format
from replay.capture.window import Column, Window

_CONFIRM_RECORDS = 8
"""So many headers in a row, spanning more than the longest record, are no accident of a payload's bytes."""
_SCAN = 1 << 16
_LONGEST = 1 << 20
"""Bytes on the wire that a record may claim."""
_LONGEST_PACKET = 66_000
"""Bytes of an IP packet and what is in front of it."""
_DAY = 86_400
_YEAR_2000 = 946_684_800
_BEFORE, _AFTER = _DAY, 10 * 366 * _DAY
"""Seconds around the file's first packet within which a record is believed when it has to be searched."""


class RecordSearch:
    """Searches record headers in windows of one file."""

    def __init__(self, form: Format, first_time: int) -> None:
        """`first_time`: nanoseconds since 1970 of the file's first packet; 0 when unknown."""
        self._form = form
        self._unpack = struct.Struct(f"{form.order}4I").unpack_from
        self._seconds = (1, 1 << 32)
        second = first_time // 1_000_000_000
        # Machines without a clock begin in 1970, and jump once they are told the time.
        if second > _YEAR_2000:
            self._seconds = (second - _BEFORE, second + _AFTER)

    def next(self, window: Window, *, final: bool) -> tuple[int, bool]:
        """Find the first record in the window.

        Args:
            window: Searched from its `begin` on.
            final: The file ends where the window does.

        Returns:
            Its place and True; or the place before which there surely is none, and False.
        """
        last = window.end - self._form.record_header + 1
        for begin in range(window.begin, last, _SCAN):
            for place in self._plausible(window, begin, min(begin + _SCAN, last)).tolist():
                verdict = self._confirm(window, place, final=final)
                if verdict is not False:
                    return place, verdict is True
        return (window.end if final else max(window.begin, last)), False

    def settled(self, window: Window) -> int | None:
        """Find a record that is surely one, a little behind the first that seems to be; None without any.

        What seems to be a record within a payload can at best lead to a true one, farther than any payload.
        """
        place, found = self.next(window, final=False)
        if not found:
            return None
        begin = place
        while place - begin <= _LONGEST_PACKET:
            _, _, captured, _ = self._unpack(window.data, place)
            place += self._form.record_header + captured
        return place

    def _plausible(self, window: Window, begin: int, end: int) -> Column:
        """Tell the places between `begin` and `end` where a record header could be."""
        earliest, latest = self._seconds
        order = self._form.order
        word = np.ndarray(len(window.data) - 3, f"{order}u4", window.data, 0, (1,))
        second, fraction = word[begin:end], word[begin + 4 : end + 4]
        captured, length = word[begin + 8 : end + 8], word[begin + 12 : end + 12]
        likely = (captured > 0) & (captured <= self._form.max_record)
        likely &= (captured <= length) & (length <= _LONGEST)
        likely &= (fraction < self._form.fraction) & (second >= earliest) & (second <= latest)
        found: Column = np.flatnonzero(likely) + begin
        return found

    def _confirm(self, window: Window, place: int, *, final: bool) -> bool | None:
        """Follow the chain from `place`; None when the window ends before it can be told."""
        header, longest = self._form.record_header, self._form.max_record
        earliest, latest = self._seconds
        position, seen, before = place, 0, 0
        while seen < _CONFIRM_RECORDS or position - place <= longest:
            if position + header > window.end:
                return (position == window.end or seen > 1) if final else None
            second, fraction, captured, length = self._unpack(window.data, position)
            if captured > min(longest, length) or length > _LONGEST or fraction >= self._form.fraction:
                return False
            # What seems to be a record within a payload, and ends where one begins, is of another day.
            if not earliest <= second <= latest or abs(second - (before or second)) > _DAY:
                return False
            before = second
            position += header + captured
            seen += 1
        return True
