"""What a process has once: its heap, its event loop, and systemd's ear.

The heap: only glibc is asked to keep what is freed; other C libraries are left alone.
"""

import ctypes
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop  # the functions for the heap alone do not need asyncio

_OPTIONS: Final = (
    (-1, 4 << 20),  # M_TRIM_THRESHOLD: what may be free at the top of the heap
    (-2, 1 << 20),  # M_TOP_PAD: how much more than is needed is asked of the kernel at one time
    (-3, 1 << 20),  # M_MMAP_THRESHOLD: a block of that size is given back by itself; else it stayed at 128 KB
)
"""Parameters of mallopt(3), in bytes."""


def new_event_loop() -> "AbstractEventLoop":
    """Make uvloop's event loop where there is a wheel of it for this platform, else asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - there may be none
    except ImportError:  # the same gateway, slower
        import asyncio  # noqa: PLC0415 - the functions for the heap alone do not need it

        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def keep_freed() -> None:
    """Have glibc keep up to 4 MB that are free, where by itself it keeps 128 KB.

    By itself it asks the kernel at each read and gives back after each write, where nothing else happens
    to lie above: of responses of 1 MB two gateways of three took 1.5 s of CPU a GB so, the third 0.9. What an
    operator asks of it by the environment counts instead.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _OPTIONS:
            mallopt(parameter, value)


def give_back() -> None:
    """Return to the system what large responses took; glibc would keep what lies below something else."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def tell_ready(environ: Mapping[str, str]) -> None:
    """Say that listeners are open and signals are heard: only now is a reload safe (``Type=notify``).

    Args:
        environ: NOTIFY_SOCKET tells where; without it nobody wants to know.
    """
    where = environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.sendto(b"READY=1", "\0" + where[1:] if where.startswith("@") else where)
