"""Knows the racks of brokers, when all connections are collected. Sans-IO."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from typing import Literal, TypeAlias

from replay.measure.racks import Racks, endpoint, host_of
from replay.measure.zones import NodeAt

Zone: TypeAlias = Literal["same", "other", "unknown"]


class Places:
    """Knows the racks of brokers.

    Those that the user names by node id count first, then those named by address, then those of the newest
    captured response: `nodes`, by cluster id and node id.
    """

    def __init__(self, racks: Racks, nodes: Mapping[tuple[str, int], NodeAt]) -> None:
        self._racks, self._nodes = racks, nodes
        self._at: defaultdict[str, list[tuple[NodeAt, str]]] = defaultdict(list)
        """The brokers with their clusters by the address that they advertise, the newest first."""
        for (cluster, _), node in nodes.items():
            if address := endpoint(node.host, node.port):
                self._at[address].append((node, cluster))
        for found in self._at.values():
            found.sort(reverse=True)
        self.rack = cache(self._rack)
        self.of_id = cache(self._of_id)

    @property
    def addresses(self) -> Collection[str]:
        """The addresses that brokers advertise."""
        return self._at

    def node_id(self, address: str) -> int | None:
        return self._at[address][0][0].node_id if address in self._at else None

    def clusters(self, address: str) -> list[str]:
        return [cluster for _, cluster in self._at[address]] if address in self._at else []

    def zone(self, client: str, broker: str) -> Zone:
        """Return whether a client of this rack and the broker at this address are in the same zone."""
        rack = self.rack(broker)
        if not client or not rack:
            return "unknown"
        return "same" if client == rack else "other"

    def _rack(self, address: str) -> str:
        """Return the rack of the broker at this address, "" if it is not known."""
        if address in self._at:
            return self._of_node(self._at[address][0][0])
        return self._racks.of_broker(host_of(address)) if address else ""

    def _of_id(self, cluster: str, node_id: int) -> str:
        node = self._nodes.get((cluster, node_id))
        return self._racks.of_node(node_id) if node is None else self._of_node(node)

    def _of_node(self, node: NodeAt) -> str:
        address = endpoint(node.host, node.port)
        by_address = self._racks.of_broker(host_of(address)) if address else ""
        return self._racks.of_node(node.node_id) or by_address or node.rack
