"""The fast path: frames that a plan knows go on at once, before the rest of the core sees them. Sans-IO.

What makes exchanges dear is not what is computed but what is touched: at each wake-up the caches are cold. So
`FastPath` stands before the rest of the core, compares a few bytes, and touches little. A request goes into
the same queue as all others. What no plan knows is for the rest of the core.
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
"""Bytes of a response that is kept until it is whole."""
_AT_ONCE: Final = range(1024)
"""So many requests are taken in one call: those without a response have no other limit."""
_ROOM: Final = MAX_IN_FLIGHT - 1
"""With one more request in flight, the rest of the core stops reading the client."""
_FETCH: Final = int(ApiKey.FETCH)


class FastPath:
    """The fast path of one connection.

    Args:
        state: that of the connection.
        max_request_bytes: the longest frame taken from the client.
        on: false in tests, to see what the rest of the core does by itself.
    """

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
        self._expected, self._owed = state.responses.expected, state.responses.owed
        self._client, self._broker = state.tally.client, state.tally.broker
        self._max_request_bytes = max_request_bytes
        self._on = on
        self._takes_requests = self._takes_responses = False
        self._part = b""
        """The beginning of a response that `join` keeps."""
        self.began = 0.0
        """When the first byte of what `join` has returned was read, in seconds; the shell sets it to the time
        at which the broker was connected."""

    def settle(self) -> None:
        """Look whether whole frames may pass, after the rest of the core has done something."""
        state = self._state
        self._on = on = self._on and self._plans.on and state.fault is None
        # The broker is connected: it has sent something.
        self._takes_requests = (
            on
            and state.stream is _FRAMES
            and state.phase is _OPEN
            and not (state.foreign or state.responses.resending)
            and state.from_client.idle
            and state.tally.broker.bytes_in > 0
        )
        # What waits of the client, or its being read again, may depend on each response.
        requests = state.from_client
        waits = requests.held or (requests.ready and not requests.left)
        full = len(self._owed) >= MAX_IN_FLIGHT
        self._takes_responses = on and state.from_broker.idle and not (waits or full)

    def request(self, data: bytes, now: float) -> tuple[int, bytes]:
        """Return how much of what a client sent is dealt with, and what goes to the broker for it.

        The rest is for the rest of the core. If there is none, nothing else is to be done.

        Args:
            data: the bytes of one read.
            now: when they were read, in seconds.
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
            at = end
        plans.requested += at
        return at, data if at == size else data[:at]

    def _rest_of_request(self, data: bytes) -> tuple[int, bytes]:
        """Let bytes amid a request pass that is forwarded while it comes; never its last one."""
        state, size = self._state, len(data)
        requests = state.from_client
        if not (self._on and 0 < size < requests.left) or state.phase is _CLOSING or requests.data:
            return 0, b""
        requests.left -= size
        self._client.bytes_in += size
        self._broker.bytes_out += size
        return size, data

    def join(self, data: bytes, now: float) -> bytes:
        """Return what a broker sent, behind what was kept of it; b"" while a small response is not whole.

        A broker writes head, records and end of a fetch response one by one, and each wakes the gateway.
        Nobody can use a part of a response, but each part would have to be looked at. So a response that a
        plan may know is looked at once.

        Args:
            data: the bytes of one read.
            now: when they were read, in seconds.
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
        """Whether a response may be the next one that is expected, as far as it has come."""
        if len(data) < RESPONSE_START_BYTES or not self._expected:
            return True
        return data.startswith(self._expected[0].correlation_id, LENGTH_BYTES)

    def part(self) -> bytes:
        """Return what is kept of a response, and keep it no more: the rest of it will not come."""
        part, self._part = self._part, b""
        return part

    def response(self, data: bytes, began: float, now: float) -> tuple[int, bytes]:
        """Return how much of what a broker sent is dealt with, and what goes to the client for it.

        Args:
            data: what `join` has returned.
            began: when the first of it was read, in seconds.
            now: when the last of it was.
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
            told = plan.recall(frame, began - request.sent_at)
            if told is None:
                break
            expected.popleft()
            if len(owed) > 1 and owed[1].answered:  # by the gateway itself
                waited = b"".join(self._state.responses.ended(request))
                self._client.bytes_out += len(waited)
                told += waited
            else:
                owed.popleft()
                plan.spare = request  # type: ignore[misc]  # what has recalled a response is a plan
            out = out + told if out else told
            at, began = end, now
        return at, out

    def _rest_of_response(self, data: bytes) -> tuple[int, bytes]:
        """Let bytes amid a response pass that go to the client whatever they are; never its last one."""
        size, responses, owed = len(data), self._state.from_broker, self._owed
        if not (self._on and 0 < size < responses.left) or responses.data:
            return 0, b""
        request = self._expected[0]
        if not owed or owed[0] is not request or request.claim is not None:
            return 0, b""
        if not request.handler.passes(size):
            return 0, b""
        responses.left -= size
        self._broker.bytes_in += size
        self._client.bytes_out += size
        return size, data

    def end(self) -> None:
        """Let nothing pass any more: the connection has ended."""
        self._part = b""
        self._on = self._takes_requests = self._takes_responses = False


# Looked up on every read: members as globals.
_OPEN: Final = Phase.OPEN
_CLOSING: Final = Phase.CLOSING
_FRAMES: Final = Stream.FRAMES
