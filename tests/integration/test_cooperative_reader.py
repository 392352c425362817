"""A broker gets one fetch for all members of a partition (cases C47 to C52). The broker is a real one."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import Final, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.ranges import KeyRange
from tests.features.cooperative.batch import read, suffix
from tests.integration.fetching import Fetcher
from tests.model.wire import FetchResponse
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

KEYS: Final = [b"key-%d" % number for number in range(1000)]
BATCH_BYTES: Final = 16_384
"""The size of the producer's batches in bytes. It is small, because of how brokers fill a response.

A broker cuts the last batch of a response, and sends it again after the next fetch. With small batches this
does not affect the comparison.
"""
USERS: Final = ("alice", "bob")
PASSWORD: Final = "p"
MEMBERS: Final = 4
_numbers = count()


def lanes(parts: int) -> list[KeyRange]:
    bounds = [number * SPACE // parts for number in range(parts + 1)]
    return [(bounds[number], bounds[number + 1] - 1) for number in range(parts)]


def client_ids(parts: int) -> list[str]:
    return ["billing" + suffix((lane,)) for lane in lanes(parts)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
        f"PlainLoginModule required {users};",
    }
    with Broker(listeners={"SASL_PLAINTEXT": None}, properties=properties) as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: Broker) -> Iterator[GatewayProcess]:
    with GatewayProcess(broker.address, "--cooperative", "billing") as gateway:
        yield gateway


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"read-{next(_numbers)}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, partitions=1)
    with closing(Consumer({"bootstrap.servers": broker.address, "group.id": name})) as asks:
        asks.get_watermark_offsets(TopicPartition(name, 0), timeout=60)  # error 6 until its leader leads
    return name


def produce(broker: Broker, topic: str, number: int, value_bytes: int = 100) -> None:
    chance = random.Random(number)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "batch.size": BATCH_BYTES})
    for each in range(number):
        while True:
            try:
                producer.produce(topic, key=KEYS[each % len(KEYS)], value=chance.randbytes(value_bytes))
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def upstream(gateway: GatewayProcess) -> float:
    """Return the number of record bytes that the gateway has received from brokers."""
    return gateway.metric("fetchgate_fetch_record_bytes_total", side="broker")


def log_bytes(broker: Broker, topic: str) -> int:
    return sum(file.stat().st_size for file in broker.folder.rglob(f"{topic}-0/*.log"))


class Consumers:
    """Several librdkafka consumers of one partition. They run until they are closed."""

    def __init__(self, address: str, topic: str, names: Sequence[str], users: Sequence[str] = ()) -> None:
        self._ended = threading.Event()
        self._place = TopicPartition(topic, 0, 0)
        self.consumers: list[Consumer] = []
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in names]
        """For each consumer, the offset and key of each record that it received."""
        self.stopped: set[int] = set()
        """The indexes of the consumers that read no records at present. When their local queue is full, they
        stop fetching."""
        for number, name in enumerate(names):
            settings: dict[str, str | int | bool] = {
                "bootstrap.servers": address,
                "group.id": "billing",
                "client.id": name,
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 1024,
                "fetch.queue.backoff.ms": 10,
            }
            if users:
                settings |= {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": users[number],
                    "sasl.password": PASSWORD,
                }
            consumer = Consumer(settings)
            consumer.assign([self._place])
            self.consumers.append(consumer)
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(names))]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for consumer in self.consumers:
            consumer.close()

    def wait(self, number: int, *, by: Sequence[int] = ()) -> None:
        """Wait until all consumers have received this number of records in total.

        Args:
            number: the number of records.
            by: the consumers whose records are counted. By default, all consumers.
        """
        which = by or range(len(self.seen))
        deadline = time.monotonic() + 120
        while sum(len(self.seen[each]) for each in which) < number:
            assert time.monotonic() < deadline, [len(seen) for seen in self.seen]
            time.sleep(0.02)

    def assert_exact(self, number: int) -> None:
        """Check that each of the first `number` records was received once, by one of the consumers.

        Each consumer must have only records of its own lane, in the order of their offsets.
        """
        assert Counter(offset for seen in self.seen for offset, _ in seen) == Counter(range(number))
        for (low, high), seen in zip(lanes(len(self.seen)), self.seen, strict=True):
            assert [offset for offset, _ in seen] == sorted(offset for offset, _ in seen)
            assert all(low <= murmur2(key) <= high for key in {key for _, key in seen})

    def _run(self, number: int) -> None:
        while not self._ended.is_set():
            if number in self.stopped:
                time.sleep(0.02)
                continue
            for message in self.consumers[number].consume(1000, 0.05):
                assert message.error() is None, message.error()
                self.seen[number].append((message.offset() or 0, bytes(message.key() or b"")))


def share_of(lane: KeyRange, number: int) -> int:
    """Return how many of the first `number` produced records are in a lane."""
    low, high = lane
    return sum(low <= murmur2(KEYS[each % len(KEYS)]) <= high for each in range(number))


@contextmanager
def members_that_wait(gateway: GatewayProcess, topic: str) -> Iterator[tuple[Fetcher, Fetcher]]:
    """Two members that wait at the end of an empty partition.

    The fetch of the first member is at the broker.
    """
    one_id, two_id = client_ids(2)
    with (
        Fetcher(gateway.address, topic, 1, client_id=one_id) as one,
        Fetcher(gateway.address, topic, 1, client_id=two_id) as two,
    ):
        for each in (one, two):
            each.hello().send(max_wait_ms=20_000)
            time.sleep(0.3)
        yield one, two


def offsets(response: FetchResponse) -> list[int]:
    return [record.offset for record in read(records(response))]


def records(response: FetchResponse) -> bytes:
    (topic,) = response.topics
    (data,) = topic.partitions
    assert data.error_code == 0
    return data.records or b""


def test_four_members_fetch_as_much_as_one_plain_consumer(
    broker: Broker, gateway: GatewayProcess, topic: str
) -> None:
    """Case C47: for four members, the broker sends as many bytes as for one plain consumer."""
    first, more = len(KEYS), 60_000
    with (
        GatewayProcess(broker.address) as plain,
        Consumers(plain.address, topic, ["one"]) as one,
        Consumers(gateway.address, topic, client_ids(MEMBERS)) as members,
    ):
        produce(broker, topic, first)
        members.wait(first)
        one.wait(first)
        before = upstream(plain), upstream(gateway)
        produce(broker, topic, more)
        members.wait(first + more)
        one.wait(first + more)
        assert upstream(gateway) - before[1] <= 1.05 * (upstream(plain) - before[0])
        members.assert_exact(first + more)


def test_one_that_stops_holds_up_nobody_and_catches_up_alone(
    broker: Broker, gateway: GatewayProcess, topic: str
) -> None:
    """A member that stops reading does not delay other members (case C48).

    When it reads again, it fetches the missed records alone.
    """
    first, more, others = len(KEYS), 45_000, range(1, MEMBERS)
    with Consumers(gateway.address, topic, client_ids(MEMBERS)) as members:
        produce(broker, topic, first)
        members.wait(first)
        members.stopped.add(0)
        had, before = log_bytes(broker, topic), upstream(gateway)
        produce(broker, topic, more, 1000)
        own = share_of(lanes(MEMBERS)[0], more)
        members.wait(first + more - share_of(lanes(MEMBERS)[0], first) - own, by=others)
        had, log = log_bytes(broker, topic), log_bytes(broker, topic) - had
        fetched = upstream(gateway)
        assert fetched - before <= 1.05 * log
        members.stopped.clear()
        members.wait(first + more)
        alone = upstream(gateway)
        assert 0.5 * log < alone - fetched <= 1.05 * log
        produce(broker, topic, first, 1000)
        members.wait(first + more + first)
        assert upstream(gateway) - alone <= 1.05 * (log_bytes(broker, topic) - had)
        members.assert_exact(first + more + first)


def test_the_same_offset_again_is_the_same_bytes(broker: Broker, gateway: GatewayProcess, topic: str) -> None:
    """A second fetch from the same offset gets the same bytes, without a further fetch from the broker.

    Case C50.
    """
    with members_that_wait(gateway, topic) as (one, two):
        produce(broker, topic, len(KEYS))
        seek = offsets(one.receive())[-1] + 1
        first = two.receive()
        before = upstream(gateway)
        again = two.fetch()
        assert upstream(gateway) == before
        one.seek([seek])
        assert offsets(one.fetch(max_wait_ms=5000))
        assert offsets(first)
        assert [records(each) for each in (again, two.fetch())] == [records(first)] * 2


def test_different_users_share_nothing(broker: Broker, topic: str) -> None:
    """Case C51: if members log in as different users, each of them has its own fetches at the broker."""
    first, more = len(KEYS), 20_000
    address = f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}"
    with (
        GatewayProcess(address, "--cooperative", "billing") as gateway,
        Consumers(gateway.address, topic, client_ids(2), USERS) as members,
    ):
        produce(broker, topic, first)
        members.wait(first)
        had, before = log_bytes(broker, topic), upstream(gateway)
        produce(broker, topic, more)
        members.wait(first + more)
        assert upstream(gateway) - before >= 1.9 * (log_bytes(broker, topic) - had)
        members.assert_exact(first + more)


def test_the_riding_member_closes_amid_its_fetch(broker: Broker, gateway: GatewayProcess, topic: str) -> None:
    """One member leaves while its fetch waits at the broker. The other member still gets its own records.

    Both members share one partition. Case C52.
    """
    with members_that_wait(gateway, topic) as (one, two):
        one.close()
        produce(broker, topic, len(KEYS))
        got = offsets(two.receive())
        low, high = lanes(2)[1]
        own = [offset for offset, key in enumerate(KEYS) if low <= murmur2(key) <= high]
        while len(got) < len(own):
            two.seek([got[-1] + 1])
            got += offsets(two.fetch(max_wait_ms=5000))
    assert got == own
