"""The state that both directions of a connection share, and what the shell asks of it. Sans-IO.

`ClientSide` processes the client's requests, `Connection` the broker's responses. Both can detect that the
protocol is not Kafka. Both send requests, because a fetch is sent again after an unusable response.
"""

from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from typing import Final, Protocol

from proxy.core.budget import RequestBudget
from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.events import Event, Fault, Passthrough, Refusal, Tally
from proxy.core.histograms import Measured, Meter
from proxy.core.in_flight import MAX_IN_FLIGHT, REQUEST_BYTES, InFlight, ResponseQueue
from proxy.core.plans import Plans
from proxy.core.requests import TLS_HANDSHAKE
from proxy.core.stage import Stage
from proxy.protocol.api import ApiKey
from proxy.protocol.framing import Framer
from proxy.protocol.primitives import Buffer
from proxy.protocol.produce import READ_WITHIN
from proxy.session.decision import Reason
from proxy.session.handler import FetchSessionHandler

QUEUED_FREE: Final = 65_536
"""The largest number of bytes for which `ConnectionState.queued` is 0."""


class Phase(Enum):
    """The phase of a connection. It never goes back to an earlier phase.

    `ConnectionState.fault` can end any phase.
    """

    NEW = "new"
    """No complete request was forwarded or refused, and no complete fetch was received yet."""
    OPEN = "open"
    CLOSING = "closing"
    """No more bytes are accepted from the client. Requests in flight are finished."""


class Stream(Enum):
    """How the bytes of a connection are read. `OPAQUE` and `WIRE` are for good."""

    FRAMES = "frames"
    TOKENS = "tokens"
    """After a SaslHandshake v0: the client's next frames are SASL tokens without Kafka's header. After the
    last token, the mode is `FRAMES` again, or `OPAQUE` in doubt."""
    OPAQUE = "opaque"
    """The client sends SASL tokens, and it is unknown where they end. All bytes are forwarded as they arrive.
    Responses to earlier requests are still Kafka frames."""
    WIRE = "wire"
    """The protocol is not Kafka. Everything is forwarded, including the end of each side's stream."""


class RequestFramer(Framer):
    """Cuts the client's bytes into frames. It can keep the beginning of a request until more bytes arrive."""

    __slots__ = ("_budget", "_reserved", "held")

    def __init__(self, budget: RequestBudget) -> None:
        super().__init__()
        self._budget = budget
        self._reserved = 0
        self.held = False
        """Whether the next request is complete, but has to wait, for example for an earlier response."""

    @property
    def waits(self) -> bool:
        """Whether all has come for the next step, but it was not taken yet."""
        return self.held or (self.ready and not self.left)

    def reserve(self, size: int) -> bool:
        """Wait for `size` bytes of the next request, and reserve memory for them if there is room."""
        if not self._budget.reserve(size):
            return False
        self._reserved = size
        self.need = size
        return True

    def next(self) -> bytes:
        self._release()
        return super().next()

    def rest(self) -> bytes:
        self._release()
        return super().rest()

    def _release(self) -> None:
        self.held = False
        if self._reserved:
            self._budget.release(self._reserved)
            self._reserved = 0


class FetchesView(Protocol):
    """The part of `Fetches` that stages and the state use."""

    session: FetchSessionHandler
    eligibility: Eligibility
    """Knows the broker's features."""
    version: int
    """The version of the last fetch that was read, or -1 before the first one."""

    def probe(self, frame: bytes) -> None:
        """Ask the broker for its features, in the name of the client that has sent this frame."""


@dataclass(slots=True, eq=False, repr=False)
class ConnectionState:
    """What both directions of a connection share. The stages read and change it, too."""

    limits: InitVar[SessionLimits]
    measured: InitVar[Measured]
    _: KW_ONLY
    foreign: bool
    """Whether it is still possible that the protocol is not Kafka, or TLS: no request has been answered
    yet."""
    request_budget: RequestBudget = field(default_factory=RequestBudget)
    host: str = ""
    broker: str = ""
    """The broker's name. Empty, or with a comma, if it is not known exactly."""
    fetches: FetchesView = field(init=False)
    """`Connection` sets it before it makes the stages."""

    # Bytes and requests
    from_client: RequestFramer = field(init=False)
    """If its `left` is above 0, a request is being forwarded while it arrives."""
    from_broker: Framer = field(default_factory=Framer)
    to_client: list[Buffer] = field(default_factory=list)
    to_broker: list[Buffer] = field(default_factory=list)
    """Bytes that the shell has not sent yet. The lists `events`, `to_client` and `to_broker` are emptied,
    never replaced."""
    queue: ResponseQueue = field(default_factory=ResponseQueue)
    forwarding: InFlight | None = None
    """The request that is being forwarded while it arrives, if the broker will respond to it."""
    produces: bool = False
    """Whether the request that is being forwarded while it arrives is a Produce request."""
    delayed: list[tuple[InFlight, bytes]] = field(default_factory=list)
    """The calls of `send` that wait until the request that is being forwarded has ended."""
    response_size: int = 0
    """The size of the response that is now arriving."""
    stages: list[Stage] = field(default_factory=list)
    """In order from the client to the broker."""

    # How far it has come
    now: float = 0.0
    """When the current bytes were read, in seconds."""
    phase: Phase = Phase.NEW
    stream: Stream = Stream.FRAMES
    decided: Reason | None = None
    """The reason why the last fetch was forwarded without the session. None if it used the session."""
    tokens: int = 0
    """How many SASL tokens the client still sends without a header, or `UNCOUNTED`."""
    fault: Fault | None = None
    """The reason why the connection has to end. The client must still get the bytes in `to_client`."""

    # The client
    client_id: str = ""
    """The client id, made readable: of the last ApiVersions, else of the first fetch. A later fetch with
    another client id does not change it. A stage may set it at the first request of any kind."""
    software_name: str = ""
    software_version: str = ""
    """Of the client's software (KIP-511)."""
    mechanism: str = ""
    """The SASL mechanism that the client has asked for last. "" if it is unknown."""
    client_version: int = 0
    """The version of the client's last fetch, if a stage has made another one of it. Otherwise 0."""
    gets_part: bool = False
    """Whether a stage gives the client only some records of a partition, or may do so. Then no other stage
    changes what its fetches ask for, or which broker answers them."""

    # What is counted and remembered
    events: list[Event] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    """`Plans.count` later adds the exchanges that used the fast path."""
    meter: Meter = field(init=False)
    plans: Plans = field(init=False)

    def __post_init__(self, limits: SessionLimits, measured: Measured) -> None:
        self.from_client = RequestFramer(self.request_budget)
        self.meter = Meter(measured, self.tally)
        self.plans = Plans(limits, measured, self.tally, self.meter)

    # What the shell acts on after each call

    @property
    def reads_client(self) -> bool:
        """Whether the core accepts more bytes from the client now."""
        if self.phase is _CLOSING:
            return False
        requests, queue = self.from_client, self.queue
        if requests.waits and not any(stage.reads_on(len(requests)) for stage in self.stages):
            return False
        # The gateway's own requests wait for the end of a frame that is being forwarded: read the rest of it.
        return requests.left > 0 or (not queue.resending and len(queue.owed) < MAX_IN_FLIGHT)

    @property
    def goes_on(self) -> bool:
        """Whether the next call of `Connection.go_on` can process received bytes of either side."""
        return self.responses_wait or self.requests_wait

    @property
    def responses_wait(self) -> bool:
        """Whether some of the buffered bytes from the broker can be processed now."""
        responses = self.from_broker
        return bool(responses.data) and self.fault is None and responses.ready

    @property
    def requests_wait(self) -> bool:
        """Whether some of the buffered bytes from the client can be processed now."""
        requests = self.from_client
        return (
            bool(requests.data)
            and requests.ready
            and not requests.held
            and (len(self.queue.owed) < MAX_IN_FLIGHT or self.stream is not _FRAMES)
            and self.fault is None
            and self.phase is not _CLOSING
        )

    @property
    def done(self) -> bool:
        """Whether `Connection.close_session` was called and no request is in flight any more."""
        if self.phase is not _CLOSING or self.responses_wait:
            return False
        if any(request.handler.awaits_brokers for request in self.queue.owed):
            return False
        # An incomplete request gets no response.
        return not self.queue.expected or self.awaits_client

    @property
    def wire(self) -> bool:
        """Whether the protocol is not Kafka, so that everything is forwarded, including each side's end."""
        return self.stream is Stream.WIRE

    @property
    def buffered(self) -> int:
        return self.queue.buffered

    # What the shell asks now and then, for /state and metrics too

    @property
    def between_requests(self) -> bool:
        """Whether requests are read as frames, and no part of one was forwarded without its rest.

        If not, an end of the connection cuts something off: a request, a SASL token, or another protocol.
        """
        return self.stream is Stream.FRAMES and not self.from_client.left

    @property
    def begun(self) -> bool:
        """Whether `Phase.NEW` is over, or more than READ_WITHIN bytes of a forwarded request were received.

        Also true if the protocol is not Kafka.
        """
        large = self.from_client.left > 0 and self.plans.count().client.bytes_in > READ_WITHIN
        return self.phase is not Phase.NEW or large or self.wire

    @property
    def busy(self) -> bool:
        """Whether the client waits for a response, or a stage still has work for it.

        An incomplete request does not count. If the protocol is not Kafka, it is unknown which side sends
        next. Then the client counts as waiting once both sides have sent something.
        """
        if self.wire:
            tally = self.plans.count()
            return tally.client.bytes_in > 0 and tally.broker.bytes_in > 0
        if self.from_client.left:
            return len(self.queue.expected) > (self.forwarding is not None)
        return bool(self.queue.owed) or self.stage_is_busy

    @property
    def stage_is_busy(self) -> bool:
        return any(stage.busy for stage in self.stages)

    @property
    def full(self) -> bool:
        return len(self.queue.owed) >= MAX_IN_FLIGHT

    @property
    def outstanding(self) -> int:
        """The number of requests that the broker has not answered, including the gateway's own requests."""
        return len(self.queue.expected)

    @property
    def longest_wait(self) -> float:
        """The longest time for which a request in flight may wait at the broker or in a stage, in seconds."""
        waits = [request.handler.wait for request in self.queue.expected]
        return max([0.0, *waits, *(stage.longest_wait for stage in self.stages)])

    @property
    def awaits_client(self) -> bool:
        """Whether the client has sent only a part of the request that the broker answers next."""
        expected = self.queue.expected
        return bool(self.from_client.left and expected) and expected[0] is self.forwarding

    @property
    def completes_soon(self) -> bool:
        """Whether the incoming response is small enough to buffer even when memory is short."""
        expected = self.queue.expected
        if not self.from_broker.left or not expected:
            return False
        return self.response_size <= expected[0].handler.small

    @property
    def arriving(self) -> tuple[int, int]:
        """The received bytes of an incomplete fetch response, and the received bytes that wait in the core.

        Not all of these bytes are in the counts of fetches and records yet.
        """
        responses, expected = self.from_broker, self.queue.expected
        fetched = responses.left and expected and expected[0].api_key == ApiKey.FETCH
        return (self.response_size - responses.left if fetched else 0), len(responses)

    @property
    def queued(self) -> int:
        """The memory of requests in flight and of waiting bytes of both sides. 0 up to `QUEUED_FREE`."""
        kept = len(self.from_client) + len(self.queue.owed) * REQUEST_BYTES
        if self.responses_wait:
            kept += len(self.from_broker)
        return kept if kept > QUEUED_FREE else 0

    @property
    def fetch_version(self) -> int:
        """The version of the client's last fetch that was read, or -1 before the first one."""
        return self.client_version or self.fetches.version

    @property
    def session_id(self) -> int:
        return self.fetches.session.session_id if self.fetches.session.has_session else 0

    @property
    def session_epoch(self) -> int:
        """The epoch of the next incremental fetch, or 0 without a session."""
        return self.fetches.session.epoch

    @property
    def session_partitions(self) -> int:
        session = self.fetches.session
        return session.table.size if session.has_session and session.table is not None else 0

    @property
    def lacks_slot(self) -> bool:
        """Whether the last fetch has no session because all slots of the gateway are used."""
        return self.decided is Reason.NO_SLOT

    # Requests to the broker

    def send(self, request: InFlight, frame: bytes) -> None:
        """Queue a frame for the broker, behind a request that is still being forwarded."""
        if self.from_client.left:
            self.delayed.append((request, frame))
            return
        request.sent_at = self.now
        if request.api_key == _PRODUCE:
            self.tally.produce_bytes += len(frame)
        self.queue.expected.append(request)
        self.to_broker.append(frame)

    # What is not Kafka

    def stop_framing(self, stream: Stream, reason: Reason) -> None:
        """From now on, forward the client's bytes as they arrive, without framing."""
        self.stream = stream
        self.tally.passthrough[reason] += 1
        self.events.append(Passthrough(reason=reason))

    def not_kafka(self, side: str, reason: str, data: bytes = b"") -> None:
        """Process bytes that no Kafka peer sends: end the connection with a fault, for `reason`.

        If it is still possible that the protocol is not Kafka, forward everything instead. `side` is
        ``client`` or ``broker``, and `data` has the client's latest bytes.
        """
        if self.foreign:
            self.be_wire(data)
        else:
            self.fail(side, reason)

    def be_wire(self, data: bytes = b"") -> None:
        """From now on, forward all bytes unchanged, because the protocol is not Kafka."""
        self.foreign = False
        self.queue.clear()
        self.forwarding = None
        self.stop_framing(Stream.WIRE, Reason.TLS if data.startswith(TLS_HANDSHAKE) else Reason.NOT_KAFKA)
        # What was kept until the rest of its frame comes is no frame: send it.
        if said := data + self.from_client.rest():
            self.to_broker.append(said)
        if said := self.from_broker.rest():
            self.to_client.append(said)

    # The connection's end

    def refuse_response(self, refusal: Refusal, reason: str) -> None:
        """End the connection, because the client must not get the rest of the current response."""
        self.tally.refused[refusal] += 1
        self.fail("broker", reason)

    def fail(self, side: str, reason: str) -> None:
        """End the connection because of a fault of the side ``client`` or ``broker``. The first counts."""
        if self.fault is not None:
            return
        self.fault = Fault(side=side, reason=reason)
        self.events.append(self.fault)
        self.from_client.rest()  # no more is read of it

    def end(self) -> None:
        self.stages.clear()
        self.plans.end()
        self.from_client.rest()
        self.from_broker.rest()
        self.to_client.clear()
        self.to_broker.clear()
        self.delayed.clear()
        self.queue.clear()
        self.forwarding = None


# Needed for every request, and members of enums are slow to look up.
_PRODUCE: Final = int(ApiKey.PRODUCE)
_CLOSING: Final = Phase.CLOSING
_FRAMES: Final = Stream.FRAMES
