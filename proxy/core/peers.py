"""The connections of one client to several brokers: which of them belong together. Sans-IO.

A gateway that sends a request for a client (`proxy.core.follow`) may only use a connection of that client.
For a broker a client is who has authenticated, and its client id, which quotas are by. Connections belong
together if they agree in both, and come from one host. When in doubt they don't.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from proxy.core.lanes import Lanes
from proxy.protocol.api import LENGTH_BYTES, ApiKey, is_flexible, request_header
from proxy.protocol.primitives import ProtocolError, read_int32, read_string, read_uvarint

SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_BEFORE: Final = (*SASL, ApiKey.API_VERSIONS)
"""What brokers answer before a client has authenticated."""
_LOOKED_AT: Final = 8
"""Of more connections of one client none is asked whether it is free. Each is asked in its turn."""
_WHOLE: Final = frozenset({b"PLAIN", b"OAUTHBEARER"})
"""Mechanisms whose first token says who the client is, with the proof: the same each time."""
_SCRAM: Final = b"SCRAM-"
_SCRAM_NONCE: Final = b",r="
"""What stands before it in SCRAM's first token is the same each time (RFC 5802)."""


class Identity(NamedTuple):
    """Who a client is, as far as the gateway can tell."""

    host: str
    client_id: str
    authenticated_as: bytes
    """A digest of what SASL's first token says; b"" without SASL."""


class Peer(Protocol):
    """A connection, for another one of the same client."""

    def identity(self) -> Identity | None:
        """Return whose connection it is; None if that is not known, or not proven."""

    def wait_left(self, now: float) -> float:
        """Return how long a request sent now could be blocked behind earlier ones, in seconds.

        It is `inf` if the request must not be sent.

        A repeat that is not answered yet forbids another one.
        """

    def quiet(self, now: float) -> bool:
        """Whether the client has sent nothing there for a while: a repeat that waits delays nobody."""

    def ask(
        self, frame: bytes, take: Callable[[bytes | None, float], None], now: float, *, partitions: int = -1
    ) -> None:
        """Send a request of the gateway's own.

        Args:
            frame: the whole frame.
            take: takes the response, and the time; None: the response will not come.
            now: in seconds.
            partitions: how many the request lists, if it is a fetch.
        """

    def count(self, partitions: int, record_bytes: int) -> None:
        """Count what came for a fetch of the gateway's own."""


class Peers:
    """The connections of a process, by whose they are and the broker.

    Args:
        produces: idempotent produce requests are repeated, too.
    """

    def __init__(self, *, produces: bool = False) -> None:
        self.produces = produces
        self.lanes = Lanes()
        """The order of idempotent batches."""
        self._own: dict[tuple[Identity, int], deque[Peer]] = {}

    def __repr__(self) -> str:
        return f"<Peers {sum(map(len, self._own.values()))}>"

    def add(self, peer: Peer, who: Identity, node_id: int) -> None:
        """Note a client's connection to a broker."""
        self._own.setdefault((who, node_id), deque()).appendleft(peer)

    def remove(self, peer: Peer, who: Identity, node_id: int) -> None:
        """Forget a connection."""
        own = self._own[who, node_id]
        own.remove(peer)
        if not own:
            del self._own[who, node_id]

    def find(self, who: Identity | None, node_id: int, now: float) -> tuple[Peer, float] | None:
        """Return a connection of the client to a broker, and the seconds to wait there; None: there is none.

        The first quiet one that has nothing to wait for is taken, or the best of the first few. They take
        turns: there may be hundreds, as clients on one host may have one client id.
        """
        own = self._own.get((who, node_id), deque[Peer]()) if who is not None else deque[Peer]()
        best: tuple[Peer, float] | None = None
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
    """How far the authentication of one connection has come, and as whom, seen by its requests."""

    __slots__ = ("_asked", "_mechanism", "_wanted", "as_whom")

    def __init__(self) -> None:
        self.as_whom: bytes | None = b""
        """None: it can't be told."""
        self._mechanism = b""
        self._wanted = True
        """The broker has not answered yet what it answers only to those who have authenticated."""
        self._asked = False
        """The client has sent such a request since."""

    @property
    def done(self) -> bool:
        """Whether the broker takes requests of all kinds."""
        return not self._wanted

    def asked(self, api_key: int) -> None:
        """Note a request of the client that is not of SASL."""
        self._asked |= api_key not in _BEFORE

    def answered(self, api_key: int) -> None:
        """Note that a response has come."""
        if self._asked and api_key not in _BEFORE:
            self._wanted = False

    def authenticates(self, frame: bytes) -> None:
        """Note a request of SASL; with KIP-368 it may come again, and what follows must be SASL as well.

        Args:
            frame: the request; b"" if it was not kept.
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
