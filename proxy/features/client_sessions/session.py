"""A session that the gateway gives to a client (KIP-227; fetch-semantics 2.1)."""

from proxy.features.client_sessions.partitions import SessionPartitions
from proxy.protocol.fetch_request import FIRST_EPOCH


class FetchSession:
    """A session of one client.

    Args:
        partitions: its partitions.
        uses_ids: whether the request that created it named topics by id (v13 and later).
        broker: the broker that the client has asked for it. A client has one session for each broker. The
            cache has the sessions for all brokers.
    """

    __slots__ = (
        "aged",
        "broker",
        "cached_size",
        "cached_weight",
        "created_ms",
        "epoch",
        "last_used_ms",
        "partitions",
        "session_id",
        "silent",
        "uses_ids",
    )

    def __init__(self, partitions: SessionPartitions, *, uses_ids: bool, broker: str = "") -> None:
        self.partitions = partitions
        self.uses_ids = uses_ids
        self.broker = broker
        self.session_id = 0
        """0 until the session has a slot."""
        self.epoch = FIRST_EPOCH
        """The epoch that the next fetch must have."""
        self.created_ms = 0
        self.last_used_ms = 0
        self.cached_size = 0
        """The number of partitions at the last `touch`, or 0 before the first."""
        self.cached_weight = 0
        """`SessionPartitions.weight` at the last `touch`, or 0 before the first."""
        self.silent = b""
        """The bytes after the correlation id of the last full response, if it had no changes for the client.
        If the next full response is equal, it has no changes either. b"" if the response had changes, or the
        partitions have changed since."""
        self.aged = False
        """Whether the session was old enough to be evicted at the last `touch`."""

    def __repr__(self) -> str:
        size = len(self.partitions)
        return f"<FetchSession {self.session_id} epoch={self.epoch} partitions={size}>"
