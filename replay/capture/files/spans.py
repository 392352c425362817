"""Reads spans of capture files again, by their offsets. Few calls read many spans.

Files are read with `preadv`, not mapped: if a mapped file shrinks, the system ends the process (SIGBUS).
Reading costs 0.4 s of CPU per GB more than mapping.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, Self

import numpy as np
import pyarrow as pa

from replay.capture.files.sources import FINGERPRINT, Source, check_seen, fingerprint
from replay.capture.files.streams import first_line
from replay.capture.files.window import Column

_GAP: Final = 4096
"""Two spans that are at most this many bytes apart are read at once. Reading these bytes takes about as long
as another call."""
_MOST_OPEN: Final = 64


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of files, one row each. No span is empty."""

    file: Column
    """The number of the source."""
    begin: Column
    """The offset in the file."""
    size: Column

    def __getitem__(self, rows: slice) -> "Spans":
        return Spans(self.file[rows], self.begin[rows], self.size[rows])

    def gaps(self) -> Column:
        """For each span, return the number of bytes between the span before it and this span.

        The result is -1 for a span that is not read together with the span before it.
        """
        found = np.full(len(self.file), -1, np.int64)
        between = self.begin[1:] - self.begin[:-1] - self.size[:-1]
        near = (between >= 0) & (between <= _GAP) & (self.file[1:] == self.file[:-1])
        found[1:][near] = between[near]
        return found

    def bytes_read(self) -> Column:
        """Return how many bytes are read before each span, and how many in total.

        Bytes between spans count if they are read together with the spans.
        """
        return np.append(0, np.cumsum(self.size + np.maximum(self.gaps(), 0)))


class SpanReader:
    """Reads spans of sources that can be read `at_offsets`.

    Args:
        sources: the files.
        elsewhere: whether this may be another machine than the one that found the files.
    """

    def __init__(self, sources: Iterable[Source], *, elsewhere: bool = False) -> None:
        self._sources = {source.number: source for source in sources}
        self._elsewhere = elsewhere
        self._open: dict[int, int] = {}
        """The descriptors of open files, by the number of the source."""
        self._room = np.empty(0, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, spans: Spans) -> pa.Buffer:
        """Read spans. Return their bytes, one span after the other.

        Raises:
            OSError: a file can't be read any more, shrank, or was overwritten.
        """
        if not len(spans.file):
            return pa.py_buffer(b"")
        read = spans.bytes_read()
        begins, total = read[1:] - spans.size, int(read[-1])
        if len(self._room) < total:
            self._room = np.empty(total, np.uint8)
        first = np.flatnonzero(spans.gaps() < 0)
        edges = begins[first].tolist()
        parts = zip(
            spans.file[first].tolist(), spans.begin[first].tolist(), edges, [*edges[1:], total], strict=True
        )
        for number, own in groupby(parts, itemgetter(0)):
            self._read(self._sources[number], own)
        return joined(self._room, begins, spans.size)

    def _read(self, source: Source, parts: Iterable[tuple[int, int, int, int]]) -> None:
        """Read parts of a file into `_room`.

        The last three numbers of a part are its offset in the file, and its begin and end in `_room`.
        """
        room = self._room.data
        try:
            file = self._file(source)
            for _, offset, begin, end in parts:
                at = begin
                while at < end:
                    got = os.preadv(file, (room[at:end],), offset + at - begin)
                    if not got:
                        raise _changed(source, "shrank")
                    at += got
            _check_unchanged(source, file)
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(f"{source.name}: can't be read again: {first_line(error)}") from error

    def _file(self, source: Source) -> int:
        """Return the descriptor of a file, opened if necessary."""
        if (file := self._open.get(source.number)) is not None:
            return file
        if self._elsewhere:
            check_seen([source])
        if len(self._open) >= _MOST_OPEN:
            self._close()
        self._open[source.number] = file = os.open(source.path, os.O_RDONLY)
        return file

    def _close(self) -> None:
        for file in self._open.values():
            os.close(file)
        self._open.clear()


def _check_unchanged(source: Source, file: int) -> None:
    """Check that an open file still has the bytes that it had when its source was made.

    A capture that only grew since then has them: it is longer, and its first bytes are the same.

    Raises:
        OSError: the file shrank or was overwritten.
    """
    now = os.fstat(file)
    if (now.st_size, now.st_mtime_ns) == (source.size, source.modified):
        return
    if now.st_size < source.size:
        raise _changed(source, "shrank")
    head = os.pread(file, min(FINGERPRINT, source.size), 0)
    same = not source.fingerprint or source.fingerprint == fingerprint(source.first_time, head)
    if now.st_size == source.size or not same:
        raise _changed(source, "was changed")


def _changed(source: Source, how: str) -> OSError:
    return OSError(
        f"{source.name}: {how} while it was measured; measure a copy, or measure it when nothing writes to it"
    )


def joined(data: Column | memoryview, begin: Column, size: Column, order: Column | None = None) -> pa.Buffer:
    """Copy parts of a buffer, one after the other.

    An Arrow array covers the buffer. Its elements alternate between a part and the bytes up to the next part.
    Its `take` then copies the parts at the speed of memory.

    Args:
        data: the buffer.
        begin: where each part begins. Parts ascend, and do not overlap.
        size: the bytes of each part.
        order: the parts to copy, by their places in `begin`. By default all of them.
    """
    edges = np.empty(2 * len(begin), np.int32)
    edges[0::2] = begin
    edges[1::2] = begin + size
    elements = max(len(edges) - 1, 0)
    array = pa.Array.from_buffers(pa.binary(), elements, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    chosen = 2 * (np.arange(len(begin)) if order is None else order)
    wanted = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])
    return array.take(wanted).buffers()[2] or pa.py_buffer(b"")
