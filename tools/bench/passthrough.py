"""A proxy that only forwards, on uvloop, called the floor: no proxy in Python costs less.

    python -m tools.bench.passthrough HOST:PORT HOST:PORT [CA]

It listens at the first address, and connects to the second: with TLS if the file of a CA is given.

Like the gateway, it receives into one buffer for all connections and copies bytes once. It stops reading one
side while the other side does not accept more bytes.
"""

import asyncio
import socket
import ssl
import sys
from typing import Any, Final, cast

import uvloop

RECEIVE_BYTES: Final = 262_144
WRITE_HIGH_WATER: Final = 1_048_576
_RECEIVE: Final = memoryview(bytearray(RECEIVE_BYTES))


class FloorSide(asyncio.BufferedProtocol):
    """Forwards bytes to the `other` side. The client's side has a `target`, the broker's address."""

    __slots__ = ("_early", "_other", "_target", "_task", "_tls", "transport")

    def __init__(
        self,
        target: tuple[str, int] | None = None,
        other: "FloorSide | None" = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._target = target
        self._other = other
        self._early: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the target if this is the client's side. Otherwise join the two sides."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._target is not None:
            self._task = asyncio.get_running_loop().create_task(self._connect(*self._target))
        elif self._other is not None:
            self._other.join(self)

    def join(self, other: "FloorSide") -> None:
        """Write the bytes received so far, and all that follow, to the other side."""
        self._other = other
        for data in self._early:
            other.write(data)
        self._early.clear()

    def write(self, data: bytes) -> None:
        """Send bytes that came from the other side."""
        if self.transport is not None:
            self.transport.write(data)

    def get_buffer(self, _sizehint: int) -> Any:
        """Return the receive buffer. All connections share it."""
        return _RECEIVE

    def buffer_updated(self, nbytes: int) -> None:
        """Copy the received bytes, and send them on."""
        if self._other is None:
            self._early.append(bytes(_RECEIVE[:nbytes]))
        else:
            self._other.write(bytes(_RECEIVE[:nbytes]))

    def pause_writing(self) -> None:
        """Stop reading from the other side, because this side's buffer is full."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other side again, because this side's buffer has room."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Close the other side after its last bytes are written."""
        self.transport = None
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()

    async def _connect(self, host: str, port: int) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: FloorSide(other=self), host, port, ssl=self._tls
            )
        except OSError:
            if self.transport is not None:
                self.transport.abort()


async def serve(listen: tuple[str, int], target: tuple[str, int], tls: ssl.SSLContext | None) -> None:
    """Accept connections and forward their bytes to the target, until the task is cancelled."""
    server = await asyncio.get_running_loop().create_server(lambda: FloorSide(target, tls=tls), *listen)
    await server.serve_forever()


def address(text: str) -> tuple[str, int]:
    """Read "host:port"."""
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    trusted = ssl.create_default_context(cafile=sys.argv[3]) if len(sys.argv) > 3 else None
    uvloop.run(serve(address(sys.argv[1]), address(sys.argv[2]), trusted))
