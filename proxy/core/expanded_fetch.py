"""Fetches of the session, whose responses are buffered and then expanded: handler and plan. Sans-IO.

The client gets a full response, made from the broker's response and from the session's table. If the response
is unusable, the fetch is sent again, and no part of the response is sent to the client.
"""

from collections.abc import Sequence
from typing import Final

from proxy.core.events import FetchKind
from proxy.core.forwarded_fetch import NOT_UNDERSTOOD
from proxy.core.in_flight import ClientFetch, Handler, InFlight
from proxy.core.plans import ENTRY_HEAD, EntryTemplate, FetchPlan, FetchTemplate
from proxy.core.sent_fetch import RESENDS, STREAM_FROM, SentFetch
from proxy.core.session_keeper import SessionKeeper
from proxy.protocol.api import REQUEST_CORRELATION_ID, RESPONSE_CORRELATION_ID, RESPONSE_START_BYTES, ApiKey
from proxy.protocol.fetch_layout import LAYOUTS, Rows, session_layout
from proxy.protocol.fetch_request import FetchRequest, Listing
from proxy.protocol.fetch_response import FetchResponseWalk, PartitionResponse, Received, response_head
from proxy.protocol.primitives import NO_TAGS, Buffer, ProtocolError
from proxy.session.decision import Reason
from proxy.session.expand import Expansion, expand
from proxy.session.handler import SessionResult
from proxy.session.order import serves_in_order
from proxy.session.partitions import PartitionTable
from proxy.session.rotation import Rotation
from proxy.session.state import Action, SessionState

_UNKNOWN_TAGS: Final = "a response has tags that are not known"


class ExpandedFetch(SentFetch):
    """Buffers a response until it is complete, and expands it to a full response.

    It answers an incremental fetch, or a full fetch of v4 to v6 that requests a session.
    """

    __slots__ = ("_cut", "_first", "_frame", "_learns", "_rows")
    expands = True

    def __init__(
        self,
        keeper: SessionKeeper,
        client_fetch: ClientFetch,
        sent: int,
        partitions: int,
        session_id: int,
        *,
        first: int = -1,
        rows: Rows | None = None,
        learns: bool = False,
    ) -> None:
        super().__init__(keeper, client_fetch, sent, partitions, session_id)
        self._first = first
        """The row in the session's table with which the fetch begins, if it only rotates the list."""
        self._rows = rows
        """The row of each partition of the fetch in the session's table. None if not looked up."""
        self._learns = learns
        """Whether the fetch may become a plan."""
        self._frame: Received | None = None
        """The received bytes. None if no bytes have arrived, or if they were dropped."""
        self._cut = 0
        """The number of entries whose bytes were already found by `_cut_entries`."""

    def _read(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        if self.understood:
            self._keep(chunk, whole=last and self.received == len(chunk))
        if not last:
            return []
        pieces = self._expanded()
        self._drop()
        return pieces

    # The bytes

    def _keep(self, chunk: bytes, *, whole: bool) -> None:
        if self._frame is None:
            self._frame = Received()
        self._frame.append(chunk)
        self.buffered += len(chunk)
        if whole and (known := self._keeper.state.plans.empty(chunk)) is not None:
            self.walk = known
            return
        if self.walk is None:
            client_fetch = self.client_fetch
            layout, isolation = session_layout(client_fetch.version), client_fetch.parsed.isolation_level
            self.walk = FetchResponseWalk(layout, isolation, keep=True, noted=client_fetch.noted)
        try:
            self.walk.feed(chunk)
        except ProtocolError:
            self.understood = False
            self._drop()
            return
        if whole:
            self._keeper.state.plans.learn_empty(chunk, self.walk)
        else:
            self._cut_entries(self._keeper.session.take(self.walk))

    def _cut_entries(self, entries: Sequence[PartitionResponse]) -> None:
        """Find the bytes of complete entries while the response arrives: less work is left at its end."""
        frame = self._frame
        while (
            frame is not None
            and self._cut < len(entries)
            and (entry := entries[self._cut]).end <= frame.settled
        ):
            entry.views = frame.span(entry.start, entry.end)
            self._cut += 1

    def _drop(self) -> None:
        self._frame = None
        self._cut = 0
        self.buffered = 0

    # The client's response

    def _expanded(self) -> list[Buffer]:
        """Return the client's response, made of the broker's complete one, or [] to send the fetch again."""
        keeper, walk, session = self._keeper, self.walk, self._keeper.session
        plans = keeper.state.plans
        if walk is not None:
            self._note_throttle(walk)
        learns = self._learns and self.client_fetch.generation == plans.generation
        plans.forget_fetch()  # its assumptions may change here
        requested = session.state is _REQUESTED
        if walk is None or not self.understood or not walk.done:
            session.renew(walk.session_id if requested and walk is not None else 0)
            self._lost(0, SessionResult(Action.RESEND_SESSIONLESS, NOT_UNDERSTOOD))
            return []
        if walk.tagged:
            # An expanded response would lose them (law 2). The client gets an unchanged response instead.
            self._never(Reason.TAGS)
            session.renew()
            self._lost(0, SessionResult(Action.RESEND_SESSIONLESS, _UNKNOWN_TAGS))
            return []
        result = self._judge(walk)
        # Only a full fetch gets this action, and only that of v4 to v6 has this handler. A v7 response of
        # other partitions can't be forwarded to such a client (fetch-semantics, trap 4).
        if result.action is _COMPLETE_NO_SESSION:
            result.action = Action.RESEND_SESSIONLESS
        if requested:
            self._note_new_session(walk, result)
        elif result.action is not _EXPAND and result.action in RESENDS:
            self._lost(walk.error_code, result)
        elif keeper.limits.keep_order and result.action is _EXPAND:
            self._keep_order(walk, result)
        if self.resend is not None:
            self._count(walk, 0)
            return []
        fetch = self.client_fetch.parsed
        pieces, size, partitions = self._client_response(fetch, walk, result)
        self._add_gain(fetch, walk, size, requested=requested)
        if not requested and result.errors:
            self._note_uncached(result)
        # If `unused` is not 0, the core resets it at the next saving.
        if learns and not requested and not keeper.unused:
            self._learn_plan(walk, result)
        self._count(walk, partitions)
        return pieces

    def _keep_order(self, walk: FetchResponseWalk, result: SessionResult) -> None:
        keeper, table = self._keeper, self._keeper.session.table
        if table is None:
            return
        _, rows = self._located(table)
        if serves_in_order(self.client_fetch.parsed, table, rows, walk, result):
            return
        # The session's order gave records to other partitions than the fetch's order would. No records are
        # lost: the fetch is sent again with the same offsets. The session continues.
        keeper.state.tally.passthrough[Reason.KEEP_ORDER] += 1
        keeper.eligibility.responses_are_full = True
        self._note_lost()
        self._arrange_resend(full=False)

    def _client_response(
        self, fetch: FetchRequest, walk: FetchResponseWalk, result: SessionResult
    ) -> tuple[list[Buffer], int, int]:
        """Return the client's response in pieces, its size, and its number of partitions."""
        session = self._keeper.session
        layout, correlation_id = LAYOUTS[self.client_fetch.version], fetch.frame[REQUEST_CORRELATION_ID]
        tags = self._tags(walk)
        table, rotation = session.table, session.rotation
        # Sarama and Java accept a response without any entry if throttle_time_ms is not 0. They accept no
        # response in which only some entries are missing (fetch-semantics, trap 13; cases 81 and 97).
        if result.action is _EMPTY or table is None:
            content = response_head(layout, correlation_id, walk.throttle_time_ms)
            content += layout.count(0) + tags
            return [len(content).to_bytes(4) + content], 4 + len(content), 0
        received = self._frame or Received()
        starved = _starved(fetch, table, walk, result) if table.behind else []
        if rotation is not None and self._first >= 0 and not starved:
            expanded = rotation.expand(
                self._first,
                list(zip(result.rows, result.entries, strict=True)),
                received,
                entry_bytes=result.size,
                correlation_id=correlation_id,
                throttle_time_ms=walk.throttle_time_ms,
                tags=tags,
            )
            return *expanded, fetch.partitions
        listing, rows = self._located(table)
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

    def _located(self, table: PartitionTable) -> tuple[Listing, Rows]:
        """Return the partitions of the fetch, and their rows in the table. The table notes their order."""
        listing = self.client_fetch.listing
        if listing is None:
            raise RuntimeError("only what a plain consumer lists is expanded")
        if self._rows is None:
            self._rows = table.locate(listing)
            table.place(self._rows)
        return listing, self._rows

    def _tags(self, walk: FetchResponseWalk) -> bytes:
        if walk.tags_at < 0:
            return b""
        if self.received - walk.tags_at == len(NO_TAGS) or self._frame is None:
            return NO_TAGS
        tags, rewriting = b"".join(self._frame.span(walk.tags_at, self.received)), self._keeper.rewriting
        return rewriting.tags(tags, walk.tags) if self.client_fetch.version >= rewriting.tags_from else tags

    def _add_gain(self, fetch: FetchRequest, walk: FetchResponseWalk, size: int, *, requested: bool) -> None:
        """Note the bytes that the exchange saved. The client's response has this size."""
        keeper = self._keeper
        savings = keeper.eligibility.savings
        spared = size - self.received
        saved = len(fetch.frame) - self.sent + spared
        if requested:
            self._note_pause(pauses=savings.add(saved))
            return
        pauses = savings.answered(saved, walk.partitions)
        if self._first < 0 and walk.partitions:
            wide = session_layout(self.client_fetch.version)
            savings.tore(fetch.partitions, walk.partitions, spared, fetch.layout, wide)
        if saved > 0:
            keeper.unused = 0
        self._note_pause(pauses=pauses)

    # The next fetches

    def _learn_plan(self, walk: FetchResponseWalk, result: SessionResult) -> None:
        """Make a plan for the next fetches, if this response is small."""
        keeper, frame = self._keeper, self._frame
        state, rotation, version = keeper.state, keeper.session.rotation, self.client_fetch.version
        template = state.plans.template
        if template is None or frame is None or rotation is None or result.action is not _EXPAND:
            return
        # A response can add a reason against the session. A large one goes to the core.
        eligibility, large = keeper.eligibility, self.received >= STREAM_FROM
        if large or eligibility.never is not None or eligibility.savings.paused:
            return
        if not all(stage.repeats(_FETCH, version, in_session=True) for stage in state.stages):
            return
        state.plans.fetch = plan = SessionPlan(keeper, template, rotation, self.client_fetch)
        if len(result.rows) == 1 and not walk.throttle_time_ms:
            head = b"".join(frame.span(0, min(self.received, ENTRY_HEAD)))
            plan.expects(EntryTemplate.of(self.client_fetch.parsed, head, walk), result.rows[0])


class SessionPlan(FetchPlan):
    """A plan for fetches of the session with a rotated list and few new offsets.

    The response must have at most one entry. The plan does for such a fetch what `Fetches` does for a
    `Rotated` fetch, but without the objects for other cases. It makes no decisions: `Fetches` has asked
    `Eligibility`, and `Rotation` recognises and builds the fetch. After each response that the core has
    processed, `ExpandedFetch` decides whether to make a plan. So the plan need not check conditions that only
    the core changes.
    """

    __slots__ = (
        "_altered",
        "_delta_size",
        "_described",
        "_empty",
        "_entry",
        "_first",
        "_frame",
        "_keeper",
        "_rotation",
        "_row",
        "_savings",
        "_session",
        "until",
    )

    def __init__(
        self, keeper: SessionKeeper, template: FetchTemplate, rotation: Rotation, client_fetch: ClientFetch
    ) -> None:
        plans = keeper.state.plans
        super().__init__(plans, template, client_fetch.parsed, FetchKind.INCREMENTAL)
        self.until = keeper.check_at
        """The time in seconds from which on the core processes a fetch itself. It may have to check the
        session."""
        self._keeper, self._session = keeper, keeper.session
        self._savings = keeper.eligibility.savings
        self._rotation = rotation
        self._empty = plans.repeatable
        self._described = not rotation.table.undescribed
        """Whether each row of the table has a usable entry. This does not change until the core processes a
        response."""
        self._entry: EntryTemplate | None = None
        self._row = -1
        """The row of the partition whose entry `_entry` matches."""
        self._frame = b""
        """The client's fetch in flight. `_delta_size`, `_altered` and `_first` belong to the same fetch."""
        self._delta_size = self._altered = 0
        self._first = -1

    def expects(self, entry: EntryTemplate | None, row: int) -> None:
        """Note the template of the session's last response with one entry, for the partition of this row."""
        self._entry, self._row = entry, row

    def request(self, frame: bytes, now: float) -> bytes | None:
        session, rotation, limits = self._session, self._rotation, self._limits
        if now >= self.until or session.state is not _ESTABLISHED or session.rotation is not rotation:
            return None
        if limits.crowded or limits.generation != self._options_generation:
            return None
        template = self._fetch_template
        if not template.surrounds(frame):
            return None
        if template.changes:
            frame = template.as_sent(frame)
        first = rotation.first(frame)
        altered = rotation.altered(frame, first) if first >= 0 else None
        if altered is None:
            return None
        delta = rotation.delta(frame, altered, (session.session_id, session.epoch))
        session.ask_rotated(altered)
        self._frame, self._first = frame, first
        self._delta_size, self._altered = len(delta), len(altered)
        self._asked += 1
        self._sent += self._delta_size
        self._requested += self._altered
        return delta

    def answer(self, frame: bytes, seconds: float) -> bytes | None:
        """Return the full form of the broker's response, or None if the core has to process it."""
        rotation, size = self._rotation, len(frame)
        table, entry, empty = rotation.table, self._entry, self._empty
        # What is behind may be starved, and an entry that is not described can't be filled in: the core has
        # to compare the response with the table.
        if not (self.live and self._described) or table.behind:
            return None
        if self._limits.generation != self._options_generation:
            return None
        row, records, sent = -1, 0, b""
        if empty is None or size != RESPONSE_START_BYTES + len(empty) or not frame.endswith(empty):
            if entry is None or (records := entry.records(frame)) <= 0:
                return None
            row, sent = self._row, entry.entry(frame)
        elif seconds < self._plans.no_sooner and seconds < self.wait / 2:
            return None
        full = rotation.full(self._first, row, sent, frame[RESPONSE_CORRELATION_ID])
        saved = len(self._frame) - self._delta_size + len(full) - size
        if saved <= 0:  # the connection may have to rest
            return None
        if row >= 0:
            table.describe(row, sent[: table.layout.aborted])
            rotation.suspect((row,))
            self._answered += 1
            self._record_bytes += records
        else:
            rotation.suspect(())
        self._session.continue_session()
        self._savings.answered(saved, row >= 0)
        self._frame = b""
        self._received += size
        self._told += len(full)
        self._told_partitions += self.partitions
        self._measured.note_fetch(seconds, size, len(full), self._altered, self.partitions)
        return full

    def begin(self, request: InFlight) -> Handler:
        keeper, sent = self._keeper, (self._delta_size, self._altered, self._session.session_id)
        client_fetch = ClientFetch(self.version, self.fetch.with_frame(self._frame), self._plans_generation)
        handler = ExpandedFetch(keeper, client_fetch, *sent, first=self._first, learns=True)
        return keeper.around(request, client_fetch).put(handler)


def _starved(
    fetch: FetchRequest, table: PartitionTable, walk: FetchResponseWalk, result: SessionResult
) -> list[int]:
    """Return the rows of partitions whose first batch did not fit into a read_committed fetch.

    The broker left them out, although they have records below their last stable offset.
    """
    # If max_bytes was used up, the broker may not have read them at all (fetch-semantics 6.2).
    if not 0 < walk.record_bytes < fetch.max_bytes:
        return []
    return sorted(table.behind.difference(result.rows))


# Enum members are slow to look up and to hash. These are needed for every fetch, so they are globals.
_FETCH: Final = int(ApiKey.FETCH)
_REQUESTED: Final = SessionState.REQUESTED
_ESTABLISHED: Final = SessionState.ESTABLISHED
_EXPAND: Final = Action.EXPAND
_COMPLETE_NO_SESSION: Final = Action.COMPLETE_NO_SESSION
_EMPTY: Final = Action.EMPTY
