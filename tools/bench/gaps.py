"""Measures how long a client needs to turn to a new leader, from the bytes in a capture.

A gap begins with a response that says that the broker no longer leads a partition. The gap ends with the
first request for that partition to another broker.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from proxy.protocol.api import LENGTH_BYTES, RESPONSE_START_BYTES, ApiKey, ErrorCode, request_header
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_request import parse_fetch_request
from proxy.protocol.fetch_response import FetchResponseWalk
from replay.capture.files import sources
from replay.capture.kafka.exchange import READ, Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.packets import segments
from replay.capture.packets.tcp import Filter
from tools.kafka.raw import BodyReader

KINDS: Final[Mapping[ApiKey, frozenset[int]]] = {
    ApiKey.PRODUCE: frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER}),
    # A consumer that sends the epoch of the old leader is fenced (KIP-320).
    ApiKey.FETCH: frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}),
}
"""The APIs whose requests go to leaders. For each: the errors that say that a broker is no longer the
leader."""

_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_IDS: Final = 13
_SEGMENT: Final = 1 << 30

Place: TypeAlias = tuple[bytes, int]
"""A partition: the topic's name or id, as in this version of the request, and the partition's number."""


class _LeaderEvent(NamedTuple):
    """A request for partitions, or its response.

    Of two events with the same time, a response is sorted first.
    """

    time: int
    is_request: bool
    broker: str
    places: frozenset[Place]
    """The partitions of the request."""
    failed: frozenset[Place] = frozenset()
    """The partitions for which the response says that the broker is no longer the leader."""


def read(file: Path, ports: frozenset[int], client_ids: frozenset[str]) -> list[Exchange]:
    """Read the exchanges between some clients and the brokers.

    Args:
        file: a capture.
        ports: the ports of the brokers.
        client_ids: the ids of the clients.
    """
    connections = Connections(ports=ports, keep_requests=True, responses=READ | {ApiKey.PRODUCE})
    found: list[Exchange] = []
    for share in sources.plan(sources.expand([str(file)]), _SEGMENT):
        for batch in segments.read(share, Filter(ports=ports)):
            found += (event for event in connections.feed(batch) if isinstance(event, Exchange))
    found += (event for event in connections.end() if isinstance(event, Exchange))
    return [exchange for exchange in found if exchange.client_id in client_ids]


def gaps(exchanges: Iterable[Exchange], api_key: ApiKey) -> list[float]:
    """Return the gaps of one client in ms: the times from an error to the request at another broker.

    The gaps are in the order in which they ended. An error counts only if it comes from the broker that the
    client's latest request for this partition went to. After several errors, the gap begins at the first one.
    A gap does not count if the client never asks another broker, or if the old broker responds without an
    error again.

    Args:
        exchanges: all exchanges of the client, with all brokers.
        api_key: one of `KINDS`. Requests of other APIs do not count.
    """
    turned_to: dict[Place, str] = {}
    failed: dict[Place, int] = {}
    found: list[float] = []
    events = (event for one in exchanges if one.api_key == api_key for event in _events(one))
    for event in sorted(events, key=lambda event: (event.time, event.is_request)):
        if not event.is_request:
            for place in event.places | event.failed:
                if turned_to.get(place) != event.broker:
                    continue
                if place in event.failed:
                    failed.setdefault(place, event.time)
                else:
                    failed.pop(place, None)
            continue
        for place in event.places:
            if place in failed and turned_to[place] != event.broker:
                found.append((event.time - failed.pop(place)) / 1e6)
            turned_to[place] = event.broker
    return found


def _events(exchange: Exchange) -> Iterator[_LeaderEvent]:
    """Yield the request and the response of an exchange as events, if they were captured."""
    is_fetch = exchange.api_key == ApiKey.FETCH
    if not exchange.request or exchange.request_missing:
        return
    listed = frozenset(_fetched(exchange) if is_fetch else _produced(exchange))
    yield _LeaderEvent(exchange.request_time, True, exchange.broker, listed)
    if exchange.response and not exchange.response_missing:
        errors = _fetch_errors(exchange) if is_fetch else _produce_errors(exchange)
        wanted = KINDS[ApiKey(exchange.api_key)]
        failed = frozenset(place for place, error in errors if error in wanted)
        yield _LeaderEvent(exchange.response_time, False, exchange.broker, listed, failed)


def _fetched(exchange: Exchange) -> Iterator[Place]:
    """Yield the partitions that a fetch lists.

    In a session these are new partitions, and partitions with a changed offset.
    """
    body = request_header(exchange.request, LENGTH_BYTES)[-1]
    listing = parse_fetch_request(exchange.request, exchange.api_version, body).listing
    if listing is None:
        return
    keys = (key for key, count in zip(listing.keys, listing.counts, strict=True) for _ in range(count))
    partitions = listing.entries.view(listing.layout.request_fields)["partition"].tolist()
    yield from zip(keys, partitions, strict=True)


def _fetch_errors(exchange: Exchange) -> Iterator[tuple[Place, int]]:
    # The isolation level only decides how an entry without changes ends, and an error is no such entry.
    walk = FetchResponseWalk(LAYOUTS[exchange.api_version], 0, keep=True)
    walk.feed(b"".join(exchange.response))
    for entry in walk.entries:
        yield (entry.key, entry.partition), entry.error_code


def _produced(exchange: Exchange) -> Iterator[Place]:
    """Yield the partitions of a produce request, v3 to v13."""
    body = _Body(exchange.request, request_header(exchange.request, LENGTH_BYTES)[-1], exchange.api_version)
    body.text()  # transactional_id
    body.reader.read(2 + 4)  # acks, timeout_ms
    for _ in range(body.count()):
        key = body.key()
        for _ in range(body.count()):
            yield (key, body.reader.int32())
            body.blob()
            body.tags()
        body.tags()


def _produce_errors(exchange: Exchange) -> Iterator[tuple[Place, int]]:
    """Yield the partitions of a produce response, v5 to v13, with their errors."""
    body = _Body(b"".join(exchange.response), RESPONSE_START_BYTES, exchange.api_version)
    body.tags()
    for _ in range(body.count()):
        key = body.key()
        for _ in range(body.count()):
            yield (key, body.reader.int32()), body.reader.int16()
            body.reader.read(8 + 8 + 8)  # base_offset, log_append_time_ms, log_start_offset
            if exchange.api_version >= 8:
                for _ in range(body.count()):
                    body.reader.int32()
                    body.text()
                    body.tags()
                body.text()
            body.tags()
        body.tags()


class _Body:
    """The body of a Produce message. Its version decides the form of lengths, and whether there are tags.

    Args:
        frame: the message, beginning with its length field.
        at: the offset of the body.
        version: the version of the message.
    """

    def __init__(self, frame: bytes, at: int, version: int) -> None:
        self.reader = BodyReader(frame, at)
        self._flexible = version >= _FIRST_FLEXIBLE
        self._ids = version >= _FIRST_WITH_IDS

    def count(self) -> int:
        """Read the number of elements of an array; 0 for null."""
        return max(self.reader.uvarint() - 1 if self._flexible else self.reader.int32(), 0)

    def text(self) -> str | None:
        """Read a string."""
        return self.reader.compact_string() if self._flexible else self.reader.string()

    def key(self) -> bytes:
        """Read the name or id of a topic."""
        return self.reader.read(16) if self._ids else (self.text() or "").encode()

    def blob(self) -> None:
        """Skip bytes."""
        if self._flexible:
            self.reader.compact_blob()
        else:
            self.reader.blob()

    def tags(self) -> None:
        """Skip the tagged fields, if this version of the message has them."""
        if self._flexible:
            self.reader.tags()
