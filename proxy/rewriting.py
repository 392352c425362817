"""Answers held until they are whole, for brokers' addresses or versions stand in them. Sans-IO."""

from typing import Final

from proxy.exchange import Buffer
from proxy.protocol import addresses, api_versions
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ApiKey, response_header
from proxy.protocol.primitives import ProtocolError

_HEAD_SIZE: Final = 8
"""Length and correlation id: an ApiVersions response header has no more at any version."""


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
