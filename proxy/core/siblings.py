"""Finds a client's connections to other brokers. Sans-IO.

When the gateway sends a request for a client (`proxy.core.leader_retry`), it must use a connection of that
client. A broker identifies a client by its authentication, and by its client id (for quotas). Two connections
belong to one client if authentication, client id and host are equal. If one of these is unknown, they do not.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from proxy.protocol.api import LENGTH_BYTES, SASL, ApiKey, is_flexible, request_header
from proxy.protocol.primitives import ProtocolError, read_int32, read_string, read_uvarint

_BEFORE: Final = (*SASL, ApiKey.API_VERSIONS)
"""Requests that brokers answer before a client has authenticated."""
_LOOKED_AT: Final = 8
"""How many of a client's connections to a broker are asked whether they are free."""
_WHOLE: Final = frozenset({b"PLAIN", b"OAUTHBEARER"})
"""SASL mechanisms whose first token has the whole identity and its proof, and is the same each time."""
_SCRAM: Final = b"SCRAM-"
_SCRAM_NONCE: Final = b",r="
"""The separator in SCRAM's first token. The part before it is the same each time (RFC 5802)."""


class ClientIdentity(NamedTuple):
    """The identity of a client, as far as the gateway knows it."""

    host: str
    client_id: str
    authenticated_as: bytes
    """A digest of the identity in the first SASL token, or b"" without SASL."""


class Sibling(Protocol):
    """The methods of a connection that other connections of the same client use."""

    def identity(self) -> ClientIdentity | None:
        """Return the client's identity. None if it is unknown or not proven."""

    def wait_left(self, now: float) -> float:
        """Return how long a request that is sent now may have to wait behind earlier requests, in seconds.

        Return `inf` if no request may be sent, for example while another retry is unanswered.
        """

    def quiet(self, now: float) -> bool:
        """Whether the client has sent nothing here for a while, so that a waiting retry delays nothing."""

    def ask(
        self, frame: bytes, take: Callable[[bytes | None, float], None], now: float, *, partitions: int = -1
    ) -> None:
        """Send one of the gateway's own requests.

        `take` is called with the response (None if it will not arrive) and the time in seconds.
        """

    def count(self, partitions: int, record_bytes: int) -> None:
        """Count a response to a fetch that the gateway itself sent on this connection."""


class Siblings:
    """The connections of all clients of this process, by client and broker."""

    def __init__(self, *, fetches: bool = True) -> None:
        self.fetches = fetches
        """Whether fetches are retried at new leaders."""
        self.connect: Callable[[ClientIdentity, int], Sibling | None] = lambda *_: None
        """Returns a new connection to a broker for a client without authentication, or None."""
        self._own: dict[tuple[ClientIdentity, int], deque[Sibling]] = {}

    def __repr__(self) -> str:
        return f"<Siblings {sum(map(len, self._own.values()))}>"

    def add(self, sibling: Sibling, who: ClientIdentity, node_id: int) -> None:
        self._own.setdefault((who, node_id), deque()).appendleft(sibling)

    def remove(self, sibling: Sibling, who: ClientIdentity, node_id: int) -> None:
        own = self._own[who, node_id]
        own.remove(sibling)
        if not own:
            del self._own[who, node_id]

    def find(self, who: ClientIdentity | None, node_id: int, now: float) -> tuple[Sibling, float] | None:
        """Return a client's usable connection to a broker, and for how many seconds it may block a request.

        A client can have hundreds of connections, because clients on one host may share a client id. The
        search looks only at the first few, and the connections take turns in being first. The result is the
        first quiet connection that does not block, or else the best one that was looked at.
        """
        own = self._own.get((who, node_id), deque[Sibling]()) if who is not None else deque[Sibling]()
        best: tuple[Sibling, float] | None = None
        least = (float("inf"), True)
        looked_at = 0
        for _ in range(len(own)):
            sibling = own[0]
            own.rotate(-1)
            if sibling.identity() != who:
                continue
            left, active = sibling.wait_left(now), not sibling.quiet(now)
            if best is None or (left, active) < least:
                best, least = (sibling, left), (left, active)
            looked_at += 1
            if least <= (0.0, False) or looked_at == _LOOKED_AT:
                break
        return best

    def new(self, who: ClientIdentity | None, node_id: int) -> Sibling | None:
        """Return a connection of the gateway's own to a broker. None if it would not be like the client's.

        It is, if the client has not authenticated: a broker knows both by the gateway's address and
        certificate.
        """
        return self.connect(who, node_id) if who is not None and not who.authenticated_as else None


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
