"""Each record goes exactly once to the member that has its key, for any produced records and any fetches.

Members read through the complete core, with sessions, from a model broker. All bytes are cut into pieces of
any size.
"""

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.features.cooperative.batches import HEADER_BYTES, read_header
from proxy.features.cooperative.key_hash import SPACE, murmur2, offset_hash
from proxy.features.cooperative.member_stage import MemberStage
from proxy.features.cooperative.members import Members
from proxy.features.cooperative.ranges import KeyRange
from tests.connections import connect
from tests.examples import examples
from tests.features.cooperative.batch import Record, batch, read, suffix
from tests.model.broker import ModelBroker
from tests.model.gate import Gate
from tests.model.wire import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
    decode_response,
    encode_request,
)

TOPIC = "orders"
PARTITIONS = 3
KEYS = [None, b"", *(b"%d" % number for number in range(12))]
API_VERSIONS = bytes.fromhex("001200000000006200017800")[:11]
WAIT_MS = 500


class World:
    """A broker with one topic."""

    def __init__(self, release: str = "4.3.0") -> None:
        self.broker = ModelBroker(release=release, slots=1000, seed=1)
        self.broker.create_topic(TOPIC, PARTITIONS)
        self.log: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.members = Members(["billing"])
        self.sessions = SessionLimits(max_sessions=100)
        self.now = 1.0

    def produce(self, index: int, keys: list[bytes | None], codec: int) -> None:
        base = len(self.log[index])
        records = [Record(base + place, key) for place, key in enumerate(keys)]
        self.log[index] += records
        self.partition(index).append(batch(records, codec, leader_epoch=0), count=len(records))

    def partition(self, index: int):  # type: ignore[no-untyped-def]  # noqa: ANN201 - the model's own
        return self.broker.topics[TOPIC].partitions[index]

    def connection(self) -> Connection:
        return connect(
            sessions=self.sessions, resolve=None, host="h", stages=(partial(MemberStage, self.members),)
        )


class Reader:
    """A client with one key range. Each of its fetches lists all partitions."""

    def __init__(self, world: World, lane: KeyRange, version: int, seed: int) -> None:
        self.world, self.lane, self.version = world, lane, version
        self.chance = random.Random(seed) if seed % 4 == 0 else None
        self.client_id = "reader" + suffix((lane,))
        self.offsets = [0] * PARTITIONS
        self.got: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.correlation = 0
        self.connect()

    def connect(self) -> None:
        self.gate = Gate(self.world.connection(), self.world.broker, self.chance)

    def fetch(self, most: int = 1 << 20) -> None:
        world = self.world
        world.now += 0.01
        self.correlation += 1
        request = FetchRequest(
            version=self.version,
            correlation_id=self.correlation,
            client_id=self.client_id,
            max_wait_ms=WAIT_MS,
            max_bytes=most,
            topics=(
                FetchTopic(
                    topic=TOPIC,
                    partitions=tuple(
                        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=most)
                        for index, offset in enumerate(self.offsets)
                    ),
                ),
            ),
        )
        (frame,) = self.gate.exchange([encode_request(request)], world.now)
        response = decode_response(frame, self.version)
        assert response.correlation_id == self.correlation
        entries = [data for topic in response.topics for data in topic.partitions]
        assert [data.partition_index for data in entries] == list(range(PARTITIONS))
        for data in entries:
            self.take(data)

    def take(self, data: PartitionData) -> None:
        """Read complete batches, as clients do.

        From Fetch v12 on, the next offset is the one after the last batch. Below v12, it is the one after the
        last record.
        """
        assert data.error_code == 0
        index, records = data.partition_index, data.records or b""
        at = 0
        while at + HEADER_BYTES <= len(records):
            header = read_header(records, at)
            whole = records[at : at + header.size]
            if len(whole) < header.size:
                break
            at += header.size
            new = [record for record in read(whole) if record.offset >= self.offsets[index]]
            assert header.records or self.version >= 12, "an empty batch for a client that takes none"
            self.got[index] += new
            end = header.last_offset if self.version >= 12 else new[-1].offset
            self.offsets[index] = end + 1

    def owned(self, index: int) -> list[Record]:
        low, high = self.lane
        return [
            record
            for record in self.world.log[index]
            if low <= (offset_hash(record.offset) if record.key is None else murmur2(record.key)) <= high
        ]


def lanes(bounds: list[int]) -> list[KeyRange]:
    starts = [0, *bounds]
    return list(zip(starts, [bound - 1 for bound in (*bounds, SPACE)], strict=True))


PRODUCED = st.tuples(
    st.integers(0, PARTITIONS - 1),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=8),
    st.sampled_from([0, 0, 1, 3, 4]),
)
STEPS = st.lists(st.one_of(PRODUCED, st.integers(0, 5), st.just("gone")), max_size=25)


@pytest.mark.parametrize("version", [4, 7, 11, 12])
@examples(20)
@given(
    bounds=st.lists(st.integers(1, SPACE - 1), min_size=1, max_size=3, unique=True).map(sorted),
    steps=STEPS,
    most=st.sampled_from([1, 200, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_each_record_goes_to_its_owner_once(
    version: int, bounds: list[int], steps: list[object], most: int, seed: int
) -> None:
    world = World()
    readers = [Reader(world, lane, version, seed) for lane in lanes(bounds)]
    for step in steps:
        match step:
            case (int() as index, list() as keys, int() as codec):
                world.produce(index, keys, codec)
            case int() as number:
                readers[number % len(readers)].fetch(most)
            case _:  # a connection breaks; the client goes on where it was
                reader = readers[seed % len(readers)]
                reader.gate.close(world.now)
                reader.connect()
    for reader in readers:
        fetches = 0
        while any(
            [record.offset for record in reader.got[index]]
            != [record.offset for record in reader.owned(index)]
            for index in range(PARTITIONS)
        ):
            reader.fetch(most)
            fetches += 1
            assert fetches < 200, "it gets no further"
        assert reader.got == [reader.owned(index) for index in range(PARTITIONS)]
        before = [*reader.offsets]
        reader.fetch(most)
        assert [list(map(len, reader.got))] == [[len(reader.owned(index)) for index in range(PARTITIONS)]]
        if version >= 12 and before == reader.offsets:
            assert reader.offsets == [len(log) for log in world.log], "its lag is wrong"
