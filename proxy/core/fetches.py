"""The fetches of one connection: which go through the session, and what becomes of their responses. Sans-IO.

A fetch passes as it is unless everything speaks for the session; each reason not to is counted by its name.
"""

from collections.abc import Callable
from typing import Final

from proxy.core.eligibility import NATIVE, PASSING_REASONS, Eligibility, SessionLimits
from proxy.core.events import (
    Event,
    FetchKind,
    Passthrough,
    SessionClosed,
    SessionLost,
    SessionMade,
    SessionRefused,
    Tally,
    fetch_kind,
)
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.core.last_seen import LastSeen
from proxy.core.responses import Passing, rewritten_tags
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ApiKey, ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS, SESSION_VERSION, Rows
from proxy.protocol.fetch_request import (
    SESSIONLESS_EPOCH,
    FetchRequest,
    Listing,
    build_fetch_request,
    parse_fetch_request,
)
from proxy.protocol.fetch_response import FetchResponseWalk, response_head, slices
from proxy.protocol.primitives import NO_TAGS, Buffer, ProtocolError
from proxy.session.expand import Expansion, expand
from proxy.session.handler import Action, Delta, FetchSessionHandler, SessionResult
from proxy.session.partitions import PartitionTable
from proxy.session.rotation import Rotation

STREAM_FROM: Final = 1 << 20
"""A client whose last response was this large (bytes) is catching up: its next fetch goes without the
session, so that the response streams."""
_UNUSED_FETCHES: Final = 8
"""After so many fetches in a row that had no use for it a session is closed."""
_UNCACHED_ERRORS: Final = frozenset({ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNSUPPORTED_VERSION})
"""Up to 3.9 a broker puts these in after the session's books are closed: a session forgets them."""
_NOT_UNDERSTOOD: Final = "a response was not understood"
_NOT_SMALLER: Final = "delta not smaller"
_SPARSE: Final = "partitions listed twice or too sparse"


class Fetches:
    """What one connection's fetches need to be remembered for.

    Args:
        sessions: the switch and the slots of the process.
        resolve: where brokers are told to be; None leaves addresses as they are.
        tally: where every fetch is added.
        events: where what is rare is told.
        send: takes an exchange and its frame for the broker.
    """

    __slots__ = (
        "_close_frame",
        "_close_id_at",
        "_closed",
        "_events",
        "_outstanding",
        "_passing",
        "_refused",
        "_repeated",
        "_resolve",
        "_rotation",
        "_send",
        "_sessions",
        "_slot",
        "_tally",
        "_unused",
        "closing",
        "eligibility",
        "handler",
        "version",
    )

    def __init__(
        self,
        *,
        sessions: SessionLimits,
        resolve: Resolve | None,
        tally: Tally,
        events: list[Event],
        send: Callable[[InFlightRequest, bytes], None],
    ) -> None:
        self.handler = FetchSessionHandler()
        self.eligibility = Eligibility(sessions)
        self.closing = False
        """No more fetches come: what is repeated goes without a session."""
        self.version = -1
        """That of the last fetch."""
        self._sessions = sessions
        self._resolve = resolve
        self._tally = tally
        self._events = events
        self._send = send
        self._passing = Passing(resolve)
        self._repeated = LastSeen()
        self._rotation: Rotation | None = None
        self._slot = False
        self._outstanding = False
        self._refused = False
        self._unused = 0
        self._closed = False
        self._close_frame = b""
        self._close_id_at = 0

    # Requests

    def request(self, exchange: InFlightRequest, frame: bytes, body: int, client_id: str, now: float) -> None:
        """Take a fetch of v4 to v18, whole, and send what the broker is to see of it."""
        self.version = exchange.version
        request = self._repeated.request(frame)
        if request is None:
            try:
                request = parse_fetch_request(frame, exchange.version, body)
            except ProtocolError:
                self.count_unread(len(frame), exchange.version, "not understood")
                exchange.disposition = Disposition.PASSED
                self._send(exchange, frame)
                return
            self._repeated.note_request(request)
        exchange.request = request
        kind = fetch_kind(request.session_id, request.session_epoch)
        client = self._tally.client
        client.fetch_request_bytes += len(frame)
        client.fetches[kind] += 1
        client.partitions_requested += request.partitions
        reason = self.eligibility.unfit(request, client_id, self.handler, busy=self._outstanding, now=now)
        if not reason and not self._ask_rotated(exchange, request):
            reason = self._take(exchange, request)
        if reason:
            if self.handler.session_id and self._close_frame and not self._outstanding:
                self._leave_unused(reason, now)
            self._tally.passthrough[reason] += 1
            self._pass(exchange, request, frame)

    def count_unread(self, size: int, version: int, reason: str) -> None:
        """Count a fetch that passes unread: of another version, larger than any, or not understood."""
        self._tally.passthrough[reason] += 1
        for side in (self._tally.client, self._tally.broker):
            side.fetch_request_bytes += size
            if version < SESSION_VERSION:
                side.fetches[FetchKind.SESSIONLESS] += 1

    def close(self, *, silently: bool = False) -> None:
        """Close the session at the broker, (id, -1); one still being asked for is closed when it comes.

        Args:
            silently: nothing can be said to the broker any more.
        """
        self.closing = True
        if (
            not silently
            and self.handler.session_id
            and not (self._outstanding and not self.handler.established)
        ):
            self._close("the connection ends")

    def end(self) -> None:
        """Let go of all: the connection has ended, and with it its session is nobody's."""
        self.handler.drop()
        self._repeated = LastSeen()
        self._rotation = None
        self._close_frame = b""
        self._release()

    def _release(self) -> None:
        if self._slot:
            self._slot = False
            self._sessions.release()

    def _leave_unused(self, reason: str, now: float) -> None:
        """Close a session that the connection has turned away from: others may need its slot."""
        if self.eligibility.off:
            self._close(reason)
        elif reason not in PASSING_REASONS:
            self._unused += 1
            if self._unused >= _UNUSED_FETCHES or reason == NATIVE:
                self._close(reason)
                if reason == _NOT_SMALLER:  # all is busy: what looks worth a session now soon is not again
                    self.eligibility.savings.rest(now)

    def _take(self, exchange: InFlightRequest, request: FetchRequest) -> str:
        """Send a fetch through the session; return why not, if not."""
        handler, listing = self.handler, exchange.listing
        if listing is None:
            return request.not_plain
        table = handler.table
        if table is not None and (
            table.layout is not listing.layout
            or table.isolation_level != request.isolation_level
            or table.bloated
        ):
            handler.renew()
        delta = handler.compare(listing)
        if handler.established:
            return self._ask_incremental(exchange, request, delta)
        self._rotation = None  # the table takes what this fetch lists, and rows may be others' then
        worth = delta is not None and 2 * delta.size < len(listing) * listing.layout.request_entry
        if (delta is None or not handler.apply(listing, delta)) and not handler.learn_listing(
            listing, request.isolation_level
        ):
            return _SPARSE
        if not self.eligibility.savings.promising(worth):
            return "no session yet"
        if not self._slot and not self._sessions.take():
            return "no slot left"
        self._slot = True
        self._ask_full(exchange, request)
        return ""

    def _ask_rotated(self, exchange: InFlightRequest, request: FetchRequest) -> bool:
        """Send a fetch through the session the short way, if the rotation knows it."""
        rotation, handler, frame = self._rotation, self.handler, request.frame
        if rotation is None or rotation.table is not handler.table or rotation.topics is not request.topics:
            return False
        first = rotation.first(frame)
        if first < 0 or not handler.established or (altered := rotation.altered(frame, first)) is None:
            return False
        delta = rotation.delta(frame, altered, handler.ask_incremental())
        if len(delta) >= len(frame):
            return False
        rotation.apply(altered)
        exchange.first = first
        exchange.disposition = Disposition.EXPANDED
        self._ask(exchange, delta, FetchKind.INCREMENTAL, len(altered))
        return True

    def _ask_incremental(self, exchange: InFlightRequest, request: FetchRequest, delta: Delta | None) -> str:
        handler, listing = self.handler, exchange.listing
        if delta is None or listing is None:
            return _SPARSE
        frame = build_fetch_request(
            request,
            listing.layout,
            handler.ask_incremental(),
            delta.topics,
            delta.forgotten_topics,
        )
        if len(frame) >= len(request.frame):
            return _NOT_SMALLER
        if not handler.apply(listing, delta):
            return _SPARSE
        self._rotation = handler.rotation(request, delta)
        exchange.rows = delta.rows
        exchange.disposition = Disposition.EXPANDED
        self._ask(exchange, frame, FetchKind.INCREMENTAL, len(delta.added) + len(delta.altered))
        return ""

    def _ask_full(self, exchange: InFlightRequest, request: FetchRequest) -> None:
        handler, listing = self.handler, exchange.listing
        if handler.table is None or listing is None:
            raise RuntimeError("a session is asked for what the table holds")
        frame = self._full_frame(exchange, request, handler.ask_full())
        exchange.rows = handler.table.locate(listing)
        layout = listing.layout
        template = build_fetch_request(request, layout, (0, SESSIONLESS_EPOCH))
        self._close_frame, self._close_id_at = template, request.body + layout.request_head - 8
        self._ask(exchange, frame, FetchKind.FULL, request.partitions)

    def _full_frame(
        self, exchange: InFlightRequest, request: FetchRequest, session: tuple[int, int]
    ) -> bytes:
        listing = exchange.listing
        if listing is None or listing.layout is request.layout:
            exchange.disposition = Disposition.WALKED
            return request.with_session(*session)
        exchange.disposition = Disposition.EXPANDED
        return build_fetch_request(request, listing.layout, session, listing.topics())

    def _ask(self, exchange: InFlightRequest, frame: bytes, kind: FetchKind, partitions: int) -> None:
        self._unused = 0
        exchange.asks_session = True
        exchange.session_id = self.handler.session_id
        exchange.walk = None
        self._outstanding = True
        self._dispatch(exchange, frame, kind, partitions)

    def _pass(self, exchange: InFlightRequest, request: FetchRequest, frame: bytes) -> None:
        """Send a fetch as it came; one of a client that floods goes without its (0, 0)."""
        session_id, epoch = request.session_id, request.session_epoch
        if self.eligibility.floods and epoch == 0:
            session_id, epoch = 0, SESSIONLESS_EPOCH
            if not self.handler.established and not self._outstanding:
                session_id, self.handler.session_id = self.handler.session_id, 0
            frame = request.with_session(session_id, epoch)
        exchange.disposition = Disposition.WALKED
        exchange.asks_session = False
        exchange.walk = None
        self._dispatch(exchange, frame, fetch_kind(session_id, epoch), request.partitions)

    def _close(self, reason: str) -> None:
        session_id = self.handler.session_id
        if self._outstanding:
            self._closed = True  # the response under way still needs what the session holds
        else:
            self._end_session()
        if not self._close_frame:
            return
        frame, at = self._close_frame, self._close_id_at
        frame = frame[:at] + session_id.to_bytes(4) + frame[at + 4 :]
        version = int.from_bytes(frame[6:8])
        self._events.append(SessionClosed(session_id=session_id, reason=reason))
        exchange = InFlightRequest(ApiKey.FETCH, version, frame[8:12], Disposition.OURS)
        self._dispatch(exchange, frame, FetchKind.CLOSE, 0)

    def _end_session(self) -> None:
        self._closed = False
        self.handler.drop()
        self._release()

    def _dispatch(self, exchange: InFlightRequest, frame: bytes, kind: FetchKind, partitions: int) -> None:
        broker = self._tally.broker
        broker.fetch_request_bytes += len(frame)
        broker.fetches[kind] += 1
        broker.partitions_requested += partitions
        exchange.sent = len(frame)
        exchange.sent_partitions = partitions
        self._send(exchange, frame)

    # Responses

    def receive(self, exchange: InFlightRequest, chunk: bytes, *, last: bool, now: float) -> list[Buffer]:
        """Take the next bytes of a fetch's response; return what the client gets of it now.

        If the response has to be had again, `InFlightRequest.repeat` is the frame to send when it has ended.
        """
        self._tally.broker.fetch_response_bytes += len(chunk)
        whole = last and exchange.received == len(chunk)
        if exchange.disposition is Disposition.EXPANDED:
            self._hold(exchange, chunk, whole=whole)
            pieces = self._expanded(exchange, now) if last else []
        elif whole and exchange.walk is None and self._repeats_response(exchange, chunk):
            pieces = [chunk]
        else:
            pieces = self._passing.receive(exchange, self._walk(exchange), chunk, last=last)
            if last:
                self._walked(exchange, chunk, whole=whole)
        if last:
            self.eligibility.large = exchange.received >= STREAM_FROM
            self._end_of_response(exchange)
        self._tally.client.fetch_response_bytes += sum(map(len, pieces))
        return pieces

    def _walk(self, exchange: InFlightRequest) -> FetchResponseWalk:
        """Return the walk over a response; one of the session is walked as the session's version has it."""
        walk = exchange.walk
        if walk is None:
            asks, version = exchange.asks_session, exchange.version
            isolation = exchange.request.isolation_level if exchange.request is not None else 0
            layout = LAYOUTS[max(version, SESSION_VERSION) if asks else version]
            walk = exchange.walk = FetchResponseWalk(layout, isolation, keep=asks)
        return walk

    def _end_of_response(self, exchange: InFlightRequest) -> None:
        """Close what is to be closed, and give back a slot that nothing needs."""
        if self._closed and not self._outstanding:
            self._end_session()
        elif self.closing and self.handler.established:
            self._close("the connection ends")
        elif not self.handler.session_id and not self._outstanding and exchange.repeat is None:
            self._release()

    def _repeats_response(self, exchange: InFlightRequest, frame: bytes) -> bool:
        """Count a response that says what the one before said; tell whether it does."""
        partitions = -1 if exchange.asks_session else self._repeated.response(frame, exchange.version)
        if partitions < 0:
            return False
        self._tally.client.partitions_answered += partitions
        self._tally.broker.partitions_answered += partitions
        return True

    def _hold(self, exchange: InFlightRequest, chunk: bytes, *, whole: bool) -> None:
        """Keep the next bytes of a response of the session, and walk over them."""
        if not exchange.understood:
            return
        exchange.chunks.append(chunk)
        exchange.held += len(chunk)
        if whole and (known := self._repeated.empty(chunk)) is not None:
            exchange.walk = known
            return
        walk = self._walk(exchange)
        try:
            walk.feed(chunk)
        except ProtocolError:
            exchange.understood = False
            exchange.let_go()
        if whole and exchange.understood:
            self._repeated.note_empty(chunk, walk)

    def _walked(self, exchange: InFlightRequest, chunk: bytes, *, whole: bool) -> None:
        """Note what a walked response told, now that it has passed."""
        walk = self._walk(exchange)
        understood = exchange.understood and walk.done
        if not understood:
            self._events.append(Passthrough(reason=_NOT_UNDERSTOOD))
        if exchange.asks_session:
            self._outstanding = False
            if understood:
                self._asked_full(exchange, walk, self._judge(walk))
            else:
                self.handler.renew(walk.session_id)
        elif whole and understood:
            self._repeated.note_response(chunk, exchange.version, walk)
        self._count_answered(walk, 0 if exchange.repeat is not None else walk.partitions)
        if exchange.repeat is None:
            request = exchange.request
            if request is not None and request.session_epoch == 0 and not exchange.asks_session:
                self.eligibility.given = walk.session_id

    def _judge(self, walk: FetchResponseWalk) -> SessionResult:
        features = self.eligibility.features
        return self.handler.handle(walk, empties=features is None or features.throttles_by_emptying)

    def _asked_full(self, exchange: InFlightRequest, walk: FetchResponseWalk, verdict: SessionResult) -> None:
        """Note what became of a request for a session."""
        handler = self.handler
        if verdict.use in _REPEATS:
            self._have_again(exchange, walk.error_code, verdict)
        elif handler.established:
            self._refused = False
            partitions = handler.table.size if handler.table is not None else 0
            self._events.append(SessionMade(session_id=handler.session_id, partitions=partitions))
            self._note_uncached(walk)
        elif verdict.use is Action.COMPLETE and not verdict.reason:
            self._tally.refusals += 1
            if not self._refused:
                self._refused = True
                self._events.append(SessionRefused())

    def _expanded(self, exchange: InFlightRequest, now: float) -> list[Buffer]:
        """Turn a response of the session, held whole, into what the client would have got without one."""
        self._outstanding = False
        walk, handler = exchange.walk, self.handler
        if walk is None or not exchange.understood or not walk.done:
            handler.renew()
            self._have_again(exchange, 0, SessionResult(Action.REPEAT_SESSIONLESS, _NOT_UNDERSTOOD))
            return []
        full = not handler.epoch
        verdict = self._judge(walk)
        if verdict.use is Action.COMPLETE and verdict.reason:
            verdict = SessionResult(Action.REPEAT_SESSIONLESS, verdict.reason)
        if full:
            self._asked_full(exchange, walk, verdict)
        elif verdict.use in _REPEATS:
            self._have_again(exchange, walk.error_code, verdict)
        if verdict.use in _REPEATS:
            exchange.let_go()
            self._count_answered(walk, 0)
            return []
        pieces, size, answered = self._expansion(exchange, walk, verdict)
        exchange.let_go()
        self._count_answered(walk, answered)
        if not full:
            self._note_uncached(walk)
            request = exchange.request
            asked = len(request.frame) if request is not None else 0
            if self.eligibility.savings.settle(asked - exchange.sent + size - exchange.received, now):
                self._events.append(Passthrough(reason="resting: sessions cost more than they saved"))
        return pieces

    def _expansion(
        self, exchange: InFlightRequest, walk: FetchResponseWalk, verdict: SessionResult
    ) -> tuple[list[Buffer], int, int]:
        """Return the client's response in pieces, its size, and how many partitions it names."""
        layout = LAYOUTS[exchange.version]
        tags = self._tags(exchange, walk)
        table, request = self.handler.table, exchange.request
        if verdict.use is Action.EMPTY or table is None or request is None:
            content = response_head(layout, exchange.correlation_id, walk.throttle_time_ms)
            content += layout.count(0) + tags
            return [len(content).to_bytes(4) + content], 4 + len(content), 0
        rotation = self._rotation
        if rotation is not None:
            rotation.suspect(verdict.rows)
            if exchange.first >= 0:
                told = list(zip(verdict.rows, verdict.entries, strict=True))
                expanded = rotation.expand(
                    exchange.first,
                    told,
                    exchange.chunks,
                    correlation_id=exchange.correlation_id,
                    throttle_time_ms=walk.throttle_time_ms,
                    tags=tags,
                )
                if expanded is not None:
                    return *expanded, request.partitions
        listing, rows = self._placed(exchange, table)
        what = Expansion(
            layout=layout,
            listing=listing,
            table=table,
            rows=rows,
            entries=verdict.entries,
            entry_rows=verdict.rows,
            chunks=exchange.chunks,
            correlation_id=exchange.correlation_id,
            throttle_time_ms=walk.throttle_time_ms,
            tags=tags,
        )
        pieces, size = expand(what)
        return pieces, size, len(listing)

    def _tags(self, exchange: InFlightRequest, walk: FetchResponseWalk) -> bytes:
        """Return the body's tags as the client is to have them, nothing below v12."""
        if walk.tags_at < 0:
            return b""
        if exchange.received - walk.tags_at == len(NO_TAGS):
            return NO_TAGS
        tags = b"".join(slices(exchange.chunks, walk.tags_at, exchange.received))
        return rewritten_tags(tags, walk.tags, exchange.version, self._resolve)

    def _placed(self, exchange: InFlightRequest, table: PartitionTable) -> tuple[Listing, Rows]:
        """Return what a fetch lists and the row of each entry, and have the table know their places."""
        listing, rows = exchange.listing, exchange.rows
        if listing is None:
            raise RuntimeError("only what a plain consumer lists is expanded")
        if rows is None:
            rows = exchange.rows = table.locate(listing)
            table.place(rows)
        return listing, rows

    def _have_again(self, exchange: InFlightRequest, code: int, verdict: SessionResult) -> None:
        """Make the frame that asks once more, in the same place of the client's order.

        A second failure, or a connection that ends, asks without a session: that can't fail for its sake.
        """
        handler, request = self.handler, exchange.request
        if request is None:
            raise RuntimeError("only a fetch that was understood is repeated")
        if code:
            self._tally.session_errors[code] += 1
        self._events.append(
            SessionLost(session_id=exchange.session_id, error_code=code, reason=verdict.reason)
        )
        exchange.attempts += 1
        exchange.received = exchange.passed_on = 0
        exchange.understood = True
        again = exchange.attempts == 1 and not self.closing and handler.table is not None
        if verdict.use is Action.REPEAT_FULL and again:
            exchange.repeat = lambda: self._ask_full(exchange, request)
        else:
            exchange.repeat = lambda: self._pass(exchange, request, request.frame)

    def _note_uncached(self, walk: FetchResponseWalk) -> None:
        for entry in walk.entries:
            if entry.error_code in _UNCACHED_ERRORS:
                self.eligibility.never = "errors that a session forgets"
                self._events.append(Passthrough(reason=self.eligibility.never))
                return

    def _count_answered(self, walk: FetchResponseWalk, partitions: int) -> None:
        """Add what a response told, `partitions` of it to the client; none if it is to be had again."""
        client, broker = self._tally.client, self._tally.broker
        broker.partitions_answered += walk.partitions
        broker.fetch_record_bytes += walk.record_bytes
        client.partitions_answered += partitions
        if partitions:
            client.fetch_record_bytes += walk.record_bytes


_REPEATS: Final = (
    Action.REPEAT_FULL,
    Action.REPEAT_SESSIONLESS,
)  # hashing a member takes a call, comparing none
