"""The gateway's own requests. Their responses are not forwarded to the client. Sans-IO."""

from collections.abc import Callable
from typing import TypeAlias

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import Eligibility
from proxy.core.in_flight import Handler, InFlight
from proxy.core.responses import clamped
from proxy.protocol.api import REQUEST_CORRELATION_ID, ApiKey
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import Buffer, ProtocolError
from proxy.session.handler import FetchSessionHandler

_MAX_PROBE_RESPONSE = 1 << 16

TakeReply: TypeAlias = Callable[[bytes | None, float], None]
"""Gets a complete response (None if it will not arrive) and the time in seconds."""


class Probe(Handler):
    """Learns the broker's features from an ApiVersions response. One that is too large is ignored."""

    __slots__ = ("_chunks", "_eligibility", "_received", "_state")

    def __init__(self, state: ConnectionState, eligibility: Eligibility) -> None:
        self._state = state
        self._eligibility = eligibility
        self._chunks: list[bytes] = []
        self._received = 0

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        self._state.tally.probe_bytes += len(chunk)
        self._received += len(chunk)
        if self._received <= _MAX_PROBE_RESPONSE:
            self._chunks.append(chunk)
            if last:
                self._eligibility.know(clamped(b"".join(self._chunks), 0)[1])
        return []

    def end(self, _request: InFlight) -> bool:
        return False


class OwnFetch(Handler):
    """Counts the response to one of the gateway's own fetches, which lists this many partitions."""

    __slots__ = ("_partitions", "_state")

    def __init__(self, state: ConnectionState, partitions: int) -> None:
        self._state = state
        self._partitions = partitions

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        self._state.tally.broker.fetch_response_bytes += len(chunk)
        return []

    def end(self, request: InFlight) -> bool:
        self._state.meter.note_fetch(request.sent_at, sent=self._partitions, unseen=True)
        return False


class Check(OwnFetch):
    """Reads the full response of a check, and tells the session what its next response must name."""

    __slots__ = ("_eligibility", "_received", "_session", "_understood", "_walk")

    def __init__(
        self,
        state: ConnectionState,
        partitions: int,
        version: int,
        eligibility: Eligibility,
        session: FetchSessionHandler,
    ) -> None:
        super().__init__(state, partitions)
        self._eligibility = eligibility
        self._session = session
        self._walk = FetchResponseWalk(LAYOUTS[version], 0, keep=True)
        self._received = 0
        self._understood = True

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:
        walk, broker = self._walk, self._state.tally.broker
        self._received += len(chunk)
        try:
            walk.feed(chunk)
        except ProtocolError:
            self._understood = False
        if last:
            self._eligibility.savings.add(-self._received)
            broker.add_responses(walk.partitions, walk.record_bytes)
            if self._understood and walk.done and not walk.error_code:
                self._session.check(walk)
        return super().feed(chunk, last=last)


class OwnResponse(Handler):
    """Collects the response to one of the gateway's own requests, and gives it to a function."""

    __slots__ = ("_api_key", "_chunks", "_partitions", "_state", "_take", "buffered")

    def __init__(self, state: ConnectionState, api_key: int, take: TakeReply, partitions: int) -> None:
        self._state = state
        self._api_key = api_key
        self._take: TakeReply | None = take
        self._partitions = partitions
        self._chunks: list[bytes] = []
        self.buffered = 0

    @property
    def is_due(self) -> bool:
        """Whether the response may still arrive: `lose` was not called."""
        return self._take is not None

    def feed(self, chunk: bytes, *, last: bool) -> list[Buffer]:  # noqa: ARG002 - as every handler
        if self._api_key == ApiKey.FETCH:
            self._state.tally.broker.fetch_response_bytes += len(chunk)
        else:
            self._state.tally.probe_bytes += len(chunk)
        self._chunks.append(chunk)
        self.buffered += len(chunk)
        return []

    def end(self, request: InFlight) -> bool:
        state, frame = self._state, b"".join(self._chunks)
        if self._api_key == ApiKey.FETCH:
            state.meter.note_fetch(request.sent_at, sent=self._partitions, unseen=True)
        state.queue.buffered -= self.buffered
        self._chunks, self.buffered = [], 0
        if self._take is not None:
            self._take(frame, state.now)
        return False

    def lose(self, now: float) -> None:
        take, self._take = self._take, None
        if take is not None:
            take(None, now)


def own(frame: bytes, handler: Handler) -> InFlight:
    """Return the entry in flight for one of the gateway's own requests."""
    api_key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
    return InFlight(api_key, version, frame[REQUEST_CORRELATION_ID], handler)
