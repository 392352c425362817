"""The responses to the fetches of one connection, as the client gets them. Sans-IO.

A response is forwarded while it is walked, or, if its fetch went through the session, it is kept until it is
whole and then expanded. What it says of the session is judged by the session's handler. If it is of no use,
the fetch is sent again, and the client gets nothing of it.
"""

from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import SessionLimits
from proxy.core.entry_form import ENTRY_HEAD, entry_form
from proxy.core.events import Passthrough, SessionLost, SessionMade, SessionRefused
from proxy.core.fetches import Fetches
from proxy.core.full_response import full_response, located
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.core.leaders import Leaders
from proxy.core.responses import Forwarding
from proxy.core.steady_session import SteadySession
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError
from proxy.protocol.received import Received
from proxy.protocol.versions import session_layout
from proxy.session.decision import Reason
from proxy.session.handler import SessionResult
from proxy.session.order import serves_in_order
from proxy.session.state import Action, Loss, SessionState

STREAM_FROM: Final = 1 << 20
"""A client whose last response was this large (bytes) is catching up: its next fetch goes without the
session, so that the response streams (fetch-semantics 7, case 91)."""
_UNCACHED_ERRORS: Final = frozenset({ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNSUPPORTED_VERSION})
"""Up to 3.9 a broker adds these after the session has noted what it sent: a session does not repeat them.
KIP-110 (76), down-conversion that is off (35): fetch-semantics 2.6, trap 7."""
_NOT_UNDERSTOOD: Final = "a response was not understood"
_UNKNOWN_TAGS: Final = "a response has tags that are not known"
_RESTS: Final = "resting: sessions cost more than they saved"


class FetchResponses:
    """Makes the client's responses to the fetches of one connection.

    Args:
        state: that of the connection.
        fetches: what was sent; it sends a fetch again.
        sessions: the switch of the process.
        resolve: where brokers are told to be; None leaves addresses as they are.
        leaders: learns the newer leaders that responses name.
    """

    __slots__ = (
        "_eligibility",
        "_events",
        "_fetches",
        "_forwarding",
        "_handler",
        "_leaders",
        "_limits",
        "_refused",
        "_resolve",
        "_state",
        "_steady",
        "_tally",
    )

    def __init__(
        self,
        state: ConnectionState,
        fetches: Fetches,
        sessions: SessionLimits,
        resolve: Resolve | None,
        leaders: Leaders,
    ) -> None:
        self._state, self._tally, self._events = state, state.tally, state.events
        self._steady = state.steady
        self._fetches = fetches
        self._handler, self._eligibility = fetches.handler, fetches.eligibility
        self._limits = sessions
        self._resolve = resolve
        self._leaders = leaders
        self._forwarding = Forwarding(resolve, state.refuse_response)
        self._refused = False
        """That the broker gave no session was reported."""

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
                self._handler.take(walk)
        if last:
            # The client is catching up: its next response is to stream (case 91).
            self._eligibility.large = request.received >= STREAM_FROM
            if request.walk is not None and request.walk.leaders:
                self._leaders.learn(request.walk.leaders)
            if self._eligibility.starves and request.disposition is _WALKED:
                self._note_starving(request)
            self._fetches.end_of_response(request)
        if request.served is None:
            self._tally.client.fetch_response_bytes += sum(map(len, pieces))
        return pieces

    def _walk(self, request: InFlightRequest) -> FetchResponseWalk:
        """Return the walk over a response, in the layout of the version that was sent to the broker."""
        walk = request.walk
        if walk is None:
            through_session, version = request.through_session, request.version
            isolation = request.fetch.isolation_level if request.fetch is not None else 0
            layout = session_layout(version) if through_session else LAYOUTS[version]
            walk = request.walk = FetchResponseWalk(layout, isolation, keep=through_session or request.checks)
        return walk

    def receive_check(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of what was asked for to check the session."""
        walk = self._walk(request)
        try:
            walk.feed(chunk)
        except ProtocolError:
            request.understood = False
        if last:
            self._eligibility.savings.settle(-request.received)
            self._count_partitions(walk, 0)
            if request.understood and walk.done and not walk.error_code:
                self._handler.check(walk)

    # Responses that are forwarded

    def _repeats_response(self, request: InFlightRequest, frame: bytes) -> bool:
        """Whether a response equals the previous one. If so, it is counted as that one was."""
        partitions = self._steady.last_seen.response(frame, request.version)
        if partitions < 0:
            return False
        if not request.is_incremental:
            self._tally.client.partitions_answered += partitions
        self._tally.broker.partitions_answered += partitions
        if self._handler.table is not None:
            self._eligibility.savings.passed(request.sent + request.received, 0)
        return True

    def _forwarded(
        self, request: InFlightRequest, walk: FetchResponseWalk, chunk: bytes, *, whole: bool
    ) -> None:
        """Note what a forwarded response says, after its last byte."""
        understood = request.understood and walk.done
        self._note_throttle(walk)
        if not understood:
            self._events.append(Passthrough(reason=_NOT_UNDERSTOOD))
        if not request.through_session:
            if self._handler.table is not None:
                self._eligibility.savings.passed(request.sent + request.received, walk.with_records)
            if whole and understood:
                self._steady.last_seen.note_response(chunk, request.version, walk)
                if request.fetch is not None:
                    self._steady.learn_response(request.fetch, chunk, walk)
            if request.fetch is not None and request.fetch.session_epoch == 0:
                # A (0, 0) of the client's own. Its next fetch shows whether it uses the session (case 89).
                # A negative id is a refusal, as 0 is.
                self._eligibility.given = max(walk.session_id, 0)
        elif understood:
            self._session_answered(request, walk, self._judge(walk))
            if walk.tagged:
                self._leave_tags()
        else:
            self._handler.renew(walk.session_id)
        unseen = request.resend is not None or request.is_incremental
        self._count_partitions(walk, 0 if unseen else walk.partitions)

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
            request.cut_entries(self._handler.take(walk))
        if whole and request.understood:
            self._steady.last_seen.note_empty(chunk, walk)

    def _expanded(self, request: InFlightRequest) -> list[Buffer]:
        """Turn a whole response of the session into what the client would have got without one."""
        walk, handler = request.walk, self._handler
        if walk is not None:
            self._note_throttle(walk)
        self._steady.session = None  # until it is armed anew: what it relies on may change here
        full = handler.state is _REQUESTED
        if walk is None or not request.understood or not walk.done:
            handler.renew(walk.session_id if full and walk is not None else 0)
            self._session_lost(request, 0, SessionResult(Action.RESEND_SESSIONLESS, _NOT_UNDERSTOOD))
            return []
        if walk.tagged:
            # An expanded response would not have them (law 2), so the client gets one that goes as it came.
            self._leave_tags()
            handler.renew()
            self._session_lost(request, 0, SessionResult(Action.RESEND_SESSIONLESS, _UNKNOWN_TAGS))
            return []
        result = self._judge(walk)
        # v4 to v6: a v7 response of other partitions can't go on as it is (fetch-semantics, trap 4).
        if result.action is _COMPLETE_NO_SESSION:
            result.action = Action.RESEND_SESSIONLESS
        if full:
            self._session_answered(request, walk, result)
        elif result.action is not _EXPAND and result.action in _RESENDS:
            self._session_lost(request, walk.error_code, result)
        elif self._limits.keep_order and result.action is _EXPAND:
            self._keep_order(request, walk, result)
        if request.resend is not None:
            request.drop_chunks()
            self._count_partitions(walk, 0)
            return []
        pieces, size, partitions = full_response(request, walk, result, self._handler, self._resolve)
        self._settle(request, walk, size, full=full)
        if not full and result.errors:
            self._note_uncached(result)
        if not full and not self._fetches.unused:  # where it is not 0, what is saved has to set it to 0
            self._arm(request, walk, result)
        request.drop_chunks()
        self._count_partitions(walk, 0 if request.is_incremental else partitions)
        return pieces

    def _judge(self, walk: FetchResponseWalk) -> SessionResult:
        features = self._eligibility.features
        # Kafka 1.1 delays the whole response instead: an empty one says that nothing is new
        # (fetch-semantics 2.8 and 6.3).
        empties = features is None or features.throttles_by_emptying
        return self._handler.handle(walk, empties=empties and not self._eligibility.full_when_throttled)

    def _session_answered(
        self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult
    ) -> None:
        """Note whether a fetch that asked for a session got one; plan to send it again if it failed."""
        handler = self._handler
        if result.action in _RESENDS:
            self._session_lost(request, walk.error_code, result)
        elif handler.has_session:
            self._refused = False
            self._fetches.plan_check()
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

    def _keep_order(self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult) -> None:
        """Have a fetch sent again without the session if its own order would have served others.

        Nothing is lost with the response: the fetch still has the offsets of before. The session goes on.
        """
        table, fetch = self._handler.table, request.fetch
        if table is None or fetch is None:
            return
        _, rows = located(request, table)
        if serves_in_order(fetch, table, rows, walk, result):
            return
        self._tally.passthrough[Reason.KEEP_ORDER] += 1
        self._eligibility.starves = True
        self._note_lost(request)
        self._fetches.plan_resend(request, full=False)

    def _session_lost(self, request: InFlightRequest, code: int, result: SessionResult) -> None:
        """Have a fetch sent again, since its session can't go on or could not be made."""
        if code:
            self._tally.session_errors[code] += 1
        if result.loss is not None:
            self._tally.sessions_lost[result.loss] += 1
            if result.loss is Loss.LEFT_OUT:
                self._note_left_out()
        self._events.append(SessionLost(session_id=request.session_id, error_code=code, reason=result.reason))
        self._note_lost(request)
        self._fetches.plan_resend(request, full=result.action is Action.RESEND_FULL)

    def _arm(self, request: InFlightRequest, walk: FetchResponseWalk, result: SessionResult) -> None:
        """Let the next fetches take the steady path, if this one only rotated and little has come."""
        fetch, form, frame = request.fetch, self._steady.last_seen.form, request.received_frame
        rotation = self._handler.rotation
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
        if self._eligibility.hinders() or request.received >= STREAM_FROM:
            return
        # The switch may have been turned since the fetch was decided.
        if not self._limits.allowed(self._state.client_id):
            return
        features = self._eligibility.features
        # Another fetch may have come and been forwarded meanwhile; some brokers' entries have to be read for
        # their leader epochs (see `Eligibility.against`).
        if self._fetches.decided is not None or features is None or not features.keeps_leader_epoch:
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
            self._handler,
            rotation,
            self._eligibility,
            self._limits,
            self._steady.last_seen,
            until=self._fetches.check_at,
        )
        if len(result.rows) == 1 and not walk.throttle_time_ms:
            head = b"".join(frame.span(0, min(request.received, ENTRY_HEAD)))
            session.expects(entry_form(fetch, head, walk), result.rows[0])

    # What a response shows

    def _settle(self, request: InFlightRequest, walk: FetchResponseWalk, size: int, *, full: bool) -> None:
        """Note what an exchange through the session saved.

        Args:
            request: the fetch.
            walk: the session's response.
            size: of the client's response.
            full: the fetch asked for the session.
        """
        savings, fetch = self._eligibility.savings, request.fetch
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
                self._fetches.unused = 0
        if rests:
            self._events.append(Passthrough(reason=_RESTS))

    def _note_lost(self, request: InFlightRequest) -> None:
        """Note that a fetch has to be sent again, and its response was for nothing."""
        if self._eligibility.savings.settle(-request.sent - request.received):
            self._events.append(Passthrough(reason=_RESTS))

    def _note_throttle(self, walk: FetchResponseWalk) -> None:
        """Note whether the broker leaves entries in what it throttles, which Kafka from 2.0 on does not."""
        if walk.throttle_time_ms > 0 and walk.partitions and not walk.error_code:
            self._eligibility.full_when_throttled = True

    def _note_starving(self, request: InFlightRequest) -> None:
        """Note whether a response without the session leaves room, so that the next one may go through it."""
        records = request.walk.record_bytes if request.walk is not None else 0
        self._eligibility.starves = request.fetch is not None and 2 * records >= request.fetch.max_bytes

    def _note_uncached(self, result: SessionResult) -> None:
        # A session may leave out a partition that has such an error, so this client gets no session
        # (fetch-semantics, trap 7).
        if not _UNCACHED_ERRORS.isdisjoint(result.errors):
            self._eligibility.never = Reason.UNCACHED_ERRORS
            self._events.append(Passthrough(reason=Reason.UNCACHED_ERRORS))

    def _note_left_out(self) -> None:
        """Have no session any more once the broker has left out partitions twice: a client would starve."""
        if self._tally.sessions_lost[Loss.LEFT_OUT] > 1 and self._eligibility.never is None:
            self._eligibility.never = Reason.LEFT_OUT
            self._events.append(Passthrough(reason=Reason.LEFT_OUT))

    def _leave_tags(self) -> None:
        """Have no session any more: this broker's responses have tags that belong to no entry of them."""
        if self._eligibility.never is None:
            self._eligibility.never = Reason.TAGS
            self._events.append(Passthrough(reason=Reason.TAGS))

    def _count_partitions(self, walk: FetchResponseWalk, partitions: int) -> None:
        """Count the partitions and record bytes of a response.

        Args:
            walk: the response.
            partitions: how many the client gets; 0 if the fetch is sent again, or if they are counted
                elsewhere.
        """
        client, broker = self._tally.client, self._tally.broker
        broker.partitions_answered += walk.partitions
        broker.fetch_record_bytes += walk.record_bytes
        client.partitions_answered += partitions
        if partitions:
            client.fetch_record_bytes += walk.record_bytes


# A member of an enum is looked up slowly, and hashing one takes a call: what every fetch needs are globals.
_EXPANDED: Final = Disposition.EXPANDED
_WALKED: Final = Disposition.WALKED
_REQUESTED: Final = SessionState.REQUESTED
_EXPAND: Final = Action.EXPAND
_COMPLETE_NO_SESSION: Final = Action.COMPLETE_NO_SESSION
_RESENDS: Final = (Action.RESEND_FULL, Action.RESEND_SESSIONLESS)
