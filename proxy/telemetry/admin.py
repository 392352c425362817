"""The admin endpoint: ``/livez``, ``/readyz``, ``/metrics``, ``/state``; GET, one response each.

It is small on purpose. What a peer can use is limited: the size of a request, the time that it may take, and
the number of peers at once; the oldest connection is closed for a new one. It binds loopback by default and
serves nothing but these four paths.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from socket import socket
from typing import Final
from urllib.parse import parse_qsl

from prometheus_client import CONTENT_TYPE_LATEST

from proxy.telemetry import logs
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import MAX_LISTED, Describable, document
from proxy.telemetry.status import health_of

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
REQUEST_SECONDS: Final = 5.0
"""The longest time to receive a request, and again to send its response."""
_MAX_DIGITS: Final = 18
"""The longest number in a query."""

Response = tuple[HTTPStatus, str, bytes]


class Admin:
    """The admin endpoint of one gateway."""

    def __init__(self, gateway: Describable) -> None:
        self._gateway = gateway
        self._servers: list[asyncio.Server] = []
        self._open: dict[asyncio.StreamWriter, None] = {}  # in the order in which they came
        self._routes: dict[str, Callable[[str], Awaitable[Response]]] = {
            "/livez": self._live,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/state": self._state,
        }

    async def start(self, sockets: list[socket]) -> None:
        """Serve on listening sockets."""
        for sock in sockets:
            server = await asyncio.start_server(self._client, sock=sock, limit=MAX_HEAD_BYTES)
            self._servers.append(server)

    def close(self) -> None:
        """Stop serving."""
        for server in self._servers:
            server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            # The oldest connection has had most time: peers that send nothing must not keep out a probe.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._response(reader)
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(_http(*response))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer left, or it is too slow (TimeoutError is an OSError)
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _response(self, reader: asyncio.StreamReader) -> Response:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _text(HTTPStatus.BAD_REQUEST)
        if words[0] != b"GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED)
        path, _, query = words[1].decode("latin-1").partition("?")
        route = self._routes.get(path)
        if route is None:
            return _text(HTTPStatus.NOT_FOUND)
        try:
            return await route(query)
        except Exception as error:  # noqa: BLE001 - a defect of the gateway costs one response
            logs.logger().error(
                "no response of the admin endpoint: a defect of fetchgate; please report it", exc_info=error
            )
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _live(self, _query: str) -> Response:
        """Respond with 200 if the event loops run: this one, and that of each worker."""
        if (await self._gateway.collect_status()).silent:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE)
        return HTTPStatus.OK, "text/plain", b"alive\n"

    async def _ready(self, _query: str) -> Response:
        health = health_of(await self._gateway.collect_status())
        status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"state": health.state, "reasons": health.reasons})

    async def _metrics(self, _query: str) -> Response:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, exposition(await self._gateway.collect_account())

    async def _state(self, query: str) -> Response:
        """Respond with the state; ``?connections=N`` lists at most N connections."""
        wanted = dict(parse_qsl(query)).get("connections", str(MAX_LISTED))
        if not wanted.isascii() or not wanted.isdecimal() or len(wanted) > _MAX_DIGITS:
            return _text(HTTPStatus.BAD_REQUEST)
        most = min(int(wanted), MAX_LISTED)
        return HTTPStatus.OK, "application/json", await document(self._gateway, most)


def _json(status: HTTPStatus, document: object) -> Response:
    return status, "application/json", json.dumps(document).encode() + b"\n"


def _text(status: HTTPStatus) -> Response:
    return status, "text/plain", f"{status.phrase}\n".encode()


def _http(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
