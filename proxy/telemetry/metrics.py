"""The metrics for Prometheus.

`FIGURES` declares each metric and its source. The values are computed on request, so metrics cost no time
while frames are forwarded. The number of label values is limited. No label has a client id, because clients
choose it. Client ids are in `/state`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import inf
from typing import Final

from proxy.core.events import FetchKind, Refusal, SideTally, Tally, saved_bytes
from proxy.core.histograms import Measured
from proxy.prometheus.exposition import of_garbage_collector, of_process
from proxy.prometheus.figure import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Figure,
    Labelled,
    both,
    bounded,
    families,
    named,
    one_label,
)
from proxy.protocol.api import ErrorCode
from proxy.session.state import Loss
from proxy.telemetry.status import STATES, Account, Health, WithBroker
from proxy.telemetry.totals import NodeId
from proxy.version import VERSION

MAX_BROKERS: Final = 100
"""How many brokers have their own label value: those with the lowest ids. Others are counted as `other`."""
_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""These errors are exported from the start, with 0. So a rate in Prometheus includes the first error."""
_SIDES: Final = ("client", "broker")


class SharedValues:
    """The values that several metrics need. Each value is computed once."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.status = account.status
        self.config = account.status.config
        self.counts = account.counts
        self.links = account.counts.links.values()

    @cached_property
    def total(self) -> Tally:
        return self.counts.total()

    @cached_property
    def sides(self) -> tuple[tuple[str, SideTally], ...]:
        return ("client", self.total.client), ("broker", self.total.broker)

    @cached_property
    def measured(self) -> Measured:
        return self.counts.all_measured()

    @cached_property
    def health(self) -> Health:
        return self.account.health

    @cached_property
    def ids(self) -> list[int]:
        """The ids of all brokers that are known now, or for which there were connections."""
        return sorted(id_ for id_ in {*self.counts.tallies, *self.status.brokers} if id_ is not None)

    @cached_property
    def names(self) -> dict[NodeId, str]:
        """The label value of each broker that has its own one, and of the bootstrap."""
        first = self.ids[:MAX_BROKERS]
        named: dict[NodeId, str] = {id_: self.account.called(id_).removeprefix("broker ") for id_ in first}
        return named | {None: "bootstrap"}

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """By label value."""
        together = {name: Tally() for name in self.names.values()}
        for id_ in (*self.ids, None):
            together.setdefault(self.name(id_), Tally()).add(self.counts.tallies.get(id_, Tally()))
        return together

    @cached_property
    def with_broker(self) -> dict[str, WithBroker]:
        """By label value."""
        together = {name: WithBroker() for name in self.names.values()}
        for id_, links in self.counts.links.items():
            together.setdefault(self.name(id_), WithBroker()).add(links)
        return together

    def name(self, id_: NodeId) -> str:
        return self.names.get(id_, "other")

    def by_name(self, values: Iterable[tuple[NodeId, float]]) -> "Labelled":
        """Add up figures of brokers by label value. Label values without figures are included, with 0."""
        sums: dict[str, float] = dict.fromkeys(self.names.values(), 0)
        for id_, value in values:
            sums[self.name(id_)] = sums.get(self.name(id_), 0) + value
        return one_label(sums)

    @property
    def unreachable(self) -> "Labelled":
        """For each broker, 1 if the last attempt to connect has failed, else 0. `other` has the sum."""
        return self.by_name((id_, bool(self.status.unreachable_brokers.of(id_))) for id_ in (*self.ids, None))

    @property
    def certificates(self) -> Iterator[tuple[tuple[str, str], float]]:
        """The expiry times of the certificates of the gateway and of the brokers, in seconds since 1970."""
        for certificate, ends in self.status.certificates.items():
            option, _, broker = certificate.partition(" ")
            yield (option, broker), ends
        of_brokers: dict[str, float] = {}
        for id_, ends in self.status.broker_certificates.items():
            of_brokers[self.name(id_)] = min(ends, of_brokers.get(self.name(id_), inf))
        for name, ends in of_brokers.items():
            yield ("broker", name), ends

    @property
    def session_errors(self) -> "Labelled":
        counted = dict.fromkeys(_SESSION_ERRORS, 0) | self.total.session_errors
        return one_label(bounded(Counter({str(int(code)): count for code, count in counted.items()})))


def _of_sides(name: str) -> Callable[[SharedValues], Labelled]:
    return lambda it: [((side,), getattr(tally, name)) for side, tally in it.sides]


def _of_tallies(read: Callable[[Tally], float]) -> Callable[[SharedValues], Labelled]:
    return lambda it: one_label({name: read(tally) for name, tally in it.tallies.items()})


def _of_links(read: Callable[[WithBroker], float]) -> Callable[[SharedValues], Labelled]:
    return lambda it: one_label({name: read(links) for name, links in it.with_broker.items()})


_SIDE, _BROKER, _REASON = ("side",), ("broker",), ("reason",)

FIGURES: Final[tuple[Figure[SharedValues], ...]] = (
    Figure(GAUGE, "build_info", "The version of fetchgate.", lambda _: [((VERSION,), 1)], ("version",)),
    # traffic
    Figure(
        COUNTER,
        "fetch_request_bytes",
        "Bytes of fetch requests, whole frames.",
        _of_sides("fetch_request_bytes"),
        _SIDE,
    ),
    Figure(
        COUNTER,
        "fetch_response_bytes",
        "Bytes of fetch responses, whole frames.",
        _of_sides("fetch_response_bytes"),
        _SIDE,
    ),
    Figure(
        COUNTER,
        "fetch_record_bytes",
        "Bytes of records in fetch responses.",
        _of_sides("fetch_record_bytes"),
        _SIDE,
    ),
    Figure(
        COUNTER,
        "bytes",
        "All bytes; in: received from that side, out: sent to it.",
        lambda it: [
            ((side, way), getattr(tally, f"bytes_{way}")) for side, tally in it.sides for way in ("in", "out")
        ],
        ("side", "direction"),
    ),
    Figure(
        COUNTER,
        "probe_bytes",
        "Bytes of the gateway's own requests, without fetches, and of their responses.",
        lambda it: it.total.probe_bytes,
    ),
    Figure(
        COUNTER,
        "fetches",
        "Fetch requests.",
        lambda it: [
            ((side, kind.name.lower()), tally.fetches[kind]) for side, tally in it.sides for kind in FetchKind
        ],
        ("side", "kind"),
    ),
    Figure(
        COUNTER,
        "fetch_partitions",
        "Partition entries in fetch requests and responses.",
        lambda it: [
            ((side, direction), partitions)
            for side, tally in it.sides
            for direction, partitions in (
                ("request", tally.partitions_requested),
                ("response", tally.partitions_answered),
            )
        ],
        ("side", "direction"),
    ),
    # what happened, by reason
    Figure(
        COUNTER,
        "fetch_session_errors",
        "Top-level errors of session fetches, hidden from clients.",
        lambda it: it.session_errors,
        ("code",),
    ),
    Figure(
        COUNTER,
        "sessions_lost",
        "Sessions that a broker lost without an error, hidden from clients, by reason.",
        lambda it: named(it.total.sessions_lost, Loss),
        _REASON,
    ),
    Figure(
        COUNTER,
        "session_checks",
        "Full fetches that checked whether a session is complete.",
        lambda it: it.total.session_checks,
    ),
    Figure(
        COUNTER,
        "passthrough",
        "Fetches and connections forwarded unchanged, by reason.",
        lambda it: one_label(bounded(it.total.passthrough)),
        _REASON,
    ),
    Figure(
        COUNTER,
        "refused",
        "Connections closed because addresses in a response could not be rewritten, by reason.",
        lambda it: named(it.total.refused, Refusal),
        _REASON,
    ),
    Figure(
        COUNTER,
        "leaders_followed",
        "Partitions whose request was retried at their leader, with success.",
        lambda it: named(it.total.leaders_followed, ("fetch", "offsets")),
        ("request",),
    ),
    Figure(
        COUNTER,
        "leaders_not_followed",
        "Partitions whose client got the error after a leader moved, by reason.",
        lambda it: one_label(bounded(it.total.leaders_not_followed)),
        _REASON,
    ),
    # connections
    Figure(
        GAUGE,
        "connections",
        "Open connections.",
        lambda it: both(sum(each.connections for each in it.links), sum(each.reached for each in it.links)),
        _SIDE,
    ),
    Figure(COUNTER, "connections_accepted", "Client connections accepted.", lambda it: it.counts.accepted),
    Figure(
        COUNTER,
        "connections_turned_away",
        "Client connections closed by the gateway: at a limit, draining, no request, idle, not reading.",
        lambda it: one_label(it.counts.turned_away),
        _REASON,
    ),
    Figure(
        COUNTER,
        "faults",
        "Connections closed because of a peer's fault.",
        lambda it: one_label(it.counts.faults),
        _SIDE,
    ),
    Figure(
        COUNTER,
        "tls_failures",
        "TLS handshakes that failed.",
        lambda it: named(it.counts.tls_failures, _SIDES),
        _SIDE,
    ),
    Figure(
        COUNTER,
        "authentication_failures",
        "client: SASL authentications refused by a broker; broker: refused certificates, ours or a broker's.",
        lambda it: named(it.counts.authentication_failures, _SIDES),
        _SIDE,
    ),
    Figure(
        COUNTER,
        "leaders_updated",
        "Partitions in Metadata responses whose leader was brought up to date.",
        lambda it: it.counts.leaders_updated,
    ),
    Figure(
        GAUGE,
        "paused_connections",
        "Connections whose data from this side is not read at the moment.",
        lambda it: it.counts.paused.items(),
        ("side", "reason"),
    ),
    # sessions
    Figure(
        GAUGE,
        "fetch_sessions",
        "Fetch sessions of the gateway.",
        lambda it: [(("broker",), sum(each.sessions for each in it.links))],
        _SIDE,
    ),
    Figure(
        GAUGE,
        "fetch_session_partitions",
        "Partitions in these sessions.",
        lambda it: [(("broker",), sum(each.session_partitions for each in it.links))],
        _SIDE,
    ),
    # health
    Figure(GAUGE, "ready", "1 if clients can be served.", lambda it: int(it.health.ready)),
    Figure(
        GAUGE,
        "state",
        "1 for the current state, 0 for the others.",
        lambda it: [((state,), int(state == it.health.state)) for state in STATES],
        ("state",),
    ),
    # limits, and how much of each is used
    Figure(GAUGE, "sessions_enabled", "1 if --sessions is on.", lambda it: int(it.config.sessions)),
    Figure(
        GAUGE,
        "session_slots_held",
        "Session slots at brokers that are used or requested.",
        lambda it: it.status.slots_used,
    ),
    Figure(
        GAUGE,
        "session_slots",
        "Session slots of the broker that the gateway's sessions use.",
        _of_links(lambda links: links.sessions),
        _BROKER,
    ),
    Figure(GAUGE, "session_slots_limit", "--max-sessions.", lambda it: it.config.max_sessions),
    Figure(
        GAUGE,
        "inflight_bytes",
        "Bytes of responses in memory: incomplete, or not read by their clients.",
        lambda it: it.status.buffered_bytes,
    ),
    Figure(GAUGE, "inflight_limit_bytes", "--max-inflight-bytes.", lambda it: it.config.max_inflight_bytes),
    Figure(GAUGE, "connections_limit", "--max-connections.", lambda it: it.config.max_connections),
    Figure(
        GAUGE,
        "last_reload_success_timestamp_seconds",
        "When the options were last read without a mistake, at the start or later.",
        lambda it: it.status.reloaded_at,
    ),
    Figure(
        GAUGE,
        "options_need_restart",
        "Changed options that need a restart.",
        lambda it: len(it.status.needs_restart),
    ),
    Figure(
        GAUGE,
        "capture_stopped",
        "1 once --capture has stopped because of an error.",
        lambda it: int(it.status.capture_stopped),
    ),
    Figure(
        COUNTER,
        "reload_failures",
        "Failed reloads of the options: an option was wrong.",
        lambda it: it.status.reload_failures,
    ),
    # brokers
    Figure(
        GAUGE,
        "broker_connections",
        "Open connections to the broker.",
        _of_links(lambda links: links.reached),
        _BROKER,
    ),
    Figure(
        GAUGE,
        "broker_unreachable",
        "1 if the last attempt to connect failed and is less than three minutes old.",
        lambda it: it.unreachable,
        _BROKER,
    ),
    Figure(
        COUNTER,
        "broker_connect_failures",
        "Failed attempts to reach the broker.",
        lambda it: it.by_name(it.counts.connect_failures.items()),
        _BROKER,
    ),
    Figure(
        GAUGE,
        "broker_outstanding_requests",
        "Requests that the broker has not answered.",
        _of_links(lambda links: links.outstanding),
        _BROKER,
    ),
    Figure(
        GAUGE,
        "broker_oldest_request_seconds",
        "How late the oldest unanswered request is: time beyond the longest wait it allows; 0: none is late.",
        _of_links(lambda links: links.oldest_seconds),
        _BROKER,
    ),
    Figure(
        GAUGE,
        "certificate_expiry_timestamp_seconds",
        "When a certificate expires: our own, by option, or a broker's, as it was last seen.",
        lambda it: it.certificates,
        ("certificate", "broker"),
    ),
    Figure(
        GAUGE,
        "broker_saved_bytes",
        "Deprecated, the next release removes it: use fetchgate_broker_saved_bytes_total.",
        _of_tallies(saved_bytes),
        _BROKER,
    ),
    Figure(
        COUNTER,
        "broker_saved_bytes",
        "Bytes saved: the client's side minus the broker's side, probes included.",
        lambda it: it.by_name(it.account.saved_bytes.items()),
        _BROKER,
    ),
    Figure(
        COUNTER,
        "broker_session_refusals",
        "Requests for a session that the broker refused.",
        _of_tallies(lambda tally: tally.refusals),
        _BROKER,
    ),
    Figure(
        COUNTER,
        "broker_session_evictions",
        "Sessions that the broker evicted (error 70).",
        _of_tallies(lambda tally: tally.session_errors[ErrorCode.FETCH_SESSION_ID_NOT_FOUND]),
        _BROKER,
    ),
    # distributions
    Figure(
        HISTOGRAM,
        "added_seconds",
        "Time the gateway adds, from bytes read to the resulting bytes written; repeat: a resent fetch.",
        lambda it: [
            (("request",), it.measured.added_request),
            (("response",), it.measured.added_response),
            (("repeat",), it.measured.added_repeat),
        ],
        ("part",),
    ),
    Figure(
        HISTOGRAM,
        "broker_seconds",
        "Time from a request's last byte to its response's first byte; includes a fetch's max_wait_ms.",
        lambda it: [(("fetch",), it.measured.broker_fetch), (("other",), it.measured.broker_other)],
        ("api",),
    ),
    Figure(
        HISTOGRAM,
        "fetch_answer_bytes",
        "Size of fetch responses, whole frames.",
        lambda it: [
            (("client",), it.measured.response_bytes_client),
            (("broker",), it.measured.response_bytes_broker),
        ],
        _SIDE,
    ),
    Figure(
        HISTOGRAM,
        "fetch_request_partitions",
        "Partitions that a fetch request lists.",
        lambda it: [
            (("client",), it.measured.partitions_client),
            (("broker",), it.measured.partitions_broker),
        ],
        _SIDE,
    ),
    Figure(
        HISTOGRAM,
        "loop_lag_seconds",
        "Delay of the event loop, measured every two seconds.",
        lambda it: [((), it.counts.loop_lag)],
    ),
)


def exposition(account: Account) -> bytes:
    """Return all metrics of the gateway, this process and its garbage collector in Prometheus' format."""
    reading = SharedValues(account)
    figures: tuple[Figure[SharedValues], ...] = FIGURES
    more = (figure.bound(counted) for each, counted in reading.counts.by_feature() for figure in each.figures)
    lines = families((figure.bound(reading) for figure in figures), more)
    return "".join((*lines, *of_process(), *of_garbage_collector())).encode()
