"""A gateway's own code for one connection, without sockets: its protocols, its link and its core.

Stand-ins replace the event loop's transports. So an exchange here takes the time of the Python code between
reading one socket and writing the other. The floor (`tools.bench.passthrough`) runs in the same way.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Self, TypeAlias, cast

import numpy as np

from proxy.command.config import load
from proxy.logger import structlog
from proxy.net.endpoint import RECEIVE_BYTES
from proxy.net.link import BrokerProtocol, ClientProtocol, Link
from proxy.protocol.api import ApiKey
from proxy.server.gateway import Gateway
from proxy.server.process import Process, Tasks
from tools.bench import passthrough
from tools.bench.frames import Topics, fetch_request, fetch_response, rotated
from tools.bench.processes import HOST
from tools.bench.traffic import SESSION_ID
from tools.kafka.ports import free_ports
from tools.kafka.raw import array, frame

_RANGES: Final = ((0, 0, 11), (1, 4, 18), (3, 0, 13), (9, 1, 9), (10, 0, 6), (12, 0, 4), (18, 0, 4))
"""The relevant part of a 4.3 broker's ApiVersions: key, lowest and highest version."""
_PEER: Final = (HOST, 1)
FIRST_FETCHES: Final = 10
"""The number of fetches after which a gateway has a session at the latest."""
HEAD_BYTES, END_BYTES = 90, 3
"""The approximate bytes that a broker writes before and after the records of one partition."""
RECORDS_BYTES: Final = 1 << 12
"""A response of at most this many bytes is written in three parts, as a broker does with records."""
PAUSE_SECONDS: Final = 0.005
_RECEIVE: Final = memoryview(bytearray(RECEIVE_BYTES))
_TOUCHED: Final = np.zeros(32_000_000, np.uint8)

Side: TypeAlias = asyncio.Protocol | asyncio.BufferedProtocol


def cool() -> None:
    """Sleep, and touch other memory, so that the next code finds cold caches."""
    time.sleep(PAUSE_SECONDS)
    np.add(_TOUCHED, 1, out=_TOUCHED)


class _MemoryTransport:
    """A transport that keeps the written bytes, in place of uvloop's. It has no connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._extra = {"socket": sock, "peername": _PEER, "sockname": _PEER}
        self._written: list[bytes | memoryview] = []

    def taken(self) -> bytes:
        """Return the bytes written since the last call."""
        data = b"".join(self._written)
        self._written.clear()
        return data

    def get_extra_info(self, name: str) -> Any:
        return self._extra.get(name)

    def write(self, data: Any) -> None:
        self._written.append(data)

    def writelines(self, list_of_data: Any) -> None:
        self._written += list_of_data

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: there is no buffer."""

    def abort(self) -> None:
        """Do nothing: no socket is connected."""

    def pause_reading(self) -> None:
        """Do nothing: no socket is read."""

    def resume_reading(self) -> None:
        """Do nothing: no socket is read."""


class _NoTasks(Tasks):
    """Background tasks that do not run. They are not needed, because the stand-ins are connected at once."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


class _IdleGateway(Gateway):
    """A gateway that is bound, but accepts nothing and never connects: its event loop does not run."""

    def __init__(self) -> None:
        self._loop = loop = asyncio.new_event_loop()
        listen = f"{HOST}:{free_ports(2)}"
        options = {"listen": listen, "bootstrap": f"{HOST}:{_PEER[1]}", "admin": "off"}
        log = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        process = Process.of(load(options, {}, None), loop, log)
        super().__init__(replace(process, tasks=_NoTasks(loop)))
        self.open()

    def close(self) -> int:
        """Close the listeners, the connections and the event loop."""
        closed = super().close()
        self._loop.close()
        return closed


class Inside:
    """One connection through the gateway's code, or through the floor's code. `with` ends it."""

    def __init__(self, *, gateway: bool) -> None:
        self._socket = socket.socket()
        self._client, self._broker = _MemoryTransport(self._socket), _MemoryTransport(self._socket)
        self._client_side: Side
        self._broker_side: Side
        self._gateway = _IdleGateway() if gateway else None
        if self._gateway is not None:
            link = Link(self._gateway.server, None)
            self._client_side, self._broker_side = ClientProtocol(link), BrokerProtocol(link)
        else:
            side = passthrough.FloorSide()
            self._client_side, self._broker_side = side, passthrough.FloorSide(other=side)
        self._client_side.connection_made(cast("asyncio.Transport", self._client))
        self._broker_side.connection_made(cast("asyncio.Transport", self._broker))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            self._gateway.close()
        self._socket.close()

    def begin(self, listed: Topics, *, session: bool, wait_ms: int = 500) -> None:
        """Fetch a few times in turned order, until the broker is known and, if wanted, a session is there."""
        established = False

        def respond(sent: bytes) -> bytes:
            nonlocal established
            wants = _wants_session(sent)
            established |= wants
            return _response(sent, topics, wants=wants)

        for number in range(1, FIRST_FETCHES):
            topics = rotated(listed, number)
            self.play(fetch_request(number, topics, wait_ms=wait_ms), respond)
            if established:
                return
        if session:
            raise RuntimeError(f"no session for {len(listed)} topics")

    def play(self, asked: bytes, respond: Callable[[bytes], bytes]) -> None:
        """Play an exchange, and the gateway's own. `respond` answers each request that reaches the broker."""
        _give(self._client_side, asked)
        while sent := self._broker.taken():
            while sent:
                first, sent = sent[: (size := 4 + int.from_bytes(sent[:4]))], sent[size:]
                _give(self._broker_side, respond(first))
        self._client.taken()

    def exchange(self, request: bytes, response: bytes) -> tuple[float, int, int]:
        """Play an exchange; records come in three writes. Return its seconds, and bytes sent each way."""
        took = _give(self._client_side, request)
        sent = len(self._broker.taken())
        records = HEAD_BYTES + END_BYTES < len(response) <= RECORDS_BYTES
        cuts = (0, HEAD_BYTES, len(response) - END_BYTES) if records else (0,)
        for start, end in zip(cuts, (*cuts[1:], len(response)), strict=True):
            took += _give(self._broker_side, response[start:end])
        return took, sent, len(self._client.taken())


def _give(side: Side, data: bytes) -> float:
    """Give bytes to a protocol in reads of up to `RECEIVE_BYTES`. Return the seconds, with the copy."""
    took = 0.0
    for start in range(0, len(data), RECEIVE_BYTES):
        size = len(read := data[start : start + RECEIVE_BYTES])
        floor = side if isinstance(side, asyncio.BufferedProtocol) else None
        buffer = memoryview(floor.get_buffer(-1)) if floor is not None else _RECEIVE
        buffer[:size] = read  # as the kernel would, so it is not counted
        began = time.perf_counter()
        if floor is not None:
            floor.buffer_updated(size)
        elif isinstance(side, asyncio.Protocol):
            side.data_received(bytes(buffer[:size]))
        took += time.perf_counter() - began
    return took


def _wants_session(request: bytes) -> bool:
    """Whether a request is a fetch with session id 0 and epoch 0, which asks for a new session."""
    return request[5] == ApiKey.FETCH and bytes(8) in request[:60]


def _response(request: bytes, listed: Topics, *, wants: bool) -> bytes:
    """Respond as a broker: to ApiVersions, or to a fetch with all partitions (and a session on request)."""
    if request[5] == ApiKey.API_VERSIONS:
        ranges = [b"".join(value.to_bytes(2) for value in each) for each in _RANGES]
        return frame(request[8:12] + b"\0\0" + array(ranges))
    return fetch_response(int.from_bytes(request[8:12]), listed, session_id=SESSION_ID if wants else 0)
