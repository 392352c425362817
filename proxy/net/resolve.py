"""Resolves host names outside the event loop. A silent name server delays only look-ups of its own names.

``getaddrinfo`` can't be cancelled, and blocks for 10 s or more if a name server is silent. Event loops run it
in a few threads for all names. In this module each look-up has its own thread:

- A name has one look-up at a time, and all requests for the name wait for it.
- The last known IPs are kept. They are used while a look-up fails or takes long.
- After a failed look-up, the name is not looked up again for a while (`RETRY_SECONDS`).
- At most `MOST` look-ups run at a time, and at most half of them for names that failed before. So the names
  of a silent server can't block the others. Only more than `MOST` new names at the same time can block them,
  until these names have failed once.
- The threads are daemons: the process exits without waiting for them.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final, TypeVar

MOST: Final = 64
"""How many look-ups may run at the same time: enough for all names of a cluster, without flooding a name
server."""
MOST_AGAIN: Final = MOST // 2
"""How many of the running look-ups may be for names whose last look-up failed."""
FRESH_SECONDS: Final = 1.0
"""How long IPs are used without another look-up. Often many clients connect at the same time."""
STALE_SECONDS: Final = 1.0
"""How long a new look-up may take before the IPs of an earlier look-up are used instead."""
LOOKUP_SECONDS: Final = 9.0
"""How long to wait for a look-up, including its wait for a thread. The time limit for connecting is longer,
so an error shows that the look-up was the reason."""
RETRY_SECONDS: Final = (0.5, 5.0)
"""The first and the longest pause after a failed look-up. The pause doubles each time."""
MAX_NAMES: Final = 4096
"""How many names are kept. If there are more, the least recently used name is removed."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Name:
    host: str
    ips: tuple[str, ...] = ()
    """The IPs of the last successful look-up, or those given to `Resolver.keep`."""
    found_at: float = 0.0
    error: OSError | None = None
    wait: float = 0.0
    not_before: float = 0.0
    look_up: "asyncio.Future[None] | None" = None
    """Done when the look-up that runs or waits for a thread ends. None without a look-up."""
    began: float = 0.0
    again: bool = False
    """Whether the previous look-up failed."""


class Resolver:
    """Resolves the names of one process. It belongs to one event loop."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        """By host. The most recently used name is last."""
        self._running = 0
        self._running_again = 0
        self._waiting: tuple[deque[_Name], deque[_Name]] = (deque(), deque())
        """Names that wait for a thread. The second queue has names whose last look-up failed."""

    def __repr__(self) -> str:
        return f"<Resolver names={len(self._names)} running={self._running}>"

    def known(self, host: str) -> tuple[str, ...]:
        """Return the known IPs of a host, without waiting for a look-up. An IP is returned as it is."""
        if is_literal(host):
            return (host,)
        name = self._names.get(host)
        return name.ips if name is not None else ()

    def keep(self, host: str, ips: Iterable[str]) -> None:
        """Store the IPs of a name at which this process has bound a listener. `known` then returns them."""
        if not is_literal(host):
            self._name(host).ips = tuple(ips)

    async def ips(self, host: str) -> tuple[str, ...]:
        """Return the IPs of a host, in the order in which to try them.

        Raises:
            OSError: the host has no IPs, or no name server responds.
        """
        if is_literal(host):
            return (host,)
        name = self._name(host)
        now = asyncio.get_running_loop().time()
        if name.ips and not name.error and name.found_at and now - name.found_at < FRESH_SECONDS:
            return name.ips
        if name.look_up is None and now >= name.not_before:
            self._begin(name, now)
        if name.look_up is not None:
            patience = max(0.0, name.began + (STALE_SECONDS if name.ips else LOOKUP_SECONDS) - now)
            # Unlike `wait_for` this does not cancel the look-up, which others wait for as well.
            done, _ = await asyncio.wait((name.look_up,), timeout=patience)
            if not done and not name.ips:
                raise TimeoutError(
                    f"its name is not resolved in {LOOKUP_SECONDS:.0f} s: no name server responds"
                )
        if name.ips:
            return name.ips
        error = name.error or OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        raise type(error)(*error.args)

    def _name(self, host: str) -> _Name:
        name = self._names.pop(host, None) or _Name(host)
        self._names[host] = name
        if len(self._names) > MAX_NAMES:
            oldest = next(iter(self._names.values()))
            if oldest.look_up is None:
                del self._names[oldest.host]
        return name

    def _begin(self, name: _Name, now: float) -> None:
        name.look_up = asyncio.get_running_loop().create_future()
        name.began = now
        name.again = name.error is not None
        self._waiting[name.again].append(name)
        self._start_waiting()

    def _start_waiting(self) -> None:
        first, again = self._waiting
        while self._running < MOST and (first or (again and self._running_again < MOST_AGAIN)):
            name = (first or again).popleft()
            self._running += 1
            self._running_again += name.again
            loop = asyncio.get_running_loop()
            try:
                Thread(target=self._look_up, args=(loop, name), name="resolve", daemon=True).start()
            except RuntimeError as error:  # no thread can be started
                loop.call_soon(self._ended, name, OSError(errno.EAGAIN, str(error)))

    def _look_up(self, loop: asyncio.AbstractEventLoop, name: _Name) -> None:
        # This runs in a new thread.
        result: tuple[str, ...] | OSError
        try:
            result = look_up(name.host)
        except OSError as error:
            result = error
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(self._ended, name, result)

    def _ended(self, name: _Name, result: tuple[str, ...] | OSError) -> None:
        self._running -= 1
        self._running_again -= name.again
        now = asyncio.get_running_loop().time()
        if isinstance(result, OSError):
            name.error = result.with_traceback(None)
            name.wait = min(max(2 * name.wait, RETRY_SECONDS[0]), RETRY_SECONDS[1])
            name.not_before = now + name.wait
        else:
            name.ips, name.found_at = result, now
            name.error, name.wait = None, 0.0
        ended, name.look_up = name.look_up, None
        if ended is not None and not ended.done():
            ended.set_result(None)
        self._start_waiting()


def is_literal(host: str) -> bool:
    """Return whether a host is an IP, which needs no look-up."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host.partition("%")[0])
    except (OSError, ValueError):
        return False
    return True


def look_up(host: str) -> tuple[str, ...]:
    """Return the IPs of a host. This blocks, unless the host is an IP.

    Raises:
        OSError: the host has no IPs.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except ValueError as error:  # Python can't write it as IDNA does
        raise socket.gaierror(socket.EAI_NONAME, f"{host[:64]!r} is not a host name") from error
    return tuple(dict.fromkeys(_ip(at) for *_, at in found))


def _ip(at: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    # A link-local IP includes the number of the network device (RFC 4007).
    ip = str(at[0])
    return f"{ip}%{at[3]}" if len(at) == 4 and at[3] and "%" not in ip else ip


async def try_each(ips: Sequence[str], within: float, connect: Callable[[str], Awaitable[_T]]) -> _T:
    """Connect to the IPs of a name in order until one responds.

    Each IP gets an equal part of the remaining time (`within` seconds for all), so that a silent IP does not
    use all of it.

    Raises:
        OSError: no IP responds (the error is that of the last IP), or TLS failed. After a TLS failure no
        other IP is tried.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    failure: OSError = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for at, ip in enumerate(ips):
        try:
            async with asyncio.timeout((end - loop.time()) / (len(ips) - at)):
                return await connect(ip)
        except ssl.SSLError:
            raise
        except OSError as error:
            failure = error
    raise failure
