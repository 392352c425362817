"""Types for the functions that send a member's requests and process their responses. Sans-IO."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from proxy.protocol.primitives import Buffer


class Reply(NamedTuple):
    """A response for the client, with its length."""

    pieces: list[Buffer]
    due_at: float = 0.0
    """The earliest time at which the response may be sent, in seconds. 0 to send it now."""


Take: TypeAlias = Callable[[bytes, float], Reply | None]
"""A function that processes a broker's complete response at a given time. It returns the response for the
client. It returns None if the client has to wait for a response to another request, or for another member. It
raises ProtocolError if the broker's response can't be read."""
Send: TypeAlias = Callable[[bytes, Take | None], None]
"""Sends a request to the broker. The second argument processes the response. If it is None, the response is
forwarded unchanged."""
