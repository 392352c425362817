"""The racks that the user names: those of brokers, and of the networks of clients. Sans-IO.

Kafka calls the zone of a broker its rack (``broker.rack``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from proxy.addresses import MAX_NODE_ID, whole_number
from proxy.text.printable import brief

Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks:
    """Racks by name. If a broker or a network is named more than once, the last name counts."""

    nodes: tuple[tuple[int, str], ...] = ()
    """Racks of brokers, by node id."""
    brokers: tuple[tuple[Network, str], ...] = ()
    """Racks of brokers, by the network of their address."""
    clients: tuple[tuple[Network, str], ...] = ()
    """Racks of clients, by the network of their address."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.brokers or self.clients)

    def of_client(self, host: str) -> str:
        """Return the rack of a client's address, "" if none is named. The longest prefix counts."""
        return _longest(self.clients, host)

    def of_broker(self, host: str) -> str:
        return _longest(self.brokers, host)

    def of_node(self, node_id: int) -> str:
        return dict(self.nodes).get(node_id, "")


NO_RACKS: Final = Racks()


def racks(brokers: Sequence[tuple[int | Network, str]], clients: Sequence[tuple[Network, str]]) -> Racks:
    """Return the racks of --broker-rack and --client-rack."""
    return Racks(
        nodes=tuple((key, rack) for key, rack in brokers if isinstance(key, int)),
        brokers=tuple((key, rack) for key, rack in brokers if not isinstance(key, int)),
        clients=tuple(clients),
    )


def broker_rack(text: str) -> tuple[int | Network, str]:
    """Read the value of --broker-rack.

    Raises:
        ValueError: the value is wrong. The message says how it should be.
    """
    key, rack = _named(text)
    if rack:
        if key.isascii() and key.isdecimal():
            if (node_id := whole_number(key, 0, MAX_NODE_ID)) is not None:
                return node_id, rack
        elif (network := _network(key)) is not None:
            return network, rack
    raise ValueError(
        f"{brief(text)} is not ID=NAME, such as 1=us-east-1a; brokers without a known id can be named by "
        "their address or network: 10.0.1.0/24=us-east-1a"
    )


def client_rack(text: str) -> tuple[Network, str]:
    """Read the value of --client-rack.

    Raises:
        ValueError: the value is wrong. The message says how it should be.
    """
    key, rack = _named(text)
    if rack and (network := _network(key)) is not None:
        return network, rack
    raise ValueError(f"{brief(text)} is not CIDR=NAME, such as 10.0.1.0/24=us-east-1a")


def host_of(address: str) -> str:
    """Return the host of host:port, an IPv6 address without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def endpoint(host: str, port: int) -> str:
    """Return host:port as a capture has it, "" if the host is not an IP address."""
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def _named(text: str) -> tuple[str, str]:
    """Return what is before the first "=", and the rack behind it, "" if there is none."""
    key, _, rack = text.partition("=")
    # No broker has such a rack, and it can't be written to a table.
    if any("\ud800" <= character <= "\udfff" for character in rack):
        raise ValueError(f"{brief(text)}: the name of the rack is not UTF-8")
    return key, rack


def _network(text: str) -> Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _longest(named: tuple[tuple[Network, str], ...], host: str) -> str:
    if not named:
        return ""
    address = ip_address(host)
    found = [(network.prefixlen, place) for place, (network, _) in enumerate(named) if address in network]
    return named[max(found)[1]][1] if found else ""
