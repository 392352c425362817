"""What `ForwardedFetch` and `ExpandedFetch`, the handlers of fetches, have in common. Sans-IO."""

from typing import Final

from proxy.core.events import Passthrough, SessionLost, SessionMade, SessionRefused
from proxy.core.histograms import NOT_COUNTED
from proxy.core.in_flight import ClientFetch, FetchHandler, InFlight
from proxy.core.session_keeper import SessionKeeper
from proxy.protocol.api import ErrorCode
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Reason
from proxy.session.handler import SessionResult
from proxy.session.state import Action, Loss

STREAM_FROM: Final = 1 << 20
"""The response size, in bytes, from which on a client counts as catching up. The client's next fetch then
does not use the session, so that its response can be streamed (fetch-semantics 7, case 91)."""
_UNCACHED_ERRORS: Final = frozenset({ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNSUPPORTED_VERSION})
"""Errors that a broker up to 3.9 sends and does not repeat: it adds them after the session has stored the
response. KIP-110 (76), disabled down-conversion (35): fetch-semantics 2.6, trap 7."""
_RESTING: Final = "resting: sessions cost more than they saved"


class SentFetch(FetchHandler):
    """A fetch as it was sent: what its response means for the session, the next fetch, and figures."""

    __slots__ = ("_keeper", "buffered", "sent")
    sent: int
    """The size of the frame to the broker. 0 if the client's fetch was forwarded without being parsed."""

    def __init__(
        self,
        keeper: SessionKeeper,
        client_fetch: ClientFetch,
        sent: int = 0,
        partitions: int = -1,
        session_id: int | None = None,
    ) -> None:
        self._keeper = keeper
        self.client_fetch = client_fetch
        self.sent = sent
        self.partitions = partitions
        self.session_id = session_id
        self.walk = None
        self.received = self.buffered = 0
        self.understood = True
        self.resend = None

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        keeper, size = self._keeper, len(chunk)
        keeper.state.tally.broker.fetch_response_bytes += size
        self.received += size
        pieces = self._read(chunk, last=last)
        if last:
            again = self.resend is not None
            # The client is catching up: its next response is to stream (case 91).
            keeper.eligibility.large = self.received >= STREAM_FROM and not again
            if self.walk is not None and self.walk.hints:
                keeper.leaders.learn([found.hint for found in self.walk.hints])
            keeper.finish_response(again=again)
        if pieces and self.client_fetch.direct:
            keeper.state.tally.client.fetch_response_bytes += sum(map(len, pieces))
        return pieces

    def _read(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Process the next bytes of the response, and return the client's bytes that are ready now."""
        raise NotImplementedError

    def end(self, request: InFlight) -> bool:
        state, client_fetch, again = self._keeper.state, self.client_fetch, self.resend is not None
        for stage in state.stages:
            stage.on_fetched(self)
        listed = NOT_COUNTED if client_fetch.fetch is None or again else client_fetch.fetch.partitions
        state.meter.note_fetch(request.sent_at, sent=self.partitions, asked=listed, unseen=again)
        # A fetch that is sent again keeps its place; later responses wait (fetch-semantics, trap 17; case
        # 84).
        if again:
            state.meter.note_repeat(state.now - request.sent_at)
            if client_fetch.attempts == 1:
                state.queue.resending += 1
            self._keeper.send_again(request, self)
            return False
        if client_fetch.attempts:
            state.queue.resending -= 1
        return True

    def _count(self, walk: FetchResponseWalk, partitions: int) -> None:
        """Count the contents of the response. The client's form of it has this many partitions."""
        tally = self._keeper.state.tally
        tally.broker.add_responses(walk.partitions, walk.record_bytes)
        # `ClientSessions` counts what it makes itself of a response.
        if partitions and self.client_fetch.listed and self.resend is None:
            tally.client.add_responses(partitions, walk.record_bytes)

    # What the response means for the session

    def _judge(self, walk: FetchResponseWalk) -> SessionResult:
        keeper = self._keeper
        features = keeper.eligibility.features
        # Kafka 1.1 delays the whole response instead: an empty response means that nothing is new
        # (fetch-semantics 2.8 and 6.3).
        empties = features is None or features.throttles_by_emptying
        return keeper.session.handle(walk, empties=empties and not keeper.eligibility.full_when_throttled)

    def _note_new_session(self, walk: FetchResponseWalk, result: SessionResult) -> None:
        """Note the response to a fetch that requested a session."""
        session, state = self._keeper.session, self._keeper.state
        if result.action in RESENDS:
            self._lost(walk.error_code, result)
        elif session.has_session:
            self._keeper.eligibility.slots.made(state.now)
            self._keeper.arrange_check()
            partitions = session.table.size if session.table is not None else 0
            state.events.append(SessionMade(session_id=session.session_id, partitions=partitions))
            self._note_uncached(result)
        elif result.action is Action.COMPLETE:
            # Id 0: no slot (fetch-semantics 2.7, trap 22; case 95).
            state.tally.refusals += 1
            self._keeper.eligibility.slots.denied(state.now)
            self._report_no_slot()

    def _report_no_slot(self) -> None:
        slots = self._keeper.eligibility.slots
        if not slots.reported:
            slots.reported = True
            self._keeper.state.events.append(SessionRefused())

    def _lost(self, code: int, result: SessionResult) -> None:
        """Note that a session was lost or refused, and arrange to send the fetch again."""
        state = self._keeper.state
        if code:
            state.tally.session_errors[code] += 1
        if result.loss is not None:
            state.tally.sessions_lost[result.loss] += 1
            # Else the client would not get the records of partitions that the broker leaves out.
            if result.loss is Loss.LEFT_OUT and state.tally.sessions_lost[Loss.LEFT_OUT] > 1:
                self._never(Reason.LEFT_OUT)
        state.events.append(
            SessionLost(session_id=self.session_id or 0, error_code=code, reason=result.reason)
        )
        self._note_lost()
        again = result.action is Action.RESEND_FULL
        if again and code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            slots = self._keeper.eligibility.slots
            slots.denied(state.now)
            if slots.waits(state.now):
                again = False
                self._report_no_slot()
        self._arrange_resend(full=again)

    def _arrange_resend(self, *, full: bool) -> None:
        """Arrange to send the fetch once more. No part of its response has been sent to the client.

        After a second failure, or when the connection ends, it is sent without a session, so that no session
        error is possible. Otherwise `full` requests a new session, if possible.
        """
        # `end` sends it. fetch-semantics 6.13, step 4; trap 6 (conformance case 71). The fetch keeps its
        # place (trap 17, case 84).
        keeper, client_fetch = self._keeper, self.client_fetch
        client_fetch.attempts += 1
        first = client_fetch.attempts == 1 and not keeper.closing
        again = full and first and keeper.session.table is not None
        self.resend = Action.RESEND_FULL if again else Action.RESEND_SESSIONLESS

    def _note_lost(self) -> None:
        """Count the bytes of the fetch and of its response as lost, because it has to be sent again."""
        self._note_pause(pauses=self._keeper.eligibility.savings.add(-self.sent - self.received))

    def _note_pause(self, *, pauses: bool) -> None:
        if pauses:
            self._keeper.state.events.append(Passthrough(reason=_RESTING))

    def _note_throttle(self, walk: FetchResponseWalk) -> None:
        """Note whether this broker sends entries when it throttles. Kafka 2.0 and later send none."""
        if walk.throttle_time_ms > 0 and walk.partitions and not walk.error_code:
            self._keeper.eligibility.full_when_throttled = True

    def _note_uncached(self, result: SessionResult) -> None:
        # A session may leave out a partition that has such an error, so this connection uses no session
        # (fetch-semantics, trap 7).
        if not _UNCACHED_ERRORS.isdisjoint(result.errors):
            self._keeper.eligibility.never = Reason.UNCACHED_ERRORS
            self._keeper.state.events.append(Passthrough(reason=Reason.UNCACHED_ERRORS))

    def _never(self, reason: Reason) -> None:
        """Use no more sessions on this connection."""
        if self._keeper.eligibility.never is None:
            self._keeper.eligibility.never = reason
            self._keeper.state.events.append(Passthrough(reason=reason))


# Members of an enum are looked up slowly.
RESENDS: Final = (Action.RESEND_FULL, Action.RESEND_SESSIONLESS)
