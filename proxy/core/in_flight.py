"""The requests that a broker has not answered yet, and the order in which responses leave. Sans-IO.

What becomes of a response is decided when the request is seen (`Disposition`). A broker responds in order, so
each request is in two queues of `ResponseQueue`. `expected` has the order of the broker: its next response is
for the first request. `owed` has the order in which the client gets responses. The two orders differ only
while a fetch is sent again: later responses then wait for it (fetch-semantics, traps 16 and 17).
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from proxy.fetch_manager.contexts import FetchContext, IncrementalFetchContext
from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse
from proxy.protocol.primitives import Buffer
from proxy.protocol.produce import Produced
from proxy.protocol.received import Received
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


class Disposition(Enum):
    """What becomes of a response."""

    PASSED = "passed"
    """Every byte goes on as it comes."""
    REWRITTEN = "rewritten"
    """It is kept until it is whole, for it carries addresses or version ranges."""
    WALKED = "walked"
    """A fetch response that goes on while it is walked."""
    EXPANDED = "expanded"
    """A fetch response that is kept until it is whole, then completed from the session."""
    OURS = "ours"
    """The gateway asked; the client does not see it."""


class InFlightRequest:
    """A request that the broker has not answered yet, or whose response has not left for the client yet."""

    __slots__ = (
        "_listing",
        "answered",
        "api_key",
        "asked_wait",
        "attempts",
        "awaits_brokers",
        "buffered",
        "checks",
        "chunks",
        "correlation_id",
        "cut",
        "disposition",
        "fetch",
        "first",
        "forwarded",
        "held",
        "kept",
        "out",
        "produced",
        "received",
        "received_frame",
        "reply",
        "resend",
        "rows",
        "sent",
        "sent_at",
        "sent_partitions",
        "served",
        "session_id",
        "through_session",
        "understood",
        "version",
        "walk",
    )

    def __init__(self, api_key: int, version: int, correlation_id: bytes, disposition: Disposition) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.disposition = disposition
        self.answered = False
        """The client has all of the response, or it waits in `out`."""
        self.awaits_brokers: frozenset[int] = frozenset()
        """The response is whole, and waits for the listeners of these brokers, which it names."""
        self.out: list[Buffer] = []
        """Response bytes that wait for earlier responses to go first."""
        self.chunks: list[bytes] = []
        """The frame as received, as far as it is buffered."""
        self.received_frame: Received | None = None
        """The frame as received, if it is to be expanded."""
        self.cut = 0
        """How many entries of it were looked up."""
        self.buffered = 0
        """Bytes that `chunks`, `received_frame` and `out` keep."""
        self.received = 0
        """Bytes of the frame that have come."""
        self.forwarded = 0
        """Bytes of a walked frame that have gone to the client."""
        self.fetch: FetchRequest | None = None
        """The parsed request; None if it is no fetch, or a fetch that was not understood."""
        self._listing: Listing | None = None
        self.rows: Rows | None = None
        """The session's row of each entry of `listing`; None if they were not looked up."""
        self.first = -1
        """The session's row of the first entry of a fetch that the session's rotation knows, else -1."""
        self.through_session = False
        """It goes through the session: full with epoch 0, or incremental."""
        self.session_id = 0
        """The session that it named, 0 for none."""
        self.checks = False
        """The gateway asks, to see what the session's next response must name."""
        self.understood = True
        """The response's bytes so far could be read as its version says."""
        self.walk: FetchResponseWalk | None = None
        self.sent = 0
        """Size of the frame that went to the broker."""
        self.sent_at = 0.0
        """When it went there, in seconds."""
        self.asked_wait = 0.0
        """How many seconds it lets the broker wait, if it is no fetch; see `wait`."""
        self.sent_partitions = -1
        """How many partitions that frame lists; -1: that was not looked for."""
        self.attempts = 0
        """How often it was sent again."""
        self.served: FetchContext | None = None
        """Makes the response to a client that has its session with the gateway, of the full response."""
        self.kept: list[Buffer] = []
        """What the client is to get of a response, until it is known whether it is held."""
        self.produced: Produced | None = None
        """An idempotent produce, of which a part may be repeated."""
        self.held = False
        """The response is whole, and waits for what a new leader says (`proxy.core.follow`)."""
        self.reply: Callable[[bytes | None, float], None] | None = None
        """Takes the response to a request of the gateway's own, and the time; None: it won't come."""
        self.resend: Callable[[], None] | None = None
        """Sends the fetch once more. It is called when the current response, which the client does not get,
        has ended."""

    @property
    def listing(self) -> Listing | None:
        """What a plain consumer's fetch lists, as the session has it (v4 to v6 as v7)."""
        if self._listing is None and self.fetch is not None and self.fetch.listing is not None:
            self._listing = raise_listing(self.fetch.listing)
        return self._listing

    @property
    def wait(self) -> float:
        """How many seconds its client lets the broker wait before it responds."""
        if self.fetch is not None:
            return max(self.fetch.max_wait_ms, 0) / 1e3
        unread = self.api_key == ApiKey.FETCH and self.disposition is not Disposition.OURS
        return UNREAD_SECONDS if unread else self.asked_wait

    @property
    def is_incremental(self) -> bool:
        """Whether the client gets an incremental response of its session with the gateway."""
        return isinstance(self.served, IncrementalFetchContext)

    def drop_chunks(self) -> None:
        """Keep no more of the frame."""
        self.chunks = []
        self.received_frame = None
        self.cut = 0
        self.buffered = 0

    def cut_entries(self, entries: Sequence[PartitionResponse]) -> None:
        """Look up the bytes of the entries that have come whole, so that the last byte has less to do."""
        frame = self.received_frame
        while (
            frame is not None
            and self.cut < len(entries)
            and (entry := entries[self.cut]).end <= frame.settled
        ):
            entry.views = frame.span(entry.start, entry.end)
            self.cut += 1

    def __repr__(self) -> str:
        state = f"{self.disposition.value} received={self.received}"
        return f"<InFlightRequest key={self.api_key} v{self.version} {state}>"


class ResponseQueue:
    """The responses of one connection that are still to come or to leave."""

    __slots__ = ("buffered", "expected", "owed", "resending")

    def __init__(self) -> None:
        self.expected: deque[InFlightRequest] = deque()
        """What the broker will answer, in its order."""
        self.owed: deque[InFlightRequest] = deque()
        """What the client will be answered, in its order."""
        self.resending = 0
        """Fetches that are sent once more; what follows them waits."""
        self.buffered = 0
        """Bytes of responses kept until they are whole or their turn comes."""

    def in_turn(self, request: InFlightRequest, pieces: list[Buffer]) -> list[Buffer]:
        """Return the next bytes of a response if it is its turn to leave; keep them otherwise."""
        if self.owed and self.owed[0] is request:
            return pieces
        request.out += pieces
        self.buffered += sum(map(len, pieces))
        return []

    def ended(self, request: InFlightRequest) -> list[Buffer]:
        """Note that a response is whole; return what of later ones has waited for it."""
        request.answered = True
        owed = self.owed
        waited: list[Buffer] = []
        while owed and owed[0].answered:
            owed.popleft()
            if owed and owed[0].out:
                waited += owed[0].out
                self.buffered -= sum(map(len, owed[0].out))
                owed[0].out = []
        return waited

    def clear(self) -> None:
        """Expect, owe and keep nothing any more."""
        self.expected.clear()
        self.owed.clear()
        self.buffered = 0
