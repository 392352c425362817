"""Transparent mode: where a client meant to go, when the kernel has brought its connection here instead.

With ``redirect`` (netfilter's REDIRECT) the kernel keeps the original destination and tells it for the
socket; that needs no right. With ``tproxy`` the accepted socket has the original destination as its own
address; a listener for that needs CAP_NET_RAW (or CAP_NET_ADMIN) once, when it is made; systemd can make it.
"""

import errno
import socket
import struct
from typing import Any, Final

from proxy.addresses import MAX_PORT, OTHERS, Address, Broker
from proxy.config import ConfigError
from proxy.net.listen import UNUSABLE, Binding
from proxy.reasons import reason_of

REDIRECT: Final = "redirect"
TPROXY: Final = "tproxy"
MOST: Final = 1024
"""Destinations that are told apart; connections to more are served all the same, and counted together."""

_COUNTERPARTS: Final = {"127.0.0.1": "::1", "::1": "127.0.0.1", "0.0.0.0": "::", "::": "0.0.0.0"}  # noqa: S104 - the operator's word
"""REDIRECT leads to loopback, or to the address of the device, in the IP version of the connection."""
_SO_ORIGINAL_DST: Final = 80
"""linux/netfilter_ipv4.h; IP6T_SO_ORIGINAL_DST is the same number."""
_IPV6_TRANSPARENT: Final = 75
_IP_TRANSPARENT: Final = 19


class Destinations:
    """The original destinations of all connections.

    Args:
        mode: ``redirect`` or ``tproxy``.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._numbers: dict[Address, int] = {}
        self.known: dict[int, Broker] = {}

    @property
    def problems(self) -> list[str]:
        """Nothing is left out of any response: none is touched."""
        return []

    def of(self, shown: Any) -> tuple[int, Address]:
        """Return the number of a connection's destination, and the destination.

        Args:
            shown: the accepted socket, as the event loop shows it.

        Raises:
            OSError: the kernel tells no destination.
        """
        sock = socket.socket(shown.family, shown.type, shown.proto, fileno=shown.fileno())
        try:
            own = _address(sock.getsockname())
            meant = own if self._mode == TPROXY else original_destination(sock)
        finally:
            sock.detach()
        return self.number(meant), meant

    def number(self, address: Address) -> int:
        """Return the number of a destination; one that is new gets the next."""
        number = self._numbers.get(address)
        if number is None:
            number = len(self._numbers)
            if number >= MOST:
                return OTHERS
            self._numbers[address] = number
            self.known[number] = Broker(node_id=number, address=address)
        return number


class OutboundPorts:
    """Which of this machine's ports the gateway's own connections to brokers come from, and where they go.

    Args:
        cells: four bytes for each port, by IP version; processes that share them know each other's ways.
        own: the number of this process, from 1.
    """

    CELLS: Final = 2 * (MAX_PORT + 1)

    __slots__ = ("_cells", "_own")

    def __init__(self, cells: memoryview | None = None, own: int = 1) -> None:
        self._cells = memoryview(bytearray(4 * self.CELLS)).cast("I") if cells is None else cells
        self._own = own

    def __contains__(self, way: tuple[int, Address]) -> bool:
        return self._cells[self._place(way)] & MAX_PORT == way[1].port

    def add(self, way: tuple[int, Address]) -> None:
        """Note from which port to where a connection goes; the port must be bound already."""
        self._cells[self._place(way)] = self._own << 16 | way[1].port

    def discard(self, way: tuple[int, Address]) -> None:
        """Forget a way; its port may be another process's by now."""
        place = self._place(way)
        if self._cells[place] >> 16 == self._own:
            self._cells[place] = 0

    def ended(self, number: int) -> None:
        """Forget the ways of a process that is gone."""
        for place, cell in enumerate(self._cells.tolist()):
            if cell >> 16 == number:
                self._cells[place] = 0

    @staticmethod
    def _place(way: tuple[int, Address]) -> int:
        port, address = way
        return port + (MAX_PORT + 1) * (":" in address.host)


def listen(address: Address, mode: str, binding: Binding) -> list[socket.socket]:
    """Listen where the kernel brings clients to: loopback, or all addresses, of both IP versions.

    Raises:
        OSError: the address can't be bound, or that of the other IP version, which this machine has.
        ConfigError: the right for ``tproxy`` is missing.
    """
    sockets = _listen(address, mode, binding)
    other = _COUNTERPARTS.get(address.host)
    if other is not None:
        counterpart = Address(other, sockets[0].getsockname()[1])
        try:
            sockets += _listen(counterpart, mode, binding)
        except OSError as error:
            if error.errno not in UNUSABLE:  # clients of that IP version would come to whoever is there
                _close(sockets)
                raise OSError(f"{reason_of(error)} at {counterpart}") from error
        except ConfigError:
            _close(sockets)
            raise
    return sockets


def _listen(address: Address, mode: str, binding: Binding) -> list[socket.socket]:
    try:
        return binding.bind(address, prepare=_make_transparent if mode == TPROXY else None)
    except PermissionError as error:
        if mode != TPROXY or error.errno != errno.EPERM:  # EACCES: a port below 1024
            raise
        raise ConfigError(
            "--transparent tproxy needs CAP_NET_RAW: start it with that, or give systemd's socket"
            " Transparent=yes (see docs/deploy.md), or use redirect"
        ) from None


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _make_transparent(sock: socket.socket) -> None:
    level, option = (
        (socket.IPPROTO_IPV6, _IPV6_TRANSPARENT)
        if sock.family == socket.AF_INET6
        else (socket.SOL_IP, _IP_TRANSPARENT)
    )
    if not sock.getsockopt(
        level, option
    ):  # a socket of systemd's with Transparent=yes is: no right is needed
        sock.setsockopt(level, option, 1)


def leaving(address: Address) -> socket.socket:
    """Make a socket for a connection to a broker; its port is known before it is used.

    Raises:
        OSError: no port is free.
    """
    sock = socket.socket(_family(address.host), socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(("", 0))
    except OSError:
        sock.close()
        raise
    return sock


def is_own(host: str) -> bool:
    """Tell whether an IP is one of this machine's."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def original_destination(sock: socket.socket) -> Address:
    """Return where a redirected connection was going (SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST).

    Raises:
        OSError: it was not redirected, or connection tracking is not at work.
    """
    if sock.family == socket.AF_INET6:
        told = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)  # struct sockaddr_in6
        port = struct.unpack_from(">H", told, 2)[0]
        return Address(socket.inet_ntop(socket.AF_INET6, told[8:24]), port)
    told = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)  # struct sockaddr_in
    port = struct.unpack_from(">H", told, 2)[0]
    return Address(socket.inet_ntop(socket.AF_INET, told[4:8]), port)


def _address(name: Any) -> Address:
    host, port = name[:2]
    return Address(str(host), int(port)) if 0 < port <= MAX_PORT else Address(str(host), 0)
