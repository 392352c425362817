"""Makes listening sockets: binds them, possibly with SO_REUSEPORT, or takes them from systemd.

In explicit mode a broker's address must not be an address of the gateway itself (`check_not_own`). Otherwise
the gateway would connect to itself again and again, up to the connection limit. In transparent mode,
`proxy.server.upstream` recognizes such connections.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final
from weakref import WeakValueDictionary

from proxy.addresses import LOOPBACK_OF, Address, whole_number
from proxy.net.endpoint import set_options
from proxy.net.resolve import look_up

BACKLOG: Final = 1024
"""How many connections may wait to be accepted. After another gateway has ended, all clients reconnect at
once."""
_FIRST_INHERITED: Final = 3
"""The first file descriptor that systemd passes: SD_LISTEN_FDS_START of sd_listen_fds(3)."""
_MOST_INHERITED: Final = 65_535
"""The most sockets that are taken from systemd. A larger number is a mistake: no system has so many ports."""
_ANY_PORT: Final = 9
_ALL_IPV6, _ALL_IPV4 = "::", "0.0.0.0"  # noqa: S104 - the operator's word
UNUSABLE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""The errors for an IP, or an IP version, that this machine does not have. Another IP of the same host name
may work."""

Prepare = Callable[[socket.socket], None]


class OwnListenerError(OSError):
    """The gateway itself listens at this address: waiting for the end of another gateway does not help."""

    def __init__(self) -> None:
        super().__init__(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@dataclass(frozen=True, slots=True)
class Binding:
    """Makes the listening sockets of one gateway."""

    shares: bool = False
    """Whether other gateways may listen at the same address (SO_REUSEPORT): others that serve at the same
    time, or a new one that starts while this one drains."""
    inherited: Sequence[socket.socket] = ()
    """Listening sockets from systemd. They stay open after the gateway stops serving on them."""
    _made: "WeakValueDictionary[Any, socket.socket]" = field(default_factory=WeakValueDictionary)
    """The sockets that were made, by IP version, IP and port. If ports are shared or the socket is a copy of
    systemd's, the kernel would allow a second socket at the same address, and divide the clients."""

    def bind(
        self, address: Address, *, ips: Sequence[str] = (), prepare: Prepare | None = None
    ) -> list[socket.socket]:
        """Listen at every IP of an address, as far as this machine has the IP.

        ``::`` stands for all addresses of both IP versions, as in most servers; 0.0.0.0 only for IPv4.

        `ips` are the IPs of the address's host. Without them, the host name is looked up, which blocks.
        `prepare` is called with each socket, before it is bound unless it came from systemd.

        Raises:
            OSError: an IP of this machine can't be bound, for example because another process listens there,
                or this machine has none of the IPs.
            OwnListenerError: this gateway itself listens at the address.
        """
        bound = self._bind_each(_socket_addresses(ips or look_up(address.host), address.port), prepare)
        port = bound[0].getsockname()[1]
        if address.host == _ALL_IPV6 and not self._takes_ipv4(port):
            try:
                bound += self._bind_each(_socket_addresses([_ALL_IPV4], port), prepare)
            except OSError as error:
                if error.errno not in UNUSABLE:  # clients of IPv4 would reach another program
                    close_all(bound)
                    raise
        return bound

    def _bind_each(self, addresses: list[tuple[int, Any]], prepare: Prepare | None) -> list[socket.socket]:
        bound: list[socket.socket] = []
        failure: OSError | None = None
        for family, at in addresses:
            try:
                self._check_not_own(family, at)
                bound.append(self._inherited(family, at, prepare) or self._bound(family, at, prepare))
            except OSError as error:
                failure = error
                if error.errno not in UNUSABLE:
                    break
        if failure is not None and (not bound or failure.errno not in UNUSABLE):
            close_all(bound)
            raise failure
        for sock in bound:
            self._made[sock.family, *sock.getsockname()[:2]] = sock
        return bound

    def _takes_ipv4(self, port: int) -> bool:
        # Either this gateway listens at 0.0.0.0 for something else, or systemd's socket for ``::`` takes both
        # IP versions.
        own = self._made.get((socket.AF_INET, _ALL_IPV4, port))
        return (own is not None and own.fileno() >= 0) or any(
            sock.family == socket.AF_INET6
            and sock.getsockname()[:2] == (_ALL_IPV6, port)
            and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            for sock in self.inherited
        )

    def _check_not_own(self, family: int, at: Any) -> None:
        sock = self._made.get((family, *at[:2]))
        if sock is not None and sock.fileno() >= 0:
            raise OwnListenerError

    def _inherited(self, family: int, at: Any, prepare: Prepare | None) -> socket.socket | None:
        # Closing the copy leaves the original open.
        for sock in self.inherited:
            if sock.family == family and sock.getsockname()[:2] == at[:2]:
                copy = sock.dup()
                try:
                    if prepare is not None:
                        prepare(copy)
                    set_options(copy)
                    copy.setblocking(False)
                except OSError:
                    copy.close()
                    raise
                return copy
        return None

    def _bound(self, family: int, at: Any, prepare: Prepare | None) -> socket.socket:
        # What is accepted has the same protocol; where it is 0, asyncio's own loop does not set TCP_NODELAY.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            if prepare is not None:
                prepare(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.shares:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            set_options(sock)
            sock.bind(at)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock


class LeadsBackError(OSError):
    """A broker's address is the address of one of the gateway's own listeners."""

    def __init__(self) -> None:
        super().__init__(
            "it leads back to this gateway; make sure that --bootstrap and the brokers' advertised.listeners"
            " name the brokers themselves"
        )


def check_not_own(ips: Iterable[str], port: int, listeners: Iterable[Address]) -> None:
    """Check that no address of a broker is one of the gateway's own listeners.

    Raises:
        LeadsBackError: an address is one of the gateway's own listeners.
    """
    own = {listener.host for listener in listeners if listener.port == port}
    if not own:
        return
    here = {ip for ip in (LOOPBACK_OF.get(ip, ip) for ip in ips) if is_own(ip)}
    # Only IPv6 has colons; a wildcard stands for its own IP version.
    here |= {"::" if ":" in ip else "0.0.0.0" for ip in here}  # noqa: S104 - compared, not bound
    if not here.isdisjoint(own):
        raise LeadsBackError


def is_own(ip: str) -> bool:
    """Return whether an IP belongs to this machine.

    A packet to an own address has that address as its source, too. It proves nothing that a socket can be
    bound to the address: with the sysctl ``ip_nonlocal_bind``, which load balancers set, this is always so.
    """
    address = ip_address(ip.partition("%")[0])
    if address.is_loopback:
        return True
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, _ANY_PORT))  # of a datagram socket: nothing is sent
        except OSError:
            return False
        source = probe.getsockname()[0]
    return ip_address(source.partition("%")[0]) == address


def inherited(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Return the listening sockets that systemd has passed to this process (sd_listen_fds(3)).

    If LISTEN_PID differs from `pid`, the sockets are not for this process.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return []
    count = whole_number(environ.get("LISTEN_FDS", ""), 1, _MOST_INHERITED)
    return list(_listening(range(_FIRST_INHERITED, _FIRST_INHERITED + (count or 0))))


def _listening(numbers: range) -> Iterator[socket.socket]:
    for number in numbers:
        with suppress(OSError):  # not a socket: systemd also passes other files
            sock = socket.socket(fileno=number)
            sock.set_inheritable(False)
            if sock.family in {socket.AF_INET, socket.AF_INET6} and sock.type == socket.SOCK_STREAM:
                yield sock
            else:
                sock.detach()


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close sockets."""
    for sock in sockets:
        sock.close()


def _socket_addresses(ips: Sequence[str], port: int) -> list[tuple[int, Any]]:
    found = [
        (int(family), at)
        for ip in ips
        for family, _, _, _, at in socket.getaddrinfo(
            ip, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    ]
    if port == 0:
        found = found[:1]  # the port that is chosen would be another for each family
    return list(dict.fromkeys(found))
