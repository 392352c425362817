"""The part of a ListOffsets or OffsetForLeaderEpoch request that only a leader answers. Sans-IO.

A follower answers NOT_LEADER_OR_FOLLOWER for each partition that it does not lead. The gateway asks the
leaders for these partitions, in the client's own words, and puts their entries into the response.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from proxy.core.asking.repeat import ANSWER_SECONDS, CORRELATION_ID, Failed, Repeat
from proxy.core.asking.siblings import Sibling
from proxy.core.asking.state import PartitionState
from proxy.protocol.api import (
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    ApiKey,
    ErrorCode,
    request_header,
    response_header,
)
from proxy.protocol.leader_requests import Leader, Place
from proxy.protocol.messages import Edit, Struct, edited, read
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.schemas import (
    LIST_OFFSETS,
    LIST_OFFSETS_REQUEST,
    OFFSET_FOR_LEADER_EPOCH,
    OFFSET_FOR_LEADER_EPOCH_REQUEST,
)

OFFSETS: Final[Mapping[int, tuple[range, str, str, str, str]]] = {
    int(ApiKey.LIST_OFFSETS): (range(12), LIST_OFFSETS_REQUEST, LIST_OFFSETS, "name", "partition_index"),
    int(ApiKey.OFFSET_FOR_LEADER_EPOCH): (
        range(5),
        OFFSET_FOR_LEADER_EPOCH_REQUEST,
        OFFSET_FOR_LEADER_EPOCH,
        "topic",
        "partition",
    ),
}
"""API key -> the versions that are read, the schemas of request and response, and the field names of a
topic's name and a partition's number."""
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class OffsetsRequest:
    """A client's request for offsets.

    Raises:
        ProtocolError: it does not match its schema.
    """

    __slots__ = ("_message", "_names", "_response", "api_key", "client_id", "frame", "version")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.api_key, self.version, _, client_id, body = request_header(frame, LENGTH_BYTES)
        self.client_id = client_id or b""
        _, schema, self._response, *self._names = OFFSETS[self.api_key]
        self._message = read(schema, self.api_key, self.version, frame, body)

    def some(self, places: Container[Place]) -> bytes:
        """Return the frame of the request for some of its partitions only, with the gateway's own id."""
        message = self._message
        edits: list[Edit] = []
        others: list[Struct] = []
        for topic, partitions in self._topics(message):
            left_out = [each for place, each in partitions if place not in places]
            if len(left_out) == len(partitions):
                others.append(topic)
            else:
                edits += topic.without("partitions", left_out)
        frame = edited(self.frame, [*edits, *message.without("topics", others)])
        ids = REQUEST_CORRELATION_ID
        return b"".join((frame[: ids.start], CORRELATION_ID.to_bytes(4), frame[ids.stop :]))

    def read_response(self, frame: bytes) -> Iterator[tuple[Place, Struct]]:
        """Yield the entries of a response, each with its partition.

        Raises:
            ProtocolError: it does not match its schema.
        """
        _, at = response_header(frame, LENGTH_BYTES, self.api_key, self.version)
        for _, partitions in self._topics(read(self._response, self.api_key, self.version, frame, at)):
            yield from partitions

    def _topics(self, message: Struct) -> list[tuple[Struct, list[tuple[Place, Struct]]]]:
        name, number = self._names
        return [
            (topic, [((topic[name] or b"", each[number]), each) for each in topic["partitions"] or ()])
            for topic in message["topics"] or ()
        ]


class OffsetsRepeat(Repeat):
    """The partitions of a request for offsets that the broker does not lead.

    Args:
        leaders: the leaders to ask. None if a leader is not known.
        left: called with the partitions for which no leader has answered.

    Raises:
        ProtocolError: the response does not match its schema.
    """

    name = "offsets"
    seconds = ANSWER_SECONDS
    may_connect = True

    def __init__(
        self,
        asked: OffsetsRequest,
        frame: bytes,
        leaders: Mapping[Place, Leader | None],
        left: Callable[[Collection[Place]], None],
    ) -> None:
        self.frame = frame
        self.client_id = asked.client_id
        self._asked = asked
        self._left = left
        self.failed = {
            place: Failed(place, *entry.span, b"", leader=leaders[place])
            for place, entry in asked.read_response(frame)
            if entry["error_code"] == _NOT_LEADER and place in leaders
        }

    def ask(self, failed: Sequence[Failed], _wait: float) -> bytes:
        return self._asked.some({each.place for each in failed})

    def read(self, frame: bytes, _sibling: Sibling) -> dict[Place, tuple[bytes, int]]:
        entries: dict[Place, tuple[bytes, int]] = {}
        with suppress(ProtocolError):
            for place, entry in self._asked.read_response(frame):
                # The leader's errors are for the client, except that it does not lead.
                if entry["error_code"] != _NOT_LEADER:
                    start, end = entry.span
                    entries[place] = frame[start:end], 0
        return entries

    def settle(self) -> None:
        failed = self.failed.values()
        left = [each.place for each in failed if each.state is not PartitionState.ANSWERED]
        if left:
            self._left(left)
