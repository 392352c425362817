"""Runs the gateway's session server like a broker: it gets request frames and returns response frames.

The session server fetches from another broker.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.contexts import FinalContext
from proxy.features.client_sessions.manager import FetchManager
from proxy.protocol.api import LENGTH_BYTES, request_header
from proxy.protocol.fetch_request import FetchRequest, parse_fetch_request
from tests.model.gate import cut, framed, unframed

Finish: TypeAlias = Callable[[], bytes]
"""A function that waits for the response to a sent request."""


def parsed(message: bytes) -> FetchRequest:
    """Parse a request without length prefix, with the parser of the core."""
    frame = framed(message)
    _, version, _, _, body = request_header(frame, LENGTH_BYTES)
    return parse_fetch_request(frame, version, body)


def seconds(now: float) -> int:
    """Convert a time in seconds to milliseconds."""
    return round(now * 1000)


@dataclass
class Serving:
    """The gateway's session server. Its frames have no length prefix.

    Args:
        begin: a function that sends a full fetch to the broker behind the gateway.
        slots: the number of session slots.
        seed: the seed for session ids.
        broker_max: the highest Fetch version of the broker behind the gateway.
        chance: the random numbers for cutting responses into pieces.
    """

    begin: Callable[[bytes], Finish]
    slots: int = 1000
    seed: int = 0
    broker_max: int = 18
    chance: random.Random | None = None
    now: float = 0.0
    asked: list[bytes] = field(default_factory=list)
    """The requests that were sent to the broker behind the gateway."""

    def __post_init__(self) -> None:
        self.cache = FetchSessionCache(random.Random(self.seed).randint, slots=self.slots)
        self.manager = FetchManager(self.cache)

    def exchange(self, message: bytes) -> bytes:
        """Process a request and return its response."""
        return self.arrive(message)()

    def arrive(self, message: bytes) -> Finish:
        """Process a request. Return a function that makes the response."""
        fetch = parsed(message)
        version = min(fetch.layout.version, self.broker_max)
        context = self.manager.context(fetch, seconds(self.now), version=version)
        if isinstance(context, FinalContext):
            (response,) = unframed(context.response)
            return lambda: response
        if context is None:
            return self.begin(message)
        (request,) = unframed(context.request)
        self.asked.append(request)
        assert int.from_bytes(request[2:4], "big") == version
        finish, receive = self.begin(request), context.receive

        def finished() -> bytes:
            pieces = list(cut(framed(finish()), self.chance))
            out = b""
            for number, piece in enumerate(pieces, 1):
                out += b"".join(receive(piece, seconds(self.now), last=number == len(pieces)))
            (whole,) = unframed(out)
            return whole

        return finished
