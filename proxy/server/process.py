"""What a process sets up once: its heap, its event loop, the notification of systemd.

The settings of the heap are glibc's alone; nothing is set with other C libraries.
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
    (-1, 4 << 20),  # M_TRIM_THRESHOLD: how much may stay free at the top of the heap
    (-2, 1 << 20),  # M_TOP_PAD: how much more than needed is requested from the kernel at one time
    (
        -3,
        1 << 20,
    ),  # M_MMAP_THRESHOLD: larger blocks are mapped and returned singly; its default is 128 KB
)
"""Parameters of mallopt(3), in bytes."""


def new_event_loop() -> "AbstractEventLoop":
    """Make uvloop's event loop if uvloop is installed, else asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - it has no wheel for some platforms
    except ImportError:  # the gateway works without it, only slower
        import asyncio  # noqa: PLC0415 - the functions for the heap alone do not need it

        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def keep_freed() -> None:
    """Have glibc keep up to 4 MB of free memory; its default is 128 KB.

    By default glibc may grow and trim the heap on every read, depending on what lies at its top. With
    responses of 1 MB, two gateways of three then used 1.5 s of CPU a GB, the third 0.9 s. Settings in the
    environment (MALLOC_...) have precedence.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _OPTIONS:
            mallopt(parameter, value)


def give_back() -> None:
    """Return free memory to the system after large responses; glibc keeps free blocks below used ones."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def tell_ready(environ: Mapping[str, str]) -> None:
    """Notify systemd (``Type=notify``) that listeners are open and signals handled: now a reload is safe.

    Args:
        environ: NOTIFY_SOCKET names the socket; without it nothing is sent.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
