"""Explicit mode: a connection toward a broker must not come back to the gateway's own listeners.

Each that did would open the next one, until there is no room for more. In transparent mode it is told when it
has come back, see `proxy.net.transparent.Ways`.
"""

import asyncio
import socket
from collections.abc import Iterable

from proxy.addresses import LOOPBACK_OF, Address


class LeadsBackError(OSError):
    """An address of a broker is one of the gateway's own listeners."""

    def __init__(self) -> None:
        super().__init__(
            "it leads back to this gateway; see that --bootstrap and the brokers' advertised.listeners"
            " name the brokers themselves"
        )


async def see_that_elsewhere(address: Address, listeners: Iterable[Address]) -> None:
    """See that a connection to an address would not come to the gateway itself.

    Args:
        address: of a broker.
        listeners: where the gateway listens; names are looked up only for those at the port of `address`.

    Raises:
        LeadsBackError: it would.
        OSError: the address leads nowhere.
    """
    hosts = {listener.host for listener in listeners if listener.port == address.port}
    if not hosts:
        return
    there = {LOOPBACK_OF.get(ip, ip) for ip in await _ips(address.host)}
    here = {ip for ip in there if _is_here(ip)}
    # Only IPv6 has colons; a wildcard stands for its own IP version.
    here |= {"::" if ":" in ip else "0.0.0.0" for ip in here}  # noqa: S104 - compared, not bound
    for host in hosts:
        if here and not here.isdisjoint(await _ips(host)):
            raise LeadsBackError


async def _ips(host: str) -> set[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {str(at[0]) for *_, at in found}


def _is_here(ip: str) -> bool:
    """Tell whether an IP is this machine's: the kernel would reach it from the same one.

    To bind it would not tell where net.ipv4.ip_nonlocal_bind is set. Nothing is sent.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, 9))
        except OSError:
            return False
        return probe.getsockname()[0] == ip or ip.startswith("127.")
