"""Makes the report object from the collected rows of the table. Sans-IO.

The report does not depend on how rows were grouped: a group may also be a single row, with ``count`` 1.
"""

import base64
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from replay.capture.files.counts import unread_packets
from replay.capture.kafka.exchange import ConnectionEnd
from replay.capture.tls import reasons
from replay.measure import sums
from replay.measure.collected import Collected
from replay.measure.digest import BUCKETS, Timeline
from replay.measure.floors import NO_FLOORS, FloorFigures, Floors
from replay.measure.limits import WORST, VersionFigures
from replay.measure.modelled import modelled
from replay.measure.net import own_sidecars
from replay.measure.racks import NO_RACKS, Racks
from replay.measure.spread import Delivered, spread_row
from replay.measure.sums import FetchSums
from replay.measure.zone_places import Places
from replay.measure.zones import topic_name
from replay.measure.zones_report import zones_report
from replay.report.decision import (
    DailyRate,
    add_up_hosts,
    client_key,
    decide,
    of_client,
    saved_by_waiting_alone,
    why,
)
from replay.report.floors import HOW
from replay.report.model import (
    BothSides,
    BrokerRow,
    Bucket,
    ClientRow,
    ConnectionRow,
    CooperativeReport,
    FetchReport,
    Filters,
    FloorsReport,
    FloorsRow,
    Input,
    LimitFigures,
    LimitsReport,
    LimitsRow,
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
from replay.report.model import FloorFigures as FloorReportFigures
from replay.report.wording import CUT, next_step, saving_known
from replay.simulate.session_cache import SLOTS

_SECOND: Final = 1_000_000_000
_APART: Final = 1_000_000
"""Differences of clocks below this many ns are ignored. They may come from the queues of a network card or of
CPU cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The parts of the report that do not come from the table: the version of fetchgate, and the options."""

    version: str
    policy: str
    filters: Filters
    price_per_gb: float | None = None
    currency: str = ""
    sidecar_cost: float | None = None
    """The price of one sidecar in a month. None if it is not known."""
    max_fetch_bytes: int = 0
    floors: Floors = NO_FLOORS
    members: int = 0
    """The number of members for which the spread of keys is shown. 0 if it is not shown."""
    racks: Racks = NO_RACKS
    zone_price_per_gb: float | None = None
    copies: int = 0
    """The number of connections that were left out because they are copies of others, after NAT."""


def report(found: Collected, about: About) -> Report:
    """Make the report."""
    all_fetches = found.whole.row()
    whole = all_fetches["fetch"]
    stretches = found.stretches(filtered=bool(about.filters["ports"]))
    time = _time(stretches)
    found.timeline.fit(sum(last - first for first, last in stretches))
    both_sides = _both_sides(found)
    # Bytes that count twice have no sum of money: a buyer would take it for true.
    per_gb, zone_price = (None, None) if both_sides else (about.price_per_gb, about.zone_price_per_gb)
    rate = DailyRate(seconds=time["captured_seconds"], price_per_gb=per_gb, currency=about.currency)
    by_client = _by_client(found)
    reason = why(whole, found.whole.passed)
    zone = Places(about.racks, found.zones.nodes).zone
    different_hosts = (
        add_up_hosts(found.apart(stretches), rate, sidecars_priced=about.sidecar_cost is not None)
        if saving_known(reason)
        else None
    )
    addresses = found.hosts.addresses() if about.sidecar_cost is not None else {}
    in_model = modelled(
        found.whole,
        rate,
        saved_between=found.hosts.saved_between() if per_gb is not None else {},
        addresses=addresses,
        # One sidecar costs the same in a month wherever it is, but the savings of different hosts would be
        # divided by the time of all captures.
        sidecar_cost=about.sidecar_cost if different_hosts is None else None,
        zone=zone,
        clients=by_client,
        known=saving_known(reason),
    )
    decision = decide(
        whole,
        reason,
        by_client,
        rate,
        policy=about.policy,
        next_step=_next_step(found, about),
        sidecars=own_sidecars(
            saved_by_waiting_alone(by_client, rate.seconds),
            {client_key(row): row["fetch"]["saved_bytes"] for row in by_client},
            addresses,
            rate,
            about.sidecar_cost,
            zone,
        )
        if about.sidecar_cost is not None and in_model["net"]
        else None,
        zoned=bool(in_model["money"] and in_model["money"]["saved_between_zones_per_month"] is not None),
        twice=bool(both_sides),
        different_hosts=different_hosts,
    )
    made = Report(
        version=about.version,
        policy=about.policy,
        filters=about.filters,
        decision=decision,
        policies=_policies(found, whole, about.policy),
        time=time,
        input=_input(found, about.copies),
        fetch=whole,
        both_sides=both_sides,
        by_client=by_client,
        by_topic=_by_topic(found, whole),
        by_broker=_by_broker(found),
        connections=_connections(found),
        over_time=_over_time(found.timeline),
        where=found.whole.where,
        readable=_readable(found.ends.values()),
        not_eligible=dict(sorted(found.not_eligible.items())),
        passed=all_fetches["passed"],
        slots=_slots(found),
        limits=_limits(found, about.max_fetch_bytes),
        modelled=in_model,
    )
    if about.floors:
        made["floors"] = _floors(found, by_client, about.floors)
    if about.members:
        made["cooperative"] = _cooperative(found, about)
    zones = zones_report(
        found.zones,
        about.racks,
        about.filters["clients"],
        partial(_topic_name, names=found.names),
        rate,
        zone_price,
    )
    if zones is not None:
        made["zones"] = zones
    return made


def _next_step(found: Collected, about: About) -> str:
    others: Counter[int] = Counter()
    for counts in found.files.values():
        others.update(counts.other_ports)
    return next_step(
        kafka=found.kafka_connections,
        payload={reason: end.client_bytes + end.broker_bytes for reason, end in found.ends.items()},
        ports=about.filters["ports"],
        other_ports=others if about.filters["ports"] else None,
        filters=[
            option
            for option, given in (
                ("--client", about.filters["clients"]),
                ("--topic", about.filters["topics"]),
                ("--host", about.filters["hosts"]),
            )
            if given
        ],
        unread=unread_packets(found.files.values()),
        packets=sum(counts.packets for counts in found.files.values()),
        left_out=sum(counts.filtered for counts in found.files.values()) if about.filters["hosts"] else 0,
        more=" `fetchgate replay inspect` shows what was found.",
    )


def _input(found: Collected, copies: int) -> Input:
    problems = [
        Problem(file=counts.file, problem=line)
        for _, counts in sorted(found.files.items())
        for line in counts.problems
    ]
    return Input(
        files=len(found.files),
        bytes=sum(counts.file_bytes for counts in found.files.values()),
        packets=sum(counts.packets for counts in found.files.values()),
        connections=found.kafka_connections,
        copied_connections=copies,
        exchanges=found.rows["exchange"],
        gaps=sum(end.gaps - end.left_out_gaps for end in found.ends.values()),
        unpaired_requests=found.rows["request"],
        unpaired_responses=found.rows["response"],
        decrypted_connections=found.decrypted,
        encrypted_connections={
            reason: count for reason, count in sorted(found.reasons.items()) if reason in reasons.ALL
        },
        unread_packets=dict(unread_packets(found.files.values())),
        clocks_apart_seconds=found.clocks_apart / _SECOND if found.clocks_apart >= _APART else 0.0,
        loopback=found.hosts.on_loopback(),
        problems=problems,
    )


def _both_sides(found: Collected) -> list[BothSides]:
    return [
        BothSides(client_side=client_side, broker_side=broker_side, connections=count, fetch_bytes=fetched)
        for (client_side, broker_side), (count, fetched) in sorted(found.gateways().items())
    ]


def _by_client(found: Collected) -> list[ClientRow]:
    return [
        ClientRow(
            **of_client(client),
            connections=fetches.connections,
            connection_seconds=fetches.lasted / _SECOND,
            **fetches.row(),
        )
        for client, fetches in _largest(found.clients)
    ]


def _by_broker(found: Collected) -> list[BrokerRow]:
    return [
        BrokerRow(broker=broker, connections=fetches.connections, **fetches.row())
        for broker, fetches in _largest(found.brokers)
    ]


def _connections(found: Collected) -> list[ConnectionRow]:
    return [
        ConnectionRow(
            connection=one.connection,
            client=one.client,
            broker=one.broker,
            client_id=one.client_id,
            software=one.software,
            **one.fetches.row(),
        )
        for one in found.largest()
    ]


def _largest(sums_of: Mapping[Any, FetchSums]) -> list[tuple[Any, FetchSums]]:
    return sorted(sums_of.items(), key=lambda pair: (-pair[1].actual_bytes, pair[0]))


def _by_topic(found: Collected, whole: FetchReport) -> list[TopicRow]:
    """Return a row for each topic, and one for the bytes that belong to no topic."""
    topics: dict[str, FetchReport] = defaultdict(sums.empty)
    for (kind, text), fetch in found.topics.items():
        sums.add(topics[_topic_name(kind, text, found.names)], fetch)
    order = sorted(topics.items(), key=lambda pair: (-actual_bytes(pair[1]), pair[0]))
    rows = [TopicRow(topic=name, fetch=sums.with_savings(fetch)) for name, fetch in order]
    rest = sums.subtract(whole, [row["fetch"] for row in rows])
    return [*rows, TopicRow(topic=None, fetch=rest)] if whole["actual"]["requests"] else rows


def _topic_name(kind: str, text: str, names: Mapping[bytes, str]) -> str:
    """Return a topic's name, or its id as Kafka writes it (Uuid.toString). See `zones.topic_name`."""
    if kind == "topic":
        return text
    topic_id = bytes.fromhex(text)
    return names.get(topic_id) or base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _over_time(timeline: Timeline) -> list[Bucket]:
    return [
        Bucket(
            time=_iso(begin),
            seconds=timeline.width / _SECOND,
            actual_bytes=actual,
            predicted_bytes=predicted,
        )
        for begin, actual, predicted in timeline.over_time()[:BUCKETS]
    ]


def _time(stretches: list[tuple[int, int]]) -> Time:
    return Time(
        first=_iso(stretches[0][0]) if stretches else "",
        last=_iso(stretches[-1][1]) if stretches else "",
        captured_seconds=sum(last - first for first, last in stretches) / _SECOND,
        stretches=[Stretch(first=_iso(first), last=_iso(last)) for first, last in stretches],
    )


def _iso(time: int) -> str:
    at = dt.datetime.fromtimestamp(time // _SECOND, dt.UTC)
    return (
        at.replace(microsecond=time % _SECOND // 1000)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def _readable(ends: Iterable[ConnectionEnd]) -> ReadableReport:
    reasons: Counter[str] = Counter()
    whole = left_out = 0
    for end in ends:
        whole += end.client_bytes + end.broker_bytes + end.gap_bytes - end.left_out_bytes
        left_out += end.left_out_bytes
        reasons["not in the capture"] += end.gap_bytes - end.cut_bytes
        reasons[CUT] += end.cut_bytes - end.left_out_bytes
        reasons[end.reason or "no frame found after a gap"] += end.unframed_bytes
        reasons["frames that begin and do not end"] += end.partial_bytes
        reasons["frames without a header"] += end.headerless_bytes - end.token_bytes
        reasons["authentication (SASL)"] += end.token_bytes
    unreadable = reasons.total()
    return ReadableReport(
        readable_bytes=whole - unreadable,
        unreadable_bytes=unreadable,
        left_out_bytes=left_out,
        ratio=(whole - unreadable) / whole if whole else 1.0,
        by_reason={reason: count for reason, count in sorted(reasons.items()) if count},
    )


def _policies(found: Collected, fetch: FetchReport, policy: str) -> dict[str, PolicyRow]:
    saved = dict.fromkeys(("gateway", "always"), found.saved_by_other)
    saved[policy] = fetch["saved_bytes"]
    whole = actual_bytes(fetch)
    return {
        name: PolicyRow(
            predicted_bytes=whole - count, saved_bytes=count, saved_ratio=count / whole if whole else 0.0
        )
        for name, count in saved.items()
    }


def _slots(found: Collected) -> list[SlotsRow]:
    return [
        SlotsRow(
            broker=broker,
            sessions_at_once=use.sessions_at_once,
            requested_at_once=use.requested_at_once,
            slots=SLOTS,
            evictions=use.evictions,
            refused=use.refused,
            over_time=[SlotsNeeded(time=_iso(begin), needed=most) for begin, most in use.over_time],
        )
        for broker, use in sorted(found.slots.items())
    ]


def _floors(found: Collected, by_client: list[ClientRow], floors: Floors) -> FloorsReport:
    rows: list[FloorsRow] = []
    whole, requests = FloorFigures(), 0
    for client in by_client:
        key = client_key(client)
        figures, own = found.floors.get(key, FloorFigures()), client["fetch"]["actual"]["requests"]
        whole.add(figures)
        requests += own
        rows.append(FloorsRow(**of_client(key), **_floor_figures(figures, own)))
    return FloorsReport(
        fetch_min_bytes=floors.min_bytes,
        fetch_max_wait_seconds=floors.max_wait_ms / 1e3,
        **_floor_figures(whole, requests),
        by_client=rows,
        how=HOW,
    )


def _floor_figures(figures: FloorFigures, requests: int) -> FloorReportFigures:
    gathered = figures.gathered_bytes
    return FloorReportFigures(
        requests=requests,
        fewer_requests=figures.fewer,
        saved_bytes=figures.saved_bytes,
        later_seconds=round(figures.later / gathered / 1e3, 3) if gathered else 0.0,
        later_at_most_seconds=figures.later_at_most_ms / 1e3,
    )


def _limits(found: Collected, max_fetch_bytes: int) -> LimitsReport:
    whole = VersionFigures()
    for counted in found.limits.values():
        whole.add(counted)
    order = sorted(
        found.limits.items(), key=lambda pair: (-pair[1].over_limit_bytes, -pair[1].starved_ns, pair[0])
    )
    return LimitsReport(
        max_fetch_bytes=max_fetch_bytes,
        **_limit_figures(whole),
        by_client=[
            LimitsRow(**of_client(client), max_bytes=counted.max_bytes, **_limit_figures(counted))
            for client, counted in order
        ],
        longest=_longest(found),
    )


def _limit_figures(counted: VersionFigures) -> LimitFigures:
    return LimitFigures(
        responses=counted.responses,
        largest_record_bytes=counted.largest_record_bytes,
        over_limit=counted.over_limit,
        over_limit_bytes=counted.over_limit_bytes,
        starved=counted.starved,
        starved_seconds=counted.starved_ns / _SECOND,
    )


def _cooperative(found: Collected, about: About) -> CooperativeReport:
    wanted = about.filters["topics"]
    by_group: defaultdict[tuple[str | None, str | None], Delivered] = defaultdict(Delivered)
    for (_, client_id), delivered in found.delivered.items():
        # A client counts in a group if its connections name this group and no other one.
        known = [*delivered.groups] if len(delivered.groups) == 1 else []
        named = Delivered(unread=delivered.unread)
        for (kind, text), counts in delivered.topics.items():
            name = _topic_name(kind, text, found.names)
            if name in wanted or not wanted:
                named.topic(("topic", name)).merge(counts)
        by_group[(known[0], None) if known else (None, client_id)].merge(named)
    rows = [
        spread_row(about.members, delivered, group=group, client_id=client_id)
        for (group, client_id), delivered in by_group.items()
    ]
    return CooperativeReport(
        members=about.members,
        groups=sorted(
            (row for row in rows if row["records"] or row["unread_bytes"]),
            key=lambda row: (-row["bytes"], row["group"] is None, row["group"] or row["client_id"] or ""),
        ),
    )


def _longest(found: Collected) -> list[StarvedRow]:
    rows = [
        StarvedRow(
            client_id=one.client_id,
            broker=one.broker,
            topic=_topic_name(*topic_name(starved.topic, starved.topic_id), found.names),
            partition=starved.partition,
            since=_iso(starved.since),
            seconds=starved.lasted / _SECOND,
            responses=starved.responses,
            behind=starved.behind,
        )
        for one in found.starving
        for starved in [one.partition]
    ]
    return sorted(rows, key=_by_length)[:WORST]


def _by_length(row: StarvedRow) -> tuple[Any, ...]:
    names = row["topic"], row["partition"], row["client_id"], row["broker"]
    return -row["seconds"], row["since"], *names, row["responses"], row["behind"]
