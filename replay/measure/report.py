"""The report object, made from sums of the table's rows. Sans-IO.

One query over the table groups its rows by the columns in `GROUPED` and adds up the columns in `SUMMED`. The
report is the same however fine the groups are: a single row, with ``count`` 1, is a group as well.
"""

import base64
import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from replay.capture.files.counts import FileCounts, joined_stretches
from replay.capture.kafka.connection import TLS
from replay.capture.kafka.exchanges import ConnectionEnd
from replay.measure import sums
from replay.measure.both_sides import Sampled, busiest, pairs
from replay.measure.digest import BUCKETS, Timeline
from replay.measure.limits import WORST, Counted
from replay.measure.modelled import modelled
from replay.measure.sums import FetchSums
from replay.measure.table import FETCH_COLUMNS, end_from_json
from replay.report.decision import Rate, decide
from replay.report.model import (
    BothSides,
    BrokerRow,
    Bucket,
    ClientRow,
    ConnectionRow,
    FetchReport,
    Filters,
    Input,
    LimitFigures,
    LimitsReport,
    LimitsRow,
    NotEligible,
    Passed,
    PolicyRow,
    Problem,
    ReadableReport,
    Report,
    SlotsNeeded,
    SlotsRow,
    StarvedRow,
    Stretch,
    Time,
    TopicRow,
    actual_bytes,
)
from replay.report.wording import next_step
from replay.simulate.session_cache import SLOTS, Event, simulate

GROUPED: Final = (
    "row",
    "connection",
    "client",
    "broker",
    "client_id",
    "software",
    "api_version",
    "answer_due",
    "counted",
    "eligible",
    "reason",
)
SUMMED: Final = (
    "request_bytes",
    "response_bytes",
    *(column.name for column in FETCH_COLUMNS if column.name in sums.SUMMED),
)
TOP: Final = 50
"""The report lists at most so many connections."""
_SECOND: Final = 1_000_000_000
_BETWEEN_FILES: Final = 10 * _SECOND
"""Where one file ends and the next one begins later than this, nothing was captured in between. Files of a
ring follow each other with the next packet, and consumers fetch twice a second."""
_APART: Final = 1_000_000
"""Clocks that are fewer ns apart are taken for one: a card's queues, or the cores of a machine."""

Group: TypeAlias = Mapping[str, Any]
"""`GROUPED` and `SUMMED`, `count` (of rows), and `details` (the values of `detail` that are not null)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is not in the table, but belongs into the report."""

    version: str
    policy: str
    filters: Filters
    price_per_gb: float | None = None
    max_fetch_bytes: int = 0


@dataclass(slots=True)
class _Collected:
    """The contents of all groups, sorted by where they belong in the report."""

    whole: FetchSums = field(default_factory=FetchSums)
    clients: dict[tuple[str, str, int], FetchSums] = field(default_factory=lambda: defaultdict(FetchSums))
    brokers: dict[str, FetchSums] = field(default_factory=lambda: defaultdict(FetchSums))
    connections: dict[tuple[str, str, str], FetchSums] = field(default_factory=lambda: defaultdict(FetchSums))
    not_eligible: dict[str, NotEligible] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    files: dict[tuple[int, str], FileCounts] = field(default_factory=dict)
    ends: list[ConnectionEnd] = field(default_factory=list)
    digests: list[tuple[ConnectionEnd, dict[str, Any]]] = field(default_factory=list)
    """Each with its connection."""

    def add(self, group: Group) -> None:
        """Add a group."""
        row = group["row"]
        if row == "file":
            self._add_files(group["details"])
        elif row == "connection":
            self._add_connections(group["details"])
        elif row == "request":
            self.rows["request"] += group["count"] if group["answer_due"] else 0
        else:
            self.rows[row] += group["count"]
        if group["counted"]:
            self._add_fetches(group)

    def _add_files(self, details: Iterable[str]) -> None:
        for detail in details:
            part = FileCounts.from_json(detail)
            whole = self.files.setdefault((part.number, part.file), part)
            if whole is not part:
                whole.add(part)

    def _add_connections(self, details: Iterable[str]) -> None:
        for detail in map(json.loads, details):
            end = end_from_json(detail["end"])
            self.ends.append(end)
            self.digests.append((end, detail))

    def _add_fetches(self, group: Group) -> None:
        client = group["client_id"], group["software"]
        connection = group["connection"]
        for fetches in (
            self.whole,
            self.clients[*client, group["api_version"]],
            self.brokers[group["broker"]],
            self.connections[connection, group["client"], group["broker"]],
        ):
            fetches.add(group)
        if not group["eligible"] and group["row"] != "closing":
            reason = group["reason"] or "not understood"
            row = self.not_eligible.setdefault(reason, NotEligible(exchanges=0, bytes=0))
            row["exchanges"] += group["count"]
            row["bytes"] += group["request_bytes"] + group["response_bytes"]


def report(groups: Iterable[Group], about: About) -> Report:
    """Make the report from a table's groups."""
    found = _Collected()
    for group in groups:
        found.add(group)
    whole = found.whole.fetch()
    time = _time(found)
    timeline = _timeline(found, time["captured_seconds"])
    rate = Rate(seconds=time["captured_seconds"], price_per_gb=about.price_per_gb)
    by_client = _by_client(found)
    return Report(
        version=about.version,
        policy=about.policy,
        filters=about.filters,
        decision=decide(whole, found.whole.passed, by_client, rate, next_step=_next_step(found.ends)),
        policies=_policies(found, whole, about.policy),
        time=time,
        input=_input(found),
        fetch=whole,
        both_sides=_both_sides(found),
        by_client=by_client,
        by_topic=_by_topic(found, whole),
        by_broker=_by_broker(found),
        connections=_connections(found),
        over_time=_over_time(timeline),
        where=found.whole.where(),
        readable=_readable(found.ends),
        not_eligible=dict(sorted(found.not_eligible.items())),
        passed=_passed(found.whole),
        slots=_slots(found, timeline.width),
        limits=_limits(found, about.max_fetch_bytes),
        modelled=modelled(found.whole, rate),
    )


def _next_step(ends: Iterable[ConnectionEnd]) -> str:
    payload: Counter[str] = Counter()
    kafka = 0
    for end in ends:
        payload[end.reason] += end.client_bytes + end.broker_bytes
        kafka += not end.reason
    return next_step(kafka=kafka, payload=payload.total(), tls=payload[TLS])


def _input(found: _Collected) -> Input:
    problems = [
        Problem(file=counts.file, problem=line)
        for _, counts in sorted(found.files.items())
        for line in counts.problems
    ]
    return Input(
        files=len(found.files),
        bytes=sum(counts.file_bytes for counts in found.files.values()),
        packets=sum(counts.packets for counts in found.files.values()),
        connections=sum(1 for end in found.ends if not end.reason),
        exchanges=found.rows["exchange"],
        gaps=sum(end.gaps for end in found.ends),
        unpaired_requests=found.rows["request"],
        unpaired_responses=found.rows["response"],
        clocks_apart_seconds=_clocks_apart(found.ends) / _SECOND,
        problems=problems,
    )


def _both_sides(found: _Collected) -> list[BothSides]:
    """Find gateways of which the capture has both sides, and what counts twice."""
    bytes_of = {connection: fetches.actual_bytes for (connection, _, _), fetches in found.connections.items()}
    brokers = {end.connection: end.broker for end in found.ends}
    sampled = (
        Sampled(
            connection=end.connection,
            client_id=end.client_id,
            exchanges=digest["exchanges"],
            kept=[
                (key, version, number, asked, answered)
                for key, version, number, asked, answered in digest["sample"]
            ],
        )
        for end, digest in found.digests
        if digest["sample"]
    )
    gateways: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for outer, inner in pairs(busiest(sampled)):
        gateway = gateways[brokers[outer], brokers[inner]]
        gateway[0] += 1
        gateway[1] += bytes_of.get(inner, 0)
    return [
        BothSides(client_side=client_side, broker_side=broker_side, connections=count, fetch_bytes=fetched)
        for (client_side, broker_side), (count, fetched) in sorted(gateways.items())
    ]


def _clocks_apart(ends: Iterable[ConnectionEnd]) -> int:
    apart = max((abs(end.clocks_apart) for end in ends if not end.reason), default=0)
    return apart if apart >= _APART else 0


def _by_client(found: _Collected) -> list[ClientRow]:
    return [
        ClientRow(
            client_id=client_id,
            software=software,
            fetch_version=version,
            connections=len(fetches.connections),
            fetch=fetches.fetch(),
            passed=_passed(fetches),
        )
        for (client_id, software, version), fetches in _largest(found.clients)
    ]


def _by_broker(found: _Collected) -> list[BrokerRow]:
    return [
        BrokerRow(
            broker=broker,
            connections=len(fetches.connections),
            fetch=fetches.fetch(),
            passed=_passed(fetches),
        )
        for broker, fetches in _largest(found.brokers)
    ]


def _connections(found: _Collected) -> list[ConnectionRow]:
    rows = []
    clients = {end.connection: (end.client_id, end.software) for end in found.ends}
    for (connection, client, broker), fetches in _largest(found.connections)[:TOP]:
        client_id, software = clients[connection]
        rows.append(
            ConnectionRow(
                connection=connection,
                client=client,
                broker=broker,
                client_id=client_id,
                software=software,
                fetch=fetches.fetch(),
                passed=_passed(fetches),
            )
        )
    return rows


def _passed(fetches: FetchSums) -> dict[str, Passed]:
    return dict(sorted(fetches.passed.items()))


def _largest(sums_of: Mapping[Any, FetchSums]) -> list[tuple[Any, FetchSums]]:
    return sorted(sums_of.items(), key=lambda pair: (-pair[1].actual_bytes, pair[0]))


def _by_topic(found: _Collected, whole: FetchReport) -> list[TopicRow]:
    """Return a row for each topic, and one for the rest of each frame: the whole minus the topics."""
    names = _names(found)
    topics: dict[str, FetchReport] = defaultdict(sums.empty)
    for _, digest in found.digests:
        for totals in digest["topics"]:
            sums.add_topic(topics[_topic_name(totals, names)], totals)
    order = sorted(topics.items(), key=lambda pair: (-actual_bytes(pair[1]), pair[0]))
    rows = [TopicRow(topic=name, fetch=sums.with_savings(fetch)) for name, fetch in order]
    rest = sums.subtract(whole, [row["fetch"] for row in rows])
    return [*rows, TopicRow(topic=None, fetch=rest)] if whole["actual"]["requests"] else rows


def _names(found: _Collected) -> dict[bytes, str]:
    """Return the names of topic ids."""
    return {topic_id: name for end in found.ends for topic_id, name in end.topics.items()}


def _topic_name(values: Mapping[str, Any], names: Mapping[bytes, str]) -> str:
    """Return the name of a digest's topic, or its id as Kafka writes it (Uuid.toString)."""
    if "topic" in values:
        return str(values["topic"])
    topic_id = bytes.fromhex(values["id"])
    return names.get(topic_id) or base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _timeline(found: _Collected, captured_seconds: float) -> Timeline:
    timeline = Timeline()
    for _, digest in found.digests:
        timeline.merge(digest["width"], ((at, actual, then) for at, actual, then in digest["over_time"]))
    timeline.fit(round(captured_seconds * _SECOND))
    return timeline


def _over_time(timeline: Timeline) -> list[Bucket]:
    return [
        Bucket(
            time=_iso(number * timeline.width),
            seconds=timeline.width / _SECOND,
            actual_bytes=actual,
            predicted_bytes=predicted,
        )
        for number, (actual, predicted) in sorted(timeline.buckets.items())[:BUCKETS]
    ]


def _time(found: _Collected) -> Time:
    """Return when packets were captured. The files' own stretches are joined where they follow each other."""
    of_files = [stretch for counts in found.files.values() for stretch in counts.stretches]
    stretches = joined_stretches(of_files, _BETWEEN_FILES)
    return Time(
        first=_iso(stretches[0][0]) if stretches else "",
        last=_iso(stretches[-1][1]) if stretches else "",
        captured_seconds=sum(last - first for first, last in stretches) / _SECOND,
        stretches=[Stretch(first=_iso(first), last=_iso(last)) for first, last in stretches],
    )


def _iso(time: int) -> str:
    if not time:
        return ""
    at = dt.datetime.fromtimestamp(time // _SECOND, dt.UTC)
    return (
        at.replace(microsecond=time % _SECOND // 1000)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def _readable(ends: Iterable[ConnectionEnd]) -> ReadableReport:
    reasons: Counter[str] = Counter()
    whole = 0
    for end in ends:
        whole += end.client_bytes + end.broker_bytes + end.gap_bytes
        reasons["not in the capture"] += end.gap_bytes - end.cut_bytes
        reasons["cut by the snap length"] += end.cut_bytes
        reasons[end.reason or "no frame found after a gap"] += end.unframed_bytes
        reasons["frames that begin and do not end"] += end.partial_bytes
        reasons["frames without a header"] += end.headerless_bytes
    unreadable = reasons.total()
    return ReadableReport(
        readable_bytes=whole - unreadable,
        unreadable_bytes=unreadable,
        ratio=(whole - unreadable) / whole if whole else 1.0,
        by_reason={reason: count for reason, count in sorted(reasons.items()) if count},
    )


def _policies(found: _Collected, fetch: FetchReport, policy: str) -> dict[str, PolicyRow]:
    """Return what both policies save. What the other one saves is summed up by connection."""
    saved = dict.fromkeys(("gateway", "always"), sum(digest["saved_by_other"] for _, digest in found.digests))
    saved[policy] = fetch["saved_bytes"]
    whole = actual_bytes(fetch)
    return {
        name: PolicyRow(
            predicted_bytes=whole - count, saved_bytes=count, saved_ratio=count / whole if whole else 0.0
        )
        for name, count in saved.items()
    }


def _slots(found: _Collected, width: int) -> list[SlotsRow]:
    events: dict[str, list[Event]] = defaultdict(list)
    for end, digest in found.digests:
        events[end.broker] += [(time, act, name, size) for time, act, name, size in digest["sessions"]]
    rows = []
    for broker, of_broker in sorted(events.items()):
        if of_broker:
            use = simulate(of_broker, width=width)
            rows.append(
                SlotsRow(
                    broker=broker,
                    sessions_at_once=use.sessions_at_once,
                    requested_at_once=use.requested_at_once,
                    slots=SLOTS,
                    evictions=use.evictions,
                    refused=use.refused,
                    over_time=[SlotsNeeded(time=_iso(begin), needed=most) for begin, most in use.over_time],
                )
            )
    return rows


def _limits(found: _Collected, max_fetch_bytes: int) -> LimitsReport:
    whole = Counted()
    clients: dict[tuple[str, str, int], Counted] = defaultdict(Counted)
    for end, digest in found.digests:
        for values in digest["limits"]["by_version"]:
            counted = Counted(**{name: value for name, value in values.items() if name != "fetch_version"})
            whole.add(counted)
            clients[end.client_id, end.software, values["fetch_version"]].add(counted)
    order = sorted(
        clients.items(), key=lambda pair: (-pair[1].over_limit_bytes, -pair[1].starved_ns, pair[0])
    )
    return LimitsReport(
        max_fetch_bytes=max_fetch_bytes,
        **_limit_figures(whole),
        by_client=[
            LimitsRow(
                client_id=client_id,
                software=software,
                fetch_version=version,
                max_bytes=counted.max_bytes,
                **_limit_figures(counted),
            )
            for (client_id, software, version), counted in order
        ],
        longest=_longest(found),
    )


def _limit_figures(counted: Counted) -> LimitFigures:
    return LimitFigures(
        responses=counted.responses,
        largest_record_bytes=counted.largest_record_bytes,
        over_limit=counted.over_limit,
        over_limit_bytes=counted.over_limit_bytes,
        starved=counted.starved,
        starved_seconds=counted.starved_ns / _SECOND,
    )


def _longest(found: _Collected) -> list[StarvedRow]:
    names = _names(found)
    rows = [
        StarvedRow(
            client_id=end.client_id,
            broker=end.broker,
            topic=_topic_name(starved, names),
            partition=starved["partition"],
            since=_iso(starved["since"]),
            seconds=(starved["until"] - starved["since"]) / _SECOND,
            responses=starved["responses"],
            behind=starved["behind"],
        )
        for end, digest in found.digests
        for starved in digest["limits"]["starved"]
    ]
    return sorted(rows, key=_by_length)[:WORST]


def _by_length(row: StarvedRow) -> tuple[Any, ...]:
    return -row["seconds"], row["since"], row["topic"], row["partition"], row["client_id"], row["broker"]
