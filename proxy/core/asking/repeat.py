"""The common part of requests that are partly retried at new leaders. Sans-IO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.core.events import NotFollowed
from proxy.protocol.api import LENGTH_BYTES
from proxy.protocol.leader_requests import Leader, Place

ANSWER_SECONDS: Final = 3.0
"""The longest time for which a response to a request for offsets is held back. A client that gets
the error may read from the leader for long, and clients wait for longer than that."""
CORRELATION_ID: Final = 0x6667_666C
"""The correlation id of the requests by which the gateway retries, or prepares a retry."""
MAX_BYTES: Final = 1 << 20
"""The limit in bytes for a kept response, for a kept request, and for the records of a retried fetch."""


@dataclass(slots=True, eq=False)
class Failed:
    """A partition with an error in the response, because its leader has moved."""

    place: Place
    start: int
    end: int
    """The end of the partition's entry in the response."""
    fields: bytes
    """The bytes of the partition's entry in the client's request."""
    epoch: int = -1
    """The leader epoch that the client sent, or -1 if none."""
    offset: int = -1
    leader: Leader | None = None
    proven: bool = False
    """Whether the client's position was proven to be in the log of `leader`."""
    why: NotFollowed = NotFollowed.NO_LEADER
    """The reason why the partition was not retried successfully. Ignored if `entry` has the new leader's
    entry."""
    entry: bytes = b""
    """The entry in the new leader's response, or b"" without a usable answer."""
    record_bytes: int = 0

    @property
    def sure(self) -> bool:
        """Whether the new leader may be asked: the fetch has no leader epoch, or its position was proven."""
        return self.proven or self.epoch < 0


class Repeat(Protocol):
    """The parts of one client request that have to be retried."""

    name: str
    """``fetch`` or ``offsets``."""
    frame: bytes
    """The response with the errors, in the form for the client."""
    failed: dict[Place, Failed]
    client_id: bytes
    by_id: bool
    """Whether the request names topics by id."""
    seconds: float
    """How long the response may be held back, in seconds."""
    beyond: float
    """The new leader is asked only if earlier requests block the retry there no longer than this many seconds
    after `seconds` have passed."""
    may_connect: bool
    """Whether the gateway may open a connection if the client has none, or if it is in use."""

    def wait(self, seconds: float) -> float:
        """Return how long the new leader may wait for records, in seconds, and no longer than `seconds`."""

    def ask(self, failed: Sequence[Failed], wait: float) -> bytes:
        """Return a request for some of the partitions. The leader may wait for records for `wait` seconds."""

    def read(self, frame: bytes) -> "LeaderAnswer":
        """Read a new leader's response to the request of `ask`."""

    def settle(self) -> None:
        """Note that no more answers will come, and remove answers that can't be used."""


@dataclass(slots=True)
class LeaderAnswer:
    """The usable part of a new leader's response."""

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
