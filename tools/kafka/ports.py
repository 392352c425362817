"""Free ports on loopback, outside the range that the system uses for outgoing connections.

Inside that range, a client could occupy the port of a broker that restarts.
"""

import errno
import random
import socket
import threading
from collections import deque

LOWEST = 15_000
HIGHEST = 32_000
_recent: deque[range] = deque(maxlen=64)
"""The ranges of ports that were returned last. They are not returned again, because the caller may not have
bound the ports yet."""
_lock = threading.Lock()


def free_ports(count: int = 1) -> int:
    """Return the first of `count` ports in a row on which nobody listens.

    Raises:
        RuntimeError: no such row was found in a thousand tries.
    """
    for _ in range(1000):
        first = random.randint(LOWEST, HIGHEST - count)  # noqa: S311 - not a secret
        row = range(first, first + count)
        with _lock:
            given = any(row[0] < each.stop and each.start <= row[-1] for each in _recent)
            if not given and all(map(_is_free, row)):
                _recent.append(row)
                return first
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
