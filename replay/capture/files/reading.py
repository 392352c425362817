"""Reads the packets of one capture file, window by window. All captures are read by this loop."""

from collections.abc import Iterator
from typing import Protocol

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import HEADER, Format, NotACaptureError, identify
from replay.capture.files.pcap import PcapRecords, first_time
from replay.capture.files.pcapng import PcapngRecords
from replay.capture.files.sources import FilePiece
from replay.capture.files.streams import first_line, open_stream
from replay.capture.files.window import SIZE, FileWindow, Readable, Records


class _RecordReader(Protocol):
    done: bool

    def read(self, window: FileWindow, *, final: bool) -> Records | None: ...


def windows(piece: FilePiece, counts: FileCounts) -> Iterator[tuple[FileWindow, Records]]:
    """Yield the records of a part of a file. A pair is valid until the next one is requested.

    A read error is added to `counts.problems`. The records before it are returned.
    """
    source = piece.source
    if source.problem:
        counts.add_problem(source.problem)
        return
    try:
        stream, _ = open_stream(source.path, piece.start)
        with stream:
            yield from _read_stream(piece, stream, counts)
    except (NotACaptureError, OSError) as error:
        counts.add_problem(first_line(error))


def _read_stream(
    piece: FilePiece, stream: Readable, counts: FileCounts
) -> Iterator[tuple[FileWindow, Records]]:
    window = FileWindow(piece.start)
    final = not _fill(window, stream, SIZE if piece.stop is None else piece.stop - piece.start, counts)
    form = piece.source.form or identify(bytes(window.data[: min(HEADER, window.end)]))
    counts.format = form.kind
    reader = _record_reader(piece, form, window, counts)
    while True:
        while (records := reader.read(window, final=final)) is not None:
            if len(records.at):
                yield window, records
        if reader.done or final:
            return
        left = (
            SIZE
            if piece.stop is None
            else max(piece.stop - window.offset(window.end), 0) + 2 * form.max_record
        )
        final = not _fill(window, stream, left, counts)


def _record_reader(piece: FilePiece, form: Format, window: FileWindow, counts: FileCounts) -> _RecordReader:
    if form.kind == "pcapng":
        return PcapngRecords(counts)
    time = piece.source.first_time or first_time(form, window)
    return PcapRecords(form, counts, start=piece.start, stop=piece.stop, first_time=time)


def _fill(window: FileWindow, stream: Readable, most: int, counts: FileCounts) -> bool:
    """Read more of the file into the window. Return False at the end of the file, or after a read error."""
    try:
        return window.fill(stream, most)
    except OSError as error:
        counts.add_problem(first_line(error))
        return False
