"""Reads the records that brokers have."""

import time
from collections.abc import Iterable, Iterator
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

READ_SECONDS: Final = 120.0


def records(
    bootstrap: str, partitions: Iterable[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], int, Message]]:
    """Yield partition and offset of each record up to the ends, without those of aborted transactions."""
    settings = {
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **settings})
    left, deadline = set(partitions), time.monotonic() + READ_SECONDS
    try:
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in left])
        while left:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the log could not be read: {left}")
            for message in consumer.consume(1000, 1.0):
                place, offset, error = _place(message), message.offset(), message.error()
                if error is None and offset is not None:
                    yield place, offset, message
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                    left.discard(place)
    finally:
        consumer.close()


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0
