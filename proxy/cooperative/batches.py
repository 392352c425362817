"""A record batch (magic 2, KIP-98) without the records of others, as Kafka's log cleaner would write it.

Base offset, last offset delta, timestamps, attributes, producer and leader epoch do not change. Kept records
do not change either, because their deltas refer to the header. Count, length and CRC change.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from proxy.cooperative.codecs import CodecError, compress, decompress
from proxy.cooperative.key_hash import offset_hash
from proxy.cooperative.ranges import Split
from proxy.protocol.primitives import Buffer, encode_uvarint

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12
"""The end of base_offset and batch_length, the first fields. The length counts the bytes after it."""
MAGIC_AT: Final = 16
"""Offset of the magic. It is the same in messages of magic 0 and 1."""
_HEADER: Final = Struct(">qiibIhiqqqhii")
"""base_offset, batch_length, partition_leader_epoch, magic, crc, attributes, last_offset_delta,
base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, number of records."""
_MAGIC: Final = 2
_CRC_AT: Final = 17
_CRC_END: Final = 21
_COUNT_AT: Final = 57
CODEC: Final = 0x07
"""The bits of the attributes for the codec."""
_CONTROL: Final = 0x20
_COMMITTED: Final = bytes((8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 0))
"""ControlRecordTypeSchema (version 0, type COMMIT) and EndTxnMarker (version 0, coordinator epoch 0), each
with its length as a varint."""


class BatchError(ValueError):
    """A batch can't be split. The text is one line."""


class Header(NamedTuple):
    """The fields of a batch's header that are used."""

    base_offset: int
    size: int
    """The bytes of the complete batch."""
    leader_epoch: int
    crc: int
    attributes: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    records: int

    @property
    def has_keys(self) -> bool:
        """Whether it has records of producers, so it is neither empty nor a control batch."""
        return self.records > 0 and not self.attributes & _CONTROL

    @property
    def is_marker(self) -> bool:
        """Whether it is the end of a transaction: a control batch that is not empty."""
        return self.records > 0 and self.attributes & _CONTROL > 0


def read_header(records: Buffer, at: int) -> Header:
    """Read the header of the batch at an offset. At least `HEADER_BYTES` must follow.

    Raises:
        BatchError: its magic is not 2, or it is shorter than its header.
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
    """Check the format of a batch, or of a message of older Kafka, by the byte at `MAGIC_AT`.

    Raises:
        BatchError: the magic is not 2.
    """
    if magic != _MAGIC:
        raise BatchError(f"magic {magic} is older than Kafka 0.11" if magic < _MAGIC else f"magic {magic}")


def split_batch(
    batch: Buffer, header: Header, split: Split, least: Sequence[int], *, recompress: bool = True
) -> list[tuple[bytes | None, int]]:
    """Return for each lane its part of a batch, and the offset of its last record (-1 without a record).

    The part is None if it has no record. It is the unchanged batch if it has all records, or if the batch is
    empty or a control batch.

    Args:
        batch: the complete batch.
        header: its header.
        split: the lanes.
        least: for each step of the split, the lowest offset to keep.
        recompress: whether to compress with the batch's codec. If not, the result is not compressed.

    Raises:
        BatchError: the bytes are damaged, or expand to too much.
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
        if len(records) == header.records:
            share = bytes(batch)
        else:
            codec = header.attributes & CODEC if recompress else 0
            share = _with_records(batch, header, records, codec)
        found.append((share, _offset(records[-1], 0, header)))
    return found


def read_keys(batch: Buffer, header: Header, split: Split) -> tuple[bytes, int, list[bytes | int], list[int]]:
    """Return the decompressed records, the offset of the first one, the keys, and the end of each record.

    If a record is hashed by its offset, the result has the step of that hash instead of a key.

    Args:
        batch: the complete batch.
        header: its header.
        split: the steps.

    Raises:
        BatchError: the bytes are damaged, or expand to too much.
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
    """Return a batch that moves a client past offset `last`.

    It has one record at that offset: the end of a committed transaction, which clients skip. A batch without
    records does not work, because librdkafka treats such a response as incomplete. It doubles its limit each
    time, and finally reports that a message may be too large.

    Args:
        first: the first offset without a record for this client.
        last: the last offset without a record for this client.
        like: a batch in this range, for its timestamps and leader epoch.
    """
    first = max(first, last - 0x7FFF_FFFF)
    # Its attributes, the time since the first record, its offset, and its key and value with their lengths.
    record = bytes(2) + encode_uvarint(2 * (last - first)) + _COMMITTED + bytes(1)
    body = encode_uvarint(2 * len(record)) + record
    times = like.base_timestamp, like.max_timestamp
    tail = Struct(">hiqqqhii").pack(_CONTROL, last - first, *times, -1, -1, -1, 1) + body
    length = HEADER_BYTES - LENGTH_END + len(body)
    head = Struct(">qiib").pack(first, length, like.leader_epoch, _MAGIC)
    return b"".join((head, google_crc32c.value(tail).to_bytes(4), tail))


def _with_records(batch: Buffer, header: Header, records: list[bytes], codec: int) -> bytes:
    payload = b"".join(records)
    if codec:
        payload = compress(codec, payload)
    attributes = (header.attributes & ~CODEC | codec) & 0xFFFF
    fields = b"".join((attributes.to_bytes(2), batch[_CRC_END + 2 : _COUNT_AT], len(records).to_bytes(4)))
    length = (HEADER_BYTES - LENGTH_END + len(payload)).to_bytes(4)
    crc = google_crc32c.extend(google_crc32c.value(fields), payload).to_bytes(4)
    return b"".join((batch[:8], length, batch[LENGTH_END:_CRC_AT], crc, fields, payload))


def _walk(body: bytes, at: int, header: Header, split: Split) -> tuple[list[bytes | int], list[int]]:
    """Return the key of each record (or its step, if it is hashed by its offset), and the end of each record.

    This runs for every record, so varints of one and two bytes are read in place, by comparisons, sums and
    products: CPython has faster instructions for these than for operations on bits.

    Raises:
        BatchError, IndexError: the records are incomplete.
    """
    base, by_offset, starts = header.base_offset, split.by_offset, split.starts
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
        if (length | key_size) & 1 or by_offset:
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
    """Return the offset of the record that begins at `at`."""
    _, at = _varint(body, at)
    at += 1  # attributes
    while body[at] >= 0x80:  # timestamp_delta
        at += 1
    delta, _ = _varint(body, at + 1)
    return header.base_offset + (delta >> 1)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a varint of up to 5 bytes, still in zigzag. Return it and the offset after it."""
    value = body[at]
    if value < 0x80:
        return value, at + 1
    if (more := body[at + 1]) < 0x80:  # as the loop has it, in half the time
        return value + (more - 1) * 0x80, at + 2
    for shift in range(7, 35, 7):
        at += 1
        more = body[at]
        value += (more - 1) << shift
        if more < 0x80:
            return value, at + 1
    raise BatchError(_NOT_WHOLE)


_NOT_WHOLE: Final = "its records are not what its header says"
