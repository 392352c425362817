"""Captures packets on the loopback interface, in the same way as tcpdump."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ALL = 3
"""The value ETH_P_ALL of linux/if_ether.h: packets of all protocols."""
_OUTGOING = 4
"""The value PACKET_OUTGOING of linux/if_packet.h. The loopback interface shows each packet twice; the
outgoing copy is skipped."""
_BUFFER = 64 << 20
_SO_RCVBUFFORCE = 33
"""A socket option of asm-generic/socket.h: a buffer above the limit for all users (net.core.rmem_max)."""
_DISCARD = "127.0.0.1", 9
_ETHERNET = 14


@contextmanager
def sniffed(file: Path, *ports: int) -> Iterator[None]:
    """Capture the TCP packets of some ports (IPv4) in a file.

    Skip the test if the user has no permission to capture packets.
    """
    try:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    except PermissionError:
        pytest.skip("this user may not capture packets")
    end = os.urandom(16)
    with found, file.open("wb") as out:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        with contextlib.suppress(PermissionError):
            found.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        found.bind(("lo", 0))
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))

        def run() -> None:
            packet = b""
            while not packet.endswith(end):
                packet, (_, _, kind, *_) = found.recvfrom(1 << 18)
                if kind != _OUTGOING and set(_ports(packet)) & set(ports):
                    second, rest = divmod(time.time_ns(), 1_000_000_000)
                    out.write(struct.pack("<4I", second, rest, len(packet), len(packet)) + packet)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            time.sleep(1)  # connections are still being closed
            # Others use loopback, too: it may never be silent. So a packet marks the end; it may be dropped.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as marks:
                while thread.is_alive():
                    with contextlib.suppress(ConnectionRefusedError):
                        marks.sendto(end, _DISCARD)
                    thread.join(1)


def _ports(packet: bytes) -> tuple[int, ...]:
    """Return the two ports of a TCP packet over IPv4, or no port for any other packet."""
    if packet[12:14] != b"\x08\x00" or packet[_ETHERNET + 9] != socket.IPPROTO_TCP:
        return ()
    return struct.unpack_from(">HH", packet, _ETHERNET + (packet[_ETHERNET] & 15) * 4)
