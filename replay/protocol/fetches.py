"""Reads the fields of a fetch response that replay counts. Sans-IO."""

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.protocol.fetch_layout import HIGH_WATERMARK, LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError


@dataclass(frozen=True, slots=True)
class FetchSummary:
    """The fields of a fetch response that replay counts."""

    error_code: int
    session_id: int
    record_bytes: int
    partitions: int
    partition_errors: tuple[int, ...]
    reads: tuple[tuple[bytes, int, int, int], ...] = ()
    """Topic key, partition, record bytes and high watermark of the entries with records. The bytes are -1 if
    an entry has an error, or sends the client elsewhere."""


def walked(
    version: int, isolation_level: int, pieces: Iterable[Buffer], *, spans: bool = False
) -> FetchResponseWalk | None:
    """Return the end of a walk over a fetch response. None if it is incomplete.

    Raises:
        ProtocolError: the response can't be parsed.
    """
    walk = FetchResponseWalk(LAYOUTS[version], isolation_level, keep=True, spans=spans)
    for piece in pieces:
        walk.feed(piece if isinstance(piece, bytes) else bytes(piece))
    return walk if walk.done else None


def read_fetch(version: int, isolation_level: int, pieces: Iterable[Buffer]) -> FetchSummary | None:
    """Read a fetch response of v4 or later, from the pieces of its frame. None if it can't be parsed."""
    try:
        walk = walked(version, isolation_level, pieces)
    except ProtocolError:
        return None
    if walk is None:
        return None
    errors = tuple(entry.error_code for entry in walk.entries if entry.error_code)
    reads = tuple(
        (
            entry.key,
            entry.partition,
            -1 if entry.error_code or entry.redirects else entry.records,
            int.from_bytes(entry.fixed[HIGH_WATERMARK], signed=True),
        )
        for entry in walk.entries
        if entry.records or entry.error_code or entry.redirects
    )
    return FetchSummary(walk.error_code, walk.session_id, walk.record_bytes, walk.partitions, errors, reads)
