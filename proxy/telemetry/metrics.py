"""The metrics for Prometheus: computed from the tallies when they are requested; nothing is done per frame.

The number of label values is limited: two sides, four kinds, Kafka's error codes, `MAX_REASONS` reasons and
`MAX_BROKERS` brokers. Client ids are no labels, because clients choose them; `/state` has them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.cooperative.tally import BATCHES, COMMITS, DETACHED, EXCLUSIVE, RECORDS, Cooperative
from proxy.cooperative.tally import STATES as STATES_OF_MEMBERS
from proxy.core.events import FetchKind, Refusal, SideTally, Tally
from proxy.core.histograms import Distribution, Measured
from proxy.protocol.api import ErrorCode
from proxy.session.state import Loss
from proxy.telemetry.status import STATES, Account, Counts, Process, Status
from proxy.telemetry.totals import NodeId, add, saved_bytes
from proxy.version import VERSION

MAX_REASONS: Final = 50
"""How many values a label has that come from the wire; the rest is `other`."""
MAX_BROKERS: Final = 100
"""How many brokers have a label value: those with the lowest ids; the rest is `other`."""
_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Exported from the start with 0, so that a rate shows the first error."""

Sides = tuple[tuple[str, SideTally], tuple[str, SideTally]]


class _AccountCollector(Collector):
    """A collector of Prometheus' client that reads an account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def collect(self) -> Iterator[Metric]:
        """Return all metrics of the gateway."""
        account = self._account
        counts, status = account.counts, account.status
        tally = counts.total()
        sides: Sides = (("client", tally.client), ("broker", tally.broker))
        info = GaugeMetricFamily("fetchgate_build_info", "The version of fetchgate.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        yield from _bytes(sides)
        yield CounterMetricFamily(
            "fetchgate_probe_bytes",
            "Bytes of the gateway's own requests, but fetches, and of the responses to them.",
            value=tally.probe_bytes,
        )
        yield from _fetches(sides)
        yield from _reasons(tally)
        yield from _connections(counts)
        yield from _sessions(counts, status)
        yield from _health(account)
        yield from _limits(status)
        yield from _brokers(account)
        yield from _distributions(counts.all_measured(), counts.loop_lag)
        yield from _workers(counts.processes)
        yield from _client_facing_half(status)
        if counts.cooperative is not None:
            yield from _cooperative(counts.cooperative)


def _connections(counts: Counts) -> Iterator[Metric]:
    links = counts.links.values()
    connections = GaugeMetricFamily("fetchgate_connections", "Open connections.", labels=["side"])
    connections.add_metric(["client"], sum(each.connections for each in links))
    connections.add_metric(["broker"], sum(each.reached for each in links))
    yield connections
    yield CounterMetricFamily(
        "fetchgate_connections_accepted", "Client connections accepted.", value=counts.accepted
    )
    turned = CounterMetricFamily(
        "fetchgate_connections_turned_away",
        "Client connections closed by the gateway: at a limit, draining, no request, idle, not reading.",
        labels=["reason"],
    )
    for reason, count in counts.turned_away.items():
        turned.add_metric([reason], count)
    yield turned
    faults = CounterMetricFamily(
        "fetchgate_faults", "Connections closed because of a peer's fault.", labels=["side"]
    )
    for side, count in counts.faults.items():
        faults.add_metric([side], count)
    yield faults
    yield _by_side("fetchgate_tls_failures", "TLS handshakes that failed.", counts.tls_failures)
    yield _by_side(
        "fetchgate_authentication_failures",
        "client: SASL authentications that a broker refused; broker: certificates, ours or a broker's.",
        counts.authentication_failures,
    )
    yield CounterMetricFamily(
        "fetchgate_leaders_updated",
        "Partitions in Metadata responses whose leader was brought up to date.",
        value=counts.leaders_updated,
    )
    paused = GaugeMetricFamily(
        "fetchgate_paused_connections",
        "Connections of which this side is currently not read.",
        labels=["side", "reason"],
    )
    for (side, reason), count in counts.paused.items():
        paused.add_metric([side, reason], count)
    yield paused


def _by_side(name: str, text: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["side"])
    for side in ("client", "broker"):
        family.add_metric([side], values.get(side, 0))
    return family


def _sessions(counts: Counts, status: Status) -> Iterator[Metric]:
    links = counts.links.values()
    sessions = GaugeMetricFamily(
        "fetchgate_fetch_sessions", "Fetch sessions of the gateway.", labels=["side"]
    )
    sessions.add_metric(["client"], status.client_sessions)
    sessions.add_metric(["broker"], sum(each.sessions for each in links))
    yield sessions
    partitions = GaugeMetricFamily(
        "fetchgate_fetch_session_partitions", "Partitions in these sessions.", labels=["side"]
    )
    partitions.add_metric(["client"], status.client_session_partitions)
    partitions.add_metric(["broker"], sum(each.session_partitions for each in links))
    yield partitions


def _health(account: Account) -> Iterator[Metric]:
    health = account.health
    yield GaugeMetricFamily("fetchgate_ready", "1 if clients can be served.", value=int(health.ready))
    states = GaugeMetricFamily(
        "fetchgate_state", "1 for the current state, 0 for the others.", labels=["state"]
    )
    for state in STATES:
        states.add_metric([state], int(state == health.state))
    yield states


def _limits(status: Status) -> Iterator[Metric]:
    """The limits, and how much of each is used."""
    config = status.config
    for name, text, value in (
        ("sessions_enabled", "1 if --sessions is on.", int(config.sessions)),
        ("session_slots_held", "Session slots at brokers that are used or requested.", status.slots_used),
        ("session_slots_limit", "--max-sessions.", config.max_sessions),
        (
            "inflight_bytes",
            "Bytes of responses in memory: incomplete, or not read by their clients.",
            status.buffered_bytes,
        ),
        ("inflight_limit_bytes", "--max-inflight-bytes.", config.max_inflight_bytes),
        ("connections_limit", "--max-connections.", config.max_connections),
        (
            "last_reload_success_timestamp_seconds",
            "When the options were last read without a mistake, at the start or later.",
            status.reloaded_at,
        ),
        (
            "options_need_restart",
            "How many options were changed that do not apply before a restart.",
            len(status.needs_restart),
        ),
        ("capture_stopped", "1 once --capture has stopped because of an error.", int(status.capture_stopped)),
    ):
        yield GaugeMetricFamily(f"fetchgate_{name}", text, value=value)
    yield CounterMetricFamily(
        "fetchgate_reload_failures",
        "How often the options were read again and one was wrong.",
        value=status.reload_failures,
    )


def _brokers(account: Account) -> Iterator[Metric]:
    """Metrics by broker: which one refuses, evicts or can't be reached."""
    tallies, unreachable_brokers = account.counts.tallies, account.status.unreachable_brokers
    ids = sorted(id_ for id_ in {*tallies, *account.status.brokers} if id_ is not None)
    names: dict[NodeId, str] = {id_: account.called(id_).removeprefix("broker ") for id_ in ids[:MAX_BROKERS]}
    names |= {None: "bootstrap"}
    reached = dict.fromkeys(names.values(), 0)
    failures = reached.copy()
    for id_, count in account.counts.connect_failures.items():
        name = names.get(id_, "other")
        failures[name] = failures.get(name, 0) + count
    outstanding, oldest = reached.copy(), dict.fromkeys(reached, 0.0)
    unreachable, together = reached.copy(), {name: Tally() for name in reached}
    for id_ in (*ids, None):
        name = names.get(id_, "other")
        add(together.setdefault(name, Tally()), tallies.get(id_, Tally()))
        unreachable[name] = unreachable.get(name, 0) + bool(unreachable_brokers.of(id_))
    for id_, links in account.counts.links.items():
        name = names.get(id_, "other")
        reached[name] = reached.get(name, 0) + links.reached
        outstanding[name] = outstanding.get(name, 0) + links.outstanding
        oldest[name] = max(oldest.get(name, 0.0), links.oldest_seconds)
    yield _by_broker("connections", "Open connections to the broker.", reached)
    yield _by_broker(
        "unreachable", "1 if the last attempt to connect failed, in the last three minutes.", unreachable
    )
    yield _counted_by_broker("connect_failures", "How often the broker was not reached.", failures)
    yield _by_broker("outstanding_requests", "Requests that the broker has not answered.", outstanding)
    yield _by_broker(
        "oldest_request_seconds",
        "How long the oldest of them is late, beyond what its client lets the broker wait; 0: none is.",
        oldest,
    )
    yield _certificates(account.status, names)
    saved = {name: saved_bytes(tally) for name, tally in together.items()}
    yield _by_broker(
        "saved_bytes", "Use fetchgate_broker_saved_bytes_total; this name goes with the next release.", saved
    )
    most_saved = dict.fromkeys(reached, 0)
    for id_, most in account.saved_bytes.items():
        name = names.get(id_, "other")
        most_saved[name] = most_saved.get(name, 0) + most
    yield _counted_by_broker(
        "saved_bytes", "Bytes saved: the client's side less the broker's, probes included.", most_saved
    )
    refusals = {name: tally.refusals for name, tally in together.items()}
    yield _counted_by_broker(
        "session_refusals", "Requests for a session to which the broker gave none.", refusals
    )
    evictions = {
        name: tally.session_errors[ErrorCode.FETCH_SESSION_ID_NOT_FOUND] for name, tally in together.items()
    }
    yield _counted_by_broker("session_evictions", "Sessions that the broker evicted (error 70).", evictions)


def _certificates(status: Status, names: Mapping[NodeId, str]) -> Metric:
    family = GaugeMetricFamily(
        "fetchgate_certificate_expiry_timestamp_seconds",
        "When a certificate expires: our own, by option, or a broker's, as it was last seen.",
        labels=["certificate", "broker"],
    )
    for certificate, ends in status.certificates.items():
        option, _, broker = certificate.partition(" ")
        family.add_metric([option, broker], ends)
    of_brokers: dict[str, float] = {}
    for id_, ends in status.broker_certificates.items():
        name = names.get(id_, "other")
        of_brokers[name] = min(ends, of_brokers.get(name, inf))
    for name, ends in of_brokers.items():
        family.add_metric(["broker", name], ends)
    return family


def _by_broker(name: str, text: str, values: Mapping[str, float]) -> Metric:
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
        ("fetchgate_fetch_request_bytes", "Bytes of fetch requests, whole frames.", "fetch_request_bytes"),
        ("fetchgate_fetch_response_bytes", "Bytes of fetch responses, whole frames.", "fetch_response_bytes"),
        ("fetchgate_fetch_record_bytes", "Bytes of records in fetch responses.", "fetch_record_bytes"),
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
        "fetchgate_fetch_partitions",
        "Partition entries in fetch requests and responses.",
        labels=["side", "direction"],
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
    counted = dict.fromkeys(_SESSION_ERRORS, 0) | tally.session_errors
    for code, count in bounded(Counter({str(code): n for code, n in counted.items()})):
        errors.add_metric([code], count)
    yield errors
    lost = CounterMetricFamily(
        "fetchgate_sessions_lost",
        "Sessions that a broker lost without an error, hidden from clients, by reason.",
        labels=["reason"],
    )
    for loss in Loss:
        lost.add_metric([loss], tally.lost[loss])
    yield lost
    checks = CounterMetricFamily(
        "fetchgate_session_checks", "How often a full fetch has shown whether a session is whole."
    )
    checks.add_metric([], tally.checks)
    yield checks
    passed = CounterMetricFamily(
        "fetchgate_passthrough", "Fetches and connections forwarded unchanged, by reason.", labels=["reason"]
    )
    for reason, count in bounded(tally.passthrough):
        passed.add_metric([reason], count)
    yield passed
    refused = CounterMetricFamily(
        "fetchgate_refused",
        "Connections ended since addresses in a response could not be rewritten, by reason.",
        labels=["reason"],
    )
    for refusal in Refusal:
        refused.add_metric([refusal], tally.refused[refusal])
    yield refused
    followed = CounterMetricFamily(
        "fetchgate_leaders_followed",
        "Partitions whose request was repeated to their new leader.",
        labels=["request"],
    )
    for request in ("fetch", "produce"):
        followed.add_metric([request], tally.followed[request])
    yield followed
    not_followed = CounterMetricFamily(
        "fetchgate_leaders_not_followed",
        "Partitions whose leader has moved, and whose client got the error, by reason.",
        labels=["reason"],
    )
    for reason, count in bounded(tally.not_followed):
        not_followed.add_metric([reason], count)
    yield not_followed


def _distributions(measured: Measured, loop_lag: Distribution) -> Iterator[Metric]:
    added = HistogramMetricFamily(
        "fetchgate_added_seconds",
        "Time the gateway adds, from bytes read to the resulting bytes written; repeat: a resent fetch.",
        labels=["part"],
    )
    _fill(added, "request", measured.added_request)
    _fill(added, "response", measured.added_response)
    _fill(added, "repeat", measured.added_repeat)
    yield added
    broker = HistogramMetricFamily(
        "fetchgate_broker_seconds",
        "Time from a request's last byte to its response's first byte; includes a fetch's max_wait_ms.",
        labels=["api"],
    )
    _fill(broker, "fetch", measured.broker_fetch)
    _fill(broker, "other", measured.broker_other)
    yield broker
    responses = HistogramMetricFamily(
        "fetchgate_fetch_answer_bytes", "Size of fetch responses, whole frames.", labels=["side"]
    )
    _fill(responses, "client", measured.response_bytes_client)
    _fill(responses, "broker", measured.response_bytes_broker)
    yield responses
    partitions = HistogramMetricFamily(
        "fetchgate_fetch_request_partitions", "Partitions that a fetch request lists.", labels=["side"]
    )
    _fill(partitions, "client", measured.partitions_client)
    _fill(partitions, "broker", measured.partitions_broker)
    yield partitions
    lag = HistogramMetricFamily(
        "fetchgate_loop_lag_seconds", "Delay of the event loop, measured every two seconds."
    )
    _fill(lag, None, loop_lag)
    yield lag


def _fill(family: HistogramMetricFamily, label: str | None, distribution: Distribution) -> None:
    bounds = (*(str(bound) for bound in distribution.bounds), "+Inf")
    buckets = zip(bounds, accumulate(distribution.counts), strict=True)
    family.add_metric([label] if label else [], list(buckets), distribution.total)


def _workers(processes: Sequence[Process]) -> Iterator[Metric]:
    """Metrics by process that serves clients; without --workers there is one."""
    connections = GaugeMetricFamily(
        "fetchgate_worker_connections", "Open connections of clients.", labels=["worker"]
    )
    cpu = CounterMetricFamily("fetchgate_worker_cpu_seconds", "CPU time used.", labels=["worker"])
    resident = GaugeMetricFamily("fetchgate_worker_resident_bytes", "Resident memory.", labels=["worker"])
    fds = GaugeMetricFamily("fetchgate_worker_open_fds", "Open file descriptors.", labels=["worker"])
    for process in processes:
        worker = [str(process.number)]
        connections.add_metric(worker, process.connections)
        cpu.add_metric(worker, process.cpu_seconds)
        resident.add_metric(worker, process.resident_bytes)
        fds.add_metric(worker, process.open_fds)
    yield from (connections, cpu, resident, fds)


def _client_facing_half(status: Status) -> Iterator[Metric]:
    """KIP-227's own metrics, of the sessions that the gateway keeps for clients."""
    yield GaugeMetricFamily(
        "fetchgate_num_incremental_fetch_sessions",
        "Sessions that the gateway keeps for clients.",
        value=status.client_sessions,
    )
    yield GaugeMetricFamily(
        "fetchgate_num_incremental_fetch_partitions_cached",
        "Partitions in sessions kept for clients.",
        value=status.client_session_partitions,
    )
    evictions = CounterMetricFamily(
        "fetchgate_incremental_fetch_session_evictions",
        "Sessions kept for clients that were evicted.",
        labels=["privileged"],
    )
    for privileged, count in status.client_session_evictions.items():
        evictions.add_metric([str(privileged).lower()], count)
    yield evictions


def _cooperative(found: Cooperative) -> Iterator[Metric]:
    """Metrics of cooperative groups; there are as many groups as ``--cooperative`` names."""
    tally = found.tally
    for name, text, label, counted in (
        (
            "records",
            "Records in fetches of members, by what became of them.",
            "outcome",
            (tally.records, RECORDS),
        ),
        ("batches", "Batches in these.", "outcome", (tally.batches, BATCHES)),
        ("commits", "Commits for key ranges that went to the broker.", "result", (tally.commits, COMMITS)),
        ("exclusive", "Times that a group began to share nothing.", "reason", (tally.exclusive, EXCLUSIVE)),
    ):
        family = CounterMetricFamily(f"fetchgate_coop_{name}", text, labels=[label])
        counts, values = counted
        for value in values:
            family.add_metric([value], counts[value])
        yield family
    moved = CounterMetricFamily("fetchgate_coop_bytes", "Bytes of records for members.", labels=["stage"])
    moved.add_metric(["upstream"], tally.upstream_bytes)
    moved.add_metric(["client"], tally.client_bytes)
    yield moved
    yield CounterMetricFamily(
        "fetchgate_coop_scan_skipped_offsets",
        "Offsets that were not fetched again, as nothing there was for the lane.",
        value=tally.skipped_offsets,
    )
    yield CounterMetricFamily(
        "fetchgate_coop_reader_fetches",
        "Fetches for several members that went upstream, by partition.",
        value=found.reader_fetches,
    )
    yield GaugeMetricFamily(
        "fetchgate_coop_buffer_bytes", "What is put aside for members.", value=found.buffered_bytes
    )
    detached = CounterMetricFamily(
        "fetchgate_coop_detached",
        "Members that went on to fetch for themselves: no room (full), or they did not ask (wait).",
        labels=["reason"],
    )
    for reason in DETACHED:
        detached.add_metric([reason], found.detached[reason])
    yield detached
    refused = CounterMetricFamily(
        "fetchgate_coop_refused",
        "Partitions of members that got an error of the gateway's own.",
        labels=["code"],
    )
    for code, count in bounded(Counter({str(code): count for code, count in tally.refused.items()})):
        refused.add_metric([code], count)
    yield refused
    yield GaugeMetricFamily("fetchgate_coop_groups", "Cooperative groups.", value=len(found.groups))
    members = GaugeMetricFamily("fetchgate_coop_members", "Members.", labels=["group", "state"])
    lanes = GaugeMetricFamily(
        "fetchgate_coop_lanes", "Partitions of which members have a part, or all.", labels=["group"]
    )
    unowned = GaugeMetricFamily(
        "fetchgate_coop_unowned_ranges",
        "Gaps that the members' key ranges leave: nobody reads these records.",
        labels=["group"],
    )
    lag = GaugeMetricFamily(
        "fetchgate_coop_range_lag",
        "Records from the committed position of a lane to the end, for the foremost and the last lane.",
        labels=["group", "quantile"],
    )
    exclusive = GaugeMetricFamily(
        "fetchgate_coop_exclusive", "1 while the group shares nothing, by reason.", labels=["group", "reason"]
    )
    for group in found.groups:
        states = Counter(member.state for member in group.members)
        for state in STATES_OF_MEMBERS:
            members.add_metric([group.name, state], states[state])
        lanes.add_metric([group.name], sum(len(member.lanes) for member in group.members))
        unowned.add_metric([group.name], group.unowned())
        if lags := group.lags():
            lag.add_metric([group.name, "0"], min(lags))
            lag.add_metric([group.name, "1"], max(lags))
        for reason in EXCLUSIVE:
            exclusive.add_metric([group.name, reason], int(group.exclusive == reason))
    yield from (members, lanes, unowned, lag, exclusive)


def bounded(counts: Counter[str]) -> list[tuple[str, int]]:
    """Return at most `MAX_REASONS` values of a label: the most common by name, the others together."""
    common = counts.most_common(MAX_REASONS)
    rest = counts.total() - sum(count for _, count in common)
    return [*common, ("other", rest)] if rest else common


def exposition(account: Account) -> bytes:
    """Return all metrics in Prometheus' text format: the gateway, this process, its garbage collector."""
    collectors = CollectorRegistry()
    collectors.register(_AccountCollector(account))
    ProcessCollector(registry=collectors)
    GCCollector(registry=collectors)
    return generate_latest(collectors)
