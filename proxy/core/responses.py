"""Responses that are not completed from a session: they are forwarded, or rewritten and forwarded. Sans-IO.

`Forwarding` forwards a fetch response while it walks over it. It keeps only bytes that it must read whole
first: the top-level fields and, at v16 and later, the body's tags, which have brokers' addresses (KIP-951).
`Rewriting` keeps a response that has addresses or version ranges until it is whole, and then rewrites it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from proxy.core.client_sessions import ClientSessions
from proxy.core.eligibility import Eligibility
from proxy.core.events import BrokersAwaited, Event, Refusal
from proxy.core.in_flight import Disposition, InFlightRequest
from proxy.core.leaders import Leaders
from proxy.core.steady import Steady
from proxy.protocol import addresses, api_versions
from proxy.protocol.addresses import Resolve, rewrite_endpoints
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES, ApiKey, response_header
from proxy.protocol.fetch_layout import MAX_VERSION, MIN_VERSION
from proxy.protocol.fetch_response import NODE_ENDPOINTS_TAG, FetchResponseWalk
from proxy.protocol.leader_requests import read_leaders
from proxy.protocol.primitives import Buffer, ProtocolError, TagSpan, encode_uvarint
from proxy.protocol.schemas import CONFINED

MAX_KEPT: Final = 1 << 28
"""A response that is larger (bytes) is not kept: with addresses it is refused, else forwarded unread."""
_MAX_PROBE_RESPONSE: Final = 1 << 16
_ENDPOINTS_VERSION: Final = 16
"""KIP-951: node_endpoints (fetch-semantics 5)."""
_UNSEEN_TAG: Final = b"\x7f"
"""A tag that no schema has; readers skip it."""


Refuse: TypeAlias = Callable[[Refusal, str], None]
"""Ends the connection for a reason, also given in words, before its client is led past the gateway."""


class Rewriting:
    """Puts addresses or versions into responses.

    Args:
        resolve: where brokers are told to be; None leaves addresses as they are.
        opening: tells whether it is not known yet if a broker will have a listener.
        eligibility: is given what the broker can do.
        events: where it is reported that a response waits.
        refuse: ends the connection if addresses can't be rewritten.
        steady: is told which responses name nobody.
        sessions: says whether clients may have sessions with the gateway.
        leaders: brings Metadata up to date, if addresses are rewritten.
    """

    __slots__ = (
        "_eligibility",
        "_events",
        "_leaders",
        "_opening",
        "_refuse",
        "_resolve",
        "_sessions",
        "_steady",
        "grouped",
        "member",
    )

    def __init__(
        self,
        resolve: Resolve | None,
        opening: Callable[[int], bool],
        eligibility: Eligibility,
        events: list[Event],
        refuse: Refuse,
        steady: Steady,
        sessions: ClientSessions,
        leaders: Leaders,
    ) -> None:
        self._sessions = sessions
        self._resolve = resolve
        self._opening = opening
        self._steady = steady
        self._leaders = leaders
        self._eligibility = eligibility
        self._events = events
        self._refuse = refuse
        self.grouped = False
        """There are cooperative groups."""
        self.member = False
        """The client has a lane of one, or may have one."""

    def refuses(self, api_key: int, version: int) -> bool:
        """Whether a request is refused, as its response could have addresses that can't be rewritten.

        Such versions are not offered (`api_versions.clamp`). A broker closes the connection for a version
        that it does not offer (fetch-semantics 1.7), and so does the gateway.
        """
        limits = CONFINED.get(api_key) if self._resolve is not None else None
        return limits is not None and not limits[0] <= version <= limits[1]

    def disposition(self, api_key: int, version: int) -> Disposition:
        """Say what becomes of the response to a request that is forwarded as it is."""
        if api_key == ApiKey.FETCH and MIN_VERSION <= version <= MAX_VERSION:
            return Disposition.WALKED  # KIP-951: there may be addresses in it
        if api_key == ApiKey.API_VERSIONS:
            return Disposition.REWRITTEN
        # Responses that carry addresses (fetch-semantics 6.10).
        if self._resolve is not None and addresses.may_name(api_key, version):
            return Disposition.REWRITTEN
        return Disposition.PASSED

    def receive(self, request: InFlightRequest, chunk: bytes, *, left: int, now: float) -> list[Buffer]:
        """Keep a response until it is whole, then put our addresses or version ranges into it.

        Args:
            request: what it is the response to.
            chunk: its next bytes.
            left: how many are still to come.
            now: in seconds.
        """
        if request.received + left > MAX_KEPT:
            pieces: list[Buffer] = [*request.chunks, chunk]
            request.drop_chunks()
            if request.api_key != ApiKey.API_VERSIONS:
                self._refuse(Refusal.TOO_LARGE, f"{_name(request)} of {request.received + left} bytes")
                return []
            request.disposition = Disposition.PASSED
            return pieces
        request.chunks.append(chunk)
        request.buffered += len(chunk)
        if left:
            return []
        if request.api_key == ApiKey.API_VERSIONS:
            frame = b"".join(request.chunks)
            request.drop_chunks()
            pieces, features = clamped(
                frame,
                request.version,
                rewrites=self._resolve is not None,
                serves=self._sessions.on,
                grouped=self.grouped,
                member=self.member,
            )
            self._eligibility.know(features)
            self._sessions.offered()
            return pieces
        return self.rewritten(request, waits=True, now=now)

    def rewritten(self, request: InFlightRequest, *, waits: bool, now: float) -> list[Buffer]:
        """Return a whole response with our addresses; none if it has to wait for listeners.

        Args:
            request: what it is the response to.
            waits: it may wait; otherwise the brokers without a listener are left out.
            now: in seconds.
        """
        frame = b"".join(request.chunks)
        named: set[int] = set()

        def resolve(node_id: int, host: str, port: int) -> tuple[str, int] | None:
            named.add(node_id)
            return self._resolve(node_id, host, port) if self._resolve is not None else None

        try:
            head, body = readdressed(frame, request.api_key, request.version, resolve)
            self._steady.learn_unaddressed(request, frame)
        except ProtocolError as error:
            request.drop_chunks()
            self._refuse(Refusal.NOT_UNDERSTOOD, f"{_name(request)} that is not understood: {error}")
            return []
        if waits and (opening := frozenset(filter(self._opening, named))):
            request.awaits_brokers = opening
            self._events.append(BrokersAwaited(node_ids=opening))
            return []
        request.awaits_brokers = frozenset()
        request.drop_chunks()
        if request.api_key == ApiKey.METADATA:
            # Its brokers are those that are left in it: nobody is led to one without a listener.
            body = self._leaders.bring_up_to_date(body, request.version, now)
        elif named:  # brokers are named with the leaders that have moved
            with suppress(ProtocolError):
                self._leaders.learn(read_leaders(request.api_key, request.version, body))
        return [head, body]

    def learn(self, request: InFlightRequest, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of the response to the gateway's own ApiVersions request."""
        if request.received <= _MAX_PROBE_RESPONSE:
            request.chunks.append(chunk)
            if last:
                self._eligibility.know(clamped(b"".join(request.chunks), request.version)[1])


def _name(request: InFlightRequest) -> str:
    return f"a {ApiKey(request.api_key).name} v{request.version} response"


def clamped(
    frame: bytes,
    version: int,
    *,
    rewrites: bool = True,
    serves: bool = False,
    grouped: bool = False,
    member: bool = False,
) -> tuple[list[Buffer], api_versions.Features | None]:
    """Return an ApiVersions response with the gateway's limits, and what it tells of the broker.

    Args:
        frame: the whole frame.
        version: that of the request.
        rewrites: whether addresses are rewritten in responses to the same client.
        serves: whether that client may have sessions with the gateway.
        grouped: whether there are cooperative groups.
        member: whether it has a lane of one.
    """
    try:
        body, features = api_versions.clamp(
            frame[RESPONSE_START_BYTES:],
            version,
            rewrites=rewrites,
            serves=serves,
            grouped=grouped,
            member=member,
        )
    except ProtocolError:
        return [frame], None
    return [_head(frame, RESPONSE_START_BYTES, body), body], features


def readdressed(frame: bytes, api_key: int, version: int, resolve: Resolve | None) -> tuple[bytes, bytes]:
    """Return a response with the addresses at which clients reach brokers through the gateway: head and body.

    Args:
        frame: the whole frame.
        api_key: what it is the response to, one of `addresses.REWRITTEN`.
        version: that of the request.
        resolve: where brokers are told to be.

    Raises:
        ProtocolError: it is not what that version says.
    """
    if resolve is None or api_key == ApiKey.DESCRIBE_QUORUM:
        # KIP-853: it names listeners of controllers, which can't be reached through the gateway
        # (fetch-semantics 6.10).
        resolve = _nowhere
    _, at = response_header(frame, LENGTH_BYTES, api_key, version)
    body = addresses.rewrite(api_key, version, frame[at:], resolve)
    return _head(frame, at, body), body


def _head(frame: bytes, body_at: int, body: bytes) -> bytes:
    return (body_at - LENGTH_BYTES + len(body)).to_bytes(LENGTH_BYTES) + frame[LENGTH_BYTES:body_at]


def _nowhere(_node_id: int, _host: str, _port: int, /) -> None:
    """Resolve a broker to no address at all."""


class Forwarding:
    """Forwards walked fetch responses.

    Args:
        resolve: where brokers are told to be; None leaves addresses as they are.
        refuse: ends the connection if addresses can't be rewritten.
    """

    __slots__ = ("_refuse", "_resolve")

    def __init__(self, resolve: Resolve | None, refuse: Refuse) -> None:
        self._resolve = resolve
        self._refuse = refuse

    def receive(
        self, request: InFlightRequest, walk: FetchResponseWalk, chunk: bytes, *, last: bool
    ) -> list[Buffer]:
        """Walk over the next bytes of a response; return what of it can go to the client now.

        If the fetch went through the session and the response has an error, the client gets none of it: the
        fetch is sent again. A response that is not understood is forwarded as it came, unless it may have
        addresses that are to be rewritten.
        """
        if request.understood:
            try:
                walk.feed(chunk)
            except ProtocolError:
                request.understood = False
        if not request.understood or (last and not walk.done):
            if self._resolve is not None and request.version >= _ENDPOINTS_VERSION:
                request.drop_chunks()
                self._refuse(Refusal.NOT_UNDERSTOOD, f"{_name(request)} that is not understood")
                return []
            return self._up_to(request, walk, chunk, request.received)
        # No top-level error of the session's fetch reaches the client: it is sent again without a session. So
        # 70, 71 and 106 never reach a client that has no session (fetch-semantics, trap 6; case 71).
        if request.through_session and walk.error_code:
            request.drop_chunks()
            return []
        tagged = self._resolve is not None and request.version >= _ENDPOINTS_VERSION
        if last:
            if not (walk.tags or request.forwarded or request.chunks or request.through_session):
                request.forwarded = request.received
                return [chunk]  # nearly every response: it came whole, and nothing in it changes
            return self._end(request, walk, chunk, tagged=tagged)
        if not walk.head_known:
            safe = 0
        elif tagged:
            safe = walk.tags_at if walk.tags_at >= 0 else walk.offset
        else:
            safe = request.received
        return self._up_to(request, walk, chunk, safe)

    def _all(self, request: InFlightRequest, chunk: bytes) -> list[Buffer]:
        pieces: list[Buffer] = [*request.chunks, chunk]
        request.forwarded = request.received
        request.drop_chunks()
        return pieces

    def _up_to(
        self, request: InFlightRequest, walk: FetchResponseWalk, chunk: bytes, safe: int
    ) -> list[Buffer]:
        """Forward what lies before the offset `safe` of the frame, keep the rest."""
        start = request.forwarded
        if safe >= request.received:
            pieces = self._all(request, chunk)
        elif safe <= start:
            request.chunks.append(chunk)
            request.buffered += len(chunk)
            return []
        else:
            kept = b"".join((*request.chunks, chunk)) if request.chunks else chunk
            pieces = [memoryview(kept)[: safe - start]]
            request.chunks = [kept[safe - start :]]
            request.buffered = request.received - safe
            request.forwarded = safe
        return self._without_session(request, walk, pieces) if start == 0 and pieces else pieces

    def _without_session(
        self, request: InFlightRequest, walk: FetchResponseWalk, pieces: list[Buffer]
    ) -> list[Buffer]:
        """Take the session's id, which is the gateway's own, out of the first bytes of a response."""
        if not request.through_session or not walk.session_id or not walk.session_id_at:
            return pieces
        at = walk.session_id_at
        first = memoryview(pieces[0])
        if len(first) < at + 4:
            first = memoryview(b"".join(pieces))
            pieces = [first]
        # The client's own value, which is 0 (fetch-semantics, trap 12).
        return [first[:at], bytes(4), first[at + 4 :], *pieces[1:]]

    def _end(
        self, request: InFlightRequest, walk: FetchResponseWalk, chunk: bytes, *, tagged: bool
    ) -> list[Buffer]:
        """Forward the last bytes, their addresses rewritten."""
        start = request.forwarded
        if not tagged or not walk.tags or walk.tags[0][0] != NODE_ENDPOINTS_TAG:
            return self._up_to(request, walk, chunk, request.received)
        pieces = self._up_to(request, walk, chunk, walk.tags_at)
        old = b"".join(request.chunks)
        new = rewritten_tags(old, walk.tags, request.version, self._resolve)
        if start and len(new) != len(old):
            # The frame's length has gone to the client already, so the size must stay. The addresses are
            # hidden. A client that finds none asks for Metadata, as clients often do.
            new = _hidden_endpoints(old, walk.tags)
        elif not start:
            size = request.received - LENGTH_BYTES + len(new) - len(old)
            if len(pieces[0]) < LENGTH_BYTES:
                pieces = [b"".join(pieces)]
            pieces[:1] = [size.to_bytes(LENGTH_BYTES), memoryview(pieces[0])[LENGTH_BYTES:]]
        request.drop_chunks()
        return [*pieces, new]


def rewritten_tags(tags: bytes, spans: Sequence[TagSpan], version: int, resolve: Resolve | None) -> bytes:
    """Return a response's body tags with its node endpoints (KIP-951) where the client is to find them.

    Args:
        tags: the tag buffer as received.
        spans: where the payloads lie in it.
        version: that of the response.
        resolve: where brokers are told to be; None leaves all as it is.
    """
    if resolve is None or version < _ENDPOINTS_VERSION or not spans or spans[0][0] != NODE_ENDPOINTS_TAG:
        return tags
    _, start, end = spans[0]
    try:
        # Java overwrites the address that it knows of a node with this one (fetch-semantics 5 and 6.10, case
        # 66).
        payload = rewrite_endpoints(tags[start:end], resolve)
    except ProtocolError:
        return _hidden_endpoints(tags, spans)
    parts = [encode_uvarint(len(spans)), encode_uvarint(NODE_ENDPOINTS_TAG), encode_uvarint(len(payload))]
    return b"".join([*parts, payload, tags[end:]])


def _hidden_endpoints(tags: bytes, spans: Sequence[TagSpan]) -> bytes:
    """Return body tags of the same size, with a number for the first tag that no client knows."""
    count = len(encode_uvarint(len(spans)))
    return tags[:count] + _UNSEEN_TAG + tags[count + 1 :]
