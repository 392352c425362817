"""The asyncio protocols of a link's two sockets: they pass what the event loop reports to the link.

Their `data_received` is the link's own method, so what was read goes to it without a call between. uvloop
receives into one buffer that all sockets share, and copies each read out of it once.
"""

import asyncio
from typing import cast

from proxy.net.link import Link


class ClientProtocol(asyncio.Protocol):
    """The protocol of the client's socket."""

    __slots__ = ("_link", "data_received")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.data_received = link.client_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection."""
        self._link.client_connected(cast("asyncio.Transport", transport))

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


class BrokerProtocol(asyncio.Protocol):
    """The protocol of the broker's socket."""

    __slots__ = ("_link", "data_received")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.data_received = link.broker_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection."""
        self._link.broker_connected(cast("asyncio.Transport", transport))

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
