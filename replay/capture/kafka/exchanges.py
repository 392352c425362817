"""Turns SEGMENTS rows into exchanges, for one connection or for all connections of a capture."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.capture.kafka.connection import CapturedConnection
from replay.capture.kafka.exchange import READ, ConnectionEnd, Exchange
from replay.capture.kafka.pairing import Keep
from replay.capture.kafka.pairs import LEAST, WORTH, Pairs, Stretches
from replay.capture.kafka.whole import WholeConnections
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

BEFORE: Final = -1
"""The `order` of a row that has the number of earlier connections between the same ports. This row comes
before all other rows of the connection."""
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
    secrets: Secrets | None = None,
    on_files: Callable[[pa.RecordBatch], None],
) -> Iterator[BulkEvent]:
    """Read the exchanges of many connections, in less time than with `read_exchanges`.

    Args:
        batches: SEGMENTS rows, sorted by connection, and then in capture order. Before the rows of a
            connection there may be one with the order `BEFORE`.
        ports: see `read_exchanges`.
        responses: see `read_exchanges`.
        groups: see `read_exchanges`.
        secrets: see `read_exchanges`.
        on_files: gets the rows that have FileCounts.

    Yields:
        The events of one connection after the other. They are those of `read_exchanges`, with `Pairs` in
            place of some exchanges.
    """
    connections: Connections | None = None
    known = b""
    keep = Keep(responses=responses, groups=groups)
    for run, following in pairwise(chain(_runs(batches, ports, keep), (None,))):
        assert run is not None  # noqa: S101 - for the types: only the last one is None
        if not run.key:
            on_files(run.rows.batch.slice(run.begin, run.end - run.begin))
            continue
        begin = run.begin
        if run.key != known:
            if connections is not None:
                yield from connections.end()
            connections, known = None, run.key
            if following is None or following.key != known:
                events = run.whole.read(run.number, known) if run.whole is not None else None
                if events is not None:
                    yield from events
                    continue
            uses = earlier_uses(run.rows.batch, begin)
            begin += uses is not None
            connections = Connections(
                ports=ports, responses=responses, groups=groups, uses=uses or 0, secrets=secrets
            )
        if connections is not None:
            yield from connections.feed_rows(run.rows, begin, run.end)
    if connections is not None:
        yield from connections.end()


def earlier_uses(batch: pa.RecordBatch, row: int) -> int | None:
    """Return the number of earlier connections if a row has the order `BEFORE`, else None."""
    if batch.column("order")[row].as_py() != BEFORE:
        return None
    uses: int = batch.column("sequence")[row].as_py()
    return uses


class _Run(NamedTuple):
    """The rows of one connection in a batch. If `key` is empty, they have FileCounts."""

    rows: "BatchRows"
    whole: WholeConnections | None
    number: int
    """The place of the connection in the batch."""
    key: bytes
    begin: int
    end: int


def _runs(batches: Iterable[pa.RecordBatch], ports: frozenset[int], keep: Keep) -> Iterator[_Run]:
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = BatchRows(batch)
        runs = pc.run_end_encode(batch.column("connection"))
        ends = runs.run_ends.to_numpy()
        begins = np.append(0, ends[:-1])
        whole = None if rows.found is None else WholeConnections(rows.found, begins, ports, keep)
        edges = zip(runs.values.to_pylist(), begins.tolist(), ends.tolist(), strict=True)
        for number, (key, begin, end) in enumerate(edges):
            yield _Run(rows, whole, number, key, begin, end)


class BatchRows:
    """The rows of a batch of SEGMENTS: in columns, and as the arguments of `CapturedConnection.row`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.found = Stretches(batch) if batch.num_rows >= WORTH else None

    def between(self, begin: int, end: int) -> Iterator[tuple[Any, ...]]:
        """Yield the connection of each of these rows, its payload, and the other arguments."""
        return zip(*(column[begin:end] for column in self._columns), strict=True)

    @cached_property
    def _columns(self) -> list[list[Any]]:
        columns = (self.batch.column(name).to_numpy(zero_copy_only=False).tolist() for name in _COLUMNS)
        return [self.batch.column("connection").to_pylist(), [*payloads(self.batch)], *columns]


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
        for key, payload, *row in BatchRows(batch).between(0, batch.num_rows):
            if key:
                yield from self._add(key, payload, row)

    def feed_rows(self, own: "BatchRows", begin: int, end: int) -> Iterator[BulkEvent]:
        """Like `feed`, for some rows of a batch. Exchanges that were found in columns are `Pairs`."""
        found = own.found
        rows = enumerate(own.between(begin, end), begin)
        retry = begin
        for at, (key, payload, *row) in rows:
            if not key:
                continue
            if found is not None and found.lengths[at] and at >= retry:
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


def payloads(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Return each row's payload, as a view of the batch's memory."""
    view, edges = bytes_of(batch.column("payload"))
    return (view[start:stop] for start, stop in pairwise(edges.tolist()))
