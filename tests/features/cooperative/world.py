"""A cooperative group in one process: a coordinator, a broker, clients and gateways. Events come in any
order.

Clients join, process, commit and leave. They are killed, or paused for some time. Gateways are killed too. If
there are several, they are also cut off from the broker for some time, and their clocks differ. Gateways may
have one address (`roams`): then connections are lost, some half-open, and the next one reaches any gateway.
Requests on their way to the broker arrive even if their sender has ended. Sans-IO: the same seed gives the
same run.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from proxy.core.eligibility import SessionLimits
from proxy.features.cooperative.member_stage import MemberStage
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.membership import (
    assignment,
    heartbeat_error,
    read_assignment,
    read_join,
    read_joined,
    read_owned,
    read_sync,
    read_synced,
)
from proxy.features.cooperative.offsets import (
    Entry,
    read_answered,
    read_commit,
    read_fetched_offsets,
    read_offset_fetch,
)
from proxy.features.cooperative.positions import TopicPartition
from tests.connections import connect
from tests.features.cooperative.batch import Record, batch, read
from tests.features.cooperative.coordinator import (
    GROUP,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_FETCH,
    OWN,
    REBALANCE_IN_PROGRESS,
    SYNC_GROUP,
    got,
    request,
    sent,
    subscription,
)
from tests.features.cooperative.fields import Reader, Writer, framed
from tests.model.broker import ModelBroker
from tests.model.wire import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_response,
    encode_request,
)

OFFSET_COMMIT = 8
TOPIC = "orders"
SESSION = 1.5
"""Session timeout of the members, in seconds."""
REBALANCE = 10 * SESSION
"""Rebalance timeout of the members, in seconds."""
BEAT = 0.25
STEP = 0.05
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 22, 25
GONE = (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID)
FETCH_VERSION = 12
HOUR = 3600.0
CUT_SECONDS = (0.5, 3 * SESSION)
LONG_CUT_SECONDS = 60.0


@dataclass(eq=False)
class Gateway:
    """A gateway. After it was killed, the next process takes its place."""

    members: Members
    skew: float = 0.0
    """How many seconds its clock is ahead of the broker's."""
    cut_until: float = 0.0
    """Until when it is cut off from the broker, by the broker's clock."""


class Wire:
    """A client's connection through a gateway, with the requests on their way to the broker."""

    def __init__(self, world: "World", gateway: Gateway) -> None:
        self.world, self.gateway = world, gateway
        self.alarms: list[float] = []
        self.connection = connect(
            sessions=SessionLimits(max_sessions=0),
            resolve=None,
            host="h",
            name="b:9092",
            stages=(partial(MemberStage, gateway.members),),
        )
        self.connection.attach(lambda: self.alarms.append(0.0), self.alarms.append)
        self.upstream = deque[bytes]()
        """Requests that the broker has not answered yet, in order."""
        self.held = False
        """Whether the broker holds back its response to the first request in `upstream`."""
        self.downstream = deque[bytes]()
        """Responses that can't reach the gateway, because it is cut off."""
        self.overtakes: Callable[[], None] | None = None
        """Tells the client that the broker has taken its commit, if the client has lost the connection."""
        self.open = True

    @property
    def now(self) -> float:
        """The time on the gateway's clock."""
        return self.world.now + self.gateway.skew

    @property
    def cut_off(self) -> bool:
        return self.world.now < self.gateway.cut_until

    def ask(self, frame: bytes) -> None:
        self.connection.receive_client(frame, self.now)
        self.pump()

    def pump(self) -> None:
        """Move the gateway's frames for the broker to `upstream`."""
        if (fault := self.connection.fault) is not None and "must reach one process" in fault.reason:
            self.close()
        if self.open:
            assert fault is None, fault
            self.upstream += sent(self.connection)

    def tick(self) -> None:
        if self.open and any(at <= self.now for at in self.alarms):
            self.alarms[:] = [at for at in self.alarms if at > self.now]
            self.connection.tick(self.now)
            self.pump()

    def answer(self, frame: bytes) -> None:
        """Let the broker answer the first request with this frame."""
        self.upstream.popleft()
        self.held = False
        self.downstream.append(frame)
        self.deliver()

    def deliver(self) -> None:
        """Give the gateway all responses, unless it is cut off."""
        while self.downstream and not self.cut_off:
            frame = self.downstream.popleft()
            if self.open:
                self.connection.receive_broker(frame, self.now)
                self.pump()

    def close(self) -> None:
        """Close the connection, as when a client vanishes or the gateway is killed.

        Requests that were already sent still reach the broker.
        """
        if self.open:
            self.open = False
            self.connection.ended(self.now)


@dataclass
class Coordinator:
    """The coordinator of the group, like Kafka's GroupCoordinator, for clients with eager rebalancing."""

    generation: int = 0
    state: str = "empty"
    members: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    """Member id -> protocol name -> metadata."""
    heard: dict[bytes, float] = field(default_factory=dict)
    joining: dict[bytes, Wire] = field(default_factory=dict)
    syncing: dict[bytes, Wire] = field(default_factory=dict)
    leader: bytes = b""
    protocol: bytes = b""
    assigned: dict[bytes, bytes] = field(default_factory=dict)
    stored: dict[TopicPartition, tuple[int, bytes]] = field(default_factory=dict)
    refused: dict[bytes, int] = field(default_factory=dict)
    """Topics whose offsets are refused, as without READ on them, each with the error code."""
    unread: dict[bytes, int] = field(default_factory=dict)
    """Topics whose offsets can't be read, each with the error code. b"" stands for the whole group."""
    number: int = 0
    began: float = 0.0

    def handle(self, wire: Wire, frame: bytes, now: float) -> bytes | None:
        """Return the answer to a request, or None if the answer comes later."""
        key = int.from_bytes(frame[4:6])
        handler = {
            JOIN_GROUP: self.join,
            SYNC_GROUP: self.sync,
            HEARTBEAT: self.beat,
            LEAVE_GROUP: self.leave,
            OFFSET_COMMIT: self.commit,
            OFFSET_FETCH: self.offsets,
        }[key]
        return handler(wire, frame, now)

    def join(self, wire: Wire, frame: bytes, now: float) -> bytes | None:
        join = read_join(frame)
        member_id = join.member_id
        if member_id and member_id not in self.members:
            return self.joined(frame, UNKNOWN_MEMBER_ID, member_id)
        if not member_id:
            self.number += 1
            member_id = b"m%d" % self.number
        self.members[member_id] = dict(join.protocols)
        self.heard[member_id] = now
        self.rebalance(now)
        if (before := self.joining.get(member_id)) is not None and before is not wire:
            before.answer(self.joined(before.upstream[0], UNKNOWN_MEMBER_ID, member_id))
        self.joining[member_id] = wire
        return None

    def rebalance(self, now: float) -> None:
        if self.state == "preparing":
            return
        self.state, self.began = "preparing", now
        for wire in self.syncing.values():
            wire.answer(self.synced(wire.upstream[0], REBALANCE_IN_PROGRESS))
        self.syncing.clear()

    def complete(self, now: float) -> None:
        """Form the next generation from the members that have joined. Do it once all have joined, or the time
        is over.
        """
        if self.state != "preparing" or not self.joining:
            if self.state == "preparing" and not self.members:
                self.state = "empty"
            return
        if self.joining.keys() != self.members.keys() and now < self.began + REBALANCE:
            return
        self.members = {each: self.members[each] for each in self.joining}
        self.generation += 1
        self.state = "completing"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        names = list(self.members.values())
        self.protocol = next(name for name in names[0] if all(name in each for each in names))
        waiting, self.joining = self.joining, {}
        for member_id, wire in waiting.items():
            self.heard[member_id] = now
            if wire.held:
                wire.answer(self.joined(wire.upstream[0], 0, member_id))

    def joined(self, frame: bytes, error: int, member_id: bytes) -> bytes:
        said = Writer(JOIN_GROUP, 5)
        said.content += frame[8:12] + bytes(4) + error.to_bytes(2) + self.generation.to_bytes(4)
        said.string(b"" if error else self.protocol)
        said.string(self.leader)
        said.string(member_id)
        leads = not error and member_id == self.leader
        said.count(len(self.members) if leads else 0)
        for each, offered in self.members.items() if leads else ():
            said.string(each)
            said.string(None)
            said.data(offered[self.protocol])
        return framed(said.content)

    def sync(self, wire: Wire, frame: bytes, now: float) -> bytes | None:
        sync = read_sync(frame)
        if error := self.fenced(sync.member_id, sync.generation):
            return self.synced(frame, error)
        if self.state == "preparing":
            return self.synced(frame, REBALANCE_IN_PROGRESS)
        self.heard[sync.member_id] = now
        if self.state == "stable":
            return self.synced(frame, 0, self.assigned.get(sync.member_id, b""))
        self.syncing[sync.member_id] = wire
        if sync.member_id != self.leader:
            return None
        self.assigned, self.state = dict(sync.assignments), "stable"
        waiting, self.syncing = self.syncing, {}
        for member_id, each in waiting.items():
            if each is not wire and each.held:
                each.answer(self.synced(each.upstream[0], 0, self.assigned.get(member_id, b"")))
        return self.synced(frame, 0, self.assigned.get(sync.member_id, b""))

    @staticmethod
    def synced(frame: bytes, error: int, given: bytes = b"") -> bytes:
        said = Writer(SYNC_GROUP, 3)
        said.content += frame[8:12] + bytes(4) + error.to_bytes(2)
        said.data(given)
        return framed(said.content)

    def fenced(self, member_id: bytes, generation: int) -> int:
        if member_id not in self.members:
            return UNKNOWN_MEMBER_ID
        return 0 if generation == self.generation else ILLEGAL_GENERATION

    def beat(self, wire: Wire, frame: bytes, now: float) -> bytes:
        reader = Reader(frame, 16 + int.from_bytes(frame[12:14]) - 2, HEARTBEAT, 3)
        reader.string()
        generation, member_id = reader.int32(), reader.string()
        error = self.fenced(member_id, generation)
        if not error:
            self.heard[member_id] = now
            error = REBALANCE_IN_PROGRESS if self.state == "preparing" else 0
        return framed(frame[8:12] + bytes(4) + error.to_bytes(2))

    def leave(self, wire: Wire, frame: bytes, now: float) -> bytes:
        reader = Reader(frame, 16 + int.from_bytes(frame[12:14]) - 2, LEAVE_GROUP, 1)
        reader.string()
        self.gone(reader.string(), now)
        return framed(frame[8:12] + bytes(4) + bytes(2))

    def gone(self, member_id: bytes, now: float) -> None:
        if self.members.pop(member_id, None) is None:
            return
        wire = self.joining.pop(member_id, None) or self.syncing.pop(member_id, None)
        if wire is not None and wire.held:
            key = int.from_bytes(wire.upstream[0][4:6])
            first = wire.upstream[0]
            said = self.joined(first, UNKNOWN_MEMBER_ID, member_id)
            wire.answer(said if key == JOIN_GROUP else self.synced(first, UNKNOWN_MEMBER_ID))
        self.rebalance(now)

    def expire(self, now: float) -> None:
        for member_id in [
            each
            for each, at in self.heard.items()
            if each in self.members and each not in self.joining and now > at + SESSION
        ]:
            self.gone(member_id, now)
        self.complete(now)

    def commit(self, wire: Wire, frame: bytes, now: float) -> bytes:
        commit = read_commit(frame)
        error = self.fenced(commit.member_id, commit.generation)
        if not error and self.state == "completing":
            error = REBALANCE_IN_PROGRESS
        if not error:
            self.heard[commit.member_id] = now
            for each in commit.entries:
                if each.topic not in self.refused:
                    self.stored[each.topic, each.partition] = each.offset, each.metadata or b""
            if wire.overtakes is not None:
                wire.overtakes()
        return commit.response([error or self.refused.get(each.topic, 0) for each in commit.entries])

    def offsets(self, wire: Wire, frame: bytes, now: float) -> bytes:
        (asked,) = read_offset_fetch(frame).groups
        said = Writer(OFFSET_FETCH, 2)
        said.content += frame[8:12]
        said.count(len(asked.entries))
        for each in asked.entries:
            offset, metadata = self.stored.get((each.topic, each.partition), (-1, b""))
            said.string(each.topic)
            said.count(1)
            said.number(each.partition)
            said.content += offset.to_bytes(8, signed=True)
            said.string(metadata)
            said.content += self.unread.get(each.topic, 0).to_bytes(2)
        said.content += self.unread.get(b"", 0).to_bytes(2)
        return framed(said.content)


class Processed(NamedTuple):
    """A record that a client has processed."""

    partition: int
    offset: int
    key: bytes
    at: int
    client: "Client"
    assignment: int


class Client:
    """A consumer with eager rebalancing, like librdkafka. It commits before it gives up its partitions."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.gateway = world.gateways[int(name) % len(world.gateways)]
        self.client_id = f"billing.{name}"
        self.member_id, self.generation = b"", -1
        self.wires: dict[str, Wire] = {}
        self.asked: dict[str, bytes] = {}
        """The requests in flight, each by the name of its connection."""
        self.state = "unjoined"
        self.places: list[TopicPartition] = []
        self.positions: dict[int, int] = {}
        self.hand = deque[tuple[int, Record]]()
        self.done: dict[int, int] = {}
        self.assignment = 0
        self.commits: list[tuple[int, int, int, int]] = []
        """Acknowledged commits: assignment, partition, offset, and the step of the world."""
        self.overtaken = b""
        """A commit that no longer counts, because the broker has taken an earlier one after it."""
        self.crashes: list[int] = []
        self.leads: list[bytes] = []
        """The member ids of all members, if the client is the leader."""
        self.beat_at = self.commit_at = 0.0
        self.sleeps_until = 0.0
        self.leaving = False

    # What it does

    def step(self) -> None:
        world = self.world
        if not self.alive or world.now < self.sleeps_until:
            return
        for where in [where for where, wire in self.wires.items() if not wire.open]:
            self.lose(where)  # the gateway has closed it
        self._read()
        if self.state != "ended" and "c" not in self.asked:
            self._coordinate()
        if self.fetches and self.positions and "f" not in self.asked and not self.hand:
            self._fetch()
        for _ in range(world.chance.randrange(4)):
            if self.hand and self.processes:
                self._process()

    @property
    def fetches(self) -> bool:
        """Whether the client fetches now."""
        return self.state == "stable"

    @property
    def processes(self) -> bool:
        """Whether the client processes the records that it has."""
        return self.state in {"stable", "revoking"}

    def _coordinate(self) -> None:
        world = self.world
        if self.state == "revoking":
            if self.done:
                self._commit()
                return
            self._revoke()
        if self.state == "unjoined":
            if self.leaving:
                if self.member_id:
                    self._send("c", LEAVE_GROUP, 1, self._head(LEAVE_GROUP, 1))
                    self.state = "left"
                else:
                    self.end()
                return
            self._join()
        elif self.state == "joined":
            self._sync()
        elif self.state == "asks":
            self._offsets()
        elif self.leaving and self.state == "stable":
            self.state = "revoking"
        elif self.done and world.now >= self.commit_at:
            self.commit_at = world.now + 0.3
            self._commit()
        elif world.now >= self.beat_at and self.member_id and self.state in {"stable", "revoking"}:
            self.beat_at = world.now + BEAT
            self._send("c", HEARTBEAT, 3, self._head(HEARTBEAT, 3))

    def _process(self) -> None:
        partition, record = self.hand.popleft()
        self.world.process(self, partition, record)
        self.done[partition] = record.offset + 1

    def _revoke(self) -> None:
        self.places, self.positions, self.state = [], {}, "unjoined"
        self.hand.clear()
        self.done.clear()
        if (wire := self.wires.pop("f", None)) is not None and "f" in self.asked:
            wire.close()  # it takes no more of that
        elif wire is not None:
            self.wires["f"] = wire
        self.asked.pop("f", None)

    def lost(self) -> None:
        """Let the client learn that the group has continued without the client.

        The client can't commit any more.
        """
        self.crashes.append(self.world.step)
        self.done.clear()
        self._revoke()

    def since(self, partition: int) -> int:
        """Return the number of the assignment that has given the partition to the client."""
        return self.assignment

    @property
    def forgotten(self) -> bool:
        """Whether its group has gone on without the client."""
        return bool(self.world.coordinator.fenced(self.member_id, self.generation))

    @property
    def alive(self) -> bool:
        return self.state != "ended"

    def end(self) -> None:
        self.state = "ended"
        for wire in self.wires.values():
            wire.close()

    def cut_off(self) -> None:
        """Lose all connections. Requests in flight get no response."""
        for where in list(self.wires):
            self.lose(where).close()

    def lose(self, where: str) -> Wire:
        """Lose a connection, and return it. A request in flight gets no response."""
        asked = self.asked.pop(where, b"")
        if int.from_bytes(asked[4:6]) == OFFSET_COMMIT:
            self.wires[where].overtakes = partial(self.commits_late, read_commit(asked).entries)
        if where == "c" and asked:
            self.state = {
                JOIN_GROUP: "unjoined",
                SYNC_GROUP: "joined",
                OFFSET_FETCH: "asks",
            }.get(int.from_bytes(asked[4:6]), self.state)
        return self.wires.pop(where)

    def commits_late(self, entries: Iterable[Entry]) -> None:
        """Note that the broker takes a commit of a lost connection. It may put back those sent since then."""
        for each in entries:
            self.commits = [one for one in self.commits if one[1] != each.partition or one[2] <= each.offset]
        self.crashes.append(self.world.step)
        self.overtaken = self.asked.get("c", b"")

    # Requests

    def _head(self, key: int, version: int) -> Writer:
        body = Writer(key, version)
        body.string(GROUP)
        if key != LEAVE_GROUP:
            body.number(self.generation)
        body.string(self.member_id)
        if key in {HEARTBEAT, SYNC_GROUP}:
            body.string(None)
        return body

    def _send(self, where: str, key: int, version: int, body: Writer) -> None:
        self._put(where, request(key, version, self.client_id, body.content))

    def _put(self, where: str, frame: bytes) -> None:
        wire = self.wires.get(where)
        if wire is None:
            wire = self.wires[where] = self.world.wire(self.world.reached(self))
        self.asked[where] = frame
        wire.ask(frame)

    def _join(self) -> None:
        body = Writer(JOIN_GROUP, 5)
        body.string(GROUP)
        body.number(int(SESSION * 1000))
        body.number(int(REBALANCE * 1000))
        body.string(self.member_id)
        body.string(None)
        body.string(b"consumer")
        body.count(1)
        body.string(OWN)
        body.data(subscription(TOPIC.encode(), self.owned()))
        self.state = "joining"
        self._send("c", JOIN_GROUP, 5, body)

    def owned(self) -> Sequence[TopicPartition]:
        """Return the partitions that the client lists as its own when it joins."""
        return ()

    def asked_places(self) -> Sequence[TopicPartition]:
        """Return the partitions whose committed offsets the client requests."""
        return self.places

    def _sync(self) -> None:
        body = self._head(SYNC_GROUP, 3)
        body.count(len(self.leads))
        dealt = self.deal([(TOPIC.encode(), number) for number in range(self.world.partitions)])
        for member_id, places in dealt.items():
            body.string(member_id)
            body.data(assignment(places))
        self.state = "syncing"
        self._send("c", SYNC_GROUP, 3, body)

    def deal(self, places: list[TopicPartition]) -> dict[bytes, list[TopicPartition]]:
        """Return the partitions of each member, if the client leads."""
        return {member_id: places[at :: len(self.leads)] for at, member_id in enumerate(self.leads)}

    def _offsets(self) -> None:
        body = Writer(OFFSET_FETCH, 2)
        body.string(GROUP)
        body.count(1)
        body.string(TOPIC.encode())
        body.count(len(self.asked_places()))
        for _, partition in self.asked_places():
            body.number(partition)
        self._send("c", OFFSET_FETCH, 2, body)

    def _commit(self) -> None:
        body = Writer(OFFSET_COMMIT, 3)
        body.string(GROUP)
        body.number(self.generation)
        body.string(self.member_id)
        body.content += (-1).to_bytes(8, signed=True)
        body.count(1)
        body.string(TOPIC.encode())
        body.count(len(self.done))
        for partition, offset in self.done.items():
            body.number(partition)
            body.content += offset.to_bytes(8)
            body.string(b"")
        self._send("c", OFFSET_COMMIT, 3, body)

    def _fetch(self) -> None:
        partitions = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in sorted(self.positions.items())
        )
        frame = encode_request(
            FetchRequest(
                version=FETCH_VERSION,
                client_id=self.client_id,
                max_wait_ms=200,
                session_id=0,
                session_epoch=-1,
                topics=(FetchTopic(topic=TOPIC, partitions=partitions),),
            )
        )
        self._put("f", framed(frame))

    # Responses

    def _read(self) -> None:
        for where, wire in list(self.wires.items()):
            for frame in got(wire.connection) if wire.open else ():
                asked = self.asked.pop(where)
                assert frame[4:8] == asked[8:12]
                if where == "f":
                    self._fetched(frame)
                else:
                    self._said(int.from_bytes(asked[4:6]), asked, frame)

    def _fetched(self, frame: bytes) -> None:
        if self.state != "stable":
            return
        for topic in decode_response(frame[4:], FETCH_VERSION).topics:
            for entry in topic.partitions:
                self._take(entry.partition_index, entry.records or b"", entry.error_code)

    def _take(self, partition: int, records: bytes, error: int) -> None:
        position = self.positions[partition]
        assert not error, error
        end = position
        at = 0
        while at < len(records):
            size = int.from_bytes(records[at + 8 : at + 12]) + 12
            end = int.from_bytes(records[at : at + 8]) + int.from_bytes(records[at + 23 : at + 27]) + 1
            at += size
        for record in read(records) if records else ():
            if record.offset >= position:
                self.hand.append((partition, record))
        self.positions[partition] = end

    def _said(self, key: int, asked: bytes, frame: bytes) -> None:
        if key == JOIN_GROUP:
            self._joined(frame)
        elif key == SYNC_GROUP:
            self._synced(frame)
        elif key == OFFSET_FETCH:
            self._told(frame)
        elif key == OFFSET_COMMIT:
            self._committed(asked, frame)
        elif key == LEAVE_GROUP:
            self.end()
        else:
            self._again(heartbeat_error(frame, 3))

    def _again(self, error: int) -> None:
        if error in GONE:
            if error == UNKNOWN_MEMBER_ID:
                self.member_id = b""
            self.generation = -1
            self.lost()
        elif error == REBALANCE_IN_PROGRESS and self.state == "stable":
            self.state = "revoking"
        else:
            assert error in {0, REBALANCE_IN_PROGRESS}, error

    def _joined(self, frame: bytes) -> None:
        error = int.from_bytes(frame[12:14])
        self.state = "unjoined"
        if error:
            self._again(error)
            return
        said = read_joined(frame, 5)
        self.member_id = said.member_id
        self.generation = int.from_bytes(frame[14:18])
        self.leads = [member_id for member_id, _, _ in said.members]
        self.state = "joined"

    def _synced(self, frame: bytes) -> None:
        said = read_synced(frame, 3)
        self.state = "unjoined"
        if said.error_code:
            self._again(said.error_code)
            return
        self.assignment += 1
        self.places = read_assignment(said.assignment)[0]
        self.state = "asks" if self.places else "stable"
        self.beat_at = self.world.now + BEAT

    def _told(self, frame: bytes) -> None:
        (group,) = read_fetched_offsets(frame, 2).groups
        self.positions = {each.partition: max(each.offset, 0) for each in group.entries}
        self.state = "stable"

    def _committed(self, asked: bytes, frame: bytes) -> None:
        commit = read_commit(asked)
        entries: list[Entry] = read_answered(frame, commit)
        error = entries[0].error_code
        if error:
            if self.state == "revoking" or self.leaving:
                self.crashes.append(self.world.step)
                self.done.clear()
            if error in GONE:
                self._again(error)
            return
        for each in commit.entries:
            if asked is not self.overtaken:
                self.commits.append(
                    (self.since(each.partition), each.partition, each.offset, self.world.step)
                )
            if self.done.get(each.partition) == each.offset:
                del self.done[each.partition]


class Incremental(Client):
    """A consumer with incremental rebalancing, like librdkafka with cooperative-sticky.

    It goes on to process its partitions while it joins again, and commits for those that it loses afterwards.
    """

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.epochs: dict[int, int] = {}
        self.fetching: dict[int, int] = {}
        """The position of each partition in the fetch that is under way."""
        self.fresh: list[TopicPartition] = []
        """The partitions of the last assignment that the client did not have before."""
        self.revoked: set[int] = set()
        self.owners: dict[bytes, frozenset[TopicPartition]] = {}

    @property
    def fetches(self) -> bool:
        return self.alive

    @property
    def processes(self) -> bool:
        return self.alive

    def _coordinate(self) -> None:
        world, leaves = self.world, self.leaving and self.state in {"stable", "unjoined"}
        if (self.state == "revoking" or leaves) and self.done:
            self._commit()
        elif leaves and self.member_id:
            self._send("c", LEAVE_GROUP, 1, self._head(LEAVE_GROUP, 1))
            self._revoke()
            self.state = "left"
        elif leaves:
            self.end()
        elif self.state == "revoking":
            self._drop()
            self.state = "asks" if self.fresh else "unjoined"
        elif self.state == "unjoined":
            self._join()
        elif self.state == "joined":
            self._sync()
        elif self.state == "asks":
            self._offsets()
        elif self.done and world.now >= self.commit_at:
            self.commit_at = world.now + 0.3
            self._commit()
        elif world.now >= self.beat_at and self.state == "stable":
            self.beat_at = world.now + BEAT
            self._send("c", HEARTBEAT, 3, self._head(HEARTBEAT, 3))

    def _drop(self) -> None:
        for partition in self.revoked:
            self.positions.pop(partition, None)
            self.epochs.pop(partition, None)
        self.places = [each for each in self.places if each[1] not in self.revoked]
        self.hand = deque(each for each in self.hand if each[0] not in self.revoked)

    def _revoke(self) -> None:
        super()._revoke()
        self.epochs, self.fresh, self.revoked = {}, [], set()

    def lost(self) -> None:
        super().lost()
        self.state = "unjoined"

    def _again(self, error: int) -> None:
        if error == REBALANCE_IN_PROGRESS and self.state == "stable":
            self.state = "unjoined"
        else:
            super()._again(error)

    def _committed(self, asked: bytes, frame: bytes) -> None:
        state = self.state
        super()._committed(asked, frame)
        if self.state == "revoking" != state:
            self.state = "unjoined"

    def since(self, partition: int) -> int:
        return self.epochs.get(partition, -1)

    @property
    def forgotten(self) -> bool:
        return self.member_id not in self.world.coordinator.members

    def owned(self) -> Sequence[TopicPartition]:
        return self.places

    def _joined(self, frame: bytes) -> None:
        super()._joined(frame)
        if self.state == "joined":
            self.owners = {each: read_owned(own)[0] for each, _, own in read_joined(frame, 5).members}

    def deal(self, places: list[TopicPartition]) -> dict[bytes, list[TopicPartition]]:
        dealt: dict[bytes, list[TopicPartition]] = {member_id: [] for member_id in self.leads}
        most = -(-len(places) // max(len(dealt), 1))
        for place in places if dealt else ():
            owner = next((each for each, owned in self.owners.items() if place in owned), None)
            if owner is None:
                owner = min(dealt, key=lambda each: (len(dealt[each]), each))
            if len(dealt[owner]) < most:  # else its owner has to release it first
                dealt[owner].append(place)
        return dealt

    def _synced(self, frame: bytes) -> None:
        said = read_synced(frame, 3)
        if said.error_code:
            self.state = "unjoined"
            self._again(said.error_code)
            return
        self.assignment += 1
        before, given = self.places, read_assignment(said.assignment)[0]
        self.revoked = {partition for place in before if place not in given for _, partition in [place]}
        self.fresh = [place for place in given if place not in before]
        self.epochs |= {partition: self.assignment for _, partition in self.fresh}
        self.places = [*before, *self.fresh]
        self.state = "revoking" if self.revoked else "asks" if self.fresh else "stable"
        self.beat_at = self.world.now + BEAT

    def asked_places(self) -> Sequence[TopicPartition]:
        return self.fresh

    def _told(self, frame: bytes) -> None:
        (group,) = read_fetched_offsets(frame, 2).groups
        self.positions |= {each.partition: max(each.offset, 0) for each in group.entries}
        self.state, self.revoked = "unjoined" if self.revoked else "stable", set()

    def _fetch(self) -> None:
        self.fetching = dict(self.positions)
        super()._fetch()

    def _fetched(self, frame: bytes) -> None:
        for topic in decode_response(frame[4:], FETCH_VERSION).topics:
            for entry in topic.partitions:
                at = entry.partition_index
                if self.positions.get(at) == self.fetching[at]:
                    self._take(at, entry.records or b"", entry.error_code)


class World:
    """The complete system. `run` executes random events, and `settle` lets all members finish their work."""

    def __init__(
        self,
        seed: int,
        members: int = 4,
        partitions: int = 2,
        heat: float = 1.0,
        gateways: int = 1,
        kind: type[Client] = Client,
        roams: bool = False,
    ) -> None:
        self.kind, self.roams = kind, roams
        self.chance, self.heat = random.Random(seed), heat
        self.partitions = partitions
        self.now, self.step = 1.0, 0
        self.processes = 0
        self.gateways = [
            Gateway(
                self._process(), 0 if gateways == 1 else self.chance.choice((-HOUR, 0.0, HOUR)) + 2 * HOUR
            )
            for _ in range(gateways)
        ]
        self.coordinator = Coordinator()
        self.broker = ModelBroker(release="4.3.0", slots=100, seed=1)
        self.broker.create_topic(TOPIC, partitions)
        if roams:  # without a committed offset, any first fetch is right
            self.coordinator.stored = {(TOPIC.encode(), number): (0, b"") for number in range(partitions)}
        self.wires: list[Wire] = []
        self.half_open: list[tuple[float, Wire]] = []
        """Connections that clients have lost, while their gateway sees them until a time."""
        self.slots = [f"{number}" for number in range(members)]
        self.clients: list[Client] = []
        self.log: dict[tuple[int, int], bytes] = {}
        self.processed: list[Processed] = []
        self.story: list[str] = []
        self.across = 0
        """How many records were processed while members of several gateways had their partition."""

    def _process(self) -> Members:
        self.processes += 1
        return Members(["billing"], gateway=b"%d" % self.processes)

    def reached(self, client: Client) -> Gateway:
        """Return the gateway that a new connection of a client reaches: any, if they have one address."""
        return self.chance.choice(self.gateways) if self.roams else client.gateway

    def wire(self, gateway: Gateway) -> Wire:
        wire = Wire(self, gateway)
        self.wires.append(wire)
        return wire

    def process(self, client: Client, partition: int, record: Record) -> None:
        key = record.key or b""
        if client.forgotten:
            return  # the group has gone on without it, and it does not know yet: another one gets the record
        since = client.since(partition)
        self.processed.append(Processed(partition, record.offset, key, self.step, client, since))
        self.across += any(
            other.gateway is not client.gateway and partition in other.positions and not other.forgotten
            for other in self.clients
        )

    def living(self, slot: str) -> Client | None:
        return next((each for each in self.clients if each.name == slot and each.alive), None)

    def run(self, steps: int, *, disturbed: bool = True) -> None:
        for _ in range(steps):
            self.step += 1
            self.now += STEP
            if disturbed:
                self._produce()
                self._disturb()
            for client in self.chance.sample(self.clients, len(self.clients)):
                if self.chance.random() < 0.7:
                    client.step()
            for client in self.clients:
                reached = self.gateways if self.roams else [client.gateway]
                if client.alive and any(self.now < each.cut_until for each in reached):
                    client.crashes.append(self.step)
            for wire in self.chance.sample(self.wires, len(self.wires)):
                wire.deliver()
                if self.chance.random() < 0.7:
                    self._serve(wire)
                wire.tick()
            for until, wire in self.half_open:
                if self.now >= until:
                    wire.close()
            self.wires = [each for each in self.wires if each.open or each.upstream]
            self.coordinator.expire(self.now)

    def _produce(self) -> None:
        for number in range(self.partitions):
            if self.chance.random() < 0.3:
                self.append(
                    number,
                    [b"k%d" % self.chance.randrange(12) for _ in range(1, self.chance.randrange(2, 5))],
                )

    def append(self, number: int, keys: Sequence[bytes]) -> None:
        """Append a batch with these keys to a partition."""
        partition = self.broker.partition(TOPIC, number)
        records = [Record(offset, key) for offset, key in enumerate(keys, partition.log_end)]
        partition.append(batch(records), count=len(records))
        self.log.update({(number, each.offset): each.key or b"" for each in records})

    def _disturb(self) -> None:
        slot = self.chance.choice(self.slots)
        client = self.living(slot)
        what = self.chance.random() / self.heat
        if client is None:
            if self.chance.random() < 0.1:
                self.clients.append(self.kind(self, slot))
        elif what < 0.006:
            client.crashes.append(self.step)
            client.end()
            self.told(f"{slot} killed")
            if self.chance.random() < 0.8:
                self.clients.append(self.kind(self, slot))
        elif what < 0.009:
            client.leaving = True
            self.told(f"{slot} leaves")
        elif what < 0.012:
            client.sleeps_until = self.now + self.chance.uniform(0.5, 2 * SESSION)
            client.crashes.append(self.step)
            self.told(f"{slot} stopped")
        elif what < 0.015:
            self.told(f"{slot} cut off")
            client.crashes.append(self.step)
            client.cut_off()
        elif self.roams and self.chance.random() < 0.01 * self.heat:
            self._move(client)
        elif self.chance.random() < 0.002 * self.heat * len(self.gateways):
            self._restart(self.gateways[0] if len(self.gateways) == 1 else self.chance.choice(self.gateways))
        elif len(self.gateways) > 1 and self.chance.random() < 0.002 * self.heat * len(self.gateways):
            gateway = self.chance.choice(self.gateways)
            long = self.chance.random() < 0.05
            seconds = LONG_CUT_SECONDS if long else self.chance.uniform(*CUT_SECONDS)
            gateway.cut_until = self.now + seconds
            self.told(f"gateway {self.gateways.index(gateway)} cut off for {seconds:.1f} s")

    def _move(self, client: Client) -> None:
        """Let a client lose one of its connections. Its gateway may see that much later."""
        where = self.chance.choice("cf")
        if where not in client.wires:
            return
        if where == "c":
            client.crashes.append(self.step)  # of a commit in flight, the client gets no response
        wire = client.lose(where)
        if half_open := self.chance.random() < 0.3:
            self.half_open.append((self.now + self.chance.uniform(0, 3 * SESSION), wire))
        else:
            wire.close()
        self.told(f"{client.name} loses {where}{' half-open' * half_open}")

    def _restart(self, gateway: Gateway) -> None:
        """Kill a gateway, and start a new one."""
        self.told(f"gateway {self.gateways.index(gateway)}")
        for client in (each for each in self.clients if each.alive):
            lost = [where for where, wire in client.wires.items() if wire.gateway is gateway]
            if lost or client.gateway is gateway:
                client.crashes.append(self.step)
            for where in lost:
                client.lose(where).close()
        for wire in self.wires:
            if wire.gateway is gateway:
                wire.close()
        gateway.members = self._process()

    def told(self, text: str) -> None:
        self.story.append(f"{self.step} {text}")

    def _serve(self, wire: Wire) -> None:
        if not wire.upstream or wire.held or wire.cut_off:
            return
        frame = wire.upstream[0]
        if int.from_bytes(frame[4:6]) == FETCH:
            wire.answer(framed(self.broker.handle(frame[4:], self.now)))
            return
        wire.held = True
        said = self.coordinator.handle(wire, frame, self.now)
        if said is not None:
            wire.answer(said)

    def until(self, true: Callable[[], object], steps: int = 2000) -> None:
        """Run without disturbances until a condition is true."""
        for _ in range(steps):
            if true():
                return
            self.run(1, disturbed=False)
        raise AssertionError("it does not become true")

    def settle(self) -> None:
        """Start missing members, connect all gateways, and let all records be processed."""
        for gateway in self.gateways:
            gateway.cut_until = 0.0
        if self.roams:
            self._come_together()
        for slot in self.slots:
            if self.living(slot) is None:
                self.clients.append(self.kind(self, slot))
        for _ in range(60):
            self.run(40, disturbed=False)
            if {(each.partition, each.offset) for each in self.processed} >= self.log.keys():
                return

    def _come_together(self) -> None:
        """Let all connections reach one gateway from now on."""
        self.roams = False
        for client in self.clients:
            client.gateway = self.gateways[0]
            if client.alive:
                client.crashes.append(self.step)
                client.cut_off()

    # What must hold

    def lost(self) -> list[tuple[int, int]]:
        """Return (partition, offset) of the records that no client has processed."""
        return sorted(self.log.keys() - {(each.partition, each.offset) for each in self.processed})

    def unordered(self) -> list[str]:
        """Return descriptions of records that were first processed after a later record of their key."""
        found: list[str] = []
        seen: set[tuple[int, int]] = set()
        highest: dict[tuple[int, bytes], int] = {}
        for each in self.processed:
            at, key = (each.partition, each.offset), (each.partition, each.key)
            if at not in seen and each.offset < highest.get(key, -1):
                found.append(f"{at} of {each.client.name} at {each.at}, after {highest[key]}")
            seen.add(at)
            highest[key] = max(highest.get(key, -1), each.offset)
        return found

    def twice(self) -> list[str]:
        """Return descriptions of records that were processed twice without a good reason.

        A good reason is a crash before the record's offset was committed, or a commit that the broker takes
        late, from a connection that the client has lost.
        """
        return list(self._twice())

    def _twice(self) -> Iterable[str]:
        first: dict[tuple[int, int], Processed] = {}
        for each in self.processed:
            before = first.setdefault((each.partition, each.offset), each)
            if before is each:
                continue
            committed = [
                at
                for assignment, partition, offset, at in before.client.commits
                if assignment == before.assignment and partition == each.partition
                if offset > each.offset and before.at <= at < each.at
            ]
            crashed = [at for at in before.client.crashes if before.at <= at <= each.at]
            if committed or not crashed:
                place = f"partition {each.partition} offset {each.offset} key {each.key!r}"
                who = f"{before.client.name} at {before.at}, {each.client.name} at {each.at}"
                yield f"{place}: {who}; committed at {committed}"
            first[each.partition, each.offset] = each
