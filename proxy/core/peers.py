"""Finds the connections of one client to several brokers. Sans-IO.

To send a request for a client (`proxy.core.follow`), the gateway may only use a connection of that client. A
broker identifies a client by its authentication, and by its client id (for quotas). Connections belong
together if both are equal, and they come from one host. In case of doubt they do not.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from proxy.core.lanes import ProduceOrder
from proxy.protocol.api import LENGTH_BYTES, ApiKey, is_flexible, request_header
from proxy.protocol.primitives import ProtocolError, read_int32, read_string, read_uvarint

SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_BEFORE: Final = (*SASL, ApiKey.API_VERSIONS)
"""Requests that brokers answer before a client has authenticated."""
_LOOKED_AT: Final = 8
"""If one client has more connections, only this many are asked whether they are free. They take turns."""
_WHOLE: Final = frozenset({b"PLAIN", b"OAUTHBEARER"})
"""Mechanisms whose first token identifies the client, with the proof. The token is the same each time."""
_SCRAM: Final = b"SCRAM-"
_SCRAM_NONCE: Final = b",r="
"""The part before it in SCRAM's first token is the same each time (RFC 5802)."""


class ClientIdentity(NamedTuple):
    """The identity of a client, as far as the gateway knows."""

    host: str
    client_id: str
    authenticated_as: bytes
    """A digest of the identity in SASL's first token, or b"" without SASL."""


class Sibling(Protocol):
    """A connection, as another connection of the same client sees it."""

    def identity(self) -> ClientIdentity | None:
        """Return the client's identity. None if it is unknown or not proven."""

    def wait_left(self, now: float) -> float:
        """Return how long a request sent now could be blocked behind earlier ones, in seconds.

        Return `inf` if the request must not be sent.

        While a retry is unanswered, no other one may be sent.
        """

    def quiet(self, now: float) -> bool:
        """Whether the client has sent nothing there for a while, so that a waiting retry delays nobody."""

    def ask(
        self, frame: bytes, take: Callable[[bytes | None, float], None], now: float, *, partitions: int = -1
    ) -> None:
        """Send one of the gateway's own requests.

        Args:
            frame: the whole frame.
            take: called with the response (None if it will not arrive) and the time.
            now: the time in seconds.
            partitions: how many partitions the request lists, if it is a fetch.
        """

    def count(self, partitions: int, record_bytes: int) -> None:
        """Count the response to the gateway's own fetch."""


class Siblings:
    """The connections of a process, by client and broker.

    Args:
        produces: whether idempotent produce requests are retried, too.
    """

    def __init__(self, *, produces: bool = False) -> None:
        self.produces = produces
        self.lanes = ProduceOrder()
        """The order of idempotent batches."""
        self._own: dict[tuple[ClientIdentity, int], deque[Sibling]] = {}

    def __repr__(self) -> str:
        return f"<Siblings {sum(map(len, self._own.values()))}>"

    def add(self, peer: Sibling, who: ClientIdentity, node_id: int) -> None:
        """Add a client's connection to a broker."""
        self._own.setdefault((who, node_id), deque()).appendleft(peer)

    def remove(self, peer: Sibling, who: ClientIdentity, node_id: int) -> None:
        """Remove a connection."""
        own = self._own[who, node_id]
        own.remove(peer)
        if not own:
            del self._own[who, node_id]

    def find(self, who: ClientIdentity | None, node_id: int, now: float) -> tuple[Sibling, float] | None:
        """Return a connection of the client to a broker, and the seconds to wait there.

        Return None if there is none.

        The first quiet one without a wait is taken, or the best of the first few. Connections take turns,
        because there may be hundreds: clients on one host may share a client id.
        """
        own = self._own.get((who, node_id), deque[Sibling]()) if who is not None else deque[Sibling]()
        best: tuple[Sibling, float] | None = None
        least = (float("inf"), True)
        looked_at = 0
        for _ in range(len(own)):
            peer = own[0]
            own.rotate(-1)
            if peer.identity() != who:
                continue
            left, active = peer.wait_left(now), not peer.quiet(now)
            if best is None or (left, active) < least:
                best, least = (peer, left), (left, active)
            looked_at += 1
            if least <= (0.0, False) or looked_at == _LOOKED_AT:
                break
        return best


class Authentication:
    """The authentication of one connection, observed by its requests: its progress, and the identity."""

    __slots__ = ("_asked", "_mechanism", "_wanted", "as_whom")

    def __init__(self) -> None:
        self.as_whom: bytes | None = b""
        """The identity. None if it is unknown."""
        self._mechanism = b""
        self._wanted = True
        """The broker has not yet answered a request that requires authentication."""
        self._asked = False
        """The client has since sent such a request."""

    @property
    def done(self) -> bool:
        """Whether the broker accepts requests of all kinds."""
        return not self._wanted

    def asked(self, api_key: int) -> None:
        """Note a request of the client other than SASL."""
        self._asked |= api_key not in _BEFORE

    def answered(self, api_key: int) -> None:
        """Note that a response has arrived."""
        if self._asked and api_key not in _BEFORE:
            self._wanted = False

    def authenticates(self, frame: bytes) -> None:
        """Note a SASL request.

        With KIP-368 it may come again, and then the next requests must be SASL as well.

        Args:
            frame: the request, or b"" if it was not kept.
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
        if self.as_whom == b"":  # the first token: a broker lets nobody become another one later (KIP-368)
            self.as_whom = _told(self._mechanism, token)


def _told(mechanism: bytes, token: bytes) -> bytes | None:
    if mechanism.startswith(_SCRAM):
        name, nonce, _ = token.partition(_SCRAM_NONCE)
        token = name if nonce else b""
    elif mechanism not in _WHOLE:
        return None  # GSSAPI: tokens differ each time
    return sha256(mechanism + b"\0" + token).digest() if token else None
