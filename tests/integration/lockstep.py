"""Random lock-step equivalence on a live broker: a fetch direct, through the gateway, and direct again.

Between the steps, things change: records, transactions, deleted records, new partitions, topics deleted and
created again. The client has no sessions. Its lists rotate, split, grow and shrink like real ones.
"""

import random
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from proxy.core.connection import Common, Connection
from proxy.core.eligibility import SessionLimits
from proxy.features.limits.fetch_floors import FetchLimits
from proxy.features.limits.max_fetch_bytes import MaxFetchBytes
from tests.integration.mirror import Live
from tests.integration.producing import Transaction
from tests.model.asker import entries
from tests.model.compare import BIG, DifferenceError, check
from tests.model.wire import (
    ZERO_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_response,
    encode_request,
)
from tools.kafka.raw import frame

RECEIVE = 1 << 16
TRIES = 5
"""How often a step is repeated if the two direct responses differ, because something changed in between."""


class Through(Protocol):
    """A way through the gateway."""

    def exchange(self, request: bytes) -> bytes:
        """Send one request and return its response, both without length."""


class SansIO:
    """The gateway's connection core with a plain blocking socket to the broker."""

    def __init__(self, host: str, port: int, *, max_sessions: int = 10) -> None:
        self._socket = socket.create_connection((host, port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sessions = SessionLimits(max_sessions=max_sessions)
        self.ceilings = FetchLimits()
        """The limits of ``--max-fetch-bytes``."""
        common = Common(stages=(partial(MaxFetchBytes, self.ceilings),))
        self.connection = Connection(sessions=self.sessions, resolve=None, common=common)
        self._now = 0.0

    def exchange(self, request: bytes) -> bytes:
        """Send one request and return its response, both without length.

        Raises:
            ConnectionError: the broker closed the connection, or the core ended it with a fault.
        """
        self._now += 0.05
        self.connection.receive_client(frame(request), self._now)
        out = self._taken()
        while len(out) < 4 or len(out) < 4 + int.from_bytes(out[:4], "big"):
            self._pump()
            out += self._taken()
        return out[4:]

    def close(self) -> None:
        """Close the connection as the gateway does when a client has left.

        The session at the broker is closed first.
        """
        self.connection.close_session(self._now)
        self._flush()
        while not self.connection.state.done:
            self._pump()
        self.connection.ended()
        self._socket.close()

    def _taken(self) -> bytes:
        return b"".join(map(bytes, self.connection.drain_client()))

    def _flush(self) -> None:
        if due := b"".join(map(bytes, self.connection.drain_broker())):
            self._socket.sendall(due)

    def _pump(self) -> None:
        self._flush()
        data = self._socket.recv(RECEIVE)
        if not data:
            raise ConnectionError("the broker closed")
        self.connection.receive_broker(data, self._now)
        self._flush()
        if self.connection.state.fault is not None:
            raise ConnectionError(str(self.connection.state.fault))


@dataclass
class Counts:
    """Counts of a walk. They prove that the walk covered the interesting cases."""

    steps: int = 0
    entries: int = 0
    repeated: int = 0
    """The number of repeated steps. A step is repeated if its two direct responses differed."""


@dataclass
class Lockstep:
    """A random walk at one Fetch version.

    Args:
        live: the direct way to the broker.
        through: the way through the gateway.
        version: the client's Fetch version.
        seed: the seed of all random choices.
    """

    live: Live
    through: Through
    version: int
    seed: int
    counts: Counts = field(default_factory=Counts)
    topics: dict[str, int] = field(default_factory=dict)
    """The number of partitions of each topic, or 0 while the topic is deleted."""
    ids: dict[str, bytes] = field(default_factory=dict)
    ends: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """For each partition, the log start and the high watermark that were seen last."""
    wanted: list[tuple[str, int]] = field(default_factory=list)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    open: dict[tuple[str, int], Transaction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.prefix = f"lock-v{self.version}-{self.seed}-{self.random.randrange(16**8):08x}-"
        self.correlation = 0
        self.settings: dict[str, Any] = {}
        self.leader_epoch = 0 if self.version >= 9 and self.seed % 2 else -1
        for _ in range(3):
            self.create(f"{self.prefix}{len(self.topics)}")
        self.wanted = [(name, i) for name, count in self.topics.items() for i in range(count)]

    def run(self, steps: int) -> Counts:
        """Do this number of steps. Each step ends with a comparison.

        Raises:
            DifferenceError: the client's response would have differed from a direct one.
        """
        for _ in range(steps):
            if self.random.random() < 0.3:
                self.change()
            if self.random.random() < 0.3:
                self.turn()
            self.step()
        self.settle()
        return self.counts

    # The world

    def create(self, name: str) -> None:
        count = self.random.randint(2, 5)
        self.live.create_topic(name, count)
        self.topics[name] = count
        self.ids[name] = self.live.topic_id(name) if self.version >= 13 else ZERO_ID

    def change(self) -> None:
        """Apply a random change to topics."""
        name = self.random.choice(list(self.topics))
        if not self.topics[name]:
            self.create(name)
            return
        where = name, self.random.randrange(self.topics[name])
        roll = self.random.random()
        if roll < 0.6:
            values = [self.random.randbytes(self.random.choice([0, 30, 2000])) for _ in range(3)]
            self.live.producer.produce(*where, values[: self.random.randint(1, 3)])
        elif roll < 0.78:
            self.transact(where)
        elif roll < 0.92 and where in self.ends:
            start, end = self.ends[where]
            self.live.admin.delete_records(name, {where[1]: self.random.randint(start, end)})
        elif roll < 0.96:
            self.topics[name] += 1
            self.live.admin.add_partitions(name, self.topics[name])
            self.live.settle(name, self.topics[name])
        else:
            self.remove(name)

    def transact(self, where: tuple[str, int]) -> None:
        """Begin a transaction in a partition, or end its open one."""
        transaction = self.open.pop(where, None)
        if transaction is not None:
            self.live.end_transaction(transaction, *where, commit=self.random.random() < 0.5)
            return
        transaction = self.live.producer.begin(f"{where[0]}-{where[1]}")
        self.live.producer.join(transaction, *where)
        self.live.producer.produce(*where, [b"in transaction"], transaction)
        self.open[where] = transaction

    def remove(self, name: str) -> None:
        for where in [where for where in self.open if where[0] == name]:
            self.transact(where)
        self.live.delete_topic(name)
        self.topics[name] = 0
        self.ends = {where: ends for where, ends in self.ends.items() if where[0] != name}

    def settle(self) -> None:
        """End open transactions and delete the topics."""
        for name in [name for name, count in self.topics.items() if count]:
            self.remove(name)

    # The client

    def turn(self) -> None:
        """Apply a random change to the client's list or settings."""
        roll = self.random.random()
        if roll < 0.3:
            at = self.random.randrange(len(self.wanted) + 1)
            self.wanted = self.wanted[at:] + self.wanted[:at]
        elif roll < 0.45:
            self.wanted = [want for want in self.wanted if self.random.random() < 0.8]
        elif roll < 0.6:
            everything = [(name, i) for name, count in self.topics.items() for i in range(count)]
            self.wanted = list(dict.fromkeys([*self.wanted, *everything]))
        elif roll < 0.65:
            name = self.random.choice(list(self.topics))
            self.wanted.append((name, self.random.randrange(7)))
        elif roll < 0.75:
            self.wanted.sort(key=lambda _: self.random.random())
        elif roll < 0.9:
            for where in self.random.sample(sorted(self.ends), min(2, len(self.ends))):
                start, end = self.ends[where]
                self.offsets[where] = self.random.randint(max(start - 1, 0), end + 1)
        else:
            self.settings = {
                "isolation_level": self.random.randint(0, 1) if self.version >= 4 else 0,
                "max_bytes": self.random.choice([BIG, BIG, BIG, 500]) if self.version >= 3 else 0x7FFFFFFF,
            }

    def request(self) -> FetchRequest:
        self.correlation += 1
        elements: list[FetchTopic] = []
        for name, index in self.wanted:
            key: dict[str, Any] = {"topic_id": self.ids[name]} if self.version >= 13 else {"topic": name}
            part = FetchPartition(
                partition=index,
                fetch_offset=self.offsets.get((name, index), 0),
                partition_max_bytes=BIG,
                current_leader_epoch=self.leader_epoch,
            )
            if elements and all(getattr(elements[-1], key_name) == value for key_name, value in key.items()):
                elements.append(FetchTopic(**key, partitions=(*elements.pop().partitions, part)))
            else:
                elements.append(FetchTopic(**key, partitions=(part,)))
        return FetchRequest(
            version=self.version, correlation_id=self.correlation, topics=tuple(elements), **self.settings
        )

    # The law

    def step(self) -> None:
        """Send one fetch directly, through the gateway, and directly again. Compare the responses."""
        request = self.request()
        for _ in range(TRIES):
            before = self.live.fetch(request)
            got = decode_response(self.through.exchange(encode_request(request)), self.version)
            after = self.live.fetch(request)
            if before == after:
                check(request, got, before)
                break
            self.counts.repeated += 1
        else:
            raise DifferenceError("the direct responses never came to rest")
        self.counts.steps += 1
        self.counts.entries += len(entries(got))
        self.follow(request, got)

    def follow(self, request: FetchRequest, response: FetchResponse) -> None:
        """In most cases, advance the offsets after the records that were read, as a consumer does."""
        names = {self.ids[name]: name for name in self.topics} if self.version >= 13 else {}
        asked = {(name, index) for name, index in self.wanted}
        for topic in response.topics:
            for data in topic.partitions:
                where = names.get(topic.topic_id, topic.topic), data.partition_index
                if data.error_code or where not in asked:
                    if data.error_code == 1:
                        self.offsets[where] = self.ends.get(where, (0, 0))[0]
                    continue
                self.ends[where] = max(data.log_start_offset, 0), data.high_watermark
                read_to = data.high_watermark
                if request.isolation_level:
                    read_to = data.last_stable_offset
                if self.random.random() < 0.8:
                    self.offsets[where] = read_to
