"""A gateway's reports about itself as plain data, from which health, metrics and state are made. Sans-IO.

An `Account` has a `Status` (the present state of the gateway) and `Counts`. With ``--workers`` each process
has its own, and their sum is the gateway's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from proxy.adding import ADDS, Figures
from proxy.addresses import LOOPED, Address, Broker
from proxy.config import Config
from proxy.cooperative.tally import Cooperative
from proxy.core.events import Tally
from proxy.core.histograms import ADDED_SECONDS, Distribution, Measured
from proxy.telemetry.history import History, RecentEvents
from proxy.telemetry.totals import NodeId
from proxy.telemetry.unanswered import Unanswered

STATES: Final = ("starting", "ready", "degraded", "draining")


class UnreachableBrokers:
    """The unreachable brokers and the reasons. The latest attempt counts, from whichever process."""

    __slots__ = ("attempts", "since")

    def __init__(self) -> None:
        self.attempts: dict[NodeId, tuple[float, str]] = {}
        """By broker: the time of the last attempt, in seconds, and the reason why it failed, or ""."""
        self.since: dict[NodeId, float] = {}
        """For each unreachable broker: the time of the first failed attempt."""

    def __repr__(self) -> str:
        return f"<Unreachable {self.now()}>"

    def failed(self, node_id: NodeId, reason: str, now: float) -> bool:
        """Record a failed attempt. Return whether the failure or its reason is new."""
        before = self.of(node_id)
        self.attempts[node_id] = (now, reason)
        self.since.setdefault(node_id, now)
        return before != reason

    def reached(self, node_id: NodeId, now: float) -> bool:
        """Record a successful attempt. Return whether the success is new."""
        before = self.of(node_id)
        self.attempts[node_id] = (now, "")
        self.since.pop(node_id, None)
        return before != ""

    def forget(self, before: float) -> list[NodeId]:
        """Forget and return the unreachable brokers without an attempt since this time.

        The bootstrap is never forgotten, because the gateway itself tries it forever.
        """
        old: list[NodeId] = [
            node_id
            for node_id, (at, reason) in self.attempts.items()
            if reason and at < before and node_id is not None
        ]
        for node_id in old:
            del self.attempts[node_id], self.since[node_id]
        return old

    def of(self, node_id: NodeId) -> str:
        """Return why a broker can't be reached, "" if it can."""
        return self.attempts.get(node_id, (0.0, ""))[1]

    def now(self) -> dict[NodeId, str]:
        """Return the unreachable brokers with the reasons, the bootstrap first."""
        ids = sorted(self.attempts, key=lambda node_id: (node_id is not None, node_id or 0))
        return {node_id: reason for node_id in ids if (reason := self.attempts[node_id][1])}

    def add(self, other: "UnreachableBrokers") -> None:
        """Merge the attempts of another process. The later attempt counts."""
        for node_id, attempt in other.attempts.items():
            if node_id not in self.attempts or attempt[0] > self.attempts[node_id][0]:
                self.attempts[node_id] = attempt
            if not self.attempts[node_id][1]:
                self.since.pop(node_id, None)
            elif node_id in other.since:
                self.since[node_id] = min(other.since[node_id], self.since.get(node_id, inf))


@dataclass(slots=True, kw_only=True)
class Status:
    """The status of a gateway: its options in effect, its brokers, and the use of its limits."""

    at: float
    """The time of this status, in seconds (`time.monotonic`, which is the same in all processes)."""
    config: Config
    listen: Address
    """With the port that was bound."""
    bootstrap: tuple[Address, ...]
    brokers: dict[int, Broker]
    """The known brokers, by id."""
    unreachable_brokers: UnreachableBrokers
    unanswered: Unanswered
    """The brokers that owe responses."""
    bootstrap_answered: bool
    draining: bool
    problems: list[str]
    """All problems except unreachable brokers and limits."""
    silent: bool = False
    """A worker does not respond."""
    slots_used: int
    connections: int
    buffered_bytes: int = 0
    """Bytes of incomplete responses."""
    over: bool = False
    """The buffered bytes exceed their limit."""
    client_sessions: int = 0
    """The number of sessions that the gateway keeps for clients."""
    client_session_partitions: int = 0
    """Partitions in these sessions, as of the last use of each."""
    client_session_evictions: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    """The number of evictions of these sessions, by whether the session was a follower's."""
    capture_stopped: bool = False
    """``--capture`` has stopped because of an error."""
    reloaded_at: float
    """The last time when the options were read without a mistake, in seconds since 1970."""
    reload_failures: int
    """How often the options could not be read since the start."""
    needs_restart: list[str] = field(default_factory=list)
    """Options whose new values need a restart to take effect."""
    certificates: dict[str, float] = field(default_factory=dict)
    """By option (and for ``--tls-cert-of``, a space and the broker): when the gateway's own certificate
    expires, in seconds since 1970."""
    broker_certificates: dict[NodeId, float] = field(default_factory=dict)
    """When each broker's certificate, as last seen, expires."""

    def add(self, other: "Status") -> None:
        """Add the status of a worker. What all workers share is kept."""
        self.unreachable_brokers.add(other.unreachable_brokers)
        self.unanswered.add(other.unanswered)
        self.problems += [problem for problem in other.problems if problem not in self.problems]
        self.buffered_bytes += other.buffered_bytes
        self.over |= other.over
        self.connections += other.connections
        self.client_sessions += other.client_sessions
        self.client_session_partitions += other.client_session_partitions
        for option, ends in other.certificates.items():
            self.certificates[option] = min(ends, self.certificates.get(option, inf))
        for node_id, ends in other.broker_certificates.items():  # the newest lasts longest
            self.broker_certificates[node_id] = max(ends, self.broker_certificates.get(node_id, 0.0))
        for privileged, evictions in other.client_session_evictions.items():
            self.client_session_evictions[privileged] += evictions

    def trouble_with(self, node_id: NodeId) -> tuple[str, float | None]:
        """Return the trouble with a broker, and how many seconds it has lasted if known.

        Returns:
            The reason, "" if there is none. A broker that can't be reached is not also reported as silent.
        """
        broker = self.brokers.get(node_id) if node_id is not None else None
        if broker is not None and broker.problem:
            return broker.problem, None
        if reason := self.unreachable_brokers.of(node_id):
            return reason, self.at - self.unreachable_brokers.since[node_id]
        since = self.unanswered.hung(self.at).get(node_id)
        if since is None:
            return "", None
        return _silent(self.at - since), self.at - since


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What ``/readyz`` reports."""

    state: str
    """One of `STATES`."""
    reasons: list[str]

    @property
    def ready(self) -> bool:
        """Whether clients can be served."""
        return self.state in {"ready", "degraded"}


def health_of(status: Status) -> Health:
    """Return whether clients can be served, and all problems."""
    known, unreachable_brokers = status.brokers.keys(), status.unreachable_brokers.now()
    reasons = [
        reason for node_id, reason in unreachable_brokers.items() if node_id is None or node_id in known
    ]
    expected = set(known) if status.config.is_transparent else {None, *known}
    if expected and unreachable_brokers.keys() >= expected and status.bootstrap_answered:
        reasons.insert(0, "no broker is reachable")
    reasons += _hung(status)
    reasons += status.problems
    reasons += _limits(status)
    if status.draining:
        state = "draining"
    elif not status.bootstrap_answered:
        state = "starting"
    else:
        state = "degraded" if reasons else "ready"
    return Health(state=state, reasons=reasons)


def _silent(seconds: float) -> str:
    return f"no response for {int(seconds)} s"


def _hung(status: Status) -> list[str]:
    """Describe the brokers that do not respond."""
    config, brokers, reasons = status.config, status.brokers, []
    for node_id, since in status.unanswered.hung(status.at).items():
        if status.unreachable_brokers.of(node_id):
            continue
        name = called(node_id, brokers, transparent=config.is_transparent)
        if node_id is not None and node_id in brokers and not config.is_transparent:
            name += f" at {brokers[node_id].address}"
        outstanding = status.unanswered.outstanding(node_id)
        reasons.append(f"{name}: {_silent(status.at - since)} (outstanding requests: {outstanding})")
    return reasons


def _limits(status: Status) -> list[str]:
    """Describe the limits that are reached."""
    config, reached = status.config, []
    if config.sessions and 0 < config.max_sessions <= status.slots_used:
        reached.append(
            f"all {config.max_sessions} session slots are used, other clients' fetches are forwarded"
            " unchanged; raise --max-sessions"
        )
    if status.over:
        reached.append(
            f"{status.buffered_bytes} bytes of responses are buffered, brokers are not read;"
            " raise --max-inflight-bytes"
        )
    if status.connections >= config.max_connections:
        reached.append(limit_reached(config.max_connections))
    return reached


def limit_reached(max_connections: int) -> str:
    """Describe that the connection limit is reached."""
    return (
        f"all {max_connections} connections are used, further ones are closed at once;"
        " raise --max-connections"
    )


def called(node_id: NodeId, known: Mapping[int, Broker], *, transparent: bool) -> str:
    """Return a broker's display name: its id, or its address in transparent mode."""
    if node_id is None:
        return "the bootstrap"
    if not transparent:
        return f"broker {node_id}"
    broker = known.get(node_id)
    return str(broker.address) if broker else {LOOPED: "nowhere"}.get(node_id, "other")


@dataclass(slots=True, kw_only=True)
class WithBroker(Figures):
    """The open connections to one broker."""

    connections: int = 0
    """Connections of clients."""
    reached: int = 0
    """Clients' connections that are connected to the broker."""
    sessions: int = 0
    session_partitions: int = 0
    outstanding: int = 0
    """Requests that the broker has not answered."""
    oldest_seconds: float = field(default=0.0, metadata={ADDS: max})
    """How late the oldest of these requests is, beyond the wait that its client allows; 0 if it is not
    late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProcess:
    """A process that serves clients."""

    number: int
    """From 1. A worker that replaces another takes over its number."""
    pid: int
    connections: int
    cpu_seconds: float
    resident_bytes: int
    open_fds: int
    """Open file descriptors. 0 without /proc, like `resident_bytes`."""


@dataclass(slots=True, kw_only=True)
class Counts(Figures):
    """The counts of one process since its start, and its open connections."""

    tallies: dict[NodeId, Tally] = field(default_factory=dict)
    """By broker: the counts of all connections, open and closed."""
    measured: dict[NodeId, Measured] = field(default_factory=dict)
    loop_lag: Distribution = field(default_factory=lambda: Distribution(ADDED_SECONDS))
    accepted: int = 0
    turned_away: Counter[str] = field(default_factory=Counter)
    """The connections that the gateway itself closed, by reason."""
    faults: Counter[str] = field(default_factory=Counter)
    """By side: the connections closed because of a peer's fault."""
    connect_failures: Counter[NodeId] = field(default_factory=Counter)
    """By broker: the number of failed attempts to connect."""
    tls_failures: Counter[str] = field(default_factory=Counter)
    """By side: the number of failed handshakes."""
    authentication_failures: Counter[str] = field(default_factory=Counter)
    """By side: the number of failed authentications."""
    leaders_updated: int = 0
    """Partitions in Metadata responses whose leader the gateway updated."""
    recent_events: RecentEvents = field(default_factory=RecentEvents)
    links: dict[NodeId, WithBroker] = field(default_factory=dict)
    paused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of paused connections, by side and reason."""
    processes: list[ServingProcess] = field(default_factory=list)
    cooperative: Cooperative | None = None
    """None if ``--cooperative`` names no group."""

    def total(self) -> Tally:
        """Return the sum over all brokers."""
        total = Tally()
        for tally in self.tallies.values():
            total.add(tally)
        return total

    def all_measured(self) -> Measured:
        """Return the sum of the measurements over all brokers."""
        total = Measured()
        for measured in self.measured.values():
            total.add(measured)
        return total

    def drop_current(self) -> None:
        """Drop the figures of open connections, because the process has ended. Counts stay."""
        self.links.clear()
        self.paused.clear()
        self.processes.clear()
        if self.cooperative is not None:
            self.cooperative.groups.clear()


@dataclass(slots=True, kw_only=True)
class Account:
    """A gateway's reports about itself, except its single connections."""

    status: Status
    counts: Counts
    uptime_seconds: float
    history: History
    saved_bytes: dict[NodeId, int]
    """The highest saving with each broker so far, see `proxy.telemetry.totals.Totals.saved`."""
    response_seconds: dict[NodeId, tuple[float | None, float | None]]
    """The recent response times of each broker, see `proxy.telemetry.totals.Totals.response_seconds`."""

    @property
    def health(self) -> Health:
        """Whether clients can be served, and all problems."""
        return health_of(self.status)

    def called(self, node_id: NodeId) -> str:
        """Return a broker's display name."""
        return called(node_id, self.status.brokers, transparent=self.status.config.is_transparent)
