"""Response limits (KIP-74) on live brokers: no partition starves, and an operator's limit holds."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import confluent_kafka
import pytest

from tests.frames import framed
from tests.integration.fetching import Fetcher
from tests.integration.lockstep import SansIO
from tests.integration.mirror import LIVE_PROPERTIES, Live
from tests.integration.producing import record_batch
from tests.model.wire import FetchPartition, FetchResponse, FetchTopic
from tests.protocol.test_old_fetch import asked as old_fetch
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.raw import RawConnection

pytestmark = pytest.mark.integration

PARTITIONS: Final = 200
AT_ONCE: Final = 5
"""The number of partitions whose records fit into one response."""
ROUNDS: Final = 4
VALUE: Final = 300
BATCH: Final = len(record_batch([bytes(VALUE)]))
LIMIT: Final = AT_ONCE * BATCH
TOPIC: Final = "hungry"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A broker with 200 partitions full of data."""
    with Broker("4.3.0", properties=LIVE_PROPERTIES) as broker, Live(broker) as live:
        fill(live)
        yield live


@pytest.fixture(scope="module")
def sessionless() -> Iterator[Live]:
    """Another broker with the same topic as in `live`, but with 0 slots for sessions."""
    properties = {**LIVE_PROPERTIES, "max.incremental.fetch.session.cache.slots": 0}
    with Broker("4.3.0", properties=properties) as broker, Live(broker) as live:
        fill(live)
        yield live


def fill(live: Live) -> None:
    live.create_topic(TOPIC, PARTITIONS)
    for index in range(PARTITIONS):
        for _ in range(ROUNDS + 2):
            live.producer.produce(TOPIC, index, [bytes(VALUE)])


class Consumer:
    """A consumer that reads one batch of each partition at a time.

    Args:
        address: the address of the broker or of a gateway.
        max_bytes: the max_bytes of its fetches.
        turned: whether each list begins one partition later, as in librdkafka.
        version: the version of its fetches.
    """

    def __init__(self, address: str, max_bytes: int, *, turned: bool, version: int = 11) -> None:
        self.fetcher = Fetcher(address, TOPIC, PARTITIONS, client_id="hungry", version=version).hello()
        self.max_bytes = max_bytes
        self.turned = turned
        self.order = list(range(PARTITIONS))
        self.offsets = [0] * PARTITIONS

    def poll(self) -> int:
        """Fetch once. Return how many bytes of records were received."""
        parts = tuple(
            FetchPartition(partition=index, fetch_offset=self.offsets[index], partition_max_bytes=BATCH)
            for index in self.order
        )
        topics = (FetchTopic(topic=TOPIC, partitions=parts),)
        response = self.fetcher.fetch(topics=topics, max_bytes=self.max_bytes, max_wait_ms=0)
        if self.turned:
            self.order = [*self.order[1:], self.order[0]]
        return BATCH * len(self.apply(response))

    def apply(self, response: FetchResponse) -> list[int]:
        """Advance the offsets after the received batches. Return the partitions of these batches."""
        came = [data for topic in response.topics for data in topic.partitions if data.records]
        assert {len(data.records or b"") for data in came} <= {BATCH}
        for data in came:
            self.offsets[data.partition_index] += 1
        return [data.partition_index for data in came]

    def read(self, fetches: int) -> list[int]:
        """Send this number of fetches. Return how many batches of each partition were received."""
        with self.fetcher:
            for _ in range(fetches):
                assert self.poll() == LIMIT
        return self.offsets


class SessionConsumer(Consumer):
    """A consumer with its own session, like Java's.

    After a full fetch, it lists only partitions whose offset has changed.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, LIMIT, turned=False)
        self.session_id = self.epoch = 0

    def poll(self) -> int:
        """Fetch once in the session. Return how many bytes of records were received."""
        parts = tuple(
            FetchPartition(partition=index, fetch_offset=self.offsets[index], partition_max_bytes=BATCH)
            for index in self.order
        )
        response = self.fetcher.fetch(
            topics=(FetchTopic(topic=TOPIC, partitions=parts),) if parts else (),
            max_bytes=self.max_bytes,
            max_wait_ms=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
        )
        assert response.error_code == 0
        assert response.session_id == self.session_id or not self.epoch
        assert response.session_id
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        self.order = self.apply(response)
        return BATCH * len(self.order)


IN_A_ROUND: Final = PARTITIONS // AT_ONCE
"""The number of fetches after which each partition was served once."""
FETCHES: Final = ROUNDS * IN_A_ROUND


def test_directly_a_list_that_turns_starves_nobody_and_one_that_does_not_starves_many(live: Live) -> None:
    """Without a gateway and without sessions, a client has to rotate its list (KIP-74, section 4).

    If the list does not rotate, many partitions starve.
    """
    turned = Consumer(live.broker.address, LIMIT, turned=True).read(PARTITIONS)
    straight = Consumer(live.broker.address, LIMIT, turned=False).read(ROUNDS)

    assert Counter(turned) == {AT_ONCE: PARTITIONS}
    assert Counter(straight) == {ROUNDS: AT_ONCE, 0: PARTITIONS - AT_ONCE}


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("ceiling", [False, True])
def test_through_the_gateway_every_partition_gets_on_at_the_same_rate(
    live: Live, start_gateway: Callable[..., GatewayProcess], turned: bool, ceiling: bool
) -> None:
    """Through the gateway, all partitions are read at the same rate, even if the list does not rotate.

    In a session, a partition that got records moves to the end (KIP-227).
    """
    options = ("--max-fetch-bytes", str(LIMIT)) if ceiling else ()
    gateway = start_gateway(live.broker.address, *options)
    consumer = Consumer(gateway.address, 50 << 20 if ceiling else LIMIT, turned=turned)

    got = consumer.read(FETCHES)

    assert sum(got) == ROUNDS * PARTITIONS
    assert max(got) - min(got) <= 2, Counter(got)  # the first fetches go without the session
    kinds = gateway.state()["totals"]["broker"]["fetches"]
    assert kinds["incremental"] > FETCHES - 10


def in_a_row(broker: Broker, gateways: int, start_gateway: Callable[..., GatewayProcess]) -> str:
    """Start gateways in a row, and return the address of the last one.

    The first gateway is before the broker. Each further gateway is before the previous gateway.
    """
    address = broker.address
    for _ in range(gateways):
        address = start_gateway(address).address
    return address


def rounds(consumer: Consumer) -> list[list[int]]:
    """Return how many batches of each partition were received after each round. They are nearly equal.

    The response that creates a session moves no partition to the end. So the next response has the same five
    partitions again, and the partitions differ by at most two batches.
    """
    found = []
    with consumer.fetcher:
        for number in range(1, ROUNDS + 1):
            for _ in range(IN_A_ROUND):
                assert consumer.poll() == LIMIT
            assert sum(consumer.offsets) == number * PARTITIONS
            assert max(consumer.offsets) - min(consumer.offsets) <= 2, Counter(consumer.offsets)
            found.append([*consumer.offsets])
    return found


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("slots", [True, False])
def test_through_two_gateways_in_a_row_every_partition_gets_on_at_the_same_rate(
    live: Live, sessionless: Live, start_gateway: Callable[..., GatewayProcess], slots: bool, turned: bool
) -> None:
    """Through two gateways in a row, all partitions are read at the same rate.

    The session between the gateways is one of the far gateway, or of the broker. A partition that got records
    moves to the end of this session.
    """
    broker = (live if slots else sessionless).broker
    near = in_a_row(broker, 2, start_gateway)

    rounds(Consumer(near, LIMIT, turned=turned))


@pytest.mark.parametrize("gateways", [1, 2])
def test_with_a_session_of_its_own_a_client_gets_on_everywhere_at_the_same_rate(
    live: Live, sessionless: Live, start_gateway: Callable[..., GatewayProcess], gateways: int
) -> None:
    """A client gets the same batches from a gateway's session as from a broker's own session.

    The broker of the gateway has no sessions.
    """
    near = in_a_row(sessionless.broker, gateways, start_gateway)

    assert rounds(SessionConsumer(near)) == rounds(SessionConsumer(live.broker.address))


def test_before_a_broker_without_sessions_a_list_that_turns_starves_nobody(
    sessionless: Live, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """If neither the client nor the broker has sessions, a rotating list starves no partition.

    The gateway forwards each fetch, and each partition is served as without a gateway.
    """
    gateway = start_gateway(sessionless.broker.address)

    turned = Consumer(gateway.address, LIMIT, turned=True).read(PARTITIONS)

    assert Counter(turned) == {AT_ONCE: PARTITIONS}


def read_all(address: str) -> list[tuple[int, int, bytes]]:
    """Read the topic with librdkafka. Return partition, offset and value of each record."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "all"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    seen: list[tuple[int, int, bytes]] = []
    try:
        while len(seen) < PARTITIONS * (ROUNDS + 2):
            message = consumer.poll(30)
            assert message is not None, f"{len(seen)} records came"
            assert message.error() is None
            place = message.partition(), message.offset(), message.value()
            seen.append(place)  # type: ignore[arg-type]  # a message without an error has all three
    finally:
        consumer.close()
    return sorted(seen)


def test_librdkafka_reads_the_same_behind_a_ceiling(
    live: Live, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """With `--max-fetch-bytes`, librdkafka reads the same records as directly from the broker.

    This is true even with a limit of one byte, because each response has at least one batch (case 59).
    """
    for ceiling in (LIMIT, 1):
        gateway = start_gateway(live.broker.address, "--max-fetch-bytes", str(ceiling))
        assert read_all(gateway.address) == read_all(live.broker.address)
        broker = gateway.state()["totals"]["broker"]
        fetches = sum(broker["fetches"].values())
        assert broker["fetch_record_bytes"] <= fetches * max(ceiling, BATCH)


# --- v2 -------------------------------------------------------------------------------------------

Records = dict[int, list[bytes]]


def old_offsets(topics: dict[str, list[int]], offsets: Sequence[int]) -> bytes:
    """Build a fetch of v2 for these partitions, from these offsets on.

    It accepts up to 4,096 bytes of records of each partition.
    """
    asked = bytearray(old_fetch(2, topics))
    at = len(asked) - 16 * sum(map(len, topics.values()))
    for index in next(iter(topics.values())):
        asked[at + 4 : at + 16] = offsets[index].to_bytes(8) + (4096).to_bytes(4)
        at += 16
    return bytes(asked)


def old_records(response: bytes) -> Records:
    """Return the complete messages in a fetch response (v2 or v3, with one topic), by partition."""
    name = int.from_bytes(response[12:14])
    at = 14 + name
    found: Records = {}
    count, at = int.from_bytes(response[at : at + 4]), at + 4
    for _ in range(count):
        partition, error = int.from_bytes(response[at : at + 4]), int.from_bytes(response[at + 4 : at + 6])
        assert not error
        size, at = int.from_bytes(response[at + 14 : at + 18]), at + 18
        records, at = response[at : at + size], at + size
        found[partition] = []
        while len(records) >= 12 and len(records) >= (end := 12 + int.from_bytes(records[8:12])):
            found[partition].append(records[:end])
            records = records[end:]
    assert at == len(response)
    return found


def old_read(exchange: Callable[[bytes], bytes], partitions: int, batches: int) -> tuple[Records, int]:
    """Read all partitions with fetches of v2.

    Return the records, and the record bytes of the largest response.
    """
    offsets, largest = [0] * partitions, 0
    read: Records = {index: [] for index in range(partitions)}
    for _ in range(4 * partitions * batches):
        found = old_records(exchange(old_offsets({TOPIC: list(range(partitions))}, offsets)[4:]))
        largest = max(largest, sum(len(each) for messages in found.values() for each in messages))
        for partition, messages in found.items():
            read[partition] += messages
            offsets[partition] += len(messages)
        if offsets == [batches] * partitions:
            return read, largest
    raise AssertionError(f"starved at {offsets}")


@pytest.mark.parametrize("release", ["3.9.1", "1.0.2"])
def test_a_client_of_v2_gets_a_limit_and_the_same_records(
    broker_of: Callable[[str], Broker], release: str
) -> None:
    """A client of Fetch v2 gets the same records from a gateway that limits its responses.

    The client never rotates its list of partitions. The gateway rotates the list, so that each partition gets
    records.
    """
    partitions, batches, ceiling = 6, 5, 400
    broker = broker_of(release)
    with Live(broker) as live:
        live.create_topic(TOPIC, partitions)
        for index in range(partitions):
            for number in range(batches):
                live.producer.produce(TOPIC, index, [bytes([number]) * VALUE])
    through = SansIO(broker.host, broker.port)
    through.ceilings.max_bytes = {"": ceiling}
    with RawConnection(broker.host, broker.port) as direct:

        def ask(request: bytes) -> bytes:
            direct.socket.sendall(framed(request))
            return direct.receive()

        unlimited, most = old_read(ask, partitions, batches)
    through.exchange(bytes.fromhex("0012 0000 00000000 0001 63"))
    limited, largest = old_read(through.exchange, partitions, batches)
    through.close()

    assert limited == unlimited
    assert largest <= ceiling < most
