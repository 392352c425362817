"""What systemd is told of a gateway that it runs (sd_notify(3))."""

import socket
from collections.abc import Mapping
from contextlib import suppress


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
