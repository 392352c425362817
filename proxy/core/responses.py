"""Rewrites responses that contain addresses or version ranges. Sans-IO.

`Rewriting` chooses the handler of every request that is not a fetch. A response that has to be rewritten is
buffered until it is complete. Most other responses are forwarded as they arrive.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, Self, TypeVar

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import Eligibility
from proxy.core.events import BrokersAwaited, LoginRefused, Refusal
from proxy.core.in_flight import FORWARD, Forward, Handler, InFlight
from proxy.core.leaders import Leaders
from proxy.protocol import addresses, api_versions
from proxy.protocol.addresses import Resolve, rewrite_endpoints
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES, SASL, ApiKey, response_header
from proxy.protocol.fetch_layout import MAX_VERSION
from proxy.protocol.fetch_response import NODE_ENDPOINTS_TAG
from proxy.protocol.leader_requests import read_leaders
from proxy.protocol.primitives import Buffer, ProtocolError, TagSpan, encode_uvarint, read_int16
from proxy.protocol.schemas import CONFINED

MAX_KEPT: Final = 1 << 28
"""The maximum size of a buffered response. A larger one is refused if it may have addresses. Otherwise it is
forwarded without being parsed."""
_SMALL_REWRITTEN: Final = 1 << 20
"""`Handler.small` for rewritten responses: twice a Metadata response with 10,000 partitions."""
ENDPOINTS_VERSION: Final = 16
"""The first version of a response with the tag NodeEndpoints (KIP-951; fetch-semantics 5)."""
_UNSEEN_TAG: Final = b"\x7f"
"""The number of a tag that is in no Kafka schema, so that clients ignore the tag."""
_SASL: Final = frozenset(map(int, SASL))


class Rewriting:
    """Chooses the handlers of requests other than fetches. It leaves broker addresses unchanged."""

    __slots__ = ("eligibility", "state")

    readdresses: bool = False
    """Whether broker addresses in responses are replaced by the gateway's addresses."""
    tags_from: int = MAX_VERSION + 1
    """From this Fetch version on, responses have tags with broker addresses that must be rewritten."""

    def __init__(self, state: ConnectionState, eligibility: Eligibility) -> None:
        self.state = state
        self.eligibility = eligibility

    def refuses(self, _api_key: int, _version: int) -> bool:
        """Return whether a request must be refused, because addresses in the response can't be rewritten."""
        return False

    def handler(self, api_key: int, version: int, wait: float = 0.0) -> Handler:
        """Return the handler for the response to a request that is forwarded unchanged.

        The request allows the broker to wait for `wait` seconds.
        """
        if api_key == ApiKey.API_VERSIONS:
            return CutVersions(self, api_key, version, wait)
        if api_key in _SASL:
            return Login(self.state, api_key, version)
        return Forward(wait) if wait else FORWARD

    def tags(self, tags: bytes, _spans: Sequence[TagSpan]) -> bytes:
        """Return the body tags of the client's fetch response, rewritten if needed."""
        return tags


class AddressRewriting(Rewriting):
    """Like `Rewriting`, but replaces brokers' addresses in responses by the gateway's (fetch-semantics 6.10).

    `resolve` returns the address of a broker for clients, and `opening` whether its listener is still being
    opened.
    """

    __slots__ = ("leaders", "opening", "resolve")

    readdresses = True
    tags_from = ENDPOINTS_VERSION

    def __init__(
        self,
        state: ConnectionState,
        eligibility: Eligibility,
        resolve: Resolve,
        opening: Callable[[int], bool],
        leaders: Leaders,
    ) -> None:
        super().__init__(state, eligibility)
        self.resolve = resolve
        self.opening = opening
        self.leaders = leaders

    def refuses(self, api_key: int, version: int) -> bool:
        # The gateway does not offer such versions (`api_versions.clamp`). If a client uses one, the gateway
        # closes the connection, as brokers do for versions that they do not offer (fetch-semantics 1.7).
        limits = CONFINED.get(api_key)
        return limits is not None and not limits[0] <= version <= limits[1]

    def handler(self, api_key: int, version: int, wait: float = 0.0) -> Handler:
        if api_key != ApiKey.API_VERSIONS and addresses.may_name(api_key, version):
            return RewriteAddresses(self, api_key, version, wait)
        return super().handler(api_key, version, wait)

    def tags(self, tags: bytes, spans: Sequence[TagSpan]) -> bytes:
        return rewritten_tags(tags, spans, self.resolve)


_Rewriting = TypeVar("_Rewriting", bound=Rewriting)


class Login(Forward):
    """Forwards a response to a SASL request, and reports whether the broker refuses the client."""

    __slots__ = ("_api_key", "_begun", "_state", "_version")

    def __init__(self, state: ConnectionState, api_key: int, version: int) -> None:
        super().__init__()
        self._state = state
        self._api_key = api_key
        self._version = version
        self._begun = False

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        if not self._begun:
            self._begun = True
            with suppress(ProtocolError):  # too few bytes: nothing is reported
                # Both responses of SASL begin with the error code.
                _, at = response_header(chunk, LENGTH_BYTES, self._api_key, self._version)
                error_code, _ = read_int16(chunk, at)
                if error_code:
                    self._state.tokens = 0  # after a refused SaslHandshake v0, the client sends none
                    self._state.events.append(
                        LoginRefused(error_code=error_code, mechanism=self._state.mechanism)
                    )
        return [chunk]


class _Rewrite(Handler, Generic[_Rewriting]):
    """Buffers a response until it is complete, then rewrites it."""

    __slots__ = ("_chunks", "_rewriting", "api_key", "buffered", "version", "wait")
    small = _SMALL_REWRITTEN

    def __init__(self, rewriting: _Rewriting, api_key: int, version: int, wait: float = 0.0) -> None:
        self.wait = wait
        self._rewriting = rewriting
        self._chunks: list[bytes] = []
        self.buffered = 0
        self.api_key = api_key
        self.version = version

    def fresh(self) -> Self:
        return type(self)(self._rewriting, self.api_key, self.version, self.wait)

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        self._rewriting.state.plans.forget_fetch()  # the broker's versions may decide the next fetch
        if not self._chunks:
            size = LENGTH_BYTES + int.from_bytes(chunk[:LENGTH_BYTES])
            if size > MAX_KEPT:
                return self._too_large(chunk, size)
        self._chunks.append(chunk)
        self.buffered += len(chunk)
        return self._whole() if last else []

    def _too_large(self, chunk: bytes, size: int) -> list[Buffer]:
        """Return the bytes for the client at the beginning of a response that is too large to buffer."""
        raise NotImplementedError

    def _whole(self) -> list[Buffer]:
        """Return the complete response in the form that the client gets."""
        raise NotImplementedError

    def _drop(self) -> None:
        self._chunks = []
        self.buffered = 0


class CutVersions(_Rewrite[Rewriting]):
    """Replaces the version ranges of an ApiVersions response by the gateway's. A large one is forwarded."""

    __slots__ = ("forwards",)

    def __init__(self, rewriting: Rewriting, api_key: int, version: int, wait: float = 0.0) -> None:
        super().__init__(rewriting, api_key, version, wait)
        self.forwards = False

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        return [chunk] if self.forwards else super().feed(chunk, last=last)

    def passes(self, _size: int) -> bool:
        return self.forwards

    def _too_large(self, chunk: bytes, _size: int) -> list[Buffer]:
        self.forwards = True
        return [chunk]

    def _whole(self) -> list[Buffer]:
        rewriting, frame = self._rewriting, b"".join(self._chunks)
        self._drop()
        pieces, features = clamped(
            frame,
            self.version,
            rewrites=rewriting.readdresses,
            serves=any(stage.gives_sessions for stage in rewriting.state.stages),
            narrowed=frozenset().union(*(stage.versions for stage in rewriting.state.stages)),
        )
        rewriting.eligibility.know(features)
        for stage in rewriting.state.stages:
            stage.on_versions()
        return pieces


class RewriteAddresses(_Rewrite[AddressRewriting]):
    """Replaces the addresses of brokers in a response by the gateway's listeners."""

    __slots__ = ("awaits_brokers",)

    def __init__(self, rewriting: AddressRewriting, api_key: int, version: int, wait: float = 0.0) -> None:
        super().__init__(rewriting, api_key, version, wait)
        self.awaits_brokers = frozenset()

    def end(self, _request: InFlight) -> bool:
        return not self.awaits_brokers

    def opened(self) -> list[Buffer]:
        return self._rewritten(waits=False)

    def _too_large(self, _chunk: bytes, size: int) -> list[Buffer]:
        self._refuse(Refusal.TOO_LARGE, f"of {size} bytes")
        return []

    def _whole(self) -> list[Buffer]:
        return self._rewritten(waits=True)

    def _rewritten(self, *, waits: bool) -> list[Buffer]:
        """Return the response with the gateway's addresses. Return nothing if it must wait or is refused.

        If it may not wait (`waits`), brokers without a listener are left out.
        """
        rewriting, frame = self._rewriting, b"".join(self._chunks)
        state = rewriting.state
        named: set[int] = set()

        def resolve(node_id: int, host: str, port: int) -> tuple[str, int] | None:
            named.add(node_id)
            return rewriting.resolve(node_id, host, port)

        try:
            head, body = readdressed(frame, self.api_key, self.version, resolve)
            state.plans.learn_unaddressed(self.api_key, self.version, frame)
        except ProtocolError as error:
            self._drop()
            self._refuse(Refusal.NOT_UNDERSTOOD, f"that is not understood: {error}")
            return []
        if waits and (opening := frozenset(filter(rewriting.opening, named))):
            self.awaits_brokers = opening
            state.events.append(BrokersAwaited(node_ids=opening))
            return []
        self.awaits_brokers = frozenset()
        self._drop()
        if self.api_key == ApiKey.METADATA:
            # Only brokers with a listener are left, so no client is sent to another one.
            body = rewriting.leaders.bring_up_to_date(body, self.version, state.now)
        elif named:  # brokers are named with the leaders that have moved
            with suppress(ProtocolError):
                rewriting.leaders.learn(read_leaders(self.api_key, self.version, body))
        return [head, body]

    def _refuse(self, refusal: Refusal, what: str) -> None:
        name = ApiKey(self.api_key).name
        self._rewriting.state.refuse_response(refusal, f"a {name} v{self.version} response {what}")


def clamped(
    frame: bytes,
    version: int,
    *,
    rewrites: bool = True,
    serves: bool = False,
    narrowed: api_versions.Ranges = api_versions.NO_RANGES,
) -> tuple[list[Buffer], api_versions.Features | None]:
    """Return an ApiVersions response with the gateway's version ranges, and the broker's features.

    The features are None if the response is an error, or can't be parsed. In the latter case it is unchanged.
    For the arguments see `api_versions.clamp`.
    """
    try:
        body, features = api_versions.clamp(
            frame[RESPONSE_START_BYTES:], version, rewrites=rewrites, serves=serves, narrowed=narrowed
        )
    except ProtocolError:
        return [frame], None
    return [_head(frame, RESPONSE_START_BYTES, body), body], features


def readdressed(frame: bytes, api_key: int, version: int, resolve: Resolve) -> tuple[bytes, bytes]:
    """Return header and body of a response, with the gateway's addresses in place of brokers' addresses.

    The API is one of `addresses.REWRITTEN`.

    Raises:
        ProtocolError: the response does not match the version.
    """
    if api_key == ApiKey.DESCRIBE_QUORUM:
        # KIP-853: it names listeners of controllers, which can't be reached through the gateway
        # (fetch-semantics 6.10).
        resolve = _nowhere
    _, at = response_header(frame, LENGTH_BYTES, api_key, version)
    body = addresses.rewrite(api_key, version, frame[at:], resolve)
    return _head(frame, at, body), body


def _head(frame: bytes, body_at: int, body: bytes) -> bytes:
    return (body_at - LENGTH_BYTES + len(body)).to_bytes(LENGTH_BYTES) + frame[LENGTH_BYTES:body_at]


def _nowhere(_node_id: int, _host: str, _port: int, /) -> None:
    """No broker has an address for clients."""


def rewritten_tags(tags: bytes, spans: Sequence[TagSpan], resolve: Resolve) -> bytes:
    """Return the tags of a response's body, with the gateway's addresses in NodeEndpoints (KIP-951)."""
    if not spans or spans[0][0] != NODE_ENDPOINTS_TAG:
        return tags
    _, start, end = spans[0]
    try:
        # Java replaces its known address of a node by this one (fetch-semantics 5 and 6.10, case 66).
        payload = rewrite_endpoints(tags[start:end], resolve)
    except ProtocolError:
        return hidden_endpoints(tags, spans)
    parts = [encode_uvarint(len(spans)), encode_uvarint(NODE_ENDPOINTS_TAG), encode_uvarint(len(payload))]
    return b"".join([*parts, payload, tags[end:]])


def hidden_endpoints(tags: bytes, spans: Sequence[TagSpan]) -> bytes:
    """Return body tags of the same size, in which clients find no endpoints.

    The first tag, which has the endpoints, gets a number that no client knows.
    """
    count = len(encode_uvarint(len(spans)))
    return tags[:count] + _UNSEEN_TAG + tags[count + 1 :]
