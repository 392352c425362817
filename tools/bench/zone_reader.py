"""Reads one partition, and notes when each record came. Each reader is a process.

    python -m tools.bench.zone_reader CLIENT ADDRESS TOPIC [--rack RACK] [--pace SECONDS] [--client-id ID]

The process follows the protocol of `tools.bench.processes.Load`. It is ready after the first record. Its
result has for each record the time when it came, and the first eight bytes of its value as a number: the time
when `tools.bench.load` produced it. Both times are monotonic, in ns.

With a pace it reads from the start of the partition, and waits after each record. Its fetches are small and
it fetches nothing in advance, so that a pause of the broker is soon a pause of the application.
"""

import argparse
import asyncio
import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer

POLL: Final = 0.1
SMALL: Final = 4_000
"""The most bytes of a fetch of a reader with a pace."""
SILENT: Final = 0
"""librdkafka's log level with which it prints nothing, because the replica fails on purpose."""


def librdkafka(options: argparse.Namespace) -> Iterator[bytes | None]:
    """Yield the values of records, or None at times without one, with confluent-kafka."""
    settings: dict[str, Any] = {"group.id": "unused", "enable.auto.commit": False, "log_level": SILENT}
    if options.rack:
        settings["client.rack"] = options.rack
    if options.pace:
        settings |= {"fetch.message.max.bytes": SMALL, "queued.min.messages": 1, "fetch.queue.backoff.ms": 1}
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "client.id": options.client_id, **settings})
    start = OFFSET_BEGINNING if options.pace else OFFSET_END
    consumer.assign([confluent_kafka.TopicPartition(options.topic, 0, start)])
    while True:
        message = consumer.poll(POLL)
        yield message.value() if message is not None and message.error() is None else None


def kafka_python(options: argparse.Namespace) -> Iterator[bytes | None]:
    """Yield the values of records, or None at times without one, with kafka-python."""
    import kafka  # type: ignore[import-untyped]  # noqa: PLC0415 - no types; its import warns

    settings: dict[str, Any] = {"enable_auto_commit": False, "client_rack": options.rack}
    if options.pace:
        settings["max_partition_fetch_bytes"] = SMALL
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options.bootstrap.split(","), client_id=options.client_id, **settings
    )
    place = kafka.TopicPartition(options.topic, 0)
    consumer.assign([place])
    if options.pace:
        consumer.seek_to_beginning(place)
    else:
        consumer.seek_to_end(place)
    while True:
        batches = consumer.poll(timeout_ms=round(POLL * 1e3), max_records=1)
        yield from (record.value for each in batches.values() for record in each)
        yield None


def aiokafka(options: argparse.Namespace) -> Iterator[bytes | None]:
    """Yield the values of records, or None at times without one, with aiokafka."""
    from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]  # noqa: PLC0415 - no types

    loop = asyncio.new_event_loop()
    settings: dict[str, Any] = {"enable_auto_commit": False, "client_rack": options.rack or None}
    if options.pace:
        settings["max_partition_fetch_bytes"] = SMALL

    async def start() -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap, client_id=options.client_id, **settings
        )
        await consumer.start()
        place = TopicPartition(options.topic, 0)
        consumer.assign([place])
        await (consumer.seek_to_beginning(place) if options.pace else consumer.seek_to_end(place))
        return consumer

    consumer = loop.run_until_complete(start())
    while True:
        batches = loop.run_until_complete(consumer.getmany(timeout_ms=round(POLL * 1e3), max_records=1))
        yield from (record.value for each in batches.values() for record in each)
        yield None


CLIENTS: Final[dict[str, Callable[[argparse.Namespace], Iterator[bytes | None]]]] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def read(values: Iterator[bytes | None], pace: float) -> list[tuple[int, int]]:
    """Return for each record when it came and when it was made, until stdin is closed."""
    records: list[tuple[int, int]] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        value = next(values)
        if value is None:
            continue
        records.append((time.monotonic_ns(), int.from_bytes(value[:8])))
        if len(records) == 1:
            print("ready", flush=True)
        time.sleep(pace)
    return records


def main() -> None:
    """Run one reader."""
    logging.disable()  # the clients warn of each error, and that takes time
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--rack", default="")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--client-id", default="")
    options = parser.parse_args()
    options.client_id = options.client_id or options.client
    records = read(CLIENTS[options.client](options), options.pace)
    print(json.dumps({"records": records}), flush=True)
    os._exit(0)  # the client is still open, and would complain


if __name__ == "__main__":
    main()
