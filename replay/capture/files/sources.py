"""The inputs that the user named: files, patterns, directories, standard input, and URIs for pyarrow.fs."""

import fnmatch
import glob
import hashlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyarrow import fs

from proxy.text.options import ConfigError
from replay.capture.files import pcap, pcapng
from replay.capture.files.formats import HEADER, Format, NotACaptureError, identify
from replay.capture.files.pcap import RecordSearch
from replay.capture.files.streams import (
    STDIN,
    filesystem,
    first_line,
    is_pipe,
    is_remote,
    open_pipe,
    open_stream,
)
from replay.capture.files.window import SIZE, FileWindow

_GLOB = re.compile(r"[*?\[]")
_NAMES = re.compile(r"\.(pcap|pcapng|cap|dmp|ntar)\d*(\.(gz|zst|lz4|xz|bz2|zip))?$", re.IGNORECASE)
"""Names of captures. tcpdump -C adds a number at the end. Those in xz, bzip2 and zip are not read: a
report says so."""
_HEAD = 64 << 10
"""How many bytes of each file are read to find its format and the time of its first packet."""
FINGERPRINT = 1 << 10
"""How many bytes the fingerprint covers. Almost every capture is longer."""

_AT_ONCE = 16
"""How many files are opened at a time. A remote store takes about 50 ms for each."""

_One = TypeVar("_One")
_Result = TypeVar("_Result")


class InputError(ConfigError):
    """An input does not exist, or can't be used. The message is one line with the name of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One capture file."""

    name: str
    """Path or URI; `-` is standard input."""
    number: int = 0
    """Position in the input, from 0: files are ordered by the time of their first packet. If the run adds to
    a table, the numbers continue those of the table."""
    size: int = -1
    modified: int = 0
    """When a regular local file was last changed, in ns since 1970; 0 for all other inputs."""
    form: Format | None = None
    """None if it is unknown (a pipe), or if there is a `problem`."""
    compression: str = ""
    first_time: int = 0
    """Nanoseconds since 1970 of the first packet; 0 if unknown."""
    fingerprint: str = ""
    """The time of the first packet, and a digest of the first bytes. It does not depend on the name, on
    compression, or on later growth. It is "" if there is no packet. File names can't identify captures,
    because rings of files are overwritten."""
    secrets: bool = False
    """Whether TLS secrets are among the first blocks of the file (pcapng)."""
    problem: str = ""
    """Why no part of the file can be read; "" if it can be read."""
    unopened: bool = False
    """Whether the system could not open or read the file. Then `problem` says nothing about the contents."""
    located: str = ""
    """The absolute path of a local file, since Spark's workers run in other folders. For a pipe: the path
    of its copy. "" if the name itself is opened."""

    @property
    def once(self) -> bool:
        """Whether only this process can read it, and only once: a pipe that was not copied to a file."""
        return not self.located and is_pipe(self.name)

    @property
    def path(self) -> str:
        return self.located or self.name

    @property
    def at_offsets(self) -> bool:
        """Whether parts can be read again as cheaply as from memory. Of a remote file each costs 50 ms."""
        return self.form is not None and self.modified > 0 and not self.compression


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """The records of a file that begin at `start` or later, and before `stop` (None: up to the end)."""

    source: Source
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """The input of one task."""

    pieces: tuple[FilePiece, ...]


def expand(inputs: Iterable[str]) -> list[Source]:
    """Return the capture files that the user's inputs stand for, in the order of their first packets.

    A directory is searched with all its subdirectories. A file in it is a capture if its name or its first
    bytes show this. What can't be opened becomes a source with a `problem`.

    Raises:
        InputError: a path does not exist, or a pattern or directory has no capture.
    """
    names = dict.fromkeys(name for text in inputs for name in _expanded(text))
    found = sorted(_side_by_side(_inspected, list(names)), key=lambda source: source.first_time)
    return [replace(source, number=number) for number, source in enumerate(found)]


def plan(sources: Iterable[Source], share_bytes: int) -> list[TaskInput]:
    """Split the input into shares of about `share_bytes` each. Several small files form one share.

    An uncompressed pcap file is split where a record begins. All other files stay whole.
    """
    shares: list[TaskInput] = []
    pieces: list[FilePiece] = []
    room = share_bytes
    of_sources = _side_by_side(partial(_pieces, share_bytes=share_bytes), list(sources))
    for piece in (piece for found in of_sources for piece in found):
        size = (piece.source.size if piece.stop is None else piece.stop) - piece.start
        if pieces and size > room:
            shares.append(TaskInput(pieces=tuple(pieces)))
            pieces, room = [], share_bytes
        pieces.append(piece)
        room -= max(size, 0)
    return [*shares, TaskInput(pieces=tuple(pieces))] if pieces else shares


def whole(sources: Iterable[Source]) -> TaskInput:
    """Return all files as the input of one task."""
    return TaskInput(pieces=tuple(FilePiece(source=source) for source in sources))


def check_seen(sources: Iterable[Source]) -> None:
    """Check that this machine, a worker of Spark, can open the files as the driver could.

    Raises:
        FileNotFoundError: a file can't be opened. Spark then tries another worker before it fails the job.
    """
    for source in {source.number: source for source in sources if source.form}.values():
        try:
            open_stream(source.path)[0].close()
        except OSError as error:
            raise FileNotFoundError(
                f"{source.name}: the worker on {socket.gethostname()} can't open {source.path} "
                f"({first_line(error)}); put captures where the driver and all workers see them under the "
                "same path, or in a store such as s3://"
            ) from error


def fingerprint(first_time: int, head: bytes | memoryview) -> str:
    """Return the `Source.fingerprint` of a capture that begins with `head`."""
    digest = hashlib.sha256(head[:FINGERPRINT]).hexdigest()[:16]
    return f"{first_time}-{digest}" if first_time else ""


def spool(source: Source, directory: str) -> Source:
    """Copy the content of a pipe into a file in `directory`, so that other processes can read it."""
    path = Path(directory) / f"{source.number}.pcap"
    with path.open("wb") as file:
        shutil.copyfileobj(open_pipe(source.name), file)
    return replace(_inspected(str(path)), name=source.name, number=source.number)


def _expanded(text: str) -> Iterator[str]:
    if not text:  # it would be the current directory, but the user named none
        raise InputError("an input has an empty name")
    if text == STDIN:
        yield text
    elif is_remote(text):
        yield from _remote(text)
    elif _is_directory(text):
        yield from _directory(text, _files_in(text))
    elif _exists(text):
        yield text
    elif _GLOB.search(text):
        names = glob.glob(text, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute patterns
        found = [name for name in names if _is_file(name)]
        if not found:
            raise InputError(f"{text}: no file matches this pattern")
        yield from sorted(found, key=_natural)
    else:
        raise InputError(f"{text}: no such file or directory")


def _files_in(folder: str) -> Iterator[str]:
    """Yield the files in a directory, and the directories that can't be listed."""
    refused: list[OSError] = []
    for parent, _, names in os.walk(folder, onerror=refused.append):
        yield from filter(_is_file, (str(Path(parent, name)) for name in names))
    yield from (str(error.filename) for error in refused)


def _is_directory(name: str) -> bool:
    with suppress(OSError, ValueError):
        return stat.S_ISDIR(Path(name).stat().st_mode)
    return False


def _exists(name: str) -> bool:
    """Return whether a path exists, or the system does not tell. Then the reason shows when it is opened."""
    try:
        Path(name).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def _is_file(name: str) -> bool:
    """Return whether a path is or may be a file. A broken link is one if it has the name of a capture."""
    try:
        return stat.S_ISREG(Path(name).stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return bool(_NAMES.search(name))


def _remote(uri: str) -> Iterator[str]:
    scheme, _, rest = uri.partition("://")
    until = _GLOB.search(rest)
    base = rest[: until.start()].rpartition("/")[0] if until else rest
    try:
        system, path = filesystem(f"{scheme}://{base}")
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            yield uri
            return
        listed = system.get_file_info(fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise InputError(f"{uri}: {first_line(error)}") from error
    prefix = f"{scheme}://{base}".rstrip("/")
    names = [prefix + file.path[len(path.rstrip("/")) :] for file in listed if file.type == fs.FileType.File]
    if not until:
        yield from _directory(uri, names)
        return
    found = [name for name in names if fnmatch.fnmatchcase(name, uri)]
    if not found:
        raise InputError(f"{uri}: no file matches this pattern")
    yield from sorted(found, key=_natural)


def _directory(text: str, names: Iterable[str]) -> list[str]:
    listed = list(names)
    nameless = [name for name in listed if not _NAMES.search(name)]
    kept = dict(zip(nameless, _side_by_side(_may_be_capture, nameless), strict=True))
    found = sorted((name for name in listed if kept.get(name, True)), key=_natural)
    if not found and is_table(text):
        raise InputError(
            f"{text}: this is a table of --parquet, not captures; read it with "
            f"fetchgate replay measure {text}"
        )
    if not found:
        raise InputError(f"{text}: no capture in this directory (pcap or pcapng, also .gz, .zst and .lz4)")
    return found


def is_table(text: str) -> bool:
    """Return whether an input is a local directory that `measure --parquet` wrote."""
    return _is_directory(text) and any(Path(text).glob("day=*/broker=*/*.parquet"))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _may_be_capture(name: str) -> bool:
    found = _inspected(name)
    return found.form is not None or found.unopened


def _inspected(name: str) -> Source:
    if is_pipe(name):
        return Source(name=name)
    located = "" if is_remote(name) else str(Path(name).absolute())
    size, modified = -1, 0
    try:
        system, path = filesystem(name)
        info = system.get_file_info(path)
        size = info.size or 0
        modified = info.mtime_ns if located and info.is_file else 0
        window, kind, damage = _head(name, _HEAD)
        try:
            form = identify(bytes(window.data[: window.end]))
        except NotACaptureError:
            if damage is not None and window.end < HEADER:
                raise damage from None
            raise
    except NotACaptureError as error:
        return Source(name=name, located=located, size=size, problem=str(error))
    except OSError as error:
        # damage within the compression has no number of the system's
        unopened = error.errno is not None
        shown = os.fsencode(name).decode(errors="backslashreplace")  # reports are UTF-8
        return Source(name=shown, size=size, problem=first_line(error), unopened=unopened)
    secrets = form.kind == "pcapng" and pcapng.has_secrets(window)
    time = pcapng.first_time(window) if form.kind == "pcapng" else pcap.first_time(form, window)
    head = window.data[: window.end]
    if secrets and not time:  # they may be many, and come before the first packet
        with suppress(OSError):
            time = pcapng.first_time(_head(name, SIZE)[0])
    return Source(
        name=name,
        located=located,
        size=size,
        modified=modified,
        form=form,
        compression=kind,
        first_time=time,
        fingerprint=fingerprint(time, head),
        secrets=secrets,
    )


def _head(name: str, size: int) -> tuple[FileWindow, str, OSError | None]:
    """Return the first bytes of a file, its compression, and the error if it is damaged within that."""
    window = FileWindow(0, size)
    stream, kind = open_stream(name)
    with stream:
        try:
            window.fill(stream)
        except OSError as error:
            if error.errno is not None:
                raise
            return window, kind, error
    return window, kind, None


def _side_by_side(function: Callable[[_One], _Result], given: list[_One]) -> list[_Result]:
    """Call a function for each input, in threads: it mostly waits for files. The results are in order."""
    if len(given) < 2:
        return [function(one) for one in given]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, given))


def _pieces(source: Source, share_bytes: int) -> list[FilePiece]:
    form = source.form
    if form is None or form.kind != "pcap" or source.compression or source.size <= share_bytes:
        return [FilePiece(source=source)]
    count = -(-source.size // share_bytes)
    pieces = []
    start = 0
    for number in range(1, count):
        stop = _next_record(source, form, source.size * number // count)
        if stop is not None and stop > start:
            pieces.append(FilePiece(source=source, start=start, stop=stop))
            start = stop
    return [*pieces, FilePiece(source=source, start=start)]


def _next_record(source: Source, form: Format, place: int) -> int | None:
    """Return an offset after `place` at which a record certainly begins. None if the next bytes show none."""
    window = FileWindow(place)
    stream, _ = open_stream(source.path, place)
    with stream:
        window.fill(stream, form.max_record * 6)
    found = RecordSearch(form, source.first_time).find_certain(window)
    return None if found is None else window.offset(found)
