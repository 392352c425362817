"""The admin endpoint: what a gateway says about itself; GET or HEAD, one response each.

It is small on purpose. What a peer can use is limited: the size of a request, the time that it may take, and
the number of peers at once; the oldest connection is closed for a new one. It binds loopback by default and
serves nothing but the paths below.

A page in a browser may have its own name resolve to the gateway's address (DNS rebinding), and so read what
the gateway says. Such a request has the page's name in Host. So names that are not the gateway's are refused.
Addresses are not: they can't be rebound.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from ipaddress import ip_address
from socket import socket
from typing import Final
from urllib.parse import parse_qsl

from prometheus_client import CONTENT_TYPE_LATEST

from proxy.telemetry import logs
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import MAX_LISTED, Describable, cooperative, document
from proxy.telemetry.status import health_of

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
REQUEST_SECONDS: Final = 5.0
"""The longest time to receive a request, and again to send its response."""
_MAX_DIGITS: Final = 18
"""The longest number in a query."""

_LOCAL: Final = "localhost"
_METHODS: Final = "GET, HEAD"

Response = tuple[HTTPStatus, str, bytes]


class Admin:
    """The admin endpoint of one gateway.

    Args:
        gateway: whose it is.
        names: by which peers may ask for it in Host, beside ``localhost`` and all IP addresses.
    """

    def __init__(self, gateway: Describable, names: Iterable[str] = ()) -> None:
        self._gateway = gateway
        self._names = frozenset(map(str.lower, names)) | {_LOCAL}
        self._servers: list[asyncio.Server] = []
        self._open: dict[asyncio.StreamWriter, None] = {}  # in the order in which they came
        self._routes: dict[str, Callable[[str], Awaitable[Response]]] = {
            "/livez": self._live,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/state": self._state,
            "/cooperative": self._cooperative,
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
                response, wants_body = await self._response(reader)
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(_http(*response, wants_body=wants_body))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer left, or it is too slow (TimeoutError is an OSError)
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _response(self, reader: asyncio.StreamReader) -> tuple[Response, bool]:
        """Return the response to a request, and whether the peer wants its body."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        first, *fields = head.split(b"\r\n")
        method, *words = first.split(b" ")
        if len(words) != 2 or not words[1].startswith(b"HTTP/1."):
            response = _text(HTTPStatus.BAD_REQUEST)
        elif method not in {b"GET", b"HEAD"}:
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            response = await self._answer(words[0].decode("latin-1"), _host(fields))
        return response, method != b"HEAD"

    async def _answer(self, target: str, host: str) -> Response:
        if not (host in self._names or _is_address(host)):
            why = f"{host!r} is not a name of this gateway; --admin-names tells it more of them\n"
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", why.encode()
        path, _, query = target.partition("?")
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

    async def _cooperative(self, _query: str) -> Response:
        """Respond with the cooperative groups; 404 where ``--cooperative`` names none."""
        found = (await self._gateway.collect_account()).counts.cooperative
        if found is None:
            return _text(HTTPStatus.NOT_FOUND)
        return _json(HTTPStatus.OK, cooperative(found))


def _json(status: HTTPStatus, document: object) -> Response:
    return status, "application/json", json.dumps(document).encode() + b"\n"


def _text(status: HTTPStatus) -> Response:
    return status, "text/plain", f"{status.phrase}\n".encode()


def _host(fields: Iterable[bytes]) -> str:
    """Return the host that a request names, in lower case, without its port; localhost if it names none."""
    for field in fields:
        name, _, value = field.partition(b":")
        if name.strip().lower() == b"host":
            host = value.strip().decode("latin-1").lower()
            return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")
    return _LOCAL


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _http(status: HTTPStatus, content_type: str, body: bytes, *, wants_body: bool) -> bytes:
    allow = f"Allow: {_METHODS}\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if wants_body else b"")
