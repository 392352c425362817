"""A network namespace without a name. It ends with its file descriptor and its last process."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_interface
from typing import Final, Self

CLONE_NEWNET: Final = 0x40000000
_OWN: Final = "/proc/thread-self/ns/net"
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network with its own loopback, removed at the end of `with`. OSError: no CAP_SYS_ADMIN."""

    def __init__(self) -> None:
        with _returning():
            _check(_libc.unshare(CLONE_NEWNET))
            self._fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        self.run("ip", "link", "set", "lo", "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The path of the namespace, for other programs while this process has it open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread, with threads and processes that it starts, into the namespace."""
        with _returning():
            _check(_libc.setns(self._fd, CLONE_NEWNET))
            yield

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in the namespace."""
        with self.inside():
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done

    def close(self) -> None:
        """Close the namespace. It continues to exist as long as processes run in it."""
        os.close(self._fd)


def veth(near: Namespace, far: Namespace, name: str, addresses: Sequence[tuple[str, str]]) -> None:
    """Connect namespaces by devices of one name, with pairs of addresses such as ``10.0.0.1/24``."""
    near.run("ip", "link", "add", name, "type", "veth", "peer", "name", name, "netns", far.path)
    for side, place in enumerate((near, far)):
        for pair in addresses:
            address = ip_interface(pair[side])
            # Without duplicate address detection an IPv6 address can be used at once.
            options = ["nodad"] if address.version == 6 else []
            place.run("ip", "address", "add", str(address), "dev", name, *options)
        place.run("ip", "link", "set", name, "up")


def missing(*programs: str) -> str:
    """Return a description of missing programs or rights for namespaces, "" if nothing is missing."""
    lacking = [program for program in ("ip", *programs) if shutil.which(program) is None]
    if lacking:
        return f"no {', '.join(lacking)} here: python -m tools.debian fetches nft and ip"
    try:
        with Namespace() as place:
            if "nft" in programs:
                place.run("nft", "list", "tables")
    except (OSError, RuntimeError) as error:
        return f"no network namespaces here: {error}"
    return ""


@contextmanager
def _returning() -> Iterator[None]:
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _check(_libc.setns(own, CLONE_NEWNET))
        os.close(own)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
