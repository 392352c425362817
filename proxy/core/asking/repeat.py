"""The common part of requests that are partly retried at new leaders. Sans-IO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.core.asking.siblings import Sibling
from proxy.core.asking.state import PARTITIONS, Action, Event, PartitionState
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
    state: PartitionState = PartitionState.WANTED
    why: NotFollowed = NotFollowed.NO_LEADER
    """Why the client gets the error, if the partition has failed."""
    entry: bytes = b""
    """The entry in the new leader's response. The client gets it if the partition is answered."""
    record_bytes: int = 0

    @property
    def sure(self) -> bool:
        """Whether the new leader may be asked: the fetch has no leader epoch, or its position was proven."""
        return self.proven or self.epoch < 0

    def is_led_by(self, node_id: int | None) -> bool:
        return self.leader is not None and self.leader.leader_id == node_id

    def on(self, event: Event) -> Action:
        """Go into the next state. Return the action."""
        action, self.state, why = PARTITIONS[self.state, event]
        self.why = why or self.why
        return action


class Repeat(Protocol):
    """The parts of one client request that have to be retried."""

    name: str
    """``fetch`` or ``offsets``."""
    frame: bytes
    """The response with the errors, in the form for the client."""
    failed: dict[Place, Failed]
    client_id: bytes
    by_id: bool = False
    """Whether the request names topics by id."""
    seconds: float
    """How long the response may be held back, in seconds."""
    beyond: float = 0.0
    """The new leader is asked only if earlier requests block the retry there no longer than this many seconds
    after `seconds` have passed."""
    may_connect: bool = False
    """Whether the gateway may open a connection if the client has none, or if it is in use."""

    def wait(self, _seconds: float) -> float:
        """Return how long the new leader may wait for records, in seconds, and no longer than `_seconds`."""
        return 0.0

    def ask(self, failed: Sequence[Failed], wait: float) -> bytes:
        """Return a request for some of the partitions. The leader may wait for records for `wait` seconds."""

    def read(self, frame: bytes, sibling: Sibling) -> dict[Place, tuple[bytes, int]]:
        """Read a new leader's response to the request of `ask`, which was sent through `sibling`. Count it.

        Return the entries of the partitions without an error, with the sizes of their records in bytes.
        """

    def settle(self) -> None:
        """Note that no more answers will come. Let those fail that can't be used."""


def spliced(repeat: Repeat) -> bytes:
    """Return a response in which the answers of new leaders replace the errors."""
    # A broker may name a partition twice.
    answered = (each for each in repeat.failed.values() if each.state is PartitionState.ANSWERED)
    followed = sorted(answered, key=lambda each: each.start)
    if not followed:
        return repeat.frame
    at, parts = LENGTH_BYTES, []
    for each in followed:
        parts += [repeat.frame[at : each.start], each.entry]
        at = each.end
    content = b"".join([*parts, repeat.frame[at:]])
    return len(content).to_bytes(LENGTH_BYTES) + content
