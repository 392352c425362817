"""A request that is partly retried at new leaders: the common part of fetch and produce. Sans-IO."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.core.events import NotFollowed
from proxy.protocol.api import LENGTH_BYTES
from proxy.protocol.leader_requests import Leader, Place

CORRELATION_ID: Final = 0x6667_666C
"""The correlation id of the gateway's own requests."""
MAX_SECONDS: Final = 1.0
"""The longest time for which a response is held back."""
MAX_BYTES: Final = 1 << 20
"""The limit of bytes: for a fetch response or produce request that is kept, and for the records of a
retried fetch."""


@dataclass(slots=True, eq=False)
class Failed:
    """A partition whose entry in a response is an error."""

    place: Place
    start: int
    end: int
    """Offset after its entry in the response."""
    fields: bytes
    """Its entry in the client's request."""
    epoch: int = -1
    """The leader epoch that the client sent, or -1 if none."""
    offset: int = -1
    leader: Leader | None = None
    proven: bool = False
    """Whether the client's position was proven to be in that leader's log."""
    why: NotFollowed = NotFollowed.NO_LEADER
    """The reason why it is not followed, as long as it is not."""
    entry: bytes = b""
    """The new leader's entry."""
    record_bytes: int = 0

    @property
    def sure(self) -> bool:
        """Whether the new leader may be asked: no epoch fences the client, or its position was proven."""
        return self.proven or self.epoch < 0


class Repeat(Protocol):
    """The parts of one request to retry."""

    name: str
    """``fetch`` or ``produce``."""
    frame: bytes
    """The response with the errors."""
    failed: dict[Place, Failed]
    """Failed partitions by topic and partition."""
    client_id: bytes
    by_id: bool
    """Whether topics are named by ids."""
    seconds: float
    """How long the response may be held back, in seconds."""
    beyond: float
    """The new leader is asked even if other requests there may take this much longer than that."""

    def choose(self, followed: Container[Place]) -> int:
        """Remove the partitions that may not be retried. Return how many of them had no leader.

        Args:
            followed: the partitions that were retried before.
        """

    def may(self, each: Failed) -> bool:
        """Return whether a partition may be retried now."""

    def wait(self, seconds: float) -> float:
        """Return how long the client may wait for an empty answer, in seconds.

        Args:
            seconds: the upper limit.
        """

    def ask(self, failed: Sequence[Failed], wait: float) -> bytes:
        """Return a request for some of the partitions.

        Args:
            failed: these partitions.
            wait: how long the new leader may wait for records, in seconds.
        """

    def read(self, frame: bytes) -> "LeaderAnswer":
        """Read the response to it."""

    def settle(self) -> None:
        """Note that no more answers are expected. Unusable ones are left out."""


@dataclass(slots=True)
class LeaderAnswer:
    """The answer of a new leader."""

    entries: dict[Place, tuple[bytes, int]]
    """For each partition without an error: its entry, and the size of its records in bytes."""
    partitions: int = 0
    record_bytes: int = 0


def spliced(repeat: Repeat) -> bytes:
    """Return a response in which the answers of new leaders replace the errors."""
    # A broker may name a partition twice.
    followed = sorted((each for each in repeat.failed.values() if each.entry), key=lambda each: each.start)
    if not followed:
        return repeat.frame
    at, parts = LENGTH_BYTES, []
    for each in followed:
        parts += [repeat.frame[at : each.start], each.entry]
        at = each.end
    content = b"".join([*parts, repeat.frame[at:]])
    return len(content).to_bytes(LENGTH_BYTES) + content
