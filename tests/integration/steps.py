"""Random steps of clients with sessions at two servers with the same records. Both responses must be equal.

The first server is a live broker with sessions. The second one is a gateway in front of a broker with 0
session slots. The comparison ignores session ids, topic ids, throttle times, and the time and the checksum of
transaction markers. The steps avoid intended differences (docs/developers/sessions.md).
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from tests.integration.mirror import Live
from tests.integration.producing import CONTROL, Transaction
from tests.model.asker import Requests, Want, lines
from tests.model.compare import DifferenceError
from tests.model.sessions import EVICTION_MS, IDS_PER_SHARD
from tests.model.wire import (
    FetchRequest,
    FetchResponse,
    PartitionData,
    decode_response,
    encode_request,
    encode_response,
)
from tools.kafka.raw import RawConnection, frame

TOPICS: Final = {"a": 3, "b": 3, "c": 2}
GOES: Final = "goes"
"""The name of a topic that is deleted and created again.

Fetches list it only by name, because sessions with its id would differ between the two servers.
"""
UNKNOWN: Final = "unknown"
"""The name of a topic that is never created."""
CLIENTS: Final = 20
MARGIN_MS: Final = 1500
"""The distance to an age limit, in milliseconds, at which a client waits. The clocks of two servers differ,
so close to the limit (2.7) the servers could decide differently."""
MOST_BYTES: Final = 400_000
"""The maximum number of record bytes in a response. From 1 MiB on, the gateway forwards all entries, which
would be an intended difference."""
OUTSIDE: Final = (8 * IDS_PER_SHARD, 2**31 - 1, -IDS_PER_SHARD)
"""Session ids that belong to no shard. A broker with shards (3.8 or later) throws an exception for them, and
responds with error -1 (case 96). One without shards responds with error 70, as for any unknown id."""


@dataclass
class Side:
    """One of the two servers whose responses are compared.

    Args:
        live: the broker of the server.
        host: the host for clients.
        port: the port for clients.
    """

    live: Live
    host: str
    port: int
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    open: dict[tuple[str, int], Transaction] = field(default_factory=dict)

    def connect(self) -> RawConnection:
        return RawConnection(self.host, self.port)


Where: TypeAlias = tuple[str | bytes, int]
"""A topic's name or id, and a partition number."""


def listed(request: FetchRequest) -> set[Where]:
    """Return the partitions that a fetch lists."""
    return {
        (topic.topic or topic.topic_id, part.partition)
        for topic in request.topics
        for part in topic.partitions
    }


@dataclass
class Held:
    """A session that exists at both servers, each with its own id."""

    ids: tuple[int, int]
    created: float
    used: float
    partitions: set[Where]
    version: int
    """The version of the fetch that created the session."""
    epoch: int = 1
    aged: bool = False
    """Whether the session was old enough to be evicted when it was last used."""

    def apply(self, request: FetchRequest, now: float) -> None:
        """Apply an incremental fetch to the session."""
        self.partitions |= listed(request)
        self.partitions -= {
            (topic.topic or topic.topic_id, at) for topic in request.forgotten for at in topic.partitions
        }
        self.used, self.aged = now, now - self.created > EVICTION_MS
        self.epoch += 1


class Client:
    """A client with a connection to each server, and with or without a session.

    Args:
        sides: the two servers.
        lowest: the lowest Fetch version that the client uses. If it is 12 or higher, the client sends epochs.
            Older versions have no field for them, so such a client never uses older versions in the same
            session.
        steady: whether the client keeps its session. An old session may lose its slot to a larger one.
    """

    def __init__(self, sides: tuple[Side, Side], lowest: int, *, steady: bool) -> None:
        self.sides = sides
        self.version = self.lowest = lowest
        self.steady = steady
        self.idle_until = 0.0
        self.held: Held | None = None
        self.connections = [side.connect() for side in sides]

    def reconnect(self) -> None:
        self.close()
        self.connections = [side.connect() for side in self.sides]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@dataclass
class Steps(Requests):
    """A random history of requests. Each request is sent to both servers.

    Args:
        expected: the server whose responses are right: a live broker with sessions.
        ours: the server under test: a gateway in front of a broker without session slots.
        chance: the source of randomness.
    """

    expected: Side = field(kw_only=True)
    ours: Side = field(kw_only=True)
    chance: random.Random = field(kw_only=True)
    counts: Counter[str] = field(default_factory=Counter)
    """The number of times that each kind of event occurred. It proves that the test covers all kinds."""

    def __post_init__(self) -> None:
        self.sides = (self.expected, self.ours)
        for side in self.sides:
            for name, count in (TOPICS | {GOES: 2}).items():
                side.live.create_topic(name, count)
            side.topic_ids = {name: side.live.topic_id(name) for name in TOPICS}
        self.ids = self.expected.topic_ids | {UNKNOWN: self.chance.randbytes(16)}
        self.newest = self.expected.live.fetch_versions[1]
        self.gone = False
        self.ends: Counter[tuple[str, int]] = Counter()
        self.starts: Counter[tuple[str, int]] = Counter()
        self.clients = [
            Client(self.sides, lowest, steady=number % 2 == 0)
            for lowest in (7, 12)
            for number in range(CLIENTS // 2)
        ]

    def run(self, steps: int) -> None:
        """Take steps until this number of steps is reached.

        Raises:
            DifferenceError: the two servers sent different responses.
        """
        while self.counts["steps"] < steps:
            if self.chance.random() < 0.15:
                self.change()
            self.step()

    def close(self) -> None:
        for client in self.clients:
            client.close()

    # The world

    def change(self) -> None:
        """Apply the same random change to the topics of both brokers."""
        where = self._partition(known=True)
        roll = self.chance.random()
        if roll < 0.7:
            self._produce(*where)
        elif roll < 0.8:
            self._transact(*where)
        elif roll < 0.97 and self.ends[where] and where not in self.expected.open:
            before = self.starts[where] = self.chance.randint(self.starts[where], self.ends[where])
            for side in self.sides:
                side.live.admin.delete_records(where[0], {where[1]: before})
        elif roll > 0.995:
            self._come_or_go()

    def _produce(
        self, name: str, index: int, transactions: tuple[Transaction | None, ...] = (None, None)
    ) -> None:
        values = [
            self.chance.randbytes(self.chance.choice([1, 40, 900])) for _ in range(self.chance.randint(1, 3))
        ]
        stamp = round(time.time() * 1000)
        bases = [
            side.live.producer.produce(name, index, values, transaction, stamp)
            for side, transaction in zip(self.sides, transactions, strict=True)
        ]
        assert bases[0] == bases[1]
        self.ends[name, index] = bases[0] + len(values)

    def _transact(self, name: str, index: int) -> None:
        """Begin a transaction in a partition, or end its open transaction."""
        where = (name, index)
        if where in self.expected.open:
            commit = self.chance.random() < 0.5
            for side in self.sides:
                side.live.end_transaction(side.open.pop(where), name, index, commit=commit)
            self.ends[where] += 1
            return
        for side in self.sides:
            transaction = side.open[where] = side.live.producer.begin(f"{name}-{index}")
            side.live.producer.join(transaction, name, index)
        self._produce(name, index, (self.expected.open[where], self.ours.open[where]))

    def _come_or_go(self) -> None:
        for side in self.sides:
            if self.gone:
                side.live.create_topic(GOES, 2)
            else:
                side.live.delete_topic(GOES)
        self.gone = not self.gone

    # The clients

    def step(self) -> None:
        """Send the next fetch of a random client to both servers, and compare their responses."""
        client = self.chance.choice(self.clients)
        if client.idle_until > time.monotonic():
            return
        if client.steady and self.chance.random() < 0.001:
            client.idle_until = time.monotonic() + 1.2 * EVICTION_MS / 1000
        if self.chance.random() < 0.02:
            client.reconnect()
        if self.chance.random() < 0.04:
            client.version = self.chance.randint(client.lowest, self.newest)
        now = time.monotonic() * 1000
        if self._is_near_an_age(now):
            self.counts["waits"] += 1
            time.sleep(MARGIN_MS / 1000)
            return
        self._part_ties()
        self._fetch(client, time.monotonic() * 1000)
        self.counts["steps"] += 1

    def _is_near_an_age(self, now: float) -> bool:
        ages = [age for held in self._sessions() for age in (now - held.created, now - held.used)]
        return any(abs(age - EVICTION_MS) < MARGIN_MS for age in ages)

    def _sessions(self) -> list[Held]:
        return [client.held for client in self.clients if client.held is not None]

    def _part_ties(self) -> None:
        """Close one of two sessions that a broker could evict equally well.

        The ids of the sessions would decide (2.7), but the two servers give different ids.
        """
        seen = set()
        for client in self.clients:
            held = client.held
            if held is None or not held.aged:
                continue
            if len(held.partitions) in seen:
                self._exchange(client, self._request(client, (), session=(0, -1)), held.ids)
                client.held = None
            else:
                seen.add(len(held.partitions))

    def _fetch(self, client: Client, now: float) -> None:
        held = client.held
        epoch = 0 if held is None else held.epoch
        ids = (0, 0) if held is None else held.ids
        roll = self.chance.random()
        if held is not None and client.steady and roll > 0.02:
            roll = 1.0
        if held is not None and roll < 0.05:
            epoch += self.chance.choice([1, -1, -7, 1000])
        elif roll < 0.12:
            epoch = self.chance.choice([0, -1])
        elif roll < 0.15:
            number = self.chance.choice([5, 2**30, 2**30, *OUTSIDE])
            # What is full and names no session may go in the gateway's own one, whatever the id.
            epoch = self.chance.choice([epoch, 1, 2] if number in OUTSIDE else [epoch, 1, 2, -1])
            ids = (number, number)
            self.counts["outside"] += number in OUTSIDE
        # Not (0, 0) while it has a session: who makes sessions and uses none gets no more (section 6.7).
        forget = self._forgets(client) if epoch > 0 and not client.steady else []
        request = self._request(client, self._wants(client), session=(0, epoch), forget=forget)
        told = self._exchange(client, request, ids)
        self._note(client, request, told, now, own=held is not None and ids == held.ids)

    def _request(
        self, client: Client, wants: tuple[Want, ...], *, session: tuple[int, int], **options: Any
    ) -> FetchRequest:
        self.version = client.version
        settings: dict[str, Any] = {
            "isolation_level": self.chance.randint(0, 1),
            "max_bytes": self.chance.choice([MOST_BYTES, MOST_BYTES, 1000, 1]),
        }
        values = {
            "current_leader_epoch": self._epoch(1) if client.lowest >= 12 else -1,
            "last_fetched_epoch": self._epoch(5) if client.lowest >= 12 else -1,
        }
        return self.request(*wants, session=session, values=values, **settings, **options)

    def _epoch(self, wrong: int) -> int:
        """Return a leader epoch for a fetch: -1 for none, the right one (0), or rarely `wrong`.

        After a wrong epoch, its error is repeated until the client lists the partition again.
        """
        return self.chance.choices([-1, 0, wrong], [12, 6, 1])[0]

    def _wants(self, client: Client) -> tuple[Want, ...]:
        roll = self.chance.random()
        if roll < 0.3:  # it has read everything
            return tuple(
                (name, at, self.ends[name, at]) for name, count in TOPICS.items() for at in range(count)
            )
        count = self.chance.choice([1, 2, 5, 9]) if roll < 0.5 else 0
        found: list[Want] = []
        for _ in range(count):
            where = self._partition(by_name=client.version <= 12, known=client.steady)
            end, start = self.ends[where], max(self.starts[where], self.ends[where] - 20)
            offset = end if self.chance.random() < 0.6 else self.chance.randint(max(start - 1, 0), end)
            found.append((*where, offset, self.chance.choice([1 << 20, 1 << 20, 100, 0])))
        return tuple(found)

    def _forgets(self, client: Client) -> list[tuple[str, int]]:
        count = self.chance.choice([0, 0, 0, 0, 1, 2, 12])
        return [self._partition(by_name=client.version <= 12) for _ in range(count)]

    def _partition(self, *, known: bool = False, by_name: bool = False) -> tuple[str, int]:
        names = list(TOPICS)
        if not known and self.chance.random() < 0.1:
            names = [GOES, UNKNOWN] if by_name else [UNKNOWN]
        name = self.chance.choice(names)
        more = not known and self.chance.random() < 0.05
        return name, self.chance.randrange(TOPICS.get(name, 2) + more)

    # The law

    def _exchange(self, client: Client, request: FetchRequest, ids: tuple[int, int]) -> FetchResponse:
        """Send a request to both servers. Return both responses, with the topic ids of the first server.

        Args:
            client: the client.
            request: the request.
            ids: the session id to send to each server.
        """
        told = []
        for side, connection, session_id in zip(self.sides, client.connections, ids, strict=True):
            message = encode_request(replace(request, session_id=session_id))
            for name, topic_id in side.topic_ids.items():
                message = message.replace(self.ids[name], topic_id)
            connection.socket.sendall(frame(message))
        for side, connection in zip(self.sides, client.connections, strict=True):
            message = connection.receive()
            for name, topic_id in side.topic_ids.items():
                message = message.replace(topic_id, self.ids[name])
            response = decode_response(message, request.version)
            assert encode_response(response) == message
            told.append(response)
        first, second = map(_plain, told)
        if first != second or bool(told[0].session_id) != bool(told[1].session_id):
            given = [response.session_id for response in told]
            step = f"step {self.counts['steps']}, ids {ids}, given {given}"
            raise DifferenceError("\n".join([step, str(request), *lines(first), "", *lines(second)]))
        self.told_ids = (told[0].session_id, told[1].session_id)
        return told[0]

    def _note(
        self,
        client: Client,
        request: FetchRequest,
        told: FetchResponse,
        now: float,
        *,
        own: bool,
    ) -> None:
        """Update the client's session after a response.

        Args:
            client: the client.
            request: the client's fetch.
            told: the response.
            now: the time when the fetch was sent, in milliseconds.
            own: whether the fetch named the client's session.
        """
        held, epoch = client.held, request.session_epoch
        self.counts[f"error {told.error_code}"] += 1
        if own and (epoch in (0, -1) or told.error_code == 70):
            client.held = None
        if epoch == 0:
            self.counts["sessions" if told.session_id else "refused"] += 1
            if told.session_id:
                client.held = Held(self.told_ids, now, now, listed(request), client.version)
        elif own and held is not None and told.error_code == 106 and self.chance.random() < 0.7:
            client.version = held.version
        elif own and held is not None and epoch == held.epoch and not told.error_code:
            held.apply(request, now)
            self.counts["incremental with entries" if told.topics else "incremental without"] += 1
            if not told.session_id:
                client.held = None


def _plain(response: FetchResponse) -> FetchResponse:
    """Return a response without the fields that the comparison ignores."""
    topics = tuple(
        replace(topic, partitions=tuple(_unstamped(data) for data in topic.partitions))
        for topic in response.topics
    )
    return replace(response, session_id=0, throttle_time_ms=0, topics=topics)


def _unstamped(data: PartitionData) -> PartitionData:
    """Return an entry without checksums in its batches, and without times in its transaction markers."""
    records, at = bytearray(data.records or b""), 0
    while at < len(records):
        batch = memoryview(records)[at:]
        batch[17:21] = bytes(len(batch[17:21]))
        if len(batch) >= 23 and batch[22] & CONTROL:
            batch[27:43] = bytes(len(batch[27:43]))
        at += 12 + int.from_bytes(batch[8:12])
    return replace(data, records=data.records and bytes(records))
