"""Fetches whose responses are read while they are forwarded: their handler, and their plan. Sans-IO.

Most fetches without the session are such. So is a full fetch of v7 or later that requests the session.
"""

from typing import Final, Self

from proxy.core.connection_state import ConnectionState
from proxy.core.events import FetchKind, Passthrough, Refusal, Tally
from proxy.core.histograms import Meter
from proxy.core.in_flight import UNREAD_SECONDS, ClientFetch, Forward, Handler, InFlight
from proxy.core.plans import MAX_COMPARED, FetchPlan, FetchTemplate, Template
from proxy.core.responses import hidden_endpoints
from proxy.core.sent_fetch import SentFetch
from proxy.core.session_keeper import SessionKeeper
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID
from proxy.protocol.fetch_layout import LAYOUTS, PARTITION_BYTES
from proxy.protocol.fetch_request import FetchRequest
from proxy.protocol.fetch_response import NODE_ENDPOINTS_TAG, FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError
from proxy.session.decision import Reason

NOT_UNDERSTOOD: Final = "a response was not understood"
_PLAIN: Final = (Reason.ONE_PARTITION, Reason.SESSIONS_OFF)
"""Reasons that also apply to the next matching fetch, unless `SessionLimits.generation` changes."""


class ForwardedFetch(SentFetch):
    """Forwards a response, and reads it meanwhile."""

    __slots__ = ("_chunks", "_forwarded")

    def __init__(
        self,
        keeper: SessionKeeper,
        client_fetch: ClientFetch,
        sent: int = 0,
        partitions: int = -1,
        session_id: int | None = None,
    ) -> None:
        super().__init__(keeper, client_fetch, sent, partitions, session_id)
        self._forwarded = 0
        self._chunks: list[bytes] = []
        """The received bytes that were not forwarded yet."""

    def _read(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        whole = last and self.received == len(chunk)
        if whole and self.session_id is None and self._repeats(chunk):
            pieces: list[Buffer] = [chunk]
        else:
            walk = self.walk if self.walk is not None else self._new_walk()
            pieces = self._forward(walk, chunk, last=last)
            if last:
                self._note(walk, chunk, whole=whole)
            elif self.session_id is not None and self.understood:
                self._keeper.session.take(walk)
        if last:
            if self.resend is not None:
                self._drop()  # else it would count as buffered until the client leaves
            if self._keeper.eligibility.responses_are_full:
                self._note_full_responses()
        return pieces

    def passes(self, size: int) -> bool:
        walk = self.walk
        if self._chunks or not self._forwarded or walk is None or size > walk.records_left:
            return False
        self.received += size
        self._forwarded += size
        walk.skip_records(size)
        tally = self._keeper.state.tally
        tally.client.fetch_response_bytes += size
        tally.broker.fetch_response_bytes += size
        return True

    def _new_walk(self) -> FetchResponseWalk:
        client_fetch, keep = self.client_fetch, self.session_id is not None
        isolation = client_fetch.fetch.isolation_level if client_fetch.fetch is not None else 0
        self.walk = walk = FetchResponseWalk(
            LAYOUTS[client_fetch.version], isolation, keep=keep, noted=client_fetch.noted
        )
        return walk

    # The client's bytes

    def _forward(self, walk: FetchResponseWalk, chunk: bytes, *, last: bool) -> list[Buffer]:
        if self.understood:
            try:
                walk.feed(chunk)
            except ProtocolError:
                self.understood = False
        # It may have addresses to rewrite.
        tagged = self.client_fetch.version >= self._keeper.rewriting.tags_from
        if not self.understood or (last and not walk.done):
            if tagged:
                self._drop()
                reason = f"a FETCH v{self.client_fetch.version} response that is not understood"
                self._keeper.state.refuse_response(Refusal.NOT_UNDERSTOOD, reason)
                return []
            return self._up_to(walk, chunk, self.received)
        # The top-level error of a fetch that asks for a session never reaches the client: the fetch is sent
        # again without one. So a client without sessions gets no 70, 71 or 106 (fetch-semantics, trap 6;
        # conformance case 71).
        if self.session_id is not None and walk.error_code:
            self._drop()
            return []
        if last:
            if not (walk.tags or self._forwarded or self._chunks or self.session_id is not None):
                self._forwarded = self.received
                return [chunk]  # the usual case: complete and unchanged
            return self._forward_last(walk, chunk, tagged=tagged)
        # An error of the session must be seen before the client has a byte. Tags with addresses are at the
        # end, and wait until they are complete.
        if not walk.head_known:
            safe = 0
        elif tagged:
            safe = walk.tags_at if walk.tags_at >= 0 else walk.offset
        else:
            safe = self.received
        return self._up_to(walk, chunk, safe)

    def _up_to(self, walk: FetchResponseWalk, chunk: bytes, safe: int) -> list[Buffer]:
        """Return the bytes up to the offset `safe` that were not forwarded yet. Buffer the bytes after it."""
        start = self._forwarded
        if safe >= self.received:
            pieces: list[Buffer] = [*self._chunks, chunk]
            self._forwarded = self.received
            self._drop()
        elif safe <= start:
            self._chunks.append(chunk)
            self.buffered += len(chunk)
            return []
        else:
            kept = b"".join((*self._chunks, chunk)) if self._chunks else chunk
            pieces = [memoryview(kept)[: safe - start]]
            self._chunks = [kept[safe - start :]]
            self.buffered = self.received - safe
            self._forwarded = safe
        return self._without_session(walk, pieces) if start == 0 and pieces else pieces

    def _without_session(self, walk: FetchResponseWalk, pieces: list[Buffer]) -> list[Buffer]:
        if self.session_id is None or not walk.session_id or not walk.session_id_at:
            return pieces
        at = walk.session_id_at
        first = memoryview(pieces[0])
        if len(first) < at + 4:
            first = memoryview(b"".join(pieces))
            pieces = [first]
        # Not the id of the gateway's session, but the client's own, which is 0 (fetch-semantics, trap 12).
        return [first[:at], bytes(4), first[at + 4 :], *pieces[1:]]

    def _forward_last(self, walk: FetchResponseWalk, chunk: bytes, *, tagged: bool) -> list[Buffer]:
        start = self._forwarded
        if not tagged or not walk.tags or walk.tags[0][0] != NODE_ENDPOINTS_TAG:
            return self._up_to(walk, chunk, self.received)
        pieces = self._up_to(walk, chunk, walk.tags_at)
        old = b"".join(self._chunks)
        new = self._keeper.rewriting.tags(old, walk.tags)
        if start and len(new) != len(old):
            # The frame's length has gone to the client already, so the size must stay. The addresses are
            # hidden. A client that finds none asks for Metadata, as clients often do.
            new = hidden_endpoints(old, walk.tags)
        elif not start:
            size = self.received - LENGTH_BYTES + len(new) - len(old)
            if len(pieces[0]) < LENGTH_BYTES:
                pieces = [b"".join(pieces)]
            pieces[:1] = [size.to_bytes(LENGTH_BYTES), memoryview(pieces[0])[LENGTH_BYTES:]]
        self._drop()
        return [*pieces, new]

    def _drop(self) -> None:
        self._chunks = []
        self.buffered = 0

    # What the response means

    def _repeats(self, frame: bytes) -> bool:
        """Return whether a response equals the last small one, and count its partitions again."""
        keeper = self._keeper
        partitions = keeper.state.plans.response(frame, self.client_fetch.version)
        if partitions < 0:
            return False
        if self.client_fetch.listed:
            keeper.state.tally.client.add_responses(partitions, 0)
        keeper.state.tally.broker.add_responses(partitions, 0)
        if keeper.session.table is not None:
            keeper.eligibility.savings.passed(self.sent + self.received, 0)
        return True

    def _note(self, walk: FetchResponseWalk, chunk: bytes, *, whole: bool) -> None:
        keeper, fetch, understood = self._keeper, self.client_fetch.fetch, self.understood and walk.done
        self._note_throttle(walk)
        if not understood:
            keeper.state.events.append(Passthrough(reason=NOT_UNDERSTOOD))
        if self.session_id is None:
            if keeper.session.table is not None:
                keeper.eligibility.savings.passed(self.sent + self.received, walk.with_records)
            if whole and understood:
                keeper.state.plans.learn_response(fetch, chunk, self.client_fetch.version, walk)
            if fetch is not None and fetch.session_epoch == 0:
                # A (0, 0) of the client's own. Its next fetch shows whether it uses the session (case 89).
                # A negative id is a refusal, as 0 is.
                keeper.eligibility.given = max(walk.session_id, 0)
        elif understood:
            self._note_new_session(walk, self._judge(walk))
            if walk.tagged:
                self._never(Reason.TAGS)
        else:
            keeper.session.renew(walk.session_id)
        self._count(walk, walk.partitions)

    def _note_full_responses(self) -> None:
        records = self.walk.record_bytes if self.walk is not None else 0
        fetch = self.client_fetch.fetch
        # At half of max_bytes or more, there may have been no room for all available records.
        self._keeper.eligibility.responses_are_full = fetch is not None and 2 * records >= fetch.max_bytes


class UnknownFetch(Forward):
    """Forwards and counts the response to a fetch of a version that the gateway does not parse."""

    __slots__ = ("_state",)

    def __init__(self, state: ConnectionState) -> None:
        super().__init__(UNREAD_SECONDS)
        self._state = state

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        self.passes(len(chunk))
        return [chunk]

    def passes(self, size: int) -> bool:
        self._state.tally.broker.fetch_response_bytes += size
        self._state.tally.client.fetch_response_bytes += size
        return True

    def end(self, request: InFlight) -> bool:
        self._state.meter.note_fetch(request.sent_at)
        return True


class ForwardPlan(FetchPlan):
    """A plan for fetches that are forwarded.

    Fetches match if they differ only in the correlation id, and in the offsets and epochs of their entries.
    Stages may use the other fields, as `FetchFloorsStage` does.
    """

    __slots__ = ("_eligibility", "_keeper", "_template")

    def __init__(
        self,
        keeper: SessionKeeper,
        template: FetchTemplate,
        request: FetchRequest,
        sent: FetchRequest,
        reason: Reason,
    ) -> None:
        super().__init__(keeper.state.plans, template, sent, FetchKind.SESSIONLESS, reason)
        self._keeper, self._eligibility = keeper, keeper.eligibility
        frame, layout = request.frame, request.layout
        start, count = request.topics.blocks[0]
        item, offset, rest = layout.request_entry, PARTITION_BYTES, layout.request_rest
        entries = [(at + offset, at + rest) for at in range(start, start + count * item, item)]
        correlation_id = REQUEST_CORRELATION_ID.start, REQUEST_CORRELATION_ID.stop
        self._template = Template(frame, [correlation_id, *entries])

    @classmethod
    def of(
        cls, keeper: SessionKeeper, request: FetchRequest, sent: FetchRequest, reason: Reason
    ) -> Self | None:
        """Return a plan for fetches like this one, if the reason also applies to the next one.

        `request` is the fetch as the client sent it, `sent` the same fetch with the changes of the stages.
        """
        template = keeper.state.plans.template
        if template is None or len(request.frame) > MAX_COMPARED or reason not in _PLAIN:
            return None
        # Native sessions change their epoch with each fetch, and (0, 0) may show that a client floods.
        if request.session_id or request.session_epoch >= 0:
            return None
        return cls(keeper, template, request, sent, reason)

    def request(self, frame: bytes, _now: float) -> bytes | None:
        if self._template.matches(frame) and self._limits.generation == self._options_generation:
            self._asked += 1
            return self._fetch_template.as_sent(frame) if self._fetch_template.changes else frame
        return None

    def answer(self, frame: bytes, seconds: float) -> bytes | None:
        if not self.live:
            return None
        plans, version, size = self._plans, self.version, len(frame)
        entry = plans.entry
        if entry is not None and entry.version == version and (records := entry.records(frame)) >= 0:
            if not records and seconds < plans.no_sooner and seconds < self.wait / 2:
                return None
            self._answered += 1
            self._record_bytes += records
        elif seconds < plans.no_sooner and seconds < self.wait / 2:
            return None
        elif (partitions := plans.response(frame, version)) >= 0:
            self._answered += partitions
        else:
            return None
        self._received += size
        self._eligibility.large = False  # a response in one read is small
        self._measured.note_fetch(seconds, size, size, self.partitions, self.partitions)
        return frame

    def begin(self, request: InFlight) -> Handler:
        client_fetch = ClientFetch(self.version, self.fetch)
        handler = ForwardedFetch(self._keeper, client_fetch, self._sent_size, self.partitions)
        return self._keeper.around(request, client_fetch).put(handler)

    def count(self, tally: Tally, meter: Meter) -> None:
        # These follow from the number of fetches, so `request` and `answer` do not keep them.
        self._sent, self._requested = self._asked * self._sent_size, self._asked * self.partitions
        self._told, self._told_partitions = self._received, self._answered
        super().count(tally, meter)
