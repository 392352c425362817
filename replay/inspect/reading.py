"""Reads captures and counts their contents."""

import sys
from threading import Timer
from typing import TYPE_CHECKING, Final, Self

from replay.capture.files.sources import Source, whole
from replay.capture.kafka.exchanges import Connections
from replay.capture.kafka.pairing import Keep
from replay.capture.packets.segments import counts_in, read
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.inspect.counts import Inspection

if TYPE_CHECKING:
    from rich.progress import Progress

_PROGRESS_AFTER: Final = 1.0
"""A progress bar is shown after this many seconds."""


def inspect(sources: list[Source], ports: frozenset[int], secrets: Secrets | None = None) -> Inspection:
    """Read captures and count their contents."""
    inspection = Inspection(ports)
    keep = Keep(responses=frozenset())
    connections = Connections(ports=ports, keep=keep, secrets=secrets, hold=True)
    with _Progress(sum(max(source.size, 0) for source in sources)) as progress:
        for batch in read(whole(sources), Filter(ports=ports)):
            for event in connections.feed(batch):
                inspection.add(event)
            progress.advance(batch.nbytes)
            if (file := counts_in(batch)) is not None:
                inspection.add_file(file)
        for reason, silent in connections.end_silent().items():
            inspection.add_others(reason, silent)
        for event in connections.end():
            inspection.add(event)
    return inspection


class _Progress:
    """A progress bar on stderr, shown only in a terminal, and if reading takes long."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._bar: Progress | None = None
        # A timer, for a part of a file may take long as well.
        self._timer = Timer(_PROGRESS_AFTER, self._show)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()

    def advance(self, size: int) -> None:
        self._done += size
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=min(self._done, self._total))

    def _show(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to import, and most runs do not need it
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task("reading", total=self._total, completed=self._done)
        bar.start()
        self._bar = bar
