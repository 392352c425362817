"""A gateway's connection between a client in a test and a model broker, no socket anywhere."""

import random
from collections.abc import Callable, Iterable

from proxy.connection import Connection
from tests.model.broker import ModelBroker


class GateError(AssertionError):
    """The connection did what no connection may."""


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def unframed(data: bytes) -> list[bytes]:
    """Whole frames without their lengths.

    Raises:
        GateError: the bytes end within a frame.
    """
    frames = []
    while data:
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            raise GateError(f"{len(data) - 4} bytes of a frame of {size}")
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    return frames


def cut(data: bytes, chance: random.Random | None) -> Iterable[bytes]:
    """The same bytes in pieces of any size; in one piece without `chance`."""
    while data and chance is not None:
        size = min(len(data), chance.choice([1, 2, 3, 5, 9, 30, 200, 5000]))
        yield data[:size]
        data = data[size:]
    if data:
        yield data


class Gate:
    """Pumps bytes until nothing moves any more; the broker answers at once."""

    def __init__(
        self, connection: Connection, broker: ModelBroker, chance: random.Random | None = None
    ) -> None:
        self.connection = connection
        self.broker = broker
        self.chance = chance
        self.asked: list[bytes] = []
        """Frames that the broker got."""
        self.before: Callable[[bytes], None] = lambda _: None
        """Called with each frame before the broker answers it."""
        self._left = b""

    def exchange(self, requests: list[bytes], now: float) -> list[bytes]:
        """Send requests together; gives the answers, neither with a length.

        Raises:
            GateError: the connection failed, holds something back, or sent what is no frame.
        """
        for piece in cut(b"".join(map(framed, requests)), self.chance):
            self.connection.receive_client(piece, now)
        return unframed(self.settle(now))

    def settle(self, now: float) -> bytes:
        """Let the broker answer until it is asked no more."""
        out = self._taken()
        while self._answer(now):
            out += self._taken()
        if self.connection.fault is not None:
            raise GateError(str(self.connection.fault))
        if self.connection.held:
            raise GateError(f"{self.connection.held} bytes held with nothing in flight")
        return out

    def close(self, now: float) -> None:
        """End as the shell does when the client has gone."""
        self.connection.close_session(now)
        self.settle(now)
        if not self.connection.done:
            raise GateError("not done with nothing in flight")
        self.connection.ended()

    def _taken(self) -> bytes:
        return b"".join(map(bytes, self.connection.take_client()))

    def _answer(self, now: float) -> bool:
        self._left += b"".join(map(bytes, self.connection.take_broker()))
        size = int.from_bytes(self._left[:4], "big")
        if len(self._left) < 4 + size or not self._left:
            return False
        frame, self._left = self._left[4 : 4 + size], self._left[4 + size :]
        self.asked.append(frame)
        self.before(frame)
        for piece in cut(framed(self.broker.handle(frame, now)), self.chance):
            self.connection.receive_broker(piece, now)
        return True
