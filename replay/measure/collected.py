"""Collects the rows of the table into the figures of the report. Sans-IO.

Each task of Spark collects its own connections, and one task merges the results. The size of a result depends
on the report and on the number of clients' hosts, not on the number of connections.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Any, Final

import pyarrow.compute as pc

from replay.capture.files.counts import FileCounts, joined_stretches
from replay.capture.kafka.both_sides import MOST, Sampled, are_copies, busiest, pairs
from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure import sums
from replay.measure.digest import Summary, Timeline
from replay.measure.floors import FloorFigures
from replay.measure.groups import Group
from replay.measure.hosts import MOST_ROWS, Hosts, total
from replay.measure.limits import WORST, Starved, VersionFigures
from replay.measure.spread import Delivered
from replay.measure.sums import FetchSums
from replay.measure.table import DETAILS, Detail
from replay.measure.typed import bounded
from replay.measure.zones import ZoneBytes, ZoneSums, topic_name
from replay.report.decision import CaptureApart
from replay.report.model import FetchReport, Passed
from replay.simulate.session_cache import CacheEvent, SlotsUse, simulate

TOP: Final = 50
"""How many connections the report lists, and how many client ids are kept in `Collected.client_ids`."""
_SECOND: Final = 1_000_000_000
_BETWEEN_FILES: Final = 10 * _SECOND
"""In ns. If a file begins later than this after the end of the previous file, nothing was captured in
between. In a ring, the next file begins with the next packet, and consumers fetch twice a second."""
_OF_ENDS: Final = (
    "client_bytes",
    "broker_bytes",
    "gaps",
    "gap_bytes",
    "cut_bytes",
    "left_out_bytes",
    "left_out_gaps",
    "unframed_bytes",
    "partial_bytes",
    "headerless_bytes",
    "token_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starving:
    """A partition that starved, with its connection."""

    client_id: str
    broker: str
    partition: Starved

    @property
    def rank(self) -> tuple[float, int]:
        """The sort key of the report: the longest first, and of equally long ones the earliest."""
        return -self.partition.lasted / _SECOND, self.partition.since // 1000


@dataclass(slots=True, kw_only=True)
class CountedConnection:
    """A connection, with the sums of its counted fetches."""

    connection: str
    client: str
    broker: str
    client_id: str = ""
    software: str = ""
    fetches: FetchSums = field(default_factory=FetchSums)
    began: int = 0
    """The time of the first packet of the connection, in ns since 1970."""
    lasted: int = 0
    """The time from the first to the last packet of the connection, in ns."""
    clients: set[tuple[str, str, int]] = field(default_factory=set)
    """The keys in `Collected.clients` under which its fetches are counted."""
    sampled: Sampled | None = None
    zone: str = ""
    """The client's zone, "" if it is not known."""
    zone_bytes: dict[tuple[str, str], ZoneBytes] = field(default_factory=partial(defaultdict, ZoneBytes))
    """The bytes of all exchanges, by client id and software."""

    @property
    def rank(self) -> tuple[Any, ...]:
        return -self.fetches.actual_bytes, (self.connection, self.client, self.broker)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySide:
    """A connection that may be one side of a gateway."""

    sampled: Sampled
    broker: str
    fetch_bytes: int


@dataclass(slots=True)
class Collected:
    """The sums of groups. The groups of one connection must be added one after the other, in any order.

    After `finish`, `codec` can write the sums as a typed column.
    """

    whole: FetchSums = field(default_factory=FetchSums)
    clients: dict[tuple[str, str, int], FetchSums] = field(default_factory=partial(defaultdict, FetchSums))
    brokers: dict[str, FetchSums] = field(default_factory=partial(defaultdict, FetchSums))
    hosts: Hosts = field(default_factory=Hosts)
    connections: list[CountedConnection] = field(default_factory=list)
    """The connections with the most bytes."""
    not_eligible: dict[str, Passed] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    files: dict[tuple[int, str], FileCounts] = field(default_factory=dict)
    ends: dict[str, ConnectionEnd] = field(default_factory=dict)
    """The summed counts of connections, by the reason why they were not read; "" if they were read."""
    kafka_connections: int = 0
    decrypted: int = 0
    """How many TLS connections were decrypted."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many connections were not read, by reason."""
    client_ids: set[str] = field(default_factory=set)
    """The first client ids in alphabetical order, also of connections whose fetches are not counted."""
    names: dict[bytes, str] = field(default_factory=dict)
    """Names of topics, by id."""
    topics: dict[tuple[str, str], FetchReport] = field(default_factory=partial(defaultdict, sums.empty))
    """The fetches of each topic, by `topic_name`."""
    timeline: Timeline = field(default_factory=Timeline)
    limits: dict[tuple[str, str, int], VersionFigures] = field(
        default_factory=partial(defaultdict, VersionFigures)
    )
    """The figures for response limits, by client id, software and version."""
    floors: dict[tuple[str, str, int], FloorFigures] = field(
        default_factory=partial(defaultdict, FloorFigures)
    )
    """What floors would save, by client id, software and version."""
    starving: list[Starving] = field(default_factory=list)
    """The partitions that starved longest. If more partitions have the same rank as the last one, all of them
    are kept. Their order depends on topic names, which are not known yet."""
    saved_by_other: int = 0
    """The bytes saved by the policy that was not chosen."""
    clocks_apart: int = 0
    """The largest difference between the clocks of the two directions of a connection, in ns."""
    sides: dict[str, GatewaySide] = field(default_factory=dict)
    """The connections with the most exchanges, by name."""
    sessions: list[tuple[str, CacheEvent]] = field(default_factory=list)
    """Events of sessions, each with its broker. Their number grows with that of connections, so in Spark they
    are moved out of this object."""
    delivered: dict[tuple[str, str], Delivered] = field(default_factory=partial(defaultdict, Delivered))
    """Records by the client's host and client id. Empty unless records are counted by key."""
    slots: dict[str, SlotsUse] = field(default_factory=dict)
    """Use of slots by broker, computed from `sessions`."""
    zones: ZoneSums = field(default_factory=ZoneSums)
    _now: CountedConnection | None = None

    def add(self, group: Group) -> None:
        if self._now is None or self._now.connection != group["connection"]:
            self.finish()
            self._now = CountedConnection(
                connection=group["connection"], client=group["client"], broker=group["broker"]
            )
        row = group["row"]
        if row == "request":
            self.rows["request"] += group["count"] if group["answer_due"] else 0
        elif row not in DETAILS:
            self.rows[row] += group["count"]
        if row not in DETAILS and row != "closing":
            self._now.zone_bytes[group["client_id"], group["software"]].count(group)
        for detail in group["details"]:
            self._add_detail(self._now, group, detail)
        if group["counted"]:
            self._add_fetches(self._now, group)

    def finish(self) -> None:
        """End the current connection: all of its groups were added."""
        if self._now is not None:
            self._add_connection(self._now)
        self._now = None

    def merge(self, other: "Collected") -> None:
        self.whole.merge(other.whole)
        for client, fetches in other.clients.items():
            self.clients[client].merge(fetches)
        for broker, fetches in other.brokers.items():
            self.brokers[broker].merge(fetches)
        self.hosts.merge(other.hosts)
        self.connections += other.connections
        self._keep_largest()
        for reason, row in other.not_eligible.items():
            sums.add_passed(self.not_eligible, reason, row)
        self.rows += other.rows
        for counts in other.files.values():
            self._add_file(counts)
        for end in other.ends.values():
            self._add_end(end)
        self.kafka_connections += other.kafka_connections
        self.decrypted += other.decrypted
        self.reasons += other.reasons
        self._add_client_ids(other.client_ids)
        self.names |= other.names
        for topic, fetch in other.topics.items():
            sums.add(self.topics[topic], fetch)
        self.timeline.merge(other.timeline.width, other.timeline.over_time())
        for client, counted in other.limits.items():
            self.limits[client].add(counted)
        for client, figures in other.floors.items():
            self.floors[client].add(figures)
        self.starving += other.starving
        self._keep_longest()
        self.saved_by_other += other.saved_by_other
        for client_id, delivered in other.delivered.items():
            self.delivered[client_id].merge(delivered)
        self.clocks_apart = max(self.clocks_apart, other.clocks_apart)
        self.sides |= other.sides
        self._keep_busiest()
        self.sessions += other.sessions
        self.zones.merge(other.zones)

    def largest(self) -> list[CountedConnection]:
        return nsmallest(TOP, self.connections, key=lambda one: one.rank)

    def stretches(self, *, filtered: bool = False) -> list[tuple[int, int]]:
        """Return the intervals in which packets were captured. Consecutive files form one interval.

        With `filtered`, files without any packet that the filter keeps are left out.
        """
        files = [counts for counts in self.files.values() if counts.kept or not filtered]
        of_files = [stretch for counts in files for stretch in counts.stretches]
        return [(first, last) for first, last in joined_stretches(of_files, _BETWEEN_FILES)]

    def apart(self, stretches: Collection[tuple[int, int]]) -> list[CaptureApart]:
        """Divide intervals with fetches into captures that have no client's host in common.

        Only a loopback address can be in several captures, so their `addresses` are only these.
        """
        seen = self.hosts.table()
        joined = [list(stretch) for stretch in stretches]
        for batch in seen.select(["first", "last"]).to_batches(max_chunksize=MOST_ROWS):
            times = zip(*batch.to_pydict().values(), strict=True)
            joined = joined_stretches([*joined, *map(list, times)], 0)
        found: list[CaptureApart] = []
        for begin, end in joined:
            own = pc.and_(pc.greater_equal(seen["first"], begin), pc.less_equal(seen["first"], end))
            on_loopback = pc.and_(own, pc.not_equal(seen["broker"], ""))
            captured = sum(last - first for first, last in stretches if begin <= first <= end)
            if pc.any(own).as_py():
                capture = CaptureApart(
                    seconds=captured / _SECOND,
                    fetch_bytes=total(seen["fetch_bytes"].filter(own)),
                    saved_bytes=total(seen["saved_bytes"].filter(own)),
                    addresses=set(seen["host"].filter(on_loopback).to_pylist()),
                )
                found.append(capture)
        return found

    def gateways(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Find gateways that were captured on both sides. NAT is none: see `copies`.

        Return how many connections count twice, and their fetch bytes, by two addresses of the broker: the
        one on the clients' side and the one on the brokers' side.
        """
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for outer, inner in self._pairs():
            if are_copies(outer, inner):
                continue
            key = self.sides[outer].broker, self.sides[inner].broker
            count, size = found.get(key, (0, 0))
            found[key] = count + 1, size + self.sides[inner].fetch_bytes
        return found

    def copies(self) -> frozenset[str]:
        """Return the connections that are copies of other ones, after NAT."""
        return frozenset(inner for outer, inner in self._pairs() if are_copies(outer, inner))

    def _pairs(self) -> list[tuple[str, str]]:
        self._keep_busiest()
        return pairs(side.sampled for side in self.sides.values())

    def _keep_busiest(self) -> None:
        kept = busiest(side.sampled for side in self.sides.values())
        self.sides = {one.connection: self.sides[one.connection] for one in kept}

    def _add_connection(self, one: CountedConnection) -> None:
        if one.sampled is not None:
            self.sides[one.connection] = GatewaySide(
                sampled=one.sampled, broker=one.broker, fetch_bytes=one.fetches.actual_bytes
            )
            one.sampled = None
            if len(self.sides) > 2 * MOST:
                self._keep_busiest()
        for client in one.clients:
            sums = self.clients[client]
            sums.lasted = bounded(sums.lasted + one.lasted)
        self.zones.add_connection(one.zone, one.broker, one.zone_bytes)
        one.zone_bytes = {}
        if one.fetches.connections:
            host, times = _host(one.client), (one.began, one.began + one.lasted)
            self.hosts.add_connection(host, one.zone, one.broker, one.clients, one.fetches, times)
            self.connections.append(one)
            if len(self.connections) > 4 * TOP:
                self._keep_largest()

    def _keep_largest(self) -> None:
        self.connections = self.largest()

    def _keep_longest(self) -> None:
        if len(self.starving) > WORST:
            last = nsmallest(WORST, (one.rank for one in self.starving))[-1]
            self.starving = [one for one in self.starving if one.rank <= last]

    def _add_detail(self, connection: CountedConnection, group: Group, detail: Detail) -> None:
        if isinstance(detail, Summary):
            self._add_summary(connection, detail)
        elif isinstance(detail, FileCounts):
            self._add_file(detail)
        else:
            self.delivered[_host(group["client"]), group["client_id"]].merge(detail)

    def _add_file(self, part: FileCounts) -> None:
        whole = self.files.setdefault((part.number, part.file), part)
        if whole is not part:
            whole.add(part)

    def _add_summary(self, connection: CountedConnection, summary: Summary) -> None:
        end = summary.end
        connection.client_id, connection.software = end.client_id, end.software
        connection.broker = end.broker
        connection.zone = summary.zones.client_rack if summary.zones is not None else ""
        connection.began, connection.lasted = end.first_time, end.last_time - end.first_time
        if summary.sample:
            connection.sampled = Sampled(
                connection=end.connection,
                client_id=end.client_id,
                exchanges=summary.exchanges,
                kept=summary.sample,
            )
        if not end.reason:
            self.clocks_apart = max(self.clocks_apart, abs(end.clocks_apart))
        self.saved_by_other += summary.saved_by_other
        self.kafka_connections += not end.reason
        self.decrypted += end.tls_bytes > 0
        if end.reason:
            self.reasons[end.reason] += 1
        self._add_client_ids({end.client_id} - {""})
        self.names |= end.topics
        self._add_end(end)
        self._add_digest(summary)

    def _add_client_ids(self, names: set[str]) -> None:
        self.client_ids |= names
        if len(self.client_ids) > TOP:
            self.client_ids = set(nsmallest(TOP, self.client_ids))

    def _add_end(self, end: ConnectionEnd) -> None:
        whole = self.ends.setdefault(
            end.reason, ConnectionEnd(connection="", client="", broker="", reason=end.reason)
        )
        for name in _OF_ENDS:
            setattr(whole, name, getattr(whole, name) + getattr(end, name))

    def _add_digest(self, summary: Summary) -> None:
        end = summary.end
        names = [topic_name(totals.topic, totals.topic_id) for totals in summary.topics]
        for name, totals in zip(names, summary.topics, strict=True):
            sums.add_topic(self.topics[name], totals)
        self.zones.add_summary(summary, names)
        self.timeline.merge(summary.bucket_ns, summary.over_time)
        for version, counted in summary.limits.items():
            self.limits[end.client_id, end.software, version].add(counted)
        for version, figures in summary.floors.items():
            self.floors[end.client_id, end.software, version].add(figures)
        if summary.starved:
            self.starving += [
                Starving(client_id=end.client_id, broker=end.broker, partition=one) for one in summary.starved
            ]
            self._keep_longest()
        self.sessions += [(end.broker, event) for event in summary.sessions]

    def _add_fetches(self, connection: CountedConnection, group: Group) -> None:
        client = group["client_id"], group["software"], group["api_version"]
        connection.clients.add(client)
        for fetches in (
            self.whole,
            self.clients[client],
            self.brokers[group["broker"]],
            connection.fetches,
        ):
            fetches.add(group)
        if not group["eligible"] and group["row"] != "closing":
            sums.add_passed(self.not_eligible, *sums.passed_in(group))


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def collect(groups: Iterable[Group]) -> Collected:
    """Collect all groups of a table, without Spark."""
    found = Collected()
    for group in groups:
        found.add(group)
    found.finish()
    events: dict[str, list[CacheEvent]] = defaultdict(list)
    for broker, event in found.sessions:
        events[broker].append(event)
    found.sessions.clear()
    found.slots = {broker: simulate(of_broker) for broker, of_broker in events.items()}
    return found


def collect_part(groups: Iterable[Group], most: int) -> Iterator[list[tuple[str, CacheEvent]] | Collected]:
    """Collect groups of a table: yield their sessions, about `most` events at a time, and then the rest."""
    found = Collected()
    for group in groups:
        found.add(group)
        if len(found.sessions) >= most:
            yield found.sessions
            found.sessions = []
    found.finish()
    yield found.sessions
    found.sessions = []
    yield found
