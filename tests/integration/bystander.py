"""A normal client of the gateway that runs while a test disturbs the gateway, and checks of the gateway."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

import psutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tools.gateway import GatewayProcess
from tools.kafka import Broker
from tools.kafka.admin import Admin

PARTITIONS = 20
RECORDS_PER_SECOND = 20
PATIENCE = 60.0
"""The time limit until everything is normal again, in seconds. Machines can be busy."""
MAX_GROWTH = 96 << 20
"""The limit for the growth of a gateway's memory while a client misbehaves, in bytes."""


def until(true: Callable[[], object], what: str, *, patience: float = PATIENCE) -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: it did not become true in time.
    """
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def fill(address: str, topic: str, records: int, partitions: int, size: int) -> None:
    """Write large records to the first partitions of a topic in turn, one batch for each record.

    Args:
        address: the broker's address.
        topic: the topic.
        records: how many records to write.
        partitions: how many partitions get records.
        size: the size of each record in bytes.
    """
    producer = Producer(
        {"bootstrap.servers": address, "message.max.bytes": 2 * size, "batch.num.messages": 1}
    )
    for number in range(records):
        producer.produce(topic, b"l" * size, partition=number % partitions)
    assert producer.flush(PATIENCE) == 0


class Bystander:
    """A confluent-kafka consumer through the gateway, and a producer that writes for it to the broker.

    Args:
        produce_at: the address to which the producer connects.
        consume_at: the address to which the consumer connects.
        topic: the name of a topic with `PARTITIONS` partitions. Nobody else writes to it.
        rate: the number of records per second.
        settings: more settings of librdkafka, for consumer and producer.
    """

    def __init__(
        self,
        produce_at: str,
        consume_at: str,
        topic: str,
        *,
        rate: float = RECORDS_PER_SECOND,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.offsets: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.values: list[bytes] = []
        """The received records, in order of arrival. A record's offset is noted before the record."""
        self.produced = 0
        """The number of acknowledged records."""
        self.errors: list[str] = []
        self._rate = rate
        self._sent = 0
        self._enough = threading.Event()
        self._ends = threading.Event()
        both: dict[str, Any] = {"log_level": 0, **(settings or {})}
        self._producer = Producer({"bootstrap.servers": produce_at, "linger.ms": 0} | both)
        self._consumer = Consumer(
            {
                "bootstrap.servers": consume_at,
                "group.id": topic,
                "client.id": "bystander",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 500,
            }
            | both
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._ends.set()
        for thread in self._threads:
            thread.join()

    @property
    def read(self) -> int:
        """The number of received records."""
        return len(self.values)

    def check(self) -> None:
        """Check that each record was read once, in order.

        First wait for one record more than were written so far.
        """
        written = self.produced
        until(lambda: self.read > written, f"{self.read} read of {written} written; {self.errors[-3:]}")
        for partition, growing in self.offsets.items():
            offsets = growing.copy()
            assert offsets == list(range(len(offsets))), f"partition {partition}"

    def finish(self) -> None:
        """Stop writing, wait until all records were read, and check them.

        Each record must have been written once and read once.
        """
        self._enough.set()
        self._threads[0].join()
        assert self.produced == self._sent, f"of {self._sent} only {self.produced}; {self.errors[-3:]}"
        expected = set(map(_value, range(self._sent)))
        # Of a record that was read twice, only one counts.
        with suppress(AssertionError):
            until(lambda: expected.issubset(self.values), "records are missing")
        read, sent = Counter(self.values), Counter(expected)
        assert read == sent, f"lost {sent - read}, too many {read - sent}; {self.errors[-3:]}"

    def _produce(self) -> None:
        while not self._enough.wait(1 / self._rate):
            value, partition = _value(self._sent), self._sent % PARTITIONS
            self._producer.produce(self.topic, value, partition=partition, on_delivery=self._written)
            self._sent += 1
            self._producer.poll(0)
        self._producer.flush(PATIENCE)

    def _written(self, problem: KafkaError | None, _message: object) -> None:
        if problem is None:
            self.produced += 1
        else:
            self.errors.append(str(problem))

    def _consume(self) -> None:
        while not self._ends.is_set():
            for message in self._consumer.consume(100, 0.1):
                if (problem := message.error()) is not None:
                    self.errors.append(str(problem))
                    continue
                partition, offset = message.partition(), message.offset()
                if partition is None or offset is None:
                    continue
                self.offsets[partition].append(offset)
                self.values.append(message.value() or b"")
        self._consumer.close()


def _value(number: int) -> bytes:
    return f"{number:<200}".encode()


class Scene:
    """A broker, a gateway before it, and a bystander."""

    def __init__(self, broker: Broker, gateway: GatewayProcess, bystander: Bystander) -> None:
        self.broker = broker
        self.gateway = gateway
        self.bystander = bystander
        self.process = psutil.Process(gateway.pid)

    def rss(self) -> int:
        """Return the resident memory of the gateway."""
        size: int = self.process.memory_info().rss
        return size

    def descriptors(self) -> int:
        """Return the number of the gateway's open file descriptors.

        The descriptors of the bystander's connections are not counted, because the bystander may reconnect.
        """
        links = [link for link in self.gateway.state()["connections"] if link["client_id"] == "bystander"]
        return int(self.process.num_fds()) - 2 * len(links)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the gateway's process during the body. Afterwards it receives all waiting bytes at once."""
        self.process.suspend()
        try:
            until(lambda: self.process.status() == psutil.STATUS_STOPPED, "it goes on")
            yield
        finally:
            self.process.resume()

    @contextmanager
    def unharmed(self, *, growth: int = MAX_GROWTH) -> Iterator[Callable[[], str]]:
        """Check after the body that the gateway and its other clients have not suffered.

        The bystander has no errors, and the gateway needs no more descriptors and hardly more memory.

        Yields:
            A function that returns the gateway's log lines since the start of the body.
        """
        self.bystander.check()
        descriptors, memory, logged = self.descriptors(), self.rss(), len(self.gateway.log())
        errors = len(self.bystander.errors)
        yield lambda: self.gateway.log()[logged:]
        self.bystander.check()
        assert self.bystander.errors[errors:] == []
        until(lambda: self.descriptors() <= descriptors, f"more than {descriptors} file descriptors")
        assert self.rss() - memory < growth
        assert "defect" not in self.gateway.log()[logged:]
        assert "Traceback" not in self.gateway.log()[logged:]


@contextmanager
def scene(broker: Broker, topic: str, *options: str, bootstrap: str = "") -> Iterator[Scene]:
    """Start a gateway, and a bystander that reads through it. Create the bystander's topic.

    Args:
        broker: the broker, on which the topic is created.
        topic: the bystander's topic.
        options: options of the gateway.
        bootstrap: the gateway's bootstrap, by default the broker's address.
    """
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    gateway = GatewayProcess(bootstrap or broker.address, "--log-level", "debug", *options)
    with gateway, Bystander(broker.address, gateway.address, topic) as bystander:
        with suppress(AssertionError):
            bystander.check()
        yield Scene(broker, gateway, bystander)
