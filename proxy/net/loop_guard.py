"""Outside transparent mode: no broker's address may be that of one of the gateway's own listeners.

A connection there would make the gateway open another one, and so on, up to the connection limit. In
transparent mode such a connection is recognized when it comes back: `proxy.net.transparent.OutboundPorts`.
"""

import socket
from collections.abc import Iterable

from proxy.addresses import LOOPBACK_OF, Address


class LeadsBackError(OSError):
    """An address of a broker is one of the gateway's own listeners."""

    def __init__(self) -> None:
        super().__init__(
            "it leads back to this gateway; make sure that --bootstrap and the brokers' advertised.listeners"
            " name the brokers themselves"
        )


def check_not_own(ips: Iterable[str], port: int, listeners: Iterable[Address]) -> None:
    """Check that no address of a broker is that of one of the gateway's own listeners.

    Args:
        ips: those of the broker.
        port: its port.
        listeners: where the gateway's own are bound: IPs and ports.

    Raises:
        LeadsBackError: one is.
    """
    own = {listener.host for listener in listeners if listener.port == port}
    if not own:
        return
    here = {ip for ip in (LOOPBACK_OF.get(ip, ip) for ip in ips) if _is_here(ip)}
    # Only IPv6 has colons; a wildcard stands for its own IP version.
    here |= {"::" if ":" in ip else "0.0.0.0" for ip in here}  # noqa: S104 - compared, not bound
    if not here.isdisjoint(own):
        raise LeadsBackError


def _is_here(ip: str) -> bool:
    """Tell whether an IP is this machine's: the kernel would connect to it from the same IP.

    Binding it would prove nothing where net.ipv4.ip_nonlocal_bind is set. Nothing is sent.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, 9))
        except OSError:
            return False
        return probe.getsockname()[0] == ip or ip.startswith("127.")
