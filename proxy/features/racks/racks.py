"""The racks of brokers, and the zone of each: ``--rack``. Sans-IO.

A broker's rack (``broker.rack``) is in Metadata and DescribeCluster responses. Operators name racks by the
zones of their provider, so traffic between two racks crosses zones.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from proxy.protocol.api import RESPONSE_START_BYTES
from proxy.protocol.brokers import Broker, read_brokers

RETURNS: Final = {
    "closed": "the replica closed a connection",
    "overdue": "the replica is late",
    "unreachable": "the replica can't be reached",
    "out_of_range": "the replica responded with OFFSET_OUT_OF_RANGE",
    "refused": "the replica did not serve the partition",
    "isr": "the replica is not in sync any more",
    "offsets": "the leader of a partition could not be asked for offsets",
    "no_consumer": "the client produces, or sends other requests for leaders",
    "old_fetch": "followers do not answer the client's version of Fetch",
    "login": "the client has authenticated, and does not read yet",
}
"""The reasons for true Metadata, each with its meaning. After the first three, all clients get true Metadata
for the replica; after the next three, its client gets it for the partition."""


class Zone(StrEnum):
    """Where a broker is, seen from the gateway."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """The broker has no rack, or no response has named it yet."""


class BrokerRacks:
    """The racks of the brokers, as far as responses have named them. A process keeps them as long as it runs.

    A broker is known by its node id, and by the address in the response. Without a node id, the address
    decides: a transparent gateway may have clients of several clusters, which have the same node ids.
    """

    def __init__(self, rack: str) -> None:
        self.rack = rack
        self.by_node: dict[int, str] = {}
        """The rack of each broker by its node id, "" if it has none."""
        self.by_address: dict[tuple[str, int], Broker] = {}
        """The broker at each host and port that a response has named."""
        self._named: dict[tuple[str, int], tuple[str, int]] = {}
        """For an IP and port, the host and port that responses have."""
        self.changed: Callable[[Iterable[Broker]], None] = lambda _: None
        """Called with brokers that are new, or whose rack or address has changed."""
        self._learned: dict[tuple[int, int], bytes] = {}
        """By API key and version, the bytes of a response after its correlation id, up to the end of its
        brokers. Since that response, nothing else was learned."""

    def __repr__(self) -> str:
        return f"<BrokerRacks of {self.rack} {self.by_node}>"

    def knows(self, kind: tuple[int, int], frame: bytes) -> bool:
        """Return whether a response, or its beginning, has the brokers of the last one, in the same bytes.

        Most have. `kind` is the API key and version of the request.
        """
        learned = self._learned.get(kind)
        return learned is not None and frame.startswith(learned, RESPONSE_START_BYTES)

    def read(self, api_key: int, version: int, frame: bytes, at: int) -> None:
        """Note the brokers of a response, whose body is at `at`. It may end after the brokers.

        Raises:
            ProtocolError: as for `read_brokers`.
        """
        brokers, end = read_brokers(api_key, version, frame[at:])
        self.learn(brokers)
        self._learned[api_key, version] = frame[RESPONSE_START_BYTES : at + end]

    def learn(self, brokers: Iterable[Broker]) -> None:
        """Note the brokers of a response. The newest response wins."""
        new = [
            broker
            for broker in brokers
            if self.by_node.get(broker.node_id) != broker.rack
            or self.by_address.get((broker.host, broker.port)) != broker
        ]
        for broker in new:
            self.by_node[broker.node_id] = broker.rack
            self.by_address[broker.host, broker.port] = broker
        if new:
            self._learned.clear()
            self.changed(new)

    def found_at(self, ip: str, broker: Broker) -> None:
        """Note an IP of a broker whose responses have a host name."""
        self._named[ip, broker.port] = (broker.host, broker.port)

    def at(self, host: str, port: int) -> Broker | None:
        """Return the broker at an address. None if no response has named it."""
        return self.by_address.get(self._named.get((host, port), (host, port)))

    def is_here(self, node_id: int | None) -> bool:
        """Return whether a broker is known to be in the gateway's rack."""
        return node_id is not None and self.by_node.get(node_id) == self.rack

    def may_be_here(self, node_id: int | None) -> bool:
        """Return whether a broker is not known to be in another rack, or in none."""
        return node_id is not None and self.by_node.get(node_id, self.rack) == self.rack

    def zone(self, node_id: int) -> Zone:
        """Return the zone of a broker. It is never guessed."""
        return zone_of(self.by_node.get(node_id, ""), self.rack)

    def zone_at(self, host: str, port: int) -> Zone:
        """Return the zone of the broker at an address. It is never guessed."""
        broker = self.at(host, port)
        return zone_of(broker.rack if broker is not None else "", self.rack)


def zone_of(broker_rack: str, rack: str) -> Zone:
    """Return the zone of a broker, seen from a gateway in the rack `rack`. An unknown rack is ""."""
    if not broker_rack:
        return Zone.UNKNOWN
    return Zone.SAME if broker_rack == rack else Zone.OTHER
