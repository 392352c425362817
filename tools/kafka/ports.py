"""Free ports on loopback, outside of the range of outgoing connections, which could take them."""

import errno
import random
import socket
import threading

LOWEST = 15_000
HIGHEST = 32_000
_lock = threading.Lock()
_next: int | None = None
"""The port behind the row that was returned last. The ports before it come again only after all others,
because a caller binds them later. The first row is at a random place, for processes with the same range.
"""


def free_ports(count: int = 1) -> int:
    """Return the first of `count` ports in a row on which nobody listens."""
    global _next  # noqa: PLW0603 - the rows of a process follow each other
    with _lock:
        first = random.randrange(LOWEST, HIGHEST) if _next is None else max(_next, LOWEST)  # noqa: S311 - not a secret
        for _ in ("to the end", "from the beginning"):
            while first <= HIGHEST - count:
                taken = [port for port in range(first, first + count) if not _is_free(port)]
                if not taken:
                    _next = first + count
                    return first
                first = taken[-1] + 1
            first = LOWEST
    raise RuntimeError(f"no {count} free ports in a row between {LOWEST} and {HIGHEST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True
