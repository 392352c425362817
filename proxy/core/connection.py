"""One client and the broker connection that is its own: bytes from either side in, bytes out. Sans-IO.

`ClientSide` takes the client's bytes, `BrokerSide` the broker's, and both share a `ConnectionState`. What is
not understood is forwarded byte for byte. The core never raises for a peer's fault: `Connection.fault` says
why the connection has to end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.core.broker_side import BrokerSide
from proxy.core.budget import RequestBudget
from proxy.core.client_sessions import ClientSessions
from proxy.core.client_side import ClientSide
from proxy.core.connection_state import ConnectionState, Phase, Stream
from proxy.core.connection_status import ConnectionStatus
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import Event, Fault, SideTally, Tally
from proxy.core.fast_path import FastPath
from proxy.core.fetch_responses import FetchResponses
from proxy.core.fetches import Fetches
from proxy.core.histograms import Measured
from proxy.core.in_flight import MAX_IN_FLIGHT
from proxy.core.leader_retry import LeaderRetry
from proxy.core.leaders import Leaders
from proxy.core.max_fetch_bytes import MaxFetchBytes
from proxy.core.plans import SessionPlan
from proxy.core.responses import AddressRewriting, Rewriting
from proxy.core.siblings import Siblings
from proxy.core.stage import Stage
from proxy.fetch_manager.manager import FetchManager
from proxy.protocol.addresses import Resolve
from proxy.protocol.primitives import Buffer
from proxy.session.decision import Reason
from proxy.session.partitions import PartitionTable

MAX_REQUEST_BYTES: Final = 104_857_600
"""Kafka's default for socket.request.max.bytes."""


def _none_opening(_node_id: int, /) -> bool:
    """Say that no broker's listener is being opened."""
    return False


MakeStage: TypeAlias = Callable[[ConnectionState], Stage]


@dataclass(frozen=True, slots=True)
class Common:
    """What the connections of a process share, beside the slots of sessions."""

    max_request_bytes: int = MAX_REQUEST_BYTES
    """The longest frame taken from a client."""
    maybe_not_kafka: bool = False
    """Clients may use another protocol than Kafka, or TLS. All bytes of such a client are forwarded."""
    request_budget: RequestBudget | None = None
    """Memory for fetches until they are whole. None: without limit."""
    leaders: Leaders | None = None
    """The newest leader of each partition; used where addresses are rewritten. None: they are not kept."""
    siblings: Siblings | None = None
    """The connections of all clients, to follow leaders; used where addresses are rewritten. None: leaders
    are not followed."""
    manager: FetchManager | None = None
    """Gives sessions to clients. None: they get none from the gateway."""
    stages: tuple[MakeStage, ...] = ()
    """Makers of more stages for each connection; those of the core come before."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The broker of a connection."""

    node_id: int | None = None
    """None: it is not known."""
    name: str = ""
    """Identifies it among the brokers of all connections: a session is with one broker."""
    versions: BrokerVersions | None = None
    """What it said of itself to other clients. None: nothing."""
    measured: Measured | None = None
    """What connections to this broker measure together. None: nobody reads it."""
    opening: Callable[[int], bool] = _none_opening
    """Tells whether it is not known yet if a broker will have a listener."""


_ALONE: Final = Common()
_UNKNOWN: Final = BrokerInfo()


class Connection:
    """A client and its broker.

    | | |
    |---|---|
    | `fast_path` | asked first about the bytes of either side |
    | `receive_client`, `receive_broker`, `go_on` | bytes in, and more of those that wait (`goes_on`) |
    | `client_ended`, `broker_ended`, `brokers_opened`, `tick` | what else happens; `attach` before all |
    | `close_session`, then `ended` | the end; `hand_over` to another worker |
    | `drain_client`, `drain_broker`, `drain_events` | bytes and events out, after each of these |
    | `fault`, `done`, `reads_client`, `goes_on`, `responses_wait`, `wire`, `buffered` | acted on then |
    | `tally`, `status()` | read now and then |

    Args:
        sessions: the switch and the slots that all connections of the process share.
        resolve: where brokers are told to be. None leaves addresses as they are.
        common: what else these share.
        broker: the broker.
        host: the client's.
        fast: false in tests: nothing takes the fast path.
    """

    __slots__ = (
        "_broker_side",
        "_client_ended",
        "_client_side",
        "_closes",
        "_fetches",
        "_responses",
        "_rewriting",
        "_state",
        "_versions",
        "events",
        "fast_path",
        "retry",
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
        self._state, self._responses = state, state.responses
        self.fast_path = FastPath(state, max_request_bytes=max_request_bytes, on=fast)
        """Asked first: the other calls get only the bytes that do not pass there."""
        self.events = state.events
        """What has happened and was not reported yet."""
        self.to_client, self.to_broker = state.to_client, state.to_broker
        """Bytes that are due and were not taken yet."""
        self._versions = broker.versions or BrokerVersions()
        self._fetches = fetches = Fetches(state, sessions, self._versions)
        leaders = common.leaders or Leaders()
        serves = common.manager is not None
        if resolve is None:
            self._rewriting = Rewriting(state, fetches.eligibility, serves=serves)
        else:
            self._rewriting = AddressRewriting(
                state, fetches.eligibility, resolve, broker.opening, leaders, serves=serves
            )
        responses = FetchResponses(state, fetches, sessions, self._rewriting, leaders)
        if common.manager is not None:
            state.stages.append(ClientSessions(state, common.manager, fetches.eligibility, broker.name))
        state.stages.append(MaxFetchBytes(state, fetches, sessions))
        self.retry: LeaderRetry | None = None
        """Follows leaders; the shell attaches itself to it."""
        if common.siblings is not None and resolve is not None:
            self.retry = LeaderRetry(
                state,
                common.siblings,
                host,
                broker.node_id,
                settle=self._settle,
                resume=self._resume,
            )
            state.stages.append(self.retry)
        state.stages += [make(state) for make in common.stages]
        self._client_side = ClientSide(
            state,
            fetches,
            responses,
            self._rewriting,
            max_request_bytes=max_request_bytes,
        )
        for stage in state.stages:
            stage.begin(self._client_side.process, self._resume)
        self._client_ended = False
        """The client sends no more, and is still to have its responses."""
        self._closes = False
        """The session is to be closed when nothing waits that the client has sent."""
        self._broker_side = BrokerSide(state)

    def __repr__(self) -> str:
        client_id, in_flight = self._state.client_id, len(self._responses.owed)
        return f"<Connection {client_id!r} in_flight={in_flight} {self._fetches.handler!r}>"

    # What the shell acts on

    @property
    def tally(self) -> Tally:
        """What was counted."""
        self._state.plans.count()
        return self._state.tally

    @property
    def fault(self) -> Fault | None:
        """Set when the connection has to end. The client must still be sent what `drain_client` returns."""
        return self._state.fault

    @property
    def reads_client(self) -> bool:
        """Whether more is wanted from the client now."""
        state, responses = self._state, self._responses
        if state.phase is _CLOSING:
            return False
        requests = state.from_client
        waits = requests.held or (requests.ready and not requests.left)
        if waits and not any(stage.reads_on(len(requests)) for stage in state.stages):
            return False
        # The gateway's own requests wait for the end of a frame that is being forwarded: read the rest of it.
        return requests.left > 0 or (not responses.resending and len(responses.owed) < MAX_IN_FLIGHT)

    @property
    def goes_on(self) -> bool:
        """Whether some of what came from either side waits for `go_on` alone."""
        return self._broker_side.waiting > 0 or self._client_side.goes_on

    @property
    def responses_wait(self) -> bool:
        """Whether some of what came from the broker does."""
        return self._broker_side.waiting > 0

    @property
    def done(self) -> bool:
        """Whether, after `close_session`, nothing is in flight any more."""
        state = self._state
        if state.phase is not Phase.CLOSING or self._broker_side.waiting:
            return False
        if any(request.handler.awaits_brokers for request in self._responses.owed):
            return False
        # A request of which the end never came is not answered.
        expected = self._responses.expected
        return not expected or (state.from_client.left > 0 and expected[0] is state.forwarding)

    @property
    def wire(self) -> bool:
        """Whether it is not Kafka: all is forwarded, and with it the end of what either side sends."""
        return self._state.stream is Stream.WIRE

    @property
    def buffered(self) -> int:
        """Bytes of responses kept until they are whole or their turn comes."""
        return self._responses.buffered

    @property
    def decided(self) -> Reason | None:
        """Why the last fetch was forwarded as it came; see `Fetches.decided` for None."""
        return self._fetches.decided

    @property
    def session_table(self) -> PartitionTable | None:
        """What the session holds; before there is one, what the last fetch listed.

        None before the first such fetch, and again after the table was dropped.
        """
        return self._fetches.handler.table

    @property
    def plan(self) -> SessionPlan | None:
        """The plan for the next fetch of the session, if the fast path has one."""
        plan = self._state.plans.fetch
        return plan if isinstance(plan, SessionPlan) else None

    def drain_client(self) -> list[Buffer]:
        """Hand over the bytes that are due to the client."""
        return _drain(self.to_client, self._state.tally.client)

    def drain_broker(self) -> list[Buffer]:
        """Hand over the bytes that are due to the broker."""
        return _drain(self.to_broker, self._state.tally.broker)

    def status(self) -> ConnectionStatus:
        """Return a view for whoever asks now and then: see there."""
        return ConnectionStatus(
            self._state,
            self._client_side,
            self._broker_side,
            self._fetches,
            self._counted,
            self.fast_path.began,
        )

    def _counted(self) -> Tally:
        return self.tally

    def hand_over(self) -> bytes:
        """Hand over all that came from a client that another worker is to serve (`MemberElsewhere`)."""
        state = self._state
        data = state.from_client.rest()
        state.tally.client.bytes_in -= len(data)  # they are counted there
        return data

    def drain_events(self) -> list[Event]:
        """Hand over what has happened since the last call."""
        due = self.events.copy()
        self.events.clear()
        return due

    # What the shell tells

    def attach(self, wake: Callable[[], None], alarm: Callable[[float], None]) -> None:
        """Attach the I/O shell.

        Args:
            wake: writes what is due. It is called when something is due that did not come with the
                connection's own bytes. It must write at once: what the fast path passes next comes behind it.
            alarm: takes the time, in seconds, at which `tick` is to be called.
        """
        for stage in self._state.stages:
            stage.attach(wake, alarm)

    def tick(self, now: float) -> None:
        """Do what is due at a time that `attach`'s alarm was given."""
        for stage in self._state.stages:
            stage.tick(now)
        self._state.now = now
        self._settle()

    def receive_client(self, data: bytes, now: float) -> None:
        """Take bytes from the client that did not take the fast path."""
        self._client_side.receive(data, now)
        self._settle()

    def go_on(self, now: float) -> None:
        """Process more of what came and waits: see `goes_on`."""
        if self._broker_side.waiting:
            self.receive_broker(b"", now)
            return
        self._state.now = now
        self._finish_waiting()
        self._settle()

    def receive_broker(self, data: bytes, now: float) -> None:
        """Take bytes from the broker that did not take the fast path."""
        self._broker_side.receive(data, now)
        self._finish_waiting()
        self._settle()

    def close_session(self, now: float) -> None:
        """Take no more from the client; finish what is in flight, then close the session at the broker."""
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
            # Half a frame may be on its way: a close amid it would corrupt it (fetch-semantics, trap 21).
            self._fetches.close(silently=state.from_client.left > 0)
        self._settle()

    def _finish_waiting(self) -> None:
        """Process what waited for a response. If it is the client's last, close when none of it waits."""
        self._client_side.go_on()
        self._close_after_last()

    def _close_after_last(self) -> None:
        """Close if the client sends no more, and nothing waits that it has sent."""
        state = self._state
        if not self._closes:
            return
        waits = state.from_client.ready or state.from_client.held or self._stage_is_busy
        if state.fault is not None or not waits:
            self._closes = self._client_ended = False
            self.close_session(state.now)

    def client_ended(self) -> None:
        """Note that the client sends no more.

        If only a part of a request has come, it was no Kafka request: forward it, if that is allowed.
        """
        if self._state.foreign and self._state.from_client:
            self._state.be_wire()
        # A broker answers all that a client has sent that has closed its writing half (fetch-semantics 1.7).
        self._client_ended = True

    def broker_ended(self) -> None:
        """Note that the broker sends no more.

        If only a part of a response has come, it was no Kafka response: forward it, if that is allowed.
        """
        if part := self.fast_path.part():
            self.receive_broker(part, self._state.now)
        while self._broker_side.waiting:
            self.receive_broker(b"", self._state.now)
        self._versions.forget()  # the next broker at this address may be of another release
        for stage in self._state.stages:
            stage.lose()
            stage.release()
        if self._state.foreign and self._state.from_broker:
            self._state.be_wire()
        for request in list(self._responses.owed):
            if request.handler.awaits_brokers:
                self.brokers_opened(request.handler.awaits_brokers)

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        """Send the responses that wait for these brokers; one without a listener is left out of them."""
        self._broker_side.brokers_opened(node_ids)
        self._settle()

    def ended(self) -> None:
        """Note that both sides are gone, and with them all that was in flight."""
        for stage in self._state.stages:
            stage.end()
        self._fetches.end()
        self._versions.ended(self._fetches.eligibility)
        self.fast_path.end()
        self._state.end()  # now: a link is part of a cycle, which may wait long for its collection

    def _settle(self) -> None:
        """Have stages do what follows, and see what may take the fast path from now on."""
        for stage in self._state.stages:
            stage.settle()
        self.fast_path.settle()

    @property
    def _stage_is_busy(self) -> bool:
        """Whether a stage has something to do for the client that may not be in flight."""
        return any(stage.busy for stage in self._state.stages)

    def _resume(self) -> None:
        """Process what has waited for another connection."""
        self._finish_waiting()
        self._settle()


def _drain(pieces: list[Buffer], side: SideTally) -> list[Buffer]:
    """Empty a list of bytes that are due, count them as sent to a side, and return them."""
    due = pieces.copy()
    pieces.clear()
    side.bytes_out += sum(map(len, due))
    return due


# A member of an enum is looked up slowly.
_CLOSING: Final = Phase.CLOSING
