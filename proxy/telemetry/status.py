"""Reports of the gateway about itself, as plain data. Sans-IO.

An `Account` has a `Status` (the present state), what was counted since the start, and the recent history.
Health, metrics and state are made from it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar, cast

from proxy.adding import Figures
from proxy.addresses import LOOPED, Address, Broker
from proxy.command.config import Config
from proxy.core.events import Tally
from proxy.core.histograms import Distribution, Measured
from proxy.features.declared import FEATURES
from proxy.features.feature import Feature, Reports
from proxy.telemetry.brokers import HungBrokers, Reachability
from proxy.telemetry.history import History, RecentEvents
from proxy.telemetry.totals import NodeId

_Kind = TypeVar("_Kind")
REPORTS: Final[tuple[tuple[Feature[Any, Any], Reports[Any, Any]], ...]] = tuple(
    (each, each.reports()) for each in FEATURES if each.reports is not None
)
STATES: Final = {
    "starting": "no broker has answered yet, or none has a listener",
    "ready": "all is well",
    "degraded": "clients are served, but something is wrong: `/readyz` says what, and names the option",
    "draining": "the gateway ends",
}
"""The states of ``/readyz``, each with its meaning."""


@dataclass(slots=True, kw_only=True)
class Status:
    """The present state of a gateway: its options, its brokers, and how much of each limit is used."""

    at: float
    """In seconds (`time.monotonic`)."""
    config: Config
    listen: Address
    """The first listener, with the port that was bound."""
    brokers: dict[int, Broker]
    reach: Reachability
    hung_brokers: HungBrokers
    draining: bool
    problems: list[str]
    """All problems in words, except reached limits and brokers that are unreachable or do not respond."""
    slots_used: int
    slots_lacking: bool = False
    """Whether all session slots are used, and the last fetch of a connection found none."""
    connections: int
    buffered_bytes: int = 0
    """Responses in memory: incomplete, or not read by their clients."""
    over: bool = False
    """Whether `buffered_bytes` is above the limit."""
    capture_stopped: bool = False
    reloaded_at: float
    """When the options were last read without an error, in seconds since 1970."""
    reload_failures: int
    needs_restart: list[str] = field(default_factory=list)
    certificates: dict[str, float] = field(default_factory=dict)
    """When each of the gateway's own certificates expires, in seconds since 1970, by option. For
    ``--tls-cert-of``, a space and the broker follow it."""
    broker_certificates: dict[NodeId, float] = field(default_factory=dict)
    """As `certificates`, for the certificate that each broker last showed."""

    def trouble_with(self, node_id: NodeId) -> tuple[str, float | None]:
        """Return the problem with a broker ("" if none), and for how many seconds (None if unknown).

        An unreachable broker is not also reported as one that does not respond.
        """
        broker = self.brokers.get(node_id) if node_id is not None else None
        if broker is not None and broker.problem:
            return broker.problem, None
        if reason := self.reach.of(node_id):
            return reason, self.at - self.reach.since[node_id]
        since = self.hung_brokers.hung(self.at).get(node_id)
        if since is None:
            return "", None
        return _silent(self.at - since), self.at - since


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether clients can be served, and the problems, as ``/readyz`` reports them."""

    state: str
    """One of `STATES`."""
    reasons: list[str]

    @property
    def ready(self) -> bool:
        return self.state in {"ready", "degraded"}


def health_of(status: Status) -> Health:
    """Return whether clients can be served, and all problems."""
    known, unreachable = status.brokers.keys(), status.reach.now()
    reasons = [reason for node_id, reason in unreachable.items() if node_id is None or node_id in known]
    expected = set(known) if status.config.is_transparent else {None, *known}
    if expected and unreachable.keys() >= expected and status.reach.answered:
        reasons.insert(0, "no broker is reachable")
    reasons += _hung(status)
    reasons += status.problems
    reasons += _limits(status)
    if status.draining:
        state = "draining"
    elif not status.reach.answered or _has_no_listener(status):
        state = "starting"
    else:
        state = "degraded" if reasons else "ready"
    return Health(state=state, reasons=reasons)


def _has_no_listener(status: Status) -> bool:
    # Then all known brokers are left out of responses.
    return bool(status.brokers) and all(broker.problem for broker in status.brokers.values())


def _silent(seconds: float) -> str:
    return f"no response for {int(seconds)} s"


def _hung(status: Status) -> list[str]:
    config, brokers, reasons = status.config, status.brokers, []
    for node_id, since in status.hung_brokers.hung(status.at).items():
        if status.reach.of(node_id):
            continue
        name = called(node_id, brokers, transparent=config.is_transparent)
        if node_id is not None and node_id in brokers and not config.is_transparent:
            name += f" at {brokers[node_id].address}"
        outstanding = status.hung_brokers.outstanding(node_id)
        reasons.append(f"{name}: {_silent(status.at - since)} (outstanding requests: {outstanding})")
    return reasons


def _limits(status: Status) -> list[str]:
    config, reached = status.config, []
    if config.sessions and 0 < config.max_sessions <= status.slots_used and status.slots_lacking:
        reached.append(
            f"all {config.max_sessions} session slots are used, other clients' fetches are forwarded"
            " unchanged; raise --max-sessions"
        )
    if status.over:
        reached.append(
            f"{status.buffered_bytes} bytes of responses are buffered, so nothing is read from brokers;"
            " raise --max-inflight-bytes"
        )
    if status.connections >= config.max_connections:
        reached.append(limit_reached(config.max_connections))
    return reached


def limit_reached(max_connections: int) -> str:
    """Return a text for users: the limit of connections is reached."""
    return (
        f"all {max_connections} connections are used, further ones are closed at once;"
        " raise --max-connections"
    )


def called(node_id: NodeId, known: Mapping[int, Broker], *, transparent: bool) -> str:
    """Return the name of a broker for messages: its id, or its address in transparent mode."""
    if node_id is None:
        return "the bootstrap"
    if not transparent:
        return f"broker {node_id}"
    broker = known.get(node_id)
    return str(broker.address) if broker else {LOOPED: "nowhere"}.get(node_id, "other")


@dataclass(slots=True, kw_only=True)
class WithBroker(Figures):
    """Figures of the open connections to one broker."""

    connections: int = 0
    reached: int = 0
    """How many of the client connections for this broker are connected to it."""
    sessions: int = 0
    session_partitions: int = 0
    outstanding: int = 0
    """The number of requests to which the broker has not responded."""
    oldest_seconds: float = 0.0
    """For how long the oldest response has been overdue: after the longest wait that its request allows. 0 if
    none is overdue."""

    def add(self, other: Self) -> None:
        """Add the figures of other connections. Of `oldest_seconds`, the larger one counts."""
        oldest = max(self.oldest_seconds, other.oldest_seconds)
        Figures.add(self, other)  # not `super()`: `slots` makes another class
        self.oldest_seconds = oldest


@dataclass(slots=True, kw_only=True)
class Account:
    """Everything that a gateway reports about itself, without the list of connections.

    It has the present status, what was counted since the start, and the figures of the open connections.
    """

    status: Status
    process: Mapping[str, float]
    """What the process takes of its machine, as `/state` shows it."""
    uptime_seconds: float
    history: History
    saved_bytes: dict[NodeId, int]
    """See `proxy.telemetry.totals.Totals.saved`."""
    response_seconds: dict[NodeId, tuple[float | None, float | None]]
    """See `proxy.telemetry.totals.Totals.response_seconds`."""
    tallies: dict[NodeId, Tally]
    """Of open and closed connections, by broker."""
    measured: dict[NodeId, Measured]
    loop_lag: Distribution
    accepted: int
    turned_away: Counter[str]
    """How many connections the gateway itself has closed, by reason."""
    faults: Counter[str]
    """How many connections were closed because of a peer's fault, by side."""
    tls_failures: Counter[str]
    authentication_failures: Counter[str]
    leaders_updated: int
    """How often the gateway has put a newer leader of a partition into a Metadata response."""
    recent_events: RecentEvents
    links: dict[NodeId, WithBroker]
    paused: Counter[tuple[str, str]]
    """How many connections are not read at present, by side and reason."""
    features: Mapping[type, object]

    @property
    def health(self) -> Health:
        return health_of(self.status)

    def called(self, node_id: NodeId) -> str:
        return called(node_id, self.status.brokers, transparent=self.status.config.is_transparent)

    def of(self, kind: type[_Kind]) -> _Kind | None:
        """Return what a feature has counted. None if it counts nothing."""
        return cast("_Kind | None", self.features.get(kind))

    def by_feature(self) -> Iterator[tuple[Reports[Any, Any], object]]:
        """Yield what each feature that counts has counted, and how it is told."""
        for _, reports in REPORTS:
            if (counted := self.features.get(reports.kind)) is not None:
                yield reports, counted

    def total(self) -> Tally:
        total = Tally()
        for tally in self.tallies.values():
            total.add(tally)
        return total

    def all_measured(self) -> Measured:
        total = Measured()
        for measured in self.measured.values():
            total.add(measured)
        return total
