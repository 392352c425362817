"""Notes what one connection tells about zones. Sans-IO.

Metadata and DescribeCluster responses tell the racks of brokers. They are those of all connections of the
cluster, so they are put together only in `zones`. If the client's zone is known, the record bytes of each
partition are noted as well, and how far logs grew.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from proxy.protocol.api import ApiKey
from proxy.protocol.brokers import Broker
from proxy.protocol.fetch_layout import HIGH_WATERMARK
from proxy.protocol.fetch_request import FetchRequest
from proxy.session.decision import Reason
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.racks import Racks, host_of
from replay.protocol.cluster import TELLS, read_cluster
from replay.simulate.captured_response import CapturedResponse
from replay.simulate.outcome import Outcome

_Ends: TypeAlias = npt.NDArray[np.int64]
_RACKED: Final = 11
"""The first Fetch version with a rack (KIP-392)."""
_MOST_PARTITIONS: Final = 1 << 17
"""The growth of partitions with a number from this on is not noted: it would take memory for all below."""
_UNSEEN: Final = np.iinfo(np.int64).max


class FetchClass(IntEnum):
    """What a fetch is, for reading from a replica in the client's zone."""

    BELOW_V10 = 0
    V10 = 1
    RACKED = 2
    """v11 or later, with an empty rack."""
    OWN_RACK = 3
    """v11 or later, and the client names its own rack."""
    NAMELESS = 4
    """v11 with an empty rack, without a session and without leader epochs. KafkaJS 2.2 and aiokafka 0.14 send
    such fetches, and do not tell their software."""
    NO_CONSUMER = 5


class RecordsRead(NamedTuple):
    """The record bytes of a topic's partitions in fetches of one class."""

    topic: str | None
    """Its name. None if fetches have topic ids."""
    topic_id: bytes | None
    """In place of `topic`."""
    fetch_class: int
    """The kind of fetch. 0: below v10. 1: v10. 2: v11 or later, without a rack. 3: with a rack. 4: v11 as
    KafkaJS and aiokafka send it. 5: not of a consumer."""
    partitions: dict[int, int]
    """Bytes of records by partition."""


class LogEnds(NamedTuple):
    """The lowest and the highest high watermark that responses had, by partition."""

    topic: str | None
    """Its name. None if fetches have topic ids."""
    topic_id: bytes | None
    """In place of `topic`."""
    partitions: list[int]
    """Their numbers. The other two lists have the same order."""
    lowest: list[int]
    """The lowest high watermark of each."""
    highest: list[int]
    """The highest high watermark of each."""


class ReplicasSeen(NamedTuple):
    """The replicas of a topic's partitions in a Metadata response."""

    time: int
    """When the response came, in ns since 1970."""
    cluster: str
    """The id of the cluster. "" if the response has none."""
    topic: str
    replicas: bytes
    """The leaders and replicas of its partitions, packed (`replay.protocol.cluster`)."""


class NodesSeen(NamedTuple):
    """The brokers in a response."""

    time: int
    """When the response came, in ns since 1970."""
    cluster: str
    """The cluster's id, "" if the response has none."""
    nodes: tuple[Broker, ...]
    """The brokers in the response."""


@dataclass(slots=True, kw_only=True)
class ZonesSeen:
    """What one connection tells about zones."""

    client_rack: str = ""
    """The rack that --client-rack names for the client, or ""."""
    nodes: list[NodesSeen] = field(default_factory=list)
    """The brokers in Metadata and DescribeCluster responses."""
    replicas: list[ReplicasSeen] = field(default_factory=list)
    """The leaders and replicas in Metadata responses."""
    reads: list[RecordsRead] = field(default_factory=list)
    """The record bytes that were read."""
    log_ends: list[LogEnds] = field(default_factory=list)
    """How far logs grew."""


class Newest:
    """What was seen newest. Connections see the same again and again, and only what is newer is noted."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, ...]] = {}

    def is_new(self, key: Any, seen: tuple[Any, ...]) -> bool:
        """Return whether nothing with this key was seen before, or only less. `seen` begins with the time."""
        known = self._known.get(key)
        if known is not None and known >= seen:
            return False
        self._known[key] = seen
        return True


class ZoneLog:
    """Notes what a connection tells about zones. `newest` is what the connections before it have told."""

    def __init__(self, racks: Racks, newest: Newest) -> None:
        self._racks, self._newest = racks, newest
        self._nodes: list[NodesSeen] = []
        self._replicas: list[ReplicasSeen] = []
        self._reads: dict[tuple[FetchClass, bytes, bool], dict[int, int]] = {}
        self._ends: dict[tuple[bytes, bool], _LogEnds] = defaultdict(_LogEnds)
        self._rack = ""
        self.takes_fetches = bool(racks.clients)
        """Whether fetches have to be added. Otherwise they tell nothing."""

    def add(self, exchange: Exchange) -> None:
        if exchange.api_key not in TELLS or not exchange.response or exchange.response_missing:
            return
        frame, time = b"".join(exchange.response), exchange.response_time
        moves = bool(self._racks.clients) and exchange.api_key == ApiKey.METADATA
        found = read_cluster(exchange.api_key, exchange.api_version, frame, partitions=moves)
        if found is None:
            return
        if self._newest.is_new((found.cluster_id, found.nodes), (time,)):
            self._nodes.append(NodesSeen(time, found.cluster_id, found.nodes))
        for topic, replicas in found.topics.items():
            if self._newest.is_new((found.cluster_id, topic), (time, replicas)):
                self._replicas.append(ReplicasSeen(time, found.cluster_id, topic, replicas))

    def add_fetch(self, outcome: Outcome) -> None:
        """Add a counted fetch. A fetch whose response has nothing new need not be added again."""
        request, response = outcome.request, outcome.response
        self._rack = self._rack or self._racks.of_client(host_of(outcome.exchange.client))
        if not self._rack:
            self.takes_fetches = False
            return
        if request is None or response is None:
            return
        ids = request.layout.topic_ids
        if response.walk.record_bytes:
            fetch_class = _class_of(request)
            for entry in response.walk.entries:
                if entry.records:
                    key = fetch_class, entry.key, ids
                    partitions = self._reads.get(key)
                    if partitions is None:
                        partitions = self._reads[key] = {}
                    partitions[entry.partition] = partitions.get(entry.partition, 0) + entry.records
        self._add_ends(response, ids=ids)

    def seen(self, end: ConnectionEnd) -> ZonesSeen | None:
        rack = self._racks.of_client(host_of(end.client)) if end.client else ""
        if not rack and not self._nodes and not self._replicas:
            return None
        reads = [
            RecordsRead(*_topic(key, ids=ids), _known(fetch_class, end), partitions)
            for (fetch_class, key, ids), partitions in self._reads.items()
        ]
        ends = [LogEnds(*_topic(key, ids=ids), *found.columns()) for (key, ids), found in self._ends.items()]
        return ZonesSeen(
            client_rack=rack, nodes=self._nodes, replicas=self._replicas, reads=reads, log_ends=ends
        )

    def _add_ends(self, response: CapturedResponse, *, ids: bool) -> None:
        for run in response.walk.runs:
            fields = run.entries.view(response.layout.response_fields)
            self._ends[run.key, ids].note(fields["partition"], fields["high_watermark"])
        for entry in response.walk.entries:
            if not entry.error_code:
                high = int.from_bytes(entry.fixed[HIGH_WATERMARK], signed=True)
                self._ends[entry.key, ids].note_one(entry.partition, high)


class _LogEnds:
    """The lowest and the highest high watermark of a topic's partitions."""

    __slots__ = ("_highest", "_lowest")

    def __init__(self) -> None:
        self._lowest: _Ends = np.zeros(0, np.int64)
        self._highest: _Ends = np.zeros(0, np.int64)

    def note(self, partitions: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        """Note the high watermarks of some partitions. None is there twice."""
        partitions = partitions.astype(np.int64)
        known = (partitions < _MOST_PARTITIONS) & (ends >= 0)
        if not known.all():
            partitions, ends = partitions[known], ends[known]
        if not len(partitions):
            return
        self._reach(int(partitions.max()))
        self._lowest[partitions] = np.minimum(self._lowest[partitions], ends)
        self._highest[partitions] = np.maximum(self._highest[partitions], ends)

    def note_one(self, partition: int, end: int) -> None:
        if end >= 0 and 0 <= partition < _MOST_PARTITIONS:
            self._reach(partition)
            self._lowest[partition] = min(int(self._lowest[partition]), end)
            self._highest[partition] = max(int(self._highest[partition]), end)

    def columns(self) -> tuple[list[int], list[int], list[int]]:
        known = np.flatnonzero(self._highest >= 0)
        return known.tolist(), self._lowest[known].tolist(), self._highest[known].tolist()

    def _reach(self, partition: int) -> None:
        if (more := partition + 1 - len(self._lowest)) > 0:
            self._lowest = np.append(self._lowest, np.full(more, _UNSEEN))
            self._highest = np.append(self._highest, np.full(more, -1))


def _class_of(request: FetchRequest) -> FetchClass:
    version = request.layout.version
    if request.unsupported_reason == Reason.NOT_A_CONSUMER:
        return FetchClass.NO_CONSUMER
    if version < _RACKED:
        return FetchClass.V10 if version == _RACKED - 1 else FetchClass.BELOW_V10
    rack = request.frame[request.tail : request.tail + (1 if request.layout.flexible else 2)]
    if rack != (b"\1" if request.layout.flexible else b"\0\0"):
        return FetchClass.OWN_RACK
    sessionless = request.session_id == 0 and request.session_epoch < 0
    if version == _RACKED and sessionless and (listing := request.listing) is not None:
        epochs = listing.entries.view(listing.layout.request_fields)["epoch"]
        if (epochs < 0).all():
            return FetchClass.NAMELESS
    return FetchClass.RACKED


def _known(fetch_class: FetchClass, end: ConnectionEnd) -> FetchClass:
    # A client tells its software when it connects. If that was not captured, it may have told it.
    told = end.software or not end.syn_seen
    return FetchClass.RACKED if fetch_class is FetchClass.NAMELESS and told else fetch_class


def _topic(key: bytes, *, ids: bool) -> tuple[str | None, bytes | None]:
    return (None, key) if ids else (key.decode(errors="replace"), None)
