"""A small mutator of inputs for fuzzing. It is for machines without a fuzzer, and for quick tests."""

import random
from collections.abc import Sequence
from typing import Final

_WORDS: Final = tuple(
    value.to_bytes(size, order, signed=value < 0)
    for size in (1, 2, 4, 8)
    for order in ("big", "little")
    for value in (
        0,
        1,
        -1,
        1 << (8 * size - 1) - 1,
        (1 << (8 * size - 1)) - 1,
        -(1 << (8 * size - 1)),
        16,
        127,
    )
    if -(1 << (8 * size - 1)) <= value < 1 << (8 * size)
)
_MOST_CHANGES: Final = 6


def mutated(data: bytes, seeds: Sequence[bytes], choose: random.Random, most: int) -> bytes:
    """Change an input in a few places, or join it with another one."""
    changed = bytearray(data)
    for _ in range(choose.randint(1, _MOST_CHANGES)):
        at = choose.randrange(len(changed) + 1)
        size = 1 << choose.randrange(7)
        match choose.randrange(8):
            case 0:
                changed[at : at + 1] = choose.randbytes(1)
            case 1 if at < len(changed):
                changed[at] ^= 1 << choose.randrange(8)
            case 2:
                word = choose.choice(_WORDS)
                changed[at : at + len(word)] = word
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = changed[at : at + size]
            case 5:
                changed[at:at] = choose.randbytes(size)
            case 6:
                other = choose.choice(seeds)
                start = choose.randrange(len(other) + 1)
                changed[at:at] = other[start : start + 4 * size]
            case _:
                other = choose.choice(seeds)
                changed[at:] = other[choose.randrange(len(other) + 1) :]
    return bytes(changed[:most])
