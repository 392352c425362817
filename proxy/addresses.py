"""The address of each broker's listener, and the addresses that clients get. Sans-IO.

A listener belongs to a node id. If a broker moves to another host, it keeps its listener, and clients get the
same address as before.
"""

import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_PORT = 65535
MAX_INT32 = 2**31 - 1
MAX_NODE_ID = MAX_INT32
"""The highest id of a broker: `node_id` is an int32 (MetadataResponse.json)."""
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - names that an operator may write; binds nothing
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound
"""For each wildcard address, the loopback address to connect to instead."""
BY_NAME = -3
"""The number of the listener that several brokers share. The server name in TLS (SNI) selects one of them."""
LOOPED = -1
"""The number for refused connections, which have no broker: the server name is that of an unknown broker, or,
in transparent mode, netfilter has not redirected the connection, or the gateway itself has opened it."""
OTHERS = -2
"""In transparent mode: the number that all destinations share if they have no number of their own."""
_PLACEHOLDER = "{id}"
_NODE_ID = "(0|[1-9][0-9]{0,9})"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host (name or IP) and a port, written ``host:port`` or ``[v6]:port``."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, lowest_port: int = 1, default_host: str = "") -> "Address":
        """Read ``host:port``. `lowest_port` 0 allows port 0 ("any free port").

        Without `default_host`, ``:port`` and a port alone are errors.

        Raises:
            ValueError: the text is not an address. The message is for the operator.
        """
        if "://" in text:
            raise ValueError(f"{text!r} is a URL; write only HOST:PORT")
        host, colon, port = text.strip().rpartition(":")
        if default_host and not host and (port if colon else port.isdecimal()):
            return cls(default_host, _port(port, lowest=lowest_port))
        if not colon and port.isdecimal():
            raise ValueError(f"{text!r} has no host; write HOST:PORT")
        if not colon or not port:
            raise ValueError(f"{text!r} has no port; write HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif host.count(":") == 1:
            raise ValueError(f"{text!r} has two ports; write HOST:PORT")
        elif ":" in host:
            raise ValueError(f"{text!r} is ambiguous; write an IPv6 address as [{host}]:{port}")
        if not host:
            raise ValueError(f"{text!r} has no host; write HOST:PORT")
        return cls(host, _port(port, lowest=lowest_port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True, kw_only=True)
class Broker:
    """A broker that the cluster has named, with the gateway's listener for it.

    In transparent mode, a destination that clients connect to.
    """

    node_id: int
    """The id of the broker in Kafka. For a destination, whose Kafka id is unknown, this is a number that the
    gateway has given to it, from 0 on."""
    address: Address
    listener: Address | None = None
    """None if the rule gives no valid port, or no listener is needed."""
    bound: tuple[Address, ...] = ()
    """The IPs to which the listener is bound, each with the port."""
    opening: bool = False
    problem: str = ""
    """The reason why the broker's listener can't be bound, or takes long to open. Otherwise empty."""
    named_at: float = 0.0
    """When a response has named the broker last, in seconds."""
    missing_since: float | None = None
    """The time since when the cluster has not named the broker, in seconds. None if the latest response names
    it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The rule of ``--broker-ports``: the address of each broker's listener.

    The rule is a comma-separated list. It may have one base (``29100``: broker N is at port 29100 + N) or one
    host template (``broker-{id}.kafka.local:9092``: broker N is at that name and port). It may also have
    ports of single brokers (``3=29103``), which take precedence. Without a base or a template, broker N is at
    the port of the bootstrap listener + 1 + N.
    """

    base: int | None = None
    template: str = ""
    template_port: int = 0
    single: dict[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "BrokerPorts":
        """Read the text of a rule.

        Raises:
            ValueError: the text is not a valid rule. The message is for the operator.
        """
        base: int | None = None
        template: Address | None = None
        single: dict[int, int] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            if "=" in item:
                node, _, port = item.partition("=")
                single[_node(node)] = _port(port)
            elif base is not None or template is not None:
                raise ValueError(f"{item!r} is a second base or template; only one is allowed")
            elif _PLACEHOLDER in item:
                template = Address.parse(item)
            else:
                base = _port(item)
        _check_distinct(single)
        return cls(
            base=base,
            template=template.host if template else "",
            template_port=template.port if template else 0,
            single=single,
        )

    def called(self, name: str) -> int | None:
        """Return the id of the broker with this name in the host template, or None.

        Case does not matter, as in DNS.
        """
        placeholder = re.escape(_PLACEHOLDER)
        pattern = re.escape(self.template).replace(placeholder, _NODE_ID, 1).replace(placeholder, r"\1")
        found = re.fullmatch(pattern, name.removesuffix("."), re.IGNORECASE) if self.template else None
        return int(found[1]) if found else None

    def place(self, node_id: int, listen: Address) -> Address | None:
        """Return the address of a broker's listener, if the bootstrap listener is at `listen`.

        None if the rule gives no port from 1 to 65535, or the id is negative.
        """
        if node_id < 0:
            return None
        if node_id in self.single:
            return Address(listen.host, self.single[node_id])
        if self.template:
            return Address(self.template.replace(_PLACEHOLDER, str(node_id)), self.template_port)
        port = (listen.port + 1 if self.base is None else self.base) + node_id
        return Address(listen.host, port) if 1 <= port <= MAX_PORT else None


@dataclass(frozen=True, slots=True)
class PortRange:
    """The ports from `first` to `last`, of ``--listen-ports``."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Read ``FIRST-LAST``.

        Raises:
            ValueError: the text is not a range of ports. The message is for the operator.
        """
        first, dash, last = text.partition("-")
        if not dash:
            raise ValueError(f"{text.strip()!r} is not a range of ports; write FIRST-LAST, as in 19093-19192")
        found = cls(_port(first), _port(last))
        if found.last < found.first:
            raise ValueError(f"{text.strip()!r} has its last port before its first")
        return found

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last


class FreePorts:
    """The ports of a range that no broker has.

    A port that was used is given again as late as possible: clients may still know it as that of its last
    broker. The ports in `without` are given to nobody.
    """

    def __init__(self, ports: PortRange, without: Collection[int]) -> None:
        self._ports = frozenset(range(ports.first, ports.last + 1)).difference(without)
        self._free = deque(sorted(self._ports))

    def take(self, wanted: int | None = None) -> int | None:
        """Return a port, and give it to nobody else: `wanted` if it is free. None if no port is free."""
        if wanted is not None and wanted in self._free:
            self._free.remove(wanted)
            return wanted
        return self._free.popleft() if self._free else None

    def give_last(self, used: Collection[int | None]) -> None:
        """Note the ports that brokers had before a restart: other brokers get them last."""
        self._free = deque(sorted(self._free, key=lambda port: port in used))

    def give_back(self, port: int) -> None:
        """Free a port. Ports outside the range are ignored."""
        if port in self._ports:
            self._free.append(port)


def can_be_reached(node_id: int, host: str, port: int) -> bool:
    """Return whether a broker in a response has an id and an address to connect to."""
    return node_id >= 0 and bool(host) and 1 <= port <= MAX_PORT


def advertised(listener: Address, *, listen: Address, advertise: str, reached_at: str) -> Address:
    """Return the address that clients get for a broker's listener, which has the address `listener`.

    `listen` is the address of the bootstrap listener. Without ``--advertise``, clients get `reached_at` (the
    gateway's address on the client's connection) in place of a wildcard address.
    """
    if listener.host != listen.host:
        return listener  # clients get the names of a host template unchanged
    if advertise:
        return Address(advertise, listener.port)
    return Address(reached_at, listener.port) if listen.host in WILDCARDS else listener


def whole_number(text: str, lowest: int, highest: int) -> int | None:
    """Return the number that a text is, in ASCII digits. None if it is not a whole number in this range."""
    text = text.strip()
    if not text.isascii() or not text.isdecimal():
        return None
    digits = text.lstrip("0")[: len(str(highest)) + 1]  # int() raises an error if there are thousands
    number = int(digits or "0")
    return number if lowest <= number <= highest else None


def _port(text: str, *, lowest: int = 1) -> int:
    if (port := whole_number(text, lowest, MAX_PORT)) is None:
        raise ValueError(f"{text.strip()!r} is not a port; ports are {lowest} to {MAX_PORT}")
    return port


def _check_distinct(single: dict[int, int]) -> None:
    at_port: dict[int, int] = {}
    for node_id, port in single.items():
        other = at_port.setdefault(port, node_id)
        if other != node_id:
            both = f"brokers {other} and {node_id} are both at port {port}"
            raise ValueError(f"{both}; give each broker a port of its own")


def _node(text: str) -> int:
    if (node_id := whole_number(text, 0, MAX_NODE_ID)) is None:
        raise ValueError(f"{text.strip()!r} is not a broker id; write ID=PORT, as in 3=29103")
    return node_id
