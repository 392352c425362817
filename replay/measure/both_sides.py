"""Finds connections that a capture has on both sides of a gateway: their fetches count twice. Sans-IO.

A gateway forwards a request with the client's own correlation id, in the order in which it came. So of one
client's connection and the gateway's own connection for it,

- the exchanges have the same client id, API key, version and correlation id, and
- each exchange to the broker happens within the one of the client: it is asked later and answered earlier.

Two consumers with the same client id have the same correlation ids too, and may start together. But of two
independent ones, neither asks first *and* is answered last every time.

Of each connection a few exchanges are kept, chosen by a hash of what is the same on both sides. So both sides
choose the same ones, wherever the capture began.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from replay.capture.kafka.exchange import Exchange

SAMPLED: Final = 12
"""Exchanges that are kept of each connection."""
MOST: Final = 2_000
"""Connections that are compared: those of most exchanges. Both sides of a gateway have the same number."""
_LEAST: Final = 8
"""Two connections with fewer exchanges in common are not compared."""
_WITHIN: Final = 0.8
"""This part of them has to happen within those of the other side. Not all: requests and responses that share
a run of segments have the times of the run."""


class Kept(NamedTuple):
    """An exchange of a sample."""

    api_key: int
    api_version: int
    correlation_id: int
    request_time: int
    """In ns since 1970, as `response_time`."""
    response_time: int


class Sample:
    """Some exchanges of one connection."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}
        self._worst = -1
        self.exchanges = 0
        """Those that were added, with request and response."""

    def add(self, exchange: Exchange) -> None:
        """Keep an exchange, if it is one of those to keep."""
        if not (exchange.request_time and exchange.response_time):
            return
        self.exchanges += 1
        rank = _rank(exchange)
        if len(self._kept) >= SAMPLED:
            if rank >= self._worst:
                return
            del self._kept[self._worst]
        self._kept[rank] = Kept(
            exchange.api_key,
            exchange.api_version,
            exchange.correlation_id,
            exchange.request_time,
            exchange.response_time,
        )
        self._worst = max(self._kept)

    def values(self) -> list[Kept]:
        """Return what was kept, or nothing if it is too little to compare."""
        return list(self._kept.values()) if len(self._kept) >= _LEAST else []


def _rank(exchange: Exchange) -> int:
    """Return a number that looks random and is the same on both sides. Correlation ids count up."""
    mixed = (exchange.correlation_id << 8 | exchange.api_key) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A connection and its sample."""

    connection: str
    client_id: str
    exchanges: int
    kept: list[Kept]


def busiest(connections: Iterable[Sampled]) -> list[Sampled]:
    """Return the connections of most exchanges, at most `MOST`. Parts of them may be chosen before."""
    return heapq.nlargest(MOST, connections, key=lambda one: (one.exchanges, one.connection))


def pairs(connections: Iterable[Sampled]) -> list[tuple[str, str]]:
    """Find connections of clients to a gateway, each with the gateway's connection to the broker.

    Args:
        connections: those of the capture, in any order.

    Returns:
        names of connections, in order. Each connection to a broker is in one pair at most.
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


def _nested(exchanges: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield which exchange happens within which other one. They are in the order of their requests."""
    for place, (_, answered, outer) in enumerate(exchanges):
        for asked, inner_answered, inner in exchanges[place + 1 :]:
            if asked > -answered:
                break
            if -inner_answered <= -answered and outer != inner:
                yield outer, inner
