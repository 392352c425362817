"""Reads captures without fetchgate's code, to compare results: pcap records directly, IP and TCP with
dpkt.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeAlias

from dpkt import dpkt
from dpkt.ip import IP
from dpkt.ip6 import IP6
from dpkt.sll2 import SLL2

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

Ends: TypeAlias = tuple[str, str]
"""The addresses of sender and receiver, each as host:port."""

_NANO: Final = 0xA1B23C4D
_MICRO: Final = 0xA1B2C3D4
_ETHERNET, _RAW, _SLL2 = 1, 101, 276


@dataclass(frozen=True, slots=True)
class Packet:
    """One TCP segment."""

    time: int
    """The time at which the packet was captured, in nanoseconds."""
    ends: Ends
    flags: int
    sequence: int
    acknowledged: int
    payload: bytes
    missing: int
    """Number of payload bytes that the capture does not have."""
    ip: Any


def read(data: bytes) -> list[Packet]:
    """Read a little-endian pcap file. The test fails if bytes follow the last complete record."""
    magic, _, _, _, _, _, link = struct.unpack_from("<IHHIIII", data)
    assert magic in {_NANO, _MICRO}
    at, packets = 24, []
    while at < len(data):
        seconds, fraction, recorded, size = struct.unpack_from("<IIII", data, at)
        at += 16
        assert at + recorded <= len(data)
        time = seconds * 1_000_000_000 + fraction * (1 if magic == _NANO else 1000)
        packet = _packet(time, _network(data[at : at + recorded], link), size - recorded)
        packets += [packet] if packet else []
        at += recorded
    return packets


def read_directory(directory: Path) -> list[Packet]:
    """Read all files of a directory, in the order of their names."""
    return [packet for path in sorted(directory.glob("*.pcap")) for packet in read(path.read_bytes())]


def streams(packets: Iterable[Packet]) -> dict[Ends, bytes]:
    """Join the bytes of each direction by sequence number, with zeros for missing bytes."""
    found: defaultdict[Ends, bytearray] = defaultdict(bytearray)
    first: dict[Ends, int] = {}
    for packet in packets:
        if packet.flags & SYN:
            assert packet.ends not in first, "a port was used again"
            first[packet.ends] = packet.sequence + 1
        start = (packet.sequence - first[packet.ends]) % (1 << 32)
        data = packet.payload + bytes(packet.missing)
        if data:
            stream = found[packet.ends]
            assert start <= len(stream), "bytes are missing before this packet"
            stream[start : start + len(data)] = data
    return {ends: bytes(stream) for ends, stream in found.items()}


def _network(data: bytes, link: int) -> Any:
    if link == _RAW:
        return (IP if data[0] >> 4 == 4 else IP6)(data)
    if link == _SLL2:
        return SLL2(data).data
    assert link == _ETHERNET
    # As dpkt's own Ethernet does, but without looking into what it carries.
    kind = int.from_bytes(data[12:14])
    return IP(data[14:]) if kind == 0x0800 else IP6(data[14:]) if kind == 0x86DD else None


def _packet(time: int, ip: Any, missing: int) -> Packet | None:
    tcp = getattr(ip, "data", None)
    if not isinstance(ip, IP | IP6) or not isinstance(tcp, dpkt.Packet) or type(tcp).__name__ != "TCP":
        return None
    return Packet(
        time=time,
        ends=(_end(ip.src, tcp.sport), _end(ip.dst, tcp.dport)),
        flags=tcp.flags,
        sequence=tcp.seq,
        acknowledged=tcp.ack,
        payload=bytes(tcp.data),
        missing=missing,
        ip=ip,
    )


def _end(address: bytes, port: int) -> str:
    host = ip_address(address)
    return f"{host}:{port}" if host.version == 4 else f"[{host}]:{port}"
