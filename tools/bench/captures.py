"""Makes large captures for benchmarks and tests, fast, with known contents.

Each connection begins like the connection in `captures/librdkafka-100p.pcap`. Then it repeats a real fetch of
100 partitions. The list of partitions is rotated by one each time, as librdkafka does. In the responses, some
partitions have random records, and the offsets of these partitions grow. No two connections are alike: each
has partitions, offsets and correlation ids of its own, as members of consumer groups have (`_Own`).

With several topics, the list still is one ring, so a topic is in two parts at the beginning and at the end of
a fetch. The rotations that begin with the first partition of a topic are left out: the size of all fetches is
the same.

Packets are Ethernet and IPv4 with segments of at most 1,448 bytes. Every eighth segment is acknowledged. For
each rotation, one exchange is built with all headers. numpy copies this exchange, and writes the numbers that
change into the copies.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from mmap import mmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from replay.capture.files.sources import expand, plan
from replay.capture.packets.segments import read

Table: TypeAlias = npt.NDArray[Any]
"""An array of bytes or numbers. Most have one row for each exchange or for each connection."""

MSS = 1448
BROKER_PORT = 9092
_REAL = Path(__file__).parents[2] / "captures" / "librdkafka-100p.pcap"
_FETCH = 1
_OPENING = 5
"""The exchanges before the first fetch: ApiVersions, Metadata and FindCoordinator."""
_START = 1_800_000_000
_MICROSECONDS = 200
_HEADERS = 14 + 20 + 32
_RECORD = 16 + _HEADERS
_CHUNK = 32 << 20
_RESPONSE_ENTRY = struct.Struct(">ihqqqBi")
_BATCH = struct.Struct(">qiibIhiqqqhii")
_ACK_EVERY = 8
_PARTITIONS = 100
_PORTS = 50_000
"""The number of ports of clients. Connections with the same port have different addresses."""
_TOPICS = 1_000
_TOPIC_NAME = b"events"
_RECORDS = 20
"""The number of records in a batch. The offset of the next batch is higher by this number."""
_KEY = 17
"""The bytes before the entries of a topic: its id, and their number."""
_REQUEST_ENTRY = struct.Struct(">iiqiqib")
"""Partition, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, tags."""


@dataclass(slots=True)
class Truth:
    """The figures that a correct measurement of a generated capture has. Frames include their length."""

    connections: int = 0
    packets: int = 0
    exchanges: int = 0
    fetches: int = 0
    fetch_request_bytes: int = 0
    fetch_response_bytes: int = 0
    record_bytes: int = 0
    partitions_requested: int = 0
    partitions_answered: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The form of the traffic in a generated capture."""

    connections: int = 20
    skew: float = 0.0
    """The first connection's share of all exchanges; the others share the rest equally. 0: all equally."""
    filled: int = 2
    records: int = 8_000
    partitions: int = _PARTITIONS
    topics: int = 1
    """The number of topics. Each has as many of the partitions, and at least two."""
    opening: int = _OPENING
    """The number of exchanges before the first fetch of a connection, at most 5."""
    each: int = 0
    """The number of fetches of each connection. 0 if size, skew and chance decide."""

    @property
    def busy(self) -> range:
        """Return the numbers of the partitions that have records. They are evenly distributed."""
        count = self.partitions
        return range(0, count, count // self.filled)[: self.filled] if self.filled else range(0)

    @property
    def rotations(self) -> list[int]:
        """Return the first partitions of the rotated lists."""
        each = self.partitions // self.topics
        return [first for first in range(self.partitions) if self.topics == 1 or first % each]

    def elements(self, first: int) -> list[tuple[int, list[int]]]:
        """Return the topic elements of a rotated list: each with its topic and its partitions."""
        each = self.partitions // self.topics
        ring = [*range(first, self.partitions), *range(first)]
        return [(topic, [*part]) for topic, part in groupby(ring, lambda at: at // each)]


@dataclass(frozen=True, slots=True)
class _Real:
    """Frames and a topic name from the real capture."""

    requests: list[bytes]
    responses: list[bytes]
    fetch: bytes
    topic: bytes


def _frames(stream: bytes) -> Iterator[bytes]:
    place = 0
    while place + 4 <= len(stream):
        size = 4 + int.from_bytes(stream[place : place + 4])
        yield stream[place : place + size]
        place += size


def _real() -> _Real:
    streams: dict[tuple[bytes, bool], bytes] = {}
    for share in plan(expand([str(_REAL)]), 1 << 30):
        for batch in read(share):
            for row in batch.to_pylist():
                key = row["connection"], row["from_low"]
                streams[key] = streams.get(key, b"") + row["payload"]
    for (connection, from_low), stream in streams.items():
        requests = list(_frames(stream)) if connection and not from_low else []
        fetches = [frame for frame in requests if int.from_bytes(frame[4:6]) == _FETCH]
        if fetches:
            responses = list(_frames(streams[connection, True]))
            # Length, key, version, correlation id, client id, tags, 21 bytes of fetch; then topics.
            place = 14 + int.from_bytes(fetches[0][12:14]) + 1 + 21
            fetch = max((frame for frame in fetches if frame[place : place + 1] == _compact(1)), key=len)
            topic = fetch[place + 1 : place + 17]
            return _Real(requests[:_OPENING], responses[:_OPENING], fetch, topic)
    raise ValueError(f"{_REAL} has no fetch")


def _compact(size: int) -> bytes:
    """Encode a length as in Kafka's compact types: the length plus one, as a varint."""
    value, written = size + 1, bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _batch(size: int, chance: np.random.Generator) -> bytes:
    """Make a record batch (magic 2) of `size` bytes, with random records."""
    head = _BATCH.pack(
        0, size - 12, 0, 2, 0, 0, _RECORDS - 1, _START * 1000, _START * 1000, -1, -1, -1, _RECORDS
    )
    return head + chance.bytes(size - len(head))


def _fetches(real: _Real, shape: Shape) -> list["_ExchangeTemplate"]:
    """Make a template of a v16 fetch without a session for each rotation of the list of partitions."""
    chance = np.random.default_rng(0)
    first = real.fetch.index(real.topic) + _KEY
    end = first + _PARTITIONS * _REQUEST_ENTRY.size
    listed = sorted(
        real.fetch[at : at + _REQUEST_ENTRY.size] for at in range(first, end, _REQUEST_ENTRY.size)
    )[: shape.partitions]
    ends = [_REQUEST_ENTRY.unpack(entry)[2] for entry in listed]  # who has read all fetches from the end
    entries = [_response_entry(partition, end, shape, chance) for partition, end in enumerate(ends)]
    fetches = []
    head = real.fetch[4 : first - _KEY - 1]
    for rotation in shape.rotations:
        request = head + _topics(real, shape, rotation, listed) + real.fetch[end + 1 :]
        request = len(request).to_bytes(4) + request
        body = struct.pack(">ihi", 0, 0, 0) + _topics(real, shape, rotation, entries) + b"\0"
        fetches.append(_ExchangeTemplate(request, struct.pack(">iiB", 5 + len(body), 0, 0) + body))
    return fetches


def _topics(real: _Real, shape: Shape, rotation: int, entries: list[bytes]) -> bytes:
    """Return the topics of a rotated list. `entries` are in the order of the list that is not rotated."""
    elements = shape.elements(rotation)
    found = [_compact(len(elements))]
    for topic, partitions in elements:
        key = bytes([real.topic[0] ^ topic]) + real.topic[1:]
        found += [key, _compact(len(partitions)), *(entries[each] for each in partitions), b"\0"]
    return b"".join(found)


def _response_entry(partition: int, end: int, shape: Shape, chance: np.random.Generator) -> bytes:
    records = _batch(shape.records, chance) if partition in shape.busy else b""
    head = _RESPONSE_ENTRY.pack(partition, 0, end, end, 0, 1, -1)
    return head + _compact(len(records)) + records + b"\0"


@dataclass(frozen=True, slots=True)
class _Segment:
    place: int
    """The offset of the packet in the file bytes of its exchange."""
    begin: int
    """The offset of the packet's payload in the request or in the response."""
    size: int
    broker: bool


class _ExchangeTemplate:
    """The packets of one exchange, as a template. Its numbers and addresses are filled in later."""

    def __init__(self, request: bytes, response: bytes) -> None:
        self.request = request
        self.response = response
        self.segments: list[_Segment] = []
        self.size = 0
        self._add(request, broker=False)
        self._add(b"", broker=True)
        self._add(response, broker=True)
        self._columns = self._columns_of(broker=False), self._columns_of(broker=True)
        self.template = np.zeros(self.size, np.uint8)
        for segment in self.segments:
            self._write_packet(segment)

    def _add(self, payload: bytes, *, broker: bool) -> None:
        for number, begin in enumerate(range(0, max(len(payload), 1), MSS), 1):
            size = min(MSS, len(payload) - begin)
            self._put(begin, size, broker=broker)
            if payload and number % _ACK_EVERY == 0:
                self._put(begin + size if broker else 0, 0, broker=not broker)

    def _put(self, begin: int, size: int, *, broker: bool) -> None:
        self.segments.append(_Segment(self.size, begin, size, broker))
        self.size += _RECORD + size

    def _write_packet(self, segment: _Segment) -> None:
        source, destination = (b"\x0a\0\0\1", bytes(4)) if segment.broker else (bytes(4), b"\x0a\0\0\1")
        ports = (BROKER_PORT, 0) if segment.broker else (0, BROKER_PORT)
        size = _HEADERS + segment.size
        head = struct.pack("<4I", 0, 0, size, size) + bytes(12) + b"\x08\0"
        head += (
            struct.pack(">BBHHHBBH", 0x45, 0, 52 + segment.size, 0, 0x4000, 64, 6, 0) + source + destination
        )
        head += struct.pack(">HHIIBBHHH", *ports, 0, 0, 0x80, 0x18 if segment.size else 0x10, 0xFFFF, 0, 0)
        payload = (self.response if segment.broker else self.request)[segment.begin :][: segment.size]
        written = head + b"\x01\x01\x08\x0a" + bytes(8) + payload
        self.template[segment.place : segment.place + len(written)] = np.frombuffer(written, np.uint8)

    def rows(
        self, templates: Table, connection: Table, turn: Table, first_packet: int, before: tuple[int, int]
    ) -> Table:
        """Copy the exchange once for each item of `connection`.

        Each copy gets the times, addresses, ports and TCP numbers of its place in its connection.

        `templates` are used in turn. `turn` is the number of earlier exchanges of this form in the connection
        of a copy, `before` the bytes of requests and of responses before the first of them.
        """
        table: Table = templates[turn % len(templates)]
        sent = before[0] + turn * len(self.request) + 1, before[1] + turn * len(self.response) + 1
        packets = first_packet + np.arange(len(connection)) * len(self.segments)
        for number, segment in enumerate(self.segments):
            self._number(table, segment, packets + number, connection, sent)
        return table

    def _number(
        self, table: Table, segment: _Segment, packet: Table, connection: Table, sent: tuple[Table, Table]
    ) -> None:
        stamp = packet * _MICROSECONDS
        ip, tcp = segment.place + 16 + 14, segment.place + 16 + 34
        _write(table, segment.place, _START + stamp // 1_000_000, "<u4")
        _write(table, segment.place + 4, stamp % 1_000_000, "<u4")
        _write(table, ip + (16 if segment.broker else 12), 0x0A010000 + connection, ">u4")
        _write(table, tcp + (2 if segment.broker else 0), 10_000 + connection % _PORTS, ">u2")
        mine, theirs = (sent[1], sent[0]) if segment.broker else sent
        # A response acknowledges all bytes of the request.
        theirs = theirs + (len(self.request) if segment.broker else 0)
        _write(table, tcp + 4, (mine + segment.begin) % 2**32, ">u4")
        _write(table, tcp + 8, theirs % 2**32, ">u4")

    def write(self, table: Table, places: Table, values: Table, size: int, *, broker: bool) -> None:
        """Write big-endian numbers of `size` bytes to places of a frame, a row for each copy or for all."""
        places, values = np.broadcast_arrays(places, values.astype(">i8"))
        written = np.ascontiguousarray(values)[..., None].view(np.uint8)[..., -size:]
        columns = self._columns[broker][places[..., None] + np.arange(size)]
        table[np.arange(len(table))[:, None, None], columns] = written

    def _columns_of(self, *, broker: bool) -> Table:
        """Return, for each byte of the request or of the response, its offset in the exchange's bytes."""
        parts = [one.place + _RECORD + np.arange(one.size) for one in self.segments if one.broker == broker]
        return np.concatenate(parts)


def _write(table: Table, place: int, values: Table, dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    table[:, place : place + size] = values.astype(dtype)[:, None].view(np.uint8).reshape(-1, size)


class _Own:
    """The numbers of each connection, a member of a group whose members share a topic's partitions."""

    def __init__(self, connection: Table, partitions: int) -> None:
        row, place = connection[:, None], np.arange(partitions)
        strides = np.array([stride for stride in range(partitions) if np.gcd(stride, partitions) == 1])
        self.topic = row % _TOPICS
        self.first_id = row * 7919 % 1_000_000 + 1
        order = (row + strides[row % len(strides)] * place) % partitions
        self.partitions = row // _TOPICS * partitions + order
        """The partitions of each list, before it is rotated."""
        self.offsets = (row * partitions + place) * 2_654_435_761 % (1 << 32)
        """The offsets from which the connection fetches first."""


def _write_opening(one: _ExchangeTemplate, place: int, table: Table, real: _Real, own: _Own) -> None:
    """Write correlation ids, topic and topic id into copies of an exchange before the first fetch."""
    _write_ids(one, table, own.first_id + place)
    for broker, frame in enumerate((one.request, one.response)):
        end = frame.find(_TOPIC_NAME) + len(_TOPIC_NAME)
        for digit in range(3) if _TOPIC_NAME in frame else ():
            values = ord("0") + own.topic // 10**digit % 10
            one.write(table, np.array([end - 1 - digit]), values, 1, broker=bool(broker))
    _write_topic_id(one, table, real, own)


def _write_ids(one: _ExchangeTemplate, table: Table, ids: Table) -> None:
    one.write(table, np.array([8]), ids, 4, broker=False)
    one.write(table, np.array([4]), ids, 4, broker=True)


def _write_topic_id(one: _ExchangeTemplate, table: Table, real: _Real, own: _Own) -> None:
    """Write the last four bytes of the topic's id into those frames of an exchange that have it."""
    for broker, frame in enumerate((one.request, one.response)):
        if real.topic in frame:
            place = np.array([frame.index(real.topic) + len(real.topic) - 4])
            one.write(table, place, own.topic, 4, broker=bool(broker))


class _FetchNumbers:
    """Writes the numbers of fetches: correlation ids, topics, partitions and offsets."""

    def __init__(self, fetch: _ExchangeTemplate, real: _Real, shape: Shape) -> None:
        self._fetch, self._shape = fetch, shape
        place, rotations = np.arange(shape.partitions), np.array(shape.rotations)
        self._busy = np.isin(place, shape.busy)
        self._order = (rotations[:, None] + place) % shape.partitions
        """For each rotation: the index that each entry of the rotated list has in the original list."""
        more = len(_compact(shape.records)) + shape.records - len(_compact(0))
        first, second = (frame.index(real.topic) for frame in (fetch.request, fetch.response))
        self._requested = _places(shape, first, _REQUEST_ENTRY.size + 0 * place)
        self._answered = _places(shape, second, _RESPONSE_ENTRY.size + 2 + more * self._busy)

    def write(self, table: Table, connection: Table, turn: Table) -> None:
        """Write the numbers of some exchanges. Partitions with records have offsets that grow each turn."""
        shape, fetch = self._shape, self._fetch
        own, turned = _Own(connection, shape.partitions), turn % len(self._order)
        _write_ids(fetch, table, own.first_id + shape.opening + turn[:, None])
        (asked_keys, asked), (told_keys, told) = (
            (keys[turned], entries[turned]) for keys, entries in (self._requested, self._answered)
        )
        fetch.write(table, asked_keys + 12, own.topic, 4, broker=False)
        fetch.write(table, told_keys + 12, own.topic, 4, broker=True)
        order = self._order[turned]
        partitions = np.take_along_axis(own.partitions, order, axis=1)
        offsets = np.take_along_axis(own.offsets, order, axis=1)
        offsets = offsets + self._busy[order] * turn[:, None] * _RECORDS
        fetch.write(table, asked, partitions, 4, broker=False)
        fetch.write(table, asked + 8, offsets, 8, broker=False)
        fetch.write(table, told, partitions, 4, broker=True)
        offsets += self._busy[order] * _RECORDS
        for at in (6, 14):  # the high watermark and the last stable offset
            fetch.write(table, told + at, offsets, 8, broker=True)


def _places(shape: Shape, at: int, sizes: Table) -> tuple[Table, Table]:
    """Return for each rotation where the topic ids and the entries begin in a frame, from `at` on.

    `sizes` has the sizes of the entries, in the order of the list that is not rotated.
    """
    keys, entries = list[list[int]](), list[list[int]]()
    for rotation in shape.rotations:
        keys.append([])
        entries.append([])
        end = at
        for _, partitions in shape.elements(rotation):
            keys[-1].append(end)
            end += _KEY
            for size in sizes[partitions].tolist():
                entries[-1].append(end)
                end += size
            end += 1  # tags
    return np.array(keys), np.array(entries)


def _schedule(shape: Shape, exchanges: int) -> tuple[Table, Table]:
    """Return for each exchange its connection, and the number of earlier exchanges in this connection."""
    if shape.each:
        turn = np.repeat(np.arange(shape.each), shape.connections)
        return np.tile(np.arange(shape.connections), shape.each), turn
    chance = np.random.default_rng(1)
    weights = np.ones(shape.connections) / shape.connections
    if shape.skew:
        weights[:] = (1 - shape.skew) / (shape.connections - 1)
        weights[0] = shape.skew
    connection = chance.choice(shape.connections, exchanges, p=weights)
    order = np.argsort(connection, kind="stable")
    starts = np.searchsorted(connection[order], np.arange(shape.connections))
    turn = np.empty(exchanges, np.int64)
    turn[order] = np.arange(exchanges) - starts[connection[order]]
    return connection, turn


def make(path: Path, size: int, shape: Shape = Shape()) -> Truth:  # frozen, no state
    """Write a capture of about `size` bytes (ignored with `Shape.each`). Return its true figures."""
    real = _real()
    fetches = _fetches(real, shape)
    fetch, templates = fetches[0], np.stack([one.template for one in fetches])
    opening = [_ExchangeTemplate(*pair) for pair in zip(real.requests, real.responses, strict=True)]
    opening = opening[: shape.opening]
    everyone = np.arange(shape.connections)
    own = _Own(everyone, shape.partitions)
    left = size - sum(one.size for one in opening) * shape.connections
    exchanges = shape.each * shape.connections or max(left, fetch.size) // fetch.size
    truth = _truth(shape, fetch, exchanges)
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        before = (0, 0)
        for place, one in enumerate(opening):
            rows = one.rows(
                one.template[None], everyone, np.zeros(shape.connections, np.int64), truth.packets, before
            )
            _write_opening(one, place, rows, real, own)
            file.write(rows.data)
            truth.packets += len(one.segments) * shape.connections
            before = before[0] + len(one.request), before[1] + len(one.response)
        connection, turn = _schedule(shape, exchanges)
        numbers = _FetchNumbers(fetch, real, shape)
        step = max(_CHUNK // fetch.size, 1)
        for begin in range(0, exchanges, step):
            part = slice(begin, begin + step)
            table = fetch.rows(templates, connection[part], turn[part], truth.packets, before)
            numbers.write(table, connection[part], turn[part])
            file.write(table.data)
            truth.packets += len(table) * len(fetch.segments)
    truth.bytes = path.stat().st_size
    return truth


def _truth(shape: Shape, fetch: _ExchangeTemplate, exchanges: int) -> Truth:
    return Truth(
        connections=shape.connections,
        exchanges=exchanges + shape.opening * shape.connections,
        fetches=exchanges,
        fetch_request_bytes=len(fetch.request) * exchanges,
        fetch_response_bytes=len(fetch.response) * exchanges,
        record_bytes=shape.filled * shape.records * exchanges,
        partitions_requested=shape.partitions * exchanges,
        partitions_answered=shape.partitions * exchanges,
    )


def split(data: bytes | mmap, files: int) -> Iterator[bytes]:
    """Split a pcap file as `tcpdump -C` does: between packets, and each part gets the file's header."""
    places, at = [], 24
    while at < len(data):
        places.append(at)
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    edges = [places[number * len(places) // files] for number in range(files)] + [len(data)]
    for begin, end in pairwise(edges):
        yield data[:24] + data[begin:end]
