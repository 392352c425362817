"""Writes records to a live broker, including transactions, with versions that all releases from 1.0 to 4.3
support.
"""

import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.model.primitives import Writer
from tools.kafka.raw import BodyReader, RawConnection, array, blob, string

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 0, 10, 22, 24, 26
NOT_YET: Final = frozenset({3, 6, 14, 15, 16, 51})
"""Errors of a broker that is still busy: unknown partition, not leader, coordinator loading, not available,
not coordinator, concurrent transactions."""

TRANSACTIONAL = 0x10
CONTROL = 0x20
PATIENCE = 60.0
"""The time limit until a broker is ready for a request, in seconds."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C: Final = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC32C[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = Writer()
    out.uvarint(value << 1 ^ value >> 63)
    return bytes(out.data)


def record_batch(
    values: list[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp: int | None = None,
) -> bytes:
    """Encode a batch of magic 2 without compression. All records have the same timestamp, in ms."""
    records = b""
    for index, value in enumerate(values):
        body = b"\0" + _varint(0) + _varint(index) + _varint(-1) + _varint(len(value)) + value + _varint(0)
        records += _varint(len(body)) + body
    now = round(time.time() * 1000) if timestamp is None else timestamp
    out = Writer()
    out.number("h", TRANSACTIONAL if transactional else 0)
    out.number("i", len(values) - 1)
    out.number("q", now)
    out.number("q", now)
    out.number("q", producer_id)
    out.number("h", epoch)
    out.number("i", sequence)
    out.number("i", len(values))
    checked = bytes(out.data) + records
    head = Writer()
    head.number("q", 0)
    head.number("i", len(checked) + 9)
    head.number("i", -1)
    head.number("b", 2)
    head.number("I", crc32c(checked))
    return bytes(head.data) + checked


class ProduceError(Exception):
    """The broker refused. The message has Kafka's error code."""


@dataclass
class Transaction:
    """A producer with a transactional id and a producer id of its own."""

    name: str
    producer_id: int
    epoch: int
    sequences: Counter[tuple[str, int]] = field(default_factory=Counter)

    def header(self) -> bytes:
        return string(self.name) + struct.pack(">qh", self.producer_id, self.epoch)


class Producer:
    """Writes over one plain connection. Each call returns when the broker has acknowledged it."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = RawConnection(host, port)

    def close(self) -> None:
        self._connection.close()

    def produce(
        self,
        topic: str,
        partition: int,
        values: list[bytes],
        transaction: Transaction | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Append one batch. Return its base offset.

        Raises:
            ProduceError: the broker responded with an error other than not being ready.
        """
        batch = record_batch(values, timestamp=timestamp)
        if transaction is not None:
            batch = record_batch(
                values,
                producer_id=transaction.producer_id,
                epoch=transaction.epoch,
                sequence=transaction.sequences[topic, partition],
                transactional=True,
                timestamp=timestamp,
            )
        name = string(transaction.name if transaction else None)
        entry = struct.pack(">i", partition) + blob(batch)
        body = name + struct.pack(">hi", -1, 10_000) + array([string(topic) + array([entry])])
        reader = self._until_ready(PRODUCE, 3, body, skip=4 + 2 + len(topic.encode()) + 4 + 4)
        if transaction is not None:
            transaction.sequences[topic, partition] += len(values)
        return reader.int64()

    def begin(self, name: str) -> Transaction:
        """Get a producer id for a transactional id. This aborts its open transaction."""
        self._until_ready(FIND_COORDINATOR, 1, string(name) + b"\1")
        reader = self._until_ready(INIT_PRODUCER_ID, 0, string(name) + struct.pack(">i", 60_000))
        return Transaction(name, reader.int64(), reader.int16())

    def join(self, transaction: Transaction, topic: str, partition: int) -> None:
        """Add a partition to the current transaction."""
        body = transaction.header() + array([string(topic) + array([struct.pack(">i", partition)])])
        self._until_ready(ADD_PARTITIONS_TO_TXN, 0, body, skip=4 + 4 + 2 + len(topic.encode()) + 4 + 4)

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort. The markers are written soon after."""
        self._until_ready(END_TXN, 0, transaction.header() + bytes([commit]))

    def _until_ready(self, key: int, version: int, body: bytes, *, skip: int = 4) -> BodyReader:
        """Repeat a request until the broker is ready.

        The error code comes after `skip` bytes of the response.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            reader = BodyReader(self._connection.call(key, version, body), skip)
            error = reader.int16()
            if not error:
                return reader
            if error not in NOT_YET or time.monotonic() > deadline:
                raise ProduceError(f"API key {key}: error {error}")
            time.sleep(0.02)
