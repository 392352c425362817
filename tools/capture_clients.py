"""The clients of `tools.captures`: two consumers of one group, with librdkafka or with aiokafka.

The first consumer reads. The second one joins, pauses half of its partitions, resumes them, seeks one of them
back, and leaves. Partitions are assigned again when it joins and when it leaves.
"""

import asyncio
import logging
import threading
import time
from contextlib import suppress
from itertools import count
from typing import Any, Final, Self

import aiokafka  # type: ignore[import-untyped]  # it has no types
import confluent_kafka
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer, TopicPartition

EVENTS: Final = "events"
ORDERS: Final = "orders"
PARTITIONS: Final = {EVENTS: 24, ORDERS: 6}
EVENTS_PER_SECOND: Final = 20
RECORD_BYTES: Final = 100

ALONE: Final = 2.0
TOGETHER: Final = 2.5
PAUSED: Final = 1.5
WAIT_SECONDS: Final = 30.0

LIBRDKAFKA: Final = (
    f"confluent-kafka {confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})"
)
AIOKAFKA: Final = f"aiokafka {aiokafka.__version__}"
STORY: Final = (
    "consumer a of group g reads "
    + " and ".join(f"{topic} ({partitions} partitions)" for topic, partitions in PARTITIONS.items()),
    "consumer b joins; it pauses half of its partitions, resumes them, seeks one back, and leaves",
    "a reads on alone and leaves; all the while the first partition of each topic gets records",
)


class RateProducer:
    """Writes until the `with` ends, to partition 0 of `EVENTS`, and once a second of `ORDERS`."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(WAIT_SECONDS)
        self._producer.flush(WAIT_SECONDS)

    def _write(self) -> None:
        for number in count():
            value = f"{number} ".encode().ljust(RECORD_BYTES, b".")
            self._producer.produce(EVENTS, value, partition=0)
            if number % EVENTS_PER_SECOND == 0:
                self._producer.produce(ORDERS, value, partition=0)
            self._producer.poll(0)
            if self._ends.wait(1 / EVENTS_PER_SECOND):
                return


def with_librdkafka(bootstrap: str) -> int:
    """Run two consumers of librdkafka. Return the number of records that they got."""
    first = _librdkafka(bootstrap, "a")
    read = _poll(first, until_first=True) + _poll(first, seconds=ALONE)
    second = _librdkafka(bootstrap, "b")
    joined = time.monotonic()
    while not second.assignment():
        read += _poll(first, seconds=0.1) + _poll(second, seconds=0.1)
        if time.monotonic() - joined > WAIT_SECONDS:
            raise RuntimeError("the second consumer got no partition")
    half = sorted(second.assignment(), key=lambda place: (place.topic, place.partition))[::2]
    read += _poll(first, second, seconds=PAUSED)
    second.pause(half)
    read += _poll(first, second, seconds=PAUSED)
    second.resume(half)
    read += _poll(first, second, seconds=PAUSED)
    second.seek(TopicPartition(half[0].topic, half[0].partition, 0))
    read += _poll(first, second, seconds=TOGETHER)
    second.close()
    read += _poll(first, seconds=ALONE)
    first.close()
    return read


def _librdkafka(bootstrap: str, name: str) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "client.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([EVENTS, ORDERS])
    return consumer


def _poll(*consumers: Consumer, seconds: float = 0.0, until_first: bool = False) -> int:
    read, began = 0, time.monotonic()
    while time.monotonic() - began < (WAIT_SECONDS if until_first else seconds):
        for consumer in consumers:
            messages = consumer.consume(100, 0.05)
            read += sum(message.error() is None for message in messages)
        if until_first and read:
            return read
    if until_first:
        raise RuntimeError("the first consumer got no record")
    return read


def with_aiokafka(bootstrap: str) -> int:
    """Run two consumers of aiokafka. Return the number of records that they got."""
    return asyncio.run(_aiokafka_story(bootstrap))


async def _aiokafka_story(bootstrap: str) -> int:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every rebalance
    read = 0

    async def follow(consumer: AIOKafkaConsumer) -> None:
        nonlocal read
        async for _ in consumer:
            read += 1

    first = await _aiokafka(bootstrap, "a")
    tasks = [asyncio.create_task(follow(first))]
    await _until(lambda: read, "the first consumer got no record")
    await asyncio.sleep(ALONE)
    second = await _aiokafka(bootstrap, "b")
    await _until(second.assignment, "the second consumer got no partition")
    tasks.append(asyncio.create_task(follow(second)))
    half = sorted(second.assignment())[::2]
    await asyncio.sleep(PAUSED)
    second.pause(*half)
    await asyncio.sleep(PAUSED)
    second.resume(*half)
    await asyncio.sleep(PAUSED)
    second.seek(half[0], 0)
    await asyncio.sleep(TOGETHER)
    for task, consumer in ((tasks[1], second), (tasks[0], first)):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await consumer.stop()
        if consumer is second:
            await asyncio.sleep(ALONE)
    return read


async def _aiokafka(bootstrap: str, name: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        EVENTS,
        ORDERS,
        bootstrap_servers=bootstrap,
        group_id="g",
        client_id=name,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    return consumer


async def _until(condition: Any, problem: str) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():  # noqa: ASYNC110 - the client library has no event for this
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise RuntimeError(problem) from None
