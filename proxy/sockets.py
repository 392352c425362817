"""A link's two sockets: what they deliver goes to the link, and whether they are read is settled here.

What any of them delivers lands in one buffer shared by the process and is copied out once.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from proxy.transports import Link  # which makes these

RECEIVE_BYTES: Final = 262_144
_RECEIVE: Final = memoryview(bytearray(RECEIVE_BYTES))
"""What every socket of the process receives into; nothing stays in it after the callback."""
WRITE_HIGH_WATER: Final = 1_048_576
"""Bytes waiting for one peer from which on the other side is not read."""


class End:
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


class ClientProtocol(asyncio.BufferedProtocol):
    """The client's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: "Link") -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._link.client_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, _sizehint: int) -> Any:
        """Receive where all receive."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy out what came: the buffer is anybody's after this call."""
        self._link.client_received(bytes(_RECEIVE[:nbytes]))

    def eof_received(self) -> bool:
        """Keep the writing half: answers may be on their way. TLS has no halves."""
        self._link.client_ended()
        return self._link.halves

    def pause_writing(self) -> None:
        """Hold back the broker."""
        self._link.client_full(True)

    def resume_writing(self) -> None:
        """Read the broker again."""
        self._link.client_full(False)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End."""
        self._link.client_lost()


class BrokerProtocol(asyncio.BufferedProtocol):
    """The broker's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: "Link") -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._link.broker_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, _sizehint: int) -> Any:
        """Receive where all receive."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy out what came: the buffer is anybody's after this call."""
        self._link.broker_received(bytes(_RECEIVE[:nbytes]))

    def eof_received(self) -> bool:
        """Close: a broker that sends no more answers none."""
        return False

    def pause_writing(self) -> None:
        """Hold back the client."""
        self._link.broker_full(True)

    def resume_writing(self) -> None:
        """Read the client again."""
        self._link.broker_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._link.broker_lost(exc)


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
