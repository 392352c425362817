"""The state that both sides of a connection share: framing, requests in flight, bytes to send. Sans-IO.

`ClientSide` and `BrokerSide` process the bytes of their sides. Both can detect that the protocol is not
Kafka. Both send requests, because the broker's side sends a fetch again after an unusable response.
"""

from enum import Enum
from typing import Final, Protocol

from proxy.core.budget import RequestBudget
from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.events import Event, Fault, Passthrough, Refusal, Tally
from proxy.core.histograms import Measured, Meter
from proxy.core.in_flight import InFlight, ResponseQueue
from proxy.core.plans import Plans
from proxy.core.requests import TLS_HANDSHAKE
from proxy.core.stage import Stage
from proxy.protocol.api import ApiKey
from proxy.protocol.framing import Framer
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Reason

_PRODUCE: Final = int(ApiKey.PRODUCE)


class Phase(Enum):
    """The phase of a connection. It never goes back to an earlier phase.

    `Connection.fault` can end any phase.
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


class Asking(Protocol):
    """The part of `Fetches` that stages use."""

    eligibility: Eligibility
    """Knows the broker's features."""
    version: int
    """The version of the last fetch that was read, or -1 before the first one."""

    def probe(self, frame: bytes) -> None:
        """Ask the broker for its features, in the name of the client that has sent this frame."""


class ConnectionState:
    """The state that both sides of a connection share.

    `foreign`: the client may use TLS, or a protocol other than Kafka. The name of the broker is empty, or has
    a comma, if the broker is not known exactly.
    """

    __slots__ = (
        "broker",
        "client_id",
        "client_version",
        "delayed",
        "events",
        "fault",
        "fetches",
        "foreign",
        "forwarding",
        "from_broker",
        "from_client",
        "gets_part",
        "host",
        "mechanism",
        "meter",
        "now",
        "phase",
        "plans",
        "produces",
        "queue",
        "request_budget",
        "response_size",
        "stages",
        "stream",
        "tally",
        "to_broker",
        "to_client",
        "tokens",
    )

    fetches: Asking
    """For stages. `Connection` sets it before it makes them."""

    def __init__(
        self,
        limits: SessionLimits,
        measured: Measured,
        *,
        foreign: bool,
        request_budget: RequestBudget | None,
        host: str = "",
        broker: str = "",
    ) -> None:
        self.host = host
        self.broker = broker
        self.gets_part = False
        """Whether a stage gives the client only some records of a partition, or may do so. Then no other
        stage changes what its fetches ask for, or which broker answers them."""
        self.client_version = 0
        """The version of the client's last fetch, if a stage has made another one of it. Otherwise 0."""
        self.tally = Tally()
        """`Plans.count` later adds the exchanges that used the fast path."""
        self.meter = Meter(measured, self.tally)
        self.plans = Plans(limits, measured, self.tally, self.meter)
        self.events: list[Event] = []
        self.to_client: list[Buffer] = []
        self.to_broker: list[Buffer] = []
        """Bytes that the shell has not sent yet. The lists `events`, `to_client` and `to_broker` are emptied,
        never replaced."""
        self.client_id = ""
        """The client id, made readable: of the last ApiVersions, else of the first fetch. A later fetch with
        another client id does not change it. A stage may set it at the first request of any kind."""
        self.mechanism = ""
        """The SASL mechanism that the client has asked for last. "" if it is unknown."""
        self.now = 0.0
        """When the current bytes were read, in seconds."""
        self.phase = Phase.NEW
        self.stream = Stream.FRAMES
        self.tokens = 0
        """How many SASL tokens the client still sends without a header, or `UNCOUNTED`."""
        self.foreign = foreign
        """Whether it is still possible that the protocol is not Kafka: no request has been answered yet."""
        self.stages: list[Stage] = []
        """In order from the client to the broker."""
        self.fault: Fault | None = None
        """The reason why the connection has to end. The client must still get the bytes in `to_client`."""
        self.request_budget = request_budget or RequestBudget()
        self.from_client = RequestFramer(self.request_budget)
        """If its `left` is above 0, a request is being forwarded while it arrives."""
        self.from_broker = Framer()
        self.forwarding: InFlight | None = None
        """The request that is being forwarded while it arrives, if the broker will respond to it."""
        self.produces = False
        """Whether the request that is being forwarded while it arrives is a Produce request."""
        self.delayed: list[tuple[InFlight, bytes]] = []
        """The calls of `send` that wait until the request that is being forwarded has ended."""
        self.queue = ResponseQueue()
        self.response_size = 0
        """The size of the response that is now arriving."""

    @property
    def between_requests(self) -> bool:
        """Whether requests are read as frames, and no part of one was forwarded without its rest.

        If not, an end of the connection cuts something off: a request, a SASL token, or another protocol.
        """
        return self.stream is Stream.FRAMES and not self.from_client.left

    # Requests to the broker

    def send(self, request: InFlight, frame: bytes) -> None:
        """Send a frame to the broker, after the end of a request that is being forwarded."""
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

    def unread(self, side: str, reason: str, data: bytes = b"") -> None:
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
        """End the connection because of a fault of the side ``client`` or ``broker``."""
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
