"""``--capture DIR``: writes the bytes on both sides of the gateway to pcap files.

A `Capture` puts a tap between each socket and its protocol. The tap forwards all bytes, and makes pcap
records of them. A thread writes the records, so that no client waits for a disk. If the disk is full, or so
slow that more than `BACKLOG_BYTES` wait for it, the capture stops, with one log line. The gateway continues.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import gmtime, strftime, time_ns
from typing import Any, Final, cast

from proxy.capture.no_tap import BROKER, CLIENT
from proxy.capture.pcap import PcapConnection, TcpPeer, file_header
from proxy.capture.redact import Redactor
from proxy.logger import Logger
from proxy.protocol.primitives import Buffer
from proxy.text.error_text import reason_of

BACKLOG_BYTES: Final = 64 << 20
FLUSH_SECONDS: Final = 0.2
"""How long a record may wait until it is written together with others."""
FLUSH_BYTES: Final = 1 << 18
CLOSE_SECONDS: Final = 10.0
"""How long the end of the capture may wait for the disk."""
PATTERN: Final = "fetchgate-*.pcap"
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_NOWHERE: Final = {4: TcpPeer(ip_address("0.0.0.0"), 0), 6: TcpPeer(ip_address("::"), 0)}  # noqa: S104 - no listener
"""The address of a peer that has left before the gateway could read it, by IP version."""


class Files:
    """A directory of files that are written one after another. If there are too many, the oldest are removed.

    `most_bytes` limits one file, `most_files` the directory, with files of earlier runs.

    Raises:
        OSError: the directory can't be created or written.
    """

    def __init__(self, directory: Path, *, most_bytes: int, most_files: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._name = f"fetchgate-{strftime('%Y%m%dT%H%M%SZ', gmtime())}-{os.getpid()}"
        self._number = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._begin()
        self._append(file_header())

    def write(self, records: bytes) -> None:
        """Write complete records.

        Raises:
            OSError: the records could not be written. The file ends with the records before them.
        """
        if self._size + len(records) > self._most_bytes and self._size > len(file_header()):
            done = self._file
            self._begin()  # so that `close` closes no descriptor twice if this fails
            os.close(done)
            self._append(file_header())
        self._append(records)

    def close(self) -> None:
        os.close(self._file)

    def _begin(self) -> None:
        old = sorted(self._directory.glob(PATTERN), key=lambda path: (_written_at(path), path.name))
        for path in old[: max(len(old) + 1 - self._most_files, 0)]:
            path.unlink(missing_ok=True)
        self._file, self._size = self._create(), 0

    def _create(self) -> int:
        while True:
            self._number += 1
            path = self._directory / f"{self._name}-{self._number:06}.pcap"
            # In containers, each gateway may have process id 1, so another one may use the same name.
            with suppress(FileExistsError):
                return os.open(path, _NEW_FILE, 0o600)

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)


class Capture:
    """The capture of one process. All methods are called from the thread of the event loop."""

    def __init__(self, files: Files, *, records: bool, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self.records = records
        self.on = True
        self.stopped = ""
        self._files = files
        self._loop = loop
        self._log = log
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._queued = 0
        self._written = 0
        """Only the thread changes this, and only the event loop `_queued`, so neither needs a lock."""
        self._queue: SimpleQueue[list[Buffer] | None] = SimpleQueue()
        self._thread = Thread(target=self._write_files, name="capture", daemon=True)
        self._thread.start()

    def __call__(self, protocol: asyncio.Protocol, by: int) -> asyncio.Protocol:
        return _Tapped(self, protocol, by)

    def write(self, records: Sequence[Buffer]) -> None:
        """Queue records. The thread gets them within `FLUSH_SECONDS`."""
        if not self.on or not records:
            return
        if not self._pending:
            self._loop.call_later(FLUSH_SECONDS, self._flush)
        self._pending += records
        self._pending_bytes += sum(map(len, records))
        if self._pending_bytes >= FLUSH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the records in the queue, for at most `CLOSE_SECONDS`, then stop. Later records are lost."""
        self._flush()
        self.on = False
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _flush(self) -> None:
        if not self._pending or not self.on:
            return
        self._queue.put(self._pending)
        self._queued += self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._queued - self._written > BACKLOG_BYTES:
            self._stop(f"the disk is too slow: {self._queued - self._written} bytes wait to be written")

    def _stop(self, reason: str) -> None:
        if self.on:
            self.on = False
            self.stopped = reason
            self._pending = []
            self._log.error("capture stopped, the gateway continues", reason=reason)

    def _write_files(self) -> None:
        # This is what the thread runs.
        try:
            while (records := self._queue.get()) is not None:
                data = b"".join(records)
                self._files.write(data)
                self._written += len(data)
        except OSError as error:
            with suppress(RuntimeError):  # the loop is closed, so nobody reads the log
                self._loop.call_soon_threadsafe(self._stop, reason_of(error))
        with suppress(OSError):
            self._files.close()


class _Tapped(asyncio.Protocol):
    """Wraps a protocol: captures the bytes that the socket receives, and the end of the connection."""

    __slots__ = ("_by", "_capture", "_inner", "_side")

    def __init__(self, capture: Capture, inner: asyncio.Protocol, by: int) -> None:
        self._capture = capture
        self._inner = inner
        self._by = by
        self._side: _CapturedTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._side = _CapturedTransport(self._capture, cast("asyncio.Transport", transport), self._by)
        self._inner.connection_made(cast("asyncio.Transport", self._side))

    def data_received(self, data: bytes) -> None:
        self._side.passed(1 - self._by, data)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        self._side.ended(1 - self._by)
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        # A reset by the peer, or a normal close by the gateway.
        if isinstance(exc, ConnectionError):
            self._side.broken(1 - self._by)
        else:
            self._side.release(1 - self._by)  # the peer has not ended this direction
            self._side.ended(self._by)
        self._inner.connection_lost(exc)


class _CapturedTransport:
    """Wraps a transport: captures the bytes that are written, and forwards everything else."""

    __slots__ = ("_by", "_capture", "_conversation", "_open", "_redactor", "_transport")

    def __init__(self, capture: Capture, transport: asyncio.Transport, by: int) -> None:
        self._capture = capture
        self._transport = transport
        self._by = by
        self._redactor = None if capture.records else Redactor()
        self._open = [True, True]
        now = time_ns()
        own, peer = (_endpoint(transport.get_extra_info(name)) for name in ("sockname", "peername"))
        known = own or peer
        nowhere = _NOWHERE[known.address.version if known is not None else 6]
        client, broker = (own, peer) if by == CLIENT else (peer, own)
        self._conversation = PcapConnection(client or nowhere, broker or nowhere, now)
        capture.write(self._conversation.opened(now))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Buffer) -> None:
        self.passed(self._by, bytes(data))
        self._transport.write(data)

    def writelines(self, data: Sequence[Buffer]) -> None:
        self.write(b"".join(data))

    def write_eof(self) -> None:
        self.ended(self._by)
        self._transport.write_eof()

    def close(self) -> None:
        self.ended(self._by)
        self._transport.close()

    def abort(self) -> None:
        self.broken(self._by)
        self._transport.abort()

    def passed(self, by: int, data: bytes) -> None:
        if self._capture.on:
            pieces = [(data, 0)] if self._redactor is None else self._redactor.redact(by, data)
            self._capture.write(self._conversation.sent(by, pieces, time_ns()))

    def ended(self, by: int) -> None:
        if self._open[by]:
            self._open[by] = False
            self.release(by)
            self._capture.write(self._conversation.ended(by, time_ns()))

    def broken(self, by: int) -> None:
        # If both ends have stopped sending, a reset says nothing new.
        if any(self._open):
            self._open = [False, False]
            for each in (CLIENT, BROKER):
                self.release(each)
            self._capture.write(self._conversation.reset(by, time_ns()))

    def release(self, by: int) -> None:
        """Write the buffered bytes of a direction that has ended to the capture."""
        if self._redactor is not None:
            self._capture.write(self._conversation.sent(by, self._redactor.end(by), time_ns()))


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # another gateway has removed the file first
        return 0


def _endpoint(name: tuple[str, int] | None) -> TcpPeer | None:
    if name is None:
        return None
    host, port = name[:2]
    return TcpPeer(ip_address(host.partition("%")[0]), port)
