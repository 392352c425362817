"""A relay between the gateway and a broker. It causes faults of networks and peers on chosen connections.

A listener of the broker advertises its address (`Broker(listeners={"VIA": ("127.0.0.1", relay.port)})`), so
that all traffic of the gateway uses it. If the first bytes of a connection have the client id `victim`, the
current fault applies to it. All others are forwarded unchanged.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tools.kafka.ports import free_ports

VICTIM = b"victim"
CHUNK = 65_536
CONNECT_SECONDS = 10.0

Forward = Callable[[bytes, int], tuple[bytes, bool]]
"""Takes the next bytes of one direction, and the number of bytes before them. Returns the bytes to
forward, and whether to cut the connection."""


def unchanged(data: bytes, _before: int) -> tuple[bytes, bool]:
    """Forward the bytes unchanged."""
    return data, False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAfter:
    """Forwards a number of bytes, then ends both connections."""

    count: int

    def __call__(self, data: bytes, before: int) -> tuple[bytes, bool]:
        return data[: self.count - before], before + len(data) >= self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Waits before it forwards the byte at position `at`."""

    at: int
    seconds: float

    def __call__(self, data: bytes, before: int) -> tuple[bytes, bool]:
        if before <= self.at < before + len(data):
            time.sleep(self.seconds)
        return data, False


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt:
    """Changes one byte of the stream."""

    at: int
    mask: int = 0xFF

    def __call__(self, data: bytes, before: int) -> tuple[bytes, bool]:
        place = self.at - before
        if not 0 <= place < len(data):
            return data, False
        return data[:place] + bytes([data[place] ^ self.mask]) + data[place + 1 :], False


@dataclass(slots=True)
class Fault:
    """What happens to the bytes of the connection `victim`, in either direction."""

    to_broker: Forward = unchanged
    to_client: Forward = unchanged


class Relay:
    """Listens on `port` and forwards to `target`. `with` starts and ends it."""

    def __init__(self) -> None:
        self.port = free_ports()
        self.target: tuple[str, int] = ("", 0)
        self.fault = Fault()
        self.seen = 0
        """Bytes from the broker for the last victim, counted before they are forwarded."""
        self._server = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            for each in self._open:
                reset(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Connect to the broker, read the first bytes, and forward both ways from then on."""
        try:
            far = socket.create_connection(self.target, CONNECT_SECONDS)
        except OSError:
            reset(near)
            return
        far.settimeout(None)
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {near, far}
        with contextlib.suppress(OSError):
            first = near.recv(CHUNK)
            victim = VICTIM in first
            fault = self.fault if victim else Fault()
            if victim:
                self.seen = 0
            back = threading.Thread(
                target=self._pump, args=(far, near, fault.to_client, b"", victim), daemon=True
            )
            back.start()
            self._pump(near, far, fault.to_broker, first, False)
            back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()

    def _pump(
        self, source: socket.socket, sink: socket.socket, forward: Forward, data: bytes, count: bool
    ) -> None:
        """Forward one direction until either side or the fault ends it."""
        before = 0
        try:
            while data := data or source.recv(CHUNK):
                passed, cut = forward(data, before)
                before += len(data)
                if count and not cut:
                    self.seen = before
                sink.sendall(passed)
                if cut:
                    break
                data = b""
        except OSError:
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def reset(peer: socket.socket) -> None:
    """Close at once, so that the other side gets a reset instead of an end."""
    with contextlib.suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
