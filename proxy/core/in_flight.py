"""The requests in flight, and the order in which clients get their responses. Sans-IO.

Each request gets a `Handler` when it is processed. The handler makes the client's response from the broker's
response. If two features change one response, one handler wraps the other. A stage may claim a response. The
queue then keeps the response that the handlers have made, until the stage releases it. Before that, the stage
may replace it. Each time that a client's fetch is sent, it gets a new `FetchHandler` as the innermost one.

`ResponseQueue` has two queues of requests. `expected` has the order of the broker, which responds in the
order of the requests. `owed` has the order in which the client gets the responses. The two orders differ only
while a fetch is sent again: later responses then wait for that fetch (fetch-semantics, traps 16 and 17).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from proxy.protocol.fetch_layout import SESSION_VERSION
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import OUT_OF_RANGE, FetchResponseWalk
from proxy.protocol.primitives import Buffer
from proxy.protocol.versions import raise_listing
from proxy.session.state import Action

MAX_IN_FLIGHT: Final = 1024
"""The maximum of unanswered requests of a client. At the maximum, the gateway does not read from it."""
AT_ONCE: Final = 16
"""The maximum number of requests, or of responses, that one call of the core processes. The fast path has its
own limit."""
REQUEST_BYTES: Final = 750
"""The approximate memory of an unanswered request, in bytes."""
UNREAD_SECONDS: Final = 30.0
"""The wait, in seconds, that is assumed for a fetch that the gateway did not read. No client allows more,
because clients time out after this time themselves (request.timeout.ms, 30 s by default)."""
_SMALL: Final = 1 << 16
_NO_BROKERS: Final = frozenset[int]()


class Handler:
    """Makes the client's response from the broker's response to one request."""

    __slots__ = ()

    wait: float = 0.0
    """How long the request allows the broker to wait before it responds, in seconds."""
    buffered: int = 0
    small: int = _SMALL
    """The largest response, in bytes, that is buffered even if memory is short. Its memory costs less than a
    delay would."""
    forwards: bool = False
    """Whether every byte of the response is forwarded as it arrives."""
    awaits_brokers: frozenset[int] = _NO_BROKERS
    """Brokers that the response names and whose listeners are still being opened. The response waits for
    `Connection.brokers_opened`."""
    fetch: FetchRequest | None = None
    """The request, if it is a fetch that was understood."""
    planned: bool = False
    """Whether this is a plan, which is shared by all matching requests (`proxy.core.plans`)."""
    spare: "InFlight | None"
    """Used only by a plan: the last answered request. Its object can be used again for the next request."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def fresh(self) -> Self:
        """Return a new handler of the same kind for another request. Plans use this method."""
        raise NotImplementedError

    def answer(self, _frame: bytes, _seconds: float) -> bytes | None:
        """Return what the client gets for a complete response, and count it. None if `feed` must read it.

        `_seconds` is the time from the request to the first byte of the response.
        """
        return None

    def begin(self, _request: "InFlight") -> "Handler":
        """Return the handler whose `feed` gets the response to one request. The response begins now."""
        return self

    def put(self, handler: "FetchHandler") -> "Handler":
        """Put the innermost handler of a fetch in, because the fetch is sent now. Return the outermost."""
        return handler

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Process the next bytes of the response, and return the client's bytes that are ready now.

        The first bytes are the length field.
        """
        raise NotImplementedError

    def end(self, _request: "InFlight") -> bool:
        """Note the end of the response. Return whether the client's response is complete.

        A complete response may still wait for its turn. False means that the response is not for the client,
        that it is held back, or that the request was sent again.
        """
        return True

    def passes(self, _size: int) -> bool:
        """Return whether the next bytes may be forwarded unchanged, and count them. If not, call `feed`.

        The last byte of a response always needs `feed`.
        """
        return False

    def opened(self) -> list[Buffer]:
        """Return the client's response after it has waited for listeners (`awaits_brokers`)."""
        raise NotImplementedError

    def lose(self, _now: float) -> None:
        """Note that the response will not come."""


class Forward(Handler):
    """Forwards every byte of a response as it arrives."""

    __slots__ = ("wait",)
    forwards = True

    def __init__(self, wait: float = 0.0) -> None:
        self.wait = wait

    def fresh(self) -> Self:
        return self

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        return [chunk]

    def passes(self, _size: int) -> bool:
        return True


UNSENT: Final = Handler()
"""The innermost handler of a fetch that was not sent yet."""
FORWARD: Final = Forward()
"""The handler of requests that do not allow the broker to wait, and whose responses are forwarded
unchanged."""
TOKEN: Final = Forward()
"""The handler of a SASL token without a header. The broker's token that answers it is forwarded unchanged."""


class Over(Handler):
    """Reads or changes the response to a request other than a fetch. The inner handler makes it."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Handler) -> None:
        self._inner = inner

    @property
    def wait(self) -> float:  # type: ignore[override]  # of the inner handler
        return self._inner.wait

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of the inner handler
        return self._inner.buffered

    @property
    def small(self) -> int:  # type: ignore[override]  # of the inner handler
        return self._inner.small

    @property
    def awaits_brokers(self) -> frozenset[int]:  # type: ignore[override]  # of the inner handler
        return self._inner.awaits_brokers

    def opened(self) -> list[Buffer]:
        return self._inner.opened()

    def end(self, request: "InFlight") -> bool:
        return self._inner.end(request)

    def passes(self, size: int) -> bool:
        return self._inner.passes(size)

    def lose(self, now: float) -> None:
        self._inner.lose(now)


@dataclass(slots=True, eq=False, repr=False)
class Claim:
    """A response, in the form for the client, that is held back for a stage. The stage may replace it."""

    request: "InFlight"
    pieces: list[Buffer] = field(default_factory=list)
    whole: bool = False


class ClientForm(Protocol):
    """Changes a response after all handlers and stages, because its request was changed before them."""

    @property
    def buffered(self) -> int:
        """How many bytes of the response are buffered."""

    def feed(self, pieces: list[Buffer]) -> list[Buffer]:
        """Process the next bytes of the response. Return the client's bytes that are ready now."""


@dataclass(slots=True, eq=False, repr=False)
class InFlight:
    """A request whose response has not arrived completely, or was not sent to the client completely."""

    api_key: int
    version: int
    correlation_id: bytes
    handler: Handler = UNSENT
    sent_at: float = 0.0
    """When the request was sent to the broker, in seconds."""
    answered: bool = False
    """Whether the client's response is complete. The client has it already, or it waits in `out`."""
    claim: Claim | None = None
    form: ClientForm | None = None
    """Changes the response on its way to the client. None for nearly all requests."""
    out: list[Buffer] | None = None
    """Response bytes that wait for earlier responses."""

    def __repr__(self) -> str:
        return f"<InFlight key={self.api_key} v{self.version} {self.handler!r}>"


@dataclass(slots=True, eq=False, repr=False)
class ResponseQueue:
    """The responses of one connection that are still expected or not sent yet."""

    expected: deque[InFlight] = field(default_factory=deque)
    """The requests that the broker has not answered, in the order of its responses."""
    owed: deque[InFlight] = field(default_factory=deque)
    """The requests whose responses the client has not got yet, in the order in which it must get them."""
    resending: int = 0
    """The number of fetches that are being sent again. Later responses wait for them."""
    buffered: int = 0
    """Bytes of responses that are buffered until they are complete, until it is their turn, or until a
    stage releases them."""

    def in_turn(self, request: InFlight, pieces: list[Buffer]) -> list[Buffer]:
        """Return the next bytes of a response if the client gets them now. Otherwise keep them."""
        if request.claim is not None:
            request.claim.pieces += pieces
            self.buffered += sum(map(len, pieces))
            return []
        if request.form is not None:
            buffered = request.form.buffered
            pieces = request.form.feed(pieces)
            self.buffered += request.form.buffered - buffered
        if self.owed and self.owed[0] is request:
            return pieces
        if request.out is None:
            request.out = []
        request.out += pieces
        self.buffered += sum(map(len, pieces))
        return []

    def ended(self, request: InFlight) -> list[Buffer]:
        """Note that a response is complete. Return the bytes of later responses that can be sent now."""
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
        """Let a stage hold a response back. The response in the client's form is kept until `respond`."""
        request.claim = claim = Claim(request)
        return claim

    def keep(self, claim: Claim, pieces: list[Buffer]) -> None:
        """Replace a claimed response by the response that the stage has made."""
        self.buffered += sum(map(len, pieces)) - sum(map(len, claim.pieces))
        claim.pieces = pieces

    def respond(self, claim: Claim) -> list[Buffer]:
        """Release a claimed response. Return the bytes that can go to the client now."""
        request, pieces = claim.request, claim.pieces
        self.keep(claim, [])
        request.claim = None
        return self.in_turn(request, pieces) + self.ended(request)

    def shrink(self) -> None:
        """Release what a burst has left: an empty deque keeps up to 16 free blocks, which are 8 KB."""
        if not (self.expected or self.owed):
            self.expected, self.owed = deque(), deque()

    def clear(self) -> None:
        self.expected.clear()
        self.owed.clear()
        self.buffered = 0


# Fetches


@dataclass(slots=True, eq=False, repr=False)
class ClientFetch:
    """A client's fetch, until the client has its response. If it is sent again, it gets another handler."""

    version: int
    fetch: FetchRequest | None = None
    """The fetch as parsed, with the changes of the stages. None if it was not understood."""
    generation: int = -1
    """`Plans.generation` at the decision on the fetch."""
    direct: bool = True
    """Whether the fetch is the client's own. If not, `ClientSessions` has made it from the client's
    fetch, and makes the client's response from this fetch's response. It then counts the client's request
    and the bytes of the client's response."""
    listed: bool = True
    """Whether the client gets all partitions of the response, not only the partitions with changes. If not,
    `ClientSessions` counts the partitions that the client gets."""
    follows: bool = True
    """Whether new leaders may be asked for partitions that have moved."""
    noted: frozenset[int] = OUT_OF_RANGE
    """The errors that are noted in the response, see `FetchResponseWalk.errors`."""
    attempts: int = 0
    """How many times the fetch was sent again."""
    _listing: Listing | None = None

    @property
    def wait(self) -> float:
        """How long the fetch allows the broker to wait, in seconds."""
        return UNREAD_SECONDS if self.fetch is None else max(self.fetch.max_wait_ms, 0) / 1e3

    @property
    def parsed(self) -> FetchRequest:
        """The fetch. RuntimeError if it was not understood."""
        if self.fetch is None:
            raise RuntimeError("the fetch was not understood")
        return self.fetch

    @property
    def listing(self) -> Listing | None:
        """The partitions of a plain consumer's fetch. Partitions of v4 to v6 are in the layout of v7."""
        if self._listing is None and self.fetch is not None and self.fetch.listing is not None:
            self._listing = self.fetch.listing
            if self.version < SESSION_VERSION:
                self._listing = raise_listing(self._listing)
        return self._listing


class FetchHandler(Handler):
    """The handler of a client's fetch as it was sent to the broker: the innermost one.

    This is what stages know of `ForwardedFetch` and `ExpandedFetch`.
    """

    __slots__ = ("client_fetch", "partitions", "received", "resend", "session_id", "understood", "walk")
    expands: bool = False
    """Whether the client's response differs from the broker's, and is made when that is complete."""
    client_fetch: ClientFetch
    partitions: int
    """How many partitions the frame to the broker lists, or -1 if not counted."""
    session_id: int | None
    """The id of the gateway's session in the fetch: 0 to request a session, None without one."""
    walk: FetchResponseWalk | None
    received: int
    understood: bool
    """Whether all bytes so far match the version of the response."""
    resend: Action | None
    """How the fetch is sent again when this response has ended. The client does not get the response."""

    @property
    def wait(self) -> float:  # type: ignore[override]  # of the fetch
        return self.client_fetch.wait

    @property
    def fetch(self) -> FetchRequest | None:  # type: ignore[override]  # of the client
        return self.client_fetch.fetch


class Around(Handler):
    """A handler that changes the response to a fetch after an inner handler has made it.

    Subclasses write `_kept`, and `feed` and `end`, which call those of the inner handler.
    """

    __slots__ = ("_client_fetch", "_inner", "_innermost")
    _innermost: FetchHandler
    """That of the last sending."""

    def __init__(self, inner: Handler, client_fetch: ClientFetch) -> None:
        self._inner = inner
        self._client_fetch = client_fetch

    def put(self, handler: FetchHandler) -> Handler:
        self._inner, self._innermost = self._inner.put(handler), handler
        return self

    @property
    def wait(self) -> float:  # type: ignore[override]  # of the fetch
        return self._client_fetch.wait

    @property
    def fetch(self) -> FetchRequest | None:  # type: ignore[override]  # of the fetch
        return self._client_fetch.fetch

    @property
    def buffered(self) -> int:  # type: ignore[override]  # of all handlers
        return self._inner.buffered + self._kept

    @property
    def _kept(self) -> int:
        """The bytes that this handler buffers itself, without those of the inner handlers."""
        raise NotImplementedError
