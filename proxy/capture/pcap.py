"""Makes packets of a pcap file from the bytes of a connection. Sans-IO.

The gateway sees bytes, not packets. So each piece of bytes becomes one TCP segment over IP (link type 101,
raw IP), or several. There are no lost segments, and no pure acknowledgments after the handshake. Addresses,
times, bytes and their order are real. TCP checksums are 0. Omitted bytes look as if tcpdump had cut the
packet (snap length).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Final, TypeAlias

from dpkt.ip import IP
from dpkt.ip6 import IP6
from dpkt.pcap import TCPDUMP_MAGIC_NANO, LEFileHdr
from dpkt.tcp import TCP

from proxy.capture.no_tap import BROKER, CLIENT
from proxy.protocol.primitives import Buffer

Piece: TypeAlias = tuple[Buffer, int]
"""The bytes to record, and the number of omitted bytes after them."""

MAX_SEGMENT: Final = 65_495
"""The largest TCP payload of a packet over IPv4. Loopback interfaces also use segments of this size."""

_LINK_TYPE: Final = 101
_SNAP_LENGTH: Final = 262_144  # all packets here are smaller
_SECOND: Final = 1_000_000_000
_ISN_TICK: Final = 4_000  # RFC 793: the initial sequence number is a clock with steps of 4 microseconds
_SEQUENCES: Final = 1 << 32
_PROTOCOL: Final = 6
_HEADER_WORDS: Final = 5 << 12

_RECORD: Final = Struct("<IIII")  # pcap record: seconds, nanoseconds, bytes recorded, bytes of the packet
_UINT16: Final = Struct(">H")
_TCP: Final = Struct(">IIH")  # sequence number, acknowledgment number, header length and flags


class Flag(IntFlag):
    """The flags of a TCP header."""

    FIN = 1
    SYN = 2
    RST = 4
    PSH = 8
    ACK = 16


_DATA: Final = Flag.PSH | Flag.ACK


@dataclass(frozen=True, slots=True)
class TcpPeer:
    """One end of a connection."""

    address: IPv4Address | IPv6Address
    port: int


def file_header() -> bytes:
    """Return the file header: pcap, little-endian, nanoseconds."""
    return bytes(LEFileHdr(magic=TCPDUMP_MAGIC_NANO, snaplen=_SNAP_LENGTH, linktype=_LINK_TYPE))


class PcapConnection:
    """The pcap records of one connection: a method for each event. Times are in nanoseconds since 1970."""

    __slots__ = ("_directions", "_sequences")

    def __init__(self, client: TcpPeer, broker: TcpPeer, now: int) -> None:
        start = now // _ISN_TICK % _SEQUENCES
        self._directions = (_PcapDirection(client, broker), _PcapDirection(broker, client))
        self._sequences = [start, start]

    def opened(self, now: int) -> list[Buffer]:
        client = self._bare(CLIENT, Flag.SYN, now)
        broker = self._bare(BROKER, Flag.SYN | Flag.ACK, now)
        return [client, broker, self._bare(CLIENT, Flag.ACK, now)]

    def sent(self, by: int, pieces: Iterable[Piece], now: int) -> list[Buffer]:
        # Bytes whose contents were omitted count in the sequence numbers, too.
        out: list[Buffer] = []
        for kept, cut in pieces:
            view, missing = memoryview(kept), cut
            while view or missing:
                part, view = view[:MAX_SEGMENT], view[MAX_SEGMENT:]
                left_out = 0 if view else min(missing, MAX_SEGMENT - len(part))
                missing -= left_out
                out += (self._packet(by, _DATA, len(part), len(part) + left_out, now), part)
        return out

    def ended(self, by: int, now: int) -> list[Buffer]:
        return [self._bare(by, Flag.FIN | Flag.ACK, now)]

    def reset(self, by: int, now: int) -> list[Buffer]:
        return [self._bare(by, Flag.RST | Flag.ACK, now)]

    def _bare(self, by: int, flags: Flag, now: int) -> bytes:
        packet = self._packet(by, flags, 0, 0, now)
        if flags & (Flag.SYN | Flag.FIN):  # SYN and FIN each count as one byte
            self._sequences[by] = (self._sequences[by] + 1) % _SEQUENCES
        return packet

    def _packet(self, by: int, flags: Flag, kept: int, size: int, now: int) -> bytes:
        sequence = self._sequences[by]
        self._sequences[by] = (sequence + size) % _SEQUENCES
        acknowledged = self._sequences[1 - by] if flags & Flag.ACK else 0
        direction = self._directions[by]
        return direction.header(sequence, acknowledged, flags, kept=kept, size=size, now=now)


class _PcapDirection:
    """One direction of a connection. It has a template for the headers of its packets."""

    __slots__ = ("_checksum", "_length", "_length_at", "_tcp_at", "_template")

    def __init__(self, source: TcpPeer, target: TcpPeer) -> None:
        tcp = TCP(sport=source.port, dport=target.port, win=0xFFFF)
        addresses = {"src": source.address.packed, "dst": target.address.packed}
        self._checksum = -1
        if isinstance(source.address, IPv4Address):
            ip = IP(**addresses, p=_PROTOCOL, df=1, ttl=64, len=0)
            headers = ip.pack_hdr() + tcp.pack_hdr()
            self._length, self._length_at = len(headers), 2
            self._checksum = sum(word for (word,) in _UINT16.iter_unpack(ip.pack_hdr()))
        else:
            headers = IP6(**addresses, nxt=_PROTOCOL, hlim=64).pack_hdr() + tcp.pack_hdr()
            self._length, self._length_at = len(tcp), 4
        self._template = bytes(_RECORD.size) + headers
        self._length_at += _RECORD.size
        self._tcp_at = len(self._template) - len(tcp) + 4

    def header(
        self, sequence: int, acknowledged: int, flags: int, *, kept: int, size: int, now: int
    ) -> bytes:
        """Return a pcap record without its payload of `size` bytes, of which `kept` are recorded."""
        header = bytearray(self._template)
        length = len(header) - _RECORD.size
        _RECORD.pack_into(header, 0, now // _SECOND, now % _SECOND, length + kept, length + size)
        _UINT16.pack_into(header, self._length_at, self._length + size)
        if self._checksum >= 0:
            folded = self._checksum + self._length + size
            folded = (folded & 0xFFFF) + (folded >> 16)
            _UINT16.pack_into(header, self._length_at + 8, 0xFFFF - (folded & 0xFFFF) - (folded >> 16))
        _TCP.pack_into(header, self._tcp_at, sequence, acknowledged, _HEADER_WORDS | flags)
        return bytes(header)
