"""Decides for fetches of one connection whether they use the session, and sends them to the broker. Sans-IO.

The decision is made once, when the fetch is complete (`_decide`). If there is any `Reason` against the
session, the fetch is forwarded without it, and the reason is counted. Fetches on the fast path, and fetches
that are forwarded while they arrive, are sent elsewhere.
"""

from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import BrokerVersions, Eligibility, SessionLimits
from proxy.core.events import FetchKind, SessionClosed, fetch_kind, saved_bytes
from proxy.core.in_flight import FetchHandler, InFlight, Kept, Walked
from proxy.core.own import Check, OwnFetch, Probe, own
from proxy.core.plans import FetchTemplate
from proxy.core.savings import SessionForm
from proxy.protocol import api_versions
from proxy.protocol.api import REQUEST_START_BYTES, ApiKey
from proxy.protocol.fetch_layout import SESSION_VERSION
from proxy.protocol.fetch_request import (
    SESSIONLESS_EPOCH,
    FetchRequest,
    Listing,
    build_fetch_request,
    no_waiting,
    parse_fetch_request,
)
from proxy.protocol.primitives import ProtocolError, TooMany, read_string
from proxy.session.decision import FOR_GOOD, PASSING, Decision, Full, Incremental, Reason, Rotated
from proxy.session.handler import FetchSessionHandler
from proxy.session.partitions import memory_of
from proxy.session.state import Loss, SessionState

_UNUSED_FETCHES: Final = 64
"""The number of fetches that are forwarded without the session, and without a saving in between, after which
it is closed."""
CHECK_SECONDS: Final = 300.0
"""The time between two checks of a session that saves bytes, in seconds. A broker may lose a partition of the
session without an error, and only a check detects the loss. For 1,000 partitions a check needs some 70 kB,
which is 0.2 kB per second."""
SUSPECT_SECONDS: Final = 10.0
"""The shorter time between two checks, in seconds. It applies if the broker has lost a partition of a session
before, or if a client has waited this long at one offset below the known end of a partition."""
CHECK_PAID: Final = 64
"""A check is sent only if the session has since saved this many times the size of its request. A check with
its response costs two to three times its request (law 6)."""
_CONNECTION_ENDS: Final = "the connection ends"
_PROBE_CORRELATION_ID: Final = 0x6667_6174


class Fetches:
    """Decides how to send each fetch of one connection, and sends the fetch."""

    __slots__ = (
        "_check_due_at",
        "_check_paid_at",
        "_close_frame",
        "_close_id_at",
        "_limits",
        "_memory",
        "_probed",
        "_slot",
        "_state",
        "check_at",
        "closing",
        "decided",
        "eligibility",
        "session",
        "unused",
        "version",
    )

    def __init__(
        self, state: ConnectionState, sessions: SessionLimits, versions: BrokerVersions | None = None
    ) -> None:
        self._state = state
        self._limits = sessions
        self.session = FetchSessionHandler()
        self.eligibility = Eligibility(sessions, versions)
        self.closing = False
        """Whether the client sends no more fetches. If so, a fetch that is sent again does not use a
        session."""
        self.check_at = 0.0
        """The next time, in seconds, at which `_look` decides whether to check the session."""
        self._check_due_at = 0.0
        self._check_paid_at = 0
        """The number of bytes that the connection had saved when the last check was sent."""
        self.version = -1
        """The version of the last fetch that was read, or -1 before the first one."""
        self.decided: Reason | None = None
        """The reason why the last fetch was forwarded without the session. None if it used the session."""
        self.unused = 0
        """The number of fetches that were forwarded although there was a session, since a session last saved
        bytes. The reasons in `PASSING` do not count. A new session does not reset the number."""
        self._memory = 0
        """The bytes of the memory limit that are reserved for the table."""
        self._probed = False
        """Whether the gateway itself has sent an ApiVersions request on this connection."""
        self._slot = False
        """Whether the connection holds one of the process's session slots (--max-sessions)."""
        self._close_frame = b""
        """Closes a session. Made from a client's fetch; the session id is inserted when it is sent."""
        self._close_id_at = 0

    # Requests

    def request(self, request: InFlight, fetching: FetchHandler, frame: bytes, body: int) -> None:
        """Decide how to send a complete fetch whose body begins at `body`, and send it to the broker."""
        self.version = request.version
        plans = self._state.plans
        plans.forget_fetch()
        original = plans.template.read(frame) if plans.template is not None else None
        if original is None:
            try:
                original = parse_fetch_request(frame, request.version, body)
            except ProtocolError as error:
                why = Reason.NOT_READ if isinstance(error, TooMany) else Reason.NOT_UNDERSTOOD
                self.count_unread(len(frame), request.version, why)
                self._state.send(request, frame)
                return
            plans.template = FetchTemplate.of(original)
        fetching.generation = plans.generation
        fetch = original if original.unsupported_reason else self._changed(original)
        fetching.ask(fetch)
        if fetching.direct:  # otherwise it is not what the client sent, which was counted
            kind = fetch_kind(fetch.session_id, fetch.session_epoch)
            self._state.tally.client.add_fetches(kind, len(frame), fetch.partitions)
        if self.eligibility.observe(fetch):
            self.session.adopt(self.eligibility.given)
        decision = self._decide(fetching, fetch)
        reason = decision if type(decision) is Reason else self._carry_out(request, fetching, decision)
        self.decided = reason
        self._settle_memory()
        if reason is not None:
            if reason is _BROKER_NOT_KNOWN:
                self.probe(frame)
            self._leave_unused(reason)
            self._state.tally.passthrough[reason] += 1
            self._forward(request, fetching)
            # Where there is a table, bytes that pass are added up for the next session.
            if (
                fetching.direct
                and self.session.table is None
                and not self.session.session_id
                and not self.eligibility.starves
                and all(stage.repeats(_FETCH, request.version) for stage in self._state.stages)
            ):
                plans.learn_fetch(original, fetch, reason, self.eligibility, fetching.responses)

    def _changed(self, original: FetchRequest) -> FetchRequest:
        fetch, template = original, self._state.plans.template
        for stage in self._state.stages:
            fetch = stage.on_fetch(fetch)
        if template is not None and (fetch is not original or template.changes):
            # The fast path makes the same changes to the next similar fetch.
            template.note_sent(fetch)
        return fetch

    def count_unread(self, size: int, version: int, reason: Reason) -> None:
        """Count a fetch that is forwarded without being parsed."""
        self.decided = reason
        self._state.plans.forget_fetch()
        self._state.tally.passthrough[reason] += 1
        # Brokers take a fetch below v7 for (0, -1) (fetch-semantics 1.3). The kind of others is not known.
        times = 1 if version < SESSION_VERSION else 0
        for side in (self._state.tally.client, self._state.tally.broker):
            side.add_fetches(FetchKind.SESSIONLESS, size, 0, times=times)

    def arrange_resend(self, fetching: FetchHandler, *, full: bool) -> None:
        """Arrange to send a fetch once more. No part of its response has been sent to the client.

        After a second failure, or when the connection ends, it is sent without a session, so that no session
        error is possible. Otherwise `full` requests a new session, if possible.
        """
        # `FetchResponses.end` sends it, when the response has ended.
        fetching.attempts += 1
        # fetch-semantics 6.13, step 4; trap 6 (conformance case 71). The fetch keeps its place (trap 17, case
        # 84).
        again = full and fetching.attempts == 1 and not self.closing and self.session.table is not None
        fetching.resend = self._ask_full if again else self._forward

    def _decide(self, fetching: FetchHandler, fetch: FetchRequest) -> Decision:
        session = self.session
        reason = self.eligibility.against(fetch, self._state.client_id, session)
        if reason is not None:
            return reason
        if (rotated := session.rotated(fetch.frame, fetch.topics)) is not None:
            return rotated
        listing = fetching.listing
        if listing is None:
            raise RuntimeError("a fetch without a listing is not a plain consumer's")
        # A fetch of another layout or isolation level needs a new session. The broker would accept v7 to v12,
        # or v13 to v18, in one session, but the table's rows have one layout (trap 27). Its entries are valid
        # for one isolation level: up to 2.0 read_uncommitted has LSO -1 (fetch-semantics 6.2, case 98).
        if not session.fits(listing, fetch.isolation_level):
            session.renew()
        savings = self.eligibility.savings
        if session.has_session:
            incremental = session.incremental(fetch, listing)
            if incremental is None:
                return Reason.TOO_SPARSE
            if len(incremental.delta.added) and not self._has_room(listing):
                return Reason.MEMORY
            form = savings.weigh(fetch, listing, incremental.delta, len(incremental.frame))
            if form is SessionForm.DELTA:
                return incremental
            if form is SessionForm.WIRE:
                return Reason.NOT_SMALLER
            return Full() if session.learn_listing(listing, fetch.isolation_level) else Reason.TOO_SPARSE
        if not self._has_room(listing):
            session.forget_list()
            return Reason.MEMORY
        delta = session.learn(listing, fetch.isolation_level)
        if session.table is None:
            return Reason.TOO_SPARSE
        if self.eligibility.slots.waits(self._state.now):
            return Reason.NO_BROKER_SLOT
        known = self.eligibility.features_for(fetch) is not None
        if not savings.promises(fetch, listing, delta, asks=not known):
            return Reason.NO_SESSION_YET
        # Only now, for it costs 500 bytes: most connections that do not ask for versions need no session.
        if not known:
            return _BROKER_NOT_KNOWN if self._slot or self._limits.left else Reason.NO_SLOT
        return Full()

    def _has_room(self, listing: Listing) -> bool:
        """Reserve memory for a fetch's partitions. `_settle_memory` releases what the table does not use."""
        budget, table = self._state.request_budget, self.session.table
        need = memory_of(listing) + (table.memory if table is not None else 0)
        if need > self._memory:
            if not budget.reserve(need - self._memory):
                return False
            self._memory = need
        return True

    def _settle_memory(self) -> None:
        budget, table = self._state.request_budget, self.session.table
        memory = table.memory if table is not None else 0
        budget.release(self._memory - memory)
        self._memory = memory

    def _carry_out(
        self, request: InFlight, fetching: FetchHandler, decision: Full | Incremental | Rotated
    ) -> Reason | None:
        """Send a fetch through the session. If that is not possible, return the reason."""
        if type(decision) is Full:
            if not self._slot and not self._limits.reserve():
                return Reason.NO_SLOT
            self._slot = True
            self._ask_full(request, fetching)
            return None
        fetch = fetching.asked
        if not self.session.ask(fetch, decision):
            return Reason.TOO_SPARSE
        if type(decision) is Rotated:
            fetching.first = decision.first
            changed = len(decision.altered)
        else:
            fetching.rows = decision.delta.rows
            changed = len(decision.delta.added) + len(decision.delta.altered)
        if self._state.now >= self.check_at:
            self._look(fetch)
        fetching.sends(Kept(), decision.frame, changed, session_id=self.session.session_id)
        self._dispatch(request, decision.frame, _INCREMENTAL, changed)
        return None

    def arrange_check(self) -> None:
        """Set the times of the session's next regular check, and of the next call of `_look`."""
        suspect, now = self._state.tally.sessions_lost[Loss.LEFT_OUT], self._state.now
        self._check_due_at = now + (SUSPECT_SECONDS if suspect else CHECK_SECONDS)
        self.check_at = min(now + SUSPECT_SECONDS, self._check_due_at)

    def _look(self, fetch: FetchRequest) -> None:
        now = self._state.now
        if self.session.waits() or now >= self._check_due_at:
            self._check(fetch)
        else:
            self.check_at = min(now + SUSPECT_SECONDS, self._check_due_at)

    def _check(self, fetch: FetchRequest) -> None:
        """Send the broker a full fetch of the client's list, right before a fetch of the session.

        The broker responds to the full fetch at once, with one batch at most. A session's response leaves out
        only partitions without changes since the last response. So the session's next response must contain
        each partition whose high watermark has changed by now. If a partition is missing, the session at the
        broker has lost it (fetch-semantics 2.5).
        """
        frame = no_waiting(fetch, (0, SESSIONLESS_EPOCH))
        saved = saved_bytes(self._state.tally)
        if saved - self._check_paid_at < CHECK_PAID * len(frame):
            self.check_at = self._state.now + SUSPECT_SECONDS
            return
        self.arrange_check()
        self._check_paid_at = saved
        self._state.tally.session_checks += 1
        version, partitions = fetch.layout.version, fetch.partitions
        check = Check(self._state, partitions, version, self.eligibility, self.session)
        self.eligibility.savings.settle(-len(frame))
        self._dispatch(own(frame, check), frame, FetchKind.SESSIONLESS, partitions)

    def _ask_full(self, request: InFlight, fetching: FetchHandler) -> None:
        fetch, table, listing = fetching.asked, self.session.table, fetching.listing
        if table is None or listing is None:
            raise RuntimeError("a session is asked for what the table holds")
        session = self.session.ask_full()
        response: Walked | Kept
        if listing.layout is fetch.layout:
            response, frame = Walked(), fetch.with_session(*session)
        else:  # v4 to v6 go as v7, the only raise that changes nothing else (fetch-semantics, traps 3 and 4)
            response, frame = Kept(), build_fetch_request(fetch, listing.layout, session, listing.topics())
        fetching.rows = table.locate(listing)
        template = build_fetch_request(fetch, listing.layout, (0, SESSIONLESS_EPOCH))
        self._close_frame, self._close_id_at = template, fetch.body + listing.layout.request_session
        fetching.sends(response, frame, fetch.partitions, session_id=self.session.session_id)
        self._dispatch(request, frame, FetchKind.FULL, fetch.partitions)

    def _forward(self, request: InFlight, fetching: FetchHandler) -> None:
        fetch = fetching.asked
        frame, session_id, epoch = fetch.frame, fetch.session_id, fetch.session_epoch
        # (0, 0) each time would fill the broker's slots (fetch-semantics 6.7, case 89).
        if self.eligibility.floods and epoch == 0:
            session_id, epoch = 0, SESSIONLESS_EPOCH
            # (id, -1): this fetch also closes the session that the client's last (0, 0) made
            # (fetch-semantics 2.2).
            if self.session.state is SessionState.NONE:
                session_id, self.session.session_id = self.session.session_id, 0
            frame = fetch.with_session(session_id, epoch)
        fetching.sends(Walked(), frame, fetch.partitions)
        self._dispatch(request, frame, fetch_kind(session_id, epoch), fetch.partitions)

    def _dispatch(self, request: InFlight, frame: bytes, kind: FetchKind, partitions: int) -> None:
        self._state.tally.broker.add_fetches(kind, len(frame), partitions)
        self._state.send(request, frame)

    def probe(self, fetch: bytes) -> None:
        """Ask the broker for its version ranges, once on a connection.

        A client need not send ApiVersions, but the gateway must know the broker's release (fetch-semantics
        1.7, 6.3). The request has the client id of the client's fetch, because quotas depend on it. Every
        broker answers v0 (KIP-35; fetch-semantics, trap 14).
        """
        if self._probed:
            return
        self._probed = True
        client_id, _ = read_string(fetch, REQUEST_START_BYTES)
        frame = api_versions.request(_PROBE_CORRELATION_ID, client_id or b"")
        self._state.tally.probe_bytes += len(frame)
        self._state.send(own(frame, Probe(self._state, self.eligibility)), frame)

    # The session's end

    def end_of_response(self, *, again: bool) -> None:
        """Close the session if that is due, and release its slot if no session is used or requested."""
        session = self.session
        if session.state is _CLOSED:
            session.drop()
            self._release_slot()
        elif self.closing and session.has_session and session.state is not SessionState.CLOSING:
            self._close(_CONNECTION_ENDS)
        elif not session.session_id and not session.outstanding and not again:
            self._release_slot()
        self._settle_memory()

    def close(self, *, silently: bool = False) -> None:
        """Close the session at the broker with (id, -1), unless nothing can be sent any more (`silently`).

        If the response that creates the session has not arrived yet, the session is closed when it arrives.
        Otherwise sessions without a client would fill slots and evict other sessions (fetch-semantics, trap
        21, case 88).
        """
        self.closing = True
        self._state.plans.forget_fetch()  # the response to a fetch in flight releases the slot
        session = self.session
        if not silently and session.session_id and session.state is not SessionState.REQUESTED:
            self._close(_CONNECTION_ENDS)

    def end(self) -> None:
        """Drop the session and release its slot, because the connection has ended."""
        self.session.drop()
        self._close_frame = b""
        self._release_slot()
        self._settle_memory()

    def _leave_unused(self, reason: Reason) -> None:
        session = self.session
        if not (session.session_id and self._close_frame) or session.outstanding or reason in PASSING:
            return
        self.unused += 1
        # Slots are shared by all clients of the broker (fetch-semantics, trap 22).
        if self.unused >= _UNUSED_FETCHES:
            self.eligibility.savings.failed()
            self._close(reason)
        elif reason in FOR_GOOD or reason is Reason.NATIVE:
            self._close(reason)

    def _close(self, reason: str) -> None:
        session_id = self.session.close()
        if not self.session.outstanding:
            self._release_slot()
        if not self._close_frame:
            return
        frame, at = self._close_frame, self._close_id_at
        frame = frame[:at] + session_id.to_bytes(4) + frame[at + 4 :]
        self.eligibility.savings.closed(len(frame))
        self._state.events.append(SessionClosed(session_id=session_id, reason=reason))
        self._dispatch(own(frame, OwnFetch(self._state, 0)), frame, FetchKind.CLOSE, 0)

    def _release_slot(self) -> None:
        if self._slot:
            self._slot = False
            self._limits.release()


# A member of an enum is looked up slowly, and hashing one takes a call: what every fetch needs are globals.
_BROKER_NOT_KNOWN: Final = Reason.BROKER_NOT_KNOWN
_FETCH: Final = int(ApiKey.FETCH)
_INCREMENTAL: Final = FetchKind.INCREMENTAL
_CLOSED: Final = SessionState.CLOSED
