"""Where captures come from: files, globs, directories, standard input, and what pyarrow.fs opens."""

from collections.abc import Iterable
from dataclasses import dataclass


class InputError(ValueError):
    """An input that the user named and that isn't there; the text is one line that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One capture file."""

    name: str
    """Path or URI as the user would write it; `-` is standard input."""
    number: int
    """Place in the input: files are ordered by the time of their first packet."""
    size: int
    """Bytes as stored; -1 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The records of one file that begin from `start` on and before `stop` (None: to its end)."""

    source: Source
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one task reads; picklable."""

    pieces: tuple[Piece, ...]


def expand(inputs: Iterable[str]) -> list[Source]:
    """Find the capture files that the user named, in the order of their first packets.

    Raises:
        InputError: A path that doesn't exist, a pattern or directory that holds no capture.
    """
    raise NotImplementedError


def plan(sources: Iterable[Source], share_bytes: int) -> list[Share]:
    """Split the input into shares of about `share_bytes` each."""
    raise NotImplementedError


def spool(source: Source, directory: str) -> Source:
    """Copy standard input into a file in `directory`, so that other processes can read it."""
    raise NotImplementedError
