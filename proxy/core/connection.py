"""One client connection and its broker connection: bytes from either side in, bytes out. Sans-IO.

`Connection` gets all calls of the shell. It processes the broker's responses itself, and gives the client's
requests to `ClientSide`. Both share a `ConnectionState`, which also answers what the shell asks.

A broker responds in order, so a response belongs to the oldest unanswered request. The handler of that
request makes the client's bytes from the response. The client gets responses in the order of its requests. A
call processes a limited number of responses. The next call processes the remaining bytes.

The core never raises for a peer's fault. `ConnectionState.fault` is the reason why the connection has to end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.core.budget import RequestBudget
from proxy.core.client_side import ClientSide
from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.eligibility import BrokerVersions, Eligibility, SessionLimits
from proxy.core.events import Event, SideTally, Tally
from proxy.core.fast_path import FastPath
from proxy.core.fetches import Fetches
from proxy.core.histograms import Measured
from proxy.core.in_flight import AT_ONCE, TOKEN, InFlight
from proxy.core.leaders import Leaders
from proxy.core.requests import MAX_TOKEN
from proxy.core.responses import AddressRewriting, Rewriting
from proxy.core.stage import Stage
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import LENGTH_BYTES, RESPONSE_CORRELATION_ID, RESPONSE_START_BYTES, ApiKey
from proxy.protocol.framing import is_frame
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Reason
from proxy.session.partitions import PartitionTable

MAX_REQUEST_BYTES: Final = 104_857_600
"""Kafka's default for socket.request.max.bytes."""


def _none_opening(_node_id: int, /) -> bool:
    """No broker's listener is being opened."""
    return False


MakeStage: TypeAlias = Callable[[ConnectionState], Stage]


@dataclass(frozen=True, slots=True)
class Common:
    """The objects that the connections of a process share, in addition to the session slots."""

    max_request_bytes: int = MAX_REQUEST_BYTES
    maybe_not_kafka: bool = False
    """Whether clients may use TLS, or a protocol other than Kafka: then all bytes are forwarded."""
    request_budget: RequestBudget | None = None
    """Limits the memory for requests."""
    leaders: Leaders | None = None
    """Only used if addresses are rewritten. If None, each connection keeps its own."""
    stages: tuple[MakeStage, ...] = ()
    """Functions that make the stages of each connection, in the order from the client to the broker."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The broker of a connection."""

    node_id: int | None = None
    name: str = ""
    """Identifies the broker among all brokers, because a session belongs to one broker."""
    versions: BrokerVersions | None = None
    """The broker's features, shared by all connections to its address."""
    measured: Measured | None = None
    """The measurements of all connections to this broker."""
    opening: Callable[[int], bool] = _none_opening
    """Returns whether a broker's listener is still being opened."""


_ALONE: Final = Common()
_UNKNOWN: Final = BrokerInfo()


class Connection:
    """A client and its broker.

    | | |
    |---|---|
    | `fast_path` | gets the bytes of either side first |
    | `receive_client`, `receive_broker`, `go_on` | process new bytes, and waiting bytes |
    | `client_ended`, `broker_ended`, `brokers_opened`, `tick` | process other events; call `attach` first |
    | `shrink` | call this every few seconds |
    | `close_session`, then `ended` | end the connection |
    | `drain_client`, `drain_broker`, `drain_events` | take bytes and events, after each of these calls |
    | `state` | then act on what it says |
    | `tally`, `due_at` | read these from time to time |

    `resolve` returns the address of a broker for clients. None leaves addresses unchanged. Tests can turn the
    fast path off (`fast`).
    """

    __slots__ = (
        "_client_ended",
        "_client_side",
        "_closes",
        "_fetches",
        "_versions",
        "events",
        "fast_path",
        "state",
        "to_broker",
        "to_client",
    )

    def __init__(
        self,
        *,
        sessions: SessionLimits,
        resolve: Resolve | None,
        common: Common = _ALONE,
        broker: BrokerInfo = _UNKNOWN,
        host: str = "",
        fast: bool = True,
    ) -> None:
        self.state = state = ConnectionState(
            sessions,
            broker.measured or Measured(),
            foreign=common.maybe_not_kafka,
            request_budget=common.request_budget or RequestBudget(),
            host=host,
            broker=broker.name,
        )
        """The shell reads it, and changes nothing."""
        self.fast_path = FastPath(state, max_request_bytes=common.max_request_bytes, on=fast)
        """Gets all bytes first. The other methods get only the bytes that it does not handle."""
        self.events = state.events
        self.to_client, self.to_broker = state.to_client, state.to_broker
        """Bytes to send that the shell has not taken yet."""
        self._versions = broker.versions or BrokerVersions()
        eligibility, leaders = Eligibility(sessions, self._versions), common.leaders or Leaders()
        rewriting = (
            Rewriting(state, eligibility)
            if resolve is None
            else AddressRewriting(state, eligibility, resolve, broker.opening, leaders)
        )
        self._fetches = state.fetches = fetches = Fetches(state, sessions, eligibility, rewriting, leaders)
        state.stages += [make(state) for make in common.stages]
        self._client_side = ClientSide(state, fetches, rewriting, max_request_bytes=common.max_request_bytes)
        for stage in state.stages:
            stage.connect_core(self._client_side.process, self._resume, self._settle)
        self._client_ended = False
        """Whether the client has stopped sending. It still gets its responses."""
        self._closes = False
        """Whether to close the session as soon as no bytes of the client wait."""

    def __repr__(self) -> str:
        client_id, in_flight = self.state.client_id, len(self.state.queue.owed)
        return f"<Connection {client_id!r} in_flight={in_flight} {self._fetches.session!r}>"

    # What the shell takes and reads

    def drain_client(self) -> list[Buffer]:
        """Return the bytes to send to the client, and remove them."""
        return _drain(self.to_client, self.state.tally.client)

    def drain_broker(self) -> list[Buffer]:
        """Return the bytes to send to the broker, and remove them."""
        return _drain(self.to_broker, self.state.tally.broker)

    def drain_events(self) -> list[Event]:
        """Return the events since the last call, and remove them."""
        due = self.events.copy()
        self.events.clear()
        return due

    @property
    def tally(self) -> Tally:
        return self.state.plans.count()

    @property
    def due_at(self) -> float | None:
        """The time until which the broker may delay its next response, in seconds, if one is expected.

        A broker answers requests one by one, so the oldest request counts. Its wait starts when it was sent,
        or when the broker's last bytes arrived, whichever is later.
        """
        if not self.state.queue.expected:
            return None
        request = self.state.queue.expected[0]
        return max(request.sent_at, self.fast_path.began) + request.handler.wait

    @property
    def session_table(self) -> PartitionTable | None:
        """The partitions of the session. Without one, those of the last fetch that could use one, if any."""
        return self._fetches.session.table

    @property
    def fetches(self) -> Fetches:
        return self._fetches

    # What the shell tells

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell.

        Args:
            wake: writes the bytes to send. It is called for bytes that were caused by another connection or a
                timer. It must write at once, because bytes of the fast path must come later.
            alarm: gets the time, in seconds, at which the shell has to call `tick`.
        """
        for stage in self.state.stages:
            stage.attach(wake, alarm)

    def tick(self, now: float) -> None:
        """Do the work that is due. The shell calls this at the time that `alarm` got (`attach`)."""
        for stage in self.state.stages:
            stage.tick(now)
        self.state.now = now
        self._settle()

    def shrink(self) -> None:
        """Release memory that an idle connection does not need. The shell calls this every few seconds."""
        self.state.queue.shrink()
        self.fast_path.review()

    def receive_client(self, data: bytes, now: float) -> None:
        """Process bytes from the client that did not take the fast path."""
        self._client_side.receive(data, now)
        self._settle()

    def receive_broker(self, data: bytes, now: float) -> None:
        """Process bytes from the broker that did not take the fast path."""
        self.state.now = now
        self._process_responses(data)
        self._finish_waiting()
        self._settle()

    def go_on(self, now: float) -> None:
        """Process more of the waiting bytes. `ConnectionState.goes_on` tells whether this is needed."""
        self.state.now = now
        if self.state.responses_wait:
            self._process_responses(b"")
        self._finish_waiting()
        self._settle()

    def close_session(self, now: float) -> None:
        """Stop reading the client, finish the requests in flight, and close the session at the broker.

        If the client has ended its stream, its bytes that wait are processed first.
        """
        state = self.state
        state.now = now
        if self._client_ended and not self._closes:
            self._closes = True
            self._finish_waiting()
            if self._closes:
                self._settle()
            return
        for stage in state.stages:
            stage.release()
        for stage in state.stages:
            stage.close()
        if state.phase is not Phase.CLOSING:
            state.phase = Phase.CLOSING
            if state.from_client.held or state.from_client.ready:
                state.from_client.rest()
            # Do not close in the middle of a frame: that would corrupt it (fetch-semantics, trap 21).
            self._fetches.close(silently=not state.between_requests)
        self._settle()

    def _finish_waiting(self) -> None:
        state = self.state
        self._client_side.go_on()
        if not self._closes:
            return
        waits = state.from_client.ready or state.from_client.held or state.stage_is_busy
        if state.fault is not None or not waits:
            self._closes = self._client_ended = False
            self.close_session(state.now)

    def client_ended(self) -> None:
        # With only a part of a request, the client does not speak Kafka.
        if self.state.foreign and self.state.from_client:
            self.state.be_wire()
        # After a client's half-close, a broker still answers its earlier requests (fetch-semantics 1.7).
        self._client_ended = True

    def broker_ended(self) -> None:
        if part := self.fast_path.part():
            self.receive_broker(part, self.state.now)
        while self.state.responses_wait:
            self.receive_broker(b"", self.state.now)
        self._versions.forget()  # the next broker at this address may be of another release
        for stage in self.state.stages:
            stage.lose()
            stage.release()
        # With only a part of a response, the broker does not speak Kafka.
        if self.state.foreign and self.state.from_broker:
            self.state.be_wire()
        for request in list(self.state.queue.owed):
            if request.handler.awaits_brokers:
                self.brokers_opened(request.handler.awaits_brokers)

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that waited for listeners of these brokers. Brokers without one are left out."""
        queue, to_client = self.state.queue, self.state.to_client
        for request in list(queue.owed):
            handler = request.handler
            if handler.awaits_brokers and handler.awaits_brokers <= node_ids:
                buffered = handler.buffered
                pieces = handler.opened()
                queue.buffered += handler.buffered - buffered
                to_client += queue.in_turn(request, pieces) + queue.ended(request)
        self._settle()

    def ended(self, now: float = 0.0) -> None:
        """Drop everything in flight, because both sides have ended."""
        self.state.now = max(self.state.now, now)
        for stage in self.state.stages:
            stage.end()
        self._fetches.end()
        self._versions.ended(self._fetches.eligibility)
        self.fast_path.end()
        self.state.end()  # now: a link is part of a cycle, which may wait long for its collection

    def _settle(self) -> None:
        for stage in self.state.stages:
            stage.settle()
        self.fast_path.review()

    def _resume(self) -> None:
        self._finish_waiting()
        self._settle()

    # The broker's responses

    def _process_responses(self, data: bytes) -> None:
        state = self.state
        state.tally.broker.bytes_in += len(data)
        if state.fault is not None:
            return
        frames, expected = state.from_broker, state.queue.expected
        whole = is_frame(data) and expected and frames.idle and len(data) >= RESPONSE_START_BYTES
        if whole and data[RESPONSE_CORRELATION_ID] == expected[0].correlation_id:  # as nearly every read
            self._begin_response(expected[0], len(data))
            self._feed_response(expected[0], data, last=True)
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
                if not self._check_start(frames.peek(RESPONSE_START_BYTES)):
                    return
            chunk = frames.next()
            self._feed_response(expected[0], chunk, last=not frames.left)

    def _check_start(self, data: bytes) -> bool:
        """Return whether a response begins here. If not, there is a fault, or all bytes are forwarded now."""
        state, expected = self.state, self.state.queue.expected
        length = int.from_bytes(data[:LENGTH_BYTES], signed=True)
        if expected and expected[0].handler is TOKEN:
            if not 0 <= length <= MAX_TOKEN:
                state.stop_framing(Stream.OPAQUE, Reason.SASL_V0)
                state.queue.clear()
                return False
        elif wrong := self._mismatch(data, length):
            state.not_kafka("broker", wrong)
            return False
        state.from_broker.left = size = LENGTH_BYTES + length
        self._begin_response(expected[0], size)
        return True

    def _mismatch(self, data: bytes, length: int) -> str:
        """Return what is wrong with the start of a response, or ""."""
        expected = self.state.queue.expected
        if length < RESPONSE_START_BYTES - LENGTH_BYTES:
            return f"a response of {length} bytes"
        if not expected:
            return "a response without a request"
        if data[RESPONSE_CORRELATION_ID] == expected[0].correlation_id:
            return ""
        asked = int.from_bytes(expected[0].correlation_id, signed=True)
        got = int.from_bytes(data[RESPONSE_CORRELATION_ID], signed=True)
        return f"a response to request {got} before that to request {asked}"

    def _begin_response(self, request: InFlight, size: int) -> None:
        state = self.state
        state.foreign = False
        state.response_size = size
        state.meter.began = state.now
        request.handler = request.handler.begin(request)

    def _feed_response(self, request: InFlight, chunk: bytes, *, last: bool) -> None:
        state, handler = self.state, request.handler
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


def _drain(pieces: list[Buffer], side: SideTally) -> list[Buffer]:
    due = pieces.copy()
    pieces.clear()
    side.bytes_out += sum(map(len, due))
    return due


# Needed for every response, and members of enums are slow to look up.
_FETCH: Final = int(ApiKey.FETCH)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FRAMES: Final = Stream.FRAMES
