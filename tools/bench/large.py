"""Makes large captures with known figures, and measures them on Spark (`tools.bench.measured`)."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.bench.captures import Shape, Truth, make
from tools.bench.figures import REPLAY, TSHARK, FigureRow
from tools.bench.measured_capture import CORES, MB, MeasuredCapture
from tools.bench.stage import BenchStage

GB: Final = 1_000 * MB
RECORDS: Final = "records"
_WARM: Final = 30 * MB
_FEW: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A kind of traffic for which the benchmark has a target."""

    shape: Shape
    least: float
    """The target on Spark, in MB/s."""
    cpu: float
    """The target in one process, in CPU seconds for a GB."""

    @property
    def name(self) -> str:
        """The name in tables: what this traffic has many of."""
        if self.shape.topics > 1:
            return f"{self.shape.topics} topics"
        return RECORDS if self.shape.filled else f"{self.shape.connections:,} connections"


def traffics(part: int = 1) -> list[Traffic]:
    """Return kinds of traffic for 1 GB; with `part`, connections (at least 20) are fewer by this factor."""
    kinds = [(20, 260, 4.8), (2_000, 95, 7), (50_000, 25, 45)]
    return [
        Traffic(shape=Shape(), least=150, cpu=7),
        Traffic(shape=Shape(topics=3, partitions=90, filled=6, records=1_000), least=120, cpu=9),
        *(
            Traffic(shape=Shape(filled=0, connections=max(count // part, _FEW)), least=least, cpu=cpu)
            for count, least, cpu in kinds
        ),
    ]


class LargeCaptures:
    """Generated captures in a folder, with what is known about them. The folder may become very large."""

    def __init__(self, stage: BenchStage, folder: Path) -> None:
        self.folder = folder
        self._stage = stage
        self._truths: dict[str, Truth] = {}

    def truth(self, file: Path) -> Truth:
        """Return what is known about a capture."""
        return self._truths[str(file)]

    def make(self, name: str, size: int, shape: Shape) -> Path:
        """Make a capture. The arguments are those of `tools.bench.captures.make`."""
        path = self.folder / f"{name.replace(' ', '-').replace(',', '')}.pcap"
        about = f" of {size // MB:,} MB" if size else ""
        self._stage.report(f"replay: making a capture{about}: {name} ...")
        self._truths[str(path)] = make(path, size, shape)
        return path

    def measure(
        self,
        files: Sequence[Path],
        *options: str,
        warm: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[MeasuredCapture]:
        """Measure captures and compare them with what is known. `warm` comes first, without a result."""
        if warm is None:
            warm = self.folder / "warm.pcap"
            if not warm.exists():
                make(warm, _WARM, Shape())
        self._stage.report("replay: measure, first once to warm up ...")
        options = options or (f"--master=local[{CORES}]",)
        command = [sys.executable, "-m", "tools.bench.measured", *options, str(warm), *map(str, files)]
        results = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
            for line in running.stdout or ():
                results.append(each := MeasuredCapture(**json.loads(line)))
                self._stage.report(f"replay: {Path(each.file).stem} took {each.seconds:.1f} s")
        if running.returncode:
            raise RuntimeError(f"measure ended with {running.returncode}")
        for each in results:
            check(each, self._truths[each.file])
        return results


def check(found: MeasuredCapture, truth: Truth) -> None:
    """Compare a result with the known figures of its capture."""
    names = "requests", "request_bytes", "response_bytes", "record_bytes"
    wanted = truth.fetches, truth.fetch_request_bytes, truth.fetch_response_bytes, truth.record_bytes
    if (found.connections, *(found.actual[name] for name in names)) != (truth.connections, *wanted):
        raise RuntimeError(f"measure finds something else than was generated: {found}, {truth}")


def best(measured: Iterable[MeasuredCapture], file: Path) -> MeasuredCapture:
    """Return the fastest measurement of a capture."""
    return min((one for one in measured if one.file == str(file)), key=lambda one: one.seconds)


def row(name: str, unit: str, value: float, *, tshark: float | None = None, **more: Any) -> FigureRow:
    """Return a row with a value of replay, and with one of tshark if there is any."""
    values = {REPLAY: value} if tshark is None else {TSHARK: tshark, REPLAY: value}
    return FigureRow(name, unit, values, **more)
