"""Removes other members' records from a record batch (magic 2, KIP-98), as Kafka's log cleaner would do.

Base offset, attributes, last offset delta, timestamps, producer and leader epoch do not change. The kept
records do not change either, because their deltas refer to the batch header. The number of records, the
length and the CRC change.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from proxy.features.cooperative.codecs import CodecError, compress, decompress
from proxy.features.cooperative.key_hash import offset_hash
from proxy.features.cooperative.ranges import Split
from proxy.protocol.primitives import Buffer, encode_uvarint

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12
"""The offset of the first byte after base_offset and batch_length. The value of batch_length counts the bytes
from this offset on."""
MAGIC_AT: Final = 16
"""The offset of the magic byte, in a batch and in messages of magic 0 and 1."""
_HEADER: Final = Struct(">qiibIhiqqqhii")
"""The fields of a batch header: base_offset, batch_length, partition_leader_epoch, magic, crc, attributes,
last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, number of
records."""
_MAGIC: Final = 2
_CRC_AT: Final = 17
_CRC_END: Final = 21
_COUNT_AT: Final = 57
CODEC: Final = 0x07
"""The bits of the attributes that hold the compression codec."""
_CONTROL: Final = 0x20
_COMMITTED: Final = bytes((8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 0))
"""The key and value of a commit marker, each after its length as a varint. The key is a
ControlRecordTypeSchema (version 0, type COMMIT). The value is an EndTxnMarker (version 0, coordinator epoch
0)."""


class BatchError(ValueError):
    """A batch can't be split by key. The message is one line."""


class Header(NamedTuple):
    """The fields of a batch header that the gateway uses."""

    base_offset: int
    size: int
    """The size of the complete batch in bytes."""
    leader_epoch: int
    crc: int
    attributes: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    records: int

    @property
    def has_keys(self) -> bool:
        """Whether the batch has data records. Empty batches and control batches have none."""
        return self.records > 0 and not self.attributes & _CONTROL

    @property
    def is_marker(self) -> bool:
        """Whether the batch is a transaction marker: a control batch that is not empty."""
        return self.records > 0 and self.attributes & _CONTROL > 0


def read_header(records: Buffer, at: int) -> Header:
    """Read the header of the batch at an offset of `records`. At least `HEADER_BYTES` bytes must follow.

    Raises:
        BatchError: the magic is not 2, the batch is shorter than its header, or last_offset_delta or the
            number of records is negative.
    """
    base, length, epoch, magic, crc, attributes, delta, first, last, _, _, _, count = _HEADER.unpack_from(
        records, at
    )
    check_magic(magic)
    if length < HEADER_BYTES - LENGTH_END or delta < 0 or count < 0:
        raise BatchError("its header contradicts itself")
    return Header(base, LENGTH_END + length, epoch, crc, attributes, base + delta, first, last, count)


def records_of(batch: bytes) -> int:
    """Return the number of records in a batch."""
    return int.from_bytes(batch[_COUNT_AT:HEADER_BYTES])


def check_magic(magic: int) -> None:
    """Raise BatchError if the magic byte of a batch, or of a message in an older format, is not 2."""
    if magic != _MAGIC:
        raise BatchError(f"magic {magic} is older than Kafka 0.11" if magic < _MAGIC else f"magic {magic}")


def split_batch(
    batch: Buffer, header: Header, split: Split, least: Sequence[int]
) -> list[tuple[bytes | None, int]]:
    """Split a batch by lane. For each lane, return its part and the offset of the part's last record.

    If a lane has no record, its part is None and the offset is -1. If a lane has all records, its part is the
    unchanged batch. If the batch is empty or a control batch, every lane gets it unchanged, with the offset
    -1. For each step of the split, `least` is the lowest offset to keep.

    Raises:
        BatchError: the batch is damaged, or its decompressed size exceeds the limit.
    """
    if not header.has_keys:
        return [(bytes(batch), -1)] * len(split.lanes)
    body, at, keys, ends = read_keys(batch, header, split)
    owners, late = split.owners, header.base_offset < max(least)
    kept: list[list[bytes]] = [[] for _ in split.lanes]
    for step, end in zip(split.steps_of(keys), ends, strict=True):
        owner = owners[step]
        if owner >= 0 and not (late and _offset(body, at, header) < least[step]):
            kept[owner].append(body[at:end])
        at = end
    found: list[tuple[bytes | None, int]] = []
    for records in kept:
        if not records:
            found.append((None, -1))
            continue
        share = bytes(batch) if len(records) == header.records else _with_records(batch, header, records)
        found.append((share, _offset(records[-1], 0, header)))
    return found


def read_keys(batch: Buffer, header: Header, split: Split) -> tuple[bytes, int, list[bytes | int], list[int]]:
    """Decompress a batch. Return it, where its first record begins, the keys, and where each record ends.

    If a record is hashed by its offset, the list of keys has the record's step instead of a key.

    Raises:
        BatchError: the batch is damaged, or its decompressed size exceeds the limit.
    """
    checked = bytes(batch[_CRC_END:])
    if google_crc32c.value(checked) != header.crc:
        raise BatchError("its CRC is wrong")
    codec = header.attributes & CODEC
    body, at = checked, HEADER_BYTES - _CRC_END
    try:
        if codec:
            body, at = decompress(codec, memoryview(checked)[at:]), 0
        keys, ends = _walk(body, at, header, split)
    except CodecError as error:
        raise BatchError(str(error)) from None
    except IndexError:
        raise BatchError(_NOT_WHOLE) from None
    return body, at, keys, ends


def placeholder(first: int, last: int, like: Header) -> bytes:
    """Return a batch without data that moves a client past the offset `last`.

    The batch has one record at this offset: a commit marker, which clients skip. An empty batch does not
    work: librdkafka takes the response for incomplete, doubles its limit each time, and finally reports that
    a message may be too large. From `first` to `last` the client has no record. Timestamps and leader epoch
    are those of the header `like`, of a batch in this range.
    """
    first = max(first, last - 0x7FFF_FFFF)
    # The attributes of the record, timestamp delta, offset delta, then key and value with their lengths.
    record = bytes(2) + encode_uvarint(2 * (last - first)) + _COMMITTED + bytes(1)
    body = encode_uvarint(2 * len(record)) + record
    times = like.base_timestamp, like.max_timestamp
    tail = Struct(">hiqqqhii").pack(_CONTROL, last - first, *times, -1, -1, -1, 1) + body
    length = HEADER_BYTES - LENGTH_END + len(body)
    head = Struct(">qiib").pack(first, length, like.leader_epoch, _MAGIC)
    return b"".join((head, google_crc32c.value(tail).to_bytes(4), tail))


def _with_records(batch: Buffer, header: Header, records: list[bytes]) -> bytes:
    payload = b"".join(records)
    if codec := header.attributes & CODEC:
        payload = compress(codec, payload)
    fields = b"".join((batch[_CRC_END:_COUNT_AT], len(records).to_bytes(4)))
    length = (HEADER_BYTES - LENGTH_END + len(payload)).to_bytes(4)
    crc = google_crc32c.extend(google_crc32c.value(fields), payload).to_bytes(4)
    return b"".join((batch[:8], length, batch[LENGTH_END:_CRC_AT], crc, fields, payload))


def _walk(body: bytes, at: int, header: Header, split: Split) -> tuple[list[bytes | int], list[int]]:
    # This function runs for every record. So it reads varints of one and two bytes inline, with comparisons,
    # sums and products. In CPython these are faster than bit operations.
    base, starts = header.base_offset, split.starts
    keys: list[bytes | int] = []
    ends: list[int] = []
    for _ in range(header.records):
        length = body[at]
        if length < 0x80:
            at += 1
        elif (more := body[at + 1]) < 0x80:
            length += (more - 1) * 0x80
            at += 2
        else:
            length, at = _varint(body, at)
        end = at + (length >> 1)
        at += 1  # attributes
        while body[at] >= 0x80:  # timestamp_delta
            at += 1
        at += 1
        delta_at = at
        while body[at] >= 0x80:  # offset_delta
            at += 1
        at += 1
        key_size = body[at]
        if key_size < 0x80:
            at += 1
        else:
            key_size, at = _varint(body, at)
        if (length | key_size) & 1:
            if length & 1 or (key_size & 1 and key_size != 1) or at > end:
                raise BatchError(_NOT_WHOLE)
            delta, _ = _varint(body, delta_at)
            keys.append(bisect_right(starts, offset_hash(base + (delta >> 1))) - 1)
        else:
            key_end = at + (key_size >> 1)
            if key_end > end:
                raise BatchError(_NOT_WHOLE)
            keys.append(body[at:key_end])
        ends.append(end)
        at = end
    if at != len(body):
        raise BatchError(_NOT_WHOLE)
    return keys, ends


def _offset(body: bytes, at: int, header: Header) -> int:
    """Return the offset in the log of the record that begins at byte `at` of `body`."""
    _, at = _varint(body, at)
    at += 1  # attributes
    while body[at] >= 0x80:  # timestamp_delta
        at += 1
    delta, _ = _varint(body, at + 1)
    return header.base_offset + (delta >> 1)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a varint of up to 5 bytes. Return the zigzag value, not decoded, and where the varint ends."""
    value = body[at]
    if value < 0x80:
        return value, at + 1
    if (more := body[at + 1]) < 0x80:  # the loop below would give the same result in twice the time
        return value + (more - 1) * 0x80, at + 2
    for shift in range(7, 35, 7):
        at += 1
        more = body[at]
        value += (more - 1) << shift
        if more < 0x80:
            return value, at + 1
    raise BatchError(_NOT_WHOLE)


_NOT_WHOLE: Final = "its records do not match its header"
