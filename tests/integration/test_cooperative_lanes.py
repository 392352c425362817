"""A consumer with a lane at a real broker: cases C16 to C21, C33, C44, C46 and C53 with librdkafka."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from typing import Final

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.ranges import KeyRanges
from tests.features.cooperative.batch import suffix
from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

pytestmark = pytest.mark.integration

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
QUARTER: Final[KeyRanges] = ((SPACE // 4, SPACE // 2 - 1),)
SINGLE: Final = 3_000
"""How many batches have only one record."""
NOTHING: Final[Mapping[str, object]] = {}
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: Broker) -> Iterator[GatewayProcess]:
    with GatewayProcess(broker.address, "--cooperative", "billing") as gateway:
        yield gateway


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"lanes-{next(_numbers)}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, partitions=1)
    return name


def produce(broker: Broker, topic: str, keys: list[bytes], options: Mapping[str, object] = NOTHING) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, **options})
    for number, key in enumerate(keys):
        producer.produce(topic, key=key, value=b"%d" % number * 20)
    assert producer.flush(30) == 0


@contextmanager
def consuming(
    address: str,
    topic: str,
    offset: int = 0,
    client_id: str = "x" + suffix(QUARTER),
    options: Mapping[str, object] = NOTHING,
) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": client_id,
            "group.id": "billing",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 500,
            **options,
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, offset)])
        yield consumer


def to_the_end(consumer: Consumer, seconds: float = 120.0) -> tuple[list[Message], int]:
    """Read until the end is reported. Return the records, and the offset of the end."""
    records: list[Message] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            return records, message.offset() or 0
        else:
            raise KafkaException(error)
    raise AssertionError(f"no end within {seconds} s, {len(records)} records")


def of_quarter(keys: list[bytes]) -> list[int]:
    ((low, high),) = QUARTER
    return [at for at, key in enumerate(keys) if low <= murmur2(key) <= high]


KEYS: Final = [b"key-%d" % number for number in range(2_000)]
MINE: Final = KEYS[of_quarter(KEYS)[0]]
"""A key in the first quarter of the keys' hashes."""
OTHER: Final = next(key for at, key in enumerate(KEYS) if at not in of_quarter(KEYS))


@pytest.mark.parametrize("codec", CODECS)
def test_a_quarter_of_the_keys(broker: Broker, gateway: GatewayProcess, topic: str, codec: str) -> None:
    """Case C16: a consumer with a quarter of the keys gets exactly the records of these keys.

    Their offsets and values are unchanged.
    """
    produce(broker, topic, KEYS, {"compression.type": codec})
    with consuming(gateway.address, topic) as consumer:
        records, end = to_the_end(consumer)
    assert [record.offset() for record in records] == of_quarter(KEYS)
    assert [record.value() for record in records] == [b"%d" % at * 20 for at in of_quarter(KEYS)]
    assert end == len(KEYS)


def test_one_match_in_many_small_batches(broker: Broker, gateway: GatewayProcess, topic: str) -> None:
    """Case C17: a consumer gets the only record of its lane among many small batches.

    It receives at most three times as many bytes as a plain consumer.
    """
    keys = [OTHER] * (SINGLE - 1) + [MINE]
    produce(broker, topic, keys, {"batch.num.messages": 1, "linger.ms": 0})
    fetched = []
    for address, client_id in ((gateway.address, "plain"), (gateway.address, "x" + suffix(QUARTER))):
        before = gateway.metric("fetchgate_fetch_record_bytes_total", side="broker")
        small = {"fetch.message.max.bytes": 50_000, "fetch.max.bytes": 1_000_000}
        with consuming(address, topic, client_id=client_id, options=small) as consumer:
            records, _ = to_the_end(consumer)
        fetched.append(gateway.metric("fetchgate_fetch_record_bytes_total", side="broker") - before)
    assert [record.offset() for record in records] == [SINGLE - 1]
    assert fetched[1] <= 3 * fetched[0], fetched


def test_a_lane_without_a_record_is_no_busy_loop(broker: Broker, gateway: GatewayProcess, topic: str) -> None:
    """A consumer whose lane has no record gets the end of the partition once, at the real end.

    After that, it sends two fetches a second (cases C18, C19).
    """
    produce(broker, topic, [OTHER] * 500)
    with consuming(gateway.address, topic) as consumer:
        records, end = to_the_end(consumer)
        assert (records, end) == ([], 500)
        before = gateway.metric("fetchgate_fetches_total", side="client", kind="full")
        before += gateway.metric("fetchgate_fetches_total", side="client", kind="sessionless")
        begun = time.monotonic()
        assert consumer.poll(4) is None, "the end is told once"
        after = gateway.metric("fetchgate_fetches_total", side="client", kind="full")
        after += gateway.metric("fetchgate_fetches_total", side="client", kind="sessionless")
        assert after - before <= 2.5 * (time.monotonic() - begun) + 1
        (position,) = consumer.position([TopicPartition(topic, 0)])
        assert position.offset in {-1001, 500}, "librdkafka tells a position after a record alone"


def test_reading_again(broker: Broker, gateway: GatewayProcess, topic: str) -> None:
    """Case C20: a consumer can seek back, also to an offset before its first one."""
    produce(broker, topic, KEYS)
    with consuming(gateway.address, topic, 1_000) as consumer:
        later, _ = to_the_end(consumer)
        consumer.seek(TopicPartition(topic, 0, 500))
        again, _ = to_the_end(consumer)
    assert [record.offset() for record in later] == [at for at in of_quarter(KEYS) if at >= 1_000]
    assert [record.offset() for record in again] == [at for at in of_quarter(KEYS) if at >= 500]


def test_the_log_begins_later_than_the_client_stands(
    broker: Broker, gateway: GatewayProcess, topic: str
) -> None:
    """Case C21: a consumer whose offset is below the log start continues if its lane missed no record.

    Its offset is not reset.
    """
    produce(broker, topic, [OTHER] * 300)
    with consuming(gateway.address, topic, options={"auto.offset.reset": "error"}) as consumer:
        assert to_the_end(consumer) == ([], 300)
        with Admin(broker.address) as admin:
            admin.delete_records(topic, {0: 200})
        produce(broker, topic, [MINE])
        records, end = to_the_end(consumer)
    assert ([record.offset() for record in records], end) == ([300], 301)


def test_members_behind_two_gateways_share_a_partition(broker: Broker, topic: str) -> None:
    """Each gets the records of its own keys (case C54). At first, no offset is committed (case C59)."""
    with (
        GatewayProcess(broker.address, "--cooperative", "billing") as one,
        GatewayProcess(broker.address, "--cooperative", "billing") as two,
    ):
        members = [
            Consumer(
                {
                    "bootstrap.servers": address,
                    "group.id": "billing",
                    "client.id": f"billing.{number}",
                    "auto.offset.reset": "earliest",
                }
            )
            for number, address in enumerate((one.address, two.address))
        ]
        for member in members:
            member.subscribe([topic])
        until(lambda: all(member.assignment() for member in members), members)
        produce(broker, topic, KEYS)
        got: list[list[bytes]] = [[], []]
        deadline = time.monotonic() + 120
        while sum(map(len, got)) < len(KEYS) and time.monotonic() < deadline:
            for keys, member in zip(got, members, strict=True):
                keys += [message.key() or b"" for message in member.consume(500, 0.2) if not message.error()]
        assert all(got)
        assert sorted(got[0] + got[1]) == sorted(KEYS)
        assert {gate.metric("fetchgate_coop_unowned_ranges", group="billing") for gate in (one, two)} == {0.0}
        for member in members:
            member.close()


def until(done: Callable[[], bool], members: list[Consumer], seconds: float = 120.0) -> None:
    """Wait until a condition is true for two consecutive seconds. Meanwhile, the members poll."""
    deadline, since = time.monotonic() + seconds, 0.0
    while time.monotonic() < deadline:
        if not done():
            since = 0.0
        elif not since:
            since = time.monotonic()
        elif time.monotonic() > since + 2:
            return
        for member in members:
            member.poll(0)
    raise AssertionError("it does not hold")


@pytest.mark.parametrize(
    ("client_id", "code"),
    [("x.kr-9-1", 42), ("x.lane-unknown", 42), ("billing.b" + suffix(QUARTER), 44)],
    ids=["ranges that can't be read", "a lane that nobody named", "an overlap"],
)
def test_what_is_refused_is_told_and_asked_for_seldom(
    broker: Broker, gateway: GatewayProcess, topic: str, client_id: str, code: int
) -> None:
    """Case C53: if a broker refuses the client's fetch, the client gets the broker's error.

    It sends fewer than five fetches a second.
    """
    produce(broker, topic, KEYS[:10])
    with consuming(gateway.address, topic, client_id="billing.a" + suffix(QUARTER)) as first:
        to_the_end(first)
        before = gateway.metric("fetchgate_coop_refused_total", code=str(code))
        with consuming(
            gateway.address, topic, client_id=client_id, options={"fetch.wait.max.ms": 0}
        ) as refused:
            begun = time.monotonic()
            codes: set[int] = set()
            while time.monotonic() < begun + (4 if codes else 120):  # on a busy machine it begins late
                if (message := refused.poll(0.2)) is not None and (error := message.error()) is not None:
                    codes.add(error.code())
            seconds = time.monotonic() - begun
        asked = gateway.metric("fetchgate_coop_refused_total", code=str(code)) - before
        assert codes == {code}
        assert 1 <= asked < 5 * seconds
