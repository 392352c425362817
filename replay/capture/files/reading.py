"""One file's records, window by window; the only loop that reads captures."""

from collections.abc import Iterator
from typing import Protocol

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import HEADER, Format, NotACaptureError, identify
from replay.capture.files.pcap import PcapRecords, first_time
from replay.capture.files.pcapng import PcapngRecords
from replay.capture.files.sources import Piece
from replay.capture.files.streams import first_line, opened
from replay.capture.files.window import SIZE, Readable, Records, Window


class _Walk(Protocol):
    """Finds records in windows; see PcapRecords."""

    done: bool

    def take(self, window: Window, *, final: bool) -> Records | None: ...


def windows(piece: Piece, counts: FileCounts) -> Iterator[tuple[Window, Records]]:
    """Give the records of a part of a file; each pair is good until the next one is asked for.

    What can't be read is told in `counts.problems`; the records before it are given.
    """
    source = piece.source
    if source.problem:
        counts.note(source.problem)
        return
    try:
        stream, _ = opened(source.path, piece.start)
        with stream:
            yield from _walked(piece, stream, counts)
    except (NotACaptureError, OSError) as error:
        counts.note(first_line(error))


def _walked(piece: Piece, stream: Readable, counts: FileCounts) -> Iterator[tuple[Window, Records]]:
    window = Window(piece.start)
    final = not _fill(window, stream, SIZE if piece.stop is None else piece.stop - piece.start, counts)
    form = piece.source.form or identify(bytes(window.data[: min(HEADER, window.end)]))
    counts.format = form.kind
    walk = _walk(piece, form, window, counts)
    while True:
        while (records := walk.take(window, final=final)) is not None:
            if len(records.at):
                yield window, records
        if walk.done or final:
            return
        left = (
            SIZE
            if piece.stop is None
            else max(piece.stop - window.offset(window.end), 0) + 2 * form.max_record
        )
        final = not _fill(window, stream, left, counts)


def _walk(piece: Piece, form: Format, window: Window, counts: FileCounts) -> _Walk:
    if form.kind == "pcapng":
        return PcapngRecords(counts)
    time = piece.source.first_time or first_time(form, window)
    return PcapRecords(form, counts, start=piece.start, stop=piece.stop, first_time=time)


def _fill(window: Window, stream: Readable, most: int, counts: FileCounts) -> bool:
    """Read on; False at the end of the file, or where it can't be read any further."""
    try:
        return window.fill(stream, most)
    except OSError as error:
        counts.note(first_line(error))
        return False
