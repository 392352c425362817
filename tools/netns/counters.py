"""Counts the traffic of a network device with nftables: packets, IP bytes, and TCP payload."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from tools.netns.namespace import Namespace

TCP_HEADER: Final = 32
"""The size of a TCP header in bytes, with the timestamps that Linux adds to every segment."""
IP_HEADERS: Final = {"ip": 20, "ip6": 40}
_KINDS: Final = ("syn", "rst", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """The traffic of a device in one direction."""

    packets: int
    """As netfilter counts them: several segments are one if the kernel handles them together."""
    bytes: int
    payload: int
    """TCP payload, exact as long as TCP adds no options to single segments (SACK)."""


class Counters:
    """Counters of a device for connections to server ports, and with `host` (IPv4) to this server."""

    def __init__(self, place: Namespace, device: str, ports: Collection[int], *, host: str = "") -> None:
        self._place = place
        self._table = f"count_{device}" + "".join(f"_{part}" for part in host.split(".") if part)
        wanted = "{ " + ", ".join(map(str, sorted(ports))) + " }"
        chains = [
            _chain("out", "postrouting", 300, f"oifname {device} tcp dport {wanted}", "daddr", host),
            _chain("back", "prerouting", -300, f"iifname {device} tcp sport {wanted}", "saddr", host),
        ]
        named = [
            f"counter {way}_{version}_{kind} {{ }}"
            for way in ("out", "back")
            for version in IP_HEADERS
            for kind in _KINDS
        ]
        place.run("nft", f"table inet {self._table} {{ {' ; '.join(named)} ; {' ; '.join(chains)} ; }}")

    def reset(self) -> None:
        """Set all counters to 0."""
        self._place.run("nft", "reset", "counters", "table", "inet", self._table)

    def read(self) -> tuple[Crossed, Crossed]:
        """Return the traffic sent and received since the last reset."""
        found = self._read()
        return _sum(found, "out"), _sum(found, "back")

    def opened(self) -> int:
        """Return how many connections were begun since the last reset."""
        found = self._read()
        return sum(int(found[f"out_{version}_syn"]["packets"]) for version in IP_HEADERS)

    def _read(self) -> dict[str, Any]:
        output = self._place.run("nft", "-j", "list", "counters", "table", "inet", self._table).stdout
        return {
            entry["counter"]["name"]: entry["counter"]
            for entry in json.loads(output)["nftables"]
            if "counter" in entry
        }


def _chain(name: str, hook: str, priority: int, which: str, field: str, host: str) -> str:
    rules = [f"type filter hook {hook} priority {priority}"]
    for version, protocol in (("ip", "ipv4"), ("ip6", "ipv6")):
        if host and version == "ip6":
            continue
        head = f"meta nfproto {protocol} {f'ip {field} {host} ' if host else ''}{which}"
        rules += [
            f"{head} tcp flags & syn == syn counter name {name}_{version}_syn",
            f"{head} tcp flags & rst == rst counter name {name}_{version}_rst",
            f"{head} tcp flags & (syn | rst) == 0x0 counter name {name}_{version}_data",
        ]
    return f"chain {name} {{ {' ; '.join(rules)} ; }}"


def _sum(found: dict[str, Any], way: str) -> Crossed:
    packets = size = payload = 0
    for version, header in IP_HEADERS.items():
        for kind in _KINDS:
            counter = found[f"{way}_{version}_{kind}"]
            packets += counter["packets"]
            size += counter["bytes"]
            if kind == "data":
                payload += counter["bytes"] - counter["packets"] * (header + TCP_HEADER)
    return Crossed(packets=packets, bytes=size, payload=payload)
