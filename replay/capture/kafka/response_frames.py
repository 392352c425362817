"""The broker's direction of a connection, cut into responses."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from proxy.protocol.api import LENGTH_BYTES, RESPONSE_CORRELATION_ID, RESPONSE_START, RESPONSE_START_BYTES
from proxy.protocol.primitives import Buffer
from replay.capture.kafka.exchange import cut
from replay.capture.kafka.framing import FrameOwner, Framing
from replay.capture.kafka.plausible import is_response_start
from replay.capture.kafka.resync import Plausibility, Search

_JUDGED: Final = 2048
"""The number of bytes of an incomplete response that are enough to judge it."""
_TOPIC_WITHIN: Final = 320
"""The first topic of a fetch response is within this many bytes."""
_MAX_AWAITED: Final = 64
_BLIND: Final = 8 << 20
"""The size in bytes up to which a response without a known request is kept."""


class ResponseFraming(Framing):
    """Cuts the broker's direction into responses."""

    minimum = RESPONSE_START_BYTES

    def __init__(self, conversation: FrameOwner) -> None:
        super().__init__(conversation)
        self._correlation_id = 0

    def open(self, view: memoryview, at: int, time: int) -> bool:
        length, self._correlation_id = RESPONSE_START.unpack_from(view, at)
        if not is_response_start(length):
            return False
        self._size = self._left = size = LENGTH_BYTES + length
        wants = self.conversation.wants_response(self._correlation_id)
        self._wanted = size if wants or (wants is None and size <= _BLIND) else 0
        self._time = time
        return True

    def close(self, pieces: list[Buffer], size: int, missing: int) -> None:
        self.conversation.response_seen(self._correlation_id, pieces, size, missing, self._end_time)
        self.in_tokens, self.conversation.tokens_from_broker = self.conversation.tokens_from_broker, False

    def is_frame(self, buffer: bytearray) -> bool:
        if len(buffer) < self.minimum:
            return False
        # Responses come in order, so the frame after the last token is the first that is awaited.
        return RESPONSE_START.unpack_from(buffer)[1] in islice(self.conversation.awaited(), 1)

    def begin(self) -> None:
        super().begin()
        if self.search is not None and not len(self.search) and not self.search.dropped:
            # The stream is captured from its first byte on: a frame begins there.
            self.search = None

    def start_at(self, place: int) -> None:
        search = self.search
        if search is not None:
            # Complete responses before this place count, too. Their requests were not captured.
            starts = (at for at in sorted(search.row_starts) if at < place)
            place = next((at for at in starts if _leads_to(search, at, place)), place)
        super().start_at(place)

    def pass_over(self, size: int) -> None:
        # Whether the missing bytes matter is decided when the request of the response is known.
        size = min(size, self._wanted)
        self._wanted -= size
        self._pieces += cut(size)

    def mark_broken(self) -> None:
        self.conversation.response_broken = True

    def adopt(self, other: Framing) -> None:
        """Take over the state of `other`, which searched this direction for requests."""
        self.seen_bytes, self.gaps = other.seen_bytes, other.gaps
        self.gap_bytes, self.cut_bytes = other.gap_bytes, other.cut_bytes
        self.unframed_bytes, self.partial_bytes = other.unframed_bytes, other.partial_bytes
        self.headerless_bytes, self.token_bytes = other.headerless_bytes, other.token_bytes
        search = other.search
        if search is not None:
            self.unframed_bytes += search.dropped
            if other.from_start and not search.dropped:
                self.begin()
            self.turned = not other.seen_bytes
            self.replay(search.buffered)
        self.turned |= other.turned

    def candidates(self, buffer: bytearray, start: int) -> Iterator[int]:
        for correlation_id in islice(self.conversation.awaited(), _MAX_AWAITED):
            pattern = correlation_id.to_bytes(4, signed=True)
            at = buffer.find(pattern, start + RESPONSE_CORRELATION_ID.start)
            while at >= 0:
                yield at - RESPONSE_CORRELATION_ID.start
                at = buffer.find(pattern, at + 1)

    def judge(self, search: Search, at: int, *, boundary: bool) -> Plausibility:
        """See `resync.Judge`.

        An expected correlation id can occur anywhere by chance (as a partition number, or in an offset). A
        nested length can end where its response ends. So a place counts in one of two cases. Either the
        contents show that it is a response. Or the frame begins where the broker began to send, and ends
        where the broker stopped or where the next response begins.
        """
        length, correlation_id = RESPONSE_START.unpack_from(search.buffer, at)
        if not is_response_start(length):
            return Plausibility.NO
        end = at + LENGTH_BYTES + length
        if search.is_whole(at, min(end, len(search))):
            is_response = self._is_response(search, at, end, correlation_id)
            if is_response is not None:
                return Plausibility.HERE if is_response else Plausibility.NO
        if at not in search.row_starts:
            return Plausibility.WAIT if len(search) < min(at + _TOPIC_WITHIN, end) else Plausibility.NO
        if end == len(search) and boundary:
            return Plausibility.HERE
        return self._by_follower(search, end, correlation_id)

    def _is_response(self, search: Search, at: int, end: int, correlation_id: int) -> bool | None:
        whole = end <= len(search)
        frame = search.head(at, end - at if whole else _JUDGED)
        return self.conversation.is_response(frame, correlation_id, whole=whole)

    def _by_follower(self, search: Search, end: int, correlation_id: int) -> Plausibility:
        """Judge a response by the next header, which must belong to the response to the next request."""
        if end + RESPONSE_START_BYTES > len(search):
            return Plausibility.WAIT
        length, follower = RESPONSE_START.unpack_from(search.buffer, end)
        awaited = list(islice(self.conversation.awaited(), _MAX_AWAITED))
        place = awaited.index(correlation_id) if correlation_id in awaited else -1
        follows = place >= 0 and awaited[place + 1 : place + 2] == [follower]
        header_known = search.is_whole(end, end + RESPONSE_START_BYTES)
        return (
            Plausibility.HERE if follows and header_known and is_response_start(length) else Plausibility.NO
        )


def _leads_to(search: Search, at: int, place: int) -> bool:
    """Return whether a chain of complete frames begins at one place and ends exactly at another one."""
    if not search.is_whole(at, place):
        return False
    while at + RESPONSE_START_BYTES <= place:
        length, _ = RESPONSE_START.unpack_from(search.buffer, at)
        if not is_response_start(length):
            return False
        at += LENGTH_BYTES + length
    return at == place
