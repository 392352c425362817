"""Turns SEGMENTS rows into exchanges, for one connection or for all connections of a capture."""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, Final, TypeAlias

import pyarrow as pa

from replay.capture.kafka.connection import CapturedConnection
from replay.capture.kafka.exchange import READ, ConnectionEnd, Exchange
from replay.capture.kafka.pairing import Keep
from replay.capture.kafka.pairs import LEAST, WORTH, Pairs, Stretches
from replay.capture.packets.segments import bytes_of, endpoints
from replay.capture.tls.keylog import Secrets

__all__ = [
    "BulkEvent",
    "ConnectionEnd",
    "Connections",
    "Event",
    "Exchange",
    "Pairs",
    "read_exchanges",
    "read_in_bulk",
]

Event: TypeAlias = Exchange | ConnectionEnd
BulkEvent: TypeAlias = Event | Pairs

_COLUMNS: Final = ("from_low", "time", "end_time", "sequence", "ack", "flags", "missing", "packets")


def read_exchanges(
    batches: Iterable[pa.RecordBatch],
    *,
    ports: frozenset[int] = frozenset(),
    keep_requests: bool = False,
    responses: frozenset[int] = READ,
    groups: bool = False,
    uses: int = 0,
    secrets: Secrets | None = None,
) -> Iterator[Event]:
    """Read the exchanges of one connection (or of several, whose rows may interleave).

    Args:
        batches: SEGMENTS rows. The rows of a connection are in capture order.
        ports: the ports of brokers. If empty, Kafka is recognised by its bytes alone.
        keep_requests: whether to keep the frames of all requests. If False, only requests with an API key in
            `READ` are kept.
        responses: the API keys whose response frames are kept. Metadata responses are always kept.
        groups: whether to set the consumer group of each exchange.
        uses: the number of earlier connections between the same ports.
        secrets: the TLS secrets for decrypting connections.

    Yields:
        The exchanges of each connection in the order of their requests, each as soon as it is complete. The
            last event of a connection is its ConnectionEnd.
    """
    connections = Connections(
        ports=ports,
        keep_requests=keep_requests,
        responses=responses,
        groups=groups,
        uses=uses,
        secrets=secrets,
    )
    for batch in batches:
        yield from connections.feed(batch)
    yield from connections.end()


def read_in_bulk(
    batches: Iterable[pa.RecordBatch],
    *,
    ports: frozenset[int] = frozenset(),
    responses: frozenset[int] = READ,
    groups: bool = False,
    uses: int = 0,
    secrets: Secrets | None = None,
) -> Iterator[BulkEvent]:
    """Like `read_exchanges`, but yield `Pairs` in place of exchanges that were found in columns."""
    connections = Connections(ports=ports, responses=responses, groups=groups, uses=uses, secrets=secrets)
    for batch in batches:
        yield from connections.feed_in_bulk(batch)
    yield from connections.end()


class Connections:
    """The connections of a capture. The requests in flight of each connection are buffered.

    Args:
        ports: see `read_exchanges`.
        keep_requests: see `read_exchanges`.
        responses: see `read_exchanges`.
        groups: see `read_exchanges`.
        uses: see `read_exchanges`.
        secrets: see `read_exchanges`.
    """

    def __init__(
        self,
        *,
        ports: frozenset[int] = frozenset(),
        keep_requests: bool = False,
        responses: frozenset[int] = READ,
        groups: bool = False,
        uses: int = 0,
        secrets: Secrets | None = None,
    ) -> None:
        self._secrets = secrets
        self._ports = ports
        self._keep = Keep(requests=keep_requests, responses=responses, groups=groups)
        self._open: dict[bytes, CapturedConnection] = {}
        self._uses: dict[bytes, int] = {}
        self._before = uses

    def feed(self, batch: pa.RecordBatch) -> Iterator[Event]:
        """Read the next rows of connections, and yield their events. Rows with FileCounts are skipped."""
        for key, payload, *row in _rows(batch):
            if key:
                yield from self._add(key, payload, row)

    def feed_in_bulk(self, batch: pa.RecordBatch) -> Iterator[BulkEvent]:
        """Like `feed`, but return exchanges that were found in columns as `Pairs`."""
        if batch.num_rows < WORTH:
            yield from self.feed(batch)
            return
        found = Stretches(batch)
        rows = enumerate(_rows(batch))
        retry = 0
        for at, (key, payload, *row) in rows:
            if not key:
                continue
            if found.lengths[at] and at >= retry:
                taken = self._open[key].take(found, at) if key in self._open else None
                if taken is not None:
                    pairs, count = taken
                    yield pairs
                    next(islice(rows, count - 1, count - 1), None)
                    continue
                retry = at + 2 * LEAST
            yield from self._add(key, payload, row)

    def _add(self, key: bytes, payload: memoryview, row: list[Any]) -> list[Event]:
        connection = self._open.get(key) or self._start(key)
        if connection.row(payload, *row):
            return [*connection.drain()]
        ended = self._finish(connection)
        connection = self._start(key)
        connection.row(payload, *row)
        return [*ended, *connection.drain()]

    def end(self) -> Iterator[Event]:
        """End all connections."""
        for connection in self._open.values():
            yield from self._finish(connection)
        self._open.clear()

    def _start(self, key: bytes) -> CapturedConnection:
        low, high = endpoints(key)
        number = self._uses.get(key, self._before)
        self._uses[key] = number + 1
        started = CapturedConnection(
            low, high, number, ports=self._ports, keep=self._keep, secrets=self._secrets
        )
        self._open[key] = started
        return started

    @staticmethod
    def _finish(connection: CapturedConnection) -> list[Event]:
        exchanges, end = connection.finish()
        return [*exchanges, end]


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the connection of each row, its payload, and the other arguments of `CapturedConnection.row`."""
    columns = (batch.column(name).to_numpy(zero_copy_only=False).tolist() for name in _COLUMNS)
    return zip(batch.column("connection").to_pylist(), payloads(batch), *columns, strict=True)


def payloads(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Return each row's payload, as a view of the batch's memory."""
    view, edges = bytes_of(batch.column("payload"))
    return (view[start:stop] for start, stop in pairwise(edges.tolist()))
