"""A request of which a part is repeated to new leaders: what fetch and produce have in common. Sans-IO."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.core.events import NotFollowed
from proxy.protocol.api import LENGTH_BYTES
from proxy.protocol.leader_requests import Leader, Place

CORRELATION_ID: Final = 0x6667_666C
"""Of the gateway's own requests."""
MAX_SECONDS: Final = 1.0
"""No response is held longer."""
MAX_BYTES: Final = 1 << 20
"""A larger fetch response or produce request is not kept, and no more records are asked for than this."""


@dataclass(slots=True, eq=False)
class Failed:
    """A partition whose entry in a response is an error."""

    place: Place
    start: int
    end: int
    """Where its entry stands in the response."""
    fields: bytes
    """Its entry in the client's request."""
    epoch: int = -1
    """The leader epoch that the client sent; -1: none."""
    offset: int = -1
    leader: Leader | None = None
    proven: bool = False
    """The client's position is one in the log of that leader."""
    why: NotFollowed = NotFollowed.NO_LEADER
    """What stands in the way, until it is followed."""
    entry: bytes = b""
    """What the new leader says."""
    record_bytes: int = 0

    @property
    def sure(self) -> bool:
        """Whether the new leader may be asked: there is no epoch that fences the client, or it was proven."""
        return self.proven or self.epoch < 0


class Repeat(Protocol):
    """What is to be repeated of one request."""

    name: str
    """``fetch`` or ``produce``."""
    frame: bytes
    """The response, with errors."""
    failed: dict[Place, Failed]
    """By place."""
    client_id: bytes
    by_id: bool
    """Topics are named by their ids."""
    seconds: float
    """How long the response may be held."""
    beyond: float
    """The new leader is asked even if other requests there may take so much longer than that."""

    def choose(self, followed: Container[Place]) -> int:
        """Leave out what may not be repeated; return how many partitions without a leader that are.

        Args:
            followed: the partitions of which requests were repeated before.
        """

    def may(self, each: Failed) -> bool:
        """Whether a partition may be repeated now."""

    def wait(self, seconds: float) -> float:
        """Return how many seconds may pass until the client is told that there is nothing.

        Args:
            seconds: no more may pass than this.
        """

    def ask(self, failed: Sequence[Failed], wait: float) -> bytes:
        """Return a request for some of the partitions.

        Args:
            failed: these.
            wait: how many seconds the new leader may wait, if it has nothing to say.
        """

    def read(self, frame: bytes) -> "Told":
        """Read the response to it."""

    def settle(self) -> None:
        """Note that no more comes: what can't be used is left out."""


@dataclass(slots=True)
class Told:
    """What a new leader says."""

    entries: dict[Place, tuple[bytes, int]]
    """Of partitions without an error: the entry, and how many bytes of it are records."""
    partitions: int = 0
    record_bytes: int = 0


def spliced(repeat: Repeat) -> bytes:
    """Return a response with what new leaders have said in the place of errors."""
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
