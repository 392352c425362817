"""A client's fetch in flight: what the broker was sent of it, and what has come of the response. Sans-IO."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from proxy.core.in_flight import UNREAD_SECONDS, Handler, InFlight
from proxy.protocol.fetch_layout import Rows
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse
from proxy.protocol.primitives import Buffer
from proxy.protocol.received import Received
from proxy.protocol.versions import raise_listing


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
