"""Measures the CPU of each stage of `replay measure`: `python -m tools.bench.by_stage FILE ...`.

It runs without Spark, as for small captures (`replay.measure.here`). The stages are the same on Spark, which
adds its own between them. For each file, the program prints a line of JSON.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from replay.capture.files.counts import FileCounts
from replay.capture.files.spans import SpanReader
from replay.capture.packets import segments
from replay.measure import steps
from replay.measure.here import by_connection, collected, references
from replay.measure.report import report
from tools.bench.figures import FigureRow, FigureTable
from tools.bench.large import GB, LargeCaptures, traffics
from tools.bench.measured_capture import ABOUT, MB, work_of
from tools.bench.stage import BenchStage

STAGES: Final = (
    "from the file to references",
    "sort by connection",
    "gather payload",
    "events: framing and pairing",
    "engine and rows",
    "collect and report",
)
_PART: Final = 10
"""The captures are smaller than those of the other tables by this factor."""
_SIZE: Final = GB // _PART
_ROUNDS: Final = 2

_Made = TypeVar("_Made")


class StageClock:
    """Measures the CPU seconds of this process, stage by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, stage: str, make: Callable[[], _Made]) -> _Made:
        """Run a stage to its end, and return what it makes."""
        gc.freeze()  # what earlier stages made is in memory only here: no later stage pays for looking at it
        began = time.process_time()
        made = make()
        self.seconds[stage] = time.process_time() - began
        return made


def seconds_by_stage(file: str) -> dict[str, float]:
    """Measure a capture. Return the CPU seconds of each of the `STAGES`."""
    work = work_of(file)
    names = iter(STAGES)
    clock = StageClock()
    found = clock.run(next(names), lambda: references(work))
    if found is None:
        raise ValueError(f"{file} is too large to be measured without Spark")
    ordered = clock.run(next(names), lambda: [*by_connection(found, segments.REFERENCES, "order")])
    with SpanReader(work.sources) as reader:
        gathered = clock.run(next(names), lambda: [*segments.with_payload(ordered, reader)])
    files: list[FileCounts] = []
    events = clock.run(
        next(names), lambda: [*steps.events(work.keep.ports, work.choice, None, iter(gathered), files)]
    )
    rows = clock.run(next(names), lambda: [*steps.rows_of(work.choice, events, files)])
    clock.run(next(names), lambda: report(collected(iter(rows)), ABOUT))
    gc.unfreeze()
    return clock.seconds


def measure(stage: BenchStage, captures: LargeCaptures) -> FigureTable:
    """Measure captures of each kind of traffic."""
    files = {kind.name: captures.make(f"{kind.name} by stage", _SIZE, kind.shape) for kind in traffics(_PART)}
    stage.report("replay: CPU by stage ...")
    asked = [*files.values()] * (1 if stage.quick else _ROUNDS)
    command = [sys.executable, "-m", "tools.bench.by_stage", *map(str, [asked[0], *asked])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured = [json.loads(line) for line in done.stdout.splitlines()][1:]
    by_traffic: dict[str, Mapping[str, float]] = {}
    for name, file in files.items():
        rounds = [each["seconds"] for each in measured if each["file"] == str(file)]
        size = captures.truth(file).bytes / GB
        by_traffic[name] = {part: min(each[part] for each in rounds) / size for part in STAGES}
        file.unlink()
    return stage_table(by_traffic)


def stage_table(by_traffic: Mapping[str, Mapping[str, float]]) -> FigureTable:
    """Make the table. The CPU is in seconds per GB, for each kind of traffic and stage."""
    rows = [*_rows(by_traffic)]
    whole = {name: sum(seconds.values()) for name, seconds in by_traffic.items()}
    notes = [
        "One process without Spark, user and system. Each stage is run to its end before the next; only the",
        "memory differs by that. The least of some rounds, for each stage. A tenth of the bytes and of the",
        "2,000 and 50,000 connections of the other table, so each connection has as many fetches as there.",
    ]
    return FigureTable(
        f"Replay: CPU by stage, captures of {_SIZE // MB} MB",
        [*rows, FigureRow("all stages", "s/GB", whole)],
        notes,
    )


def _rows(by_traffic: Mapping[str, Mapping[str, float]]) -> Iterator[FigureRow]:
    for part in STAGES:
        values = {name: seconds[part] for name, seconds in by_traffic.items()}
        yield FigureRow(part, "s/GB", values)


def main() -> None:
    """Measure the files on the command line."""
    for file in sys.argv[1:]:
        print(json.dumps({"file": file, "seconds": seconds_by_stage(file)}), flush=True)


if __name__ == "__main__":
    main()
