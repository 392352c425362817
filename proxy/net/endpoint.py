"""One socket of a link: it is read while nothing holds it back."""

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress
from typing import Final

RECEIVE_BYTES: Final = 262_144
"""The most that one read delivers."""
WRITE_HIGH_WATER: Final = 1_048_576
"""Bytes waiting for one peer from which on the other side is not read."""


class Endpoint:
    """One of a link's sockets: it is read while nothing holds it back.

    Args:
        holds: what holds it back from the beginning.
    """

    __slots__ = ("holds", "transport", "whole")

    def __init__(self, holds: int = 0) -> None:
        self.transport: asyncio.Transport | None = None
        """None before it stands and after it was lost."""
        self.holds = holds
        """Why it is not read: bits of the link's."""
        self.whole = False
        """What is due is written as one: TLS makes a record of each piece."""

    def connected(self, transport: asyncio.Transport) -> None:
        """Take the socket."""
        self.transport = transport
        self.whole = not transport.can_write_eof()
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def pause(self) -> None:
        """Stop reading, whatever holds it back."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def hold(self, why: int) -> None:
        """Stop reading."""
        if not self.holds:
            self.pause()
        self.holds |= why

    def release(self, why: int) -> None:
        """Read again once nothing else holds it back."""
        held_back, self.holds = self.holds, self.holds & ~why
        if held_back and not self.holds and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


def keep_alive(sock: socket.socket) -> None:
    """Let the system notice a peer that vanished without a word within two minutes.

    A connection inherits it from the listener that accepted it.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:  # names differ by platform
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def keep_alive_of(transport: asyncio.Transport) -> None:
    """Do so for a socket that an event loop has: uvloop gives a stand-in that takes 40 us for each option."""
    shown = transport.get_extra_info("socket")
    with suppress(OSError):  # the peer has gone already; the socket tells so
        sock = socket.socket(shown.family, shown.type, shown.proto, fileno=shown.fileno())
        try:
            keep_alive(sock)
        finally:
            sock.detach()


def unacknowledged(transport: asyncio.Transport) -> int:
    """Tell how many bytes the system keeps for the peer; 0 where it does not say.

    A socket can be written to again when megabytes of them are gone: that a peer is slow shows here first.
    """
    with suppress(OSError, ValueError):  # it is closed
        at = transport.get_extra_info("socket").fileno()
        return int.from_bytes(fcntl.ioctl(at, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0
