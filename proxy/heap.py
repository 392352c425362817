"""What the C library does with memory that is free again; only glibc is told, others are left alone."""

import ctypes
import os
from contextlib import suppress
from typing import Final

_OPTIONS: Final = (
    (-1, 4 << 20),  # M_TRIM_THRESHOLD: what may be free at the top of the heap
    (-2, 1 << 20),  # M_TOP_PAD: how much more than is needed is asked of the kernel at one time
    (-3, 1 << 20),  # M_MMAP_THRESHOLD: a block of that size is given back by itself; else it stayed at 128 KB
)
"""Parameters of mallopt(3), in bytes."""


def keep_freed() -> None:
    """Have glibc keep up to 4 MB that are free, where by itself it keeps 128 KB.

    By itself it asks the kernel at each read and gives back after each write, where nothing else happens
    to lie above: of answers of 1 MB two gateways of three took 1.5 s of CPU a GB so, the third 0.9. What an
    operator asks of it by the environment counts instead.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _OPTIONS:
            mallopt(parameter, value)


def give_back() -> None:
    """Return to the system what large answers took; glibc would keep what lies below something else."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
