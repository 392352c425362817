"""The requests in flight, and the order in which their responses leave. Sans-IO.

Each request has a `Handler`, chosen when the request is seen: it makes the client's bytes of the response.
Handlers wrap each other where two features care about one response. A stage may claim a response: what the
handlers make of it is kept, and the stage makes the client's response of that. `FetchHandler` is that of a
client's fetch: it has what the broker was sent, and what has come of the response.

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


# Fetches


class Walked:
    """A response that goes on while it is walked."""

    __slots__ = ("buffered", "chunks", "forwarded", "received", "understood", "walk")

    def __init__(self) -> None:
        self.walk: FetchResponseWalk | None = None
        self.received = 0
        """Bytes that have come."""
        self.understood = True
        """They could be read as the version says."""
        self.forwarded = 0
        """Bytes that have gone to the client."""
        self.chunks: list[bytes] = []
        """What has come behind these."""
        self.buffered = 0
        """Bytes of `chunks`."""

    def drop(self) -> None:
        """Keep nothing any more."""
        self.chunks = []
        self.buffered = 0


class Kept:
    """A response of the session that is kept until it is whole, then completed to a full one."""

    __slots__ = ("_cut", "buffered", "frame", "received", "understood", "walk")

    def __init__(self) -> None:
        self.walk: FetchResponseWalk | None = None
        self.received = 0
        """Bytes that have come."""
        self.understood = True
        """They could be read as the version says."""
        self.frame: Received | None = None
        """The same bytes."""
        self.buffered = 0
        """How many of them are kept."""
        self._cut = 0
        """How many entries were looked up."""

    def keep(self, chunk: bytes) -> None:
        """Keep the next bytes."""
        if self.frame is None:
            self.frame = Received()
        self.frame.append(chunk)
        self.buffered += len(chunk)

    def cut_entries(self, entries: Sequence[PartitionResponse]) -> None:
        """Look up the bytes of the entries that have come whole, so that the last byte has less to do."""
        frame = self.frame
        while (
            frame is not None
            and self._cut < len(entries)
            and (entry := entries[self._cut]).end <= frame.settled
        ):
            entry.views = frame.span(entry.start, entry.end)
            self._cut += 1

    def drop(self) -> None:
        """Keep nothing any more."""
        self.frame = None
        self._cut = 0
        self.buffered = 0


Send: TypeAlias = Callable[[InFlight, "FetchHandler"], None]


class Responses(Protocol):
    """What the fetches of one connection need to judge their responses: see `FetchResponses`."""

    def in_flight(self, version: int, correlation_id: bytes) -> "tuple[InFlight, FetchHandler]":
        """Return a client's fetch in flight, and its handler without what is around it."""

    def receive(self, fetching: "FetchHandler", chunk: bytes, *, last: bool) -> list[Buffer]:
        """Take the next bytes of a fetch's response; return what the client gets of it now."""

    def end(self, fetching: "FetchHandler", request: InFlight) -> bool:
        """Note that a response has ended; return whether the client has it."""

    def count_passed(self, size: int) -> None:
        """Count bytes of a response that passed without being fed."""


class FetchHandler(Handler):
    """A fetch of a client, and the response to it.

    Args:
        responses: judges the responses of the connection, and makes the client's.
        version: of the fetch.
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
        """The client gets the response that is made here. False: another handler makes another one of it."""
        self.listed = True
        """The client gets all partitions of the response."""
        self.fetch: FetchRequest | None = None
        """The parsed request; None if it was not understood."""
        self._listing: Listing | None = None
        self.rows: Rows | None = None
        """The session's row of each entry of `listing`; None if they were not looked up."""
        self.first = -1
        """The session's row of the first entry of a fetch that the session's rotation knows, else -1."""
        self.through_session = False
        """It was sent through the session: full with epoch 0, or incremental."""
        self.session_id = 0
        """The session that it named then, 0 for none."""
        self.sent = 0
        """Size of the frame that went to the broker."""
        self.sent_partitions = -1
        """How many partitions that frame lists; -1: that was not looked for."""
        self.attempts = 0
        """How often it was sent again."""
        self.resend: Send | None = None
        """Sends the fetch once more, when the current response, which the client does not get, has ended."""
        self.response: Walked | Kept = Walked()
        """The response that is coming in."""

    def __repr__(self) -> str:
        return f"<FetchHandler {type(self.response).__name__} received={self.response.received}>"

    # The request

    def ask(self, fetch: FetchRequest) -> None:
        """Note what the client asks for."""
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
        """What a plain consumer's fetch lists, as the session has it (v4 to v6 as v7)."""
        if self._listing is None and self.fetch is not None and self.fetch.listing is not None:
            self._listing = raise_listing(self.fetch.listing)
        return self._listing

    def sends(
        self, response: Walked | Kept, frame: bytes, partitions: int, *, session_id: int | None = None
    ) -> None:
        """Note what is sent to the broker.

        Args:
            response: takes the response.
            frame: the whole frame.
            partitions: how many it lists.
            session_id: the session that it names, 0 for a new one; None: it goes without.
        """
        self.response = response
        self.through_session = session_id is not None
        if session_id is not None:
            self.session_id = session_id
        self.sent, self.sent_partitions = len(frame), partitions

    # The response

    @property
    def buffered(self) -> int:  # type: ignore[override]  # what the response keeps
        """Bytes of the response that are kept."""
        return self.response.buffered

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Return what the client gets of the response now."""
        return self.responses.receive(self, chunk, last=last)

    def end(self, request: InFlight) -> bool:
        """Send the fetch again, if that was planned."""
        return self.responses.end(self, request)

    def passes(self, size: int) -> bool:
        """Let bytes of records pass, and of what is not understood."""
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
    """A handler that changes what another one makes of the response to a fetch.

    Args:
        inner: the other one.
        fetching: the fetch; the innermost handler.
    """

    __slots__ = ("_fetching", "_inner")

    def __init__(self, inner: Handler, fetching: FetchHandler) -> None:
        self._inner = inner
        self._fetching = fetching

    @property
    def wait(self) -> float:  # type: ignore[override]  # what the innermost one has
        """How many seconds the fetch lets the broker wait."""
        return self._fetching.wait

    @property
    def fetch(self) -> FetchRequest | None:  # type: ignore[override]  # what the innermost one has
        """The fetch, as it is sent."""
        return self._fetching.fetch

    @property
    def buffered(self) -> int:  # type: ignore[override]  # what all of them keep
        """Bytes of the response that are kept."""
        return self._inner.buffered + self._kept

    @property
    def _kept(self) -> int:
        """Bytes that this one keeps."""
        raise NotImplementedError
