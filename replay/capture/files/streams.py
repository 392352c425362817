"""Files as streams of bytes: local ones, standard input, what pyarrow.fs opens; decompressed."""

import io
import re
import sys
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

STDIN = "-"
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_STEP = 64 << 10
"""Bytes decompressed at a time: so many are lost at most where a compressed file was cut."""


def is_remote(name: str) -> bool:
    """Tell whether pyarrow.fs is to open it."""
    return bool(_REMOTE.match(name))


def is_pipe(name: str) -> bool:
    """Tell whether it can be read once only: standard input, or a pipe such as a shell's `<(command)`."""
    return name == STDIN or (not is_remote(name) and Path(name).is_fifo())


def piped(name: str) -> BinaryIO:
    """Open standard input or a pipe."""
    return sys.stdin.buffer if name == STDIN else Path(name).open("rb")


def filesystem(name: str) -> tuple[fs.FileSystem, str]:
    """Tell the file system and the path there.

    Raises:
        OSError: No such file system, or none that this pyarrow has.
    """
    if not is_remote(name):
        return fs.LocalFileSystem(), name
    try:
        found, path = fs.FileSystem.from_uri(name)
    except pa.ArrowException as error:
        raise OSError(first_line(error)) from error
    return found, path


def first_line(error: BaseException) -> str:
    """Tell an error in one line, without Arrow's own details."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.sub(r"^.*Detail: \[errno \d+\] ", "", text)


class _Steps(io.RawIOBase):
    """Reads a decompressing stream in small steps, so that what precedes damage is had."""

    def __init__(self, compressed: io.RawIOBase | pa.NativeFile, kind: str) -> None:
        self._compressed = compressed
        self._stream = pa.CompressedInputStream(compressed, kind)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # what Readable asks for
        try:
            return int(self._stream.readinto(buffer[:_STEP]))
        except pa.ArrowException as error:
            raise OSError(first_line(error)) from error

    def close(self) -> None:
        self._stream.close()
        self._compressed.close()
        super().close()


class _Begun(io.RawIOBase):
    """A stream of which `head` has been read already."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # what Readable asks for
        if self._head:
            taken = self._head[: len(buffer)]
            buffer[: len(taken)] = taken
            self._head = self._head[len(taken) :]
            return len(taken)
        return self._stream.readinto(buffer)  # type: ignore[attr-defined,no-any-return]  # BinaryIO has no readinto

    def close(self) -> None:
        if self._stream is not sys.stdin.buffer:
            self._stream.close()
        super().close()


def compression(head: bytes) -> str:
    """Tell from the first four bytes how a file is compressed: `gzip`, `zstd` or not."""
    return next((name for magic, name in _MAGICS.items() if head.startswith(magic)), "")


def opened(name: str, start: int = 0) -> tuple[io.RawIOBase, str]:
    """Open a file, decompressed, and tell how it is compressed.

    Args:
        name: Path, URI, or `-`.
        start: Where to begin; 0 where the file is compressed or a pipe.

    Raises:
        OSError: It can't be opened; so do reads later.
    """
    if is_pipe(name):
        stream = piped(name)
        head = stream.read(4)
        plain: io.RawIOBase | pa.NativeFile = _Begun(head, stream)
    else:
        system, path = filesystem(name)
        plain = system.open_input_file(path)
        head = plain.read(4)
        plain.seek(start)
    kind = compression(head) if not start else ""
    if kind:
        return _Steps(plain, kind), kind
    return plain, kind
