"""The requests in flight, and the order in which their responses leave. Sans-IO.

Each request gets a `Handler` when it is processed. The handler makes the client's response from the broker's.
If two features change one response, one handler wraps the other. A stage may claim a response: the result of
the handlers is kept, and the stage makes the client's response from it. `FetchHandler` is the handler of a
client's fetch. It holds the fetch as sent to the broker, and the received part of the response.

A broker responds in order, so each request is in two queues of `ResponseQueue`. `expected` has the order of
the broker: its next response is for the first request. `owed` has the order in which the client gets
responses. The two orders differ only while a fetch is sent again: later responses then wait for it
(fetch-semantics, traps 16 and 17).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self, TypeAlias

from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse, Received
from proxy.protocol.primitives import Buffer
from proxy.protocol.versions import raise_listing

MAX_IN_FLIGHT: Final = 1024
"""With this many unanswered requests of a client, its further bytes wait, and the client is not read."""
AT_ONCE: Final = 16
"""How many requests, and how many responses, are processed in one call."""
REQUEST_BYTES: Final = 750
"""The approximate memory of an unanswered request, in bytes."""
UNREAD_SECONDS: Final = 30.0
"""How long an unread fetch is assumed to let the broker wait. Clients time out after the same time
(request.timeout.ms, 30 s by default), so none allows more."""
_SMALL: Final = 1 << 16
_NO_BROKERS: Final = frozenset[int]()


class Handler:
    """Makes the client's bytes from one response."""

    __slots__ = ()

    wait: float = 0.0
    """How long the request lets the broker wait before it responds, in seconds."""
    buffered: int = 0
    """The buffered bytes of the response."""
    small: int = _SMALL
    """A response of up to this many bytes is buffered even if memory is short, because that costs less
    than its delay."""
    forwards: bool = False
    """Whether every byte of the response is forwarded as it arrives."""
    awaits_brokers: frozenset[int] = _NO_BROKERS
    """The brokers whose listeners the complete response waits for, because it names them."""
    fetch: FetchRequest | None = None
    """The request, if it is a fetch that was understood."""
    planned: bool = False
    """True for a plan: it handles many requests, until their responses begin (`proxy.core.plans`)."""
    spare: "InFlight | None"
    """The last answered request of a plan, for reuse."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def fresh(self) -> Self:
        """Return a handler for a request like this one, for a plan."""
        raise NotImplementedError

    def recall(self, _frame: bytes, _seconds: float) -> bytes | None:
        """Return the client's form of a complete response, and count it. Return None if it has to be fed.

        Args:
            _frame: the complete response.
            _seconds: the time from the request to the first byte of the response.
        """
        return None

    def begin(self, _request: "InFlight") -> "Handler":
        """Return the handler of one request, whose response begins and has to be fed."""
        return self

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Process the next bytes of the response, from its length on.

        Return the client's bytes that are ready now.
        """
        raise NotImplementedError

    def end(self, _request: "InFlight") -> bool:
        """Note the end of the response. Return whether the client has all of it.

        If not, it was not for the client, it is held back, or the request was sent again.
        """
        return True

    def passes(self, _size: int) -> bool:
        """Count bytes that are forwarded unchanged. Return False if they have to be fed instead.

        The last byte of a response is always fed.
        """
        return False

    def lose(self, _now: float) -> None:
        """Note that the response will not come."""


class Forward(Handler):
    """Forwards every byte of a response as it arrives."""

    __slots__ = ("wait",)
    forwards = True

    def __init__(self, wait: float = 0.0) -> None:
        self.wait = wait

    def fresh(self) -> Self:
        """Return the same object, because it has no state."""
        return self

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        """Return the bytes."""
        return [chunk]

    def passes(self, _size: int) -> bool:
        """Let them pass."""
        return True


FORWARD: Final = Forward()
"""For all responses that are forwarded, and whose requests do not let the broker wait."""


class Claim:
    """The client's form of a response, kept for a stage that makes another response from it."""

    __slots__ = ("pieces", "request", "whole")

    def __init__(self, request: "InFlight") -> None:
        self.request = request
        self.pieces: list[Buffer] = []
        self.whole = False


class InFlight:
    """A request whose response the broker has not sent yet, or which has not been sent to the client yet."""

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
        """The client has all of the response, or the response waits in `out`."""
        self.claim: Claim | None = None
        """The claim of a stage that makes another response. None if there is none."""
        self.out: list[Buffer] | None = None
        """Response bytes that wait for earlier responses. None if there are none."""

    def __repr__(self) -> str:
        return f"<InFlight key={self.api_key} v{self.version} {self.handler!r}>"


class ResponseQueue:
    """The responses of one connection that are still expected or not sent yet."""

    __slots__ = ("buffered", "expected", "owed", "resending")

    def __init__(self) -> None:
        self.expected: deque[InFlight] = deque()
        """The requests that the broker will answer, in its order."""
        self.owed: deque[InFlight] = deque()
        """The requests whose responses the client will get, in its order."""
        self.resending = 0
        """The number of fetches that are being sent once more. Later responses wait for them."""
        self.buffered = 0
        """Bytes of responses that are buffered until they are complete, or until it is their turn."""

    def in_turn(self, request: InFlight, pieces: list[Buffer]) -> list[Buffer]:
        """Return the next bytes of a response if it is its turn. Otherwise keep them."""
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
        """Note that a response is complete. Return the bytes of later responses that have waited for it."""
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
        """Keep the client's form of a response until `respond`."""
        request.claim = claim = Claim(request)
        return claim

    def keep(self, claim: Claim, pieces: list[Buffer]) -> None:
        """Keep the response that a stage made from a claimed one, until `respond`."""
        self.buffered += sum(map(len, pieces)) - sum(map(len, claim.pieces))
        claim.pieces = pieces

    def respond(self, claim: Claim) -> list[Buffer]:
        """Release a claimed response. Return the bytes that can go to the client now."""
        request, pieces = claim.request, claim.pieces
        self.keep(claim, [])
        request.claim = None
        return self.in_turn(request, pieces) + self.ended(request)

    def clear(self) -> None:
        """Drop everything."""
        self.expected.clear()
        self.owed.clear()
        self.buffered = 0


# Fetches


class Walked:
    """A response that is forwarded while it is walked."""

    __slots__ = ("buffered", "chunks", "forwarded", "received", "understood", "walk")

    def __init__(self) -> None:
        self.walk: FetchResponseWalk | None = None
        self.received = 0
        """The number of received bytes."""
        self.understood = True
        """Whether the bytes match the version so far."""
        self.forwarded = 0
        """The number of bytes sent to the client."""
        self.chunks: list[bytes] = []
        """The received bytes after these."""
        self.buffered = 0
        """The size of `chunks` in bytes."""

    def drop(self) -> None:
        """Keep no bytes any more."""
        self.chunks = []
        self.buffered = 0


class Kept:
    """A response of the session. It is buffered until it is complete, then expanded to a full one."""

    __slots__ = ("_cut", "buffered", "frame", "received", "understood", "walk")

    def __init__(self) -> None:
        self.walk: FetchResponseWalk | None = None
        self.received = 0
        """The number of received bytes."""
        self.understood = True
        """Whether the bytes match the version so far."""
        self.frame: Received | None = None
        """The received bytes."""
        self.buffered = 0
        """How many bytes are buffered."""
        self._cut = 0
        """How many entries were looked up."""

    def keep(self, chunk: bytes) -> None:
        """Buffer the next bytes."""
        if self.frame is None:
            self.frame = Received()
        self.frame.append(chunk)
        self.buffered += len(chunk)

    def cut_entries(self, entries: Sequence[PartitionResponse]) -> None:
        """Look up the bytes of the complete entries, so that less work is left for the last byte."""
        frame = self.frame
        while (
            frame is not None
            and self._cut < len(entries)
            and (entry := entries[self._cut]).end <= frame.settled
        ):
            entry.views = frame.span(entry.start, entry.end)
            self._cut += 1

    def drop(self) -> None:
        """Keep no bytes any more."""
        self.frame = None
        self._cut = 0
        self.buffered = 0


Send: TypeAlias = Callable[[InFlight, "FetchHandler"], None]


class Responses(Protocol):
    """The methods that fetches of one connection need for their responses, see `FetchResponses`."""

    def in_flight(self, version: int, correlation_id: bytes) -> "tuple[InFlight, FetchHandler]":
        """Return a client's fetch in flight, and its innermost handler."""

    def receive(self, fetching: "FetchHandler", chunk: bytes, *, last: bool) -> list[Buffer]:
        """Process the next bytes of a fetch's response. Return the client's bytes that are ready now."""

    def end(self, fetching: "FetchHandler", request: InFlight) -> bool:
        """Note the end of a response. Return whether the client has it."""

    def count_passed(self, size: int) -> None:
        """Count bytes of a response that passed without being fed."""


class FetchHandler(Handler):
    """A fetch of a client, and the response to it.

    Args:
        responses: judges the broker's responses, and makes the client's.
        version: the version of the fetch.
    """

    __slots__ = (
        "_listing",
        "attempts",
        "direct",
        "fetch",
        "first",
        "listed",
        "resend",
        "response",
        "responses",
        "rows",
        "sent",
        "sent_partitions",
        "session_id",
        "through_session",
        "version",
        "wait",
    )

    def __init__(self, responses: Responses, version: int) -> None:
        self.wait = UNREAD_SECONDS
        self.responses = responses
        self.version = version
        self.direct = True
        """Whether the client gets the response of this handler. If not, another handler changes it."""
        self.listed = True
        """The client gets all partitions of the response."""
        self.fetch: FetchRequest | None = None
        """The parsed request. None if it was not understood."""
        self._listing: Listing | None = None
        self.rows: Rows | None = None
        """The session's row of each entry of `listing`. None if rows were not looked up."""
        self.first = -1
        """The session's row of the first entry, for a fetch that only rotates the list. Otherwise -1."""
        self.through_session = False
        """Whether it was sent through the session: full with epoch 0, or incremental."""
        self.session_id = 0
        """The session id in that request, or 0 for none."""
        self.sent = 0
        """The size of the frame to the broker."""
        self.sent_partitions = -1
        """How many partitions that frame lists, or -1 if they were not counted."""
        self.attempts = 0
        """How often it was sent again."""
        self.resend: Send | None = None
        """Sends the fetch once more when the current response has ended. The client does not get the
        current response."""
        self.response: Walked | Kept = Walked()
        """The response that is arriving."""

    def __repr__(self) -> str:
        return f"<FetchHandler {type(self.response).__name__} received={self.response.received}>"

    # The request

    def ask(self, fetch: FetchRequest) -> None:
        """Note the client's parsed request."""
        self.fetch = fetch
        self.wait = max(fetch.max_wait_ms, 0) / 1e3

    @property
    def asked(self) -> FetchRequest:
        """The parsed request, which must have been understood."""
        if self.fetch is None:
            raise RuntimeError("the fetch was not understood")
        return self.fetch

    @property
    def listing(self) -> Listing | None:
        """The partitions of a plain consumer's fetch, in the session's format (v4 to v6 as v7)."""
        if self._listing is None and self.fetch is not None and self.fetch.listing is not None:
            self._listing = raise_listing(self.fetch.listing)
        return self._listing

    def sends(
        self, response: Walked | Kept, frame: bytes, partitions: int, *, session_id: int | None = None
    ) -> None:
        """Note the request that is sent to the broker.

        Args:
            response: collects the response.
            frame: the whole frame.
            partitions: how many partitions it lists.
            session_id: the session in the request, 0 for a new one, or None without a session.
        """
        self.response = response
        self.through_session = session_id is not None
        if session_id is not None:
            self.session_id = session_id
        self.sent, self.sent_partitions = len(frame), partitions

    # The response

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of the response
        """The buffered bytes of the response."""
        return self.response.buffered

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Return the client's bytes that are ready now."""
        return self.responses.receive(self, chunk, last=last)

    def end(self, request: InFlight) -> bool:
        """Send the fetch again, if that was planned."""
        return self.responses.end(self, request)

    def passes(self, size: int) -> bool:
        """Let bytes pass if they are records, or not understood."""
        response = self.response
        if isinstance(response, Kept) or response.chunks or response.walk is None or not response.forwarded:
            return False
        if size > response.walk.records_left:
            return False
        response.received += size
        response.forwarded += size
        response.walk.skip_records(size)
        self.responses.count_passed(size)
        return True


class Around(Handler):
    """A handler that changes the result of another handler for the response to a fetch.

    Args:
        inner: the other handler.
        fetching: the fetch, which is the innermost handler.
    """

    __slots__ = ("_fetching", "_inner")

    def __init__(self, inner: Handler, fetching: FetchHandler) -> None:
        self._inner = inner
        self._fetching = fetching

    @property
    def wait(self) -> float:  # type: ignore[override]  # of the innermost handler
        """How long the fetch lets the broker wait, in seconds."""
        return self._fetching.wait

    @property
    def fetch(self) -> FetchRequest | None:  # type: ignore[override]  # of the innermost handler
        """The fetch in the form that is sent."""
        return self._fetching.fetch

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of all handlers
        """The buffered bytes of the response."""
        return self._inner.buffered + self._kept

    @property
    def _kept(self) -> int:
        """The bytes that this handler buffers itself."""
        raise NotImplementedError
