"""Answers held until they are whole, for brokers' addresses or versions stand in them. Sans-IO."""

from typing import Final

from proxy.eligibility import Eligibility
from proxy.events import Event, Passthrough
from proxy.exchange import Becomes, Buffer, Exchange
from proxy.protocol import addresses, api_versions
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ApiKey, response_header
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION
from proxy.protocol.primitives import ProtocolError

_HEAD_SIZE: Final = 8
"""Length and correlation id: an ApiVersions response header has no more at any version."""
_MAX_HELD_ANSWER: Final = 1 << 28
"""An answer that is larger passes unread."""
_MAX_PROBE_ANSWER: Final = 1 << 16


class Rewriting:
    """How answers pass in which addresses or versions stand.

    Args:
        resolve: where brokers are told to be; None leaves addresses as they are.
        eligibility: is told what the broker can.
        events: where it is told that an answer was not understood.
    """

    __slots__ = ("_eligibility", "_events", "_resolve")

    def __init__(self, resolve: Resolve | None, eligibility: Eligibility, events: list[Event]) -> None:
        self._resolve = resolve
        self._eligibility = eligibility
        self._events = events

    def becomes(self, api_key: int, version: int) -> Becomes:
        """Tell what becomes of the answer to a request that passes as it is."""
        if api_key == ApiKey.FETCH and MIN_VERSION <= version <= MAX_VERSION:
            return Becomes.WALKED  # KIP-951: there may be addresses in it
        if api_key == ApiKey.API_VERSIONS:
            return Becomes.REWRITTEN
        if self._resolve is not None and version <= addresses.REWRITTEN.get(api_key, -1):
            return Becomes.REWRITTEN
        return Becomes.PASSED

    def receive(self, exchange: Exchange, chunk: bytes, *, left: int) -> list[Buffer]:
        """Hold an answer until it is whole, then put our addresses or version ranges into it.

        Args:
            exchange: what it answers.
            chunk: its next bytes.
            left: how many are still to come.
        """
        if exchange.received + left > _MAX_HELD_ANSWER:
            exchange.becomes = Becomes.PASSED
            pieces: list[Buffer] = [*exchange.chunks, chunk]
            exchange.let_go()
            return pieces
        exchange.chunks.append(chunk)
        exchange.held += len(chunk)
        if left:
            return []
        frame = b"".join(exchange.chunks)
        exchange.let_go()
        if exchange.api_key == ApiKey.API_VERSIONS:
            pieces, self._eligibility.features = clamped(frame, exchange.version)
            return pieces
        try:
            return readdressed(frame, exchange.api_key, exchange.version, self._resolve)
        except ProtocolError:
            self._events.append(Passthrough(reason="an answer with addresses was not understood"))
            return [frame]

    def learn(self, exchange: Exchange, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of the answer to our own question what the broker can."""
        if exchange.received <= _MAX_PROBE_ANSWER:
            exchange.chunks.append(chunk)
            if last:
                _, self._eligibility.features = clamped(b"".join(exchange.chunks), exchange.version)


def clamped(frame: bytes, version: int) -> tuple[list[Buffer], api_versions.Features | None]:
    """Return an ApiVersions answer with the gateway's limits, and what it tells of the broker.

    Args:
        frame: the whole frame.
        version: that of the request.
    """
    try:
        body, features = api_versions.clamp(frame[_HEAD_SIZE:], version)
    except ProtocolError:
        return [frame], None
    return [_head(frame, _HEAD_SIZE, body), body], features


def readdressed(frame: bytes, api_key: int, version: int, resolve: Resolve | None) -> list[Buffer]:
    """Return an answer with brokers where clients find them.

    Args:
        frame: the whole frame.
        api_key: what the answer answers, one of `addresses.REWRITTEN`.
        version: that of the request.
        resolve: where brokers are told to be.

    Raises:
        ProtocolError: it is not what that version says.
    """
    if resolve is None or api_key == ApiKey.DESCRIBE_QUORUM:
        # It names listeners of controllers, which are not to be reached through the gateway.
        resolve = _nowhere
    _, at = response_header(frame, 4, api_key, version)
    body = addresses.rewrite(api_key, version, frame[at:], resolve)
    return [_head(frame, at, body), body]


def _head(frame: bytes, body_at: int, body: bytes) -> bytes:
    return (body_at - 4 + len(body)).to_bytes(4) + frame[4:body_at]


def _nowhere(_node_id: int, _host: str, _port: int, /) -> None:
    """Resolve a broker to no address at all."""
