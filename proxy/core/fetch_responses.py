"""Makes the client's responses to the fetches of one connection. Sans-IO.

Most responses are parsed and forwarded as they arrive. A response that has to be expanded is buffered until
it is complete. The session's handler decides what a response means for the session. If the response is
unusable, the fetch is sent again, and no part of that response is sent to the client.
"""

from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import SessionLimits
from proxy.core.events import Passthrough, Refusal, SessionLost, SessionMade, SessionRefused
from proxy.core.fetches import Fetches
from proxy.core.histograms import NOT_COUNTED
from proxy.core.in_flight import FetchHandler, InFlight, Kept, Walked
from proxy.core.leaders import Leaders
from proxy.core.plans import ENTRY_HEAD, EntryTemplate, SessionPlan
from proxy.core.responses import Rewriting, hidden_endpoints
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, ApiKey, ErrorCode
from proxy.protocol.fetch_layout import LAYOUTS, Rows
from proxy.protocol.fetch_request import SESSIONLESS_EPOCH, FetchRequest, Listing
from proxy.protocol.fetch_response import NODE_ENDPOINTS_TAG, FetchResponseWalk, Received, response_head
from proxy.protocol.primitives import NO_TAGS, Buffer, ProtocolError
from proxy.protocol.versions import session_layout
from proxy.session.decision import Reason
from proxy.session.expand import Expansion, expand
from proxy.session.handler import FetchSessionHandler, SessionResult
from proxy.session.order import serves_in_order
from proxy.session.partitions import PartitionTable
from proxy.session.state import Action, Loss, SessionState

STREAM_FROM: Final = 1 << 20
"""The response size, in bytes, from which on a client counts as catching up. The client's next fetch then
does not use the session, so that its response can be streamed (fetch-semantics 7, case 91)."""
_UNCACHED_ERRORS: Final = frozenset({ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.UNSUPPORTED_VERSION})
"""Errors that a broker up to 3.9 sends and does not repeat: it adds them after the session has stored the
response. KIP-110 (76), disabled down-conversion (35): fetch-semantics 2.6, trap 7."""
_NOT_UNDERSTOOD: Final = "a response was not understood"
_UNKNOWN_TAGS: Final = "a response has tags that are not known"
_RESTS: Final = "resting: sessions cost more than they saved"


class FetchResponses:
    """Makes the client's responses to the fetches of one connection."""

    __slots__ = (
        "_eligibility",
        "_events",
        "_fetches",
        "_leaders",
        "_limits",
        "_plans",
        "_rewriting",
        "_session",
        "_state",
        "_tally",
    )

    def __init__(
        self,
        state: ConnectionState,
        fetches: Fetches,
        sessions: SessionLimits,
        rewriting: Rewriting,
        leaders: Leaders,
    ) -> None:
        self._state, self._tally, self._events = state, state.tally, state.events
        self._plans = state.plans
        self._fetches = fetches
        self._session, self._eligibility = fetches.session, fetches.eligibility
        self._limits = sessions
        self._rewriting = rewriting
        self._leaders = leaders

    def new_fetch(self, version: int, correlation_id: bytes) -> tuple[InFlight, FetchHandler]:
        """Return a new queue entry for a client's fetch, and the innermost handler of its response.

        `ClientSessions` may have lowered the version.
        """
        fetching = FetchHandler(self, version)
        request = InFlight(_FETCH, version, correlation_id, fetching)
        for stage in self._state.stages:
            request.handler = stage.around_fetch(request, fetching)
        return request, fetching

    def receive(self, fetching: FetchHandler, chunk: bytes, *, last: bool) -> list[Buffer]:
        """Process the next bytes of a fetch's response. Return the bytes that can be sent to the client now.

        If the fetch has to be sent again, this sets `FetchHandler.resend`, which `end` calls.
        """
        self._tally.broker.fetch_response_bytes += len(chunk)
        response = fetching.response
        response.received += len(chunk)
        whole = last and response.received == len(chunk)
        if isinstance(response, Kept):
            self._keep(fetching, response, chunk, whole=whole)
            pieces = self._expanded(fetching, response) if last else []
        elif whole and not fetching.through_session and self._repeats_response(fetching, chunk):
            pieces = [chunk]
        else:
            walk = self._walk(fetching)
            pieces = self._forward_chunk(fetching, response, walk, chunk, last=last)
            if last:
                self._note_forwarded(fetching, response, walk, chunk, whole=whole)
            elif fetching.through_session and response.understood:
                self._session.take(walk)
        if last:
            again = fetching.resend is not None
            if again:
                response.drop()  # else it would count as buffered until the client leaves
            # The client is catching up: its next response is to stream (case 91).
            self._eligibility.large = response.received >= STREAM_FROM and not again
            if response.walk is not None and response.walk.leaders:
                self._leaders.learn(response.walk.leaders)
            if self._eligibility.starves and isinstance(response, Walked):
                self._note_starving(fetching, response)
            self._fetches.end_of_response(again=again)
        if fetching.direct:
            self._tally.client.fetch_response_bytes += sum(map(len, pieces))
        return pieces

    def end(self, fetching: FetchHandler, request: InFlight) -> bool:
        """End a response. Return False if the fetch is sent again, as `receive` may have arranged."""
        state, fetch = self._state, fetching.fetch
        for stage in state.stages:
            stage.on_fetched(fetching)
        resend, fetching.resend = fetching.resend, None
        asked = NOT_COUNTED if fetch is None or resend is not None else fetch.partitions
        unseen = resend is not None
        state.meter.note_fetch(request.sent_at, sent=fetching.sent_partitions, asked=asked, unseen=unseen)
        # A fetch that is sent again keeps its place; later responses wait (fetch-semantics, trap 17; case
        # 84).
        if resend is not None:
            state.meter.note_repeat(state.now - request.sent_at)
            if fetching.attempts == 1:
                state.queue.resending += 1
            resend(request, fetching)
            return False
        if fetching.attempts:
            state.queue.resending -= 1
        return True

    def count_passed(self, size: int) -> None:
        """Count the bytes of a fetch response that were forwarded without a call of `receive`."""
        self._tally.client.fetch_response_bytes += size
        self._tally.broker.fetch_response_bytes += size

    def _walk(self, fetching: FetchHandler) -> FetchResponseWalk:
        response = fetching.response
        walk = response.walk
        if walk is None:
            through_session, version = fetching.through_session, fetching.version
            isolation = fetching.fetch.isolation_level if fetching.fetch is not None else 0
            # The layout is that of the fetch as sent to the broker.
            layout = session_layout(version) if through_session else LAYOUTS[version]
            walk = response.walk = FetchResponseWalk(
                layout, isolation, keep=through_session, noted=fetching.noted
            )
        return walk

    # Responses that are forwarded

    def _forward_chunk(
        self, fetching: FetchHandler, response: Walked, walk: FetchResponseWalk, chunk: bytes, *, last: bool
    ) -> list[Buffer]:
        if response.understood:
            try:
                walk.feed(chunk)
            except ProtocolError:
                response.understood = False
        if not response.understood or (last and not walk.done):
            if fetching.version >= self._rewriting.tags_from:  # it may have addresses to rewrite
                response.drop()
                self._state.refuse_response(
                    Refusal.NOT_UNDERSTOOD, f"a FETCH v{fetching.version} response that is not understood"
                )
                return []
            return self._up_to(fetching, response, walk, chunk, response.received)
        # The top-level error of a fetch that asks for a session never reaches the client: the fetch is sent
        # again without one. So a client without sessions gets no 70, 71 or 106 (fetch-semantics, trap 6;
        # conformance case 71). `_expanded` sees to the errors of incremental fetches.
        if fetching.through_session and walk.error_code:
            response.drop()
            return []
        tagged = fetching.version >= self._rewriting.tags_from
        if last:
            if not (walk.tags or response.forwarded or response.chunks or fetching.through_session):
                response.forwarded = response.received
                return [chunk]  # the usual case: complete and unchanged
            return self._forward_last(fetching, response, walk, chunk, tagged=tagged)
        if not walk.head_known:
            safe = 0
        elif tagged:
            safe = walk.tags_at if walk.tags_at >= 0 else walk.offset
        else:
            safe = response.received
        return self._up_to(fetching, response, walk, chunk, safe)

    def _up_to(
        self, fetching: FetchHandler, response: Walked, walk: FetchResponseWalk, chunk: bytes, safe: int
    ) -> list[Buffer]:
        """Return the bytes up to the offset `safe` that were not forwarded yet. Buffer the bytes after it."""
        start = response.forwarded
        if safe >= response.received:
            pieces: list[Buffer] = [*response.chunks, chunk]
            response.forwarded = response.received
            response.drop()
        elif safe <= start:
            response.chunks.append(chunk)
            response.buffered += len(chunk)
            return []
        else:
            kept = b"".join((*response.chunks, chunk)) if response.chunks else chunk
            pieces = [memoryview(kept)[: safe - start]]
            response.chunks = [kept[safe - start :]]
            response.buffered = response.received - safe
            response.forwarded = safe
        return self._without_session(fetching, walk, pieces) if start == 0 and pieces else pieces

    @staticmethod
    def _without_session(
        fetching: FetchHandler, walk: FetchResponseWalk, pieces: list[Buffer]
    ) -> list[Buffer]:
        if not fetching.through_session or not walk.session_id or not walk.session_id_at:
            return pieces
        at = walk.session_id_at
        first = memoryview(pieces[0])
        if len(first) < at + 4:
            first = memoryview(b"".join(pieces))
            pieces = [first]
        # Not the id of the gateway's session, but the client's own, which is 0 (fetch-semantics, trap 12).
        return [first[:at], bytes(4), first[at + 4 :], *pieces[1:]]

    def _forward_last(
        self, fetching: FetchHandler, response: Walked, walk: FetchResponseWalk, chunk: bytes, *, tagged: bool
    ) -> list[Buffer]:
        start = response.forwarded
        if not tagged or not walk.tags or walk.tags[0][0] != NODE_ENDPOINTS_TAG:
            return self._up_to(fetching, response, walk, chunk, response.received)
        pieces = self._up_to(fetching, response, walk, chunk, walk.tags_at)
        old = b"".join(response.chunks)
        new = self._rewriting.tags(old, walk.tags)
        if start and len(new) != len(old):
            # The frame's length has gone to the client already, so the size must stay. The addresses are
            # hidden. A client that finds none asks for Metadata, as clients often do.
            new = hidden_endpoints(old, walk.tags)
        elif not start:
            size = response.received - LENGTH_BYTES + len(new) - len(old)
            if len(pieces[0]) < LENGTH_BYTES:
                pieces = [b"".join(pieces)]
            pieces[:1] = [size.to_bytes(LENGTH_BYTES), memoryview(pieces[0])[LENGTH_BYTES:]]
        response.drop()
        return [*pieces, new]

    def _repeats_response(self, fetching: FetchHandler, frame: bytes) -> bool:
        """Return whether a response equals the last small one, and count its partitions again."""
        partitions = self._plans.response(frame, fetching.version)
        if partitions < 0:
            return False
        if fetching.listed:
            self._tally.client.add_responses(partitions, 0)
        self._tally.broker.add_responses(partitions, 0)
        if self._session.table is not None:
            self._eligibility.savings.passed(fetching.sent + fetching.response.received, 0)
        return True

    def _note_forwarded(
        self, fetching: FetchHandler, response: Walked, walk: FetchResponseWalk, chunk: bytes, *, whole: bool
    ) -> None:
        understood = response.understood and walk.done
        self._note_throttle(walk)
        if not understood:
            self._events.append(Passthrough(reason=_NOT_UNDERSTOOD))
        if not fetching.through_session:
            if self._session.table is not None:
                self._eligibility.savings.passed(fetching.sent + response.received, walk.with_records)
            if whole and understood:
                self._plans.learn_response(fetching.fetch, chunk, fetching.version, walk)
            if fetching.fetch is not None and fetching.fetch.session_epoch == 0:
                # A (0, 0) of the client's own. Its next fetch shows whether it uses the session (case 89).
                # A negative id is a refusal, as 0 is.
                self._eligibility.given = max(walk.session_id, 0)
        elif understood:
            self._session_answered(fetching, walk, self._judge(walk))
            if walk.tagged:
                self._leave_tags()
        else:
            self._session.renew(walk.session_id)
        unseen = fetching.resend is not None or not fetching.listed
        self._count_partitions(walk, 0 if unseen else walk.partitions)

    # Responses of the session

    def _keep(self, fetching: FetchHandler, response: Kept, chunk: bytes, *, whole: bool) -> None:
        if not response.understood:
            return
        response.keep(chunk)
        if whole and (known := self._plans.empty(chunk)) is not None:
            response.walk = known
            return
        walk = self._walk(fetching)
        try:
            walk.feed(chunk)
        except ProtocolError:
            response.understood = False
            response.drop()
            return
        if not whole:
            response.cut_entries(self._session.take(walk))
        if whole and response.understood:
            self._plans.learn_empty(chunk, walk)

    def _expanded(self, fetching: FetchHandler, response: Kept) -> list[Buffer]:
        walk, session = response.walk, self._session
        if walk is not None:
            self._note_throttle(walk)
        learns = fetching.generation == self._plans.generation and not self._limits.keep_order
        self._plans.forget_fetch()  # its assumptions may change here
        full = session.state is _REQUESTED
        if walk is None or not response.understood or not walk.done:
            session.renew(walk.session_id if full and walk is not None else 0)
            self._session_lost(fetching, 0, SessionResult(Action.RESEND_SESSIONLESS, _NOT_UNDERSTOOD))
            return []
        if walk.tagged:
            # An expanded response would lose them (law 2). The client gets an unchanged response instead.
            self._leave_tags()
            session.renew()
            self._session_lost(fetching, 0, SessionResult(Action.RESEND_SESSIONLESS, _UNKNOWN_TAGS))
            return []
        result = self._judge(walk)
        # v4 to v6: a v7 response of other partitions can't be forwarded unchanged (fetch-semantics, trap 4).
        if result.action is _COMPLETE_NO_SESSION:
            result.action = Action.RESEND_SESSIONLESS
        if full:
            self._session_answered(fetching, walk, result)
        elif result.action is not _EXPAND and result.action in _RESENDS:
            self._session_lost(fetching, walk.error_code, result)
        elif self._limits.keep_order and result.action is _EXPAND:
            self._keep_order(fetching, walk, result)
        if fetching.resend is not None:
            self._count_partitions(walk, 0)
            return []
        pieces, size, partitions = full_response(
            fetching, response, walk, result, self._session, self._rewriting
        )
        self._settle(fetching, walk, size, full=full)
        if not full and result.errors:
            self._note_uncached(result)
        # If `unused` is not 0, the core resets it at the next saving.
        if learns and not full and not self._fetches.unused:
            self._learn_plan(fetching, response, walk, result)
        response.drop()
        self._count_partitions(walk, partitions if fetching.listed else 0)
        return pieces

    def _judge(self, walk: FetchResponseWalk) -> SessionResult:
        features = self._eligibility.features
        # Kafka 1.1 delays the whole response instead: an empty response means that nothing is new
        # (fetch-semantics 2.8 and 6.3).
        empties = features is None or features.throttles_by_emptying
        return self._session.handle(walk, empties=empties and not self._eligibility.full_when_throttled)

    def _session_answered(
        self, fetching: FetchHandler, walk: FetchResponseWalk, result: SessionResult
    ) -> None:
        session = self._session
        if result.action in _RESENDS:
            self._session_lost(fetching, walk.error_code, result)
        elif session.has_session:
            self._eligibility.slots.made(self._state.now)
            self._fetches.arrange_check()
            partitions = session.table.size if session.table is not None else 0
            self._events.append(SessionMade(session_id=session.session_id, partitions=partitions))
            self._note_uncached(result)
        elif result.action is Action.COMPLETE:
            # Id 0: no slot (fetch-semantics 2.7, trap 22; case 95).
            self._tally.refusals += 1
            self._eligibility.slots.denied(self._state.now)
            self._report_no_slot()

    def _report_no_slot(self) -> None:
        slots = self._eligibility.slots
        if not slots.reported:
            slots.reported = True
            self._events.append(SessionRefused())

    def _keep_order(self, fetching: FetchHandler, walk: FetchResponseWalk, result: SessionResult) -> None:
        table, fetch = self._session.table, fetching.fetch
        if table is None or fetch is None:
            return
        _, rows = located(fetching, table)
        if serves_in_order(fetch, table, rows, walk, result):
            return
        # The session's order gave records to other partitions than the fetch's order would. No records are
        # lost: the fetch is sent again with the same offsets. The session continues.
        self._tally.passthrough[Reason.KEEP_ORDER] += 1
        self._eligibility.starves = True
        self._note_lost(fetching)
        self._fetches.arrange_resend(fetching, full=False)

    def _session_lost(self, fetching: FetchHandler, code: int, result: SessionResult) -> None:
        if code:
            self._tally.session_errors[code] += 1
        if result.loss is not None:
            self._tally.sessions_lost[result.loss] += 1
            if result.loss is Loss.LEFT_OUT:
                self._note_left_out()
        self._events.append(
            SessionLost(session_id=fetching.session_id, error_code=code, reason=result.reason)
        )
        self._note_lost(fetching)
        again = result.action is Action.RESEND_FULL
        if again and code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            slots, now = self._eligibility.slots, self._state.now
            slots.denied(now)
            if slots.waits(now):
                again = False
                self._report_no_slot()
        self._fetches.arrange_resend(fetching, full=again)

    def _learn_plan(
        self, fetching: FetchHandler, response: Kept, walk: FetchResponseWalk, result: SessionResult
    ) -> None:
        """Make a plan from a fetch of the session, if its list was only rotated and its response is small."""
        fetch, template, frame = fetching.fetch, self._plans.template, response.frame
        rotation = self._session.rotation
        if (
            fetch is None
            or template is None
            or frame is None
            or rotation is None
            or fetching.first < 0
            or result.action is not _EXPAND
        ):
            return
        # A large response goes to the core.
        if self._eligibility.hinders() or response.received >= STREAM_FROM:
            return
        features = self._eligibility.features
        # Some brokers' entries have to be read for their leader epochs (see `Eligibility.against`).
        if features is None or not features.keeps_leader_epoch:
            return
        if not all(stage.repeats(_FETCH, fetching.version, in_session=True) for stage in self._state.stages):
            return
        if (
            template.request.topics is not fetch.topics
            or rotation.topics is not fetch.topics
            or fetch.session_epoch != SESSIONLESS_EPOCH
            or fetch.session_id
        ):
            return
        self._plans.fetch = plan = SessionPlan(
            self._plans,
            template,
            fetch,
            self._session,
            rotation,
            self._eligibility,
            self,
            until=self._fetches.check_at,
        )
        if len(result.rows) == 1 and not walk.throttle_time_ms:
            head = b"".join(frame.span(0, min(response.received, ENTRY_HEAD)))
            plan.expects(EntryTemplate.of(fetch, head, walk), result.rows[0])

    # Lessons from a response

    def _settle(self, fetching: FetchHandler, walk: FetchResponseWalk, size: int, *, full: bool) -> None:
        savings, fetch = self._eligibility.savings, fetching.fetch
        if fetch is None:
            return
        spared = size - fetching.response.received
        saved = len(fetch.frame) - fetching.sent + spared
        if full:
            rests = savings.settle(saved)
        else:
            rests = savings.answered(saved, walk.partitions)
            if fetching.first < 0 and walk.partitions:
                savings.tore(
                    fetch.partitions, walk.partitions, spared, fetch.layout, session_layout(fetching.version)
                )
            if saved > 0:
                self._fetches.unused = 0
        if rests:
            self._events.append(Passthrough(reason=_RESTS))

    def _note_lost(self, fetching: FetchHandler) -> None:
        if self._eligibility.savings.settle(-fetching.sent - fetching.response.received):
            self._events.append(Passthrough(reason=_RESTS))

    def _note_throttle(self, walk: FetchResponseWalk) -> None:
        # Kafka 2.0 and later send no entries in throttled responses.
        if walk.throttle_time_ms > 0 and walk.partitions and not walk.error_code:
            self._eligibility.full_when_throttled = True

    def _note_starving(self, fetching: FetchHandler, response: Walked) -> None:
        records = response.walk.record_bytes if response.walk is not None else 0
        # At half of max_bytes or more, there may have been no room for all available records.
        self._eligibility.starves = fetching.fetch is not None and 2 * records >= fetching.fetch.max_bytes

    def _note_uncached(self, result: SessionResult) -> None:
        # A session may leave out a partition that has such an error, so this connection uses no session
        # (fetch-semantics, trap 7).
        if not _UNCACHED_ERRORS.isdisjoint(result.errors):
            self._eligibility.never = Reason.UNCACHED_ERRORS
            self._events.append(Passthrough(reason=Reason.UNCACHED_ERRORS))

    def _note_left_out(self) -> None:
        # Else the client would not get the records of partitions that the broker leaves out.
        if self._tally.sessions_lost[Loss.LEFT_OUT] > 1 and self._eligibility.never is None:
            self._eligibility.never = Reason.LEFT_OUT
            self._events.append(Passthrough(reason=Reason.LEFT_OUT))

    def _leave_tags(self) -> None:
        if self._eligibility.never is None:
            self._eligibility.never = Reason.TAGS
            self._events.append(Passthrough(reason=Reason.TAGS))

    def _count_partitions(self, walk: FetchResponseWalk, partitions: int) -> None:
        self._tally.broker.add_responses(walk.partitions, walk.record_bytes)
        if partitions:
            self._tally.client.add_responses(partitions, walk.record_bytes)


def full_response(
    fetching: FetchHandler,
    response: Kept,
    walk: FetchResponseWalk,
    result: SessionResult,
    session: FetchSessionHandler,
    rewriting: Rewriting,
) -> tuple[list[Buffer], int, int]:
    """Return the client's response in pieces, its size, and its number of partitions."""
    layout, fetch = LAYOUTS[fetching.version], fetching.asked
    correlation_id = fetch.frame[REQUEST_CORRELATION_ID]
    tags = _tags(fetching.version, response, walk, rewriting)
    table, rotation = session.table, session.rotation
    # Sarama and Java accept a response without any entry if throttle_time_ms is not 0. They accept no
    # response in which only some entries are missing (fetch-semantics, trap 13; cases 81 and 97).
    if result.action is _EMPTY or table is None:
        content = response_head(layout, correlation_id, walk.throttle_time_ms)
        content += layout.count(0) + tags
        return [len(content).to_bytes(4) + content], 4 + len(content), 0
    received = response.frame or Received()
    starved = _starved(fetch, table, walk, result) if table.behind else []
    if rotation is not None:
        rotation.suspect(result.news)
        if fetching.first >= 0 and not starved:
            expanded = rotation.expand(
                fetching.first,
                list(zip(result.rows, result.entries, strict=True)),
                received,
                entry_bytes=result.size,
                correlation_id=correlation_id,
                throttle_time_ms=walk.throttle_time_ms,
                tags=tags,
            )
            return *expanded, fetch.partitions
    listing, rows = located(fetching, table)
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
        correlation_id=correlation_id,
        throttle_time_ms=walk.throttle_time_ms,
        tags=tags,
    )
    pieces, size = expand(what)
    return pieces, size, len(listing)


def located(fetching: FetchHandler, table: PartitionTable) -> tuple[Listing, Rows]:
    """Return the partitions of a fetch, and their rows in the table. The table notes their order."""
    listing, rows = fetching.listing, fetching.rows
    if listing is None:
        raise RuntimeError("only what a plain consumer lists is expanded")
    if rows is None:
        rows = fetching.rows = table.locate(listing)
        table.place(rows)
    return listing, rows


def _tags(version: int, response: Kept, walk: FetchResponseWalk, rewriting: Rewriting) -> bytes:
    if walk.tags_at < 0:
        return b""
    if response.received - walk.tags_at == len(NO_TAGS):
        return NO_TAGS
    frame = response.frame
    tags = b"".join(frame.span(walk.tags_at, response.received)) if frame is not None else NO_TAGS
    return rewriting.tags(tags, walk.tags) if version >= rewriting.tags_from else tags


def _starved(
    fetch: FetchRequest, table: PartitionTable, walk: FetchResponseWalk, result: SessionResult
) -> list[int]:
    """Return the rows of partitions whose first batch did not fit into a read_committed fetch.

    The broker left them out, although they have records below their last stable offset.
    """
    # If max_bytes was used up, the broker may not have read them at all (fetch-semantics 1.4).
    if not 0 < walk.record_bytes < fetch.max_bytes:
        return []
    return sorted(table.behind.difference(result.rows))


# Enum members are slow to look up and to hash. These are needed for every fetch, so they are globals.
_FETCH: Final = int(ApiKey.FETCH)
_REQUESTED: Final = SessionState.REQUESTED
_EXPAND: Final = Action.EXPAND
_COMPLETE_NO_SESSION: Final = Action.COMPLETE_NO_SESSION
_RESENDS: Final = (Action.RESEND_FULL, Action.RESEND_SESSIONLESS)
_EMPTY: Final = Action.EMPTY
