"""Reads who wrote each record, which consumers can't see, from batches on a broker's disk (KIP-98)."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from tools.kafka import Cluster
from tools.kafka.admin import Admin
from tools.soak.records import RecordPlace, Written

_BATCH: Final = Struct(">qiibIhiqqqhii")
"""base_offset, batch_length, partition_leader_epoch, magic, crc, attributes, last_offset_delta, first and
last timestamp, producer_id, producer_epoch, base_sequence, number of records (KIP-98)."""
_OVERHEAD: Final = 12
"""The size of base_offset and batch_length, which the value of batch_length does not include."""


class BatchHeader(NamedTuple):
    """The header of a batch. The records of a batch have consecutive sequence numbers."""

    first_offset: int
    last_offset: int
    first: Written


def written(
    cluster: Cluster, wanted: Iterable[tuple[RecordPlace, int]]
) -> dict[tuple[RecordPlace, int], Written]:
    """Return who wrote records of the newest generation, from the disks of their leaders."""
    offsets: dict[RecordPlace, list[int]] = {}
    for place, offset in wanted:
        offsets.setdefault(place, []).append(offset)
    found = {}
    with Admin(cluster.bootstrap) as admin:
        for place, those in offsets.items():
            leader = cluster.broker(admin.leaders(place.topic)[place.partition])
            folder = leader.folder / "data" / f"{place.topic}-{place.partition}"
            for batch in batches(folder):
                for offset in those:
                    if batch.first_offset <= offset <= batch.last_offset:
                        sequence = batch.first.sequence + offset - batch.first_offset
                        found[place, offset] = batch.first._replace(sequence=sequence)
    return found


def batches(folder: Path) -> Iterator[BatchHeader]:
    """Read the headers of all batches in a partition's folder."""
    for segment in sorted(folder.glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at + _BATCH.size <= len(data):
            offset, length, *_, last, _, _, producer_id, epoch, sequence, _ = _BATCH.unpack_from(data, at)
            if length <= 0:
                break
            yield BatchHeader(offset, offset + last, Written(producer_id, epoch, sequence))
            at += _OVERHEAD + length
