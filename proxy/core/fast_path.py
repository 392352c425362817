"""The fast path: forwards frames that match a plan, without the rest of the core. Sans-IO.

At each wake-up the CPU caches are cold, so an exchange costs more for memory access than for computation. So
`FastPath` gets each frame first, compares a few bytes, and uses little memory. Its requests are put into the
same queue as all other requests. The rest of the core processes frames that match no plan.
"""

from typing import Final

from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.in_flight import MAX_IN_FLIGHT, InFlight
from proxy.protocol.api import (
    API_KEY_AND_VERSION,
    LENGTH_BYTES,
    REQUEST_CORRELATION_ID,
    REQUEST_START_BYTES,
    RESPONSE_CORRELATION_ID,
    RESPONSE_START_BYTES,
    ApiKey,
)

MAX_JOINED: Final = 1 << 14
"""The maximum size of a response that `join` buffers until it is complete, in bytes."""
_AT_ONCE: Final = range(1024)
"""The maximum number of requests that one call handles. For requests without a response, there is no other
limit."""
_ROOM: Final = MAX_IN_FLIGHT - 1
"""The maximum number of requests in flight for the fast path. With one more request, the core stops reading
from the client."""
_FETCH: Final = int(ApiKey.FETCH)
_PRODUCE: Final = int(ApiKey.PRODUCE)


class FastPath:
    """The fast path of one connection. Tests turn it off (`on`) to test the rest of the core alone."""

    __slots__ = (
        "_broker",
        "_client",
        "_expected",
        "_max_request_bytes",
        "_on",
        "_owed",
        "_part",
        "_plans",
        "_state",
        "_takes_requests",
        "_takes_responses",
        "began",
    )

    def __init__(self, state: ConnectionState, *, max_request_bytes: int, on: bool) -> None:
        self._state, self._plans = state, state.plans
        self._expected, self._owed = state.queue.expected, state.queue.owed
        self._client, self._broker = state.tally.client, state.tally.broker
        self._max_request_bytes = max_request_bytes
        self._on = on
        self._takes_requests = self._takes_responses = False
        self._part = b""
        """The beginning of an incomplete response that `join` buffers."""
        self.began = 0.0
        """When the first byte of the last result of `join` was read, in seconds. Before, when the broker was
        connected."""

    def review(self) -> None:
        """Decide whether the fast path may process the next frames, after the rest of the core has run."""
        state = self._state
        self._expected, self._owed = state.queue.expected, state.queue.owed
        self._on = on = self._on and self._plans.on and state.fault is None
        # The broker is connected: it has sent something.
        self._takes_requests = (
            on
            and state.stream is _FRAMES
            and state.phase is _OPEN
            and not (state.foreign or state.queue.resending)
            and state.from_client.idle
            and state.tally.broker.bytes_in > 0
        )
        # Each response may let waiting bytes go on, or let the client be read again.
        full = len(self._owed) >= MAX_IN_FLIGHT
        self._takes_responses = on and state.from_broker.idle and not (state.from_client.waits or full)

    def request(self, data: bytes, now: float) -> tuple[int, bytes]:
        """Process the bytes of one read as far as they match plans.

        Return the number of processed bytes, and the bytes to send to the broker. The rest of the core must
        process the bytes that are left.
        """
        if not self._takes_requests:
            return self._rest_of_request(data)
        size, plans, owed = len(data), self._plans, self._owed
        plan = plans.fetch
        if plan is not None and len(owed) < _ROOM and (sent := plan.request(data, now)) is not None:
            request = plan.spare
            if request is None:
                request = InFlight(_FETCH, plan.version, b"", plan)
            plan.spare = None
            request.correlation_id, request.sent_at = data[REQUEST_CORRELATION_ID], now
            owed.append(request)
            self._expected.append(request)
            return size, sent
        at = 0
        for _ in _AT_ONCE:
            if at >= size or len(owed) >= _ROOM:
                break
            length = int.from_bytes(data[at : at + LENGTH_BYTES])
            end = at + LENGTH_BYTES + length
            if end > size or length > self._max_request_bytes:
                break
            frame = data if end - at == size else data[at:end]
            other = plans.requests.get(frame[API_KEY_AND_VERSION])
            if other is None or not frame.startswith(other.prefix, REQUEST_START_BYTES):
                break
            if other.answered:
                request = other.spare
                if request is None:
                    request = InFlight(other.api_key, other.version, b"", other)
                other.spare = None
                request.correlation_id, request.sent_at = frame[REQUEST_CORRELATION_ID], now
                owed.append(request)
                self._expected.append(request)
            if other.produces:
                plans.produced += end - at
            at = end
        plans.requested += at
        return at, data if at == size else data[:at]

    def _rest_of_request(self, data: bytes) -> tuple[int, bytes]:
        state, size = self._state, len(data)
        requests = state.from_client
        # The core has to see a request's last byte.
        if not (self._on and 0 < size < requests.left) or state.phase is _CLOSING or requests.data:
            return 0, b""
        requests.left -= size
        if state.produces:
            state.tally.produce_bytes += size
        self._client.bytes_in += size
        self._broker.bytes_out += size
        return size, data

    def join(self, data: bytes, now: float) -> bytes:
        """Return the buffered bytes and the new ones, or b"" while a small response is incomplete.

        A broker writes the head, the records and the end of a fetch response one by one, and each write wakes
        the gateway. It costs as much to process one part as to process the complete response. So a response
        that may match a plan is buffered until it is complete, and then processed once.
        """
        if self._part:
            data, self._part = self._part + data, b""
        else:
            self.began = now
            expected = self._expected
            if not (self._takes_responses and expected and expected[0].handler.planned):
                return data
            if self._owed[0] is not expected[0]:
                return data
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES])
        if len(data) < size <= MAX_JOINED and self._due(data):
            self._part = data
            return b""
        return data

    def _due(self, data: bytes) -> bool:
        """Whether `data` can be the beginning of the next expected response."""
        if len(data) < RESPONSE_START_BYTES or not self._expected:
            return True
        return data.startswith(self._expected[0].correlation_id, LENGTH_BYTES)

    def part(self) -> bytes:
        """Return and clear the buffered bytes of a response whose rest will not arrive."""
        part, self._part = self._part, b""
        return part

    def response(self, data: bytes, began: float, now: float) -> tuple[int, bytes]:
        """Process the result of `join` as far as it matches plans.

        Return the number of processed bytes, and the bytes to send to the client. The first byte was read at
        `began`, the last one at `now`, in seconds.
        """
        if not self._takes_responses:
            return self._rest_of_response(data)
        size, expected, owed = len(data), self._expected, self._owed
        at, out = 0, b""
        while at < size and expected and owed:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES])
            if end > size:
                break
            frame = data if end - at == size else data[at:end]
            request = expected[0]
            if owed[0] is not request or frame[RESPONSE_CORRELATION_ID] != request.correlation_id:
                break
            plan = request.handler
            told = plan.answer(frame, began - request.sent_at)
            if told is None:
                break
            expected.popleft()
            if len(owed) > 1 and owed[1].answered:  # by the gateway itself
                waited = b"".join(self._state.queue.ended(request))
                self._client.bytes_out += len(waited)
                told += waited
            else:
                owed.popleft()
                plan.spare = request  # type: ignore[misc]  # only plans answer
            out = out + told if out else told
            at, began = end, now
        return at, out

    def _rest_of_response(self, data: bytes) -> tuple[int, bytes]:
        size, responses, owed = len(data), self._state.from_broker, self._owed
        # The core has to see a response's last byte.
        if not (self._on and 0 < size < responses.left) or responses.data:
            return 0, b""
        request = self._expected[0]
        if not owed or owed[0] is not request or request.claim is not None:
            return 0, b""
        if not request.handler.passes(size):
            return 0, b""
        responses.left -= size
        if request.api_key == _PRODUCE:
            self._state.tally.produce_bytes += size
        self._broker.bytes_in += size
        self._client.bytes_out += size
        return size, data

    def end(self) -> None:
        self._part = b""
        self._on = self._takes_requests = self._takes_responses = False


# Looked up on every read: members as globals.
_OPEN: Final = Phase.OPEN
_CLOSING: Final = Phase.CLOSING
_FRAMES: Final = Stream.FRAMES
