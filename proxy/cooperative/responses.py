"""Handlers of the responses that a member waits for. Sans-IO."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from proxy.protocol.primitives import Buffer


class Reply(NamedTuple):
    """A response for the client, with its length."""

    pieces: list[Buffer]
    due_at: float = 0.0
    """When it may be sent, in seconds."""


Take: TypeAlias = Callable[[bytes, float], Reply | None]
"""Takes a complete response and the time, and returns the client's response. It returns None if there is none
yet, because another request was sent, or the member waits for another one. It raises ProtocolError if it
can't read the response."""
Send: TypeAlias = Callable[[bytes, Take | None], None]
"""Sends a request to the broker, with the handler of its response. None to forward the response unchanged."""
