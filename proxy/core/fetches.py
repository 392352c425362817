"""The fetches of one connection: which go through the session, and what becomes of their responses. Sans-IO.

A request is decided once, when it comes (`_decide`), and the `Decision` is carried out. The request's
`Disposition` says what is done with its response: it is forwarded while it is walked, or it is kept until it
is whole and then expanded.

A single `Reason` against the session is enough: the fetch is then forwarded as it came, and the reason is
counted.
"""

from collections.abc import Callable
from typing import Final

from proxy.core.broker_versions import BrokerVersions
from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.entry_form import ENTRY_HEAD, entry_form
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
from proxy.core.histograms import Meter
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.core.responses import Forwarding, Refuse, rewritten_tags
from proxy.core.savings import Form
from proxy.core.steady import Steady
from proxy.core.steady_session import SteadySession
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import API_VERSION, REQUEST_CORRELATION_ID, ApiKey, ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS, SESSION_VERSION, Rows
from proxy.protocol.fetch_request import (
    SESSIONLESS_EPOCH,
    FetchRequest,
    Listing,
    build_fetch_request,
    parse_fetch_request,
)
from proxy.protocol.fetch_response import FetchResponseWalk, response_head
from proxy.protocol.primitives import NO_TAGS, Buffer, ProtocolError, TooMany
from proxy.protocol.received import Received
from proxy.protocol.versions import session_layout
from proxy.session.decision import FOR_GOOD, PASSING, Decision, Full, Incremental, Reason, Rotated
from proxy.session.expand import Expansion, expand
from proxy.session.handler import FetchSessionHandler, SessionResult
from proxy.session.order import serves_in_order
from proxy.session.partitions import PartitionTable
from proxy.session.state import Action, SessionState

STREAM_FROM: Final = 1 << 20
"""A client whose last response was this large (bytes) is catching up: its next fetch goes without the
session, so that the response streams (fetch-semantics 7, case 91)."""
_UNUSED_FETCHES: Final = 64
"""After so many fetches in a row for which it saved nothing a session is closed."""
_UNCACHED_ERRORS: Final = frozenset({ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNSUPPORTED_VERSION})
"""Up to 3.9 a broker adds these after the session has noted what it sent: a session does not repeat them.
KIP-110 (76), down-conversion that is off (35): fetch-semantics 2.6, trap 7."""
_NOT_UNDERSTOOD: Final = "a response was not understood"
_UNKNOWN_TAGS: Final = "a response has tags that are not known"
_RESTS: Final = "resting: sessions cost more than they saved"
_CONNECTION_ENDS: Final = "the connection ends"


class Fetches:
    """Decides the fetches of one connection, sends them, and makes the client's responses.

    Args:
        sessions: the switch and the slots of the process.
        resolve: where brokers are told to be; None leaves addresses as they are.
        tally: where every fetch is added.
        events: where what is rare is reported.
        send: sends a request's frame to the broker.
        ask_versions: asks the broker what it can do, once.
        refuse: ends the connection if a response may have addresses that can't be rewritten.
        versions: what it said to other clients; None: nothing.
        steady: is told what fetches look like that may repeat.
        meter: measures the connection.
    """

    __slots__ = (
        "_ask_versions",
        "_close_frame",
        "_close_id_at",
        "_events",
        "_forwarding",
        "_limits",
        "_meter",
        "_refused",
        "_resolve",
        "_send",
        "_slot",
        "_steady",
        "_tally",
        "_unused",
        "closing",
        "decided",
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
        ask_versions: Callable[[], None],
        refuse: Refuse,
        steady: Steady,
        meter: Meter,
        versions: BrokerVersions | None = None,
    ) -> None:
        self.handler = FetchSessionHandler()
        self.eligibility = Eligibility(sessions, versions)
        self.closing = False
        """The client sends no more fetches. One that has to be sent again goes without a session."""
        self.version = -1
        """The version of the last fetch; -1 before the first."""
        self.decided: Reason | None = None
        """Why the last fetch was forwarded as it came. None: it went through the session (even if it was sent
        again without one later), or no fetch has come."""
        self._limits = sessions
        self._resolve = resolve
        self._tally = tally
        self._events = events
        self._send = send
        self._ask_versions = ask_versions
        self._forwarding = Forwarding(resolve, refuse)
        self._steady = steady
        self._meter = meter
        self._slot = False
        self._refused = False
        self._unused = 0
        self._close_frame = b""
        self._close_id_at = 0

    # Requests

    def request(self, request: InFlightRequest, frame: bytes, body: int, client_id: str) -> None:
        """Decide what becomes of a whole fetch of v4 to v18, and send what the broker is to see of it."""
        self.version = request.version
        self._steady.forget_fetch()
        fetch = self._steady.last_seen.request(frame)
        if fetch is None:
            try:
                fetch = parse_fetch_request(frame, request.version, body)
            except ProtocolError as error:
                why = Reason.NOT_READ if isinstance(error, TooMany) else Reason.NOT_UNDERSTOOD
                self.count_unread(len(frame), request.version, why)
                self._send(request, frame)
                return
            self._steady.last_seen.note_request(fetch)
        request.fetch = fetch
        client = self._tally.client
        client.fetch_request_bytes += len(frame)
        client.fetches[fetch_kind(fetch.session_id, fetch.session_epoch)] += 1
        client.partitions_requested += fetch.partitions
        if self.eligibility.observe(fetch):
            self.handler.adopt(self.eligibility.given)
        decision = self._decide(request, fetch, client_id)
        reason = decision if type(decision) is Reason else self._carry_out(request, fetch, decision)
        self.decided = reason
        if reason is not None:
            if reason is _BROKER_NOT_KNOWN:
                self._ask_versions()
            self._leave_unused(reason)
            self._tally.passthrough[reason] += 1
            self._forward(request, fetch, frame)
            # Where there is a table, bytes that pass are added up for the next session.
            if self.handler.table is None and not self.handler.session_id and not self.eligibility.starves:
                self._steady.learn_fetch(fetch, reason)

    def count_unread(self, size: int, version: int, reason: Reason) -> None:
        """Count a fetch that is forwarded unread.

        Its version is not known here, it is too large, there was no room to keep it until it was whole, or it
        was not understood.
        """
        self.decided = reason
        self._steady.forget_fetch()
        self._tally.passthrough[reason] += 1
        for side in (self._tally.client, self._tally.broker):
            side.fetch_request_bytes += size
            # Brokers take a fetch below v7 for (0, -1) (fetch-semantics 1.3).
            if version < SESSION_VERSION:
                side.fetches[FetchKind.SESSIONLESS] += 1

    def close(self, *, silently: bool = False) -> None:
        """Close the session at the broker with (id, -1).

        If the response that makes the session has not come yet, the session is closed when it comes.
        Dead sessions fill slots and evict those of others: fetch-semantics, trap 21 (case 88).

        Args:
            silently: nothing can be sent to the broker any more.
        """
        self.closing = True
        handler = self.handler
        if not silently and handler.session_id and handler.state is not SessionState.REQUESTED:
            self._close(_CONNECTION_ENDS)

    def end(self) -> None:
        """Forget everything: the connection has ended, and nobody can use its session any more."""
        self.handler.drop()
        self._steady.end()
        self._close_frame = b""
        self._release_slot()

    def _decide(self, request: InFlightRequest, fetch: FetchRequest, client_id: str) -> Decision:
        """Say what becomes of a fetch."""
        handler = self.handler
        reason = self.eligibility.against(fetch, client_id, handler)
        if reason is not None:
            return reason
        if (rotated := handler.rotated(fetch.frame, fetch.topics)) is not None:
            return rotated
        listing = request.listing
        if listing is None:
            raise RuntimeError("a fetch without a listing is not a plain consumer's")
        # A fetch of another layout or isolation level needs a new session. The broker would accept v7 to v12,
        # or v13 to v18, in one session, but the table's rows have one layout (trap 27). Its entries are valid
        # for one isolation level: up to 2.0 read_uncommitted has LSO -1 (fetch-semantics 6.2, case 98).
        if not handler.fits(listing, fetch.isolation_level):
            handler.renew()
        savings = self.eligibility.savings
        if handler.has_session:
            incremental = handler.incremental(fetch, listing)
            if incremental is None:
                return Reason.TOO_SPARSE
            form = savings.weigh(fetch, listing, incremental.delta, len(incremental.frame))
            if form is Form.DELTA:
                return incremental
            if form is Form.WIRE:
                return Reason.NOT_SMALLER
            return Full() if handler.learn_listing(listing, fetch.isolation_level) else Reason.TOO_SPARSE
        delta = handler.learn(listing, fetch.isolation_level)
        if handler.table is None:
            return Reason.TOO_SPARSE
        known = self.eligibility.features_for(fetch) is not None
        if not savings.promises(fetch, listing, delta, asks=not known):
            return Reason.NO_SESSION_YET
        # Only now, for it costs 500 bytes: most connections that do not ask for versions need no session.
        if not known:
            return _BROKER_NOT_KNOWN if self._slot or self._limits.left else Reason.NO_SLOT
        return Full()

    def _carry_out(
        self, request: InFlightRequest, fetch: FetchRequest, decision: Full | Incremental | Rotated
    ) -> Reason | None:
        """Send a fetch through the session; return why that can't be done, if so."""
        if type(decision) is Full:
            if not self._slot and not self._limits.reserve():
                return Reason.NO_SLOT
            self._slot = True
            self._ask_full(request, fetch)
            return None
        if not self.handler.ask(fetch, decision):
            return Reason.TOO_SPARSE
        if type(decision) is Rotated:
            request.first = decision.first
            changed = len(decision.altered)
        else:
            request.rows = decision.delta.rows
            changed = len(decision.delta.added) + len(decision.delta.altered)
        request.disposition = _EXPANDED
        self._dispatch(request, decision.frame, _INCREMENTAL, changed, through_session=True)
        return None

    def _ask_full(self, request: InFlightRequest, fetch: FetchRequest) -> None:
        """Ask for a session with a full fetch; what it lists is in the table."""
        table, listing = self.handler.table, request.listing
        if table is None or listing is None:
            raise RuntimeError("a session is asked for what the table holds")
        session = self.handler.ask_full()
        if listing.layout is fetch.layout:
            request.disposition = Disposition.WALKED
            frame = fetch.with_session(*session)
        else:  # v4 to v6 go as v7, the only raise that changes nothing else (fetch-semantics, traps 3 and 4)
            request.disposition = Disposition.EXPANDED
            frame = build_fetch_request(fetch, listing.layout, session, listing.topics())
        request.rows = table.locate(listing)
        template = build_fetch_request(fetch, listing.layout, (0, SESSIONLESS_EPOCH))
        self._close_frame, self._close_id_at = template, fetch.body + listing.layout.request_session
        self._dispatch(request, frame, FetchKind.FULL, fetch.partitions, through_session=True)

    def _forward(self, request: InFlightRequest, fetch: FetchRequest, frame: bytes) -> None:
        """Send a fetch as it came; one of a client that floods goes without its (0, 0)."""
        session_id, epoch = fetch.session_id, fetch.session_epoch
        # (0, 0) each time would fill the broker's slots (fetch-semantics 6.7, case 89).
        if self.eligibility.floods and epoch == 0:
            session_id, epoch = 0, SESSIONLESS_EPOCH
            # (id, -1): this fetch also closes the session that the client's last (0, 0) made
            # (fetch-semantics 2.2).
            if self.handler.state is SessionState.NONE:
                session_id, self.handler.session_id = self.handler.session_id, 0
            frame = fetch.with_session(session_id, epoch)
        request.disposition = Disposition.WALKED
        self._dispatch(request, frame, fetch_kind(session_id, epoch), fetch.partitions)

    def _dispatch(
        self,
        request: InFlightRequest,
        frame: bytes,
        kind: FetchKind,
        partitions: int,
        *,
        through_session: bool = False,
    ) -> None:
        """Send a frame to the broker, and count it."""
        if through_session:
            request.session_id = self.handler.session_id
        request.through_session = through_session
        request.walk = None
        broker = self._tally.broker
        broker.fetch_request_bytes += len(frame)
        broker.fetches[kind] += 1
        broker.partitions_requested += partitions
        request.sent = len(frame)
        request.sent_partitions = partitions
        self._send(request, frame)

    # The session's end

    def _leave_unused(self, reason: Reason) -> None:
        """Close a session that saves the connection's fetches nothing: others may need its slot."""
        handler = self.handler
        if not (handler.session_id and self._close_frame) or handler.outstanding or reason in PASSING:
            return
        self._unused += 1
        # Slots are shared by all clients of the broker (fetch-semantics, trap 22).
        if self._unused >= _UNUSED_FETCHES:
            self.eligibility.savings.failed()
            self._close(reason)
        elif reason in FOR_GOOD or reason is Reason.NATIVE:
            self._close(reason)

    def _close(self, reason: str) -> None:
        session_id = self.handler.close()
        if not self.handler.outstanding:
            self._release_slot()
        if not self._close_frame:
            return
        frame, at = self._close_frame, self._close_id_at
        frame = frame[:at] + session_id.to_bytes(4) + frame[at + 4 :]
        self.eligibility.savings.closed(len(frame))
        version = int.from_bytes(frame[API_VERSION])
        self._events.append(SessionClosed(session_id=session_id, reason=reason))
        request = InFlightRequest(ApiKey.FETCH, version, frame[REQUEST_CORRELATION_ID], Disposition.OURS)
        self._dispatch(request, frame, FetchKind.CLOSE, 0)

    def _release_slot(self) -> None:
        if self._slot:
            self._slot = False
            self._limits.release()

    # Responses

    def receive(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Take the next bytes of a fetch's response; return what the client gets of it now.

        If the fetch has to be sent again, `InFlightRequest.resend` does so when the response has ended.
        """
        self._tally.broker.fetch_response_bytes += len(chunk)
        whole = last and request.received == len(chunk)
        if request.disposition is _EXPANDED:
            self._keep(request, chunk, whole=whole)
            pieces = self._expanded(request) if last else []
        elif whole and not request.through_session and self._repeats_response(request, chunk):
            pieces = [chunk]
        else:
            walk = self._walk(request)
            pieces = self._forwarding.receive(request, walk, chunk, last=last)
            if last:
                self._forwarded(request, walk, chunk, whole=whole)
            elif request.through_session and request.understood:
                self.handler.take(walk)
        if last:
            # The client is catching up: its next response is to stream (case 91).
            self.eligibility.large = request.received >= STREAM_FROM
            if self.eligibility.starves and request.disposition is _WALKED:
                self._note_starving(request)
            self._end_of_response(request)
        self._tally.client.fetch_response_bytes += sum(map(len, pieces))
        return pieces

    def _walk(self, request: InFlightRequest) -> FetchResponseWalk:
        """Return the walk over a response, in the layout of the version that was sent to the broker."""
        walk = request.walk
        if walk is None:
            through_session, version = request.through_session, request.version
            isolation = request.fetch.isolation_level if request.fetch is not None else 0
            layout = session_layout(version) if through_session else LAYOUTS[version]
            walk = request.walk = FetchResponseWalk(layout, isolation, keep=through_session)
        return walk

    def _end_of_response(self, request: InFlightRequest) -> None:
        """Close what is to be closed, and release a slot that nothing needs."""
        handler = self.handler
        if handler.state is _CLOSED:
            handler.drop()
            self._release_slot()
        elif self.closing and handler.has_session and handler.state is not SessionState.CLOSING:
            self._close(_CONNECTION_ENDS)
        elif not handler.session_id and not handler.outstanding and request.resend is None:
            self._release_slot()

    # Responses that are forwarded

    def _repeats_response(self, request: InFlightRequest, frame: bytes) -> bool:
        """Whether a response equals the previous one. If so, it is counted as that one was."""
        partitions = self._steady.last_seen.response(frame, request.version)
        if partitions < 0:
            return False
        self._tally.client.partitions_answered += partitions
        self._tally.broker.partitions_answered += partitions
        if self.handler.table is not None:
            self.eligibility.savings.passed(request.sent + request.received, 0)
        return True

    def _forwarded(
        self, request: InFlightRequest, walk: FetchResponseWalk, chunk: bytes, *, whole: bool
    ) -> None:
        """Note what a forwarded response says, after its last byte."""
        understood = request.understood and walk.done
        if not understood:
            self._events.append(Passthrough(reason=_NOT_UNDERSTOOD))
        if not request.through_session:
            if self.handler.table is not None:
                self.eligibility.savings.passed(request.sent + request.received, walk.with_records)
            if whole and understood:
                self._steady.last_seen.note_response(chunk, request.version, walk)
                if request.fetch is not None:
                    self._steady.learn_response(request.fetch, chunk, walk)
            if request.fetch is not None and request.fetch.session_epoch == 0:
                # A (0, 0) of the client's own. Its next fetch shows whether it uses the session (case 89).
                # A negative id is a refusal, as 0 is.
                self.eligibility.given = max(walk.session_id, 0)
        elif understood:
            self._session_answered(request, walk, self._judge(walk))
            if walk.tagged:
                self._leave_tags()
        else:
            self.handler.renew(walk.session_id)
        self._count_partitions(walk, 0 if request.resend is not None else walk.partitions)

    # Responses of the session

    def _keep(self, request: InFlightRequest, chunk: bytes, *, whole: bool) -> None:
        """Keep the next bytes of a response of the session, and walk over them."""
        if not request.understood:
            return
        frame = request.received_frame
        if frame is None:
            frame = request.received_frame = Received()
        frame.append(chunk)
        request.buffered += len(chunk)
        if whole and (known := self._steady.last_seen.empty(chunk)) is not None:
            request.walk = known
            return
        walk = self._walk(request)
        try:
            walk.feed(chunk)
        except ProtocolError:
            request.understood = False
            request.drop_chunks()
            return
        if not whole:
            request.cut_entries(self.handler.take(walk))
        if whole and request.understood:
            self._steady.last_seen.note_empty(chunk, walk)

    def _expanded(self, request: InFlightRequest) -> list[Buffer]:
        """Turn a whole response of the session into what the client would have got without one."""
        walk, handler = request.walk, self.handler
        self._steady.session = None  # until it is armed anew: what it relies on may change here
        full = handler.state is _REQUESTED
        if walk is None or not request.understood or not walk.done:
            handler.renew(walk.session_id if full and walk is not None else 0)
            self._plan_resend(request, 0, SessionResult(Action.RESEND_SESSIONLESS, _NOT_UNDERSTOOD))
            return []
        if walk.tagged:
            # An expanded response would not have them (law 2), so the client gets one that goes as it came.
            self._leave_tags()
            handler.renew()
            self._plan_resend(request, 0, SessionResult(Action.RESEND_SESSIONLESS, _UNKNOWN_TAGS))
            return []
        result = self._judge(walk)
        # v4 to v6: a v7 response of other partitions can't go on as it is (fetch-semantics, trap 4).
        if result.action is _COMPLETE_NO_SESSION:
            result.action = Action.RESEND_SESSIONLESS
        if full:
            self._session_answered(request, walk, result)
        elif result.action is not _EXPAND and result.action in _RESENDS:
            self._plan_resend(request, walk.error_code, result)
        elif self._limits.keep_order and result.action is _EXPAND:
            self._keep_order(request, walk, result)
        if request.resend is not None:
            request.drop_chunks()
            self._count_partitions(walk, 0)
            return []
        pieces, size, partitions = self._expansion(request, walk, result)
        self._settle(request, walk, size, full=full)
        if not full and result.errors:
            self._note_uncached(result)
        if not full and not self._unused:  # where it is not 0, what is saved has to set it to 0
            self._arm(request, walk, result)
        request.drop_chunks()
        self._count_partitions(walk, partitions)
        return pieces

    def _settle(self, request: InFlightRequest, walk: FetchResponseWalk, size: int, *, full: bool) -> None:
        """Note what an exchange through the session saved.

        Args:
            request: the fetch.
            walk: the session's response.
            size: of the client's response.
            full: the fetch asked for the session.
        """
        savings, fetch = self.eligibility.savings, request.fetch
        if fetch is None:
            return
        spared = size - request.received
        saved = len(fetch.frame) - request.sent + spared
        if full:
            rests = savings.settle(saved)
        else:
            rests = savings.answered(saved, walk.partitions)
            if request.first < 0 and walk.partitions:
                savings.tore(
                    fetch.partitions, walk.partitions, spared, fetch.layout, session_layout(request.version)
                )
            if saved > 0:
                self._unused = 0
        if rests:
            self._events.append(Passthrough(reason=_RESTS))

    def _note_lost(self, request: InFlightRequest) -> None:
        """Note that a fetch has to be sent again, and its response was for nothing."""
        if self.eligibility.savings.settle(-request.sent - request.received):
            self._events.append(Passthrough(reason=_RESTS))

    def _keep_order(self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult) -> None:
        """Have a fetch sent again without the session if its own order would have served others.

        Nothing is lost with the response: the fetch still has the offsets of before. The session goes on.
        """
        table, fetch = self.handler.table, request.fetch
        if table is None or fetch is None:
            return
        _, rows = self._located(request, table)
        if serves_in_order(fetch, table, rows, walk, result):
            return
        self._tally.passthrough[Reason.KEEP_ORDER] += 1
        self.eligibility.starves = True
        self._note_lost(request)
        request.attempts += 1
        request.received = request.forwarded = 0
        request.resend = lambda: self._forward(request, fetch, fetch.frame)

    def _note_starving(self, request: InFlightRequest) -> None:
        """Note whether a response without the session leaves room, so that the next one may go through it."""
        records = request.walk.record_bytes if request.walk is not None else 0
        self.eligibility.starves = request.fetch is not None and 2 * records >= request.fetch.max_bytes

    def _arm(self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult) -> None:
        """Let the next fetches take the steady path, if this one only rotated and little has come."""
        fetch, form, frame = request.fetch, self._steady.last_seen.form, request.received_frame
        rotation = self.handler.rotation
        if (
            fetch is None
            or form is None
            or frame is None
            or rotation is None
            or request.first < 0
            or result.action is not _EXPAND
        ):
            return
        # The steady path does not ask again: only the core changes these. After a large response it decides.
        if self.eligibility.hinders() or request.received >= STREAM_FROM:
            return
        features = self.eligibility.features
        # Another fetch may have come and been forwarded meanwhile; some brokers' entries have to be read for
        # their leader epochs (see `Eligibility.against`).
        if self.decided is not None or features is None or not features.keeps_leader_epoch:
            return
        if (
            form.topics is not fetch.topics
            or rotation.topics is not form.topics
            or fetch.session_epoch != SESSIONLESS_EPOCH
            or fetch.session_id
        ):
            return
        self._steady.session = session = SteadySession(
            form,
            self.handler,
            rotation,
            self.eligibility,
            self._limits,
            self._steady.last_seen,
        )
        if len(result.rows) == 1 and not walk.throttle_time_ms:
            head = b"".join(frame.span(0, min(request.received, ENTRY_HEAD)))
            session.expects(entry_form(fetch, head, walk), result.rows[0])

    def _judge(self, walk: FetchResponseWalk) -> SessionResult:
        features = self.eligibility.features
        # Kafka 1.1 delays the whole response instead: an empty one says that nothing is new
        # (fetch-semantics 2.8 and 6.3).
        return self.handler.handle(walk, empties=features is None or features.throttles_by_emptying)

    def _session_answered(
        self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult
    ) -> None:
        """Note whether a fetch that asked for a session got one; plan to send it again if it failed."""
        handler = self.handler
        if result.action in _RESENDS:
            self._plan_resend(request, walk.error_code, result)
        elif handler.has_session:
            self._refused = False
            partitions = handler.table.size if handler.table is not None else 0
            self._events.append(SessionMade(session_id=handler.session_id, partitions=partitions))
            self._note_uncached(result)
        elif result.action is Action.COMPLETE:
            # Id 0: no slot. It is asked for each time, as Java does, and reported once
            # (fetch-semantics 2.7, trap 22; case 95).
            self._tally.refusals += 1
            if not self._refused:
                self._refused = True
                self._events.append(SessionRefused())

    def _expansion(
        self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult
    ) -> tuple[list[Buffer], int, int]:
        """Return the client's response in pieces, its size, and how many partitions it names."""
        layout = LAYOUTS[request.version]
        tags = self._tags(request, walk)
        table, rotation = self.handler.table, self.handler.rotation
        # Sarama and Java accept a response without any entry if throttle_time_ms is not 0. They accept no
        # response in which only some entries are missing (fetch-semantics, trap 13; cases 81 and 97).
        if result.action is _EMPTY or table is None or request.fetch is None:
            content = response_head(layout, request.correlation_id, walk.throttle_time_ms)
            content += layout.count(0) + tags
            return [len(content).to_bytes(4) + content], 4 + len(content), 0
        received = request.received_frame or Received()
        starved = _starved(request.fetch, table, walk, result) if table.behind else []
        if rotation is not None:
            rotation.suspect(result.news)
            if request.first >= 0 and not starved:
                expanded = rotation.expand(
                    request.first,
                    list(zip(result.rows, result.entries, strict=True)),
                    received,
                    entry_bytes=result.size,
                    correlation_id=request.correlation_id,
                    throttle_time_ms=walk.throttle_time_ms,
                    tags=tags,
                )
                return *expanded, request.fetch.partitions
        listing, rows = self._located(request, table)
        what = Expansion(
            layout=layout,
            listing=listing,
            table=table,
            rows=rows,
            entries=result.entries,
            entry_rows=result.rows,
            entry_bytes=result.size,
            late=result.late,
            starved=starved,
            received=received,
            correlation_id=request.correlation_id,
            throttle_time_ms=walk.throttle_time_ms,
            tags=tags,
        )
        pieces, size = expand(what)
        return pieces, size, len(listing)

    def _tags(self, request: InFlightRequest, walk: FetchResponseWalk) -> bytes:
        """Return the body's tags as the client is to have them, nothing below v12."""
        if walk.tags_at < 0:
            return b""
        if request.received - walk.tags_at == len(NO_TAGS):
            return NO_TAGS
        frame = request.received_frame
        tags = b"".join(frame.span(walk.tags_at, request.received)) if frame is not None else NO_TAGS
        return rewritten_tags(tags, walk.tags, request.version, self._resolve)

    def _located(self, request: InFlightRequest, table: PartitionTable) -> tuple[Listing, Rows]:
        """Return what a fetch lists and the row of each entry, and have the table know their places."""
        listing, rows = request.listing, request.rows
        if listing is None:
            raise RuntimeError("only what a plain consumer lists is expanded")
        if rows is None:
            rows = request.rows = table.locate(listing)
            table.place(rows)
        return listing, rows

    def _plan_resend(self, request: InFlightRequest, code: int, result: SessionResult) -> None:
        """Have the fetch sent once more, in the same place of the client's order.

        After a second failure, or when the connection ends, it is sent without a session: then no session
        error can come.
        """
        handler, fetch = self.handler, request.fetch
        if fetch is None:
            raise RuntimeError("only a fetch that was understood is sent again")
        if code:
            self._tally.session_errors[code] += 1
        self._events.append(SessionLost(session_id=request.session_id, error_code=code, reason=result.reason))
        self._note_lost(request)
        request.attempts += 1
        request.received = request.forwarded = 0
        request.understood = True
        # fetch-semantics 6.13, step 4; trap 6 (case 71). The fetch keeps its place (trap 17, case 84).
        through_session = request.attempts == 1 and not self.closing and handler.table is not None
        if result.action is Action.RESEND_FULL and through_session:
            request.resend = lambda: self._ask_full(request, fetch)
        else:
            request.resend = lambda: self._forward(request, fetch, fetch.frame)

    def _note_uncached(self, result: SessionResult) -> None:
        # A session may leave out a partition that has such an error, so this client gets no session
        # (fetch-semantics, trap 7).
        if not _UNCACHED_ERRORS.isdisjoint(result.errors):
            self.eligibility.never = Reason.UNCACHED_ERRORS
            self._events.append(Passthrough(reason=Reason.UNCACHED_ERRORS))

    def _leave_tags(self) -> None:
        """Have no session any more: this broker's responses have tags that belong to no entry of them."""
        if self.eligibility.never is None:
            self.eligibility.never = Reason.TAGS
            self._events.append(Passthrough(reason=Reason.TAGS))

    def _count_partitions(self, walk: FetchResponseWalk, partitions: int) -> None:
        """Count the partitions and record bytes of a response.

        Args:
            walk: the response.
            partitions: how many the client gets; 0 if the fetch is sent again.
        """
        client, broker = self._tally.client, self._tally.broker
        broker.partitions_answered += walk.partitions
        broker.fetch_record_bytes += walk.record_bytes
        client.partitions_answered += partitions
        if partitions:
            client.fetch_record_bytes += walk.record_bytes


def _starved(
    fetch: FetchRequest, table: PartitionTable, walk: FetchResponseWalk, result: SessionResult
) -> list[int]:
    """Return the rows of which a read_committed fetch read nothing because its first batch did not fit.

    The broker left them out, although they have more below their last stable offset. With nothing left of
    max_bytes a broker reads nothing at all, and that is not the same (fetch-semantics 1.4).
    """
    if not 0 < walk.record_bytes < fetch.max_bytes:
        return []
    return sorted(table.behind.difference(result.rows))


# A member of an enum is looked up slowly, and hashing one takes a call: what every fetch needs are globals.
_BROKER_NOT_KNOWN: Final = Reason.BROKER_NOT_KNOWN
_EXPANDED: Final = Disposition.EXPANDED
_WALKED: Final = Disposition.WALKED
_INCREMENTAL: Final = FetchKind.INCREMENTAL
_REQUESTED: Final = SessionState.REQUESTED
_CLOSED: Final = SessionState.CLOSED
_EXPAND: Final = Action.EXPAND
_EMPTY: Final = Action.EMPTY
_COMPLETE_NO_SESSION: Final = Action.COMPLETE_NO_SESSION
_RESENDS: Final = (Action.RESEND_FULL, Action.RESEND_SESSIONLESS)
