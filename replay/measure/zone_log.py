"""Notes what one connection tells about zones. Sans-IO.

The brokers of a connection's Metadata and DescribeCluster responses have racks. They are those of all
connections of the cluster, so they are put together only in `zones`.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.racks import Racks, host_of
from replay.protocol.cluster import TELLS, Node, read_cluster


class NodesSeen(NamedTuple):
    """The brokers in a response."""

    time: int
    """When the response came, in ns since 1970."""
    cluster: str
    """The cluster's id, "" if the response has none."""
    nodes: tuple[Node, ...]


@dataclass(slots=True, kw_only=True)
class ZonesSeen:
    """What one connection tells about zones."""

    client_rack: str = ""
    """The rack that --client-rack names for the client, or ""."""
    nodes: list[NodesSeen] = field(default_factory=list)


class Newest:
    """The times of what was seen newest.

    Connections see the same again and again. What is older than the same thing that was noted before changes
    nothing, so it is not noted once more.
    """

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}

    def is_new(self, seen: Hashable, time: int) -> bool:
        """Return whether something was not seen before, or only earlier."""
        if time <= self._times.get(seen, -1):
            return False
        self._times[seen] = time
        return True


class ZoneLog:
    """Notes what a connection tells about zones.

    Args:
        racks: the racks that the user names.
        newest: what the connections before it have told.
    """

    def __init__(self, racks: Racks, newest: Newest) -> None:
        self._racks, self._newest = racks, newest
        self._nodes: list[NodesSeen] = []

    def add(self, exchange: Exchange) -> None:
        """Add an exchange that is not a fetch."""
        if exchange.api_key not in TELLS or not exchange.response or exchange.response_missing:
            return
        frame, time = b"".join(exchange.response), exchange.response_time
        found = read_cluster(exchange.api_key, exchange.api_version, frame, partitions=False)
        if found is not None and self._newest.is_new((found.cluster_id, found.nodes), time):
            self._nodes.append(NodesSeen(time, found.cluster_id, found.nodes))

    def seen(self, end: ConnectionEnd) -> ZonesSeen | None:
        """Return what was noted. None if nothing was."""
        rack = self._racks.of_client(host_of(end.client)) if end.client else ""
        return ZonesSeen(client_rack=rack, nodes=self._nodes) if rack or self._nodes else None
