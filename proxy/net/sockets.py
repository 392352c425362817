"""A link's two sockets, as the event loop calls them: what they deliver goes to the link.

What any of them delivers lands in one buffer shared by the process and is copied out once.
"""

import asyncio
from typing import Any, Final, cast

from proxy.net.endpoint import RECEIVE_BYTES
from proxy.net.link import Link

_RECEIVE: Final = memoryview(bytearray(RECEIVE_BYTES))
"""What every socket of the process receives into; nothing stays in it after the callback."""


class ClientProtocol(asyncio.BufferedProtocol):
    """The client's socket."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
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
        """Keep the writing half: responses may be on their way. TLS has no halves."""
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

    def __init__(self, link: Link) -> None:
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
        """Close: a broker that sends no more responses none."""
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
