"""Sessions that the gateway gives to clients: handles fetches that request or use such a session. Sans-IO.

The gateway turns such a fetch into a full fetch, and handles it like any client's (`Fetches`), so it may use
a session with the broker. The full response is turned into that of the client's session.

With ``--client-sessions auto``, the client's request for a session is first sent to the broker. If the broker
gives a session, the response is forwarded unchanged. If not, the gateway gives one. So the client sees a
refusal only if the gateway gives it no session either. After a refusal, franz-go would never request a
session again (fetch-semantics 6.7).
"""

from contextlib import suppress
from struct import Struct
from typing import Final

from proxy.core.connection_state import ConnectionState
from proxy.core.events import fetch_kind
from proxy.core.in_flight import FORWARD, Around, ClientFetch, FetchHandler, Handler, InFlight
from proxy.core.stage import Stage
from proxy.features.client_sessions.contexts import (
    FetchContext,
    FinalContext,
    FullFetchContext,
    IncrementalFetchContext,
    SessionlessFetchContext,
)
from proxy.features.client_sessions.manager import FetchManager
from proxy.features.client_sessions.session import FetchSession
from proxy.protocol.api import LENGTH_BYTES, REQUEST_CORRELATION_ID, ApiKey, request_header
from proxy.protocol.fetch_layout import LAYOUTS, MAX_VERSION, SESSION, SESSION_VERSION
from proxy.protocol.fetch_request import (
    FIRST_EPOCH,
    INITIAL_EPOCH,
    SESSIONLESS_EPOCH,
    FetchRequest,
    parse_fetch_request,
)
from proxy.protocol.primitives import Buffer, ProtocolError, Truncated

_FLOODS: Final = 3
"""After this many consecutive unused sessions, a client gets no more sessions."""
_FETCH: Final = int(ApiKey.FETCH)
_MAX_FETCH_HEAD: Final = 1 << 16
"""How many bytes are buffered until the session id and epoch of a fetch have arrived. Real clients have
shorter headers."""
_REPLICA_ID: Final = Struct(">i")
_CONSUMER: Final = -1


class Serve(Around):
    """Makes the response for the client's session from the broker's full response, which `inner` makes.

    The client's next fetch is allowed at the end.
    """

    __slots__ = ("_context", "_sessions")

    def __init__(
        self, inner: Handler, client_fetch: ClientFetch, context: FetchContext, sessions: "ClientSessions"
    ) -> None:
        super().__init__(inner, client_fetch)
        self._context = context
        self._sessions = sessions
        if not isinstance(context, SessionlessFetchContext):
            sessions.holds = True

    @property
    def _kept(self) -> int:
        return 0 if isinstance(self._context, SessionlessFetchContext) else self._context.buffered

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        pieces = self._inner.feed(chunk, last=last)
        if self._innermost.resend is not None:
            return pieces
        if last and not pieces and not isinstance(self._context, SessionlessFetchContext):
            self._context.drop()  # the response was refused, so the connection ends
        return self._sessions.receive(self._context, pieces, last=last)

    def end(self, request: InFlight) -> bool:
        ended = self._inner.end(request)
        if ended and not isinstance(self._context, SessionlessFetchContext):
            self._sessions.holds = False
        return ended


class ClientSessions(Stage):
    """Serves the sessions of one client."""

    __slots__ = ("_broker", "_context", "_made", "_manager", "_state", "_unused", "holds")
    gives_sessions = True

    def __init__(self, manager: FetchManager, state: ConnectionState) -> None:
        self._manager = manager
        self._state = state
        self._broker = state.broker
        self._context: FetchContext | None = None
        """The context of the fetch that is being processed, up to `around_fetch`. None if it is forwarded
        unchanged."""
        self._made: FetchSession | None = None
        """The session that the gateway last gave to the client. None if the client got none, or one from the
        broker."""
        self._unused = 0
        """The number of sessions in a row that the client got but did not use."""
        self.holds = False
        """Whether the client's next fetch has to wait, because an earlier fetch in a session with the gateway
        has no response yet. A broker handles the requests of a connection one after the other
        (fetch-semantics, trap 16), so the next fetch may already have the next epoch."""

    def on_versions(self) -> None:
        features = self._state.fetches.eligibility.features
        if features is not None and features.is_raised:
            self._manager.raised = True

    def before_fetch(self, frame: bytes, version: int, body: int) -> tuple[bytes, int] | None:
        if version < SESSION_VERSION:
            return frame, version
        if self.holds:
            self._state.from_client.held = True
            return None
        if (served := self._serve(frame, version, body)) is not None:
            sent_version, self._context = served
            return None if self._context is None else (self._context.request, sent_version)
        if self._lacks_sessions(version):
            self._state.fail("client", "a fetch that can't be read, for a broker without sessions")
            return None
        with suppress(ProtocolError):  # it is so short that it is none
            frame = self._unserved(frame, version, body)
        return frame, version

    def on_request(self, data: bytes, size: int, api_key: int, version: int) -> bytes | None:
        if api_key != _FETCH or not SESSION_VERSION <= version <= MAX_VERSION:
            return data
        if self._lacks_sessions(version):
            self._state.fail("client", "a fetch that is too large to be read, for a broker without sessions")
            return None
        try:
            return self._unserved(data, version, request_header(data, LENGTH_BYTES)[4])
        except ProtocolError:
            if len(data) >= min(size, _MAX_FETCH_HEAD):
                return data
            self._state.from_client.need = min(size, 2 * len(data))
            return None

    def around_fetch(self, request: InFlight, client_fetch: ClientFetch) -> Handler:
        context, self._context = self._context, None
        if context is None:
            return request.handler
        client_fetch.direct = False
        client_fetch.listed = not isinstance(context, IncrementalFetchContext)
        return Serve(request.handler, client_fetch, context, self)

    def on_fetched(self, handler: FetchHandler) -> None:
        walk = handler.walk
        # The broker gave the client this session: no session of the gateway may have its id.
        if walk is not None and walk.session_id > 0 and handler.session_id is None:
            self._manager.cache.leave(walk.session_id)

    def _lacks_sessions(self, version: int) -> bool:
        """Return whether the version of a fetch must be lowered, because the broker supports no sessions.

        A client may ask only one broker for its versions. If that broker offered v7, the client can send v7
        to this broker without asking. Every broker since 1.0 supports v6.
        """
        if version != SESSION_VERSION:
            return False
        features = self._state.fetches.eligibility.known
        return self._manager.raised if features is None else features.is_raised

    def _serve(self, frame: bytes, version: int, body: int) -> tuple[int, FetchContext | None] | None:
        """Process a complete fetch of v7 or later. Return None if it is forwarded unchanged.

        Otherwise return the version of the full fetch to send, and the context that makes the client's
        response. Without a context, the gateway has already answered the client, and no fetch is sent.
        """
        manager, layout = self._manager, LAYOUTS[version]
        if len(frame) < body + layout.request_head:
            return None
        session_id, epoch = SESSION.unpack_from(frame, body + layout.request_session)
        lacking = self._lacks_sessions(version)
        if not lacking and not manager.serves(session_id, epoch, self._broker):
            return None
        try:
            fetch = parse_fetch_request(frame, version, body)
        except ProtocolError:
            return None
        floods = self._floods(fetch)
        if floods and manager.asks_broker and not lacking:
            return None
        sent_version = version
        if lacking:
            features = self._state.fetches.eligibility.known
            sent_version = SESSION_VERSION - 1 if features is None else features.fetch_max
        context = manager.context(
            fetch, self._now_ms, broker=self._broker, version=sent_version, gives=not floods or lacking
        )
        if context is None:
            return None
        self._count(fetch)
        if isinstance(context, FinalContext):
            self._respond(frame[REQUEST_CORRELATION_ID], context.response)
            return sent_version, None
        return sent_version, context

    def _unserved(self, data: bytes, version: int, body: int) -> bytes:
        """Return the bytes to send for a fetch, or for its beginning, that was not read.

        The gateway can't serve the session of such a fetch. So it removes the session id and epoch in two
        cases: if a consumer's fetch uses a session of the gateway, or if it requests a session that only the
        gateway could give (``--client-sessions on``). From the response, the client then learns that it has
        no session.

        Raises:
            Truncated: `data` ends before the end of the session's epoch.
        """
        manager, layout = self._manager, LAYOUTS[version]
        at = body + layout.request_session
        if len(data) < body + layout.request_head:
            raise Truncated("fetch request", body)
        if layout.request_limits and _REPLICA_ID.unpack_from(data, body)[0] != _CONSUMER:
            return data
        session_id, epoch = SESSION.unpack_from(data, at)
        if not manager.takes_over(session_id, epoch, self._broker):
            return data
        return b"".join((data[:at], SESSION.pack(0, SESSIONLESS_EPOCH), data[at + SESSION.size :]))

    def receive(self, context: FetchContext, pieces: list[Buffer], *, last: bool) -> list[Buffer]:
        """Return the bytes for the client, for the next bytes of the broker's full response."""
        sent: list[Buffer] = []
        for number, piece in enumerate(pieces, 1):
            sent += context.receive(piece, self._now_ms, last=last and number == len(pieces))
        client = self._state.tally.client
        client.fetch_response_bytes += sum(map(len, sent))
        if last and isinstance(context, FullFetchContext):
            self._made = context.session
        elif last and isinstance(context, IncrementalFetchContext):
            client.add_responses(context.partitions, context.record_bytes)
        return sent

    def end(self) -> None:
        self.holds, self._made = False, None  # the client's session outlives the connection

    @property
    def _now_ms(self) -> int:
        return round(self._state.now * 1000)

    def _floods(self, fetch: FetchRequest) -> bool:
        """Return whether the client requests a session with each fetch but uses none (fetch-semantics 6.7).

        A last session that was not used is removed. One that the client has closed does not count as unused.
        """
        if fetch.session_id or fetch.session_epoch != INITIAL_EPOCH:
            return False
        made, self._made = self._made, None
        if made is not None:
            cache = self._manager.cache
            unused = made.epoch == FIRST_EPOCH and cache.get(made.session_id) is made
            self._unused = self._unused + 1 if unused else 0
            if unused:
                cache.remove(made)
        return self._unused >= _FLOODS

    def _count(self, fetch: FetchRequest) -> None:
        kind = fetch_kind(fetch.session_id, fetch.session_epoch)
        self._state.tally.client.add_fetches(kind, len(fetch.frame), fetch.partitions)

    def _respond(self, correlation_id: bytes, response: bytes) -> None:
        queue = self._state.queue
        request = InFlight(_FETCH, 0, correlation_id, FORWARD)
        queue.owed.append(request)
        self._state.tally.client.fetch_response_bytes += len(response)
        self._state.meter.skip(0, len(response))
        self._state.to_client += queue.in_turn(request, [response]) + queue.ended(request)
