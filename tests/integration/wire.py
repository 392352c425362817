"""A Kafka client of a few lines that sends bytes to a broker, or to the gateway.

`Wire` is `tools.kafka.raw.RawConnection` (send, receive, call, versions) with a few frequent requests.
Transactions are in `tests.integration.producing`; `Admin` makes topics.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.integration.producing import crc32c
from tools.kafka.metadata import ClusterState, request_metadata
from tools.kafka.raw import PRODUCE, BodyReader, RawConnection, array, blob, string, uvarint


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as a producer sends it. The timestamp is in ms."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ProduceError(Exception):
    """A broker refused a batch. `code` is Kafka's error code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"produce: error {code}")
        self.code = code


class Wire(RawConnection):
    """A connection to a broker, with the requests that tests need."""

    def metadata(self, *topics: str) -> ClusterState:
        """Request Metadata: the brokers, the controller and the given topics."""
        return request_metadata(self, *topics)

    def produce(self, topic: str, partition: int, records: bytes, *, version: int = 3) -> int:
        """Append a record batch (version 3 or more) or a message set (2 or less). Return its first offset.

        Raises:
            ProduceError: the broker refused the records.
        """
        self._check_version(version)
        entry = struct.pack(">i", partition) + blob(records)
        transactional_id = string(None) if version >= 3 else b""
        body = transactional_id + struct.pack(">hi", -1, 30_000) + array([string(topic) + array([entry])])
        reader = BodyReader(self.call(PRODUCE, version, body))
        reader.read(4)  # one topic
        reader.string()
        reader.read(4 + 4)  # one partition
        if code := reader.int16():
            raise ProduceError(code)
        return reader.int64()

    def produce_unacknowledged(self, topic: str, partition: int, records: bytes) -> None:
        """Append a record batch with acks=0, which has no response."""
        entry = struct.pack(">i", partition) + blob(records)
        body = string(None) + struct.pack(">hi", 0, 30_000) + array([string(topic) + array([entry])])
        self.send(PRODUCE, 3, body)

    @staticmethod
    def _check_version(version: int) -> None:
        if version > 8:
            raise ValueError(f"Produce v{version} is written by no test: 0 to 8 are")


def record_batch(
    records: Sequence[Record],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Encode a batch of magic 2, not compressed."""
    first = records[0].timestamp
    encoded = b"".join(_record(record, index, first) for index, record in enumerate(records))
    latest = max(record.timestamp for record in records)
    attributes = 0x10 if transactional else 0
    checked = struct.pack(">hiqq", attributes, len(records) - 1, first, latest)
    checked += struct.pack(">qhii", producer_id, producer_epoch, base_sequence, len(records)) + encoded
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def message_set(records: Sequence[Record], *, magic: int = 1) -> bytes:
    """Encode an uncompressed message set of magic 0 (no timestamps) or 1, the format before batches."""
    out = b""
    for offset, record in enumerate(records):
        head = struct.pack(">bb", magic, 0) + (struct.pack(">q", record.timestamp) if magic else b"")
        message = head + blob(record.key) + blob(record.value)
        out += struct.pack(">qiI", offset, len(message) + 4, zlib.crc32(message)) + message
    return out


def _record(record: Record, index: int, first_timestamp: int) -> bytes:
    body = b"\0" + _varint(record.timestamp - first_timestamp) + _varint(index)
    body += _varbytes(record.key) + _varbytes(record.value) + _varint(len(record.headers))
    for name, value in record.headers:
        body += _varbytes(name.encode()) + _varbytes(value)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    """Encode a signed varint: first zigzag encoding, then as an unsigned varint."""
    return uvarint(value << 1 ^ value >> 63)


def _varbytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data
