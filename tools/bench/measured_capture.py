"""The work and the figures of `tools.bench.measured`, which imports no more: its memory is measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from replay.capture.files.sources import expand
from replay.capture.packets.tcp import Filter
from replay.measure.report import About
from replay.measure.rows import RowFilter
from replay.measure.work import Work
from replay.report.model import Filters

MB: Final = 1_000_000
CORES: Final = 2
ABOUT: Final = About(version="", policy="gateway", filters=Filters(ports=[], hosts=[], clients=[], topics=[]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCapture:
    """The figures of one measured capture."""

    file: str
    bytes: int
    connections: int
    seconds: float
    """The seconds from reading the file to the report, with Spark already running."""
    worker_bytes: int
    """The highest resident memory of a Python worker so far, in bytes. 0 on a cluster."""
    driver_bytes: int
    java_bytes: int
    """The peak of Java's resident bytes. In local mode, Java is both driver and executor."""
    actual: Mapping[str, int]

    @property
    def speed(self) -> float:
        """The speed in MB/s."""
        return self.bytes / MB / self.seconds


def work_of(file: str) -> Work:
    """Return the work of measuring a capture, or a folder of captures, without any option."""
    return Work(keep=Filter(), choice=RowFilter(), topics=frozenset(), sources=tuple(expand([file])))
