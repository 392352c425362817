"""One socket of a link: pauses reading, sets socket options, and returns facts about the peer."""

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress
from typing import Final

from proxy.protocol.primitives import Buffer

RECEIVE_BYTES: Final = 262_144
"""The largest number of bytes in one read. asyncio uses this limit, uvloop a slightly smaller one."""
WRITE_HIGH_WATER: Final = 262_144
"""If more bytes than this wait to be written to one side, the gateway does not read the other side."""
UNSENT_BYTES: Final = 262_144
"""The limit for unsent bytes that the system buffers for a peer. The system's own limit may be megabytes."""
_TCP_CLOSE, _TCP_CLOSE_WAIT = 7, 8
"""TCP states of Linux (in TCP_INFO): after a reset by the peer, and after the end of the peer's stream."""


class Endpoint:
    """One of a link's two sockets. The socket is read while `holds` is 0."""

    __slots__ = ("half_closes", "holds", "joins_writes", "transport")

    def __init__(self, holds: int = 0) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the socket is connected and after it is closed."""
        self.holds = holds
        """The reasons why the socket is not read: a sum of the bits in `proxy.net.link.HOLDS`."""
        self.half_closes = True
        """Whether one direction can be closed while the other stays open. With TLS it can't."""
        self.joins_writes = False
        """Whether pieces are joined before they are written: with TLS, where each would become a TLS record
        of its own, and on asyncio's own event loop. In Python 3.12 and 3.13, its `writelines` does not say
        that the buffer is full (CVE-2024-12254)."""

    def connected(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.half_closes = transport.can_write_eof()
        # uvloop's transports are classes of their own.
        self.joins_writes = not self.half_closes or isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def write(self, pieces: list[Buffer]) -> None:
        # If the socket is closing, the bytes are dropped.
        if self.transport is None or self.transport.is_closing():
            return
        if self.joins_writes:
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def hold(self, why: int) -> None:
        if not self.holds:
            self.pause()
        self.holds |= why

    def release(self, why: int) -> None:
        before, self.holds = self.holds, self.holds & ~why
        if before and not self.holds and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def end_writing(self) -> None:
        # If the peer has reset the connection, the event loop reports the reset.
        if self.transport is not None and not self.transport.is_closing():
            with suppress(OSError):  # asyncio's own loop reports it here as well
                self.transport.write_eof()


def set_options(sock: socket.socket) -> None:
    """Make the system detect a vanished peer within two minutes, and buffer little for a slow peer.

    Connections that a listener accepts have the options of the listener.
    """
    # What is on its way to the peer is not limited by this: a long link is as fast as before.
    if (unsent := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
        sock.setsockopt(socket.IPPROTO_TCP, unsent, UNSENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:  # names differ by platform
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def set_options_of(transport: asyncio.Transport) -> None:
    """Set the options of a transport's socket. Through uvloop's socket object, each would take 40 us."""
    stand_in = transport.get_extra_info("socket")
    with suppress(OSError):  # the peer has closed it already, which the event loop reports
        sock = socket.socket(stand_in.family, stand_in.type, stand_in.proto, fileno=stand_in.fileno())
        try:
            set_options(sock)
        finally:
            sock.detach()


def unacknowledged(transport: asyncio.Transport) -> int:
    """Return how many bytes the peer has not acknowledged, or 0 if the system does not report it.

    This shows the progress of a slow peer earlier than the event loop does: for the event loop, a socket
    becomes writable again only after megabytes are acknowledged.
    """
    return _queued(transport, termios.TIOCOUTQ)


def unread(transport: asyncio.Transport) -> int:
    """Return how many received bytes the process has not read, or 0 if the system does not report it."""
    return _queued(transport, termios.FIONREAD)


def _queued(transport: asyncio.Transport, queue: int) -> int:
    with suppress(OSError, ValueError, AttributeError):  # it is closed; TLS then has no socket
        at = transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(at, queue, bytes(4)), sys.byteorder)
    return 0


def is_gone(transport: asyncio.Transport) -> bool:
    """Return whether the peer has reset the connection, or False if the system does not report it.

    If the peer's stream has ended and there is nothing to write, the event loop does not watch the socket,
    and would not notice a reset.
    """
    return _tcp_state(transport) == _TCP_CLOSE


def has_ended(transport: asyncio.Transport) -> bool:
    """Return whether the peer has ended its stream. Return False if the system does not report it.

    The event loop does not report the end of the stream while a socket is not read.
    """
    return _tcp_state(transport) == _TCP_CLOSE_WAIT


def _tcp_state(transport: asyncio.Transport) -> int:
    with suppress(OSError, ValueError, AttributeError):  # closed, as above; or a system without TCP_INFO
        sock = transport.get_extra_info("socket")
        return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
    return 0
