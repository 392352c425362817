"""Relays bytes between a client's socket and a stream to another worker, which serves the client.

This is used for TLS: a TLS connection can't be given to another process, so the process that accepted the
client keeps its socket.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from proxy.net.endpoint import WRITE_HIGH_WATER

CUT_OFF_SECONDS: Final = 10.0
"""How many seconds without progress a peer may take to read its last bytes."""


class Relay:
    """Forwards the bytes of both sides to each other, and also the end of each stream.

    Args:
        loop: the event loop.
        client: the client's connection.
        closed: a function that is called when both sides are closed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: asyncio.Transport, closed: Callable[["Relay"], None]
    ) -> None:
        self._loop = loop
        self._closed = closed
        self._client, self._worker = _RelaySide(self), _RelaySide(self)
        self._client.peer, self._worker.peer = self._worker, self._client
        client.pause_reading()
        client.set_protocol(self._client)
        self._client.transport = client

    def __repr__(self) -> str:
        return f"<Relay client={self._client.transport!r} worker={self._worker.transport!r}>"

    async def begin(self, data: bytes, stream: socket.socket) -> None:
        """Connect to the worker, and begin to forward bytes.

        Args:
            data: the client's first bytes.
            stream: one end of a socket pair. The worker has the other end, or will soon get it.
        """
        try:
            await self._loop.create_unix_connection(lambda: self._worker, sock=stream)
        except OSError:
            stream.close()
            self.abort()
            return
        client, worker = self._client.transport, self._worker.transport
        if client is None or client.is_closing() or worker is None:  # one has left meanwhile
            self.abort()
            return
        worker.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        worker.write(data)
        client.resume_reading()

    def abort(self) -> None:
        """Close both sides at once. Unsent bytes are lost."""
        for side in (self._client, self._worker):
            if side.transport is not None:
                side.transport.abort()

    def ended(self) -> None:
        """Note that the stream of one side has ended.

        If both streams have ended, close each side after it has read its last bytes.

        If only the worker's stream has ended, the worker is about to close the connection. The client then
        gets time to read its last bytes.
        """
        if self._client.ended and self._worker.ended:
            self._close(self._client)
            self._close(self._worker)
        elif self._worker.ended:
            self.watch(self._client)

    def lost(self, side: "_RelaySide") -> None:
        """Note that one side is closed. Close the other side after it has read its last bytes."""
        if side.peer.transport is None:
            self._closed(self)
        else:
            self._close(side.peer)

    def _close(self, side: "_RelaySide") -> None:
        if side.transport is not None:
            side.transport.close()
            self.watch(side)

    def watch(self, side: "_RelaySide") -> None:
        """Check later whether a side has read the bytes that are buffered for it."""
        if side.transport is not None and not side.watched:
            side.watched = True
            left = side.transport.get_write_buffer_size()
            self._loop.call_later(CUT_OFF_SECONDS, self._look_after, side, left)

    def _look_after(self, side: "_RelaySide", left: int) -> None:
        """Close both sides at once if a side reads nothing, and no more bytes will come for it.

        The event loop does not report that the other side has ended, because the other side is not read while
        this side's buffer is full. So this method checks whether the other side has ended.
        """
        side.watched = False
        transport = side.transport
        if transport is None:
            return
        last = transport.is_closing() or (side is self._client and self._worker.ended)
        if not (last or side.full):
            return
        stuck = transport.get_write_buffer_size() >= left
        if stuck and (last or _has_ended(side.peer.transport)):
            self.abort()
        else:
            self.watch(side)


class _RelaySide(asyncio.Protocol):
    """One of the two sides of a relay: the client or the worker."""

    peer: "_RelaySide"

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        """The connection of this side. None before it is connected and after it is closed."""
        self.ended = False
        """Whether the peer has ended this side's stream, so that no more bytes come."""
        self.full = False
        """Whether this side's write buffer is full. If so, nothing is read from the other side."""
        self.watched = False
        """Whether a timer of `Relay.watch` is running."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        to = self.peer.transport
        if to is not None and not to.is_closing():
            to.write(data)

    def eof_received(self) -> bool:
        """Forward the end of the stream to the other side.

        Return whether the other direction stays open. With TLS it can't stay open.
        """
        own, to = self.transport, self.peer.transport
        self.ended = True
        if to is not None and not to.is_closing():
            if not to.can_write_eof():
                to.close()
            else:
                with suppress(OSError):  # its peer has reset it, which the event loop reports
                    to.write_eof()
        self._relay.ended()
        return own is not None and own.can_write_eof()

    def pause_writing(self) -> None:
        self.full = True
        self._relay.watch(self)
        if (source := self.peer.transport) is not None and not source.is_closing():
            source.pause_reading()

    def resume_writing(self) -> None:
        self.full = False
        if (source := self.peer.transport) is not None and not source.is_closing():
            source.resume_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.transport = None
        self._relay.lost(self)


def _has_ended(transport: asyncio.Transport | None) -> bool:
    """Return whether the peer has closed a stream between processes.

    This works even if the stream is not read.
    """
    if transport is None:
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)  # POLLHUP is always told
    return bool(poll.poll(0))
