"""The input and the options of a measurement."""

from dataclasses import dataclass, field

from replay.capture.files.sources import Source
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.measure.rows import RowFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The captures to measure, and the options of the measurement."""

    keep: Filter
    choice: RowFilter
    topics: frozenset[str]
    """The names of the topics to measure. A first reading finds their ids."""
    sources: tuple[Source, ...] = field(default=())
    table: str | None = None
    """A directory with a table, to measure instead of sources."""
    secrets: Secrets | None = None
    parquet: str | None = None
    """The directory of the table to write or to extend."""
    memory: int | None = None
    """How many bytes of segments `measure_here` may have in memory, for captures of any size. If None, Spark
    measures large captures."""

    @property
    def size(self) -> int:
        """The bytes of all captures of known size."""
        return sum(max(source.size, 0) for source in self.sources)
