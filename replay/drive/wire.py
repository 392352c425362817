"""A connection to a target: frames out, responses in, in the order of their requests.

Exception
  TargetError            a target can't be reached, or does not respond as a Kafka broker does
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import gaierror
from struct import Struct
from time import perf_counter
from typing import Final, TypeAlias, cast

from proxy.addresses import Address
from proxy.protocol.api import is_flexible, response_header
from proxy.protocol.primitives import ProtocolError, encode_string

CONNECT_SECONDS: Final = 10.0
RESPONSE_SECONDS: Final = 60.0
"""Longer than any client's fetch waits; a target that needs longer is given up."""
MAX_FRAME: Final = 1 << 30
_SMALLEST_RESPONSE: Final = 4
_CLIENT_ID: Final = b"fetchgate-drive"
_HEADER: Final = Struct(">hhi")
_LENGTH: Final = Struct(">i")

OnResponse: TypeAlias = Callable[[bytes, float], None]
"""Called with a whole response and the seconds that it took."""


class TargetError(Exception):
    """A target can't be reached, or does not respond as a Kafka broker does; the text is one line."""


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    sent_at: float
    on_response: OnResponse


class TargetConnection(asyncio.Protocol):
    """One connection; `connect` makes it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.error: str = ""
        """Why it is closed, if the peer closed it or a response was wrong."""
        self.responses = 0
        """How many responses came."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._received = bytearray()
        self._most = 0
        self._enough: asyncio.Future[None] | None = None

    @property
    def outstanding(self) -> int:
        """How many requests have no response yet."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    def send(self, frame: bytes, on_response: OnResponse | None) -> None:
        """Send a request.

        Args:
            frame: whole; its correlation id is replaced.
            on_response: called with its response; None: it will have none.
        """
        self._correlation_id = self._correlation_id + 1 & 0x7FFF_FFFF
        if self._transport is not None:  # otherwise it was just lost, which `until` reports
            self._transport.write(b"".join((frame[:8], self._correlation_id.to_bytes(4), frame[12:])))
        if on_response is not None:
            self._waiting.append(_Waiting(self._correlation_id, perf_counter(), on_response))

    async def until(self, most: int, seconds: float = RESPONSE_SECONDS) -> None:
        """Wait until at most `most` requests have no response yet.

        Raises:
            TargetError: it was closed, or not enough responses came within so many seconds.
        """
        if len(self._waiting) > most and not self.error:
            self._most = most
            self._enough = self._loop.create_future()
            try:
                async with asyncio.timeout(seconds):
                    await self._enough
            except TimeoutError:
                self.error = f"no response in {seconds:.0f} s"
                self.close()
            finally:
                self._enough = None
        if self.error and len(self._waiting) > most:
            raise TargetError(f"{self.address}: {self.error}")

    async def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """Send a request and return the body of its response.

        Raises:
            TargetError: as in `until`.
        """
        responses: list[bytes] = []
        tags = b"\x00" if is_flexible(api_key, version) else b""
        content = _HEADER.pack(api_key, version, 0) + encode_string(_CLIENT_ID) + tags + body
        self.send(len(content).to_bytes(4) + content, lambda response, _: responses.append(response))
        await self.until(0)
        if not responses:
            raise TargetError(f"{self.address}: {self.error or 'closed'}")
        try:
            return responses[0][response_header(responses[0], 4, api_key, version)[1] :]
        except ProtocolError as error:
            raise TargetError(f"{self.address}: does not respond as Kafka does: {error}") from None

    def close(self) -> None:
        """Close it; outstanding requests get no response."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not a subclass of it

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if not self._received and len(data) > 4 and _LENGTH.unpack_from(data)[0] == len(data) - 4:
            self._response(data)  # nearly always: one response, whole
        else:
            self._received += data
            self._split()
        if self._enough is not None and len(self._waiting) <= self._most and not self._enough.done():
            self._enough.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        if not self.error:
            self.error = "closed by the peer" if exc is None else reason_of(exc)
        if self._enough is not None and not self._enough.done():
            self._enough.set_result(None)

    def _split(self) -> None:
        received, at = self._received, 0
        while len(received) - at >= 4:
            size = _LENGTH.unpack_from(received, at)[0]
            if not _SMALLEST_RESPONSE <= size <= MAX_FRAME:
                self._fail(f"does not respond as Kafka does: a frame of {size} bytes")
                return
            end = at + 4 + size
            if end > len(received):
                break
            self._response(bytes(memoryview(received)[at:end]))
            at = end
        del received[:at]

    def _response(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[4:8])
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            self._fail("a response that no request asked for")
            return
        waiting = self._waiting.popleft()
        self.responses += 1
        waiting.on_response(
            frame, perf_counter() - waiting.sent_at
        )  # uvloop's clock counts milliseconds only

    def _fail(self, error: str) -> None:
        self.error = self.error or error
        if self._transport is not None:
            self._transport.abort()


async def connect(address: Address) -> TargetConnection:
    """Open a connection.

    Raises:
        TargetError: it can't be opened.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await loop.create_connection(
                lambda: TargetConnection(address), address.host, address.port
            )
    except TimeoutError:
        raise TargetError(f"{address}: no connection in {CONNECT_SECONDS:.0f} s") from None
    except OSError as error:
        raise TargetError(f"{address}: {reason_of(error)}") from None
    return connection


def reason_of(error: Exception) -> str:
    """Return in a few words why a connection failed."""
    if isinstance(error, gaierror):
        return f"unknown host: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        with suppress(ValueError):
            return os.strerror(error.errno)
    return str(error) or type(error).__name__
