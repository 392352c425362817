"""The broker's side of a connection: processes the broker's responses. Sans-IO.

A broker responds in order, so a response belongs to the oldest unanswered request. The handler of that
request makes the client's bytes from the response. The client gets responses in the order of its requests. A
call processes a limited number of responses. The next call processes the remaining bytes.
"""

from typing import Final

from proxy.core.connection_state import ConnectionState, Stream
from proxy.core.in_flight import AT_ONCE, TOKEN, InFlight
from proxy.core.requests import MAX_TOKEN
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_CORRELATION_ID, RESPONSE_START_BYTES, ApiKey
from proxy.protocol.framing import is_frame
from proxy.session.decision import Reason


class BrokerSide:
    """Processes the broker's bytes."""

    __slots__ = ("_state",)

    def __init__(self, state: ConnectionState) -> None:
        self._state = state

    def receive(self, data: bytes, now: float) -> None:
        state = self._state
        state.now = now
        state.tally.broker.bytes_in += len(data)
        if state.fault is not None:
            return
        frames, expected = state.from_broker, state.queue.expected
        whole = is_frame(data) and expected and frames.idle and len(data) >= RESPONSE_START_BYTES
        if whole and data[RESPONSE_CORRELATION_ID] == expected[0].correlation_id:  # as nearly every read
            self._begin(expected[0], len(data))
            self._response(expected[0], data, last=True)
            return
        frames.feed(data)
        left_at_once = AT_ONCE
        while frames and state.fault is None:
            if not frames.left:
                if not left_at_once:
                    return
                left_at_once -= 1
                if not expected and state.stream is not _FRAMES:
                    if state.stream is Stream.TOKENS:  # a token that answers none of the client's
                        state.stop_framing(Stream.OPAQUE, Reason.SASL_V0)
                    state.to_client.append(frames.rest())
                    return
                start = RESPONSE_START_BYTES
                if expected and expected[0].handler is TOKEN:
                    start = LENGTH_BYTES
                if len(frames) < start and (expected or not state.foreign):
                    frames.need = start
                    return
                if not self._begins(frames.peek(RESPONSE_START_BYTES)):
                    return
            chunk = frames.next()
            self._response(expected[0], chunk, last=not frames.left)

    @property
    def waiting(self) -> int:
        """The number of received bytes to process with another call of `receive`. 0 if it can do nothing."""
        state, frames = self._state, self._state.from_broker
        return len(frames) if frames.data and state.fault is None and frames.ready else 0

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that waited for listeners of these brokers. Brokers without one are left out."""
        queue, to_client = self._state.queue, self._state.to_client
        for request in list(queue.owed):
            handler = request.handler
            if handler.awaits_brokers and handler.awaits_brokers <= node_ids:
                buffered = handler.buffered
                pieces = handler.opened()
                queue.buffered += handler.buffered - buffered
                to_client += queue.in_turn(request, pieces) + queue.ended(request)

    def _begins(self, data: bytes) -> bool:
        """Return whether a response begins here. If not, there is a fault, or all bytes are forwarded now."""
        state = self._state
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        expected = state.queue.expected
        if expected and expected[0].handler is TOKEN:
            if not 0 <= length <= MAX_TOKEN:
                state.stop_framing(Stream.OPAQUE, Reason.SASL_V0)
                state.queue.clear()
                return False
            state.from_broker.left = LENGTH_BYTES + length
            self._begin(expected[0], LENGTH_BYTES + length)
            return True
        if length < RESPONSE_START_BYTES - LENGTH_BYTES:
            state.unread("broker", f"a response of {length} bytes")
        elif not expected:
            state.unread("broker", "a response without a request")
        elif data[RESPONSE_CORRELATION_ID] != expected[0].correlation_id:
            asked = int.from_bytes(expected[0].correlation_id, signed=True)
            got = int.from_bytes(data[RESPONSE_CORRELATION_ID], signed=True)
            state.unread("broker", f"a response to request {got} before that to request {asked}")
        else:
            state.from_broker.left = LENGTH_BYTES + length
            self._begin(expected[0], LENGTH_BYTES + length)
            return True
        return False

    def _begin(self, request: InFlight, size: int) -> None:
        state = self._state
        state.foreign = False
        state.response_size = size
        state.meter.began = state.now
        request.handler = request.handler.begin(request)

    def _response(self, request: InFlight, chunk: bytes, *, last: bool) -> None:
        state, handler = self._state, request.handler
        queue, buffered = state.queue, handler.buffered
        if request.api_key == _PRODUCE:
            state.tally.produce_bytes += len(chunk)
        pieces = handler.feed(chunk, last=last)
        queue.buffered += handler.buffered - buffered
        if pieces:
            state.to_client += queue.in_turn(request, pieces)
        if not last:
            return
        for stage in state.stages:
            stage.on_answered(request.api_key)
        queue.expected.popleft()
        if request.api_key != _FETCH:
            state.meter.note_other(request.api_key, request.sent_at)
        if handler.end(request) and (waited := queue.ended(request)):
            state.to_client += waited


# Needed for every response, and members of enums are slow to look up.
_FETCH: Final = int(ApiKey.FETCH)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FRAMES: Final = Stream.FRAMES
