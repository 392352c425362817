"""Response limits (KIP-74) on live brokers: nobody starves, and an operator's ceiling holds."""

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
from tests.model.wire import FetchPartition, FetchTopic
from tests.protocol.test_old_fetch import asked as old_fetch
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.raw import RawConnection

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS: Final = 200
AT_ONCE: Final = 5
"""So many partitions fit into a response."""
ROUNDS: Final = 4
VALUE: Final = 300
BATCH: Final = len(record_batch([bytes(VALUE)]))
LIMIT: Final = AT_ONCE * BATCH
TOPIC: Final = "hungry"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A broker with 200 partitions full of data."""
    with Broker("4.3.0", properties=LIVE_PROPERTIES) as broker, Live(broker) as live:
        live.create_topic(TOPIC, PARTITIONS)
        for index in range(PARTITIONS):
            for _ in range(ROUNDS + 2):
                live.producer.produce(TOPIC, index, [bytes(VALUE)])
        yield live


class Consumer:
    """Reads a batch of each partition at a time.

    Args:
        address: of the broker or of a gateway.
        max_bytes: what it asks for.
        turned: each list begins one partition later, as in librdkafka.
        version: of Fetch.
    """

    def __init__(self, address: str, max_bytes: int, *, turned: bool, version: int = 11) -> None:
        self.fetcher = Fetcher(address, TOPIC, PARTITIONS, client_id="hungry", version=version).hello()
        self.max_bytes = max_bytes
        self.turned = turned
        self.order = list(range(PARTITIONS))
        self.offsets = [0] * PARTITIONS

    def poll(self) -> int:
        """Fetch once; return how many bytes of records came."""
        parts = tuple(
            FetchPartition(partition=index, fetch_offset=self.offsets[index], partition_max_bytes=BATCH)
            for index in self.order
        )
        topics = (FetchTopic(topic=TOPIC, partitions=parts),)
        response = self.fetcher.fetch(topics=topics, max_bytes=self.max_bytes, max_wait_ms=0)
        if self.turned:
            self.order = [*self.order[1:], self.order[0]]
        came = 0
        for data in response.topics[0].partitions:
            records = data.records or b""
            assert len(records) in (0, BATCH)
            self.offsets[data.partition_index] += bool(records)
            came += len(records)
        return came

    def read(self, fetches: int) -> list[int]:
        """Fetch so often; return how many batches of each partition came."""
        with self.fetcher:
            for _ in range(fetches):
                assert self.poll() == LIMIT
        return self.offsets


FETCHES: Final = ROUNDS * PARTITIONS // AT_ONCE


def test_directly_a_list_that_turns_starves_nobody_and_one_that_does_not_starves_many(live: Live) -> None:
    """The baseline, section 4: a client without sessions has to turn its list (KIP-74)."""
    turned = Consumer(live.broker.address, LIMIT, turned=True).read(PARTITIONS)
    straight = Consumer(live.broker.address, LIMIT, turned=False).read(ROUNDS)

    assert Counter(turned) == {AT_ONCE: PARTITIONS}
    assert Counter(straight) == {ROUNDS: AT_ONCE, 0: PARTITIONS - AT_ONCE}


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("ceiling", [False, True])
def test_through_the_gateway_every_partition_gets_on_at_the_same_rate(
    live: Live, start_gateway: Callable[..., GatewayProcess], turned: bool, ceiling: bool
) -> None:
    """Also where the list does not turn: in a session who got records goes to the end (KIP-227)."""
    options = ("--max-fetch-bytes", str(LIMIT)) if ceiling else ()
    gateway = start_gateway(live.broker.address, *options)
    consumer = Consumer(gateway.address, 50 << 20 if ceiling else LIMIT, turned=turned)

    got = consumer.read(FETCHES)

    assert sum(got) == ROUNDS * PARTITIONS
    assert max(got) - min(got) <= 2, Counter(got)  # the first fetches go without the session
    kinds = gateway.state()["totals"]["broker"]["fetches"]
    assert kinds["incremental"] > FETCHES - 10


def read_all(address: str) -> list[tuple[int, int, bytes]]:
    """Read the topic with librdkafka; return partition, offset and value of each record."""
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
    """Even of one byte: each response has a batch (case 59)."""
    for ceiling in (LIMIT, 1):
        gateway = start_gateway(live.broker.address, "--max-fetch-bytes", str(ceiling))
        assert read_all(gateway.address) == read_all(live.broker.address)
        broker = gateway.state()["totals"]["broker"]
        fetches = sum(broker["fetches"].values())
        assert broker["fetch_record_bytes"] <= fetches * max(ceiling, BATCH)


# --- v2 -------------------------------------------------------------------------------------------

Records = dict[int, list[bytes]]


def old_offsets(topics: dict[str, list[int]], offsets: Sequence[int]) -> bytes:
    """A fetch of v2 of partitions from these offsets, up to 4,096 bytes of each."""
    asked = bytearray(old_fetch(2, topics))
    at = len(asked) - 16 * sum(map(len, topics.values()))
    for index in next(iter(topics.values())):
        asked[at + 4 : at + 16] = offsets[index].to_bytes(8) + (4096).to_bytes(4)
        at += 16
    return bytes(asked)


def old_records(response: bytes) -> Records:
    """What a response of v2 or v3 to a fetch of one topic brings: whole messages by partition."""
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
    """Read all partitions with fetches of v2; return what came, and the records in the largest response."""
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
    """Its list never turns; the gateway turns it, so that each partition gets on."""
    partitions, batches, ceiling = 6, 5, 400
    broker = broker_of(release)
    with Live(broker) as live:
        live.create_topic(TOPIC, partitions)
        for index in range(partitions):
            for number in range(batches):
                live.producer.produce(TOPIC, index, [bytes([number]) * VALUE])
    through = SansIO(broker.host, broker.port)
    through.sessions.max_fetch_bytes = {"": ceiling}
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
