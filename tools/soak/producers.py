"""Producers of several client libraries at a constant rate. They note the result of every record."""

import asyncio
import random
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped] # it carries no types
from confluent_kafka import KafkaError, Message, Producer

from tools.soak.records import GENERATION, ProducedRecords, RecordPlace, SoakRecord

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas as older Pythons have it
    from kafka import KafkaProducer  # type: ignore[import-untyped] # it carries no types

PARTITIONS: Final = 48
BUSY: Final = range(0, PARTITIONS, 8)
"""The partitions of the steady topic with records. The others are idle, so that sessions save."""
CHURN_PARTITIONS: Final = 4
CHURN_SHARE: Final = 0.1
RECORDS_PER_SECOND: Final = 25
STEP_SECONDS: Final = 0.05
MOST_IN_FLIGHT: Final = 400
MOST_AT_ONCE: Final = 10
FAILURES: Final = 20
FLUSH_SECONDS: Final = 150.0
DELIVERY_MS: Final = 120_000


@dataclass(slots=True)
class SoakTopics:
    """A topic that stays, and one that is deleted and made again `generation` times."""

    steady: str
    churn: str
    generation: int = 0
    churn_open: bool = True


class _ProducerClient(Protocol):
    """A producer of one client library."""

    def send(self, place: RecordPlace, record: SoakRecord, done: Callable[[int | None, str], None]) -> None:
        """Send a record. Call `done` later with its offset, if known, and "", or with an error."""

    def poll(self) -> None:
        """Let the client process its events."""

    def close(self) -> None:
        """Give up unacknowledged records."""


class SoakProducer:
    """One producer in its own thread. `make` makes a client of the library for a bootstrap address."""

    def __init__(
        self,
        name: str,
        make: Callable[[str], _ProducerClient],
        bootstrap: str,
        topics: SoakTopics,
        produced: ProducedRecords,
        seed: int,
    ) -> None:
        self.name = name
        self.count = 0
        self.renewed = 0
        self.in_flight = 0
        self.churn_in_flight = 0
        self._make = make
        self._bootstrap = bootstrap
        self._topics = topics
        self._produced = produced
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._failures = 0
        self._lock = threading.Lock()

    def run(self, ended: threading.Event, place: AbstractContextManager[None]) -> None:
        """Produce within `place` until `ended` is set, and wait for the last acknowledgements."""
        with place:
            client = self._make(self._bootstrap)
            before = time.monotonic()
            due = 0.0
            while not ended.wait(STEP_SECONDS):
                now = time.monotonic()
                due, before = min(due + (now - before) * RECORDS_PER_SECOND, MOST_AT_ONCE), now
                while due >= 1 and self.in_flight < MOST_IN_FLIGHT:
                    due -= 1
                    self._produce(client)
                client.poll()
                if self._failures >= FAILURES:
                    client.close()
                    self._failures = 0
                    self.renewed += 1
                    client = self._make(self._bootstrap)
            deadline = time.monotonic() + FLUSH_SECONDS
            while self.in_flight and time.monotonic() < deadline:
                client.poll()
                time.sleep(STEP_SECONDS)
            client.close()

    def _produce(self, client: _ProducerClient) -> None:
        topics, choose = self._topics, self._random
        with self._lock:
            churn = topics.churn_open and choose.random() < CHURN_SHARE
            self.in_flight += 1
            self.churn_in_flight += churn
        self.count += 1
        if churn:
            place = RecordPlace(topics.churn, topics.generation, choose.randrange(CHURN_PARTITIONS))
        else:
            place = RecordPlace(topics.steady, 0, choose.choice(BUSY))
        record = self._record(place)
        digest = record.digest()
        self._produced.sent.add(digest)
        try:
            client.send(place, record, partial(self._done, place, digest, churn))
        except Exception as error:  # noqa: BLE001 - libraries raise what they like
            self._done(place, digest, churn, None, type(error).__name__)

    def _record(self, place: RecordPlace) -> SoakRecord:
        number = f"{self.name}-{self.count}"
        headers: list[tuple[str, bytes | None]] = [
            ("number", number.encode()),
            (GENERATION, str(place.generation).encode()),
            ("empty", b""),
        ]
        if self.name == "confluent-kafka":  # kafka-python takes no headers without a value
            headers.append(("null", None))
        key = None if self.count % 5 == 0 else f"key-{number}".encode()
        value = f"{number}-".encode() * self._random.choice((1, 4, 16, 64))
        return SoakRecord(time.time_ns() // 1_000_000, key, value, headers)

    def _done(self, place: RecordPlace, digest: int, churn: bool, offset: int | None, error: str) -> None:
        with self._lock:
            self.in_flight -= 1
            self.churn_in_flight -= churn
            if error:
                self._failures += 1
                self._produced.failed(f"{self.name}: {error}")
            else:
                self._failures = 0
                self._produced.delivered(place, offset, digest)


class Librdkafka:
    """A producer of confluent-kafka (librdkafka)."""

    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": "soak-librdkafka",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": DELIVERY_MS,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
        }
        self._producer = Producer(settings)

    def send(self, place: RecordPlace, record: SoakRecord, done: Callable[[int | None, str], None]) -> None:
        """Send a record. Call `done` later with the record's offset and "", or with an error."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            done(message.offset(), "" if error is None else error.name())

        self._producer.produce(
            place.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=place.partition,
            timestamp=record.timestamp,
            on_delivery=delivered,
        )

    def poll(self) -> None:
        """Call the callbacks of finished sends, without waiting."""
        self._producer.poll(0)

    def close(self) -> None:
        """Give up unacknowledged records, and stop the client."""
        self._producer.purge()
        self._producer.flush(10)


class Aiokafka:
    """A producer of aiokafka. Its event loop only runs in `poll`."""

    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: deque[asyncio.Task[None]] = deque()
        self._producer: Any = None
        self._bootstrap = bootstrap
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        while self._producer is None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                client_id="soak-aiokafka",
                enable_idempotence=True,
                linger_ms=5,
                metadata_max_age_ms=2000,
                request_timeout_ms=DELIVERY_MS,
            )
            try:
                await producer.start()
                self._producer = producer
            except Exception:  # noqa: BLE001 - the network may be cut just now
                await producer.stop()
                await asyncio.sleep(1)

    def send(self, place: RecordPlace, record: SoakRecord, done: Callable[[int | None, str], None]) -> None:
        """Send a record. Call `done` later with the record's offset and "", or with None and an error."""
        self._waiting.append(self._loop.create_task(self._send(place, record, done)))

    async def _send(
        self, place: RecordPlace, record: SoakRecord, done: Callable[[int | None, str], None]
    ) -> None:
        try:
            future = await self._producer.send(
                place.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=place.partition,
                timestamp_ms=record.timestamp,
            )
            metadata = await future
        except asyncio.CancelledError:
            done(None, "closed")
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise what they like
            done(None, type(error).__name__)
        else:
            done(metadata.offset, "")

    def poll(self) -> None:
        """Run the event loop of aiokafka for a short time, and remove the sends that are done."""
        self._loop.run_until_complete(asyncio.sleep(STEP_SECONDS))
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()

    def close(self) -> None:
        """Give up unacknowledged records, and stop the client."""
        for task in self._waiting:
            task.cancel()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        await asyncio.gather(*self._waiting, return_exceptions=True)
        await asyncio.wait({asyncio.ensure_future(self._producer.stop())}, timeout=10)


class KafkaPython:
    """A producer of kafka-python."""

    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap_servers": bootstrap.split(","),
            "client_id": "soak-kafka-python",
            "linger_ms": 5,
            "metadata_max_age_ms": 2000,
            "delivery_timeout_ms": DELIVERY_MS,
            "max_block_ms": 5000,
        }
        while True:
            try:
                self._producer = KafkaProducer(**settings)
                break
            except Exception:  # noqa: BLE001 - the network may be cut just now
                time.sleep(1)

    def send(self, place: RecordPlace, record: SoakRecord, done: Callable[[int | None, str], None]) -> None:
        """Send a record. Call `done` later with the record's offset and "", or with None and an error."""
        future = self._producer.send(
            place.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=place.partition,
            timestamp_ms=record.timestamp,
        )
        future.add_callback(lambda metadata: done(metadata.offset, ""))
        future.add_errback(lambda error: done(None, type(error).__name__))

    def poll(self) -> None:
        """Do nothing: the client's own thread processes its events."""

    def close(self) -> None:
        """Stop the client. It may wait up to 10 s for its unsent records."""
        self._producer.close(timeout=10)


CLIENTS: Final[Mapping[str, Callable[[str], _ProducerClient]]] = {
    "confluent-kafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}
