"""The admin endpoint: ``/livez``, ``/readyz``, ``/metrics``, ``/state``; GET, one answer each.

It is small on purpose. What a peer can take is bounded: the size of a request, the time it may need, and how
many peers there are at once. It binds loopback by default and answers nothing but what stands here.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from socket import socket
from time import monotonic
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from proxy.events import FetchKind, SideTally, Tally
from proxy.metrics import VERSION, exposition, registry
from proxy.server import Gateway
from proxy.transports import HOLDS, Link

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
REQUEST_SECONDS: Final = 5.0
"""For a request to come, and again for its answer to be taken."""
MAX_LISTED: Final = 2000
"""Connections in ``/state``; those that moved most bytes are listed."""

Answer = tuple[HTTPStatus, str, bytes]


class Admin:
    """Answers for one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._servers: list[asyncio.Server] = []
        self._open = 0
        self._routes: dict[str, Callable[[], Answer]] = {
            "/livez": lambda: (HTTPStatus.OK, "text/plain", b"alive\n"),
            "/readyz": self._ready,
            "/metrics": partial(self._metrics, registry(gateway)),
            "/state": lambda: _json(HTTPStatus.OK, state(gateway)),
        }

    async def start(self, sockets: list[socket]) -> None:
        """Serve on listening sockets."""
        for sock in sockets:
            server = await asyncio.start_server(self._client, sock=sock, limit=MAX_HEAD_BYTES)
            self._servers.append(server)

    def close(self) -> None:
        """Serve no more."""
        for server in self._servers:
            server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(REQUEST_SECONDS):
                    answer = await self._answer(reader)
                async with asyncio.timeout(REQUEST_SECONDS):
                    writer.write(_http(*answer))
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # it left, or it is too slow (TimeoutError is an OSError)
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _text(HTTPStatus.BAD_REQUEST)
        if words[0] != b"GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED)
        path = words[1].split(b"?", 1)[0].decode("latin-1")
        route = self._routes.get(path)
        return route() if route else _text(HTTPStatus.NOT_FOUND)

    def _ready(self) -> Answer:
        health = self._gateway.health()
        status = HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"state": health.state, "reasons": health.reasons})

    def _metrics(self, collectors: Any) -> Answer:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, exposition(collectors)


def state(gateway: Gateway) -> dict[str, Any]:
    """Describe a gateway: what ``/state`` gives and `fetchgate top` reads."""
    tally, health = gateway.tally(), gateway.health()
    links = sorted(gateway.links, key=lambda link: link.core.tally.client.bytes_out, reverse=True)
    return {
        "version": VERSION,
        "uptime_seconds": round(monotonic() - gateway.started_at, 3),
        "state": health.state,
        "reasons": health.reasons,
        "listen": str(gateway.listen),
        "sessions": {
            "on": gateway.sessions.on,
            "off_for": sorted(gateway.sessions.off_for),
            "held": gateway.sessions.held,
        },
        "inflight_bytes": gateway.budget.total,
        "totals": _tally(tally),
        "brokers": [
            {
                "id": broker.node_id,
                "address": str(broker.address),
                "listener": str(broker.listener) if broker.listener else None,
                "problem": broker.problem or gateway.trouble_of(broker.node_id),
            }
            for broker in sorted(gateway.brokers.known.values(), key=lambda broker: broker.node_id)
        ],
        "connections_open": len(links),
        "connections_accepted": gateway.accepted,
        "connections": [_connection(link) for link in links[:MAX_LISTED]],
    }


def saved_bytes(tally: Tally) -> int:
    """Tell what sessions saved: bytes of fetches on the client's side less those on the broker's."""
    client, broker = tally.client, tally.broker
    return (client.fetch_request_bytes + client.fetch_response_bytes) - (
        broker.fetch_request_bytes + broker.fetch_response_bytes
    )


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "client": _side(tally.client),
        "broker": _side(tally.broker),
        "saved_bytes": saved_bytes(tally),
        "session_errors": {str(code): count for code, count in sorted(tally.session_errors.items())},
        "passthrough": dict(sorted(tally.passthrough.items())),
    }


def _side(side: SideTally) -> dict[str, Any]:
    return {
        "bytes_in": side.bytes_in,
        "bytes_out": side.bytes_out,
        "fetch_request_bytes": side.fetch_request_bytes,
        "fetch_response_bytes": side.fetch_response_bytes,
        "fetch_record_bytes": side.fetch_record_bytes,
        "fetches": {kind.name.lower(): side.fetches[kind] for kind in FetchKind},
        "partitions_requested": side.partitions_requested,
        "partitions_answered": side.partitions_answered,
    }


def _connection(link: Link) -> dict[str, Any]:
    core = link.core
    return {
        "client_address": link.client_address,
        "broker_address": str(link.broker_address) if link.broker_address else None,
        "broker_id": link.node_id,
        "age_seconds": round(monotonic() - link.opened_at, 3),
        "phase": link.phase.name.lower(),
        "client_id": core.client_id,
        "software_name": core.software_name,
        "software_version": core.software_version,
        "fetch_version": core.fetch_version,
        "session_id": core.session_id,
        "session_epoch": core.session_epoch,
        "session_partitions": core.session_partitions,
        "held_bytes": core.held,
        "not_read": {
            "client": [name for bit, name in HOLDS.items() if link.client_holds & bit],
            "broker": [name for bit, name in HOLDS.items() if link.broker_holds & bit],
        },
        "last_event": link.last_event,
        **_tally(core.tally),
    }


def _json(status: HTTPStatus, document: object) -> Answer:
    return status, "application/json", json.dumps(document).encode() + b"\n"


def _text(status: HTTPStatus) -> Answer:
    return status, "text/plain", f"{status.phrase}\n".encode()


def _http(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
