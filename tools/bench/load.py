"""Loads for the benchmarks.

Each load is a separate process: `python -m tools.bench.load KIND ADDRESS TOPICS`.

The process prints `ready`, runs until it is done or its stdin is closed, and prints one JSON object. Records
contain the time at which they were produced (monotonic, ns) and the number of their time window.
"""

import argparse
import json
import random
import select
import struct
import sys
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

STAMP: Final = struct.Struct(">qi")
WARM_UP: Final = -1
"""The window number of records that were sent during the warm-up. These records are not measured."""
POLL: Final = 0.1
ERRORS: Final = 3
"""The log level of librdkafka: errors only, else it would warn of topics that are new."""

Result = dict[str, Any]


def produce(options: argparse.Namespace) -> Result:
    """Produce at a constant rate with linger 0, a key to one partition; if late, still every record."""
    settings = {"linger.ms": 0, **_given(options)}
    producer = Producer({"bootstrap.servers": options.bootstrap, "log_level": ERRORS, **settings})
    chance = random.Random(options.partitions)  # noqa: S311 - the same order on every run
    filler = bytes(options.bytes - STAMP.size)
    _print_ready()
    began = time.monotonic()
    made = 0
    while made < options.seconds * options.rate and not (made % 16 == 0 and _stop_requested()):
        due = began + made / options.rate
        if (early := due - time.monotonic()) > options.ahead:
            time.sleep(early)
        window = options.window if due - began >= options.warm_up else WARM_UP
        number = chance.randrange(options.keys or options.partitions)
        partition = number % options.partitions
        value = STAMP.pack(time.monotonic_ns(), window) + filler
        key = b"%d" % number if options.keys else None
        producer.produce(options.topics[made % len(options.topics)], value, key=key, partition=partition)
        producer.poll(0)
        made += 1
    producer.flush()
    return {"produced": made}


def fill(options: argparse.Namespace) -> Result:
    """Produce a number of records as fast as possible, in large batches, evenly over partitions."""
    settings: dict[str, Any] = {
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "queue.buffering.max.kbytes": 262_144,
        **_given(options),
    }
    producer = Producer({"bootstrap.servers": options.bootstrap, "log_level": ERRORS, **settings})
    chance = random.Random(1)  # noqa: S311 - the same records on every run
    value = chance.randbytes(options.bytes)  # does not compress
    topic = options.topics[0]
    _print_ready()
    for number in range(options.records):
        while True:
            try:
                # 500 records in a row go to one partition, so that batches are full.
                producer.produce(topic, value, partition=number // 500 % options.partitions)
                break
            except BufferError:
                producer.poll(POLL)
        if number % 500 == 0:
            producer.poll(0)
    producer.flush()
    return {"produced": options.records}


def consume(options: argparse.Namespace) -> Result:
    """Consume all partitions until stopped. Measure the latencies in each time window."""
    consumer = _consumer(options)
    if not options.first:
        _print_ready()
    latencies: dict[int, list[int]] = {}
    seen, end = 0, inf
    while seen < end:
        if end == inf and _stop_requested():
            end = _end(consumer) if options.rest else 0
            continue
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
            _print_ready()
    consumer.close()
    return {
        "consumed": seen,
        "windows": {window: _percentiles(values) for window, values in latencies.items()},
    }


def slow(options: argparse.Namespace) -> Result:
    """Consume more slowly than records come, with a small queue, so that lists of fetches change often."""
    consumer = _consumer(options)
    _print_ready()
    seen = 0
    while not _stop_requested():
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
    _print_ready()
    seen = 0
    while not _stop_requested():
        for consumer in consumers:
            seen += len(consumer.consume(100, timeout=0.005))
    for consumer in consumers:
        consumer.close()
    return {"consumed": seen}


def drain(options: argparse.Namespace) -> Result:
    """Consume records from the start. With `--stay`, print the result and stay connected until stopped."""
    consumer = _consumer(options)
    _print_ready()
    seen = size = 0
    began = 0.0
    while seen < options.records:
        messages = consumer.consume(10_000, timeout=1.0)
        if messages and not began:
            began = time.monotonic()
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"{message.error()}")
            size += len(message)
        seen += len(messages)
    ended = time.monotonic()
    if options.stay:
        print(json.dumps({"seconds": ended - began, "bytes": size, "records": seen}), flush=True)
        while not _stop_requested():
            consumer.poll(POLL)
    consumer.close()
    return {"seconds": ended - began, "bytes": size, "records": seen}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    own = {
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": ERRORS,
    }
    return {"bootstrap.servers": options.bootstrap, **own, **_given(options)}


def _given(options: argparse.Namespace) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in options.set)


def _consumer(options: argparse.Namespace) -> Consumer:
    """Make a consumer of all partitions from offset 0, so that it need not request their end offsets."""
    consumer = Consumer(_settings(options))
    listed = [
        TopicPartition(topic, number, 0) for topic in options.topics for number in range(options.partitions)
    ]
    consumer.assign(listed)
    return consumer


def _end(consumer: Consumer) -> int:
    return sum(consumer.get_watermark_offsets(place)[1] for place in consumer.assignment())


def _percentiles(values: list[int]) -> Result:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50": ordered[len(ordered) // 2] / 1e6,
        "p99": ordered[len(ordered) * 99 // 100] / 1e6,
        "most": ordered[-1] / 1e6,
    }


def _print_ready() -> None:
    print("ready", flush=True)


def _stop_requested() -> bool:
    """Return whether the parent has closed stdin, which asks this program to stop."""
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
    parser.add_argument("--keys", type=int, default=0, help="records have one of so many keys; 0: none")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--ahead", type=float, default=0.0, help="produce so many seconds early, at once")
    parser.add_argument("--warm-up", type=float, default=0.0)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--first", action="store_true", help="print ready after the first record")
    parser.add_argument("--rest", action="store_true", help="when stopped, first consume what is there")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    print(json.dumps(_KINDS[options.kind](options)), flush=True)


if __name__ == "__main__":
    main()
