"""What one process of a gateway has: shared state, event loop, heap settings, file descriptors, systemd.

The heap settings are for glibc. With other C libraries they are not set.
"""

import asyncio
import ctypes
import os
import socket
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Final, Self

from proxy.command.config import Config
from proxy.logger import Logger
from proxy.net.resolve import Resolver
from proxy.telemetry.history import RecentEvents

_HEAP: Final = (
    (-1, 4 << 20),  # M_TRIM_THRESHOLD: how much may stay free at the top of the heap
    (-2, 1 << 20),  # M_TOP_PAD: how much more than needed is requested from the kernel at one time
    (-3, 1 << 20),  # M_MMAP_THRESHOLD: larger blocks get their own mapping (default 128 KB)
)
"""Parameters of mallopt(3), in bytes."""


class LiveOptions:
    """The options that a process uses now, and the result of the last reload."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.errors: list[str] = []
        """The errors of the last reload. A restart would fail with the same errors."""
        self.needs_restart: list[str] = []
        """The options that the last reload would have changed, but that need a restart."""
        self.reloaded_at = time()
        """When the options were last read without an error, in seconds since 1970."""
        self.reload_failures = 0

    def problems(self) -> list[str]:
        needed = f"a restart is needed for {', '.join(self.needs_restart)}"
        return [*self.errors, *([needed] if self.needs_restart else [])]


class Tasks:
    """The background tasks of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # The event loop keeps only weak references to tasks.
        task = self._loop.create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    def cancel(self) -> None:
        for task in list(self.running):
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a gateway: the objects that its acceptor, broker registry, server and monitor share."""

    options: LiveOptions
    loop: asyncio.AbstractEventLoop
    log: Logger
    events: RecentEvents
    tasks: Tasks
    resolver: Resolver

    @classmethod
    def of(cls, config: Config, loop: asyncio.AbstractEventLoop, log: Logger) -> Self:
        return cls(
            options=LiveOptions(config),
            loop=loop,
            log=log,
            events=RecentEvents(),
            tasks=Tasks(loop),
            resolver=Resolver(),
        )

    @property
    def config(self) -> Config:
        return self.options.config

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.spawn(work)

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Add a recent event. `text` is a sentence."""
        self.events.note(time(), kind, text, warning=warning)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if it is installed, otherwise of asyncio."""
    try:
        import uvloop  # noqa: PLC0415 - it has no wheel for some platforms
    except ImportError:  # without uvloop the gateway is only slower
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def keep_freed() -> None:
    """Make glibc keep up to 4 MB of free memory in the process. The default is 128 KB.

    By default glibc may grow and trim the heap on every read, depending on what lies at its top. With
    responses of 1 MB, this happened to two of three gateways: they used 1.5 s of CPU per GB, the third 0.9 s.
    Settings in the environment (MALLOC_...) have precedence.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _HEAP:
            mallopt(parameter, value)


def give_back() -> None:
    """Return free memory to the system. glibc by itself keeps free blocks that lie below used blocks."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def tell_ready(environ: Mapping[str, str]) -> None:
    """Notify systemd (``Type=notify``) that the gateway is ready: listeners are open, signals are handled.

    Without NOTIFY_SOCKET in the environment, nothing is sent.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def resident_bytes() -> int:
    """Return the resident memory of the process in bytes, or 0 without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_fds() -> int:
    """Return the number of open file descriptors, or 0 without /proc."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


def two_descriptors_free() -> bool:
    """Return whether one more client can be served: its connection and that to its broker need one each."""
    try:
        two = os.pipe()
    except OSError:
        return False
    for each in two:
        os.close(each)
    return True
