"""Adds up bytes by the client's zone and the broker. Sans-IO.

The zones of brokers are only known when all connections are: any of them may have the Metadata response that
tells them. Until then, bytes are kept by the broker's address.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from proxy.adding import Figures
from proxy.protocol.api import ApiKey
from replay.capture.kafka.exchange import ConnectionEnd
from replay.measure.digest import Summary
from replay.measure.zone_log import ReplicasSeen, ZonesSeen


class NodeAt(NamedTuple):
    """A broker, as a response described it."""

    time: int
    """When the response came, in ns since 1970."""
    node_id: int
    host: str
    port: int
    rack: str
    """The broker's rack, "" if it has none."""


class ReadBy(NamedTuple):
    """Who read a topic's records, and where."""

    zone: str
    """The client's zone."""
    broker: str
    """The broker's address."""
    client_id: str
    software: str
    fetch_class: int
    """A `FetchClass`."""
    kind: str
    """With `text`: the topic, see `topic_name`."""
    text: str


class LogSpan(NamedTuple):
    """The lowest and the highest high watermark of a partition."""

    lowest: int
    highest: int


@dataclass(slots=True)
class ZoneBytes(Figures):
    """Bytes of whole frames, by what they are and by direction."""

    record_bytes: int = 0
    """The records in fetch responses. `fetch_responses` includes them."""
    fetch_requests: int = 0
    fetch_responses: int = 0
    produce_requests: int = 0
    produce_responses: int = 0
    other_requests: int = 0
    other_responses: int = 0

    @property
    def requests(self) -> int:
        return self.fetch_requests + self.produce_requests + self.other_requests

    @property
    def responses(self) -> int:
        return self.fetch_responses + self.produce_responses + self.other_responses

    def count(self, group: Mapping[str, Any]) -> None:
        requests, responses = group["request_bytes"], group["response_bytes"]
        if group["api_key"] == ApiKey.FETCH:
            if group["counted"]:
                self.record_bytes += group["record_bytes"]
                self.fetch_requests += requests
                self.fetch_responses += responses
        elif group["api_key"] == ApiKey.PRODUCE:
            self.produce_requests += requests
            self.produce_responses += responses
        else:
            self.other_requests += requests
            self.other_responses += responses


@dataclass(slots=True)
class TopicBytes(Figures):
    """The bytes of a topic in fetches: its entries, and the topic elements with them."""

    record_bytes: int = 0
    listing_bytes: int = 0


@dataclass(slots=True)
class ZoneSums:
    """The sums of connections. A client's zone is that of --client-rack, "" if it is not named."""

    clients: dict[tuple[str, str, str, str], ZoneBytes] = field(
        default_factory=partial(defaultdict, ZoneBytes)
    )
    """By the client's zone, the broker's address, client id and software."""
    topics: dict[tuple[str, str, str, str], TopicBytes] = field(
        default_factory=partial(defaultdict, TopicBytes)
    )
    """By the client's zone, the broker's address and the topic (see `topic_name`)."""
    connections: Counter[str] = field(default_factory=Counter)
    """The number of connections, by the client's zone."""
    nodes: dict[tuple[str, int], NodeAt] = field(default_factory=dict)
    """The newest description of each broker, by cluster id and node id."""
    replicas: dict[tuple[str, str], ReplicasSeen] = field(default_factory=dict)
    """The newest replicas of each topic, by cluster id and topic."""
    reads: dict[ReadBy, dict[int, int]] = field(default_factory=partial(defaultdict, dict))
    """Record bytes by partition."""
    log_ends: dict[tuple[str, str, str], dict[int, LogSpan]] = field(
        default_factory=partial(defaultdict, dict)
    )
    """The high watermarks of partitions, by the broker's address and the topic (see `topic_name`)."""

    def add_connection(self, zone: str, broker: str, clients: Mapping[tuple[str, str], ZoneBytes]) -> None:
        for client, one in clients.items():
            self.clients[zone, broker, *client].add(one)

    def add_summary(self, summary: Summary, names: Iterable[tuple[str, str]]) -> None:
        """Add what the summary of a connection has. `names` are those of its topics."""
        seen, end = summary.zones, summary.end
        zone = seen.client_rack if seen is not None else ""
        self.connections[zone] += not end.reason
        for name, totals in zip(names, summary.topics, strict=True):
            own = self.topics[zone, end.broker, *name]
            own.record_bytes += totals.record_bytes
            own.listing_bytes += totals.request_bytes + totals.response_bytes - totals.record_bytes
        if seen is not None:
            for time, cluster, nodes in seen.nodes:
                for node in nodes:
                    self._add_node(cluster, NodeAt(time, *node))
            self._add_replicas(seen.replicas)
            self._add_reads(seen, end)

    def merge(self, other: "ZoneSums") -> None:
        for client, one in other.clients.items():
            self.clients[client].add(one)
        for name, totals in other.topics.items():
            self.topics[name].add(totals)
        self.connections += other.connections
        for (cluster, _), node in other.nodes.items():
            self._add_node(cluster, node)
        self._add_replicas(other.replicas.values())
        for read, partitions in other.reads.items():
            _add(self.reads[read], partitions)
        for place, spans in other.log_ends.items():
            for partition, span in spans.items():
                self._add_span(place, partition, span)

    def _add_node(self, cluster: str, node: NodeAt) -> None:
        key = cluster, node.node_id
        self.nodes[key] = max(node, self.nodes.get(key, node))

    def _add_replicas(self, seen: Iterable[ReplicasSeen]) -> None:
        for one in seen:
            key = one.cluster, one.topic
            self.replicas[key] = max(one, self.replicas.get(key, one))

    def _add_reads(self, seen: ZonesSeen, end: ConnectionEnd) -> None:
        for topic, topic_id, fetch_class, partitions in seen.reads:
            kind, text = topic_name(topic, topic_id)
            key = ReadBy(seen.client_rack, end.broker, end.client_id, end.software, fetch_class, kind, text)
            _add(self.reads[key], partitions)
        for topic, topic_id, *columns in seen.log_ends:
            place = end.broker, *topic_name(topic, topic_id)
            for partition, lowest, highest in zip(*columns, strict=True):
                self._add_span(place, partition, LogSpan(lowest, highest))

    def _add_span(self, place: tuple[str, str, str], partition: int, span: LogSpan) -> None:
        spans = self.log_ends[place]
        known = spans.get(partition, span)
        spans[partition] = LogSpan(min(known.lowest, span.lowest), max(known.highest, span.highest))


def topic_name(topic: str | None, topic_id: bytes | None) -> tuple[str, str]:
    """Return ("topic", its name), or ("id", the hexadecimal digits of its id)."""
    return ("topic", topic) if topic is not None else ("id", (topic_id or b"").hex())


def _add(sums: dict[int, int], more: Mapping[int, int]) -> None:
    for partition, count in more.items():
        sums[partition] = sums.get(partition, 0) + count
