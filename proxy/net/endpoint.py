"""One socket of a link: reading and pausing, keep-alive, and unacknowledged bytes."""

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress
from typing import Final

from proxy.protocol.primitives import Buffer

RECEIVE_BYTES: Final = 262_144
"""The largest number of bytes in one read. asyncio uses this size, uvloop a slightly smaller one."""
WRITE_HIGH_WATER: Final = 262_144
"""If more bytes than this wait to be written to one side, the other side is not read."""
UNSENT_BYTES: Final = 262_144
"""How many unsent bytes the system buffers for a peer. By default it may buffer megabytes."""
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8
"""TCP states of Linux (TCP_INFO): after a reset by the peer, and after the end of the peer's stream."""


class Endpoint:
    """One of a link's two sockets, which is read while `holds` is 0.

    Args:
        holds: the first reasons not to read.
    """

    __slots__ = ("holds", "joins_writes", "transport")

    def __init__(self, holds: int = 0) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the socket is connected and after it is closed."""
        self.holds = holds
        """Why the socket is not read: a sum of the bits in `proxy.net.link.HOLDS`."""
        self.joins_writes = False
        """True if pieces are joined before they are written, because TLS would make a record of each
        piece."""

    def connected(self, transport: asyncio.Transport) -> None:
        """Keep the socket."""
        self.transport = transport
        self.joins_writes = not transport.can_write_eof()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def write(self, pieces: list[Buffer]) -> None:
        """Write these bytes. If the socket is closing, they are dropped."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines([b"".join(pieces)] if self.joins_writes else pieces)

    def pause(self) -> None:
        """Stop reading the socket."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def hold(self, why: int) -> None:
        """Add a reason not to read."""
        if not self.holds:
            self.pause()
        self.holds |= why

    def release(self, why: int) -> None:
        """Drop a reason not to read. Read again if it was the last one."""
        before, self.holds = self.holds, self.holds & ~why
        if before and not self.holds and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def end_writing(self) -> None:
        """Close the writing half.

        If the peer has reset the connection, do nothing: the event loop reports it.
        """
        if self.transport is not None and not self.transport.is_closing():
            with suppress(OSError):  # asyncio's own loop reports it here as well
                self.transport.write_eof()


def set_options(sock: socket.socket) -> None:
    """Make the system notice a vanished peer within two minutes, and buffer little for a slow one.

    An accepted connection inherits this from its listener.
    """
    # What is on its way to the peer is not limited by this: a long link is as fast as before.
    if (unsent := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
        sock.setsockopt(socket.IPPROTO_TCP, unsent, UNSENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:  # names differ by platform
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def set_options_of(transport: asyncio.Transport) -> None:
    """Set the options of an event loop's socket. With uvloop's stand-in, each option would take 40 us."""
    stand_in = transport.get_extra_info("socket")
    with suppress(OSError):  # the peer has closed it already, which the event loop reports
        sock = socket.socket(stand_in.family, stand_in.type, stand_in.proto, fileno=stand_in.fileno())
        try:
            set_options(sock)
        finally:
            sock.detach()


def unacknowledged(transport: asyncio.Transport) -> int:
    """Return how many bytes the peer has not acknowledged, or 0 if the system does not report it.

    This shows the progress of a slow peer. A socket becomes writable again only after megabytes are
    acknowledged.
    """
    return _queued(transport, termios.TIOCOUTQ)


def unread(transport: asyncio.Transport) -> int:
    """Return how many received bytes have not been read, or 0 if the system does not report it."""
    return _queued(transport, termios.FIONREAD)


def _queued(transport: asyncio.Transport, queue: int) -> int:
    with suppress(OSError, ValueError, AttributeError):  # it is closed; TLS then has no socket
        at = transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(at, queue, bytes(4)), sys.byteorder)
    return 0


def is_gone(transport: asyncio.Transport) -> bool:
    """Return whether the peer has reset the connection, or False if the system does not report it.

    An event loop does not watch a socket that has ended and has nothing to write, so it would not notice a
    reset.
    """
    return _tcp_state(transport) == _TCP_CLOSE


def has_ended(transport: asyncio.Transport) -> bool:
    """Return whether the peer's end has been received, or False if the system does not report it.

    An event loop does not report the end of a socket that is not read.
    """
    return _tcp_state(transport) == _TCP_CLOSE_WAIT


def _tcp_state(transport: asyncio.Transport) -> int:
    with suppress(OSError, ValueError, AttributeError):  # closed, as above; or a system without TCP_INFO
        sock = transport.get_extra_info("socket")
        return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
    return 0
