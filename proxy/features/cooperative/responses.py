"""Types for the functions that send a member's requests and process their responses. Sans-IO."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from proxy.protocol.primitives import Buffer


class Reply(NamedTuple):
    """A response for the client. Its bytes include the length field."""

    pieces: list[Buffer]
    due_at: float = 0.0
    """The earliest time at which the response may be sent, in seconds. 0 to send it now. If the connection is
    closing, the response is sent at once."""


Take: TypeAlias = Callable[[bytes, float], Reply | None]
"""A function that processes a broker's complete response at a given time. It returns the response for the
client. It returns None if the client has to wait for a response to another request, or for another member. It
raises ProtocolError if the broker's response can't be read."""
Send: TypeAlias = Callable[[bytes, Take | None], None]
"""A function that sends a request to the broker. Its second argument is the function that processes the
response. If the second argument is None, the response is forwarded unchanged."""
