"""murmur2 of one key. What imports only this needs no numpy."""

from struct import unpack_from
from typing import Final

SPACE: Final = 1 << 32
"""The number of different hashes: 0 to 2^32 - 1."""
MASK: Final = SPACE - 1
SEED: Final = 0x9747B28C
M: Final = 0x5BD1E995


def murmur2(key: bytes) -> int:
    """Return murmur2 of a key: all 32 bits, unsigned.

    Kafka's default partitioner takes the low 31 bits modulo the number of partitions. So within a partition,
    the low bits may be the same for all keys (the low n bits if there are 2^n partitions). Key ranges compare
    the whole number, so the high bits decide.

    Source: org.apache.kafka.common.utils.Utils.murmur2.
    """
    size = len(key)
    whole = size >> 2
    hashed = SEED ^ size
    for word in unpack_from(f"<{whole}I", key):
        mixed = word * M & MASK
        hashed = (hashed * M ^ (mixed ^ mixed >> 24) * M) & MASK
    if rest := key[whole << 2 :]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * M & MASK
    hashed = (hashed ^ hashed >> 13) * M & MASK
    return hashed ^ hashed >> 15
