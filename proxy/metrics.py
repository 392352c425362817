"""The gateway as Prometheus sees it: computed when it is asked for, from the tallies; nothing per frame.

Label values are bounded: two sides, four kinds, Kafka's error codes, `MAX_REASONS` reasons and `MAX_BROKERS`
brokers. No client id is one: it is the client's to choose; `/state` has them.
"""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.books import NodeId, add, saved_bytes
from proxy.events import FetchKind, SideTally, Tally
from proxy.measured import Distribution, Measured
from proxy.server import STATES, Gateway
from proxy.transports import BUDGET, PEER_FULL

VERSION: Final = version("fetchgate")
MAX_REASONS: Final = 50
"""Values of a label that come from the wire; the rest is `other`."""
MAX_BROKERS: Final = 100
"""Brokers that are told apart, those with the lowest ids; the rest is `other`."""
_EVICTED: Final = 70
"""FETCH_SESSION_ID_NOT_FOUND."""

Sides = tuple[tuple[str, SideTally], tuple[str, SideTally]]


class GatewayCollector(Collector):
    """Reads a gateway whenever Prometheus scrapes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """Give all metrics of the gateway."""
        by_broker = self._gateway.tallies()
        tally = Tally()
        for part in by_broker.values():
            add(tally, part)
        sides: Sides = (("client", tally.client), ("broker", tally.broker))
        yield from _bytes(sides)
        yield from _fetches(sides)
        yield from _reasons(tally)
        yield from self._connections()
        yield from self._sessions()
        yield from self._limits()
        yield from self._brokers(by_broker)
        yield from _distributions(self._gateway.books.all_measured(), self._gateway.books.loop_lag)
        yield from _client_facing_half()

    def _connections(self) -> Iterator[Metric]:
        gateway = self._gateway
        links = gateway.links
        standing = GaugeMetricFamily("fetchgate_connections", "Open connections.", labels=["side"])
        standing.add_metric(["client"], len(links))
        standing.add_metric(["broker"], sum(link.has_broker for link in links))
        yield standing
        yield CounterMetricFamily(
            "fetchgate_connections_accepted", "Connections taken from clients.", value=gateway.accepted
        )
        turned = CounterMetricFamily(
            "fetchgate_connections_turned_away",
            "Connections that the gateway itself closed: at a limit, leaving, without a request, idle.",
            labels=["reason"],
        )
        for reason, count in gateway.turned_away.items():
            turned.add_metric([reason], count)
        yield turned
        faults = CounterMetricFamily(
            "fetchgate_faults", "Connections ended by a peer's fault.", labels=["side"]
        )
        for side, count in gateway.faults.items():
            faults.add_metric([side], count)
        yield faults
        yield GaugeMetricFamily(
            "fetchgate_inflight_bytes", "Bytes held until an answer is complete.", value=gateway.budget.total
        )
        paused = GaugeMetricFamily(
            "fetchgate_paused_connections",
            "Connections of which this side is not read.",
            labels=["side", "reason"],
        )
        paused.add_metric(
            ["client", "broker_full"], sum(link.client_holds & PEER_FULL != 0 for link in links)
        )
        paused.add_metric(
            ["broker", "client_full"], sum(link.broker_holds & PEER_FULL != 0 for link in links)
        )
        paused.add_metric(["broker", "budget"], sum(link.broker_holds & BUDGET != 0 for link in links))
        yield paused

    def _sessions(self) -> Iterator[Metric]:
        gateway = self._gateway
        in_session = [link.core for link in gateway.links if link.core.session_id]
        sessions = GaugeMetricFamily(
            "fetchgate_fetch_sessions", "Fetch sessions of the gateway.", labels=["side"]
        )
        sessions.add_metric(["client"], 0)
        sessions.add_metric(["broker"], len(in_session))
        yield sessions
        partitions = GaugeMetricFamily(
            "fetchgate_fetch_session_partitions", "Partitions in these sessions.", labels=["side"]
        )
        partitions.add_metric(["client"], 0)
        partitions.add_metric(["broker"], sum(core.session_partitions for core in in_session))
        yield partitions
        yield GaugeMetricFamily(
            "fetchgate_sessions_enabled", "Whether --sessions is on.", value=int(gateway.sessions.on)
        )
        health = gateway.health()
        yield GaugeMetricFamily("fetchgate_ready", "Whether clients can be served.", value=int(health.ready))
        states = GaugeMetricFamily("fetchgate_state", "1 for the state that it is in.", labels=["state"])
        for state in STATES:
            states.add_metric([state], int(state == health.state))
        yield states

    def _limits(self) -> Iterator[Metric]:
        gateway = self._gateway
        yield GaugeMetricFamily(
            "fetchgate_session_slots_held",
            "Slots at brokers that are held or asked for.",
            value=gateway.sessions.held,
        )
        yield GaugeMetricFamily(
            "fetchgate_session_slots_limit", "--max-sessions.", value=gateway.sessions.max_sessions
        )
        yield GaugeMetricFamily(
            "fetchgate_inflight_limit_bytes", "--max-inflight-bytes.", value=gateway.budget.limit
        )

        yield GaugeMetricFamily(
            "fetchgate_connections_limit", "--max-connections.", value=gateway.max_connections
        )

    def _brokers(self, tallies: dict[NodeId, Tally]) -> Iterator[Metric]:
        """Tell brokers apart: who refuses, who evicts, who can't be reached."""
        gateway = self._gateway
        ids = sorted(id_ for id_ in {*tallies, *gateway.brokers.known} if id_ is not None)
        called: dict[NodeId, str] = {
            id_: gateway.called(id_).removeprefix("broker ") for id_ in ids[:MAX_BROKERS]
        }
        called |= {None: "bootstrap"}
        connections = dict.fromkeys(called.values(), 0)
        unreachable, together = connections.copy(), {name: Tally() for name in connections}
        for id_ in (*ids, None):
            name = called.get(id_, "other")
            add(together.setdefault(name, Tally()), tallies.get(id_, Tally()))
            unreachable[name] = unreachable.get(name, 0) + bool(gateway.trouble_of(id_))
        for link in gateway.links:
            name = called.get(link.node_id, "other")
            connections[name] = connections.get(name, 0) + link.has_broker
        yield _by_broker("connections", "Open connections to the broker.", connections)
        yield _by_broker("unreachable", "Brokers to which the last try failed.", unreachable)
        saved = {name: saved_bytes(tally) for name, tally in together.items()}
        yield _by_broker("saved_bytes", "Bytes of fetches, the client's side less the broker's.", saved)
        refusals = {name: tally.refusals for name, tally in together.items()}
        yield _counted_by_broker("session_refusals", "Asked for a session, got none.", refusals)
        evictions = {name: tally.session_errors[_EVICTED] for name, tally in together.items()}
        yield _counted_by_broker("session_evictions", "Sessions given to others (error 70).", evictions)


def _by_broker(name: str, text: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"fetchgate_broker_{name}", text, labels=["broker"])
    for broker, value in values.items():
        family.add_metric([broker], value)
    return family


def _counted_by_broker(name: str, text: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"fetchgate_broker_{name}", text, labels=["broker"])
    for broker, value in values.items():
        family.add_metric([broker], value)
    return family


def _bytes(sides: Sides) -> Iterator[Metric]:
    families = (
        ("fetchgate_fetch_request_bytes", "Fetch requests, whole frames.", "fetch_request_bytes"),
        ("fetchgate_fetch_response_bytes", "Fetch responses, whole frames.", "fetch_response_bytes"),
        ("fetchgate_fetch_record_bytes", "Records in fetch responses.", "fetch_record_bytes"),
    )
    for name, text, field in families:
        family = CounterMetricFamily(name, text, labels=["side"])
        for side, counted in sides:
            family.add_metric([side], getattr(counted, field))
        yield family
    moved = CounterMetricFamily(
        "fetchgate_bytes",
        "All bytes; in: received from that side, out: sent to it.",
        labels=["side", "direction"],
    )
    for side, counted in sides:
        moved.add_metric([side, "in"], counted.bytes_in)
        moved.add_metric([side, "out"], counted.bytes_out)
    yield moved


def _fetches(sides: Sides) -> Iterator[Metric]:
    fetches = CounterMetricFamily("fetchgate_fetches", "Fetch requests.", labels=["side", "kind"])
    partitions = CounterMetricFamily(
        "fetchgate_fetch_partitions", "Partition entries of fetches.", labels=["side", "direction"]
    )
    for side, counted in sides:
        for kind in FetchKind:
            fetches.add_metric([side, kind.name.lower()], counted.fetches[kind])
        partitions.add_metric([side, "request"], counted.partitions_requested)
        partitions.add_metric([side, "response"], counted.partitions_answered)
    yield fetches
    yield partitions


def _reasons(tally: Tally) -> Iterator[Metric]:
    errors = CounterMetricFamily(
        "fetchgate_fetch_session_errors",
        "Top-level errors of session fetches, hidden from clients.",
        labels=["code"],
    )
    for code, count in bounded(Counter({str(code): n for code, n in tally.session_errors.items()})):
        errors.add_metric([code], count)
    yield errors
    passed = CounterMetricFamily(
        "fetchgate_passthrough", "Fetches and connections passed on as they came.", labels=["reason"]
    )
    for reason, count in bounded(tally.passthrough):
        passed.add_metric([reason], count)
    yield passed


def _distributions(measured: Measured, loop_lag: Distribution) -> Iterator[Metric]:
    added = HistogramMetricFamily(
        "fetchgate_added_seconds",
        "What the gateway adds: from bytes read until what they called for was written; a fetch sent again.",
        labels=["part"],
    )
    _fill(added, "request", measured.added_request)
    _fill(added, "response", measured.added_response)
    _fill(added, "repeat", measured.added_repeat)
    yield added
    broker = HistogramMetricFamily(
        "fetchgate_broker_seconds",
        "From a request's last byte to its answer's first; a fetch's max_wait_ms included.",
        labels=["api"],
    )
    _fill(broker, "fetch", measured.broker_fetch)
    _fill(broker, "other", measured.broker_other)
    yield broker
    answers = HistogramMetricFamily(
        "fetchgate_fetch_answer_bytes", "Size of fetch responses, whole frames.", labels=["side"]
    )
    _fill(answers, "client", measured.answer_bytes_client)
    _fill(answers, "broker", measured.answer_bytes_broker)
    yield answers
    partitions = HistogramMetricFamily(
        "fetchgate_fetch_request_partitions", "Partitions that a fetch request lists.", labels=["side"]
    )
    _fill(partitions, "client", measured.partitions_client)
    _fill(partitions, "broker", measured.partitions_broker)
    yield partitions
    lag = HistogramMetricFamily(
        "fetchgate_loop_lag_seconds", "By how much the event loop was late, looked at every two seconds."
    )
    _fill(lag, None, loop_lag)
    yield lag


def _fill(family: HistogramMetricFamily, label: str | None, distribution: Distribution) -> None:
    bounds = (*(str(bound) for bound in distribution.bounds), "+Inf")
    seen = zip(bounds, accumulate(distribution.counts), strict=True)
    family.add_metric([label] if label else [], list(seen), distribution.total)


def _client_facing_half() -> Iterator[Metric]:
    """KIP-227's own metrics; clients' native sessions pass through, so the gateway keeps none for clients."""
    yield GaugeMetricFamily(
        "fetchgate_num_incremental_fetch_sessions", "Sessions that the gateway keeps for clients.", value=0
    )
    yield GaugeMetricFamily(
        "fetchgate_num_incremental_fetch_partitions_cached",
        "Partitions in sessions kept for clients.",
        value=0,
    )
    evictions = CounterMetricFamily(
        "fetchgate_incremental_fetch_session_evictions", "Sessions of clients evicted.", labels=["privileged"]
    )
    evictions.add_metric(["false"], 0)
    evictions.add_metric(["true"], 0)
    yield evictions


def bounded(counts: Counter[str]) -> list[tuple[str, int]]:
    """Give at most `MAX_REASONS` values of a label, the commonest by name and the others together."""
    common = counts.most_common(MAX_REASONS)
    rest = counts.total() - sum(count for _, count in common)
    return [*common, ("other", rest)] if rest else common


def registry(gateway: Gateway) -> CollectorRegistry:
    """Make what ``/metrics`` shows: the gateway, the process, the garbage collector."""
    collectors = CollectorRegistry()
    collectors.register(GatewayCollector(gateway))
    collectors.register(_BuildInfo())
    ProcessCollector(registry=collectors)
    GCCollector(registry=collectors)
    return collectors


class _BuildInfo(Collector):
    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("fetchgate_build_info", "Which fetchgate this is.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info


def exposition(collectors: CollectorRegistry) -> bytes:
    """Write all metrics in Prometheus' text format."""
    return generate_latest(collectors)
