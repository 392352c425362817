"""Computes which records could be read in the client's own zone (KIP-392). Sans-IO.

Two ways are told apart. *The rack in the fetch*: the client has a ``client.rack``, the leader names a replica
in that rack, and the client reads there. It needs a client that follows. *The replica as leader*: for some
clients, Metadata names a replica in the zone as the leader. Any client reads there.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from replay.measure.zone_log import FetchClass, ReplicasSeen
from replay.measure.zone_places import Places
from replay.measure.zones import ReadBy, ZoneSums
from replay.protocol.cluster import Replicas, unpacked
from replay.report.zones_model import LatencyClass, LeaderRate

HERE: Final = "broker in the zone"
BELOW_V10: Final = "below v10"
BELOW_V11: Final = "below v11"
OWN_RACK: Final = "rack of its own"
NO_CONSUMER: Final = "not a consumer"
UNFOLLOWING: Final = "does not follow"
CLIENT_UNKNOWN: Final = "client unknown"
NO_REPLICA: Final = "no replica in the zone"
PRODUCE: Final = "produce"
UNKNOWN: Final = "unknown"
MOVED: Final = ""

_FOLLOW: Final = {
    "apache-kafka-java": True,
    "confluent-kafka": True,
    "librdkafka": True,
    "sarama": True,
    "kafka-python 3": True,
    "kgo": False,
    "platformatic-kafka 1.": False,
    "platformatic-kafka 2.": True,
}
"""Whether a client reads from the replica that the leader names, and comes back from it when it is gone. By
the beginning of the software. Seen at Kafka 4.3 with Java 4.3, librdkafka 2.16, Sarama 1.61, kafka-python
3.0.11, franz-go 1.22, and @platformatic/kafka 1.35 and 2.2.3. The last one ends its stream when the replica
is gone, as when a leader is gone; the next stream reads from leaders."""
_LIBRDKAFKA: Final = "rdkafka"
"""In the software's version of most clients that are made with librdkafka."""
_LATENCIES: Final = tuple(
    LatencyClass(
        records_per_second=rate,
        leader_p50_ms=leader,
        leader_p99_ms=leader_most,
        replica_p50_ms=replica,
        replica_p99_ms=replica_most,
    )
    for rate, leader, leader_most, replica, replica_most in (
        (2, 5, 40, 504, 528),
        (10, 4, 29, 103, 117),
        (100, 3, 13, 12, 24),
        (1000, 11, 61, 20, 92),
    )
)
"""From produce (acks=1) to a consumer that waits up to 500 ms: measured with Kafka 4.3 and one partition,
before there was `tools.bench --only zones`. BENCHMARKS.md has later ones, of a slower machine."""


@dataclass(slots=True)
class Moves:
    """What one of the two ways would move, and why the rest stays."""

    moved: int = 0
    stays: Counter[str] = field(default_factory=Counter)
    by_client: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Moved bytes, by client id and software."""
    by_topic: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, client: tuple[str, str], topic: str, count: int) -> None:
        if reason != MOVED:
            self.stays[reason] += count
            return
        self.moved += count
        self.by_client[client] += count
        self.by_topic[topic] += count


class Topics:
    """The replicas of partitions, by the newest captured Metadata."""

    def __init__(self, replicas: Mapping[tuple[str, str], ReplicasSeen], places: Places) -> None:
        self._replicas, self._places = replicas, places
        self._partitions = cache(self._unpacked)

    def find(self, broker: str, topic: str, partition: int) -> tuple[str, Replicas] | None:
        """Return the cluster's id and the replicas of a partition at the broker with this address."""
        known = [
            (self._replicas[cluster, topic].time, cluster)
            for cluster in self._places.clusters(broker)
            if (cluster, topic) in self._replicas
        ]
        if not known:
            return None
        _, cluster = max(known)
        found = self._partitions(cluster, topic).get(partition)
        return None if found is None else (cluster, found)

    def _unpacked(self, cluster: str, topic: str) -> dict[int, Replicas]:
        return {one.partition: one for one in unpacked(self._replicas[cluster, topic].replicas)}


def follows(software: str) -> bool | None:
    """Return whether a client reads from the replica that the leader names. None if it is not known."""
    if _LIBRDKAFKA in software:
        return True
    return next((does for name, does in _FOLLOW.items() if software.startswith(name)), None)


def moves(
    sums: ZoneSums, chosen: Iterable[ReadBy], places: Places, topics: Topics, name: Callable[[str, str], str]
) -> tuple[Moves, Moves]:
    """Return what the two ways would move of reads: the rack in the fetch, the replica as leader."""
    by_rack, by_leader = Moves(), Moves()
    for read in chosen:
        topic, client = name(read.kind, read.text), (read.client_id, read.software)
        zone = places.zone(read.zone, read.broker)
        crosses = {"same": HERE, "unknown": UNKNOWN, "other": ""}[zone]
        for partition, count in sums.reads[read].items():
            replica = _replica(read, topic, partition, places, topics)
            by_rack.add(crosses or _by_rack(read) or replica, client, topic, count)
            by_leader.add(crosses or _by_leader(read) or replica, client, topic, count)
    return by_rack, by_leader


def _replica(read: ReadBy, topic: str, partition: int, places: Places, topics: Topics) -> str:
    """Return why records can't be read in the client's zone, by where the replicas are. "" if they can."""
    found = topics.find(read.broker, topic, partition)
    if found is None:
        return UNKNOWN
    racks = {places.of_id(found[0], node_id) for node_id in found[1].in_sync}
    if read.zone in racks:
        return MOVED
    return UNKNOWN if "" in racks else NO_REPLICA


def _by_rack(read: ReadBy) -> str:
    """Return why a client would not read from the replica that a leader names. "" if it would."""
    fetch_class = FetchClass(read.fetch_class)
    if fetch_class is FetchClass.NO_CONSUMER:
        return NO_CONSUMER
    if fetch_class in {FetchClass.BELOW_V10, FetchClass.V10}:
        return BELOW_V11
    if fetch_class is FetchClass.OWN_RACK:
        return OWN_RACK
    does = False if fetch_class is FetchClass.NAMELESS else follows(read.software)
    return "" if does else CLIENT_UNKNOWN if does is None else UNFOLLOWING


def _by_leader(read: ReadBy) -> str:
    """Return why a client could not read from a replica that Metadata names as leader. "" if it could."""
    if read.fetch_class == FetchClass.NO_CONSUMER:
        return NO_CONSUMER
    return BELOW_V10 if read.fetch_class == FetchClass.BELOW_V10 else ""


def leader_rates(
    sums: ZoneSums, places: Places, topics: Topics, name: Callable[[str, str], str], seconds: float
) -> list[LeaderRate]:
    """Return how many records a second were written to the partitions of each topic, by their leader.

    Of each partition, this is how far its high watermark rose in the captured time. Without a captured time,
    or if no Metadata tells the leaders, the list is empty.
    """
    grown: dict[tuple[str, str, Replicas], tuple[int, int]] = {}
    for (broker, *named), spans in sums.log_ends.items():
        topic = name(*named)
        for partition, span in spans.items():
            found = topics.find(broker, topic, partition)
            if found is not None and found[1].leader >= 0:
                key = found[0], topic, found[1]
                lowest, highest = grown.get(key, span)
                grown[key] = min(lowest, span.lowest), max(highest, span.highest)
    rates: defaultdict[tuple[str, str, int], int] = defaultdict(int)
    leaders: defaultdict[tuple[str, int], int] = defaultdict(int)
    for (cluster, topic, replicas), (lowest, highest) in grown.items():
        rates[cluster, topic, replicas.leader] += highest - lowest
        leaders[cluster, replicas.leader] += highest - lowest
    if not seconds:
        return []
    rows = [
        LeaderRate(
            topic=topic,
            leader=leader,
            rack=places.of_id(cluster, leader) or None,
            records_per_second=count / seconds,
            leader_records_per_second=leaders[cluster, leader] / seconds,
            latency=latency(leaders[cluster, leader] / seconds),
        )
        for (cluster, topic, leader), count in rates.items()
    ]
    # Several clusters may have the same topic, and leaders with the same id.
    return sorted(
        rows,
        key=lambda row: (
            -row["records_per_second"],
            row["topic"],
            row["leader"],
            row["rack"] or "",
            row["leader_records_per_second"],
        ),
    )


def latency(records_per_second: float) -> LatencyClass:
    """Return the measured latencies of the highest rate that is not above this one, or of the lowest rate."""
    below = [one for one in _LATENCIES if one["records_per_second"] <= records_per_second]
    return (below or _LATENCIES[:1])[-1]
