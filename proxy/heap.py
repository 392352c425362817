"""What the C library does with memory that is free again: the next read takes as much."""

import ctypes
from contextlib import suppress
from typing import Final

TRIM_THRESHOLD: Final = (-1, 4 << 20)
"""M_TRIM_THRESHOLD of mallopt(3): how many bytes may be free at the top of the heap."""
TOP_PAD: Final = (-2, 1 << 20)
"""M_TOP_PAD: bytes more than needed that are asked of the kernel at one time."""
MMAP_THRESHOLD: Final = (-3, 1 << 20)
"""M_MMAP_THRESHOLD: bytes from which on a block is the kernel's own, who has it back at once."""


def keep_freed() -> None:
    """Have glibc keep up to 4 MB that are free, where by itself it keeps 128 KB.

    By itself it asks the kernel at each read and gives back after each write, where nothing else happens
    to lie above: of answers of 1 MB two gateways of three took 1.5 s of CPU a GB so, the third 0.9. Other
    C libraries are left alone.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in (TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD):
            mallopt(parameter, value)
