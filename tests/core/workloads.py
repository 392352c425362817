"""Workloads of one client. They run through the gateway's core, with a small simulated broker.

They measure the bytes of each exchange, to compare the gateway's cost with the lowest possible cost. The
broker has sessions as in KIP-227, but no errors and no throttling. The broker in `tests/model` has those.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from struct import pack
from typing import Final

import numpy as np
import numpy.typing as npt

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.protocol.fetch_layout import LAYOUTS, FetchLayout, session_layout
from proxy.protocol.fetch_request import FetchRequest, parse_fetch_request
from proxy.protocol.fetch_response import response_head
from tests.oracle import ABSENT, Exchanged, least
from tests.playbook import api_versions

HEADER: Final = b"\x00\x07rdkafka"
SESSION_ID: Final = 77

Column = npt.NDArray[np.int64]


@dataclass(slots=True)
class Step:
    """One exchange: the fetch of the client, and the new records."""

    listed: list[int]
    """The listed partitions, in the order of the fetch."""
    produced: dict[int, int] = field(default_factory=dict)
    """The number of new records in each partition. They arrive before the broker answers the fetch."""


class World:
    """A broker with its partitions, and a client that reads the partitions through the core.

    Args:
        version: the version of the client's fetches.
        partitions: the number of partitions in all topics together.
        topics: the number of topics. Partition N belongs to topic N modulo this number.
        name: the length of a topic name in bytes, below v13.
        record: the size of a record in bytes.
        tears: whether the broker puts each entry into its own topic element. A broker may do so if topics are
            mixed.
    """

    def __init__(
        self,
        version: int,
        partitions: int,
        *,
        topics: int = 1,
        name: int = 10,
        record: int = 270,
        tears: bool = False,
    ) -> None:
        self.version, self.partitions, self.topics, self.record = version, partitions, topics, record
        self.tears = tears
        self.layout, self.wide = LAYOUTS[version], session_layout(version)
        size = 16 if self.layout.topic_ids else name
        self.keys = [bytes([65 + number]) * size for number in range(topics)]
        self.position: Column = np.zeros(partitions, np.int64)
        self.high: Column = np.zeros(partitions, np.int64)
        self.exchanges: list[Exchanged] = []
        self.spent: list[int] = []
        """The total number of bytes between gateway and broker after each exchange."""
        self.connection = Connection(sessions=SessionLimits(max_sessions=1), resolve=None)
        asked, told = api_versions("4.3")
        self.connection.receive_client(asked, 0.0)
        self.connection.drain_broker()
        self.connection.receive_broker(told, 0.0)
        self.connection.drain_client()
        self._session: dict[int, tuple[int, int]] = {}
        self._correlation = 0

    def play(self, steps: Iterator[Step], count: int) -> "World":
        """Play this number of exchanges, then disconnect the client."""
        for step, _ in zip(steps, range(count), strict=False):
            self.exchange(step)
        self.connection.close_session(0.0)
        self._serve()
        self.spent[-1] = self._broker_bytes()
        return self

    def exchange(self, step: Step) -> None:
        """Let the client send one fetch, and let it receive the response."""
        self._correlation += 1
        request = self.request(step.listed)
        for partition, count in step.produced.items():
            self.high[partition] += count
        position = np.full(self.partitions, ABSENT, np.int64)
        position[step.listed] = self.position[step.listed]
        connection = self.connection
        connection.receive_client(request, 0.0)
        self._serve()
        response = sum(map(len, connection.drain_client()))
        records = np.where(position >= 0, (self.high - position) * self.record, 0)
        bare = len(self.request([]))
        order = np.array(step.listed, np.intp)
        exchange = Exchanged(position, order, self.high.copy(), records, len(request), response, bare)
        self.exchanges.append(exchange)
        self.spent.append(self._broker_bytes())
        self.position[step.listed] = self.high[step.listed]

    @property
    def wire(self) -> list[int]:
        """Return the total number of bytes between client and gateway after each exchange."""
        return list(accumulate(each.request + each.response for each in self.exchanges))

    def _broker_bytes(self) -> int:
        side = self.connection.tally.broker
        return side.fetch_request_bytes + side.fetch_response_bytes

    def _serve(self) -> None:
        data = b"".join(map(bytes, self.connection.drain_broker()))
        while data:
            size = 4 + int.from_bytes(data[:4])
            frame, data = data[:size], data[size:]
            version = int.from_bytes(frame[6:8])
            asked = parse_fetch_request(frame, version, self._body(LAYOUTS[version]))
            self.connection.receive_broker(self._answer(frame[8:12], version, asked), 0.0)
            data += b"".join(map(bytes, self.connection.drain_broker()))

    def _body(self, layout: FetchLayout) -> int:
        return 12 + len(HEADER) + (1 if layout.flexible else 0)

    def _answer(self, correlation: bytes, version: int, asked: FetchRequest) -> bytes:
        layout = LAYOUTS[version]
        session_id, epoch = asked.session_id, asked.session_epoch
        listed = list(self._listed(asked))
        given = 0
        if version >= 7 and epoch == -1 and session_id:
            self._session.clear()
            listed = []
        elif version >= 7 and epoch > 0:
            given = SESSION_ID
            self._forget(asked)
            for partition, position in listed:
                _, high = (
                    self._session.pop(partition, (0, ABSENT))
                    if partition not in self._session
                    else (self._session[partition])
                )
                self._session[partition] = position, high
            listed = [
                (partition, position)
                for partition, (position, high) in self._session.items()
                if self.high[partition] > position or high != self.high[partition]
            ]
        elif version >= 7 and epoch == 0:
            given = SESSION_ID
            self._session = dict.fromkeys((partition for partition, _ in listed), (0, ABSENT))
            self._session.update({partition: (position, ABSENT) for partition, position in listed})
        if given:
            for partition, position in listed:
                entry = position, int(self.high[partition])
                if self.high[partition] > position:
                    self._session.pop(partition, None)
                self._session[partition] = entry
        return self._response(layout, correlation, listed, given)

    def _forget(self, asked: FetchRequest) -> None:
        frame, layout = asked.frame, asked.layout
        topics = asked.topics
        at = asked.body + layout.request_head + len(layout.count(topics.partitions))
        if topics.blocks:
            start, listed = topics.blocks[-1]
            at = start + listed * layout.request_entry + (1 if layout.flexible else 0)
        count, at = self._count(frame, at, layout)
        for _ in range(count):
            if layout.topic_ids:
                key, at = frame[at : at + 16], at + 16
            elif layout.flexible:
                size, at = self._count(frame, at, layout)
                key, at = frame[at : at + size], at + size
            else:
                size = int.from_bytes(frame[at : at + 2])
                key, at = frame[at + 2 : at + 2 + size], at + 2 + size
            number = self.keys.index(key)
            items, at = self._count(frame, at, layout)
            for _ in range(items):
                self._session.pop(int.from_bytes(frame[at : at + 4]) * self.topics + number)
                at += 4
            at += 1 if layout.flexible else 0

    def _count(self, frame: bytes, at: int, layout: FetchLayout) -> tuple[int, int]:
        if not layout.flexible:
            return int.from_bytes(frame[at : at + 4]), at + 4
        value, shift = 0, 0
        while frame[at] & 0x80:
            value |= (frame[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        return (value | frame[at] << shift) - 1, at + 1

    def _listed(self, asked: FetchRequest) -> Iterator[tuple[int, int]]:
        topics, layout = asked.topics, asked.layout
        frame, size = asked.frame, layout.request_entry
        offset = 8 if layout.version >= 9 else 4
        listing = topics.listing(frame)
        at = 0
        entries = listing.entries.tobytes()
        for key, count in zip(listing.keys, listing.counts, strict=True):
            number = self.keys.index(key)
            for _ in range(count):
                index = int.from_bytes(entries[at : at + 4])
                yield index * self.topics + number, int.from_bytes(entries[at + offset : at + offset + 8])
                at += size

    def request(self, listed: list[int]) -> bytes:
        """Build the fetch that lists these partitions."""
        version, layout = self.version, self.layout
        head = pack(">hhi", 1, version, self._correlation) + HEADER + (b"\0" if layout.flexible else b"")
        limits = b"" if version >= 15 else pack(">i", -1)
        limits += pack(">iiib", 500, 1, 1 << 25, 0)
        limits += pack(">ii", 0, -1) if version >= 7 else b""
        epoch = pack(">i", -1) if version >= 9 else b""
        last = pack(">i", -1) if version >= 12 else b""
        start = pack(">q", -1) if version >= 5 else b""
        end = pack(">i", 1 << 20) + (b"\0" if layout.flexible else b"")
        items = [
            (
                partition % self.topics,
                b"".join((pack(">i", partition // self.topics), epoch, pack(">q", self.position[partition])))
                + last
                + start
                + end,
            )
            for partition in listed
        ]
        body = limits + self._elements(layout, items)
        body += layout.count(0) if version >= 7 else b""
        body += (b"\x01" if layout.flexible else b"\0\0") if version >= 11 else b""  # rack
        body += b"\0" if layout.flexible else b""
        return len(head + body).to_bytes(4) + head + body

    def _response(
        self, layout: FetchLayout, correlation: bytes, listed: list[tuple[int, int]], given: int
    ) -> bytes:
        items = []
        for partition, position in listed:
            high = int(self.high[partition])
            size = (high - position) * self.record
            fixed = pack(">ihqq", partition // self.topics, 0, high, high)
            fixed += pack(">q", 0) if layout.version >= 5 else b""
            end = layout.empty_ends[0]
            if size and layout.flexible:
                end = end[:-2] + _uvarint(size + 1) + bytes(size) + b"\0"
            elif size:
                end = end[:-4] + pack(">i", size) + bytes(size)
            items.append((partition % self.topics, fixed + end))
        head = response_head(layout, correlation, 0, given)
        content = head + self._elements(layout, items, torn=bool(given) and self.tears)
        content += b"\0" if layout.flexible else b""
        return len(content).to_bytes(4) + content

    def _elements(self, layout: FetchLayout, items: list[tuple[int, bytes]], *, torn: bool = False) -> bytes:
        elements: list[tuple[int, list[bytes]]] = []
        for topic, item in items:
            if elements and elements[-1][0] == topic and not torn:
                elements[-1][1].append(item)
            else:
                elements.append((topic, [item]))
        end = b"\0" if layout.flexible else b""
        parts = [layout.count(len(elements))]
        parts += [
            layout.prefix(self.keys[topic], len(each)) + b"".join(each) + end for topic, each in elements
        ]
        return b"".join(parts)


def _uvarint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


# --- what is held against it ----------------------------------------------------------------------


def best(world: World) -> int:
    """Return the lowest possible number of bytes for all exchanges.

    Only somebody who knows the future exchanges could reach it.
    """
    owner = np.arange(world.partitions) % world.topics
    return least(world.exchanges, world.layout, owner, len(world.keys[0]))


def dearest(world: World) -> float:
    """Return the highest cost of sessions over any consecutive exchanges, in bytes.

    The cost is compared with plain fetches. The part that `PLAIN_PER_LOST` allows is not counted.
    """
    over = [spent - wire * (1 + 1 / 256) for spent, wire in zip(world.spent, world.wire, strict=True)]
    least, most = 0.0, 0.0
    for each in over:
        most = max(most, each - least)
        least = min(least, each)
    return most


# --- what clients do ------------------------------------------------------------------------------

Workload = Callable[[World, random.Random], Iterator[Step]]


def _turned(listed: list[int], turn: int) -> list[int]:
    at = turn % len(listed) if listed else 0
    return listed[at:] + listed[:at]


def idle(world: World, chance: random.Random) -> Iterator[Step]:
    for turn in range(1 << 30):
        yield Step(_turned(list(range(world.partitions)), turn))


def one_hot(world: World, chance: random.Random) -> Iterator[Step]:
    for turn in range(1 << 30):
        yield Step(_turned(list(range(world.partitions)), turn), {0: turn % 2})


def backlog(world: World, chance: random.Random) -> Iterator[Step]:
    """All partitions have records in the first 12 fetches. Later, only one partition has records."""
    for turn in range(1 << 30):
        active = dict.fromkeys(range(world.partitions), 1) if turn < 12 else {0: 1}
        yield Step(_turned(list(range(world.partitions)), turn), active)


def all_active(world: World, chance: random.Random) -> Iterator[Step]:
    for turn in range(1 << 30):
        yield Step(_turned(list(range(world.partitions)), turn), dict.fromkeys(range(world.partitions), 1))


def most_active(world: World, chance: random.Random) -> Iterator[Step]:
    share = chance.uniform(0.3, 0.95)
    for turn in range(1 << 30):
        active = {n: 1 for n in range(world.partitions) if chance.random() < share}
        yield Step(_turned(list(range(world.partitions)), turn), active)


def spikes(world: World, chance: random.Random) -> Iterator[Step]:
    """All partitions have records for some exchanges, from time to time. Otherwise one partition has."""
    busy = 0
    for turn in range(1 << 30):
        busy = busy - 1 if busy else chance.randint(1, 30) * (chance.random() < 0.04)
        active = dict.fromkeys(range(world.partitions), 1) if busy else {turn % world.partitions: 1}
        yield Step(_turned(list(range(world.partitions)), turn), active)


def grows(world: World, chance: random.Random) -> Iterator[Step]:
    listed: list[int] = []
    for turn in range(1 << 30):
        listed = list(
            range(min(world.partitions, len(listed) + chance.randint(1, 1 + world.partitions // 8)))
        )
        yield Step(_turned(listed, turn), {0: 1})


def shrinks(world: World, chance: random.Random) -> Iterator[Step]:
    """The list of partitions becomes short at some time, and then stays short."""
    until, left = chance.randint(2, 40), chance.randint(1, min(3, world.partitions))
    for turn in range(1 << 30):
        yield Step(_turned(list(range(world.partitions if turn < until else left)), turn), {0: 1})


def flaps(world: World, chance: random.Random) -> Iterator[Step]:
    """The list of partitions becomes short and long again in turn.

    The short list always has the same length, and so has the long one. Each is sent in a fixed number of
    exchanges.
    """
    left, long, short = chance.randint(1, world.partitions // 2), chance.randint(1, 30), chance.randint(1, 30)
    for turn in range(1 << 30):
        small = turn % (long + short) >= long
        yield Step(_turned(list(range(left if small else world.partitions)), turn), {0: 1})


def buffered(world: World, chance: random.Random) -> Iterator[Step]:
    """The consumer leaves out partitions whose fetched records it has not processed yet.

    kafka-python and aiokafka do this.
    """
    held: set[int] = set()
    share = chance.uniform(0.01, 0.5)
    for _ in range(1 << 30):
        listed = [n for n in range(world.partitions) if n not in held]
        if not listed:
            held.clear()
            listed = list(range(world.partitions))
        active = {n: 1 for n in range(world.partitions) if chance.random() < share}
        yield Step(listed, active)
        held = {n for n in held if chance.random() < 0.5} | {n for n in active if chance.random() < 0.7}


def rebalances(world: World, chance: random.Random) -> Iterator[Step]:
    """Half of the list is removed every few exchanges, and later added again."""
    every = chance.randint(15, 120)
    half = list(range(0, world.partitions, 2))
    for turn in range(1 << 30):
        listed = half if turn // every % 2 else list(range(world.partitions))
        yield Step(_turned(listed, turn), {n: 1 for n in range(world.partitions) if chance.random() < 0.05})


def churns(world: World, chance: random.Random) -> Iterator[Step]:
    """The list changes with each fetch from one half of the partitions to the other half."""
    for turn in range(1 << 30):
        half = world.partitions // 2
        yield Step(list(range(half)) if turn % 2 else list(range(half, world.partitions)), {0: 1})


def random_lists(world: World, chance: random.Random) -> Iterator[Step]:
    for _ in range(1 << 30):
        listed = chance.sample(range(world.partitions), chance.randint(2, world.partitions))
        yield Step(listed, {n: 1 for n in range(world.partitions) if chance.random() < 0.1})


WORKLOADS: Final[dict[str, Workload]] = {
    each.__name__: each
    for each in (
        idle,
        one_hot,
        backlog,
        all_active,
        most_active,
        spikes,
        grows,
        shrinks,
        flaps,
        buffered,
        rebalances,
        churns,
        random_lists,
    )
}

CLIENTS: Final = {name: each for name, each in WORKLOADS.items() if each not in (churns, random_lists)}
"""Workloads like those of real clients. Workloads with random changes of the list are left out."""
