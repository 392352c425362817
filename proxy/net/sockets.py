"""The asyncio protocols of a link's two sockets: they pass what the event loop reports to the link.

All sockets of the process receive into one shared buffer; each read is copied out of it once.
"""

import asyncio
from typing import Any, Final, cast

from proxy.net.endpoint import RECEIVE_BYTES
from proxy.net.link import Link

_RECEIVE: Final = memoryview(bytearray(RECEIVE_BYTES))
"""The shared receive buffer; it holds nothing after the callback."""


class ClientProtocol(asyncio.BufferedProtocol):
    """The protocol of the client's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection."""
        self._link.client_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, _sizehint: int) -> Any:
        """Return the shared buffer."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy what was received: other sockets use the buffer after this call."""
        self._link.client_received(bytes(_RECEIVE[:nbytes]))

    def eof_received(self) -> bool:
        """Keep the writing half open for the responses that are due; TLS can't close one half."""
        self._link.client_ended()
        return self._link.half_closes

    def pause_writing(self) -> None:
        """Stop reading the broker."""
        self._link.client_full(True)

    def resume_writing(self) -> None:
        """Read the broker again."""
        self._link.client_full(False)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._link.client_lost()


class BrokerProtocol(asyncio.BufferedProtocol):
    """The protocol of the broker's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection."""
        self._link.broker_connected(cast("asyncio.Transport", transport))

    def get_buffer(self, _sizehint: int) -> Any:
        """Return the shared buffer."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy what was received: other sockets use the buffer after this call."""
        self._link.broker_received(bytes(_RECEIVE[:nbytes]))

    def eof_received(self) -> bool:
        """Close: a broker that has closed its half sends no response any more."""
        return False

    def pause_writing(self) -> None:
        """Stop reading the client."""
        self._link.broker_full(True)

    def resume_writing(self) -> None:
        """Read the client again."""
        self._link.broker_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._link.broker_lost(exc)
