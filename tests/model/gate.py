"""Connects a test's client through the gateway's code to a model broker, without sockets."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from proxy.core.connection import Connection
from proxy.core.events import FetchKind, SideTally, Tally
from tests.model.broker import ModelBroker
from tests.model.wire import FETCH, decode_request, decode_response
from tests.twin import Twin


class GateError(AssertionError):
    """The gateway's connection did something that a gateway must not do."""


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def unframed(data: bytes) -> list[bytes]:
    """Split bytes into frames, and remove the length field of each frame.

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
    """Yield the bytes in pieces of random size. If `chance` is None, yield all in one piece."""
    while data and chance is not None:
        size = min(len(data), chance.choice([1, 2, 3, 5, 9, 30, 200, 5000]))
        yield data[:size]
        data = data[size:]
    if data:
        yield data


def count(side: SideTally, request: bytes, response: bytes) -> None:
    """If a request is a fetch, add the request and its response to a tally."""
    if request[:2] != FETCH.to_bytes(2, "big"):
        return
    asked = decode_request(request)
    told = decode_response(response, asked.version)
    side.fetch_request_bytes += 4 + len(request)
    side.fetch_response_bytes += 4 + len(response)
    side.fetch_record_bytes += sum(
        len(data.records or b"") for topic in told.topics for data in topic.partitions
    )
    side.partitions_requested += sum(len(topic.partitions) for topic in asked.topics)
    side.partitions_answered += sum(len(topic.partitions) for topic in told.topics)
    side.fetches[kind(asked.session_id, asked.session_epoch)] += 1


def kind(session_id: int, epoch: int) -> FetchKind:
    if epoch > 0:
        return FetchKind.INCREMENTAL
    if epoch == 0:
        return FetchKind.FULL
    return FetchKind.CLOSE if session_id > 0 else FetchKind.SESSIONLESS


class Gate:
    """Forwards bytes between a client and a model broker until none are left. The broker answers at once."""

    def __init__(
        self, connection: Connection | Twin, broker: ModelBroker, chance: random.Random | None = None
    ) -> None:
        self.connection = connection
        self.broker = broker
        self.chance = chance
        self.counted = Tally()
        """The fetches on the client's and on the broker's side. The gate itself counts them, without the
        connection."""
        self.before: Callable[[bytes], None] = lambda _: None
        """Called with each request frame before the broker answers it."""
        self._left = b""

    def exchange(self, requests: list[bytes], now: float) -> list[bytes]:
        """Send several requests at once, and return the responses. No frame has its 4-byte length field.

        Raises:
            GateError: the connection failed, keeps bytes back, or sent an invalid frame.
        """
        for piece in cut(b"".join(map(framed, requests)), self.chance):
            self.connection.receive_client(piece, now)
        responses = unframed(self.settle(now))
        for request, response in zip(requests, responses, strict=False):
            count(self.counted.client, request, response)
        return responses

    def settle(self, now: float) -> bytes:
        """Let the broker answer all requests. Return the bytes for the client."""
        out = self._taken()
        while self._response(now):
            out += self._taken()
        if self.connection.state.fault is not None:
            raise GateError(str(self.connection.state.fault))
        if self.connection.state.buffered:
            raise GateError(f"{self.connection.state.buffered} bytes kept with nothing in flight")
        return out

    def close(self, now: float) -> None:
        """Close the connection, as the gateway's server does after the client has closed its side."""
        self.connection.close_session(now)
        self.settle(now)
        if not self.connection.state.done:
            raise GateError("not done with nothing in flight")
        self.connection.ended()

    def check_tally(self) -> None:
        """Compare the connection's counts of fetches with the counts of this gate.

        Raises:
            GateError: a count differs.
        """
        for name, ours in (("client", self.counted.client), ("broker", self.counted.broker)):
            theirs = replace(getattr(self.connection.tally, name), bytes_in=0, bytes_out=0)
            if theirs != ours:
                raise GateError(f"{name} counted {theirs}, crossed {ours}")

    def _taken(self) -> bytes:
        return b"".join(map(bytes, self.connection.drain_client()))

    def _response(self, now: float) -> bool:
        self._left += b"".join(map(bytes, self.connection.drain_broker()))
        size = int.from_bytes(self._left[:4], "big")
        if len(self._left) < 4 + size or not self._left:
            return False
        frame, self._left = self._left[4 : 4 + size], self._left[4 + size :]
        self.before(frame)
        response = self.broker.handle(frame, now)
        count(self.counted.broker, frame, response)
        for piece in cut(framed(response), self.chance):
            self.connection.receive_broker(piece, now)
        return True
