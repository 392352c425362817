"""Retries an idempotent Produce request at new leaders. Sans-IO."""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Final

from proxy.core.repeat import CORRELATION_ID, MAX_SECONDS, Failed, LeaderAnswer
from proxy.core.siblings import ProduceOrder
from proxy.protocol.api import REQUEST_START_BYTES, ErrorCode
from proxy.protocol.leader_requests import Place
from proxy.protocol.primitives import ProtocolError, read_string
from proxy.protocol.produce import Produced, ProducedEntry, read_response, some_of

MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
"""The errors of batches that may be retried. The second error occurs if a broker refuses a batch, and then
leads again for a moment: the batches after the refused one are out of order. They are retried only if the
refused batch was retried."""


class ProduceRepeat:
    """The batches of a produce request that have to be retried.

    Args:
        produced: the client's request.
        frame: the response with the errors.
        told: the entries of that response, by partition.
        order: the object that knows which batch is next in each sequence.
        left: a function that is called when no part of the request is in flight any more.
    """

    name = "produce"
    by_id = False
    seconds = MAX_SECONDS
    beyond = 0.0
    may_connect = False

    def __init__(
        self,
        produced: Produced,
        frame: bytes,
        told: Mapping[Place, ProducedEntry],
        order: ProduceOrder,
        left: Callable[[], None],
    ) -> None:
        self.frame = frame
        self.client_id = read_string(produced.frame, REQUEST_START_BYTES)[0] or b""
        self._produced = produced
        self._order = order
        self._batches = {(batch.topic, batch.partition): batch for batch in produced.batches}
        self._left = left
        self.failed = {
            place: Failed(place, entry.start, entry.end, self._batches[place].entry)
            for place, entry in told.items()
            if entry.error_code in MOVED and place in self._batches
        }
        self._refused = {place for place in self.failed if told[place].error_code == MOVED[0]}

    def choose(self, followed: Container[Place]) -> int:
        """Remove batches that are not next in their sequence.

        Return how many of the removed batches had error 6 (NOT_LEADER_OR_FOLLOWER).

        Args:
            followed: the partitions whose earlier batches were retried.
        """
        self.failed = {
            place: each
            for place, each in self.failed.items()
            if (place in self._refused or place in followed) and self.may(each)
        }
        return len(self._refused - self.failed.keys())

    def may(self, each: Failed) -> bool:
        """Return whether a batch is still the next one in its sequence."""
        return self._order.is_next(self._batches[each.place])

    def wait(self, _seconds: float) -> float:
        """Return 0, because a broker acknowledges batches as soon as it can."""
        return 0.0

    def ask(self, failed: Sequence[Failed], _wait: float) -> bytes:
        """Return a Produce request that has only the failed batches. The batches are unchanged."""
        return some_of(self._produced, (self._batches[each.place] for each in failed), CORRELATION_ID)

    def read(self, frame: bytes) -> LeaderAnswer:
        """Return a new leader's entries of the partitions without an error."""
        told = LeaderAnswer({})
        with suppress(ProtocolError):
            for place, entry in read_response(frame, self._produced.version).items():
                if not entry.error_code:
                    told.entries[place] = frame[entry.start : entry.end], 0
        return told

    def settle(self) -> None:
        """Note which batches the new leaders have stored, and that no part of the request is in flight."""
        for each in self.failed.values():
            if each.entry:
                self._order.acknowledged(self._batches[each.place])
        self._left()
