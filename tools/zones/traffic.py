"""The fetches of each client, from the gateway's own capture."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.protocol.api import ApiKey
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from proxy.protocol.primitives import ProtocolError
from replay.capture.files.sources import expand, whole
from replay.capture.kafka.exchange import Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.kafka.pairing import Keep
from replay.capture.packets.segments import read
from replay.capture.packets.tcp import Filter

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetch of a client, and the response that it got."""

    at: float
    node_id: int | None
    """The broker. None if the client asked the bootstrap."""
    record_bytes: int
    out_of_range: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The fetches of one client."""

    fetches: tuple[Fetched, ...] = ()

    def share(self, node_id: int, begins: float, ends: float) -> float | None:
        """Return the share of record bytes that came from a broker in a time. None if there were none."""
        found: Counter[bool] = Counter()
        for each in self.fetches:
            if begins <= each.at < ends:
                found[each.node_id == node_id] += each.record_bytes
        return found[True] / found.total() if found.total() else None

    @property
    def out_of_range(self) -> int:
        """The number of OFFSET_OUT_OF_RANGE that the client got."""
        return sum(each.out_of_range for each in self.fetches)

    @property
    def busiest(self) -> int:
        """The number of fetches without records in the second that has most of them."""
        return _most(int(each.at) for each in self.fetches if not each.record_bytes)

    def in_vain(self, node_id: int) -> int:
        """Return the same for fetches that went to a broker."""
        return _most(
            int(each.at) for each in self.fetches if not each.record_bytes and each.node_id == node_id
        )


def _most(seconds: Iterable[int]) -> int:
    return max(Counter(seconds).values(), default=0)


def traffic(folder: Path, nodes: Mapping[int, int | None]) -> dict[str, Traffic]:
    """Return the fetches in a capture by client id. `nodes` has the broker of each port."""
    found: dict[str, list[Fetched]] = defaultdict(list)
    for exchange in _fetches(folder, frozenset(nodes)):
        port = int(exchange.broker.rpartition(":")[2])
        found[exchange.client_id].append(_fetched(exchange, nodes.get(port)))
    return {client_id: Traffic(fetches=tuple(fetches)) for client_id, fetches in found.items()}


def _fetches(folder: Path, ports: frozenset[int]) -> Iterator[Exchange]:
    connections = Connections(ports=ports, keep=Keep(responses=frozenset({ApiKey.FETCH})))
    for event in connections.read(read(whole(expand([str(folder)])), Filter(ports=ports))):
        if isinstance(event, Exchange) and event.api_key == ApiKey.FETCH:
            yield event


def _fetched(exchange: Exchange, node_id: int | None) -> Fetched:
    at = exchange.request_time / _SECOND
    layout = LAYOUTS.get(exchange.api_version)
    if layout is None or not exchange.response:
        return Fetched(at, node_id, 0, 0)
    walk = FetchResponseWalk(layout, 0, keep=False)
    try:
        for piece in exchange.response:
            walk.feed(bytes(piece))
    except ProtocolError:
        return Fetched(at, node_id, 0, 0)
    return Fetched(at, node_id, walk.record_bytes, len(walk.errors))
