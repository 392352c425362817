"""The gateway as Prometheus sees it: computed when it is asked for, from the tallies; nothing per frame.

Label values are bounded: two sides, four kinds, Kafka's error codes, and `MAX_REASONS` reasons.
"""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.events import FetchKind, SideTally, Tally
from proxy.server import Gateway
from proxy.transports import BUDGET, PEER_FULL

VERSION: Final = version("fetchgate")
MAX_REASONS: Final = 50
"""Values of a label that come from the wire; the rest is `other`."""

Sides = tuple[tuple[str, SideTally], tuple[str, SideTally]]


class GatewayCollector(Collector):
    """Reads a gateway whenever Prometheus scrapes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """Give all metrics of the gateway."""
        tally = self._gateway.tally()
        sides: Sides = (("client", tally.client), ("broker", tally.broker))
        yield from _bytes(sides)
        yield from _fetches(sides)
        yield from _reasons(tally)
        yield from self._connections()
        yield from self._sessions()
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
