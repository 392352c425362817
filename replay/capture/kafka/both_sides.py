"""Finds connections that were captured twice: on both sides of a gateway, or before and after NAT. Sans-IO.

A gateway forwards requests in order, with the client's correlation ids. So exchanges on both sides have the
same client id, API key, version and correlation id. Each exchange with the broker lies within the client's
exchange: its request is later, its response earlier. Two consumers may use the same ids, but are independent:
the exchanges of one do not all lie within those of the other.

The two sides of NAT are copies of one TCP connection with the same client's port, and only one has to be
counted. A gateway's own connection has another port.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.protocol.api import ApiKey
from replay.capture.kafka.exchange import Exchange

SAMPLED: Final = 12
"""How many exchanges of each connection are kept."""
MOST: Final = 2_000
"""How many connections are compared: those with the most exchanges. Both sides of a gateway have the same
number."""
_LEAST: Final = 8
"""At least this many of one side's kept exchanges must lie within exchanges of the other side. A connection
with fewer kept exchanges is not compared."""
_SHORTEST: Final = 1_000
"""In ns. No gateway forwards a request and its response in less: such times only tell the order."""
_WITHIN: Final = 0.8
"""The share of the kept exchanges common to both sides that must lie within each other. It is below 1,
because all requests and responses in one run of segments have the same times."""


class SampledExchange(NamedTuple):
    """One exchange (a request and its response) in the sample of a connection."""

    api_key: int
    api_version: int
    correlation_id: int
    request_time: int
    """In ns since 1970."""
    response_time: int
    """In ns since 1970."""


class Sample:
    """Collects a few exchanges of one connection.

    A hash of two common fields chooses them. So the same ones are kept on both sides, wherever the capture
    begins.
    """

    def __init__(self) -> None:
        self._kept: dict[int, SampledExchange] = {}
        self._worst = -1
        """The highest hash of those that are kept, once there are `SAMPLED` of them."""
        self.exchanges = 0
        """How many complete exchanges, with request and response, were added."""

    def add(self, exchange: Exchange) -> None:
        if not (exchange.request_time and exchange.response_time):
            return
        self.exchanges += 1
        rank = _rank(exchange.correlation_id, exchange.api_key)
        if len(self._kept) >= SAMPLED:
            if rank >= self._worst:
                return
            del self._kept[self._worst]
        self._kept[rank] = SampledExchange(
            exchange.api_key,
            exchange.api_version,
            exchange.correlation_id,
            exchange.request_time,
            exchange.response_time,
        )
        if len(self._kept) >= SAMPLED:
            self._worst = max(self._kept)

    def values(self) -> list[SampledExchange]:
        """Return the kept exchanges, or an empty list if there are too few to compare."""
        return list(self._kept.values()) if len(self._kept) >= _LEAST else []


def _rank(correlation_id: int, api_key: int) -> int:
    mixed = (correlation_id << 8 | api_key) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A captured connection with a sample of its exchanges."""

    connection: str
    client_id: str
    exchanges: int
    kept: list[SampledExchange]


class GatewaySides:
    """Finds the gateways of which both sides were captured, from all exchanges of a capture."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[str, str, Sample]] = {}
        self.fetched: set[str] = set()
        """The addresses of brokers that got fetches."""

    def add(self, exchange: Exchange) -> None:
        known = self._samples.get(exchange.connection)
        if known is None:
            known = self._samples[exchange.connection] = exchange.broker, exchange.client_id, Sample()
        known[2].add(exchange)
        if exchange.api_key == ApiKey.FETCH:
            self.fetched.add(exchange.broker)

    def found(self) -> dict[tuple[str, str], int]:
        """Return how many connections a gateway has, by the addresses of its clients' and brokers' side."""
        return Counter(
            (self._samples[outer][0], self._samples[inner][0])
            for outer, inner in self._pairs()
            if not are_copies(outer, inner)
        )

    def copies(self) -> set[str]:
        """Return the connections that are copies of other ones, after NAT."""
        return {inner for outer, inner in self._pairs() if are_copies(outer, inner)}

    def _pairs(self) -> list[tuple[str, str]]:
        sampled = (
            Sampled(connection=name, client_id=client_id, exchanges=sample.exchanges, kept=sample.values())
            for name, (_, client_id, sample) in self._samples.items()
        )
        return pairs(busiest(one for one in sampled if one.kept))


def busiest(connections: Iterable[Sampled]) -> list[Sampled]:
    """Return the `MOST` connections with the most exchanges.

    Parts of them can be processed separately: `busiest` of all parts' joined results is the same.
    """
    return heapq.nlargest(MOST, connections, key=lambda one: (one.exchanges, one.connection))


def pairs(connections: Iterable[Sampled]) -> list[tuple[str, str]]:
    """Find the two connections on both sides of a gateway: the client's, and the gateway's own to the broker.

    Returns:
        Sorted pairs of names: the client's connection, then the gateway's, which is in at most one pair.
    """
    sampled = sorted(connections, key=lambda one: one.connection)
    alike: dict[tuple[str, int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for place, one in enumerate(sampled):
        for api_key, version, correlation_id, asked, answered in one.kept:
            alike[one.client_id, api_key, version, correlation_id].append((asked, -answered, place))
    within: Counter[tuple[int, int]] = Counter()
    for exchanges in alike.values():
        within.update(_nested(sorted(exchanges)))
    found: dict[int, tuple[int, int]] = {}
    for (outer, inner), count in sorted(within.items()):
        common = len({kept[:3] for kept in sampled[outer].kept} & {kept[:3] for kept in sampled[inner].kept})
        if count >= max(_LEAST, _WITHIN * common) and count > found.get(inner, (0, 0))[0]:
            found[inner] = count, outer
    return sorted(
        (sampled[outer].connection, sampled[inner].connection) for inner, (_, outer) in found.items()
    )


def are_copies(outer: str, inner: str) -> bool:
    """Return whether two connections of `pairs`, by their names, are one connection before and after NAT."""
    return _client_port(outer) == _client_port(inner)


def _client_port(connection: str) -> str:
    return connection.partition(" > ")[0].rpartition(":")[2]


def _nested(exchanges: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield a pair of connections for each two exchanges of which the second lies within the first.

    An exchange has the time of its request, the negative time of its response, and the place of its
    connection. `exchanges` is ordered by the time of the request.
    """
    for place, (began, answered, outer) in enumerate(exchanges):
        if -answered - began < _SHORTEST:
            continue
        for asked, inner_answered, inner in exchanges[place + 1 :]:
            if asked > -answered:
                break
            if -inner_answered <= -answered and outer != inner:
                yield outer, inner
