"""A session toward a client (KIP-227; fetch-semantics 2.1)."""

from proxy.fetch_manager.partitions import SessionPartitions
from proxy.protocol.fetch_request import FIRST_EPOCH


class FetchSession:
    """One session.

    Args:
        partitions: its partitions.
        uses_ids: the request that created it named topics by id (v13 and later).
        privileged: a follower created it.
        broker: the broker that the client believes to have the session, in any unique form. A client
            counts its sessions by broker, while one cache holds those with all brokers.
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
        "privileged",
        "session_id",
        "silent",
        "uses_ids",
    )

    def __init__(
        self, partitions: SessionPartitions, *, uses_ids: bool, privileged: bool = False, broker: str = ""
    ) -> None:
        self.partitions = partitions
        self.uses_ids = uses_ids
        self.privileged = privileged
        self.broker = broker
        self.session_id = 0
        """0 until the session has a slot."""
        self.epoch = FIRST_EPOCH
        """The epoch that the next fetch must have."""
        self.created_ms = 0
        self.last_used_ms = 0
        self.cached_size = -1
        """The number of partitions at the last touch, -1 before the first."""
        self.cached_weight = 0
        """`SessionPartitions.weight` at the last touch, 0 before the first."""
        self.silent = b""
        """The last full response after its correlation id, if it had no changes for the client and the
        partitions are the same since. An equal response has no changes either. Else b""."""
        self.aged = False
        """At the last touch the session was old enough to be evicted."""

    def __repr__(self) -> str:
        size = len(self.partitions)
        return f"<FetchSession {self.session_id} epoch={self.epoch} partitions={size}>"
