"""Counts of the contents of captures: files, connections, and the requests on them. Sans-IO."""

import dataclasses
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.adding import Figures
from proxy.protocol.api import REQUEST_START_BYTES, ApiKey, request_header
from proxy.protocol.fetch_layout import LAYOUTS, SESSION_VERSION, FetchLayout
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.primitives import UUID_BYTES, ProtocolError, read_compact_count, read_compact_string
from proxy.session.decision import Reason
from replay.capture.files.counts import FileCounts, unread_packets
from replay.capture.kafka.both_sides import GatewaySides
from replay.capture.kafka.exchange import UNSEEN, ConnectionEnd, Exchange
from replay.capture.tls import reasons
from replay.protocol.names import NAMES
from replay.report.wording import CAPTURE_CONSUMERS, OF_BROKERS, encrypted, next_step, plural

UNSEEN_REQUEST: Final = "response to an unseen request"
_SESSION: Final = struct.Struct(">ii")
_CONSUMER: Final = b"\xff\xff\xff\xff"
"""The replica_id of a consumer, which is -1."""
_NO_TAGS: Final = b"\0"


@dataclass(slots=True)
class ApiCounts(Figures):
    """Counts of the exchanges with one API key."""

    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    unanswered: int = 0
    versions: Counter[int] = field(default_factory=Counter)

    def count(self, exchange: Exchange) -> None:
        self.requests += exchange.request_bytes > 0
        self.responses += exchange.response_bytes > 0
        self.request_bytes += exchange.request_bytes
        self.response_bytes += exchange.response_bytes
        self.unanswered += not exchange.response_bytes and exchange.answer_due
        if exchange.request_bytes:
            self.versions[exchange.api_version] += 1


@dataclass(slots=True)
class FetchCounts:
    """Counts of a connection's fetches."""

    kinds: Counter[str] = field(default_factory=Counter)
    """The number of fetches of each kind: full (epoch 0), incremental (epoch > 0), sessionless (epoch -1
    without a session id), close (epoch -1 with a session id)."""
    least: int = -1
    """The fewest partitions in a fetch. -1 if no fetch could be read."""
    most: int = 0
    partitions: int = 0
    """Those of all fetches that could be read, added up."""
    replicas: int = 0
    """Fetches of brokers and controllers that could be read."""
    unread: int = 0
    """Fetches that were not captured completely, or could not be parsed. Fetch versions that the gateway does
    not parse are among them."""

    def add(self, exchange: Exchange) -> None:
        listed = _listed(exchange)
        if listed is None:
            self.unread += 1
            return
        partitions, kind, replica = listed
        self.kinds[kind] += 1
        self.replicas += replica
        self.partitions += partitions
        self.most = max(self.most, partitions)
        self.least = partitions if self.least < 0 else min(self.least, partitions)


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of one connection."""

    end: ConnectionEnd
    keys: dict[int, ApiCounts] = field(default_factory=dict)
    fetch: FetchCounts = field(default_factory=FetchCounts)
    authenticated: bool = False
    """Whether bytes of a token in a SaslAuthenticate request were captured."""

    @property
    def logs_in(self) -> bool:
        """Whether bytes of SASL tokens were captured, with or without (SaslHandshake v0) a header."""
        return self.authenticated or self.end.token_bytes > 0

    @property
    def unpaired_responses(self) -> int:
        return self.keys.get(UNSEEN, ApiCounts()).responses

    @property
    def fetches(self) -> ApiCounts:
        return self.keys.get(ApiKey.FETCH, ApiCounts())

    @property
    def sessions(self) -> str:
        """Whether the client uses fetch sessions: "yes", "no", or "" if no fetch of it could be read."""
        kinds = self.fetch.kinds
        if not kinds:
            return ""
        return "yes" if kinds["incremental"] or kinds["close"] else "no"

    @property
    def of_replicas(self) -> bool:
        """Whether all fetches that could be read are those of a broker or controller."""
        return 0 < self.fetch.replicas == self.fetch.kinds.total()

    def as_json(self) -> dict[str, Any]:
        end = dataclasses.asdict(self.end)
        end["topics"] = sorted(self.end.topics.values())
        fetch = _plain(self.fetch)
        return end | {
            "apis": {name_of(key): _plain(counts) for key, counts in sorted(self.keys.items())},
            "fetch": fetch | {"sessions": self.sessions} if ApiKey.FETCH in self.keys else None,
            "unpaired_responses": self.unpaired_responses,
        }


@dataclass(slots=True)
class OtherConnections:
    """Counts of the connections that were not read as Kafka for one reason."""

    connections: int = 0
    bytes: int = 0
    ports: Counter[str] = field(default_factory=Counter)
    """The bytes by the port that the brokers would have."""


class Inspection:
    """All counts: those of files, and those of the exchanges and connections that `Connections` returns."""

    def __init__(self, ports: frozenset[int] = frozenset()) -> None:
        self._ports = ports
        self.files: dict[str, FileCounts] = {}
        self.connections: list[ConnectionCounts] = []
        self.others: dict[str, OtherConnections] = {}
        """The connections that were not read as Kafka, by the reason."""
        self._decrypted = 0
        self._open: dict[str, ConnectionCounts] = {}
        self.sides = GatewaySides()

    def add(self, event: Exchange | ConnectionEnd) -> None:
        counts = self._open.get(event.connection)
        if isinstance(event, ConnectionEnd):
            self._decrypted += event.tls_bytes > 0
            counts = self._open.pop(event.connection, None)
            if counts is None:
                port = event.broker.rpartition(":")[2]
                self.add_others(event.reason, 1, event.client_bytes + event.broker_bytes, port)
            else:
                counts.end = event
                self.connections.append(counts)
            return
        if counts is None:
            end = ConnectionEnd(connection=event.connection, client=event.client, broker=event.broker)
            counts = self._open[event.connection] = ConnectionCounts(end)
        key = counts.keys.get(event.api_key)
        if key is None:
            key = counts.keys[event.api_key] = ApiCounts()
        key.count(event)
        self.sides.add(event)
        if event.api_key == ApiKey.FETCH:
            counts.fetch.add(event)
        elif event.api_key == ApiKey.SASL_AUTHENTICATE:
            captured = event.request_bytes - event.request_missing
            counts.authenticated |= captured > REQUEST_START_BYTES + 2 + len(event.client_id.encode())

    def add_others(self, reason: str, connections: int, size: int = 0, port: str = "") -> None:
        others = self.others.setdefault(reason or "no whole frame", OtherConnections())
        others.connections += connections
        if size:
            others.bytes += size
            others.ports[port] += size

    def add_file(self, counts: FileCounts) -> None:
        if counts.file in self.files:
            self.files[counts.file].add(counts)
        else:
            self.files[counts.file] = counts

    def kafka(self) -> list[ConnectionCounts]:
        return sorted(self.connections, key=lambda counts: -counts.end.client_bytes - counts.end.broker_bytes)

    def verdict(self) -> str:
        """Return one line: whether the captures have Kafka, and how many connections fetch."""
        copies = self.sides.copies()
        kafka = [counts for counts in self.kafka() if counts.end.connection not in copies]
        if not kafka:
            return "No connection that speaks Kafka was found."
        fetching = [counts for counts in kafka if ApiKey.FETCH in counts.keys]
        fetches = sum(counts.fetches.requests for counts in fetching)
        text = f"Kafka: {plural(len(kafka), 'connection')}, {plural(fetches, 'fetch request')}."
        if not fetching:
            return text
        if self.no_consumer():
            return f"{text} No consumer: {OF_BROKERS}."
        consumers = [counts for counts in fetching if not counts.of_replicas]
        plain = sum(counts.sessions == "no" for counts in consumers)
        return (
            f"{text} Connections of consumers that fetch: {len(consumers):,}; without sessions of their own: "
            f"{plain:,}."
        )

    def logins(self) -> str:
        """Warn of captured SASL logins; "" if there are none."""
        count = sum(counts.logs_in for counts in self.connections)
        if not count:
            return ""
        return (
            f"SASL logins on {plural(count, 'connection')}: with PLAIN, the capture has the password; with "
            "OAUTHBEARER, a token. Do not pass it on."
        )

    def no_consumer(self) -> bool:
        fetching = [counts for counts in self.connections if ApiKey.FETCH in counts.keys]
        return bool(fetching) and all(counts.of_replicas for counts in fetching)

    def fetches(self) -> int:
        return sum(counts.fetches.requests for counts in self.connections)

    def cut_fetches(self) -> int:
        """Return how many fetches were captured only in part, or could not be parsed."""
        unread = sum(counts.fetch.unread for counts in self.connections)
        # `measure` counts fetches of versions that the gateway does not parse as they are.
        return unread - sum(
            count
            for each in self.connections
            for version, count in each.fetches.versions.items()
            if version not in LAYOUTS
        )

    def next_step(self) -> str:
        """Return advice if there are no fetches of consumers in the captures; "" otherwise."""
        if self.no_consumer():
            return f"Next: {CAPTURE_CONSUMERS}"
        if self.fetches():
            return ""
        other_ports: Counter[int] = Counter()
        for file in self.files.values():
            other_ports.update(file.other_ports)
        return next_step(
            kafka=len(self.kafka()),
            payload={reason: others.bytes for reason, others in self.others.items()},
            ports=self._ports,
            other_ports=other_ports,
            unread=self.unread(),
            packets=self.packets(),
        )

    def unread(self) -> Counter[str]:
        return unread_packets(self.files.values())

    def packets(self) -> int:
        return sum(counts.packets for counts in self.files.values())

    def encrypted(self) -> str:
        """Return how many TLS connections were decrypted, and why others were not; "" without a key log."""
        others = {
            reason: others.connections for reason, others in self.others.items() if reason in reasons.ALL
        }
        return encrypted(self._decrypted, others)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each part that could not be read: the name of its file, and the problem."""
        for name, counts in self.files.items():
            for problem in counts.problems:
                yield name, problem

    def as_json(self) -> dict[str, Any]:
        kafka = self.kafka()
        brokers = Counter(counts.end.broker for counts in kafka)
        files = list(self.files.values())
        return {
            "files": [dataclasses.asdict(counts) for counts in files],
            "packets": self.packets(),
            "first_time": min((counts.first_time for counts in files if counts.first_time), default=0),
            "last_time": max((counts.last_time for counts in files), default=0),
            "brokers": dict(brokers.most_common()),
            "ports": dict(Counter(int(broker.rpartition(":")[2]) for broker in brokers.elements())),
            "connections": [counts.as_json() for counts in kafka],
            "others": {
                reason: {"connections": others.connections, "bytes": others.bytes}
                for reason, others in self.others.items()
            },
            "next_step": self.next_step(),
            "problems": [{"file": name, "problem": problem} for name, problem in self.problems()],
        }


def name_of(api_key: int) -> str:
    """Return the name that Kafka gives an API key."""
    return UNSEEN_REQUEST if api_key == UNSEEN else NAMES.get(api_key, f"key {api_key}")


def _plain(counts: ApiCounts | FetchCounts) -> dict[str, Any]:
    # Not asdict: it would make a Counter of the items, and count them.
    values = {one.name: getattr(counts, one.name) for one in dataclasses.fields(counts)}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def _listed(exchange: Exchange) -> tuple[int, str, bool] | None:
    """Return a fetch's number of partitions, its kind, and whether it is a replica's. None if unreadable."""
    frame, version = exchange.request, exchange.api_version
    layout = LAYOUTS.get(version)
    if exchange.request_missing or layout is None:
        return None
    replica = False
    try:
        body = request_header(frame, 4)[-1]
        at = body + layout.request_head
        session_id, epoch = (0, -1) if version < SESSION_VERSION else _SESSION.unpack_from(frame, at - 8)
        partitions = _count(frame, body, layout)
        if partitions < 0:
            fetch = parse_fetch_request(frame, version, body)
            partitions, replica = fetch.partitions, fetch.unsupported_reason == Reason.NOT_A_CONSUMER
    except (ProtocolError, struct.error):
        return None
    if epoch == -1:
        return partitions, "close" if session_id else "sessionless", replica
    return partitions, "incremental" if epoch > 0 else "full", replica


def _count(frame: bytes, body: int, layout: FetchLayout) -> int:
    """Count the partitions in a consumer's fetch with topic ids, but no tags or forgotten ones. Else -1."""
    if not layout.topic_ids or (layout.request_limits and not frame.startswith(_CONSUMER, body)):
        return -1
    topics, at = read_compact_count(frame, body + layout.request_head)
    size, end, partitions = layout.request_entry, len(frame), 0
    for _ in range(topics or 0):
        count, at = read_compact_count(frame, at + UUID_BYTES)
        stop = at + (count or 0) * size
        if stop >= end or frame[stop] or frame[at + size - 1 : stop : size].count(0) != (count or 0):
            return -1
        partitions += count or 0
        at = stop + 1
    forgotten, at = read_compact_count(frame, at)
    if forgotten:
        return -1
    _, at = read_compact_string(frame, at)  # rack_id; from v15 on, a replica has a tag after it (KIP-903)
    return partitions if frame[at:] == _NO_TAGS else -1
