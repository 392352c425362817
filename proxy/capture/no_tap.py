"""What the gateway needs of `proxy.capture` when it captures nothing."""

import asyncio
from typing import Final, Protocol

CLIENT: Final = 0
BROKER: Final = 1
"""The two ends of a connection. On a client's connection, the gateway is the broker."""


class Tap(Protocol):
    """Can put a tap between a socket and its protocol."""

    stopped: str
    """Why the capture has stopped early. Empty if it has not."""

    def __call__(self, protocol: asyncio.Protocol, by: int, /) -> asyncio.Protocol:
        """Return the protocol to use for the socket. `by` is the gateway's own role on this connection."""


class NoTap:
    """The `Tap` of a gateway without ``--capture``."""

    stopped = ""

    def __call__(self, protocol: asyncio.Protocol, _by: int, /) -> asyncio.Protocol:
        return protocol
