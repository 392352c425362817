"""Turns SEGMENTS rows into exchanges, for one connection or for all connections of a capture."""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, Final, TypeAlias

import pyarrow as pa

from replay.capture.kafka.connection import NO_REQUESTS, CapturedConnection
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.pairing import KEPT, Keep
from replay.capture.kafka.stretches import LEAST, Stretches
from replay.capture.kafka.whole import WholeConnections
from replay.capture.packets.segments import bytes_of, connections_in, endpoints, ports_of
from replay.capture.packets.tcp import SYN
from replay.capture.tls.keylog import Secrets

Event: TypeAlias = Exchange | ConnectionEnd

BEFORE: Final = -1
"""The `order` of a row that has the number of earlier connections between the same ports. This row comes
before all other rows of the connection."""
_COLUMNS: Final = ("from_low", "time", "end_time", "sequence", "ack", "flags", "missing", "packets")

_ROWS: Final = 10_000
_HELD: Final = struct.Struct("<?qqIqBIII")
"""The values of `_COLUMNS` of a row, and the size of its payload, which follows."""
_MOST_HELD: Final = 512
"""A connection that is held is read when its rows have more bytes than this. Its objects take 8 KB, and most
connections of a port scan have one row."""


class BatchRows:
    """The rows of a batch of SEGMENTS: in columns, and as the arguments of `CapturedConnection.row`."""

    def __init__(self, batch: pa.RecordBatch, *, plain: bool = False) -> None:
        self.batch = batch
        self.found = Stretches(batch) if batch.num_rows and not plain else None
        self.tells_uses = BEFORE in batch.column("order").to_numpy(zero_copy_only=False)
        """Whether there is a row of the order `BEFORE`."""

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The connection of each row, its payload, and the other arguments."""
        columns = (self.batch.column(name).to_numpy(zero_copy_only=False).tolist() for name in _COLUMNS)
        connections = self.batch.column("connection").to_pylist()
        return [*zip(connections, payloads(self.batch), *columns, strict=True)]


class Connections:
    """The connections of a capture, whose rows of SEGMENTS are in capture order, and may interleave.

    `ports` are those of brokers. If empty, Kafka is recognised by its bytes alone. With `hold`, connections
    with few bytes are read at the end, one after the other. They take little memory until then. With `plain`,
    all rows are read one by one, which takes longer.

    A connection's exchanges are in the order of their requests, each as soon as it is complete. The last
    event of a connection is its ConnectionEnd.
    """

    def __init__(
        self,
        *,
        ports: frozenset[int] = frozenset(),
        keep: Keep = KEPT,
        secrets: Secrets | None = None,
        hold: bool = False,
        plain: bool = False,
    ) -> None:
        self._secrets = secrets
        self._ports = ports
        self._keep = keep
        self._open: dict[bytes, CapturedConnection] = {}
        self._hold = hold
        self._plain = plain
        self._held: dict[bytes, bytearray] = {}
        """The rows so far of connections that are not open yet, see `_HELD`."""
        self._uses: dict[bytes, int] = {}
        """How many connections there were between the same ports."""

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Event]:
        """Read all rows. Yield the events of all connections."""
        for batch in batches:
            yield from self.feed(batch)
        yield from self.end()

    def read_sorted(
        self, batches: Iterable[pa.RecordBatch], on_files: Callable[[pa.RecordBatch], None]
    ) -> Iterator[Event]:
        """Like `read`, for rows that are sorted by connection, and then in capture order. Takes less time.

        Before the rows of a connection there may be one with the order `BEFORE`. `on_files` gets the rows
        that have FileCounts.
        """
        known = b""
        for batch in batches:
            rows, runs = BatchRows(batch, plain=self._plain), connections_in(batch)
            first = [begin for _, begin, _ in runs]
            whole = None
            if rows.found is not None:
                whole = WholeConnections(rows.found, first, self._ports, self._keep)
            for number, (key, begin, end) in enumerate(runs):
                before, known = known, key
                if key != before:
                    yield from self.end()
                if not key:
                    on_files(batch.slice(begin, end - begin))
                    continue
                # The last connection may go on in the next batch.
                is_all = key != before and end < batch.num_rows
                events = whole.read(number, key) if whole is not None and is_all else None
                yield from self._of_one(rows, begin, end) if events is None else events
        yield from self.end()

    def feed(self, batch: pa.RecordBatch) -> Iterator[Event]:
        """Read the next rows, and yield the events of their connections. Rows with FileCounts are skipped."""
        # In parts, for a row takes ten times as much memory in lists.
        for begin in range(0, batch.num_rows, _ROWS):
            rows = BatchRows(batch.slice(begin, _ROWS), plain=self._plain)
            for key, first, end in connections_in(rows.batch):
                if key:
                    yield from self._of_one(rows, first, end)

    def _of_one(self, own: BatchRows, begin: int, end: int) -> Iterator[Event]:
        """Read these rows, which are of one connection."""
        if own.tells_uses and own.batch.column("order")[begin].as_py() == BEFORE:
            key, uses = (own.batch.column(name)[begin].as_py() for name in ("connection", "sequence"))
            self._uses[key] = uses
            begin += 1
        found = own.found
        rows = enumerate(own.rows[begin:end], begin)
        retry = begin
        for at, (key, payload, *row) in rows:
            if found is not None and found.lengths[at] and at >= retry:
                taken = self._open[key].take(found, at) if key in self._open else None
                if taken is not None:
                    exchanges, count = taken
                    yield from exchanges
                    next(islice(rows, count - 1, count - 1), None)
                    continue
                retry = at + LEAST
            if self._hold and key not in self._open:
                yield from self._add_held(key, payload, row)
            else:
                yield from self._add(key, payload, row)

    def _add(self, key: bytes, payload: memoryview, row: list[Any]) -> list[Event]:
        connection = self._open.get(key) or self._start(key)
        if connection.row(payload, *row):
            return [*connection.drain()]
        ended = self._finish(connection)
        connection = self._start(key)
        connection.row(payload, *row)
        return [*ended, *connection.drain()]

    def _add_held(self, key: bytes, payload: memoryview, row: list[Any]) -> list[Event]:
        held = self._held.setdefault(key, bytearray())
        held += _HELD.pack(*row, len(payload))
        held += payload
        if len(held) <= _MOST_HELD:
            return []
        del self._held[key]
        return self._read_held(key, held)

    def _read_held(self, key: bytes, held: bytearray) -> list[Event]:
        return [event for row, payload in _held_rows(held) for event in self._add(key, payload, row)]

    def end_silent(self) -> Counter[str]:
        """End the held connections without payload. Return their numbers by `ConnectionEnd.reason`."""
        silent: Counter[str] = Counter()
        for key, held in [*self._held.items()]:
            if found := _silent_connections(held):
                one, other = ports_of(key)
                silent["" if (one in self._ports) != (other in self._ports) else NO_REQUESTS] += found
                del self._held[key]
        return silent

    def end(self) -> Iterator[Event]:
        while self._held:
            key, held = self._held.popitem()
            yield from self._read_held(key, held)
            yield from self._finish(self._open.pop(key))
        for connection in self._open.values():
            yield from self._finish(connection)
        self._open.clear()
        self._uses.clear()

    def _start(self, key: bytes) -> CapturedConnection:
        low, high = endpoints(key)
        number = self._uses.get(key, 0)
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


def _held_rows(held: bytearray) -> Iterator[tuple[list[Any], memoryview]]:
    view, at = memoryview(bytes(held)), 0
    while at < len(view):
        *row, size = _HELD.unpack_from(view, at)
        at += _HELD.size
        yield row, view[at : at + size]
        at += size


def _silent_connections(held: bytearray) -> int:
    """Return how many connections there are in rows without payload; 0 if a row has some."""
    found, begun = 1, dict[bool, int]()
    for (from_low, _, _, sequence, _, flags, missing, _), payload in _held_rows(held):
        if payload or missing:
            return 0
        # A SYN with another sequence number begins another connection, see `Reassembly.syn`.
        if flags & SYN:
            if begun.get(from_low, sequence) != sequence:
                found += 1
                begun.clear()
            begun[from_low] = sequence
    return found


def payloads(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Return each row's payload, as a view of the batch's memory."""
    view, edges = bytes_of(batch.column("payload"))
    return (view[start:stop] for start, stop in pairwise(edges.tolist()))
