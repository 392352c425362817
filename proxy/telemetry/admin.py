"""The admin endpoint: the gateway's reports about itself, by GET or HEAD. Each connection gets one response.

The endpoint is small on purpose. The size of a request, its time and the number of peers are limited. With
``--admin-token-file`` a peer needs the token, except for the probes /livez and /readyz. ``--metrics`` opens a
second endpoint with fewer paths, without token and TLS.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from math import inf
from socket import socket
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from proxy.features.feature import Reports
from proxy.net.tls import ReloadingContext
from proxy.prometheus.exposition import CONTENT_TYPE
from proxy.telemetry import logs
from proxy.telemetry.access import Token
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import MAX_LISTED, Describable, document
from proxy.telemetry.status import REPORTS, health_of
from proxy.text.error_text import reason_of, short

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
REQUEST_SECONDS: Final = 5.0
"""The time limit for a peer to send a request."""
RESPONSE_SECONDS: Final = 30.0
"""The time limit for a peer to receive the response. A large /state may go over a slow link."""
METRICS_SECONDS: Final = 1.0
METRICS_AT_ONCE: Final = 4
"""How often the text of /metrics is written in each `METRICS_SECONDS`. Further peers get the last one: the
text takes several milliseconds, in which no client is served."""
_STEPS: Final = 5
"""In how many steps a time limit passes. If the gateway stands still for longer than a step, one step passes:
on a busy machine, what the peer has sent meanwhile is then read before the next step is over."""
_MAX_DIGITS: Final = 18

_LOCAL: Final = "localhost"
_METHODS: Final = "GET, HEAD"
PROBES: Final = frozenset({"/livez", "/readyz"})
"""Kubernetes sends no token with its probes."""
METRICS: Final = PROBES | {"/metrics"}
"""The paths that ``--metrics`` serves."""
_ACCEPT_AGAIN_SECONDS: Final = 1.0
"""The wait after an accept has failed, for example because no file descriptor is free."""
_REALM: Final = 'Bearer realm="fetchgate"'
_TOKEN_MISSING: Final = b"send the token of --admin-token-file as Authorization: Bearer TOKEN\n"

T = TypeVar("T")
Response = tuple[HTTPStatus, str, bytes]


class AdminEndpoint:
    """The admin endpoint of one gateway.

    `names` are allowed in the Host header, beside ``localhost`` and all IP addresses. All paths except probes
    require the token, if there is one. `only` are the paths to serve, all of them if it is empty.
    """

    def __init__(
        self,
        gateway: Describable,
        names: Iterable[str] = (),
        *,
        token: Token | None = None,
        tls: ReloadingContext | None = None,
        only: Collection[str] = (),
    ) -> None:
        self._gateway = gateway
        self._names = frozenset(map(str.lower, names)) | {_LOCAL}
        self._token = token
        self._tls = tls
        self._text = b""
        self._written = deque([-inf] * METRICS_AT_ONCE, maxlen=METRICS_AT_ONCE)
        """The times at which the last texts of /metrics were written."""
        self._failed = ""
        self._accepting: list[asyncio.Task[None]] = []
        self._open: dict[asyncio.Task[None], None] = {}  # in order of arrival
        routes: dict[str, Callable[[str], Awaitable[Response]]] = {
            "/livez": self._live,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/state": self._state,
            **{each.page: partial(self._of_feature, told) for each, told in REPORTS if each.page},
        }
        self._routes = {path: route for path, route in routes.items() if not only or path in only}
        paths = ", ".join(self._routes)
        self._elsewhere = f"nothing is at this path; fetchgate answers at {paths}\n".encode()

    def start(self, sockets: list[socket]) -> None:
        """Serve HTTP on the listening sockets until `close` is called, then close the sockets."""
        for sock in sockets:
            task = asyncio.get_running_loop().create_task(self._accept(sock))
            task.add_done_callback(lambda _, sock=sock: sock.close())  # type: ignore[misc] # bound on purpose
            self._accepting.append(task)

    def close(self) -> None:
        """Stop serving. Responses that have begun are completed."""
        for task in self._accepting:
            task.cancel()

    async def _accept(self, listener: socket) -> None:
        # Connections in their TLS handshake count toward the limit. In asyncio's own servers they would not.
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            if len(self._open) >= MAX_CONNECTIONS:
                # Close the oldest connection. It has had the most time, and idle peers must not
                # block a probe.
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            task = loop.create_task(self._serve(peer))
            self._open[task] = None
            task.add_done_callback(lambda done: self._open.pop(done, None))
            # Those that wait are accepted without a turn of the loop: among many, a probe would be the oldest
            # before its request is read.
            await asyncio.sleep(0)

    async def _serve(self, peer: socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer, ssl=self._context())
        except OSError as error:
            peer.close()
            self._handshake_failed(error)
            return
        except asyncio.CancelledError:
            peer.close()
            raise
        await self._client(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            response, wants_body = await self._response(reader)
            writer.write(_http(*response, wants_body=wants_body))
            writer.close()
            await _in_time(writer.wait_closed(), RESPONSE_SECONDS)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer has left or is too slow (TimeoutError is an OSError)
        finally:
            writer.transport.abort()  # else the rest of a response would stay as long as the peer

    def _context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        if self._tls.reload_if_changed():
            if self._tls.problem:
                logs.logger().warning("certificates not reloaded", side="admin", reason=self._tls.problem)
            else:
                logs.logger().info("certificates reloaded", side="admin")
        return self._tls.context

    def _handshake_failed(self, error: OSError) -> None:
        # An error is logged unless the last one that was logged is the same.
        reason = short(error) if isinstance(error, ssl.SSLError) else reason_of(error)
        if self._tls is not None and reason != self._failed:
            self._failed = reason
            logs.logger().warning("TLS handshake at the admin endpoint failed", reason=reason)

    async def _response(self, reader: asyncio.StreamReader) -> tuple[Response, bool]:
        # HEAD wants no body.
        try:
            # The gateway's own work does not count: on a busy machine, a large /state takes seconds.
            head = await _in_time(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
        except asyncio.LimitOverrunError:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        first, *fields = head.split(b"\r\n")
        method, *words = first.split(b" ")
        if len(words) != 2 or not words[1].startswith(b"HTTP/1."):
            response = _text(HTTPStatus.BAD_REQUEST)
        elif method not in {b"GET", b"HEAD"}:
            response = _text(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            response = await self._answer(words[0].decode("latin-1"), fields)
        return response, method != b"HEAD"

    async def _answer(self, target: str, fields: list[bytes]) -> Response:
        host = _host(fields)
        # A web page could let its own host name resolve to the gateway's address (DNS rebinding), and so read
        # these reports. The Host header of its requests has that name. IP addresses can't be rebound.
        if not (host in self._names or _is_address(host)):
            why = f"{host!r} is not a name of this gateway; --admin-names adds names\n"
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", why.encode()
        path, _, query = target.partition("?")
        if (
            self._token
            and path not in PROBES
            and not self._token.admits(_field(fields, b"authorization") or "")
        ):
            return HTTPStatus.UNAUTHORIZED, "text/plain", _TOKEN_MISSING
        route = self._routes.get(path)
        if route is None:
            return HTTPStatus.NOT_FOUND, "text/plain", self._elsewhere
        try:
            return await route(query)
        except Exception as error:  # noqa: BLE001 - a defect of the gateway costs one response
            logs.logger().error(
                "no response of the admin endpoint: a defect of fetchgate; please report it", exc_info=error
            )
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _live(self, _query: str) -> Response:
        # This response only shows that the event loop runs.
        return HTTPStatus.OK, "text/plain", b"alive\n"

    async def _ready(self, _query: str) -> Response:
        health = health_of(self._gateway.status())
        status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"state": health.state, "reasons": health.reasons})

    async def _metrics(self, _query: str) -> Response:
        now = asyncio.get_running_loop().time()
        if now - self._written[0] >= METRICS_SECONDS:
            self._text = exposition(self._gateway.account())
            self._written.append(now)
        return HTTPStatus.OK, CONTENT_TYPE, self._text

    async def _state(self, query: str) -> Response:
        # ``connections=N`` lists at most N connections.
        wanted = dict(parse_qsl(query)).get("connections", str(MAX_LISTED))
        if not wanted.isascii() or not wanted.isdecimal() or len(wanted) > _MAX_DIGITS:
            return _text(HTTPStatus.BAD_REQUEST)
        limit = min(int(wanted), MAX_LISTED)
        return HTTPStatus.OK, "application/json", await document(self._gateway, limit)

    async def _of_feature(self, reports: Reports[Any, Any], _query: str) -> Response:
        assert reports.page is not None  # noqa: S101 - a feature with a path has a page
        found = self._gateway.account().of(reports.kind)
        if found is None:
            return HTTPStatus.NOT_FOUND, "text/plain", f"{reports.page.absent}\n".encode()
        return _json(HTTPStatus.OK, reports.page.document(found))


async def _in_time(awaited: Coroutine[object, object, T], seconds: float) -> T:
    task = asyncio.get_running_loop().create_task(awaited)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # if nobody waits any more
    try:
        for _ in range(_STEPS):
            if (await asyncio.wait({task}, timeout=seconds / _STEPS))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


def _json(status: HTTPStatus, document: object) -> Response:
    return status, "application/json", json.dumps(document).encode() + b"\n"


def _text(status: HTTPStatus) -> Response:
    return status, "text/plain", f"{status.phrase}\n".encode()


def _host(fields: Iterable[bytes]) -> str:
    # The host is in lower case and without the port.
    if (host := _field(fields, b"host")) is None:
        return _LOCAL
    host = host.lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")


def _field(fields: Iterable[bytes], wanted: bytes) -> str | None:
    for field in fields:
        name, _, value = field.partition(b":")
        if name.strip().lower() == wanted:
            return value.strip().decode("latin-1")
    return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _http(status: HTTPStatus, content_type: str, body: bytes, *, wants_body: bool) -> bytes:
    more = {
        HTTPStatus.METHOD_NOT_ALLOWED: f"Allow: {_METHODS}\r\n",
        HTTPStatus.UNAUTHORIZED: f"WWW-Authenticate: {_REALM}\r\n",
    }.get(status, "")
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{more}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if wants_body else b"")
