"""Cuts the two streams of a connection into Kafka frames.

A stream is a chain of frames, and each frame begins with its length. So if the start of one frame is known,
the starts of all later frames follow, even across gaps. If the start of the next frame is lost, `resync`
finds a later one. Every byte counts as part of a whole frame, as part of an incomplete frame, or as unframed.
"""

from collections.abc import Iterable
from typing import ClassVar, Protocol

from proxy.protocol.api import LENGTH_BYTES
from proxy.protocol.primitives import Buffer
from replay.capture.kafka.plausible import MORE, NO, is_response_start, token_size
from replay.capture.kafka.resync import BufferedRun, Plausibility, Search


class FrameOwner(Protocol):
    """Receives the frames of both directions, and holds the state that both directions need."""

    client_id: bytes
    """The client id of earlier requests, b"" before the first one."""
    client: "Framing | None"
    """The client's direction, once it is known."""
    request_broken: bool
    """Whether requests may be missing."""
    response_broken: bool
    """Whether responses may be missing."""
    tokens: bool
    """Whether the client's last request was a SaslHandshake v0. SASL tokens follow, with a length but without
    the header of a frame (KIP-43)."""
    tokens_from_broker: bool
    """Whether the broker's last response was that to a SaslHandshake v0."""
    opaque: bool
    """Whether bytes follow a SaslHandshake v0 that are neither tokens nor frames."""

    def requests_found(self, framing: "Framing") -> None:
        """Note that a direction is the client's. Its requests are reported next."""

    def request_seen(self, frame: bytes, size: int, missing: int, time: int) -> None:
        """Note a request. `frame` is the whole request, or only its start if no more was kept."""

    def response_seen(
        self, correlation_id: int, pieces: list[Buffer], size: int, missing: int, end_time: int
    ) -> None:
        """Note a response."""

    def wants_request(self, api_key: int) -> bool:
        """Return whether requests with this API key are kept whole."""

    def wants_response(self, correlation_id: int) -> bool | None:
        """Return whether to keep the response with this id. None if no request with it is waiting."""

    def awaited(self) -> Iterable[int]:
        """Return the correlation ids of requests without a response so far, in order."""

    def is_response(self, frame: Buffer, correlation_id: int, *, whole: bool) -> bool | None:
        """Return whether a frame is the response to a known request. None if its contents do not tell."""


class Framing:
    """Cuts the stream of one direction into frames, and reports them to the owner."""

    minimum: ClassVar[int]
    """The size of the first fields of a frame. They decide how the rest is read."""

    def __init__(self, conversation: FrameOwner) -> None:
        self.conversation = conversation
        self.search: Search | None = Search(self)
        """Set while the start of the next frame is unknown."""
        self.ignored = False
        """Whether the bytes are not Kafka. Then no more frames are read."""
        self.from_start = False
        self.turned = True
        """Whether the other direction was the last to send."""
        self.in_tokens = False
        """Whether a SASL token may follow in place of a frame."""
        self._token = bytearray()
        """The bytes that were read of the next token, or of the frame after the last one."""
        self._head = b""
        self._head_time = 0
        self._left = 0
        self._size = 0
        self._missing = 0
        self._wanted = 0
        self._pieces: list[Buffer] = []
        self._time = 0
        self._end_time = 0
        self._opened = True
        self.seen_bytes = 0
        self.gaps = 0
        self.gap_bytes = 0
        self.cut_bytes = 0
        self.frame_gap_bytes = 0
        self.unframed_bytes = 0
        self.partial_bytes = 0
        self.headerless = 0
        self.headerless_bytes = 0
        self.token_bytes = 0
        self.resyncs = 0

    @property
    def overlap(self) -> int:
        return self.minimum - 1

    def begin(self) -> None:
        self.from_start = True

    def data(self, view: memoryview, time: int, end_time: int) -> None:
        self.seen_bytes += len(view)
        self._feed(view, time, end_time)

    def gap(self, size: int, *, cut: bool) -> None:
        self.gaps += 1
        self.gap_bytes += size
        if cut:
            self.cut_bytes += size
        self._miss(size)

    def unread(self, size: int, *, partial: bool) -> None:
        """Count captured bytes of TLS that can't be decrypted, as all that follow in this direction."""
        self.seen_bytes += size
        if partial:
            self.partial_bytes += size
            return
        self.unframed_bytes += size
        if not self.ignored:
            self.finish()
            self.ignored = True
            self._head, self._left = b"", 0

    def pass_over_preamble(self, size: int) -> None:
        """Count captured bytes that came before the first frame, and belong to another protocol."""
        self.seen_bytes += size
        self.headerless_bytes += size

    @property
    def idle(self) -> bool:
        """Whether the next byte is known to begin a frame."""
        return self.search is None and not (self.ignored or self._left or self._head or self.in_tokens)

    def skip(self, size: int) -> None:
        """Count `size` bytes of whole frames. The other direction sent something after each of them."""
        self.seen_bytes += size
        self.turned = True

    def other_spoke(self) -> None:
        """Note that the other direction sends next. This may be a response, so a frame may end here."""
        self.turned = True
        if self.search is not None and self.search.buffer:
            self.resync(boundary=True)

    def finish(self) -> None:
        if self.search is not None:
            self.resync(boundary=True)
        if self.search is not None:
            self.unframed_bytes += self.search.dropped + self.search.seen_before(len(self.search))
            self.search = None
            self.ignored = True
        self.partial_bytes += len(self._head) + len(self._token)
        self._token.clear()
        if self._left:
            self.partial_bytes += self._size - self._left - self._missing
            self.frame_gap_bytes -= self._missing

    def resync(self, *, boundary: bool) -> None:
        """Look for the start of a frame in the buffered bytes, and continue from there."""
        search = self.search
        if search is None:
            return
        place = search.look(boundary=boundary)
        if place >= 0:
            self.start_at(place)

    def start_at(self, place: int) -> None:
        """Continue with the frame that begins at this place of the buffered bytes."""
        search = self.search
        if search is None:
            return
        self.search = None
        self.unframed_bytes += search.dropped + search.seen_before(place)
        if place or not self.from_start:
            self.mark_broken()
        self.replay(search.split(place))

    def replay(self, buffered: list[BufferedRun]) -> None:
        for run in buffered:
            self.turned |= run.turned
            if run.payload is None:
                self._miss(run.size)
            else:
                self._feed(run.payload, run.time, run.end_time)

    def _feed(self, view: memoryview, time: int, end_time: int) -> None:
        if self.ignored:
            self.unframed_bytes += len(view)
        elif self.search is not None:
            self.search.data(view, time, end_time, turned=self.turned)
            self.turned = False
            self.resync(boundary=False)
        elif self.in_tokens:
            self._skip_tokens(view, time, end_time)
        else:
            self._frames(view, time, end_time)

    def _skip_tokens(self, view: memoryview, time: int, end_time: int) -> None:
        token = self._token
        if not token:
            self._head_time = time
        token += view
        while token:
            if self.is_frame(token):
                self.in_tokens, self._token = False, bytearray()
                self._feed(memoryview(bytes(token)), self._head_time, end_time)
                return
            size = token_size(token)
            if size == MORE:
                return
            if size == NO:
                self.ignored = self.conversation.opaque = True
                self.unframed_bytes += len(token)
                token.clear()
                return
            self.headerless += 1
            self.headerless_bytes += size
            self.token_bytes += size
            del token[:size]
            self._head_time = time

    def _frames(self, view: memoryview, time: int, end_time: int) -> None:
        at, size = 0, len(view)
        self._end_time = end_time
        while at < size:
            if left := self._left:
                used = min(left, size - at)
                if wanted := self._wanted:
                    piece = view[at : at + min(used, wanted)]
                    self._pieces.append(piece)
                    self._wanted = wanted - len(piece)
                at += used
                self._left = left - used
                if left == used:
                    self._over()
                    if self.in_tokens:
                        self._feed(view[at:], time, end_time)
                        return
            elif self._head or size - at < self.minimum:
                at = self._gather(view, at, time)
                if self.search is not None or self.in_tokens:
                    self._feed(view[at:], time, end_time)
                    return
            elif not self.open(view, at, time):
                self._lose()
                self._feed(view[at:], time, end_time)
                return

    def open(self, view: memoryview, at: int, time: int) -> bool:
        """Set `_left`, `_size`, `_wanted` and `_time` for the frame at a place. Return False without one."""
        raise NotImplementedError

    def close(self, pieces: list[Buffer], size: int, missing: int) -> None:
        """Report a whole frame to the owner."""
        raise NotImplementedError

    def is_frame(self, buffer: bytearray) -> bool:
        """Return whether a frame begins where a SASL token may. False if there are too few bytes to tell."""
        raise NotImplementedError

    def pass_over(self, size: int) -> None:
        """Note that wanted bytes of the frame are missing."""
        raise NotImplementedError

    def mark_broken(self) -> None:
        """Note that frames of this direction may be missing."""
        raise NotImplementedError

    def candidates(self, buffer: bytearray, start: int) -> Iterable[int]:
        raise NotImplementedError

    def judge(self, search: Search, at: int, *, boundary: bool) -> Plausibility:
        raise NotImplementedError

    def _gather(self, view: memoryview, at: int, time: int) -> int:
        """Add bytes to a header that is spread over several runs. Return the offset after them."""
        if not self._head:
            self._head_time = time
        end = min(at + self.minimum - len(self._head), len(view))
        self._head += view[at:end]
        if len(self._head) < self.minimum:
            return end
        head, self._head = memoryview(self._head), b""
        if not self.open(head, 0, self._head_time):
            self._lose()
            self._feed(head, self._head_time, self._end_time)
            return end
        self._pieces.append(head[: self._wanted])
        self._wanted = max(self._wanted - len(head), 0)
        self._left -= len(head)
        if not self._left:
            self._over()
        return end

    def _over(self) -> None:
        size, missing, pieces = self._size, self._missing, self._pieces
        self._pieces = []
        self._missing = 0
        if self._opened:
            self.close(pieces, size, missing)
        else:
            self._opened = True
            self.mark_broken()
            self.headerless += 1
            self.headerless_bytes += size - missing
            self.frame_gap_bytes -= missing

    def _miss(self, size: int) -> None:
        if self.ignored:
            return
        if self.search is not None:
            self.from_start = False
            self.search.gap(size)
            return
        if self.in_tokens:
            self.partial_bytes += len(self._token)
            self._token.clear()
            self.in_tokens = False
        if self._head:
            self._open_headerless()
        inside = min(size, self._left)
        if inside:
            if self._wanted:
                self.pass_over(inside)
            self._missing += inside
            self.frame_gap_bytes += inside
            self._left -= inside
            if not self._left:
                self._over()
        if size > inside:
            self._lose()
            self._miss(size - inside)

    def _open_headerless(self) -> None:
        # Only the length, or a little more, was captured.
        head, self._head = self._head, b""
        length = int.from_bytes(head[:LENGTH_BYTES], signed=True) if len(head) >= LENGTH_BYTES else 0
        if is_response_start(length) and LENGTH_BYTES + length > len(head):
            self._size = LENGTH_BYTES + length
            self._left = self._size - len(head)
            self._opened = False
            self._wanted = 0
        else:
            self.unframed_bytes += len(head)

    def _lose(self) -> None:
        self.resyncs += 1
        self.from_start = False
        self.search = Search(self)
        self.mark_broken()
