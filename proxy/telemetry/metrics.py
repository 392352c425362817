"""The metrics for Prometheus.

`FIGURES` declares each metric and its source. The values are computed on request, so metrics cost no time
while frames are forwarded. The number of label values is limited. No label has a client id, because clients
choose it. Client ids are in `/state`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from math import inf
from typing import Final, TypeAlias, TypeVar

from proxy.adding import Figures
from proxy.core.events import FetchKind, NotFollowed, Refusal, SideTally, Tally, saved_bytes
from proxy.core.histograms import Measured
from proxy.explained import Explained
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
from proxy.session.decision import Reason
from proxy.session.state import Loss
from proxy.telemetry.status import STATES, Account, Health, WithBroker
from proxy.telemetry.totals import NodeId
from proxy.version import VERSION

_Kind = TypeVar("_Kind", bound=Figures)
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
        self.links = account.links.values()

    @cached_property
    def total(self) -> Tally:
        return self.account.total()

    @cached_property
    def sides(self) -> tuple[tuple[str, SideTally], ...]:
        return ("client", self.total.client), ("broker", self.total.broker)

    @cached_property
    def measured(self) -> Measured:
        return self.account.all_measured()

    @cached_property
    def health(self) -> Health:
        return self.account.health

    @cached_property
    def ids(self) -> list[int]:
        """The ids of all brokers that are known now, or for which there were connections."""
        return sorted(id_ for id_ in {*self.account.tallies, *self.status.brokers} if id_ is not None)

    @cached_property
    def names(self) -> dict[NodeId, str]:
        """The label value of each broker that has its own one, and of the bootstrap."""
        first = self.ids[:MAX_BROKERS]
        named: dict[NodeId, str] = {id_: self.account.called(id_).removeprefix("broker ") for id_ in first}
        return named | {None: "bootstrap"}

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """By label value."""
        return self._together(Tally, self.account.tallies)

    @cached_property
    def with_broker(self) -> dict[str, WithBroker]:
        """By label value."""
        return self._together(WithBroker, self.account.links)

    def _together(self, kind: type[_Kind], by_id: Mapping[NodeId, _Kind]) -> dict[str, _Kind]:
        together = {name: kind() for name in self.names.values()}
        for id_, figures in by_id.items():
            together.setdefault(self.name(id_), kind()).add(figures)
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
        return self.by_name((id_, bool(self.status.reach.of(id_))) for id_ in (*self.ids, None))

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


_Read: TypeAlias = Callable[[SharedValues], float | Labelled]
_Words: TypeAlias = Mapping[str, str] | type[Explained] | None
_SIDE, _BROKER = ("side",), ("broker",)


def _counter(
    name: str, text: str, read: _Read, labels: tuple[str, ...] = (), words: _Words = None
) -> Figure[SharedValues]:
    return Figure(COUNTER, name, text, read, labels, words)


def _gauge(
    name: str, text: str, read: _Read, labels: tuple[str, ...] = (), words: _Words = None
) -> Figure[SharedValues]:
    return Figure(GAUGE, name, text, read, labels, words)


def _of_sides(name: str, text: str) -> Figure[SharedValues]:
    # The metric has the name of the field.
    return _counter(
        name, text, lambda it: [((side,), getattr(tally, name)) for side, tally in it.sides], _SIDE
    )


def _of_links(name: str, text: str, read: Callable[[WithBroker], float]) -> Figure[SharedValues]:
    def of_each(it: SharedValues) -> Labelled:
        return one_label({name: read(links) for name, links in it.with_broker.items()})

    return _gauge(name, text, of_each, _BROKER)


def _of_tallies(read: Callable[[Tally], float]) -> _Read:
    return lambda it: one_label({name: read(tally) for name, tally in it.tallies.items()})


def _of_reason(name: str, text: str, read: _Read, words: _Words) -> Figure[SharedValues]:
    return _counter(name, text, read, ("reason",), words)


FIGURES: Final[tuple[Figure[SharedValues], ...]] = (
    _gauge("build_info", "The version of fetchgate.", lambda _: [((VERSION,), 1)], ("version",)),
    # traffic
    _of_sides("fetch_request_bytes", "Bytes of fetch requests: whole frames with their 4-byte length."),
    _of_sides("fetch_response_bytes", "Bytes of fetch responses: whole frames with their 4-byte length."),
    _of_sides("fetch_record_bytes", "Bytes of records in fetch responses."),
    _counter(
        "bytes",
        "All bytes of connections, from each side and to it.",
        lambda it: [
            ((side, way), getattr(tally, f"bytes_{way}")) for side, tally in it.sides for way in ("in", "out")
        ],
        ("side", "direction"),
        {"in": "received from that side", "out": "sent to that side"},
    ),
    _counter(
        "probe_bytes",
        "Bytes of the gateway's own requests, which ask a broker for its versions, and of their responses. "
        "The saving is the client's fetches minus the broker's, minus these bytes.",
        lambda it: it.total.probe_bytes,
    ),
    _counter(
        "fetches",
        "Fetch requests, by what is sent on this side.",
        lambda it: [
            ((side, kind.name.lower()), tally.fetches[kind]) for side, tally in it.sides for kind in FetchKind
        ],
        ("side", "kind"),
        {
            "full": "asks for a new session: usual when a client connects, or when its partitions change",
            "incremental": "has only the changes of its session",
            "sessionless": "lists all partitions, without a session",
            "close": "ends a session",
        },
    ),
    _counter(
        "fetch_partitions",
        "Entries of partitions in fetch requests and in their responses.",
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
    _counter(
        "fetch_session_errors",
        "Errors of a session's fetch, which is sent again; clients do not see them.",
        lambda it: it.session_errors,
        ("code",),
        {
            "70": "the broker has evicted the session, or was restarted",
            "71": "the broker expected another epoch: if this grows, report it",
            "106": "the session and the fetch do not both have topic ids, or both names",
        },
    ),
    _of_reason(
        "sessions_lost",
        "Sessions that a broker lost without an error (Apache Kafka never does); the fetch is sent again.",
        lambda it: named(it.total.sessions_lost, Loss),
        Loss,
    ),
    _counter(
        "session_checks",
        "Full fetches that checked whether a session leaves partitions out, in sessions that saved 25 times "
        "this cost: every five minutes, or every ten seconds if a client waits for records.",
        lambda it: it.total.session_checks,
    ),
    _of_reason(
        "passthrough",
        "Fetches that were forwarded unchanged, and connections that were not read, by reason.",
        lambda it: one_label(bounded(it.total.passthrough)),
        Reason,
    ),
    _of_reason(
        "refused",
        "Connections closed because the client would have got a broker's own address; the log has the API.",
        lambda it: named(it.total.refused, Refusal),
        Refusal,
    ),
    _counter(
        "leaders_followed",
        "Partitions whose request was repeated at their new leader with success.",
        lambda it: named(it.total.leaders_followed, ("fetch", "offsets")),
        ("request",),
    ),
    _of_reason(
        "leaders_not_followed",
        "Partitions whose client got the error after a leader moved, and finds the new leader itself.",
        lambda it: one_label(bounded(it.total.leaders_not_followed)),
        NotFollowed,
    ),
    # connections
    _gauge(
        "connections",
        "Open connections; those of clients after their TLS handshake.",
        lambda it: both(sum(each.connections for each in it.links), sum(each.reached for each in it.links)),
        _SIDE,
    ),
    _counter("connections_accepted", "Client connections accepted.", lambda it: it.account.accepted),
    _of_reason(
        "connections_turned_away",
        "Client connections that the gateway itself closed, by reason.",
        lambda it: one_label(it.account.turned_away),
        {
            "limit": "at once: --max-connections is reached",
            "draining": "the gateway ends",
            "no request": "no complete request within --handshake-timeout",
            "idle": "no request for --idle-timeout",
            "not reading": "the client read nothing of its responses for --idle-timeout",
        },
    ),
    _counter(
        "faults",
        "Connections closed because a peer broke the protocol, or refused (fetchgate_refused_total).",
        lambda it: one_label(it.account.faults),
        _SIDE,
    ),
    _counter(
        "tls_failures",
        "TLS handshakes that failed.",
        lambda it: named(it.account.tls_failures, _SIDES),
        _SIDE,
    ),
    _counter(
        "authentication_failures",
        "Authentications that failed.",
        lambda it: named(it.account.authentication_failures, _SIDES),
        _SIDE,
        {
            "client": "its SASL credentials or its certificate were refused",
            "broker": "its certificate or the gateway's was refused",
        },
    ),
    _counter(
        "leaders_updated",
        "Partitions in Metadata responses with an older leader than the gateway knew: it wrote the new one.",
        lambda it: it.account.leaders_updated,
    ),
    _gauge(
        "paused_connections",
        "Connections whose data from this side is not read at the moment.",
        lambda it: it.account.paused.items(),
        ("side", "reason"),
        {
            "broker_full": "the broker does not accept more bytes",
            "client_full": "the client does not read its responses",
            "budget": "buffered responses have reached --max-inflight-bytes",
        },
    ),
    # sessions
    _gauge(
        "fetch_sessions",
        "Open fetch sessions: broker: the gateway's own; client: those that it keeps for clients.",
        lambda it: [(("broker",), sum(each.sessions for each in it.links))],
        _SIDE,
    ),
    _gauge(
        "fetch_session_partitions",
        "Partitions in open fetch sessions.",
        lambda it: [(("broker",), sum(each.session_partitions for each in it.links))],
        _SIDE,
    ),
    # health
    _gauge(
        "ready", "1 if /readyz says ready or degraded: clients can be served.", lambda it: it.health.ready
    ),
    _gauge(
        "state",
        "1 for the present state of /readyz, 0 for the others.",
        lambda it: one_label({state: state == it.health.state for state in STATES}),
        ("state",),
        STATES,
    ),
    # limits, and how much of each is used
    _gauge("sessions_enabled", "1 if --sessions is on.", lambda it: it.config.sessions),
    _gauge(
        "session_slots_held",
        "Session slots at brokers that the gateway uses or has requested.",
        lambda it: it.status.slots_used,
    ),
    _of_links(
        "session_slots",
        "Session slots of the broker that the gateway uses.",
        lambda links: links.sessions,
    ),
    _gauge(
        "session_slots_limit",
        "The limit of session slots: --max-sessions.",
        lambda it: it.config.max_sessions,
    ),
    _gauge(
        "inflight_bytes",
        "Bytes of responses in memory: incomplete, or not read by their clients.",
        lambda it: it.status.buffered_bytes,
    ),
    _gauge(
        "inflight_limit_bytes",
        "The limit of buffered responses: --max-inflight-bytes.",
        lambda it: it.config.max_inflight_bytes,
    ),
    _gauge(
        "connections_limit",
        "The limit of connections: --max-connections.",
        lambda it: it.config.max_connections,
    ),
    _gauge(
        "last_reload_success_timestamp_seconds",
        "When the options were last read without a mistake, at the start or by a reload.",
        lambda it: it.status.reloaded_at,
    ),
    _gauge(
        "options_need_restart",
        "Changed options that need a restart; /readyz names them.",
        lambda it: len(it.status.needs_restart),
    ),
    _gauge(
        "capture_stopped",
        "1 if --capture has stopped, as the disk is full or too slow; a restart captures again.",
        lambda it: it.status.capture_stopped,
    ),
    _counter(
        "reload_failures",
        "Reloads that failed because an option was wrong; they apply nothing.",
        lambda it: it.status.reload_failures,
    ),
    # brokers
    _of_links("broker_connections", "Open connections to the broker.", lambda links: links.reached),
    _gauge(
        "broker_unreachable",
        "1 if the last attempt to connect failed, and a client has tried within three minutes.",
        lambda it: it.unreachable,
        _BROKER,
    ),
    _counter(
        "broker_connect_failures",
        "Failed attempts to reach the broker.",
        lambda it: it.by_name(it.status.reach.failures.items()),
        _BROKER,
    ),
    _of_links(
        "broker_outstanding_requests",
        "Requests without a response yet.",
        lambda links: links.outstanding,
    ),
    _of_links(
        "broker_oldest_request_seconds",
        "How late the oldest missing response is: after max_wait_ms of a fetch, the rebalance timeout of "
        "JoinGroup and SyncGroup, or the request itself. 0 if none is late.",
        lambda links: links.oldest_seconds,
    ),
    _gauge(
        "certificate_expiry_timestamp_seconds",
        "When a certificate expires. The label certificate is the option that names it, or broker for that "
        "of a broker, as the last connection saw it. The label broker says which broker.",
        lambda it: it.certificates,
        ("certificate", "broker"),
    ),
    _gauge(
        "broker_saved_bytes",
        "Deprecated, the next release removes it: use fetchgate_broker_saved_bytes_total.",
        _of_tallies(saved_bytes),
        _BROKER,
    ),
    _counter(
        "broker_saved_bytes",
        "Bytes saved: the client's fetches minus those sent to the broker, minus the gateway's own requests.",
        lambda it: it.by_name(it.account.saved_bytes.items()),
        _BROKER,
    ),
    _counter(
        "broker_session_refusals",
        "Requests for a session that the broker refused: all its slots are used.",
        _of_tallies(lambda tally: tally.refusals),
        _BROKER,
    ),
    _counter(
        "broker_session_evictions",
        "Sessions that the broker has evicted for others, or lost in a restart (error 70).",
        _of_tallies(lambda tally: tally.session_errors[ErrorCode.FETCH_SESSION_ID_NOT_FOUND]),
        _BROKER,
    ),
    # distributions
    Figure(
        HISTOGRAM,
        "added_seconds",
        "Time that the gateway adds, with one value for each read. A p99 below 5 ms is good.",
        lambda it: one_label(
            {part: getattr(it.measured, f"added_{part}") for part in ("request", "response", "repeat")}
        ),
        ("part",),
        {
            "request": "from reading bytes of the client until the resulting bytes are written",
            "response": "from reading bytes of the broker until the resulting bytes are written",
            "repeat": "the additional time of a fetch that was sent again",
        },
    ),
    Figure(
        HISTOGRAM,
        "broker_seconds",
        "Time from a request's last byte to its response's first byte.",
        lambda it: one_label({"fetch": it.measured.broker_fetch, "other": it.measured.broker_other}),
        ("api",),
        {
            "fetch": "includes the wait that the client allows (fetch.max.wait.ms)",
            "other": "all others, except JoinGroup, SyncGroup and ShareFetch: brokers delay these on purpose",
        },
    ),
    Figure(
        HISTOGRAM,
        "fetch_answer_bytes",
        "Size of fetch responses: whole frames with their 4-byte length.",
        lambda it: both(it.measured.response_bytes_client, it.measured.response_bytes_broker),
        _SIDE,
    ),
    Figure(
        HISTOGRAM,
        "fetch_request_partitions",
        "Entries of partitions in a fetch request.",
        lambda it: both(it.measured.partitions_client, it.measured.partitions_broker),
        _SIDE,
    ),
    Figure(
        HISTOGRAM,
        "loop_lag_seconds",
        "Delay of the event loop, measured every two seconds.",
        lambda it: it.account.loop_lag,
    ),
)


def exposition(account: Account) -> bytes:
    """Return all metrics of the gateway, this process and its garbage collector in Prometheus' format."""
    reading = SharedValues(account)
    more = (figure.bound(counted) for each, counted in account.by_feature() for figure in each.figures)
    lines = families((figure.bound(reading) for figure in FIGURES), more)
    return "".join((*lines, *of_process(), *of_garbage_collector())).encode()
