"""Loads for the benchmarks, each a process of its own: `python -m tools.bench.load KIND ADDRESS TOPICS`.

Each writes `ready`, works until it is done or its stdin is closed, and writes one JSON object. Records carry
the time at which they were produced (monotonic, ns) and the number of the window that they belong to.
"""

import argparse
import json
import random
import select
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

STAMP: Final = struct.Struct(">qi")
WARM_UP: Final = -1
"""The window of records that are not measured."""
POLL: Final = 0.1
ERRORS: Final = 3
"""librdkafka's level: it warns of topics that are seconds old."""

Result = dict[str, Any]


def produce(options: argparse.Namespace) -> Result:
    """Produce at an even pace for some seconds, or until told to end; linger 0."""
    producer = Producer({"bootstrap.servers": options.bootstrap, "linger.ms": 0, "log_level": ERRORS})
    chance = random.Random(options.partitions)  # noqa: S311 - the same order on every run
    filler = bytes(options.bytes - STAMP.size)
    _say_ready()
    began = time.monotonic()
    made = 0
    while time.monotonic() - began < options.seconds and not (made % 16 == 0 and _told_to_end()):
        due = began + made / options.rate
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        window = options.window if due - began >= options.warm_up else WARM_UP
        partition = chance.randrange(options.partitions)
        value = STAMP.pack(time.monotonic_ns(), window) + filler
        producer.produce(options.topics[made % len(options.topics)], value, partition=partition)
        producer.poll(0)
        made += 1
    producer.flush()
    return {"produced": made}


def fill(options: argparse.Namespace) -> Result:
    """Produce a number of records as fast as it goes, in large batches, evenly over partitions."""
    settings = {"linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 262_144}
    producer = Producer({"bootstrap.servers": options.bootstrap, "log_level": ERRORS, **settings})
    value = random.Random(1).randbytes(options.bytes)  # noqa: S311 - filler that does not compress
    topic = options.topics[0]
    _say_ready()
    for number in range(options.records):
        while True:
            try:
                # Runs of 500 for one partition: a batch is full when it goes.
                producer.produce(topic, value, partition=number // 500 % options.partitions)
                break
            except BufferError:
                producer.poll(POLL)
        if number % 500 == 0:
            producer.poll(0)
    producer.flush()
    return {"produced": options.records}


def consume(options: argparse.Namespace) -> Result:
    """Consume all partitions until told to end; note latencies by window."""
    consumer = _consumer(options)
    if not options.first:
        _say_ready()
    latencies: dict[int, list[int]] = {}
    seen = 0
    while not _told_to_end():
        message = consumer.poll(POLL)
        if message is None:
            continue
        if message.error() is not None:
            raise SystemExit(f"{message.error()}")
        now = time.monotonic_ns()
        made, window = STAMP.unpack_from(message.value() or b"")
        if window != WARM_UP:
            latencies.setdefault(window, []).append(now - made)
        seen += 1
        if options.first and seen == 1:
            _say_ready()
    consumer.close()
    return {"consumed": seen, "windows": {window: _told(values) for window, values in latencies.items()}}


def slow(options: argparse.Namespace) -> Result:
    """Consume from the beginning, slower than records come, with a queue so small that lists churn."""
    consumer = _consumer(options)
    _say_ready()
    seen = 0
    while not _told_to_end():
        message = consumer.poll(POLL)
        if message is not None:
            seen += 1
            time.sleep(options.pause)
    consumer.close()
    return {"consumed": seen}


def single(options: argparse.Namespace) -> Result:
    """Consume with as many clients as there are partitions, one partition each."""
    consumers = []
    for partition in range(options.partitions):
        consumer = Consumer(_settings(options))
        consumer.assign([TopicPartition(topic, partition, 0) for topic in options.topics])
        consumers.append(consumer)
    _say_ready()
    seen = 0
    while not _told_to_end():
        for consumer in consumers:
            seen += len(consumer.consume(100, timeout=0.005))
    for consumer in consumers:
        consumer.close()
    return {"consumed": seen}


def drain(options: argparse.Namespace) -> Result:
    """Consume a number of records from the beginning; tell seconds from the first to the last, and bytes."""
    consumer = _consumer(options)
    _say_ready()
    seen = taken = 0
    began = 0.0
    while seen < options.records:
        messages = consumer.consume(10_000, timeout=1.0)
        if messages and not began:
            began = time.monotonic()
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"{message.error()}")
            taken += len(message)
        seen += len(messages)
    ended = time.monotonic()
    if options.stay:
        print(json.dumps({"seconds": ended - began, "bytes": taken, "records": seen}), flush=True)
        while not _told_to_end():
            consumer.poll(POLL)
    consumer.close()
    return {"seconds": ended - began, "bytes": taken, "records": seen}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    pairs = (pair.split("=", 1) for pair in options.set)
    own = {
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": ERRORS,
    }
    return {"bootstrap.servers": options.bootstrap, **own, **dict(pairs)}


def _consumer(options: argparse.Namespace) -> Consumer:
    """Follow all partitions from offset 0: asking for their ends first would be work of another kind."""
    consumer = Consumer(_settings(options))
    listed = [
        TopicPartition(topic, number, 0) for topic in options.topics for number in range(options.partitions)
    ]
    consumer.assign(listed)
    return consumer


def _told(values: list[int]) -> Result:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50": ordered[len(ordered) // 2] / 1e6,
        "p99": ordered[len(ordered) * 99 // 100] / 1e6,
    }


def _say_ready() -> None:
    print("ready", flush=True)


def _told_to_end() -> bool:
    """Whether stdin was closed; nothing is ever written to it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


_KINDS: Final[dict[str, Callable[[argparse.Namespace], Result]]] = {
    "produce": produce,
    "fill": fill,
    "consume": consume,
    "slow": slow,
    "single": single,
    "drain": drain,
}


def main() -> None:
    """Run one load."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("bootstrap")
    parser.add_argument("topics", type=lambda text: text.split(","))
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--warm-up", type=float, default=0.0)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--first", action="store_true", help="be ready when the first record has come")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    print(json.dumps(_KINDS[options.kind](options)), flush=True)


if __name__ == "__main__":
    main()
