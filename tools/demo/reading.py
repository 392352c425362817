"""The consumers of the demos that compare records, and what is written for them."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tools.demo.frame import RunningStep, interrupted
from tools.demo.report import DemoRecord

TOPIC = "events"
PARTITIONS = 100
HOT = 42
RECORDS_PER_SECOND = 50
RECORD_BYTES = 200
SETTLE_SECONDS = 1.0
"""Seconds for both consumers to fetch once before the first record is written."""
CATCH_UP_SECONDS = 60.0
"""How many seconds the last record may take to arrive after it was written."""
PARKED_SECONDS = 1.0
"""How long to wait for the last response. librdkafka lets a broker wait half a second."""


class DemoReader(threading.Thread):
    """Reads all partitions from offset 0. Before it closes, it waits until `owed` responses are 0."""

    def __init__(self, bootstrap: str, name: str, owed: Callable[[], int] = lambda: 0) -> None:
        super().__init__(name=name, daemon=True)
        self._owed = owed
        self.records: list[DemoRecord] = []
        self.error: Exception | None = None
        self._stop_reading = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo",
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])

    def run(self) -> None:
        """Read until stopped."""
        try:
            while not self._stop_reading.is_set():
                for message in self._consumer.consume(500, 0.1):
                    self._add(message)
            # A response that comes after its client has closed is not in the capture of the client's side.
            self._consumer.pause(self._consumer.assignment())
            self._consumer.consume(500, PARKED_SECONDS)
            deadline = time.monotonic() + CATCH_UP_SECONDS
            while self._owed() and time.monotonic() < deadline:  # a busy machine is late
                self._consumer.consume(500, 0.1)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that reads the records
            self.error = error
        finally:
            self._consumer.close()

    def stop(self) -> None:
        """Stop the reading thread, and close the consumer."""
        self._stop_reading.set()
        self.join(30)

    def _add(self, message: Message) -> None:
        if (problem := message.error()) is not None:
            raise KafkaException(problem)
        self.records.append(record_of(message))


def record_of(message: Message) -> DemoRecord:
    """Return everything that an application can see of a message."""
    # Only producers use a dict. Consumers get pairs, or None.
    headers = cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
    return DemoRecord(
        topic=message.topic() or "",
        partition=_known(message.partition()),
        offset=_known(message.offset()),
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        timestamp=message.timestamp(),
        headers=tuple((name, _bytes(value)) for name, value in headers),
    )


def _known(number: int | None) -> int:
    return -1 if number is None else number


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def produce(bootstrap: str, seconds: float, step: RunningStep, readers: Sequence[DemoReader]) -> int:
    """Produce to one partition at a constant rate. Return the number of records that the broker has."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    refused: list[str] = []

    def delivered(problem: object, _message: Message) -> None:
        if problem is not None:
            refused.append(str(problem))

    began = time.monotonic()
    count = round(seconds * RECORDS_PER_SECOND)
    for number in range(count):
        due = began + number / RECORDS_PER_SECOND
        while (wait := due - time.monotonic()) > 0:
            producer.poll(wait)
        producer.produce(
            TOPIC,
            f"{number}".encode().ljust(RECORD_BYTES, b"."),
            key=str(number).encode(),
            partition=HOT,
            headers=[("number", str(number).encode())],
            on_delivery=delivered,
        )
        check(readers)
        got = ", ".join(f"{len(reader.records):,} {reader.name}" for reader in readers)
        step.reached(number / RECORDS_PER_SECOND, f"{number + 1:,} written, {got}")
    if producer.flush(CATCH_UP_SECONDS) or refused:
        raise RuntimeError(f"the broker did not accept all records: {(refused or ['no response'])[0]}")
    return count


def check(readers: Sequence[DemoReader]) -> None:
    """Raise the error of a reader that has failed. Raise KeyboardInterrupt if Ctrl-C was pressed."""
    if interrupted.is_set():
        raise KeyboardInterrupt
    for reader in readers:
        if reader.error is not None:
            raise RuntimeError(f"the consumer {reader.name} failed: {reader.error}") from reader.error


def catch_up(readers: Sequence[DemoReader], produced: int) -> None:
    """Wait until all readers have `produced` records, at most for `CATCH_UP_SECONDS`."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while min(len(reader.records) for reader in readers) < produced and time.monotonic() < deadline:
        check(readers)
        time.sleep(0.05)
