"""Measures whether `replay measure` is as fast with more bytes, and with more files, as with one file."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.bench.captures import Shape
from tools.bench.figures import FigureTable
from tools.bench.large import GB, LargeCaptures, best, row
from tools.bench.measured_capture import CORES, MeasuredCapture
from tools.bench.stage import BenchStage

LEAST: Final = 0.9
"""The target: the slowest speed is at least this share of the fastest speed."""
FREE: Final = 40 * GB
"""The minimum of free bytes on the disk, for the largest capture."""
_TIMES: Final = (1, 4)
_MOST_TIMES: Final = 16
_FILES: Final = (2, 4)
_ROUNDS: Final = 2


def measure(
    stage: BenchStage, captures: LargeCaptures, file: Path
) -> tuple[FigureTable, list[MeasuredCapture]]:
    """Measure captures of several sizes, and one capture in several files. Return the table and all figures.

    All files are removed, except the given one.

    Args:
        stage: says whether the run is short or long.
        captures: makes the captures.
        file: the smallest capture, of the default shape.
    """
    size = captures.truth(file).bytes
    sizes = {_TIMES[0]: file}
    notes = []
    for times in (*_TIMES[1:], *([_MOST_TIMES] if stage.long else [])):
        if times == _MOST_TIMES and (free := shutil.disk_usage(captures.folder).free) < FREE:
            notes.append(f"{_gigabytes(times * size)} left out: {free / GB:.0f} GB of disk are free.")
            continue
        sizes[times] = captures.make(f"{times} times the bytes", times * size, Shape())
    parts = {1: file} | {count: captures.split(file, count) for count in _FILES}
    small = [file, *(parts[count] for count in _FILES), sizes[_TIMES[1]]]
    measured = captures.measure(
        [*small * (1 if stage.quick else _ROUNDS), *(sizes[times] for times in sizes if times > _TIMES[1])]
    )
    for made in {*sizes.values()} - {file}:
        made.unlink()
    for count in _FILES:
        shutil.rmtree(parts[count])
    by_size = {times * size: best(measured, one).speed for times, one in sizes.items()}
    by_files = {count: best(measured, one).speed for count, one in parts.items()}
    return slope_table(by_size, by_files, notes), measured


def slope_table(by_size: Mapping[int, float], by_files: Mapping[int, float], notes: list[str]) -> FigureTable:
    """Make the table.

    Args:
        by_size: the speed in MB/s by the size of the capture in bytes.
        by_files: the speed in MB/s by the number of files, for the same bytes. First comes one file.
        notes: remarks about missing rows.
    """
    smallest = _gigabytes(min(by_size))
    counts = [count for count in by_files if count > 1]
    rows = [
        *(row(_gigabytes(size), "MB/s", speed) for size, speed in by_size.items()),
        row("the slowest of these in the fastest", "times", _share(by_size), limit=LEAST, least=True),
        *(row(f"{smallest} in {count} files", "MB/s", by_files[count]) for count in counts),
        row(
            f"the slowest of 1, {_listed(counts)} files in the fastest",
            "times",
            _share(by_files),
            limit=LEAST,
            least=True,
        ),
    ]
    notes = ["Traffic with records, as above; the files follow each other in time.", *notes]
    title = f"Replay: captures of more bytes and of more files, {CORES} cores"
    return FigureTable(part="replay", title=title, rows=rows, notes=notes)


def _share(speeds: Mapping[int, float]) -> float:
    return min(speeds.values()) / max(speeds.values())


def _gigabytes(size: int) -> str:
    return f"{round(size / GB, 1):g} GB"


def _listed(counts: list[int]) -> str:
    return " and ".join(map(str, counts))
