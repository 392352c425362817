"""The broker's side of a connection: its bytes cut into responses, and what each becomes. Sans-IO.

A response belongs to the first request that the broker has not answered. That request's handler makes the
client's bytes of it. They leave in the order of the client's requests. A call processes a bounded number of
responses: what else has come waits for the next one.
"""

from typing import Final

from proxy.core.connection_state import ConnectionState, Stream
from proxy.core.in_flight import AT_ONCE, InFlight
from proxy.core.responses import RewriteAddresses
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_CORRELATION_ID, RESPONSE_START_BYTES, ApiKey

_FETCH: Final = int(ApiKey.FETCH)
"""A plain int, since every response's is compared with it and members of an enum are looked up slowly."""


class BrokerSide:
    """Processes what comes from the broker.

    Args:
        state: that of the connection.
    """

    __slots__ = ("_rest", "_state")

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._rest = b""
        """What came from the broker and was not processed."""

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the broker."""
        state = self._state
        state.now = now
        state.tally.broker.bytes_in += len(data)
        if state.fault is not None:
            return
        if state.response_part:
            data = state.response_part + data
            state.response_part = b""
        elif self._rest:
            data, self._rest = self._rest + data, b""
        expected = state.responses.expected
        at, left_at_once = 0, AT_ONCE
        while at < len(data) and state.fault is None:
            if not state.response_left:
                if not left_at_once:
                    self._rest = data[at:]
                    return
                left_at_once -= 1
                if not expected:
                    state.take_over()
                if not expected and state.stream is not _FRAMES:
                    state.to_client.append(data[at:])
                    return
                if len(data) - at < RESPONSE_START_BYTES and (expected or not state.foreign):
                    state.response_part = data[at:]
                    return
                if not self._begins(data[at : at + RESPONSE_START_BYTES]):
                    if state.stream is not _FRAMES:
                        state.to_client.append(data[at:])
                    return
            left = state.response_left
            chunk = data if at == 0 and len(data) <= left else data[at : at + left]
            state.response_left = left - len(chunk)
            self._response(expected[0], chunk, last=not state.response_left)
            at += len(chunk)

    @property
    def waiting(self) -> int:
        """Bytes that came from the broker and were not processed: call `receive` again."""
        return len(self._rest) if self._state.fault is None else 0

    def end(self) -> None:
        """Forget what was not processed."""
        self._rest = b""

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that wait for these brokers; one without a listener is left out of them."""
        responses, to_client = self._state.responses, self._state.to_client
        for request in list(responses.owed):
            handler = request.handler
            if not isinstance(handler, RewriteAddresses) or not handler.awaits_brokers:
                continue
            if handler.awaits_brokers <= node_ids:
                buffered = handler.buffered
                pieces = handler.opened()
                responses.buffered += handler.buffered - buffered
                to_client += responses.in_turn(request, pieces) + responses.ended(request)

    def _begins(self, data: bytes) -> bool:
        """Note the beginning of a response; return False if it is none that is due."""
        state = self._state
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        expected = state.responses.expected
        if length < RESPONSE_START_BYTES - LENGTH_BYTES:
            state.unread("broker", f"a response of {length} bytes")
        elif not expected:
            state.unread("broker", "a response that nothing asked for")
        elif data[RESPONSE_CORRELATION_ID] != expected[0].correlation_id:
            asked = int.from_bytes(expected[0].correlation_id, signed=True)
            got = int.from_bytes(data[RESPONSE_CORRELATION_ID], signed=True)
            state.unread("broker", f"a response to request {got} where {asked} is due")
        else:
            state.foreign = False
            state.response_left = state.response_size = LENGTH_BYTES + length
            state.meter.began = state.now
            return True
        return False

    def _response(self, request: InFlight, chunk: bytes, *, last: bool) -> None:
        """Take the next bytes of a response."""
        state, handler = self._state, request.handler
        responses, buffered = state.responses, handler.buffered
        pieces = handler.feed(chunk, last=last)
        responses.buffered += handler.buffered - buffered
        if pieces:
            state.to_client += responses.in_turn(request, pieces)
        if not last:
            return
        for stage in state.stages:
            stage.on_answered(request.api_key)
        responses.expected.popleft()
        if request.api_key != _FETCH:
            state.meter.note_other(request.api_key, request.sent_at)
        if handler.end(request) and (waited := responses.ended(request)):
            state.to_client += waited


# A member of an enum is looked up slowly.
_FRAMES: Final = Stream.FRAMES
