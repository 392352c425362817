"""What becomes of a response that a member waits for. Sans-IO."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from proxy.protocol.primitives import Buffer


class Reply(NamedTuple):
    """A response for the client, with its length."""

    pieces: list[Buffer]
    due_at: float = 0.0
    """When it may be sent, in seconds."""


Take: TypeAlias = Callable[[bytes, float], Reply | None]
"""Takes a whole response and the time; returns what the client gets. None is nothing yet: another request was
sent, or the member waits for another one. It raises ProtocolError if it can't read the response."""
Send: TypeAlias = Callable[[bytes, Take | None], None]
"""Sends a request to the broker, with what takes the response. None: the client gets it as it is."""
