"""A connection as a sibling: it sends requests to its broker for other connections of its client. Sans-IO."""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final

from proxy.core.asking.siblings import ClientIdentity, Siblings
from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.events import FetchKind
from proxy.core.histograms import NOT_COUNTED
from proxy.core.own import OwnResponse, TakeReply, own
from proxy.core.requests import readable
from proxy.core.stage import Stage
from proxy.protocol.api import API_KEY, LENGTH_BYTES, SASL, ApiKey, is_flexible, request_header
from proxy.protocol.primitives import ProtocolError, read_int32, read_string, read_uvarint
from proxy.protocol.produce import READ_WITHIN

QUIET_SECONDS: Final = 1.0
"""A connection on which the client has sent nothing for this time counts as idle."""
_REQUEST_SECONDS: Final = 1e-3
"""A safe estimate of the time that a broker needs for a request that does not wait."""
_FETCH: Final = int(ApiKey.FETCH)
_ASKED_OF_SIBLINGS: Final = (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)
_PARKED: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
"""Requests that a broker answers when other members have joined, which may take minutes."""
_BEFORE: Final = (*SASL, ApiKey.API_VERSIONS)
"""Requests that brokers answer before a client has authenticated."""
_WHOLE: Final = frozenset({b"PLAIN", b"OAUTHBEARER"})
"""SASL mechanisms whose first token has the whole identity and its proof, and is the same each time."""
_SCRAM: Final = b"SCRAM-"
_SCRAM_NONCE: Final = b",r="
"""The separator in SCRAM's first token. The part before it is the same each time (RFC 5802)."""


class Authentication:
    """Observes the SASL requests of one connection: who is the client, and is it authenticated?"""

    __slots__ = ("_asked", "_mechanism", "_wanted", "as_whom")

    def __init__(self) -> None:
        self.as_whom: bytes | None = b""
        """A digest of the client's identity, or b"" without SASL. None if the identity is unknown."""
        self._mechanism = b""
        self._wanted = True
        self._asked = False
        """Whether the client has sent a request that requires authentication since its last SASL request."""

    @property
    def done(self) -> bool:
        """Whether the broker has answered a request that requires authentication."""
        return not self._wanted

    def asked(self, api_key: int) -> None:
        self._asked |= api_key not in _BEFORE

    def answered(self, api_key: int) -> None:
        if self._asked and api_key not in _BEFORE:
            self._wanted = False

    def authenticates(self, frame: bytes) -> None:
        """Note a SASL request, or b"" if it was too large to be kept.

        A client may authenticate again on the same connection (KIP-368).
        """
        self._wanted, self._asked = True, False
        try:
            api_key, version, _, _, at = request_header(frame, LENGTH_BYTES)
            if api_key == ApiKey.SASL_HANDSHAKE:
                self._mechanism = read_string(frame, at)[0] or b""
                return
            size, at = (read_uvarint if is_flexible(api_key, version) else read_int32)(frame, at)
            token = frame[at : at + size - bool(is_flexible(api_key, version))]
        except ProtocolError:
            self.as_whom = None
            return
        self.shows(token)

    def shows(self, token: bytes) -> None:
        """Note a SASL token, or b"" if it was too large to be kept."""
        if self.as_whom == b"":  # the first token: a broker lets nobody become another one later (KIP-368)
            self.as_whom = _told(self._mechanism, token)


def _told(mechanism: bytes, token: bytes) -> bytes | None:
    if mechanism.startswith(_SCRAM):
        name, nonce, _ = token.partition(_SCRAM_NONCE)
        token = name if nonce else b""
    elif mechanism not in _WHOLE:
        return None  # GSSAPI: tokens differ each time
    return sha256(mechanism + b"\0" + token).digest() if token else None


def _nothing(*_: object) -> None:
    """Do nothing, because no shell is attached."""


class Role(Stage):
    """Lends a connection to the other connections of its client, as a `Sibling`."""

    __slots__ = (
        "_authentication",
        "_listed",
        "_sent",
        "_sent_at",
        "_state",
        "alarm",
        "node_id",
        "over",
        "siblings",
        "wake",
    )

    def __init__(self, siblings: Siblings, node_id: int | None, state: ConnectionState) -> None:
        self.siblings = siblings
        self.node_id = node_id
        """That of the connection's broker."""
        self.over = False
        """Whether the connection is about to end. If so, no response is held back any more."""
        self.wake: Callable[[], None] = _nothing
        self.alarm: Callable[[float], None] = _nothing
        self._state = state
        self._authentication = Authentication()
        self._listed: ClientIdentity | None = None
        """The identity by which other connections can find this connection."""
        self._sent, self._sent_at = 0, 0.0
        """How many bytes the client had sent by the last call of `quiet` or `_list`, and since when the
        number has not changed."""

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        self.wake, self.alarm = wake, alarm

    # As a sibling

    def identity(self) -> ClientIdentity | None:
        """Return the client's identity. None if it is unknown, or requests can't be sent now."""
        state = self._state
        usable = (
            state.phase is Phase.OPEN
            and state.stream is Stream.FRAMES
            and state.fault is None
            and not (state.from_client.left or state.delayed or self.over)
        )
        return self.who if usable else None

    @property
    def who(self) -> ClientIdentity | None:
        """The client's identity. None if it is unknown or not proven."""
        client_id, as_whom = self._state.client_id, self._authentication.as_whom
        if not (self._authentication.done and client_id) or as_whom is None:
            return None
        return ClientIdentity(self._state.host, client_id, as_whom)

    def wait_left(self, now: float) -> float:
        # A broker handles the requests of a connection one by one (fetch-semantics, trap 16). So a connection
        # gets only one retry at a time, even if many clients have the same client id.
        expected = self._state.queue.expected
        free_at = 0.0
        for request in expected:
            handler, asked = request.handler, request.api_key in _ASKED_OF_SIBLINGS
            if request.api_key in _PARKED or (asked and isinstance(handler, OwnResponse) and handler.is_due):
                return float("inf")
            if handler.fetch is not None:  # its wait begins when the earlier requests are answered
                free_at = max(free_at, request.sent_at) + handler.fetch.max_wait_ms / 1e3
        return max(free_at - now, 0.0) + len(expected) * _REQUEST_SECONDS

    def quiet(self, now: float) -> bool:
        sent = self._state.plans.count().client.bytes_in
        if sent != self._sent:
            self._sent, self._sent_at = sent, now
        return now - self._sent_at >= QUIET_SECONDS

    def ask(self, frame: bytes, take: TakeReply, now: float, *, partitions: int = NOT_COUNTED) -> None:
        self._state.now = now
        api_key = int.from_bytes(frame[API_KEY])
        if api_key == _FETCH:
            self._state.tally.broker.add_fetches(FetchKind.SESSIONLESS, len(frame), partitions)
        else:
            self._state.tally.probe_bytes += len(frame)
        self._state.send(own(frame, OwnResponse(self._state, api_key, take, partitions)), frame)
        self.wake()

    def count(self, partitions: int, record_bytes: int) -> None:
        self._state.tally.broker.add_responses(partitions, record_bytes)

    def catch_up(self, now: float) -> None:
        """Note the time of an answer that came on another connection."""
        self._state.now = max(self._state.now, now)

    # Who the client is

    def on_request(
        self,
        data: bytes,
        size: int,
        api_key: int,
        version: int,  # noqa: ARG002 - as every stage
    ) -> bytes | None:
        state, requests = self._state, self._state.from_client
        if not state.client_id:
            with suppress(ProtocolError):  # not all clients send ApiVersions on each connection
                state.client_id = readable(request_header(data, LENGTH_BYTES)[3])
        if api_key in SASL:
            if len(data) < size < READ_WITHIN:
                requests.need = size
                return None
            self._authenticates(data if len(data) >= size else b"")
        return data

    def on_token(self, token: bytes) -> None:
        self._authentication.shows(token)

    def on_asked(self, api_key: int) -> None:
        self._authentication.asked(api_key)

    def on_answered(self, api_key: int) -> None:
        self._authentication.answered(api_key)
        if self._listed is None and self._authentication.done:
            self._list(self.who)

    def _authenticates(self, frame: bytes) -> None:
        self._state.plans.forget()  # the core has to process the next request
        self._authentication.authenticates(frame)
        self._list(None)

    def _list(self, who: ClientIdentity | None) -> None:
        """Let other connections find this connection by an identity. None to hide it."""
        if self.node_id is None:
            return
        if self._listed is not None:
            self.siblings.remove(self, self._listed, self.node_id)
        self._listed = who
        if who is not None:
            self.siblings.add(self, who, self.node_id)
            self._sent, self._sent_at = self._state.plans.count().client.bytes_in, self._state.now

    # The end

    def release(self) -> None:
        self.over = True

    def lose(self) -> None:
        # What other connections have asked here is lost.
        for request in list(self._state.queue.expected):
            request.handler.lose(self._state.now)

    def end(self) -> None:
        self.attach(_nothing, _nothing)
        self._list(None)
        self.lose()
