"""A link that is slow and loses packets, on kernels without netem: two TUN devices and a relay."""

import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time
from ipaddress import ip_interface
from typing import Final, Self

from tools.netns.namespace import Namespace

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_MTU: Final = 65_536


class LossyLink:
    """A link between two namespaces. `with` starts and ends it.

    `delay` and `loss` may be changed at any time. The change applies to packets that arrive later. `delay` is
    in seconds, for each direction. `loss` is the share of packets that are lost; with 1.0 the link is cut.
    """

    def __init__(
        self,
        near: Namespace,
        far: Namespace,
        name: str,
        addresses: tuple[str, str],
        *,
        delay: float,
        loss: float,
        seed: int,
    ) -> None:
        self.carried = self.lost = 0
        self.delay, self.loss = delay, loss
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._ends = [_tun(place, name, at) for place, at in zip((near, far), addresses, strict=True)]
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake[1], b"x")
        self._thread.join()
        for fd in (*self._ends, *self._wake):
            os.close(fd)

    def _carry(self) -> None:
        """Read packets at both ends, and write each to the opposite end after the delay, in order."""
        due: list[tuple[float, int, int, bytes]] = []
        with selectors.DefaultSelector() as selector:
            for fd in (*self._ends, self._wake[0]):
                selector.register(fd, selectors.EVENT_READ)
            while True:
                wait = max(0.0, due[0][0] - time.monotonic()) if due else None
                for key, _ in selector.select(wait):
                    if key.fd == self._wake[0]:
                        return
                    packet = os.read(key.fd, _MTU)
                    self.carried += 1
                    if self._random.random() < self.loss:
                        self.lost += 1
                        continue
                    other = self._ends[1 - self._ends.index(key.fd)]
                    heapq.heappush(due, (time.monotonic() + self.delay, self.carried, other, packet))
                while due and due[0][0] <= time.monotonic():
                    _, _, other, packet = heapq.heappop(due)
                    os.write(other, packet)


def _tun(place: Namespace, name: str, address: str) -> int:
    with place.inside():
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    options = ["nodad"] if ip_interface(address).version == 6 else []
    place.run("ip", "address", "add", address, "dev", name, *options)
    place.run("ip", "link", "set", name, "up")
    return fd
