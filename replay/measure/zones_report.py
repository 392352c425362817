"""Makes the report on zones from the collected sums. Sans-IO."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Final, Literal, TypeAlias

from replay.measure.racks import Racks, endpoint, host_of
from replay.measure.zones import NodeAt, ZoneBytes, ZoneSums
from replay.report.zones_model import (
    ByZone,
    ZonedBroker,
    ZonedBytes,
    ZonedClient,
    ZonedClients,
    ZonedFetches,
    ZonedTopic,
    ZonePair,
    ZonesReport,
)

Zone: TypeAlias = Literal["same", "other", "unknown"]
_KINDS: Final = ("record_bytes", "listing_bytes", "produce_bytes", "other_bytes")


class Places:
    """Knows the racks of brokers.

    The racks that the user names by node id count first, then those named by address, then those of the
    newest captured response.

    Args:
        racks: the racks that the user names.
        nodes: the newest description of each broker.
    """

    def __init__(self, racks: Racks, nodes: Iterable[NodeAt]) -> None:
        self._racks = racks
        self._nodes: dict[str, NodeAt] = {}
        """The brokers by the address that they advertise."""
        for node in sorted(nodes):
            if address := endpoint(node.host, node.port):
                self._nodes[address] = node
        self.rack = cache(self._rack)

    @property
    def addresses(self) -> Collection[str]:
        """The addresses that brokers advertise."""
        return self._nodes

    def node_id(self, address: str) -> int | None:
        """Return the node id of the broker at this address. None if it is not known."""
        node = self._nodes.get(address)
        return node.node_id if node is not None else None

    def zone(self, client: str, broker: str) -> Zone:
        """Return whether a client and the broker at this address are in the same zone."""
        rack = self.rack(broker)
        if not client or not rack:
            return "unknown"
        return "same" if client == rack else "other"

    def of_node(self, node: NodeAt) -> str:
        """Return the rack of a broker, "" if it is not known."""
        address = endpoint(node.host, node.port)
        named = self._racks.of_node(node.node_id) or (
            self._racks.of_broker(host_of(address)) if address else ""
        )
        return named or node.rack

    def _rack(self, address: str) -> str:
        node = self._nodes.get(address)
        if node is not None:
            return self.of_node(node)
        return self._racks.of_broker(host_of(address)) if address else ""


def zones_report(
    sums: ZoneSums,
    racks: Racks,
    clients: Collection[str],
    topic_name: Callable[[str, str], str],
) -> ZonesReport | None:
    """Return the report on zones. None if no rack is known.

    Args:
        sums: the collected sums.
        racks: the racks that the user names.
        clients: the chosen client ids. Empty for all.
        topic_name: returns the name of a topic.
    """
    if not racks and not any(node.rack for node in sums.nodes.values()):
        return None
    places = Places(racks, sums.nodes.values())
    chosen = {key: one for key, one in sums.clients.items() if not clients or key[2] in clients}
    by_client: defaultdict[tuple[str, str], ZonedBytes] = defaultdict(_no_bytes)
    totals = _no_bytes()
    for (zone, broker, *client), one in chosen.items():
        for into in (totals, by_client[client[0], client[1]]):
            _add(into, places.zone(zone, broker), one)
    return ZonesReport(
        brokers=_brokers(places, {broker for _, broker, _, _ in sums.clients}),
        clients=[
            ZonedClients(rack=zone or None, connections=count)
            for zone, count in sorted(sums.connections.items())
            if count
        ],
        **totals,
        by_client=sorted(
            (
                ZonedClient(client_id=client_id, software=software, **found)
                for (client_id, software), found in by_client.items()
            ),
            key=lambda row: (-_crossing(row), row["client_id"], row["software"]),
        ),
        by_topic=_by_topic(sums, places, totals, topic_name),
        pairs=_pairs(chosen, places),
    )


def _no_zones() -> ByZone:
    return ByZone(same=0, other=0, unknown=0)


def _no_fetches() -> ZonedFetches:
    return ZonedFetches(record_bytes=_no_zones(), listing_bytes=_no_zones())


def _no_bytes() -> ZonedBytes:
    return ZonedBytes(**_no_fetches(), produce_bytes=_no_zones(), other_bytes=_no_zones())


def _add(into: ZonedBytes, zone: Zone, one: ZoneBytes) -> None:
    into["record_bytes"][zone] += one.record_bytes
    into["listing_bytes"][zone] += one.fetch_requests + one.fetch_responses - one.record_bytes
    into["produce_bytes"][zone] += one.produce_requests + one.produce_responses
    into["other_bytes"][zone] += one.other_requests + one.other_responses


def _crossing(row: ZonedBytes) -> int:
    return sum(row[kind]["other"] for kind in _KINDS)


def _brokers(places: Places, captured: Collection[str]) -> list[ZonedBroker]:
    return [
        ZonedBroker(broker=address, node_id=places.node_id(address), rack=places.rack(address) or None)
        for address in sorted({*captured, *places.addresses} - {""})
    ]


def _by_topic(
    sums: ZoneSums, places: Places, totals: ZonedBytes, topic_name: Callable[[str, str], str]
) -> list[ZonedTopic]:
    """Return a row for each topic, and one for the bytes of fetches that belong to no topic."""
    topics: defaultdict[str, ZonedFetches] = defaultdict(_no_fetches)
    rest = ZonedTopic(
        topic=None,
        record_bytes={**totals["record_bytes"]},
        listing_bytes={**totals["listing_bytes"]},
    )
    for (zone, broker, kind, text), one in sums.topics.items():
        where = places.zone(zone, broker)
        row = topics[topic_name(kind, text)]
        for name, count in (("record_bytes", one.record_bytes), ("listing_bytes", one.listing_bytes)):
            row[name][where] += count  # type: ignore[literal-required]  # keys of ZonedFetches
            rest[name][where] -= count  # type: ignore[literal-required]  # the same
    rows = [ZonedTopic(topic=name, **found) for name, found in topics.items()]
    rows.sort(key=lambda row: (-row["record_bytes"]["other"], row["topic"]))
    return [*rows, rest]


def _pairs(chosen: dict[tuple[str, str, str, str], ZoneBytes], places: Places) -> list[ZonePair]:
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (client, broker, _, _), one in chosen.items():
        rack = places.rack(broker)
        found[client, rack] += one.requests
        found[rack, client] += one.responses
    order = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    return [
        ZonePair({"from": begin or None, "to": end or None, "bytes": count})
        for (begin, end), count in order
        if count
    ]
