"""Decides for fetches of one connection whether they use the session, and sends them to the broker. Sans-IO.

The decision is made once, when the fetch is complete (`_decide`). If there is any `Reason` against the
session, the fetch is forwarded without it, and the reason is counted. `FastPath.request` sends fetches that
fit a plan, and `ClientSide` forwards fetches that are not buffered.
"""

from typing import Final, TypeAlias

from proxy.core.events import FetchKind, fetch_kind
from proxy.core.expanded_fetch import ExpandedFetch
from proxy.core.forwarded_fetch import ForwardedFetch, ForwardPlan
from proxy.core.in_flight import ClientFetch, FetchHandler, InFlight
from proxy.core.plans import FetchTemplate
from proxy.core.savings import SessionForm
from proxy.core.session_keeper import SessionKeeper
from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_request import (
    SESSIONLESS_EPOCH,
    FetchRequest,
    Listing,
    build_fetch_request,
    parse_fetch_request,
)
from proxy.protocol.primitives import ProtocolError, TooMany
from proxy.session.decision import Incremental, Reason, Rotated
from proxy.session.partitions import PartitionTable
from proxy.session.state import Action, SessionState

Way: TypeAlias = tuple[FetchHandler, bytes, FetchKind]
"""How a fetch is sent: the handler of its response, and the frame for the broker with its kind."""


class Fetches(SessionKeeper):
    """Decides how to send each fetch of one connection, and sends the fetch."""

    __slots__ = ()

    def new(self, version: int, correlation_id: bytes) -> tuple[InFlight, ClientFetch]:
        """Return a new queue entry for a client's fetch. `ClientSessions` may have lowered the version."""
        client_fetch = ClientFetch(version)
        request = InFlight(_FETCH, version, correlation_id)
        self.around(request, client_fetch)
        return request, client_fetch

    def unread(self, version: int, correlation_id: bytes) -> InFlight:
        """Return a new queue entry for a fetch that is forwarded without being parsed."""
        request, client_fetch = self.new(version, correlation_id)
        request.handler = request.handler.put(ForwardedFetch(self, client_fetch))
        return request

    def request(self, request: InFlight, client_fetch: ClientFetch, frame: bytes, body: int) -> None:
        """Decide how to send a complete fetch whose body begins at `body`, and send it to the broker."""
        self.version = request.version
        plans = self.state.plans
        # The plan for the last fetch may not fit what is decided now.
        plans.forget_fetch()
        original = plans.template.read(frame) if plans.template is not None else None
        if original is None:
            try:
                original = parse_fetch_request(frame, request.version, body)
            except ProtocolError as error:
                why = Reason.NOT_READ if isinstance(error, TooMany) else Reason.NOT_UNDERSTOOD
                self.count_unread(len(frame), request.version, why)
                request.handler = request.handler.put(ForwardedFetch(self, client_fetch))
                self.state.send(request, frame)
                return
            plans.template = FetchTemplate.of(original)
        client_fetch.generation = plans.generation
        client_fetch.fetch = fetch = original if original.unsupported_reason else self._changed(original)
        if client_fetch.direct:  # otherwise it is not what the client sent, which was counted
            kind = fetch_kind(fetch.session_id, fetch.session_epoch)
            self.state.tally.client.add_fetches(kind, len(frame), fetch.partitions)
        # Before the decision, which asks whether the client has sessions of its own.
        if self.eligibility.observe(fetch):
            self.session.adopt(self.eligibility.given)
        decision = self._decide(client_fetch, fetch)
        self.settle_memory()
        if type(decision) is not Reason:
            self.state.decided = None
            self._send(request, *decision)
            return
        self.state.decided = decision
        self._pass(request, client_fetch, decision)
        # With a table there is no plan: the bytes of forwarded fetches are added up (`Savings.passed`).
        session = self.session
        if (
            client_fetch.direct
            and session.table is None
            and not session.session_id
            and not self.eligibility.responses_are_full
            and all(stage.repeats(_FETCH, request.version) for stage in self.state.stages)
        ):
            plans.fetch = ForwardPlan.of(self, original, fetch, decision)

    def steady(self) -> FetchTemplate | None:
        """Return the template of the fetches that continue the session while only their entries change.

        For what takes several of them at once, such as the computation from captures. The gateway uses plans.
        None if the next fetch needs another decision, or if its response does not only bring new entries for
        a table in which all partitions are described. Then `request` must process it.
        """
        template, rotation = self.state.plans.template, self.session.rotation
        if rotation is None or template is None or template.changes:
            return None
        if template.request.topics is not rotation.topics or rotation.table is not self.session.table:
            return None
        return template if self._continues(template.request) else None

    def steady_table(self, fetch: FetchRequest, listing: Listing) -> PartitionTable | None:
        """Return the session's table if fetches of several topics continue the session as `fetch` does.

        Like `steady`, for fetches that list the partitions of the table with other offsets and epochs, in any
        order. No stage may change them. `savings` has to find that the incremental fetch saves bytes.
        """
        table = self.session.table
        if table is None or len(listing.keys) < 2 or len(listing) != table.size or self.state.stages:
            return None
        fits = self.session.fits(listing, fetch.isolation_level)
        return table if fits and self._continues(fetch) else None

    def _continues(self, fetch: FetchRequest) -> bool:
        session, table, features = self.session, self.session.table, self.eligibility.features
        if table is None or features is None or not features.keeps_leader_epoch:
            return False
        if fetch.session_id or fetch.session_epoch != SESSIONLESS_EPOCH:
            return False
        if table.undescribed or not table.ends_as_usual or self.limits.keep_order:
            return False
        if session.state is not _ESTABLISHED or session.expected.due or session.expected.readable:
            return False
        return not self.closing and self.eligibility.against(fetch, self.state.client_id, session) is None

    def _pass(self, request: InFlight, client_fetch: ClientFetch, reason: Reason) -> None:
        if reason is _BROKER_NOT_KNOWN:
            self.probe(client_fetch.parsed.frame)
        self.leave_unused(reason)
        self.state.tally.passthrough[reason] += 1
        self._send(request, *self._forwarded(client_fetch))

    def _changed(self, original: FetchRequest) -> FetchRequest:
        fetch, template = original, self.state.plans.template
        for stage in self.state.stages:
            fetch = stage.on_fetch(fetch)
        if template is not None and (fetch is not original or template.changes):
            # The fast path makes the same changes to the next similar fetch.
            template.note_sent(fetch)
        return fetch

    def _decide(self, client_fetch: ClientFetch, fetch: FetchRequest) -> Way | Reason:
        session, eligibility = self.session, self.eligibility
        reason = eligibility.against(fetch, self.state.client_id, session)
        if reason is not None:
            return reason
        if (rotated := session.rotated(fetch.frame, fetch.topics)) is not None:
            return self._continued(client_fetch, fetch, rotated)
        listing = client_fetch.listing
        if listing is None:
            raise RuntimeError("a fetch without a listing is not a plain consumer's")
        # A fetch of another layout or isolation level needs a new session. The broker would accept v7 to v12,
        # or v13 to v18, in one session, but the table's rows have one layout (trap 27). Its entries are valid
        # for one isolation level: up to 2.0 read_uncommitted has LSO -1 (fetch-semantics 6.2, case 98).
        if not session.fits(listing, fetch.isolation_level):
            session.renew()
        if session.has_session:
            return self._next(client_fetch, fetch, listing)
        return self._first(client_fetch, fetch, listing)

    def _next(self, client_fetch: ClientFetch, fetch: FetchRequest, listing: Listing) -> Way | Reason:
        """Continue the session in the form that costs the fewest bytes, or return the reason why not."""
        session = self.session
        incremental = session.incremental(fetch, listing)
        if incremental is None:
            return Reason.TOO_SPARSE
        if len(incremental.delta.added) and not self.has_room(listing):
            return Reason.MEMORY
        form = self.eligibility.savings.weigh(fetch, listing, incremental.delta, len(incremental.frame))
        if form is SessionForm.DELTA:
            return self._continued(client_fetch, fetch, incremental)
        if form is SessionForm.FORWARD:
            return Reason.NOT_SMALLER
        if not session.learn_listing(listing, fetch.isolation_level):
            return Reason.TOO_SPARSE
        return self._request_session(client_fetch) if self.takes_slot() else Reason.NO_SLOT

    def _first(self, client_fetch: ClientFetch, fetch: FetchRequest, listing: Listing) -> Way | Reason:
        """Request a session, or return the reason why not."""
        session, eligibility = self.session, self.eligibility
        if not self.has_room(listing):
            session.forget_list()
            return Reason.MEMORY
        delta = session.learn(listing, fetch.isolation_level)
        if session.table is None:
            return Reason.TOO_SPARSE
        if eligibility.slots.waits(self.state.now):
            return Reason.NO_BROKER_SLOT
        known = eligibility.features_for(fetch) is not None
        if not eligibility.savings.promises(fetch, listing, delta, asks=not known):
            return Reason.NO_SESSION_YET
        # Only now, for it costs 500 bytes: most connections that do not ask for versions need no session.
        if not known:
            return _BROKER_NOT_KNOWN if self.may_have_slot else Reason.NO_SLOT
        return self._request_session(client_fetch) if self.takes_slot() else Reason.NO_SLOT

    def _continued(
        self, client_fetch: ClientFetch, fetch: FetchRequest, delta: Incremental | Rotated
    ) -> Way | Reason:
        """Continue the session with an incremental fetch. If that is not possible, return the reason."""
        session = self.session
        if not session.ask(fetch, delta):
            return Reason.TOO_SPARSE
        if self.state.now >= self.check_at:
            self.check_if_due(fetch)
        frame = delta.frame
        if type(delta) is Rotated:
            sent = len(frame), len(delta.altered), session.session_id
            handler = ExpandedFetch(self, client_fetch, *sent, first=delta.first, learns=self._learns(fetch))
            return handler, frame, _INCREMENTAL
        changes = delta.delta
        sent = len(frame), len(changes.added) + len(changes.altered), session.session_id
        return ExpandedFetch(self, client_fetch, *sent, rows=changes.rows), frame, _INCREMENTAL

    def _learns(self, fetch: FetchRequest) -> bool:
        """Whether a fetch that only rotates the list may become a `SessionPlan`."""
        template, features = self.state.plans.template, self.eligibility.features
        return (
            template is not None
            and template.request.topics is fetch.topics
            and fetch.session_epoch == SESSIONLESS_EPOCH
            and not fetch.session_id
            # Some brokers' entries have to be read for their leader epochs (see `Eligibility.against`).
            and features is not None
            and features.keeps_leader_epoch
            # The order of each response has to be compared.
            and not self.limits.keep_order
        )

    def _request_session(self, client_fetch: ClientFetch) -> Way:
        """Request a session with a full fetch of the partitions in the table."""
        session, fetch, listing = self.session, client_fetch.parsed, client_fetch.listing
        if session.table is None or listing is None:
            raise RuntimeError("a session is asked for what the table holds")
        ids, layout = session.ask_full(), listing.layout
        session.rotation = session.find_rotation(fetch)
        template = build_fetch_request(fetch, layout, (0, SESSIONLESS_EPOCH))
        self.closes_with(template, fetch.body + layout.request_session)
        if layout is fetch.layout:
            frame = fetch.with_session(*ids)
            forwarded = ForwardedFetch(self, client_fetch, len(frame), fetch.partitions, session.session_id)
            return forwarded, frame, FetchKind.FULL
        # v4 to v6 go as v7, the only raise that changes nothing else (fetch-semantics, traps 3 and 4).
        frame, rows = build_fetch_request(fetch, layout, ids, listing.topics()), session.table.locate(listing)
        sent = len(frame), fetch.partitions, session.session_id
        return ExpandedFetch(self, client_fetch, *sent, rows=rows), frame, FetchKind.FULL

    def _forwarded(self, client_fetch: ClientFetch) -> Way:
        fetch = client_fetch.parsed
        frame, session_id, epoch = fetch.frame, fetch.session_id, fetch.session_epoch
        # (0, 0) each time would fill the broker's slots (fetch-semantics 6.7, case 89).
        if self.eligibility.floods and epoch == 0:
            session, session_id, epoch = self.session, 0, SESSIONLESS_EPOCH
            # (id, -1): this fetch also closes the session that the client's last (0, 0) made
            # (fetch-semantics 2.2).
            if session.state is SessionState.NONE:
                session_id, session.session_id = session.session_id, 0
            frame = fetch.with_session(session_id, epoch)
        handler = ForwardedFetch(self, client_fetch, len(frame), fetch.partitions)
        return handler, frame, fetch_kind(session_id, epoch)

    def _send(self, request: InFlight, handler: FetchHandler, frame: bytes, kind: FetchKind) -> None:
        request.handler = request.handler.put(handler)
        self.send(request, frame, kind, handler.partitions)

    def send_again(self, request: InFlight, handler: FetchHandler) -> None:
        way = self._request_session if handler.resend is Action.RESEND_FULL else self._forwarded
        self._send(request, *way(handler.client_fetch))


# A member of an enum is looked up slowly, and hashing one takes a call: what every fetch needs are globals.
_BROKER_NOT_KNOWN: Final = Reason.BROKER_NOT_KNOWN
_FETCH: Final = int(ApiKey.FETCH)
_INCREMENTAL: Final = FetchKind.INCREMENTAL
_ESTABLISHED: Final = SessionState.ESTABLISHED
