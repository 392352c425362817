"""Opens streams of decompressed bytes: local files, standard input, and URIs for pyarrow.fs."""

import gzip
import io
import re
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

STDIN = "-"
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_STEP = 64 << 10
"""How many bytes are decompressed at a time. At the end of an incomplete file of zstd or lz4, at most this
many bytes are lost, and the last block."""
_BEHIND = "has bytes behind its compressed contents, which are left out"
_CUT = "cut within its compression; what precedes the cut was read"


def is_remote(name: str) -> bool:
    """Return whether a name is a URI, so that pyarrow.fs must open it."""
    return bool(_REMOTE.match(name))


def is_pipe(name: str) -> bool:
    """Return whether an input is standard input, or a pipe such as a shell's `<(command)`: read once only."""
    if name == STDIN:
        return True
    with suppress(OSError):  # whoever opens it tells why it can't be opened
        return not is_remote(name) and Path(name).is_fifo()
    return False


def open_pipe(name: str) -> BinaryIO:
    """Open standard input or a pipe."""
    return sys.stdin.buffer if name == STDIN else Path(name).open("rb")


def filesystem(name: str) -> tuple[fs.FileSystem, str]:
    """Return the file system for a URI or a local path, and the path in this file system.

    Raises:
        OSError: this pyarrow has no such file system, or the name is not UTF-8, as pyarrow needs it.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise OSError("the name is not UTF-8; rename the file") from error
    if not is_remote(name):
        return fs.LocalFileSystem(), name
    try:
        found, path = fs.FileSystem.from_uri(name)
    except pa.ArrowException as error:
        raise OSError(first_line(error)) from error
    return found, path


def first_line(error: BaseException) -> str:
    """Return a description of an error in one line, without Arrow's own details."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return re.sub(r"^.*Detail: \[errno \d+\] ", "", text)


class _SmallSteps(io.RawIOBase):
    """Decompresses in small steps, so that only few bytes before damage are lost."""

    def __init__(self, compressed: io.RawIOBase | pa.NativeFile, kind: str) -> None:
        self._compressed = compressed
        self._stream = pa.CompressedInputStream(compressed, kind)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # the type of Readable
        try:
            return int(self._stream.readinto(buffer[:_STEP]))
        except (pa.ArrowException, OSError) as error:
            text = first_line(error)
            raise OSError(_CUT if text.startswith("Truncated") else text) from error

    def close(self) -> None:
        self._stream.close()
        self._compressed.close()
        super().close()


class _Gzip(io.RawIOBase):
    """Decompresses gzip.

    Arrow's stream would lose what precedes the end of an incomplete file, and takes zeros behind the contents
    for damage. Files that were copied block by block have such zeros.
    """

    def __init__(self, compressed: io.RawIOBase | pa.NativeFile) -> None:
        self._compressed = compressed
        self._stream = gzip.GzipFile(fileobj=compressed, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # the type of Readable
        try:
            found = self._stream.read1(min(len(buffer), _STEP))
        except EOFError as error:
            raise OSError(_CUT) from error
        except zlib.error as error:
            raise OSError(f"damaged within its compression ({error})") from error
        except gzip.BadGzipFile as error:
            raise OSError(
                _BEHIND
                if str(error).startswith("Not a gzipped file")
                else f"damaged within its compression ({error})"
            ) from error
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._compressed.close()
        super().close()


class _WithHead(io.RawIOBase):
    """A stream whose first bytes, `head`, have already been read."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # the type of Readable
        if self._head:
            first = self._head[: len(buffer)]
            buffer[: len(first)] = first
            self._head = self._head[len(first) :]
            return len(first)
        return self._stream.readinto(buffer)  # type: ignore[attr-defined,no-any-return]  # BinaryIO has no readinto

    def close(self) -> None:
        if self._stream is not sys.stdin.buffer:
            self._stream.close()
        super().close()


def compression(head: bytes) -> str:
    """Return how a file is compressed, by its first four bytes: `gzip`, `zstd`, `lz4` or ""."""
    return next((name for magic, name in _MAGICS.items() if head.startswith(magic)), "")


def open_stream(name: str, start: int = 0) -> tuple[io.RawIOBase, str]:
    """Open a file to read it decompressed. Return the stream and the kind of compression.

    `start` is the first byte to read; 0 if the file is compressed or a pipe.

    Raises:
        OSError: the file can't be opened. Reads of the stream may raise it as well.
    """
    if is_pipe(name):
        stream = open_pipe(name)
        head = stream.read(4)
        plain: io.RawIOBase | pa.NativeFile = _WithHead(head, stream)
    else:
        system, path = filesystem(name)
        plain = system.open_input_file(path)
        head = plain.read(4)
        plain.seek(start)
    kind = compression(head) if not start else ""
    if kind == "gzip":
        return _Gzip(plain), kind
    if kind:
        return _SmallSteps(plain, kind), kind
    return plain, kind
