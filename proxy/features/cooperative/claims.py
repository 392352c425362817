"""The declared key ranges of connected clients. Two clients of a group must never get the same records.

A client claims its ranges of a partition with its first fetch of the partition after its group is known. If
two clients want the same hash, the first one keeps it. The claim ends when the client's last connection is
closed. Until then the client may process records, even if it fetches nothing.

A client is identified by host and client.id. If it reconnects, it is the same client.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from proxy.features.cooperative.declared import shown
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import KeyRanges, overlap

Client: TypeAlias = tuple[str, bytes]
"""The client's host, and its client.id with the suffix that declares ranges."""


def shown_client(client: Client) -> str:
    """Return a client for a message."""
    return f"{shown(client[1])} at {client[0]}"


class Overlap(NamedTuple):
    """Two clients declare the same hash. The second client is refused, and `holder` keeps it."""

    holder: Client
    place: TopicPartition


class Claims:
    """The key ranges that connected clients have declared, by group and partition."""

    __slots__ = ("_by_client", "_by_place", "_connections")

    def __init__(self) -> None:
        self._connections = Counter[Client]()
        self._by_place: dict[tuple[bytes, TopicPartition], dict[Client, KeyRanges]] = {}
        self._by_client: dict[Client, set[tuple[bytes, TopicPartition]]] = {}

    def __repr__(self) -> str:
        return f"<Claims clients={len(self._by_client)} partitions={len(self._by_place)}>"

    def connected(self, client: Client) -> bool:
        return client in self._connections

    def opened(self, client: Client) -> None:
        self._connections[client] += 1

    def closed(self, client: Client) -> None:
        """Record that a connection of a client is closed. After the last one, the client has no claims."""
        self._connections[client] -= 1
        if self._connections[client] > 0:
            return
        del self._connections[client]
        for key in self._by_client.pop(client, ()):
            del self._by_place[key][client]
            if not self._by_place[key]:
                del self._by_place[key]

    def overlap(
        self, client: Client, group: bytes, lanes: Iterable[tuple[TopicPartition, KeyRanges]]
    ) -> Overlap | None:
        """Return the first conflict of a client's ranges with the claims of other clients, or None."""
        mine = self._by_client.get(client, ())
        for place, ranges in lanes:
            if (group, place) in mine:
                continue
            for other, theirs in self._by_place.get((group, place), {}).items():
                if other != client and overlap(ranges, theirs):
                    return Overlap(other, place)
        return None

    def claim(self, client: Client, group: bytes, lanes: Iterable[tuple[TopicPartition, KeyRanges]]) -> None:
        """Claim ranges for a client. The caller must have checked that `overlap` returns None."""
        mine = self._by_client.setdefault(client, set())
        for place, ranges in lanes:
            if (key := (group, place)) not in mine:
                mine.add(key)
                self._by_place.setdefault(key, {})[client] = ranges
