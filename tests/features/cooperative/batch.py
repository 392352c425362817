"""Builds record batches as a producer does, and reads their records as a client does. Both use aiokafka."""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from aiokafka.record.default_records import (  # type: ignore[import-untyped]  # it has no types
    DefaultRecordBatchBuilder,
)
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]  # it has no types

from proxy.features.cooperative.key_hash import SPACE, murmur2
from proxy.features.cooperative.ranges import KeyRanges

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record in a batch."""

    offset: int
    key: bytes | None
    value: bytes | None = b"v"
    headers: Headers = ()
    timestamp: int = 1_700_000_000_000


def member_of(key: bytes, members: int) -> int:
    """Return the number of the member that gets a key, if all have equal parts of the hashes."""
    return ((murmur2(key) + 1) * members - 1) // SPACE


def batch(
    records: Sequence[Record],
    codec: int = 0,
    *,
    transactional: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 7,
    last: int | None = None,
) -> bytes:
    """Build a batch. Its base offset is the offset of the first record.

    Args:
        records: the records in order. Gaps between offsets are allowed.
        codec: the number of the compression, 0 to 4.
        transactional: 1 for a transactional batch, else 0.
        producer: producer id, epoch and base sequence.
        leader_epoch: the epoch of the partition's leader.
        last: the batch's last offset, if records at its end were removed.
    """
    builder = DefaultRecordBatchBuilder(2, codec, transactional, *producer, 1 << 30)
    base = records[0].offset
    for record in records:
        at = record.offset - base
        builder.append(at, record.timestamp, record.key, record.value, list(record.headers))
    found = bytearray(builder.build())
    found[:8] = base.to_bytes(8)
    found[12:16] = leader_epoch.to_bytes(4)
    if last is not None:
        found[23:27] = (last - base).to_bytes(4)
        found[17:21] = crc(bytes(found))
    return bytes(found)


def crc(data: bytes) -> bytes:
    """Compute the CRC of a batch with another library than the one that fetchgate uses."""
    from crc32c import crc32c  # noqa: PLC0415 - only tests that change a batch need it

    return crc32c(data[21:]).to_bytes(4)


def read(records: bytes) -> list[Record]:
    """Read the records of batches as a client does, and check the CRCs."""
    found = []
    batches = MemoryRecords(records)
    while batches.has_next():
        one = batches.next_batch()
        assert one is not None
        assert one.validate_crc()
        if one.is_control_batch:
            continue
        found += [
            Record(record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
            for record in one
        ]
    return found


def control_key(control: bytes) -> bytes | None:
    """Return the key of the record in a control batch."""
    one = MemoryRecords(control).next_batch()
    assert one is not None
    assert one.is_control_batch
    key: bytes | None = next(iter(one)).key
    return key


@contextmanager
def at_most_allocated(size: int) -> Iterator[None]:
    """Check that no more than `size` bytes are allocated at the same time, with a tolerance of 100 kB."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size + 100_000
    finally:
        tracemalloc.stop()


RECORDS = [Record(at, b"%d" % at) for at in range(40)]
"""The records of most tests of members."""


def suffix(ranges: KeyRanges) -> str:
    """Return the suffix of a client.id that declares these ranges."""
    return ".kr-" + "-".join(f"{bound:08x}" for pair in ranges for bound in pair)
