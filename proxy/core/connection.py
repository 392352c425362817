"""One client connection and its broker connection: bytes from either side in, bytes out. Sans-IO.

`ClientSide` takes the client's bytes, `BrokerSide` the broker's, and both share a `ConnectionState`. Requests
of unknown APIs are forwarded unchanged. The core never raises for a peer's fault. `Connection.fault` is the
reason why the connection has to end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.core.broker_side import BrokerSide
from proxy.core.budget import RequestBudget
from proxy.core.client_side import ClientSide
from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.connection_status import ConnectionStatus
from proxy.core.eligibility import BrokerVersions, Eligibility, SessionLimits
from proxy.core.events import Event, Fault, SideTally, Tally
from proxy.core.expanded_fetch import SessionPlan
from proxy.core.fast_path import FastPath
from proxy.core.fetches import Fetches
from proxy.core.histograms import Measured
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.core.leaders import Leaders
from proxy.core.responses import AddressRewriting, Rewriting
from proxy.core.stage import Stage
from proxy.protocol.addresses import Resolve
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
    | `receive_client`, `receive_broker`, `go_on` | process new bytes, and waiting bytes (`goes_on`) |
    | `client_ended`, `broker_ended`, `brokers_opened`, `tick` | process other events; call `attach` first |
    | `shrink` | call this every few seconds |
    | `close_session`, then `ended` | end the connection |
    | `drain_client`, `drain_broker`, `drain_events` | take bytes and events, after each of these calls |
    | `fault`, `done`, `reads_client`, `goes_on`, `responses_wait`, `wire`, `buffered` | then read these |
    | `tally`, `status()` | read these from time to time |

    `resolve` returns the address of a broker for clients. None leaves addresses unchanged. Tests can turn the
    fast path off (`fast`).
    """

    __slots__ = (
        "_broker_side",
        "_client_ended",
        "_client_side",
        "_closes",
        "_fetches",
        "_queue",
        "_state",
        "_status",
        "_versions",
        "events",
        "fast_path",
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
        measured, max_request_bytes = broker.measured or Measured(), common.max_request_bytes
        state = ConnectionState(
            sessions,
            measured,
            foreign=common.maybe_not_kafka,
            request_budget=common.request_budget,
            host=host,
            broker=broker.name,
        )
        self._state, self._queue = state, state.queue
        self.fast_path = FastPath(state, max_request_bytes=max_request_bytes, on=fast)
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
        self._client_side = ClientSide(
            state,
            fetches,
            rewriting,
            max_request_bytes=max_request_bytes,
        )
        for stage in state.stages:
            stage.connect_core(self._client_side.process, self._resume, self._settle)
        self._client_ended = False
        """Whether the client has stopped sending. It still gets its responses."""
        self._closes = False
        """Whether to close the session as soon as no bytes of the client wait."""
        self._broker_side = BrokerSide(state)
        self._status = ConnectionStatus(state, self._client_side, self._broker_side, fetches, self.fast_path)

    def __repr__(self) -> str:
        client_id, in_flight = self._state.client_id, len(self._queue.owed)
        return f"<Connection {client_id!r} in_flight={in_flight} {self._fetches.session!r}>"

    # What the shell acts on

    @property
    def tally(self) -> Tally:
        return self._state.plans.count()

    @property
    def fault(self) -> Fault | None:
        """The reason why the connection has to end. The client must still get the bytes of `drain_client`."""
        return self._state.fault

    @property
    def reads_client(self) -> bool:
        """Whether the core accepts more bytes from the client now."""
        state, queue = self._state, self._queue
        if state.phase is _CLOSING:
            return False
        requests = state.from_client
        waits = requests.held or (requests.ready and not requests.left)
        if waits and not any(stage.reads_on(len(requests)) for stage in state.stages):
            return False
        # The gateway's own requests wait for the end of a frame that is being forwarded: read the rest of it.
        return requests.left > 0 or (not queue.resending and len(queue.owed) < MAX_IN_FLIGHT)

    @property
    def goes_on(self) -> bool:
        """Whether the next call of `go_on` can process received bytes of either side."""
        return self._broker_side.waiting > 0 or self._client_side.goes_on

    @property
    def responses_wait(self) -> bool:
        return self._broker_side.waiting > 0

    @property
    def done(self) -> bool:
        """Whether `close_session` was called and no request is in flight any more."""
        state = self._state
        if state.phase is not Phase.CLOSING or self._broker_side.waiting:
            return False
        if any(request.handler.awaits_brokers for request in self._queue.owed):
            return False
        # An incomplete request gets no response.
        expected = self._queue.expected
        return not expected or (state.from_client.left > 0 and expected[0] is state.forwarding)

    @property
    def wire(self) -> bool:
        """Whether the protocol is not Kafka, so that everything is forwarded, including each side's end."""
        return self._state.stream is Stream.WIRE

    @property
    def buffered(self) -> int:
        return self._queue.buffered

    @property
    def decided(self) -> Reason | None:
        return self._fetches.decided

    @property
    def session_table(self) -> PartitionTable | None:
        """The partitions of the session. Without one, those of the last fetch that could use one, if any."""
        return self._fetches.session.table

    @property
    def plan(self) -> SessionPlan | None:
        """The plan for the next fetch of the session, if the fast path has one."""
        plan = self._state.plans.fetch
        return plan if isinstance(plan, SessionPlan) else None

    def drain_client(self) -> list[Buffer]:
        """Return the bytes to send to the client, and remove them."""
        return _drain(self.to_client, self._state.tally.client)

    def drain_broker(self) -> list[Buffer]:
        """Return the bytes to send to the broker, and remove them."""
        return _drain(self.to_broker, self._state.tally.broker)

    def status(self) -> ConnectionStatus:
        """Return the view of this connection for `/state` and metrics. Each call returns the same object."""
        return self._status

    def drain_events(self) -> list[Event]:
        """Return the events since the last call, and remove them."""
        due = self.events.copy()
        self.events.clear()
        return due

    # What the shell tells

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell.

        Args:
            wake: writes the bytes to send. It is called for bytes that were caused by another connection or a
                timer. It must write at once, because bytes of the fast path must come later.
            alarm: gets the time, in seconds, at which the shell has to call `tick`.
        """
        for stage in self._state.stages:
            stage.attach(wake, alarm)

    def tick(self, now: float) -> None:
        """Do the work that is due. The shell calls this at the time that `alarm` got (`attach`)."""
        for stage in self._state.stages:
            stage.tick(now)
        self._state.now = now
        self._settle()

    def shrink(self) -> None:
        """Release memory that an idle connection does not need. The shell calls this every few seconds."""
        self._queue.shrink()
        self.fast_path.settle()

    def receive_client(self, data: bytes, now: float) -> None:
        """Process bytes from the client that did not take the fast path."""
        self._client_side.receive(data, now)
        self._settle()

    def go_on(self, now: float) -> None:
        """Process more of the waiting bytes. `goes_on` tells whether this is needed."""
        if self._broker_side.waiting:
            self.receive_broker(b"", now)
            return
        self._state.now = now
        self._finish_waiting()
        self._settle()

    def receive_broker(self, data: bytes, now: float) -> None:
        """Process bytes from the broker that did not take the fast path."""
        self._broker_side.receive(data, now)
        self._finish_waiting()
        self._settle()

    def close_session(self, now: float) -> None:
        """Stop reading the client, finish the requests in flight, and close the session at the broker.

        If the client has ended its stream, its bytes that wait are processed first.
        """
        state = self._state
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
        self._client_side.go_on()
        self._close_after_last()

    def _close_after_last(self) -> None:
        state = self._state
        if not self._closes:
            return
        waits = state.from_client.ready or state.from_client.held or self._stage_is_busy
        if state.fault is not None or not waits:
            self._closes = self._client_ended = False
            self.close_session(state.now)

    def client_ended(self) -> None:
        # With only a part of a request, the client does not speak Kafka.
        if self._state.foreign and self._state.from_client:
            self._state.be_wire()
        # After a client's half-close, a broker still answers its earlier requests (fetch-semantics 1.7).
        self._client_ended = True

    def broker_ended(self) -> None:
        if part := self.fast_path.part():
            self.receive_broker(part, self._state.now)
        while self._broker_side.waiting:
            self.receive_broker(b"", self._state.now)
        self._versions.forget()  # the next broker at this address may be of another release
        for stage in self._state.stages:
            stage.lose()
            stage.release()
        # With only a part of a response, the broker does not speak Kafka.
        if self._state.foreign and self._state.from_broker:
            self._state.be_wire()
        for request in list(self._queue.owed):
            if request.handler.awaits_brokers:
                self.brokers_opened(request.handler.awaits_brokers)

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """See `BrokerSide.brokers_opened`."""
        self._broker_side.brokers_opened(node_ids)
        self._settle()

    def ended(self, now: float = 0.0) -> None:
        """Drop everything in flight, because both sides have ended."""
        self._state.now = max(self._state.now, now)
        for stage in self._state.stages:
            stage.end()
        self._fetches.end()
        self._versions.ended(self._fetches.eligibility)
        self.fast_path.end()
        self._state.end()  # now: a link is part of a cycle, which may wait long for its collection

    def _settle(self) -> None:
        for stage in self._state.stages:
            stage.settle()
        self.fast_path.settle()

    @property
    def _stage_is_busy(self) -> bool:
        return any(stage.busy for stage in self._state.stages)

    def _resume(self) -> None:
        self._finish_waiting()
        self._settle()


def _drain(pieces: list[Buffer], side: SideTally) -> list[Buffer]:
    due = pieces.copy()
    pieces.clear()
    side.bytes_out += sum(map(len, due))
    return due


# A member of an enum is looked up slowly.
_CLOSING: Final = Phase.CLOSING
