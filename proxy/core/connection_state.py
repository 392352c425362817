"""What the two sides of a connection share: how its bytes are read, what is in flight, what is due. Sans-IO.

`ClientSide` and `BrokerSide` process what comes from either side. Both can find that it is not Kafka, and
both send requests: the broker's side sends a fetch again after a response that was of no use.
"""

from enum import Enum

from proxy.core.budget import RequestBudget
from proxy.core.eligibility import SessionLimits
from proxy.core.events import Event, Fault, Passthrough, Refusal, Tally
from proxy.core.histograms import Measured, Meter
from proxy.core.in_flight import InFlight, ResponseQueue
from proxy.core.plans import Plans
from proxy.core.requests import TLS_HANDSHAKE
from proxy.core.stage import Stage
from proxy.protocol.framing import Framer
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Reason


class Phase(Enum):
    """How far a connection has come; it only goes on. `Connection.fault` ends it in any phase."""

    NEW = "new"
    """No whole request has come."""
    OPEN = "open"
    CLOSING = "closing"
    """No more is taken from the client; what is in flight is finished."""


class Stream(Enum):
    """How the bytes of a connection are read; it only moves down this list."""

    FRAMES = "frames"
    OPAQUE = "opaque"
    """The client's bytes are forwarded as they come: SASL tokens without Kafka's framing. Responses to
    earlier requests still come in frames."""
    WIRE = "wire"
    """It is not Kafka: all is forwarded, and with it the end of what either side sends."""


class RequestFramer(Framer):
    """The client's bytes. The beginning of a request may be kept until there is enough of it.

    Args:
        budget: room for fetches until they are whole, for all connections of the process.
    """

    __slots__ = ("_budget", "_reserved", "held")

    def __init__(self, budget: RequestBudget) -> None:
        super().__init__()
        self._budget = budget
        self._reserved = 0
        """Bytes that are reserved in the budget."""
        self.held = False
        """The next request is whole, and waits for the response to another one."""

    def reserve(self, size: int) -> bool:
        """Reserve room for this many bytes of the next request; return False if the budget has none."""
        if not self._budget.reserve(size):
            return False
        self._reserved = size
        self.need = size
        return True

    def next(self) -> bytes:
        """As `Framer.next`; what was reserved for a request is released."""
        self._release()
        return super().next()

    def rest(self) -> bytes:
        """As `Framer.rest`; what was reserved for a request is released."""
        self._release()
        return super().rest()

    def _release(self) -> None:
        self.held = False
        if self._reserved:
            self._budget.release(self._reserved)
            self._reserved = 0


class ConnectionState:
    """What the two sides of a connection share.

    Args:
        limits: the switches for sessions.
        measured: gets what is measured.
        foreign: the client may use another protocol than Kafka, or TLS.
        request_budget: room for fetches until they are whole, for all connections of the process; None: any.
        host: the client's.
        broker: identifies the broker. Empty, or with a comma, if it is not known which one it is.
    """

    __slots__ = (
        "broker",
        "client_id",
        "delayed",
        "events",
        "fault",
        "foreign",
        "forwarding",
        "from_broker",
        "from_client",
        "grouped",
        "has_lane",
        "host",
        "meter",
        "now",
        "phase",
        "plans",
        "request_budget",
        "response_size",
        "responses",
        "stages",
        "stream",
        "tally",
        "to_broker",
        "to_client",
    )

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
        self.grouped = False
        """There are cooperative groups: this limits the versions that the client is offered."""
        self.has_lane = False
        """The client has a lane of one, or may have one."""
        self.tally = Tally()
        """What was counted, but for what the fast path has passed since `Plans.count`."""
        self.meter = Meter(measured, self.tally)
        self.plans = Plans(limits, measured, self.tally, self.meter)
        """For the fast path: those that what has come so far has led to."""
        self.events: list[Event] = []
        """What has happened and was not reported yet."""
        self.to_client: list[Buffer] = []
        self.to_broker: list[Buffer] = []
        """Bytes that are due and were not taken yet. These three are emptied, never replaced."""
        self.client_id = ""
        """What the client calls itself, "" before it has."""
        self.now = 0.0
        """When the bytes that are being processed were read, in seconds."""
        self.phase = Phase.NEW
        self.stream = Stream.FRAMES
        self.foreign = foreign
        """The protocol may still turn out not to be Kafka: no request was answered yet."""
        self.stages: list[Stage] = []
        """What the options add, from the client to the broker."""
        self.fault: Fault | None = None
        """Set when the connection has to end. The client must still be sent what is due to it."""
        self.request_budget = request_budget or RequestBudget()
        self.from_client = RequestFramer(self.request_budget)
        """A request of which bytes are `left` is forwarded while it comes."""
        self.from_broker = Framer()
        self.forwarding: InFlight | None = None
        """The request that is forwarded while it comes, if it will be answered."""
        self.delayed: list[tuple[InFlight, bytes]] = []
        """Requests that have to wait until the request that is being forwarded has ended."""
        self.responses = ResponseQueue()
        self.response_size = 0
        """All bytes of the response that is coming in."""

    # Requests to the broker

    def send(self, request: InFlight, frame: bytes) -> None:
        """Send a frame to the broker. If a request is being forwarded, send it after the end of that one."""
        if self.from_client.left:
            self.delayed.append((request, frame))
            return
        request.sent_at = self.now
        self.responses.expected.append(request)
        self.to_broker.append(frame)

    # What is not Kafka

    def stop_framing(self, stream: Stream, reason: Reason) -> None:
        """Forward the client's bytes as they come from now on."""
        self.stream = stream
        self.tally.passthrough[reason] += 1
        self.events.append(Passthrough(reason=reason))

    def unread(self, side: str, reason: str, data: bytes = b"") -> None:
        """Handle bytes that no Kafka peer sends: end the connection with a fault.

        While the protocol may still be another one, forward everything instead.

        Args:
            side: who sent them.
            reason: what is wrong with them.
            data: what the client has just sent.
        """
        if self.foreign:
            self.be_wire(data)
        else:
            self.fail(side, reason)

    def be_wire(self, data: bytes = b"") -> None:
        """Forward everything: it is not Kafka.

        Args:
            data: what the client has just sent.
        """
        self.foreign = False
        self.responses.clear()
        self.forwarding = None
        self.stop_framing(Stream.WIRE, Reason.TLS if data.startswith(TLS_HANDSHAKE) else Reason.NOT_KAFKA)
        # What was kept until the rest of its frame comes is no frame: send it.
        if said := data + self.from_client.rest():
            self.to_broker.append(said)
        if said := self.from_broker.rest():
            self.to_client.append(said)

    # The connection's end

    def refuse_response(self, refusal: Refusal, reason: str) -> None:
        """End the connection: of this response nothing more may go to the client."""
        self.tally.refused[refusal] += 1
        self.fail("broker", reason)

    def fail(self, side: str, reason: str) -> None:
        """End the connection with a fault of one side, ``client`` or ``broker``."""
        self.fault = Fault(side=side, reason=reason)
        self.events.append(self.fault)
        self.from_client.rest()  # no more is read of it

    def end(self) -> None:
        """Forget all that was in flight, coming in or due."""
        self.stages.clear()
        self.plans.end()
        self.from_client.rest()
        self.from_broker.rest()
        self.to_client.clear()
        self.to_broker.clear()
        self.delayed.clear()
        self.responses.clear()
        self.forwarding = None
