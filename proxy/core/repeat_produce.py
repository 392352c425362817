"""An idempotent produce that is repeated to new leaders. Sans-IO."""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Final

from proxy.core.lanes import Lanes
from proxy.core.repeat import CORRELATION_ID, MAX_SECONDS, Failed, Told
from proxy.protocol.api import REQUEST_START_BYTES, ErrorCode
from proxy.protocol.leader_requests import Place
from proxy.protocol.primitives import ProtocolError, read_string
from proxy.protocol.produce import Produced, ProducedEntry, read_response, some_of

MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
"""Errors of batches that may be repeated. The second one is what a broker that leads again for a moment says
of those behind a batch that it has refused. They are repeated only if that one was."""


class ProduceRepeat:
    """What is to be repeated of a produce.

    Args:
        produced: the client's request.
        frame: the response.
        told: what it says.
        lanes: the order of batches.
        left: is called when nothing of the request is in flight any more.
    """

    name = "produce"
    by_id = False
    seconds = MAX_SECONDS
    beyond = 0.0

    def __init__(
        self,
        produced: Produced,
        frame: bytes,
        told: Mapping[Place, ProducedEntry],
        lanes: Lanes,
        left: Callable[[], None],
    ) -> None:
        self.frame = frame
        self.client_id = read_string(produced.frame, REQUEST_START_BYTES)[0] or b""
        self._produced = produced
        self._lanes = lanes
        self._batches = {(batch.topic, batch.partition): batch for batch in produced.batches}
        self._left = left
        self.failed = {
            place: Failed(place, entry.start, entry.end, self._batches[place].entry)
            for place, entry in told.items()
            if entry.error_code in MOVED and place in self._batches
        }
        self._refused = {place for place in self.failed if told[place].error_code == MOVED[0]}

    def choose(self, followed: Container[Place]) -> int:
        """Leave out what is not next in its sequence; return how many partitions without a leader that are.

        Args:
            followed: the partitions of which batches were repeated before.
        """
        self.failed = {
            place: each
            for place, each in self.failed.items()
            if (place in self._refused or place in followed) and self.may(each)
        }
        return len(self._refused - self.failed.keys())

    def may(self, each: Failed) -> bool:
        """Whether a batch is still the next one of its producer."""
        return self._lanes.is_next(self._batches[each.place])

    def wait(self, _seconds: float) -> float:
        """Return 0: a broker acknowledges as soon as it can."""
        return 0.0

    def ask(self, failed: Sequence[Failed], _wait: float) -> bytes:
        """Return a request with some of the batches, byte for byte."""
        return some_of(self._produced, (self._batches[each.place] for each in failed), CORRELATION_ID)

    def read(self, frame: bytes) -> Told:
        """Read what a new leader says of the partitions that have no error."""
        told = Told({})
        with suppress(ProtocolError):
            for place, entry in read_response(frame, self._produced.version).items():
                if not entry.error_code:
                    told.entries[place] = frame[entry.start : entry.end], 0
        return told

    def settle(self) -> None:
        """Note which batches the new leaders have."""
        for each in self.failed.values():
            if each.entry:
                self._lanes.acknowledged(self._batches[each.place])
        self._left()
