"""Record batches with another producer id. Sans-IO.

The CRC of a batch covers its producer id. It is corrected without reading the records: the CRCs of two
batches of equal length differ by the CRC of their difference, which is zero but for the changed bytes.
"""

from collections.abc import Mapping
from functools import cache
from struct import Struct
from typing import Final, TypeAlias

Producer: TypeAlias = tuple[int, int]
"""A producer id and its epoch."""

_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_PRODUCER_AT: Final = 43
_PRODUCER: Final = Struct(">qhi")  # producerId, producerEpoch, baseSequence
_PRODUCER_END: Final = _PRODUCER_AT + _PRODUCER.size
_HEAD_BYTES: Final = 61
_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10
_NONE: Final = _PRODUCER.pack(-1, -1, -1)
_CASTAGNOLI: Final = 0x82F63B78


def with_producers(records: bytes, producers: Mapping[Producer, Producer]) -> bytes:
    """Return whole batches with other producer ids.

    A batch with an id that is not in `producers` loses it, and is then not idempotent.
    """
    found = bytearray(records)
    at = 0
    while at + _HEAD_BYTES <= len(found) and found[at + _MAGIC_AT] == _MAGIC:
        size = 12 + int.from_bytes(found[at + 8 : at + 12])
        if size < _HEAD_BYTES or at + size > len(found):
            break
        id_, epoch, sequence = _PRODUCER.unpack_from(found, at + _PRODUCER_AT)
        here = producers.get((id_, epoch))
        if here is not None:
            _set_producer(found, at, size, _PRODUCER.pack(*here, sequence))
        elif id_ >= 0 and not found[at + _ATTRIBUTES_AT + 1] & _TRANSACTIONAL:
            _set_producer(found, at, size, _NONE)
        at += size
    return bytes(found)


def _set_producer(found: bytearray, at: int, size: int, producer: bytes) -> None:
    start, end = at + _PRODUCER_AT, at + _PRODUCER_END
    difference = bytes(old ^ new for old, new in zip(found[start:end], producer, strict=True))
    found[start:end] = producer
    crc = slice(at + _CRC_AT, at + _CRC_AT + 4)
    correction = _followed_by_zeros(_crc(difference), size - _PRODUCER_END)
    found[crc] = (int.from_bytes(found[crc]) ^ correction).to_bytes(4)


def _crc(data: bytes) -> int:
    """Return the CRC-32C of some bytes, without the usual inversions."""
    crc = 0
    for byte in data:
        crc = _one_byte(crc ^ byte)
    return crc


def _one_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc


def _followed_by_zeros(crc: int, count: int) -> int:
    """Return the CRC after `count` more bytes that are zero."""
    power = 0
    while count >> power:
        if count >> power & 1:
            crc = _times(_zeros(power), crc)
        power += 1
    return crc


@cache
def _zeros(power: int) -> tuple[int, ...]:
    """Return what 2 ** power zero bytes make of each bit of a CRC."""
    if power == 0:
        return tuple(_one_byte(1 << bit) for bit in range(32))
    half = _zeros(power - 1)
    return tuple(_times(half, column) for column in half)


def _times(matrix: tuple[int, ...], vector: int) -> int:
    product = 0
    for column in matrix:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product
