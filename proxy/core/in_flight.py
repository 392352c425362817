"""The requests in flight, and the order in which their responses leave. Sans-IO.

Each request has a `Handler`, chosen when the request is seen: it makes the client's bytes of the response.
Handlers wrap each other where two features care about one response. A stage may claim a response: what the
handlers make of it is kept, and the stage makes the client's response of that.

A broker responds in order, so each request is in two queues of `ResponseQueue`. `expected` has the order of
the broker: its next response is for the first request. `owed` has the order in which the client gets
responses. The two orders differ only while a fetch is sent again: later responses then wait for it
(fetch-semantics, traps 16 and 17).
"""

from collections import deque
from typing import Final, Self

from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.primitives import Buffer

MAX_IN_FLIGHT: Final = 1024
"""With this many unanswered requests of a client, what else it has sent waits, and no more is read."""
AT_ONCE: Final = 16
"""So many requests are processed in one call, and so many responses."""
REQUEST_BYTES: Final = 750
"""What an unanswered request takes in memory, about."""
UNREAD_SECONDS: Final = 30.0
"""A fetch that is not read is taken to let the broker wait so long. Clients time out after as much
(request.timeout.ms, 30 s by default), so none asks for more."""
_SMALL: Final = 1 << 16
_NO_BROKERS: Final = frozenset[int]()


class Handler:
    """Makes the client's bytes of one response."""

    __slots__ = ()

    wait: float = 0.0
    """How many seconds the request lets the broker wait before it responds."""
    buffered: int = 0
    """Bytes of the response that are kept."""
    small: int = _SMALL
    """A response of up to so many bytes is kept even if memory is short: that costs less than its delay."""
    forwards: bool = False
    """Every byte of the response goes on as it comes."""
    awaits_brokers: frozenset[int] = _NO_BROKERS
    """The response is whole, and waits for the listeners of these brokers, which it names."""
    fetch: FetchRequest | None = None
    """The request, if it is a fetch that was understood."""
    planned: bool = False
    """It is a plan: the handler of many requests, until their responses begin (`proxy.core.plans`)."""
    spare: "InFlight | None"
    """A plan's last request that was answered, to be used again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def fresh(self) -> Self:
        """Return a handler for the response to another request like this one, if a plan is made of it."""
        raise NotImplementedError

    def recall(self, _frame: bytes, _seconds: float) -> bytes | None:
        """Return what the client gets of a whole response, and count it; None if it has to be fed.

        Args:
            _frame: the response.
            _seconds: from the request to its first byte.
        """
        return None

    def begin(self, _request: "InFlight") -> "Handler":
        """Return the handler of this one request: its response begins, and has to be fed."""
        return self

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Take the next bytes of the response, from its length on; return what the client gets now."""
        raise NotImplementedError

    def end(self, _request: "InFlight") -> bool:
        """Note that the response has ended; return whether it was the client's, and the client has it all.

        Otherwise it was not for the client, or is to come: it is held, or the request was sent again.
        """
        return True

    def passes(self, _size: int) -> bool:
        """Note that so many bytes go to the client as they come; return False if they have to be fed.

        The last byte of a response is always fed.
        """
        return False

    def lose(self, _now: float) -> None:
        """Note that the response will not come."""


class Forward(Handler):
    """Forwards every byte of a response as it comes."""

    __slots__ = ("wait",)
    forwards = True

    def __init__(self, wait: float = 0.0) -> None:
        self.wait = wait

    def fresh(self) -> Self:
        """Return the same: it has no state."""
        return self

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        """Return the bytes."""
        return [chunk]

    def passes(self, _size: int) -> bool:
        """Let them pass."""
        return True


FORWARD: Final = Forward()
"""For all responses that are forwarded, and for which the client does not let the broker wait."""


class Claim:
    """What the client would get of a response, kept for a stage that makes another response of it."""

    __slots__ = ("pieces", "request", "whole")

    def __init__(self, request: "InFlight") -> None:
        self.request = request
        self.pieces: list[Buffer] = []
        self.whole = False


class InFlight:
    """A request that the broker has not answered yet, or whose response has not left for the client yet."""

    __slots__ = ("answered", "api_key", "claim", "correlation_id", "handler", "out", "sent_at", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: bytes, handler: Handler, sent_at: float = 0.0
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.handler = handler
        self.sent_at = sent_at
        """When it was sent to the broker, in seconds."""
        self.answered = False
        """The client has all of the response, or it waits in `out`."""
        self.claim: Claim | None = None
        """What the client would get, if a stage makes another response of it."""
        self.out: list[Buffer] | None = None
        """Response bytes that wait for earlier responses to go first; None: there are none."""

    def __repr__(self) -> str:
        return f"<InFlight key={self.api_key} v{self.version} {self.handler!r}>"


class ResponseQueue:
    """The responses of one connection that are still to come or to leave."""

    __slots__ = ("buffered", "expected", "owed", "resending")

    def __init__(self) -> None:
        self.expected: deque[InFlight] = deque()
        """What the broker will answer, in its order."""
        self.owed: deque[InFlight] = deque()
        """What the client will be answered, in its order."""
        self.resending = 0
        """Fetches that are sent once more; what follows them waits."""
        self.buffered = 0
        """Bytes of responses kept until they are whole or their turn comes."""

    def in_turn(self, request: InFlight, pieces: list[Buffer]) -> list[Buffer]:
        """Return the next bytes of a response if it is its turn to leave; keep them otherwise."""
        if request.claim is not None:
            request.claim.pieces += pieces
            self.buffered += sum(map(len, pieces))
            return []
        if self.owed and self.owed[0] is request:
            return pieces
        if request.out is None:
            request.out = []
        request.out += pieces
        self.buffered += sum(map(len, pieces))
        return []

    def ended(self, request: InFlight) -> list[Buffer]:
        """Note that a response is whole; return what of later ones has waited for it."""
        if request.claim is not None:
            request.claim.whole = True
            return []
        request.answered = True
        owed = self.owed
        waited: list[Buffer] = []
        while owed and owed[0].answered:
            owed.popleft()
            if owed and owed[0].out:
                waited += owed[0].out
                self.buffered -= sum(map(len, owed[0].out))
                owed[0].out = None
        return waited

    def claim(self, request: InFlight) -> Claim:
        """Keep what the client would get of a response, until `respond`."""
        request.claim = claim = Claim(request)
        return claim

    def keep(self, claim: Claim, pieces: list[Buffer]) -> None:
        """Keep a response that was made of a claimed one, until `respond`."""
        self.buffered += sum(map(len, pieces)) - sum(map(len, claim.pieces))
        claim.pieces = pieces

    def respond(self, claim: Claim) -> list[Buffer]:
        """Return what leaves for the client now that a claimed response may."""
        request, pieces = claim.request, claim.pieces
        self.keep(claim, [])
        request.claim = None
        return self.in_turn(request, pieces) + self.ended(request)

    def clear(self) -> None:
        """Expect, owe and keep nothing any more."""
        self.expected.clear()
        self.owed.clear()
        self.buffered = 0
