"""Record batches with another producer id, which their CRC covers. Sans-IO."""

from collections.abc import Mapping
from struct import Struct
from typing import Final, TypeAlias

import google_crc32c

Producer: TypeAlias = tuple[int, int]
"""A producer id and its epoch."""

_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_PRODUCER_AT: Final = 43
_PRODUCER: Final = Struct(">qhi")  # producerId, producerEpoch, baseSequence
_HEAD_BYTES: Final = 61
_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10
_NONE: Final = _PRODUCER.pack(-1, -1, -1)


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
    covered = slice(at + _ATTRIBUTES_AT, at + size)
    before = google_crc32c.value(bytes(found[covered]))
    found[at + _PRODUCER_AT : at + _PRODUCER_AT + _PRODUCER.size] = producer
    crc = slice(at + _CRC_AT, at + _ATTRIBUTES_AT)
    # A captured CRC that is wrong stays wrong.
    changed = before ^ google_crc32c.value(bytes(found[covered]))
    found[crc] = (int.from_bytes(found[crc]) ^ changed).to_bytes(4)
