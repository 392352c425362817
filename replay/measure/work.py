"""What `measure` is asked for."""

from dataclasses import dataclass, field

from replay.capture.files.sources import Source
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.measure.rows import RowFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to measure, and how."""

    keep: Filter
    choice: RowFilter
    topics: frozenset[str]
    """Names. Their ids, which requests may have instead, are found in the table."""
    sources: tuple[Source, ...] = field(default=())
    table: str | None = None
    """A directory with a table, instead of sources."""
    secrets: Secrets | None = None
    """With which TLS connections are decrypted."""
    parquet: str | None = None
    """Where to write the table, or the table to which captures are added."""

    @property
    def size(self) -> int:
        """Bytes of the captures; those of unknown size count as 0."""
        return sum(max(source.size, 0) for source in self.sources)
