"""Clients that produce and consume while leaders move.

Each client notes the records that it sent or received.

A record contains the name of its producer. It also has its number among this producer's records in the
partition. So the tests detect lost, doubled and disordered records. The numbers of aborted transactions are
not expected. Consumers read only committed records. The Java clients come with Kafka's jars. Sarama is only
used if Go is installed.
"""

import asyncio
import hashlib
import json
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]  # no types
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.clients.programs import BUILT, go_program, sarama
from tests.clients.runner import Run, Sessions
from tests.integration.fetching import Fetcher
from tools.kafka import LATEST, Broker
from tools.kafka.jars import classpath
from tools.kafka.process import JavaProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas as older Pythons have it
    from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped] # it carries no types
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka.record import MemoryRecords  # type: ignore[import-untyped] # it carries no types

TOPIC: Final = "moving"
PATIENCE: Final = 60.0
EACH: Final = 5
"""The number of records that a producer sends at a time, each to another partition."""
PAUSE: Final = 0.05
ONE_IN_FLIGHT: Final = 1
"""The number of requests that a producer may have in flight. With more, clients duplicate records by
themselves, also without a gateway. After a failed batch, later batches fail as out of order. The client then
uses a new producer epoch, and sends batches again that may have been written (librdkafka issue 4953, and
Java). In a transaction this is impossible."""
MOST_NUMBERS: Final = 20_000
"""An upper limit: a producer sends fewer records than this to each partition."""
QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1",)

Value: TypeAlias = tuple[str, int]
"""The producer of a record, and the record's number in its partition."""


@dataclass(slots=True)
class Sent:
    """The records of one producer that consumers must receive: the record numbers of each partition."""

    name: str
    partitions: int
    numbers: list[list[int]] = field(init=False)
    failed: list[str] = field(default_factory=list)
    turn: int = 0
    _last: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = [[] for _ in range(self.partitions)]
        self._last = [0] * self.partitions

    def next(self) -> tuple[int, bytes]:
        """Return the next partition in turn, and the next value for it."""
        self.turn += 1
        partition = self.turn % self.partitions
        self._last[partition] += 1
        self.numbers[partition].append(self._last[partition])
        return partition, json.dumps([self.name, self._last[partition]]).encode()

    def aborted(self, values: Iterable[tuple[int, bytes]]) -> None:
        """Note that records are not expected any more, because they were aborted."""
        for partition, value in values:
            self.numbers[partition].remove(json.loads(value)[1])

    @property
    def count(self) -> int:
        """The number of expected records."""
        return sum(map(len, self.numbers))


@dataclass(slots=True)
class Received:
    """One consumer's records by partition, in order: offset and value."""

    name: str
    partitions: int
    records: list[list[tuple[int, Value]]] = field(init=False)

    def __post_init__(self) -> None:
        self.records = [[] for _ in range(self.partitions)]

    def take(self, partition: int, offset: int, value: bytes) -> None:
        name, number = json.loads(value)
        self.records[partition].append((offset, (name, number)))

    def has_of(self, names: Iterable[str], count: int) -> bool:
        """Return whether at least `count` records of each named producer were received."""
        counts = Counter(name for records in self.records for _, (name, _) in records)
        return all(counts[name] >= count for name in names)

    @property
    def count(self) -> int:
        """The number of different received records."""
        return sum(len({value for _, value in records}) for records in self.records)

    def once(self, partition: int) -> list[tuple[int, Value]]:
        """Return the received records of one partition, without those that librdkafka's consumer read again.

        While leaders move, librdkafka 2.16 sometimes goes back some records, also without a gateway. The
        records read again must be equal.
        """
        records = self.records[partition]
        if self.name != "librdkafka":
            return records
        first = dict(reversed(records))
        assert all(first[offset] == value for offset, value in records), partition
        return list(dict(records).items())


def doubled_by_the_client(brokers: Iterable[Broker], partitions: int) -> list[set[int]]:
    """Return, by partition, the offsets of records that a client wrote again under a newer producer epoch.

    An idempotent producer does this by itself. librdkafka 2.16, even with one request in flight, may send to
    the new leader before it repeats the batch that the old one refused. That is out of order. So it uses a
    new epoch, and sends batches again that may have been written (see its log, and its issue 4953). Nothing
    between client and broker can cause this, because the broker accepts a sequence number only once in an
    epoch (KIP-98).
    """
    doubled: list[set[int]] = [set() for _ in range(partitions)]
    for broker in brokers:
        with Fetcher(broker.address, TOPIC, partitions) as fetcher:
            for entry in fetcher.fetch().topics[0].partitions:
                newest: dict[tuple[int, bytes], int] = {}
                log = MemoryRecords(entry.records or b"")
                while (batch := log.next_batch()) is not None:
                    for record in () if batch.is_control_batch else batch:
                        of = batch.producer_id, record.value
                        if newest.setdefault(of, batch.producer_epoch) < batch.producer_epoch:
                            doubled[entry.partition_index].add(record.offset)
    return doubled


Produce: TypeAlias = Callable[[str, Sent, threading.Event], None]
"""A function that produces to a bootstrap address until the event is set. It returns after all records are
acknowledged."""
Consume: TypeAlias = Callable[[str, Received, threading.Event], None]
"""A function that consumes from the beginning until the event is set."""


def librdkafka(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
    producer = Producer(settings | {"max.in.flight.requests.per.connection": ONE_IN_FLIGHT})

    def done(error: Any, _message: Message) -> None:
        if error is not None:
            sent.failed.append(str(error))

    while not ended.wait(PAUSE):
        for _ in range(EACH):
            partition, value = sent.next()
            producer.produce(TOPIC, value, b"key", partition=partition, on_delivery=done)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def librdkafka_in_transactions(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": f"librdkafka-{random.randrange(1 << 30)}"}
    producer = Producer(settings)
    _taken(producer.init_transactions)
    while not ended.wait(PAUSE):
        producer.begin_transaction()
        values = [sent.next() for _ in range(EACH)]
        for partition, value in values:
            producer.produce(TOPIC, value, b"key", partition=partition)
        if random.random() < 0.3 or not _taken(producer.commit_transaction):
            _taken(producer.abort_transaction)
            sent.aborted(values)


def _taken(step: Callable[[float], object]) -> bool:
    """Do one step of a transaction. Repeat it as often as the client demands.

    Return False if the transaction has to be aborted.
    """
    while True:
        try:
            step(PATIENCE)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                return False
            if not error.args[0].retriable():
                raise
        else:
            return True


def aiokafka(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        futures = []
        while not ended.is_set():
            for _ in range(EACH):
                partition, value = sent.next()
                futures.append(await producer.send(TOPIC, value, b"key", partition=partition))
            await asyncio.sleep(PAUSE)
        for result in await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), PATIENCE):
            if isinstance(result, BaseException):
                sent.failed.append(repr(result))
        await producer.stop()

    asyncio.run(run())


def aiokafka_in_transactions(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    async def run() -> None:
        name = f"aiokafka-{random.randrange(1 << 30)}"
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        while not ended.is_set():
            await producer.begin_transaction()
            values = [sent.next() for _ in range(EACH)]
            for partition, value in values:
                await producer.send(TOPIC, value, b"key", partition=partition)
            if random.random() < 0.3:
                await producer.abort_transaction()
                sent.aborted(values)
            else:
                await producer.commit_transaction()
            await asyncio.sleep(PAUSE)
        await producer.stop()

    asyncio.run(run())


def kafka_python(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        max_in_flight_requests_per_connection=ONE_IN_FLIGHT,
    )
    while not ended.wait(PAUSE):
        for _ in range(EACH):
            partition, value = sent.next()
            future = producer.send(TOPIC, value, b"key", partition=partition)
            future.add_errback(lambda error: sent.failed.append(repr(error)))
    producer.flush(PATIENCE)
    producer.close()


def java(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    """Run Kafka's own test program. It chooses partitions by key, and prints each sent record."""
    log = _log("produce-java")
    config = log.with_suffix(".properties")
    settings = f"max.in.flight.requests.per.connection={ONE_IN_FLIGHT}"
    config.write_text(
        f"enable.idempotence=true\nretries=2147483647\n{settings}\n"
    )  # by itself it retries never
    arguments = ["org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", bootstrap]
    arguments += ["--topic", TOPIC, "--throughput", str(int(EACH / PAUSE)), "--acks", "-1"]
    arguments += ["--command-config", str(config)]
    arguments += ["--repeating-keys", str(3 * sent.partitions), "--value-prefix", "1"]
    process = JavaProcess(classpath(LATEST, tools=True), arguments, log=log, options=QUICK_JAVA)
    ended.wait()
    process.end(timeout=PATIENCE)
    for line in log.read_text().splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("name") == "producer_send_success":
            sent.numbers[told["partition"]].append(int(told["value"].partition(".")[2]))
        elif told.get("name") == "producer_send_error":
            sent.failed.append(line)
    for numbers in sent.numbers:
        numbers.sort()


def sarama_producer(bootstrap: str, sent: Sent, ended: threading.Event) -> None:
    with Run(
        go_program("sarama", "saramaproduce", Sessions.NONE), bootstrap, assign={TOPIC: sent.partitions}
    ) as run:
        ended.wait()
        run.stop(seconds=PATIENCE)
        sent.failed += [line["text"] for line in run.of("error")]
        for partition, count in enumerate(run.of("end")[0]["counts"]):
            sent.numbers[partition] += range(1, count + 1)


def consume_librdkafka(bootstrap: str, received: Received, ended: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "moving", "fetch.wait.max.ms": 100}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(TOPIC, at, 0) for at in range(received.partitions)])
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            received.take(partition, offset, value)
    consumer.close()


def consume_aiokafka(bootstrap: str, received: Received, ended: threading.Event) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, fetch_max_wait_ms=100, isolation_level="read_committed"
        )
        await consumer.start()
        consumer.assign([AiokafkaPartition(TOPIC, at) for at in range(received.partitions)])
        await consumer.seek_to_beginning()
        while not ended.is_set():
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                for message in messages:
                    received.take(message.partition, message.offset, message.value)
        await consumer.stop()

    asyncio.run(run())


def consume_kafka_python(bootstrap: str, received: Received, ended: threading.Event) -> None:
    """Run kafka-python. Its metadata is young.

    kafka-python 3.0.12 forgets that it needs the metadata of its topics if it is told of them while a
    Metadata response is on its way. Then it reads nothing until its metadata has the maximum age, five
    minutes by default.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        fetch_max_wait_ms=100,
        isolation_level="read_committed",
        metadata_max_age_ms=5000,
    )
    partitions = [KafkaPythonPartition(TOPIC, at) for at in range(received.partitions)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    while not ended.is_set():
        for messages in consumer.poll(timeout_ms=100).values():
            for message in messages:
                received.take(message.partition, message.offset, message.value)
    consumer.close()


def consume_java(bootstrap: str, received: Received, ended: threading.Event) -> None:
    """Run Kafka's console consumer."""
    log = _log("consume-java")
    arguments = ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap]
    arguments += ["--topic", TOPIC, "--from-beginning", "--isolation-level", "read_committed"]
    arguments += ["--formatter-property", "print.partition=true"]
    arguments += ["--formatter-property", "print.offset=true"]
    process = JavaProcess(classpath(LATEST, tools=True), arguments, log=log, options=QUICK_JAVA)
    with log.open() as lines:
        rest = ""
        while not ended.wait(PAUSE):
            *whole, rest = (rest + lines.read()).split("\n")
            for line in whole:
                if line.startswith("Partition:"):
                    partition, offset, value = line.split("\t")
                    number = int(value.partition(".")[2])
                    place = int(partition.partition(":")[2])
                    received.records[place].append((int(offset.partition(":")[2]), ("java", number)))
    process.end()


def consume_sarama(bootstrap: str, received: Received, ended: threading.Event) -> None:
    """Run the Sarama program, which prints digests of values."""
    values: list[Value] = [("sarama", number) for number in range(1, MOST_NUMBERS)]
    by_digest = {_digest(json.dumps(value).encode()): value for value in values}
    with Run(sarama(), bootstrap, assign={TOPIC: received.partitions}, isolation="read_committed") as run:
        while not ended.wait(PAUSE):
            for line in run.take():
                if line["kind"] == "record":
                    received.records[line["partition"]].append((line["offset"], by_digest[line["value"]]))


def _digest(value: bytes) -> str:
    """Return the digest of a value, in the same form as the client programs in tests/clients."""
    return f"{len(value)}:{hashlib.sha256(value).hexdigest()}"


def _log(name: str) -> Path:
    """Make an empty file for a program's output."""
    BUILT.mkdir(parents=True, exist_ok=True)
    log = BUILT / f"{name}.log"
    log.write_text("")
    return log


GROUPS: Final[dict[str, tuple[dict[str, Produce], dict[str, Consume]]]] = {
    "python": (
        {
            "librdkafka": librdkafka,
            "librdkafka in transactions": librdkafka_in_transactions,
            "aiokafka": aiokafka,
            "aiokafka in transactions": aiokafka_in_transactions,
            "kafka-python": kafka_python,
        },
        {
            "librdkafka": consume_librdkafka,
            "aiokafka": consume_aiokafka,
            "kafka-python": consume_kafka_python,
        },
    ),
    "java": ({"java": java}, {"java": consume_java}),
    "sarama": ({"sarama": sarama_producer}, {"sarama": consume_sarama}),
}
"""The groups of clients that are tested together: the producers by name, and the consumers by name."""
