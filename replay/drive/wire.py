"""A connection to a target: sends frames, and receives responses in the order of the requests."""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from errno import ECONNRESET
from math import inf
from socket import gaierror
from struct import Struct
from time import perf_counter
from typing import Final, NoReturn, TypeAlias, cast

from proxy.addresses import Address
from proxy.protocol.api import LENGTH_BYTES, ApiKey, is_flexible, request_header, response_header
from proxy.protocol.framing import Framer
from proxy.protocol.messages import read
from proxy.protocol.primitives import ProtocolError, encode_string
from replay.protocol.names import name_of

TIMEOUT_SECONDS: Final = 30.0
"""The default time limit for a response. It is the default of `request.timeout.ms` in Kafka's clients."""
MAX_FRAME: Final = 1 << 30
_SMALLEST_RESPONSE: Final = 4
_CLIENT_ID: Final = b"fetchgate-drive"
_HEADER: Final = Struct(">hhi")
_KEY: Final = Struct(">hh")
"""The api_key and the api_version of a request. They follow the length field."""

_WAITS: Final[dict[int, str]] = {
    # replica_id stands before max_wait_ms up to v14.
    ApiKey.FETCH: "int32@0-14 wait_ms:int32",
    # rebalance_timeout_ms, in v0 session_timeout_ms
    ApiKey.JOIN_GROUP: "string int32@1+ wait_ms:int32",
}
"""API key -> the schema of its request, up to the time that a broker may wait."""
_GOODBYE_SECONDS: Final = 1.0
CLOSED: Final = "closed by the peer"

OnResponse: TypeAlias = Callable[[bytes, float], None]
"""A callback that gets a complete response, and its response time in seconds."""


class TargetError(Exception):
    """A target can't be reached, or does not respond as a Kafka broker. The text is one line."""


class SilentError(TargetError):
    """A target did not respond in time."""


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    sent_at: float
    frame: bytes
    on_response: OnResponse


class TargetConnection(asyncio.Protocol):
    """One connection to a target. `Access.connect` opens the connection.

    `timeout` is the time limit for a response, in seconds. For a fetch, its max_wait_ms is added.
    """

    def __init__(self, address: Address, timeout: float = TIMEOUT_SECONDS) -> None:
        self.address = address
        self.timeout = timeout
        self.error: str = ""
        """Why the connection is closed or closes. Empty while it is open. `CLOSED` also after `close`."""
        self.silent = False
        """Whether the connection was closed because a response did not arrive in time."""
        self.on_silence: Callable[[float], None] | None = None
        """Called if a response is late, with the time (perf_counter) at which the request was sent."""
        self.expires_at = inf
        """When (perf_counter) the connection must be replaced, because brokers limit the lifetime of a login.
        """
        self.responses = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._received = Framer()
        self._most = 0
        self._enough: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, frame: bytes, on_response: OnResponse | None) -> None:
        """Send a whole frame, with another correlation id. `on_response` is None if it has no response."""
        self._correlation_id = self._correlation_id + 1 & 0x7FFF_FFFF
        if self._transport is not None:  # otherwise it was just lost, which `until` reports
            self._transport.write(b"".join((frame[:8], self._correlation_id.to_bytes(4), frame[12:])))
        if on_response is not None:
            self._waiting.append(_Waiting(self._correlation_id, perf_counter(), frame, on_response))
            if self._timer is None:
                self._timer = self._loop.call_later(self.timeout, self._check_time)

    async def until(self, most: int) -> None:
        """Wait until at most `most` requests are waiting for a response.

        Raises:
            SilentError: a response did not arrive in time.
            TargetError: the connection was closed.
        """
        if len(self._waiting) > most and not self.error:
            self._most = most
            self._enough = self._loop.create_future()
            try:
                await self._enough
            finally:
                self._enough = None
        if self.error and len(self._waiting) > most:
            self.fail()

    def fail(self) -> NoReturn:
        """Raise the error that closed the connection, `SilentError` if a response came too late."""
        text = f"{self.address}: {self.error or 'closed'}"
        raise SilentError(text) if self.silent else TargetError(text)

    async def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """Send a request and return the body of the response.

        Raises:
            TargetError: a response did not arrive in time, or the connection was closed.
        """
        responses: list[bytes] = []
        tags = b"\x00" if is_flexible(api_key, version) else b""
        content = _HEADER.pack(api_key, version, 0) + encode_string(_CLIENT_ID) + tags + body
        self.send(len(content).to_bytes(4) + content, lambda response, _: responses.append(response))
        await self.until(0)
        if not responses:
            self.fail()
        try:
            return responses[0][response_header(responses[0], 4, api_key, version)[1] :]
        except ProtocolError as error:
            raise TargetError(f"{self.address}: does not respond as Kafka does: {error}") from None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def finish(self) -> None:
        """Close the connection, and wait until it is closed. TLS sends a last message first."""
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await asyncio.shield(self._lost)
        if self._transport is not None:
            self._transport.abort()
            await self._lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not a subclass of it

    def data_received(self, data: bytes) -> None:
        received = self._received
        received.feed(data)
        while received.ready and not self.error:
            if not self._response(frame := received.next()):
                received.keep(frame)
        if self._enough is not None and len(self._waiting) <= self._most and not self._enough.done():
            self._enough.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._lost.done():
            self._lost.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.error:
            self.error = CLOSED if exc is None else reason_of(exc)
        if self._enough is not None and not self._enough.done():
            self._enough.set_result(None)

    def _check_time(self) -> None:
        """Close the connection if a response is late. Otherwise check again when the next response is due."""
        self._timer = None
        if not self._waiting or self._transport is None:
            return
        oldest = self._waiting[0]
        left = oldest.sent_at + self.timeout + _longest_wait(oldest.frame) - perf_counter()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_time)
            return
        api_key, version = _KEY.unpack_from(oldest.frame, 4)
        self.silent = True
        if self.on_silence is not None:
            self.on_silence(oldest.sent_at)
        self._fail(f"no response to {name_of(api_key)} v{version} in {self.timeout:g} s")

    def _response(self, frame: bytes) -> bool:
        """Process the next response in the received bytes. Return False if it is incomplete."""
        if len(frame) < LENGTH_BYTES:
            self._received.need = LENGTH_BYTES
            return False
        size = int.from_bytes(frame[:LENGTH_BYTES], signed=True)
        if not _SMALLEST_RESPONSE <= size <= MAX_FRAME:
            self._fail(f"does not respond as Kafka does: a frame of {size} bytes")
            return True
        if len(frame) < LENGTH_BYTES + size:
            self._received.need = LENGTH_BYTES + size
            return False
        correlation_id = int.from_bytes(frame[4:8])
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            self._fail("a response without a request")
            return True
        waiting = self._waiting.popleft()
        self.responses += 1
        waiting.on_response(
            frame, perf_counter() - waiting.sent_at
        )  # uvloop's clock counts milliseconds only
        return True

    def _fail(self, error: str) -> None:
        self.error = self.error or error
        if self._transport is not None:
            self._transport.abort()


def _longest_wait(frame: bytes) -> float:
    """Return how long a broker may wait for records, or for other members of a group, in seconds."""
    api_key, version = _KEY.unpack_from(frame, 4)
    if api_key not in _WAITS:
        return 0.0
    try:
        found = read(_WAITS[api_key], api_key, version, frame, request_header(frame, 4)[-1], whole=False)
    except ProtocolError:
        return 0.0
    wait: int = found["wait_ms"]
    return wait / 1000


def reason_of(error: Exception) -> str:
    """Describe in a few words why a connection failed."""
    if isinstance(error, gaierror):
        return f"unknown host: {error.strerror}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        why = (error.reason or "failed").lower().replace("_", " ")
        return f"TLS: {why}"
    if isinstance(error, ConnectionResetError):  # uvloop's has no number
        return os.strerror(ECONNRESET)
    if isinstance(error, OSError) and error.errno:
        with suppress(ValueError):
            return os.strerror(error.errno)
    return str(error) or type(error).__name__
