"""Members of a cooperative group commit for their own key ranges, with a real broker."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Final, Protocol

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]  # it has no types
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, TopicPartition

from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.positions import read_committed
from tests.features.cooperative.batch import suffix
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin
from tools.kafka.raw import BodyReader, RawConnection, array, string

pytestmark = pytest.mark.integration

HALF: Final = SPACE // 2
LANES: Final = ("low" + suffix(((0, HALF - 1),)), "high" + suffix(((HALF, SPACE - 1),)))
RECORDS: Final = 1_000
OFFSET_FETCH: Final = 9
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.await_coordinator("billing")
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: Broker) -> Iterator[GatewayProcess]:
    with GatewayProcess(broker.address, "--cooperative", "billing") as gateway:
        yield gateway


@pytest.fixture
def topic(broker: Broker) -> str:
    """Make a topic with one partition and no committed offset.

    The partition has `RECORDS` records, each with its own key.
    """
    name = f"orders-{next(_numbers)}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, partitions=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})
    for number in range(RECORDS):
        producer.produce(name, key=b"key-%d" % number, value=b"%d" % number)
    assert producer.flush(30) == 0
    return name


def stored(broker: Broker, topic: str) -> tuple[int, bytes]:
    """Return the committed offset and the committed metadata that Kafka has.

    confluent-kafka appends a NUL to the metadata that it commits, and reads up to the next NUL. librdkafka's
    `rd_kafka_committed` appends none, so after the metadata that another program has committed there is
    garbage.
    """
    asked = array([string(topic) + array([struct.pack(">i", 0)])])
    with RawConnection(broker.host, broker.port) as connection:
        response = BodyReader(connection.call(OFFSET_FETCH, 2, string("billing") + asked))
    assert (response.int32(), response.string(), response.int32(), response.int32()) == (1, topic, 1, 0)
    offset, metadata = response.int64(), response.read(response.int16())
    assert (response.int16(), response.int16(), response.left) == (0, 0, 0)
    return offset, metadata


class Client(Protocol):
    def commit(self, topic: str, offset: int, metadata: str = "") -> None: ...
    def committed(self, topic: str) -> int: ...
    def close(self) -> None: ...


class Librdkafka:
    def __init__(self, address: str, client_id: str, group: str = "billing") -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "client.id": client_id,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
            }
        )

    def commit(self, topic: str, offset: int, metadata: str = "") -> None:
        told = self.consumer.commit(
            offsets=[TopicPartition(topic, 0, offset, metadata=metadata)], asynchronous=False
        )
        for each in told or []:
            if each.error is not None:
                raise KafkaException(each.error)

    def committed(self, topic: str) -> int:
        return self._found(topic).offset

    def metadata(self, topic: str) -> str:
        """Return the metadata that this client committed with its offset.

        See `stored` for the metadata that others committed.
        """
        return self._found(topic).metadata or ""

    def _found(self, topic: str) -> TopicPartition:
        (found,) = self.consumer.committed([TopicPartition(topic, 0)], timeout=60)
        if found.error is not None:
            raise KafkaException(found.error)
        return found

    def read(self, topic: str, wanted: int, offset: int | None = None) -> list[int]:
        """Read `wanted` records from `offset` on, or from the committed offset if it is None.

        Return the offsets of the records.
        """
        start = self.committed(topic) if offset is None else offset
        self.consumer.assign([TopicPartition(topic, 0, start)])
        got: list[int] = []
        while len(got) < wanted:
            for message in self.consumer.consume(wanted - len(got), 1):
                assert message.error() is None
                got.append(message.offset() or 0)
        return got

    def close(self) -> None:
        self.consumer.close()


class Aiokafka:
    def __init__(self, address: str, client_id: str) -> None:
        self.loop = asyncio.new_event_loop()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=address, client_id=client_id, group_id="billing", enable_auto_commit=False
            )
            await consumer.start()
            return consumer

        self.consumer = self.loop.run_until_complete(start())

    def commit(self, topic: str, offset: int, metadata: str = "") -> None:
        async def commit() -> None:
            place = AioPartition(topic, 0)
            self.consumer.assign([place])
            await self.consumer.commit({place: (offset, metadata)})

        self.loop.run_until_complete(commit())

    def committed(self, topic: str) -> int:
        offset: int = self.loop.run_until_complete(self.consumer.committed(AioPartition(topic, 0)))
        return offset

    def close(self) -> None:
        self.loop.run_until_complete(self.consumer.stop())
        self.loop.close()


CLIENTS: Final[dict[str, Callable[[str, str], Client]]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
}


@pytest.mark.parametrize("name", CLIENTS)
def test_each_reads_its_own_offset_and_kafka_has_the_lowest(
    name: str, broker: Broker, gateway: GatewayProcess, topic: str
) -> None:
    """Each member reads its own committed offset. Kafka stores the lowest one (case C23)."""
    with (
        closing(CLIENTS[name](gateway.address, LANES[0])) as low,
        closing(CLIENTS[name](gateway.address, LANES[1])) as high,
    ):
        low.commit(topic, 500, "mine")
        high.commit(topic, 300)
        assert (low.committed(topic), high.committed(topic)) == (500, 300)
        low.commit(topic, 600)
        assert (low.committed(topic), high.committed(topic)) == (600, 300)
    offset, metadata = stored(broker, topic)
    assert offset == 300
    with closing(Librdkafka(broker.address, "plain")) as plain:
        assert plain.committed(topic) == offset
    positions = read_committed(offset, metadata.decode("ascii")).positions
    assert (positions.at(0), positions.at(HALF - 1), positions.at(HALF)) == (600, 600, 300)


def test_what_the_application_says_beside_its_offset_comes_back(gateway: GatewayProcess, topic: str) -> None:
    """A client gets back the metadata that it committed (case C27)."""
    with closing(Librdkafka(gateway.address, LANES[0])) as low:
        low.commit(topic, 5, "what I was doing; äöü")
        assert (low.committed(topic), low.metadata(topic)) == (5, "what I was doing; äöü")


def owned(lane: int) -> list[int]:
    return [number for number in range(RECORDS) if murmur2(b"key-%d" % number) // HALF == lane]


def test_an_idle_lane_does_not_hold_the_offset(broker: Broker, gateway: GatewayProcess, topic: str) -> None:
    """Case C24: an idle lane does not hold back the group's committed offset.

    The idle lane has one record at the beginning. All later records belong to the other lane.
    """
    mine = owned(0)
    with (
        closing(Librdkafka(gateway.address, LANES[0])) as low,
        closing(Librdkafka(gateway.address, LANES[1])) as high,
        closing(Librdkafka(broker.address, "plain")) as plain,
    ):
        assert high.read(topic, len(owned(1)), 0) == owned(1)
        high.commit(topic, owned(1)[-1] + 1)
        assert low.read(topic, len(mine), 0) == mine
        low.commit(topic, mine[-1] + 1)
        high.consumer.poll(1)
        low.consumer.poll(1)
        high.commit(topic, owned(1)[-1] + 1)
        assert plain.committed(topic) == RECORDS


def test_the_owner_reads_again(gateway: GatewayProcess, topic: str) -> None:
    """Case C25: if a member commits a lower offset than before, it reads the records from there again."""
    with closing(Librdkafka(gateway.address, LANES[0])) as low:
        low.commit(topic, 500)
        low.commit(topic, 100)
        assert low.committed(topic) == 100
        assert low.read(topic, 5)[0] == next(number for number in owned(0) if number >= 100)


@pytest.mark.parametrize("start", [0, 400])
def test_the_first_commit_loses_no_record_of_an_idle_member(
    start: int, gateway: GatewayProcess, topic: str
) -> None:
    """Case C30: the first commit of an active member loses no record of an idle member.

    The idle member has read a record, but has not committed. Its position stays at or before that record.
    """
    with (
        closing(Librdkafka(gateway.address, LANES[0])) as low,
        closing(Librdkafka(gateway.address, LANES[1])) as high,
    ):
        first = high.read(topic, 1, start)
        low.committed(topic)
        high.committed(topic)
        low.read(topic, 100, start)
        low.commit(topic, 700)
        assert high.committed(topic) <= first[0]
        assert low.committed(topic) == 700


def test_a_gateway_that_begins_anew_knows_all_from_kafka(broker: Broker, topic: str) -> None:
    """Cases C31 and C32: a new gateway process reads the members' committed offsets from Kafka.

    Afterwards, a plain consumer reads from the lowest of these offsets.
    """
    for turn in range(3):
        with GatewayProcess(broker.address, "--cooperative", "billing") as gateway:
            for lane, client_id in enumerate(LANES):
                with closing(Librdkafka(gateway.address, client_id)) as member:
                    if turn:
                        assert member.committed(topic) == 100 * turn + 10 * lane
                    member.commit(topic, 100 * (turn + 1) + 10 * lane)
    with closing(Librdkafka(broker.address, "plain")) as plain:
        assert plain.committed(topic) == 300
        assert plain.read(topic, RECORDS - 300) == list(range(300, RECORDS))


def test_lanes_that_are_cut_anew_read_nothing_twice(gateway: GatewayProcess, topic: str) -> None:
    """If the key ranges of members change, a record that any member has processed is not sent again.

    The new member's ranges overlap those of both earlier members. It starts at the lower committed offset,
    without the records that the other earlier member has processed.
    """
    with closing(Librdkafka(gateway.address, LANES[0])) as low:
        low.commit(topic, 500)
    with closing(Librdkafka(gateway.address, LANES[1])) as high:
        high.commit(topic, 300)
    middle = ((HALF // 2, HALF + HALF // 2),)
    with closing(Librdkafka(gateway.address, "middle" + suffix(middle))) as member:
        expected = [
            number
            for number in range(300, RECORDS)
            if middle[0][0] <= (hashed := murmur2(b"key-%d" % number)) <= middle[0][1]
            and (number >= 500 or hashed >= HALF)
        ]
        assert member.read(topic, len(expected)) == expected
        member.commit(topic, 400)
        assert member.committed(topic) == 400
    with closing(Librdkafka(gateway.address, LANES[0])) as low:
        assert low.committed(topic) == 500


def test_who_may_not_commit_is_told_why(gateway: GatewayProcess, topic: str) -> None:
    with closing(Librdkafka(gateway.address, LANES[0], group="other")) as low:
        with pytest.raises(KafkaException) as told:
            low.commit(topic, 5)
        assert told.value.args[0].code() == 35
    with closing(Librdkafka(gateway.address, "x.kr-9-1")) as wrong:
        with pytest.raises(KafkaException) as told:
            wrong.commit(topic, 5)
        assert told.value.args[0].code() == 42


def test_members_at_one_time_lose_no_commit(gateway: GatewayProcess, topic: str) -> None:
    """Eight members of one partition commit at the same time, and no commit is lost.

    Each commit writes the progress of all members, so a commit could overwrite a newer one.
    """
    part = SPACE // 8
    ids = [f"m{lane}" + suffix(((lane * part, (lane + 1) * part - 1),)) for lane in range(8)]
    members = [Librdkafka(gateway.address, client_id) for client_id in ids]
    try:
        # librdkafka may send commits that waited for the coordinator after later ones, direct as well.
        for member in members:
            member.committed(topic)
        for offset in range(1, 21):
            for lane, member in enumerate(members):
                member.consumer.commit(
                    offsets=[TopicPartition(topic, 0, 10 * offset + lane)], asynchronous=True
                )
        for lane, member in enumerate(members):
            member.commit(topic, 500 + lane)
        assert [member.committed(topic) for member in members] == [500 + lane for lane in range(8)]
    finally:
        for member in members:
            member.close()
