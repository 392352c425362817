"""A session toward a client (KIP-227; fetch-semantics 2.1)."""

from proxy.fetch_manager.partitions import SessionPartitions
from proxy.protocol.fetch_request import FIRST_EPOCH


class FetchSession:
    """One session.

    Args:
        partitions: what it holds.
        uses_ids: the request that made it named topics by id (v13 and later).
        privileged: a follower made it.
        broker: which broker it is a session with, in any form that identifies one. A client numbers its
            sessions by broker; here one cache has those of all.
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
        """0 until it has a slot."""
        self.epoch = FIRST_EPOCH
        """The epoch that its next fetch must have."""
        self.created_ms = 0
        self.last_used_ms = 0
        self.cached_size = -1
        """The number of partitions at the last touch, -1 before the first."""
        self.cached_weight = 0
        """`SessionPartitions.weight` at the last touch, 0 before the first."""
        self.silent = b""
        """The last full response, behind its correlation id, if it had nothing to tell the client; b"" if it
        had, or if the partitions were changed since. The same again has nothing to tell either."""
        self.aged = False
        """It was not safe from others any more at the last touch."""

    def __repr__(self) -> str:
        size = len(self.partitions)
        return f"<FetchSession {self.session_id} epoch={self.epoch} partitions={size}>"
