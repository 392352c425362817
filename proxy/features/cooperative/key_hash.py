"""The hash of a record, which decides the record's lane.

It is murmur2 of the key, as in Kafka's partitioner. For a record without a key, it is computed from the
offset.
"""

from collections.abc import Collection
from struct import unpack_from
from typing import Final

import numpy as np

SPACE: Final = 1 << 32
"""The number of different hashes: 0 to 2^32 - 1."""
MASK: Final = SPACE - 1
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_SPREAD: Final = 0x9E3779B1
"""A prime close to 2^32 divided by the golden ratio. Its multiples distribute consecutive offsets evenly."""
_MANY: Final = 64
"""If at least this many keys are short (`_SHORT`), their hashes are computed in NumPy arrays, because this is
faster."""
_SHORT: Final = 64
"""The maximum size in bytes of a key that is hashed in an array. All rows of the array have the size of its
longest key, so a long key would waste memory."""


def murmur2(key: bytes) -> int:
    """Return murmur2 of a key: all 32 bits, unsigned.

    Kafka's default partitioner takes the low 31 bits modulo the number of partitions. So within a partition,
    the low bits may be the same for all keys (the low n bits if there are 2^n partitions). Key ranges compare
    the whole number, so the high bits decide.

    Source: org.apache.kafka.common.utils.Utils.murmur2.
    """
    size = len(key)
    whole = size >> 2
    hashed = _SEED ^ size
    for word in unpack_from(f"<{whole}I", key):
        mixed = word * _M & MASK
        hashed = (hashed * _M ^ (mixed ^ mixed >> 24) * _M) & MASK
    if rest := key[whole << 2 :]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _M & MASK
    hashed = (hashed ^ hashed >> 13) * _M & MASK
    return hashed ^ hashed >> 15


def murmur2_of(keys: Collection[bytes]) -> dict[bytes, int]:
    """Return the murmur2 hash of each key. For many keys, this takes a tenth of the time of single calls."""
    short = [key for key in keys if len(key) <= _SHORT]
    if len(short) < _MANY:
        return {key: murmur2(key) for key in keys}
    hashes = {key: murmur2(key) for key in keys if len(key) > _SHORT}
    sizes = np.array([len(key) for key in short], np.uint32)
    whole, rest = sizes >> 2, sizes & 3
    width = int(whole.max()) + 1
    padded = b"".join([key.ljust(4 * width, b"\0") for key in short])
    words = np.ascontiguousarray(np.frombuffer(padded, "<u4").reshape(-1, width).T)
    hashed = sizes ^ _SEED
    for place in range(width):
        mixed = words[place] * _M
        hashed = np.where(place < whole, hashed * _M ^ (mixed ^ mixed >> 24) * _M, hashed)
    hashed = np.where(rest, (hashed ^ words[whole, np.arange(len(short))]) * _M, hashed)
    hashed = (hashed ^ hashed >> 13) * _M
    hashes.update(zip(short, (hashed ^ hashed >> 15).tolist(), strict=True))
    return hashes


def offset_hash(offset: int) -> int:
    """Return the hash of a record that is hashed by its offset, for example because it has no key."""
    return offset * _SPREAD & MASK
