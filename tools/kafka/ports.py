"""Free ports on loopback, outside the range that the system uses for outgoing connections.

Otherwise a client could occupy the port of a broker that restarts.
"""

import errno
import random
import socket

LOWEST = 15_000
HIGHEST = 32_000


def free_ports(count: int = 1) -> int:
    """Return the first of `count` ports in a row on which nobody listens.

    Raises:
        RuntimeError: no such row was found in a thousand tries.
    """
    for _ in range(1000):
        first = random.randint(LOWEST, HIGHEST - count)  # noqa: S311 - not a secret
        if all(_is_free(port) for port in range(first, first + count)):
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
