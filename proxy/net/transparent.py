"""Transparent mode: the original destination of a connection that netfilter has redirected to the gateway.

With ``redirect`` (netfilter's REDIRECT) the kernel remembers the original destination, and returns it as a
socket option. This needs no privilege. With ``tproxy`` the accepted socket has the original destination as
its own address. Creating such a listener needs CAP_NET_RAW (or CAP_NET_ADMIN). systemd can create it instead.
"""

import errno
import socket
import struct
from typing import Any, Final

from proxy.addresses import MAX_PORT, OTHERS, Address, Broker
from proxy.net.listen import UNUSABLE, Binding, close_all
from proxy.text.error_text import reason_of
from proxy.text.options import ConfigError

REDIRECT: Final = "redirect"
TPROXY: Final = "tproxy"
MAX_DESTINATIONS: Final = 1024
"""The maximum of destinations with their own number. Connections to further destinations are also served, but
share one number."""

_COUNTERPARTS: Final = {"127.0.0.1": "::1", "::1": "127.0.0.1", "0.0.0.0": "::"}  # noqa: S104 - the operator's word
"""For each address, the address of the same kind in the other IP version. `Binding` does the same for ``::``.
REDIRECT sends a connection to loopback, or to the device's address, in the connection's IP version."""
_SO_ORIGINAL_DST: Final = 80
"""The socket option, from linux/netfilter_ipv4.h. IP6T_SO_ORIGINAL_DST has the same number."""
_IPV6_TRANSPARENT: Final = 75
_IP_TRANSPARENT: Final = 19


class Destinations:
    """Gives a number to each original destination of connections. `mode` is ``redirect`` or ``tproxy``."""

    def __init__(self, mode: str, listen: Address) -> None:
        self.listen = listen
        """After binding, it has the real port."""
        self.bound: tuple[Address, ...] = ()
        self.known: dict[int, Broker] = {}
        self._mode = mode
        self._numbers: dict[Address, int] = {}

    @property
    def problems(self) -> list[str]:
        # No broker can be missing, because responses are not changed.
        return []

    def of(self, accepted: Any) -> tuple[int, Address]:
        """Return the number of a connection's original destination, and the destination.

        Raises:
            OSError: the kernel does not know the original destination.
        """
        sock = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.fileno())
        try:
            own = _address(sock.getsockname())
            destination = own if self._mode == TPROXY else original_destination(sock)
        finally:
            sock.detach()
        return self.number(destination), destination

    def number(self, address: Address) -> int:
        """Return the number of a destination. It is `OTHERS` if `MAX_DESTINATIONS` others have one."""
        number = self._numbers.get(address)
        if number is None:
            number = len(self._numbers)
            if number >= MAX_DESTINATIONS:
                return OTHERS
            self._numbers[address] = number
            self.known[number] = Broker(node_id=number, address=address)
        return number


def listen(address: Address, mode: str, binding: Binding) -> list[socket.socket]:
    """Listen for redirected clients. If the address is loopback or all addresses, listen in both IP versions.

    Raises:
        OSError: the address can't be bound, or the same kind of address in the other IP version can't,
            although this machine has that IP version.
        ConfigError: the privilege for ``tproxy`` is missing.
    """
    sockets = _listen(address, mode, binding)
    other = _COUNTERPARTS.get(address.host)
    if other is not None:
        counterpart = Address(other, sockets[0].getsockname()[1])
        try:
            sockets += _listen(counterpart, mode, binding)
        except OSError as error:
            if error.errno not in UNUSABLE:  # clients of that IP version would reach another program
                close_all(sockets)
                raise OSError(f"{reason_of(error)} at {counterpart}") from error
        except ConfigError:
            close_all(sockets)
            raise
    return sockets


def _listen(address: Address, mode: str, binding: Binding) -> list[socket.socket]:
    try:
        return binding.bind(address, prepare=_make_transparent if mode == TPROXY else None)
    except PermissionError as error:
        if mode != TPROXY or error.errno != errno.EPERM:  # EACCES: a port below 1024
            raise
        raise ConfigError(
            "--transparent tproxy needs CAP_NET_RAW: start the gateway with it, or give systemd's socket"
            " Transparent=yes (see docs/users/linux.md), or use redirect"
        ) from None


def _make_transparent(sock: socket.socket) -> None:
    level, option = (
        (socket.IPPROTO_IPV6, _IPV6_TRANSPARENT)
        if sock.family == socket.AF_INET6
        else (socket.SOL_IP, _IP_TRANSPARENT)
    )
    if not sock.getsockopt(
        level, option
    ):  # systemd's sockets with Transparent=yes have it set: no privilege is needed
        sock.setsockopt(level, option, 1)


def outbound_socket(address: Address) -> socket.socket:
    """Make and bind a socket for a connection to a broker. So its port is known before it connects.

    Raises:
        OSError: no port is free.
    """
    # With protocol 0, asyncio's own loop would not set TCP_NODELAY.
    sock = socket.socket(_family(address.host), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        sock.bind(("", 0))
    except OSError:
        sock.close()
        raise
    return sock


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def original_destination(sock: socket.socket) -> Address:
    """Return the original destination of a redirected connection (SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST).

    Raises:
        OSError: the connection was not redirected, or connection tracking is off.
    """
    if sock.family == socket.AF_INET6:
        address = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)  # struct sockaddr_in6
        port = struct.unpack_from(">H", address, 2)[0]
        return Address(socket.inet_ntop(socket.AF_INET6, address[8:24]), port)
    address = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)  # struct sockaddr_in
    port = struct.unpack_from(">H", address, 2)[0]
    return Address(socket.inet_ntop(socket.AF_INET, address[4:8]), port)


def _address(name: Any) -> Address:
    host, port = name[:2]
    return Address(str(host), int(port)) if 0 < port <= MAX_PORT else Address(str(host), 0)
