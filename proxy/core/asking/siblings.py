"""Finds a client's connections to other brokers. Sans-IO.

When the gateway sends a request for a client (`proxy.core.asking.asker`), it must use a connection of that
client. A broker identifies a client by its authentication, and by its client id (for quotas). Two connections
belong to one client if authentication, client id and host are equal. If one of these is unknown, they do not.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_LOOKED_AT: Final = 8
"""How many of a client's connections to a broker are asked whether they are free."""


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

    def __init__(self) -> None:
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
