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
    begin: Column
    size: Column

    def __getitem__(self, rows: slice) -> "Spans":
        return Spans(self.file[rows], self.begin[rows], self.size[rows])

    def gaps(self) -> Column:
        """Return the bytes between each span and the span before it, -1 if they are not read together."""
        found = np.full(len(self.file), -1, np.int64)
        between = self.begin[1:] - self.begin[:-1] - self.size[:-1]
        near = (between >= 0) & (between <= _GAP) & (self.file[1:] == self.file[:-1])
        found[1:][near] = between[near]
        return found

    def bytes_read(self) -> Column:
        """Return how many bytes are read before each span, and in total, with those between spans."""
        return np.append(0, np.cumsum(self.size + np.maximum(self.gaps(), 0)))


class SpanReader:
    """Reads spans of sources that can be read `at_offsets`.

    `elsewhere` tells whether this may be another machine than the one that found the files.
    """

    def __init__(self, sources: Iterable[Source], *, elsewhere: bool = False) -> None:
        self._sources = {source.number: source for source in sources}
        self._elsewhere = elsewhere
        self._open: dict[int, int] = {}
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
    now = os.fstat(file)
    if (now.st_size, now.st_mtime_ns) == (source.size, source.modified):
        return
    if now.st_size < source.size:
        raise _changed(source, "shrank")
    # A capture that only grew is longer, and its first bytes are the same.
    head = os.pread(file, min(FINGERPRINT, source.size), 0)
    same = not source.fingerprint or source.fingerprint == fingerprint(source.first_time, head)
    if now.st_size == source.size or not same:
        raise _changed(source, "was changed")


def _changed(source: Source, how: str) -> OSError:
    return OSError(
        f"{source.name}: {how} while it was measured; measure a copy, or measure it when nothing writes to it"
    )


def joined(data: Column | memoryview, begin: Column, size: Column, order: Column | None = None) -> pa.Buffer:
    """Copy parts of a buffer, one after the other: all, or those of `order` (places in `begin`).

    Parts ascend, and do not overlap. An Arrow array covers the buffer. Its elements alternate between a part
    and the bytes up to the next part. Its `take` then copies the parts at the speed of memory.
    """
    edges = np.empty(2 * len(begin), np.int32)
    edges[0::2] = begin
    edges[1::2] = begin + size
    elements = max(len(edges) - 1, 0)
    array = pa.Array.from_buffers(pa.binary(), elements, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    chosen = 2 * (np.arange(len(begin)) if order is None else order)
    wanted = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])
    return array.take(wanted).buffers()[2] or pa.py_buffer(b"")
