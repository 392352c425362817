"""The sequence numbers that producers gave to records are read from log segments."""

import warnings
from pathlib import Path

from tools.soak.records import Written
from tools.soak.written import BatchHeader, batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas as older Pythons have it
    from kafka.record.default_records import (  # type: ignore[import-untyped] # it carries no types
        DefaultRecordBatchBuilder,
    )


def _batch(first_offset: int, records: int, producer_id: int, epoch: int, sequence: int) -> bytes:
    """Build a batch as a broker stores it, with the given values in its header."""
    batch = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for number in range(records):
        batch.append(number, 1, b"key", b"value", [])
    return first_offset.to_bytes(8) + bytes(batch.build())[8:]


def test_batches_of_all_segments_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000005.log").write_bytes(_batch(5, 2, 7, 1, 0) + _batch(7, 1, -1, -1, -1))
    (tmp_path / "00000000000000000000.log").write_bytes(_batch(0, 3, 7, 0, 40) + _batch(3, 2, 8, 0, 0))
    (tmp_path / "00000000000000000000.index").write_bytes(b"something else")
    assert list(batches(tmp_path)) == [
        BatchHeader(0, 2, Written(7, 0, 40)),
        BatchHeader(3, 4, Written(8, 0, 0)),
        BatchHeader(5, 6, Written(7, 1, 0)),
        BatchHeader(7, 7, Written(-1, -1, -1)),
    ]


def test_a_segment_that_is_longer_than_its_batches_ends_there(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").write_bytes(_batch(0, 1, 7, 0, 0) + bytes(200))
    assert list(batches(tmp_path)) == [BatchHeader(0, 0, Written(7, 0, 0))]
