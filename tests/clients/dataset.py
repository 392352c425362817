"""Creates topics with everything that a fetch response can contain, on a running cluster."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tools.kafka.admin import Admin

PLAIN = "plain"
"""A topic with keys, values and headers of all forms, in batches with and without gzip."""
APPENDED = "appended"
"""A topic whose timestamps are made by the broker (LogAppendTime)."""
QUIET = "quiet"
"""A topic with many partitions and no records, the typical use of sessions."""
TRANSACTIONS = "transactions"
"""A topic with committed and aborted transactions, interleaved."""
COMPACTED = "compacted"
"""A topic whose offsets have holes, because the log cleaner has run."""
TRIMMED = "trimmed"
"""A topic whose log start is above 0, because of DeleteRecords."""
LARGE = "large"
"""A topic with records of 5 MB."""

PARTITIONS: Mapping[str, int] = {
    PLAIN: 6,
    APPENDED: 2,
    QUIET: 24,
    TRANSACTIONS: 2,
    COMPACTED: 2,
    TRIMMED: 2,
    LARGE: 2,
}
PLAIN_RECORDS = 40
KEYS = 10
LARGE_BYTES = 5_000_000
FIRST_TIMESTAMP = 1_700_000_000_000
KEEP: Mapping[str, str] = {"retention.ms": "-1"}
"""The config of all topics. By default, the broker would delete records with such old timestamps within
minutes.
"""

_CONFIG: Mapping[str, Mapping[str, str]] = {
    APPENDED: {"message.timestamp.type": "LogAppendTime"},
    COMPACTED: {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.001"},
    LARGE: {"max.message.bytes": "6000000"},
}

HEADERS: tuple[list[tuple[str, str | bytes | None]], ...] = (
    [],
    [("trace", b"\x00\xff")],
    [("tag", b"one"), ("tag", b"two"), ("empty", b"")],
    [("none", None)],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The records that every client must find."""

    ends: Mapping[tuple[str, int], int]
    """End offset of every partition."""
    starts: Mapping[tuple[str, int], int]
    """Log start offset of every partition."""
    uncommitted: int
    """Number of records for read_uncommitted."""
    committed: int
    """Number of records for read_committed."""
    markers: int
    """The number of transaction markers in the log. Clients that do not know markers deliver them as
    records.
    """


def fill(bootstrap: str) -> Expected:
    """Create the topics on the cluster, produce to them, and wait until compaction is done."""
    with Admin(bootstrap) as admin:
        for topic, partitions in PARTITIONS.items():
            admin.create_topic(topic, partitions=partitions, config={**KEEP, **_CONFIG.get(topic, {})})
        _produce_plain(bootstrap)
        with producing(bootstrap) as producer:
            for partition in range(PARTITIONS[APPENDED]):
                produce(producer, APPENDED, partition, 10)
            for partition in range(PARTITIONS[TRIMMED]):
                produce(producer, TRIMMED, partition, 20)
            for partition in range(PARTITIONS[COMPACTED]):
                produce(producer, COMPACTED, partition, 5 * KEYS)
        _produce_large(bootstrap)
        _produce_transactions(bootstrap)
        admin.delete_records(TRIMMED, dict.fromkeys(range(PARTITIONS[TRIMMED]), 12))
        _roll_and_wait_for_cleaner(bootstrap)
    return _expected(bootstrap)


@contextlib.contextmanager
def producing(bootstrap: str, **settings: Any) -> Iterator[Producer]:
    """Yield a producer with acks=all that keeps the order of records. At the end, check that all records were
    produced.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "max.in.flight": 1,  # keeps the order as idempotence does, without its wait for a producer id
            "linger.ms": 5,
            "message.max.bytes": 6_000_000,
            **settings,
        }
    )
    yield producer
    left = producer.flush(60)
    assert left == 0, f"{left} records were not produced"


def produce(producer: Producer, topic: str, partition: int, count: int, *, first: int = 0) -> None:
    """Produce records numbered from ``first``. They have `KEYS` different keys, and each has its own
    timestamp.
    """
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=f"key-{number % KEYS}".encode(),
            value=f"{topic}/{partition}/{number}".encode() * 3,
            partition=partition,
            timestamp=FIRST_TIMESTAMP + number,
        )


def _produce_plain(bootstrap: str) -> None:
    for codec, first in (("none", 0), ("gzip", PLAIN_RECORDS // 2)):
        with producing(bootstrap, **{"compression.codec": codec}) as producer:
            for number in range(first, first + PLAIN_RECORDS // 2):
                for partition in range(PARTITIONS[PLAIN]):
                    producer.produce(
                        PLAIN,
                        key=None if number % 5 == 0 else f"key-{number}".encode(),
                        value=None if number % 7 == 0 else f"{partition}/{number} ".encode() * number,
                        partition=partition,
                        timestamp=FIRST_TIMESTAMP + number,
                        headers=HEADERS[number % len(HEADERS)],
                    )


def _produce_large(bootstrap: str) -> None:
    with producing(bootstrap) as producer:
        for partition in range(PARTITIONS[LARGE]):
            for number in range(2):
                producer.produce(
                    LARGE, value=bytes([partition, number]) * (LARGE_BYTES // 2), partition=partition
                )
        producer.flush(60)
        for partition in range(PARTITIONS[LARGE]):
            produce(producer, LARGE, partition, 3)


def _transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 5})
    producer.init_transactions(60)
    return producer


def _produce_transactions(bootstrap: str) -> None:
    """Produce committed and aborted transactions, also two at the same time.

    Of those two, the later one is committed first, then the earlier one is aborted. Plain records follow.
    """
    first, second = _transactional(bootstrap, "first"), _transactional(bootstrap, "second")
    partitions = range(PARTITIONS[TRANSACTIONS])
    for number, commit in enumerate((True, False, True)):
        first.begin_transaction()
        for partition in partitions:
            produce(first, TRANSACTIONS, partition, 8, first=100 * number)
        first.flush(60)  # an abort would drop what has not been sent
        first.commit_transaction(60) if commit else first.abort_transaction(60)
    first.begin_transaction()
    second.begin_transaction()
    for partition in partitions:
        produce(first, TRANSACTIONS, partition, 5, first=300)
        first.flush(60)
        produce(second, TRANSACTIONS, partition, 5, first=400)
        second.flush(60)
    second.commit_transaction(60)
    first.abort_transaction(60)
    with producing(bootstrap) as producer:
        for partition in partitions:
            produce(producer, TRANSACTIONS, partition, 2, first=500)


def _roll_and_wait_for_cleaner(bootstrap: str) -> None:
    """Produce one more record, which starts a new segment. Wait until compaction has left one record of each
    key before it.
    """
    time.sleep(0.3)  # longer than segment.ms: the next append begins a new segment
    with producing(bootstrap) as producer:
        for partition in range(PARTITIONS[COMPACTED]):
            producer.produce(COMPACTED, key=b"last", value=b"last", partition=partition)
    deadline = time.monotonic() + 60
    while _count(bootstrap, COMPACTED) != (KEYS + 1) * PARTITIONS[COMPACTED]:
        assert time.monotonic() < deadline, "the log cleaner has not run"


def _count(bootstrap: str, topic: str) -> int:
    """Return the number of records in a topic, by reading it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS[topic])])
    count = ends = 0
    while ends < PARTITIONS[topic]:
        for message in consumer.consume(100, 0.1):
            ends, count = (ends + 1, count) if message.error() else (ends, count + 1)
    consumer.close()
    return count


def _expected(bootstrap: str) -> Expected:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    marks = {
        (topic, partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
        for topic, partitions in PARTITIONS.items()
        for partition in range(partitions)
    }
    consumer.close()
    plain = PARTITIONS[PLAIN] * PLAIN_RECORDS + PARTITIONS[APPENDED] * 10 + PARTITIONS[LARGE] * 5
    others = PARTITIONS[COMPACTED] * (KEYS + 1) + PARTITIONS[TRIMMED] * 8
    return Expected(
        ends={place: high for place, (_, high) in marks.items()},
        starts={place: low for place, (low, _) in marks.items()},
        uncommitted=plain + others + PARTITIONS[TRANSACTIONS] * 36,
        committed=plain + others + PARTITIONS[TRANSACTIONS] * 23,
        markers=PARTITIONS[TRANSACTIONS] * 5,
    )
