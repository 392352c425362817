"""Each member gets exactly its own records, whatever the order of the fetches of members that share
partitions.

Members fetch through the complete core from a model broker, which answers when the test says so. Clients
connect, disconnect, seek and wait. The broker has errors and throttles. The records of each client are
compared with the log: exactly the records of its key ranges between its offset and its next offset.
"""

import random
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.eligibility import SessionLimits
from proxy.features.cooperative.batches import HEADER_BYTES, Header, read_header
from proxy.features.cooperative.key_hash import SPACE, murmur2, offset_hash
from proxy.features.cooperative.member_stage import MemberStage
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.ranges import KeyRange
from tests.connections import connect
from tests.examples import examples
from tests.features.cooperative.batch import Record, batch, control_key, crc, read, suffix
from tests.model.broker import ModelBroker
from tests.model.gate import cut, framed, unframed
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
    decode_request,
    decode_response,
    encode_request,
)

TOPIC = "orders"
PARTITIONS = 2
KEYS = [None, b"", *(b"%d" % number for number in range(8))]
WAIT = 0.5
ERRORS = (3, 6)
CONTROL, TRANSACTIONAL = 0x20, 0x10
RULES = {
    "batch": "the end of the last batch: Java, librdkafka, franz-go, kafka-python 3, aiokafka",
    "record": "the record after the last one, markers included: kafka-go",
    "KafkaJS": "so too, but one further than it has asked for if no record of a response is new",
    "Sarama": "so too, but one further for each batch of which no record is new",
}
"""The rules by which clients choose their next fetch offset."""


class World:
    """A broker with one topic, and a gateway in front of it."""

    def __init__(self, isolation: int = 0) -> None:
        self.broker = ModelBroker(release="4.3.0", slots=1000, seed=1)
        self.broker.create_topic(TOPIC, PARTITIONS)
        self.logs: list[dict[int, Record]] = [{} for _ in range(PARTITIONS)]
        """For each partition: offset -> record that a client of this isolation level may see."""
        self.isolation = isolation
        self.members = Members(["billing"])
        self.now = 1.0
        self.upstream = 0
        """Bytes of records that the broker has sent."""

    def produce(self, index: int, keys: list[bytes | None], codec: int, producer: int | None = None) -> None:
        log = self.broker.partition(TOPIC, index)
        records = [Record(log.log_end + place, key) for place, key in enumerate(keys)]
        own = (-1, -1, -1) if producer is None else (producer, 0, 0)
        data = batch(records, codec, transactional=int(producer is not None), producer=own, leader_epoch=0)
        log.append(data, count=len(records), producer=producer)
        self.logs[index] |= {record.offset: record for record in records}

    def end_transaction(self, index: int, producer: int, *, commit: bool) -> None:
        log = self.broker.partition(TOPIC, index)
        if producer not in log.open:
            return
        if not commit and self.isolation:
            first = log.open[producer]
            for each in log.segments[-1].batches:
                if each.base_offset >= first and int.from_bytes(each.data[43:51]) == producer:
                    for offset in range(each.base_offset, each.last_offset + 1):
                        self.logs[index].pop(offset, None)
        marker = bytearray(
            batch(
                [Record(log.log_end, b"\0\0\0" + bytes([commit]))],
                transactional=1,
                producer=(producer, 0, -1),
                leader_epoch=0,
            )
        )
        marker[21:23] = (TRANSACTIONAL | CONTROL).to_bytes(2)
        marker[17:21] = crc(bytes(marker))
        log.end_transaction(producer, commit=commit, marker=bytes(marker))


class Client:
    """A client with one key range, which has at most one fetch in flight."""

    def __init__(
        self,
        world: World,
        lane: KeyRange,
        version: int = 12,
        chance: random.Random | None = None,
        *,
        client_id: str = "",
        broker: str = "b:9092",
        rule: str = "",
    ) -> None:
        self.world, self.lane, self.version, self.chance = world, lane, version, chance
        self.rule = rule or ("batch" if version >= 12 else "record")
        self.client_id, self.broker = client_id or "reader" + suffix((lane,)), broker
        self.offsets = [0] * PARTITIONS
        self.got: list[dict[int, Record]] = [{} for _ in range(PARTITIONS)]
        self.numbers = count(1)
        self.most = 1 << 20
        self.answers: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        world = self.world
        self.connection = connect(
            sessions=SessionLimits(max_sessions=0),
            resolve=None,
            host="h",
            name=self.broker,
            stages=(partial(MemberStage, world.members),),
        )
        self.alarms: list[float] = []
        self.connection.attach(lambda: None, self.alarms.append)
        self.asked = 0
        """The correlation id of the fetch in flight, or 0."""
        self.left = self.partial = b""
        self.due = 0.0

    def ask(self, *partitions: int) -> None:
        if self.asked:
            return
        self.asked = next(self.numbers)
        self.due = self.world.now + WAIT
        request = FetchRequest(
            version=self.version,
            correlation_id=self.asked,
            client_id=self.client_id,
            max_wait_ms=int(WAIT * 1e3),
            max_bytes=self.most,
            isolation_level=self.world.isolation,
            topics=(
                FetchTopic(
                    topic=TOPIC,
                    partitions=tuple(
                        FetchPartition(
                            partition=index, fetch_offset=self.offsets[index], partition_max_bytes=self.most
                        )
                        for index in partitions or range(PARTITIONS)
                    ),
                ),
            ),
        )
        for piece in cut(framed(encode_request(request)), self.chance):
            self.connection.receive_client(piece, self.world.now)

    def respond(self) -> bool:
        """Let the broker answer the first request of this connection. Return whether there was a request."""
        self.left += b"".join(map(bytes, self.connection.drain_broker()))
        size = int.from_bytes(self.left[:4])
        if not self.left:
            return False
        frame, self.left = self.left[4 : 4 + size], self.left[4 + size :]
        response = self.world.broker.handle(frame, self.world.now)
        for topic in decode_response(response, decode_request(frame).version).topics:
            self.world.upstream += sum(len(data.records or b"") for data in topic.partitions)
        for piece in cut(framed(response), self.chance):
            self.connection.receive_broker(piece, self.world.now)
        return True

    def tick(self) -> None:
        due = [at for at in self.alarms if at <= self.world.now]
        self.alarms[:] = [at for at in self.alarms if at > self.world.now]
        for _ in due:
            self.connection.tick(self.world.now)

    def take(self) -> None:
        """Read the response, if one has come."""
        assert self.connection.fault is None, self.connection.fault
        self.partial += b"".join(map(bytes, self.connection.drain_client()))
        if not self.partial:
            return
        (frame,) = unframed(self.partial)
        self.partial = b""
        self.answers.append(frame)
        response = decode_response(frame, self.version)
        assert response.correlation_id == self.asked
        self.asked = 0
        for topic in response.topics:
            for data in topic.partitions:
                if data.error_code == 0:
                    self.read(data)
                else:
                    assert data.error_code in ERRORS

    def read(self, data: PartitionData) -> None:
        index, records, at = data.partition_index, data.records or b"", 0
        began = self.offsets[index]
        ended, got = began, dict[int, Record]()
        aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted or ())
        skipped: set[int] = set()
        while at + HEADER_BYTES <= len(records):
            header = read_header(records, at)
            whole = records[at : at + header.size]
            if len(whole) < header.size:
                break
            at += header.size
            producer = int.from_bytes(whole[43:51], signed=True)
            while aborted and aborted[0][0] <= header.last_offset:
                skipped.add(aborted.pop(0)[1])
            if header.attributes & CONTROL:
                assert producer >= 0 or self.version >= 12, "a placeholder for a client that takes none"
                if control_key(whole) == b"\0\0\0\0":
                    skipped.discard(producer)
                ended = self.next_offset(ended, header, [header.last_offset])
                continue
            assert header.records, "librdkafka takes it for a response that is cut"
            new = [record for record in read(whole) if record.offset >= ended]
            ended = self.next_offset(ended, header, [record.offset for record in read(whole)])
            if not (header.attributes & TRANSACTIONAL and producer in skipped):
                got |= {record.offset: record for record in new}
        if at and ended == began and self.rule == "KafkaJS":
            ended += 1
        assert got == self.owned(index, began, ended)
        self.got[index] |= got
        self.offsets[index] = ended

    def next_offset(self, ended: int, header: Header, offsets: list[int]) -> int:
        """Return the client's next fetch offset after a batch, by its rule in `RULES`.

        Args:
            ended: the next fetch offset before this batch.
            header: the header of the batch.
            offsets: the offsets of the records in the batch, markers included.
        """
        if self.rule == "batch":
            return header.last_offset + 1
        if offsets[-1] >= ended:
            return offsets[-1] + 1
        return ended + (self.rule == "Sarama")

    def owned(self, index: int, began: int, ended: int) -> dict[int, Record]:
        low, high = self.lane
        return {
            offset: record
            for offset, record in self.world.logs[index].items()
            if began <= offset < ended
            and low <= (offset_hash(offset) if record.key is None else murmur2(record.key)) <= high
        }

    def die(self) -> None:
        """Lose the connection, and open a new one."""
        self.connection.ended()
        self.connect()

    def close(self) -> None:
        """End the connection gracefully, as a stopping gateway does, and open a new one."""
        self.connection.close_session(self.world.now)
        for _ in range(20):
            if self.connection.done:
                break
            self.respond()
        assert self.connection.done
        self.take()
        self.connection.ended()
        self.connect()


def lanes(bounds: list[int]) -> list[KeyRange]:
    starts = [0, *bounds]
    return list(zip(starts, [bound - 1 for bound in (*bounds, SPACE)], strict=True))


def settle(world: World, clients: list[Client]) -> None:
    """Let time pass until no client waits for a response."""
    for _ in range(40):
        for client in clients * 2:
            while client.respond():
                pass
        for client in clients:
            client.take()
        if not any(client.asked for client in clients):
            return
        world.now += 0.1
        for client in clients:
            client.tick()
    raise AssertionError([client.connection for client in clients if client.asked])


def check_end(world: World, clients: list[Client]) -> None:
    """Check that no client waits forever, that each gets all its records, and that nothing is left in
    memory.
    """
    for index in range(PARTITIONS):
        log = world.broker.partition(TOPIC, index)
        log.error = 0
        for producer in list(log.open):
            world.end_transaction(index, producer, commit=False)
    world.broker.throttle_ms = 0
    settle(world, clients)
    for round_ in count():
        behind = [
            client
            for client in clients
            if any(
                client.owned(index, client.offsets[index], world.broker.partition(TOPIC, index).log_end)
                for index in range(PARTITIONS)
            )
        ]
        if not behind:
            break
        assert round_ < 200, "it gets no further"
        for client in behind:
            client.ask()
        settle(world, clients)
    for client in clients:
        client.connection.ended()
    assert (len(world.members.shared_fetches), world.members.shared_fetches.buffered) == (0, 0)


WEIGHTS = {
    "produce": 12,
    "end": 6,
    "ask": 30,
    "one": 3,
    "respond": 30,
    "take": 10,
    "wait": 6,
    "die": 1,
    "close": 1,
    "seek": 8,
    "error": 1,
    "throttle": 1,
}
"""How often each possible event happens, relative to the others."""


def happen(world: World, clients: list[Client], chance: random.Random) -> None:
    """Let a random event happen."""
    (what,) = chance.choices([*WEIGHTS], [*WEIGHTS.values()])
    client, index = chance.choice(clients), chance.randrange(PARTITIONS)
    log = world.broker.partition(TOPIC, index)
    client.take()
    match what:
        case "produce":
            keys = chance.choices(KEYS, k=chance.randint(1, 6))
            world.produce(index, keys, chance.choice([0, 3]), chance.choice([None, None, 5, 6]))
        case "end":
            world.end_transaction(index, chance.choice([5, 6]), commit=chance.random() < 0.5)
        case "ask":
            client.ask()
        case "one":
            client.ask(index)
        case "respond":
            client.respond()
        case "wait":
            world.now += chance.choice([0.01, 0.2, 0.6, 50.0])
            for each in clients:
                each.tick()
        case "die":
            client.die()
        case "close":
            client.close()
        case "seek" if not client.asked:
            at = client.offsets[index] + chance.randint(-8, 4)
            client.offsets[index] = min(max(at, 0), log.last_stable_offset)
        case "error":
            log.error = chance.choice([0, 0, *ERRORS])
        case "throttle":
            world.broker.throttle_ms = chance.choice([0, 0, 100])
        case _:
            pass


CLIENTS = [(4, "record"), *((11, rule) for rule in RULES), (12, "batch"), (12, "Sarama")]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize(("version", "rule"), CLIENTS, ids=str)
@examples(30)
@given(
    bounds=st.lists(st.integers(1, SPACE - 1), min_size=1, max_size=3, unique=True).map(sorted),
    steps=st.integers(0, 200),
    most=st.sampled_from([1, 200, 1 << 20]),
    seed=st.integers(0, 1 << 32),
)
def test_each_response_is_the_members_own(
    version: int, rule: str, isolation: int, bounds: list[int], steps: int, most: int, seed: int
) -> None:
    """Cases C47 to C52: members share fetches, and each response has the records of its member's lane."""
    world = World(isolation)
    chance = random.Random(seed)
    pieces = random.Random(seed) if seed % 4 == 0 else None
    clients = [Client(world, lane, version, pieces, rule=rule) for lane in lanes(bounds)]
    for client in clients:
        client.most = most
    for _ in range(steps):
        happen(world, clients, chance)
    check_end(world, clients)
