"""IP headers in columns: where TCP begins, where it ended on the wire, and its two addresses.

If a packet is in a tunnel, the inner packet is read instead of the outer one.
"""

from dataclasses import dataclass

import numpy as np

from replay.capture.files.counts import FileCounts
from replay.capture.files.window import Column, FileWindow, Records
from replay.capture.packets.links import IPV4, IPV6, NEITHER, network
from replay.capture.packets.tunnels import count_unread, opened

_TCP = 6
_IPV4 = np.dtype(
    {
        "names": ["head", "total", "fragment", "protocol", "source", "destination"],
        "formats": ["u1", ">u2", ">u2", "u1", ">u4", ">u4"],
        "offsets": [0, 2, 6, 9, 12, 16],
        "itemsize": 20,
    }
)
_IPV6 = np.dtype(
    {
        "names": ["head", "payload", "next", "source", "destination"],
        "formats": ["u1", ">u2", "u1", (">u8", 2), (">u8", 2)],
        "offsets": [0, 4, 6, 8, 24],
        "itemsize": 40,
    }
)
_EXTENSION = np.dtype([("next", "u1"), ("length", "u1"), ("fragment", ">u2")])
_ROUTING = 43
_FRAGMENT = 44
_AUTHENTICATION = 51
_EXTENSIONS = (0, _ROUTING, _FRAGMENT, _AUTHENTICATION, 60, 135, 139, 140)
"""IPv6 headers that may precede TCP: hop-by-hop, routing, fragment, AH, destination, mobility, HIP, shim6."""
_MOST_EXTENSIONS = 8
_TO_ADDRESS = (2, 4)
"""Types of routing headers that begin with the last address of the packet's way: mobility (RFC 6275 6.4.1),
segments (RFC 8754 2)."""
_MOST_TUNNELS = 4


@dataclass(frozen=True, slots=True)
class _IpPackets:
    """The places of the IP packets, one for each record."""

    begin: Column
    version: Column
    end: Column
    wire_end: Column
    """The end of the packet on the wire, including the link layer's padding."""


@dataclass(frozen=True, slots=True)
class _Others:
    """Whole packets that carry something other than TCP."""

    rows: Column
    begin: Column
    protocol: Column
    stop: Column
    """The end of the payload on the wire."""


class TcpHeaders:
    """Where the TCP header of each record begins, and the addresses. `begin` is 0 in records without TCP."""

    def __init__(self, packets: int) -> None:
        self.begin = np.zeros(packets, np.int64)
        self.wire_end = np.zeros(packets, np.int64)
        """The end of the TCP segment on the wire. After it, link layers pad short packets."""
        self.version = np.zeros(packets, np.uint64)
        self.source = np.zeros((2, packets), np.uint64)
        """The source addresses, each in two halves of 64 bits. IPv4 addresses are in the second half."""
        self.destination = np.zeros((2, packets), np.uint64)

    def put(self, rows: Column, version: int, begin: Column, wire_end: Column) -> None:
        self.version[rows] = version
        self.begin[rows] = begin
        self.wire_end[rows] = wire_end


def transport(window: FileWindow, records: Records, counts: FileCounts) -> TcpHeaders:
    """Read link layers and IP headers. Packets without TCP, and unreadable packets, are only counted."""
    begin, version = network(window, records, counts)
    end = records.at + records.captured
    found = TcpHeaders(len(begin))
    packets = _IpPackets(begin, version, end, records.at + np.maximum(records.length, records.captured))
    for _ in range(_MOST_TUNNELS):
        others = _read(window, packets, records, found, counts)
        packets = _inside(window, packets, others, counts)
        if not packets.version.any():
            return found
    counts.not_tcp += sum(len(one.rows) for one in _read(window, packets, records, found, counts))
    return found


def _read(
    window: FileWindow, packets: _IpPackets, records: Records, found: TcpHeaders, counts: FileCounts
) -> list[_Others]:
    """Read IP headers. Return the packets that do not carry TCP."""
    version = packets.version
    short = (version > 0) & (packets.begin + np.where(version == IPV6, 40, 20) > packets.end)
    unreadable(records, short, counts)
    return [
        _read_ipv4(window, packets, np.flatnonzero((version == IPV4) & ~short), found, counts),
        _read_ipv6(window, packets, np.flatnonzero((version == IPV6) & ~short), found, counts),
    ]


def _inside(window: FileWindow, packets: _IpPackets, others: list[_Others], counts: FileCounts) -> _IpPackets:
    """Return the inner packets of tunnels. A row without a tunnel has no inner packet."""
    begin, version = packets.begin.copy(), np.full(len(packets.begin), NEITHER, np.int64)
    wire_end = packets.wire_end.copy()
    for one in others:
        if not len(one.rows):
            continue
        end = packets.end[one.rows]
        begin[one.rows], version[one.rows] = opened(window, one.begin, one.protocol, end)
        wire_end[one.rows] = one.stop
        closed = version[one.rows] == NEITHER
        counts.tunnelled += int(np.count_nonzero(~closed))
        if closed.any():
            counts.not_tcp += int(np.count_nonzero(closed))
            count_unread(window, one.begin[closed], one.protocol[closed], end[closed], counts)
    return _IpPackets(begin, version, packets.end, wire_end)


def unreadable(records: Records, rows: Column, counts: FileCounts) -> None:
    """Count packets that end within a header: cut by the snap length, or malformed."""
    cut = records.captured < records.length
    counts.cut_headers += int(np.count_nonzero(rows & cut))
    counts.malformed += int(np.count_nonzero(rows & ~cut))


def _whole(counts: FileCounts, sane: Column, fragment: Column, protocol: Column) -> tuple[Column, Column]:
    """Return which packets have TCP and which do not. Malformed ones and fragments are only counted."""
    tcp = protocol == _TCP
    counts.malformed += int(np.count_nonzero(~sane))
    counts.fragments += int(np.count_nonzero(sane & fragment))
    return np.flatnonzero(sane & ~fragment & tcp), np.flatnonzero(sane & ~fragment & ~tcp)


def _read_ipv4(
    window: FileWindow, packets: _IpPackets, rows: Column, found: TcpHeaders, counts: FileCounts
) -> _Others:
    begin = packets.begin[rows]
    header = window.blocks(begin, _IPV4)
    size = (header["head"] & 15).astype(np.int64) * 4
    total = header["total"].astype(np.int64)
    # With offloading the total length is 0 in segments that are too long for the field.
    stop = np.where(total > 0, begin + total, packets.wire_end[rows])
    sane = (header["head"] >> 4 == IPV4) & (size >= 20) & (begin + size <= stop)
    good, others = _whole(counts, sane, header["fragment"] & 0x3FFF != 0, header["protocol"])
    found.put(rows[good], IPV4, (begin + size)[good], stop[good])
    found.source[1, rows[good]] = header["source"][good]
    found.destination[1, rows[good]] = header["destination"][good]
    return _Others(rows[others], (begin + size)[others], header["protocol"][others], stop[others])


def _read_ipv6(
    window: FileWindow, packets: _IpPackets, rows: Column, found: TcpHeaders, counts: FileCounts
) -> _Others:
    if not len(rows):
        return _Others(rows, rows, rows, rows)
    begin = packets.begin[rows]
    header = window.blocks(begin, _IPV6)
    payload = header["payload"].astype(np.int64)
    # 0 means a jumbogram (RFC 2675), or a segment too long for the field, as in IPv4.
    stop = np.where(payload > 0, begin + 40 + payload, packets.wire_end[rows])
    destination = header["destination"]
    place, protocol, fragment = _extensions(
        window, begin + 40, packets.end[rows], header["next"], destination
    )
    sane = (header["head"] >> 4 == IPV6) & (place <= stop)
    good, others = _whole(counts, sane, fragment, protocol)
    found.put(rows[good], IPV6, place[good], stop[good])
    found.source[:, rows[good]] = header["source"][good].T
    found.destination[:, rows[good]] = destination[good].T
    return _Others(rows[others], place[others], protocol[others], stop[others])


def _extensions(
    window: FileWindow, place: Column, end: Column, protocol: Column, destination: Column
) -> tuple[Column, Column, Column]:
    """Skip IPv6 extension headers. Return where payload begins, its protocol, and whether it is a fragment.

    If a packet is still on a way over several addresses, its last one is written to `destination`. An atomic
    fragment (RFC 6946: a complete packet after a fragment header) does not count as a fragment.
    """
    protocol, fragment = protocol.copy(), np.zeros(len(place), np.bool_)
    for _ in range(_MOST_EXTENSIONS):
        left = np.flatnonzero(np.isin(protocol, _EXTENSIONS) & ~fragment & (place + 8 <= end))
        if not len(left):
            break
        header = window.blocks(place[left], _EXTENSION)
        kind, length = protocol[left], header["length"].astype(np.int64)
        fragment[left] = (kind == _FRAGMENT) & (header["fragment"] & 0xFFF9 != 0)
        # RFC 8200 4.4: a routing header has its type and the number of addresses that are left here.
        way, addresses = header["fragment"] >> 8, header["fragment"] & 0xFF
        routed = left[(kind == _ROUTING) & np.isin(way, _TO_ADDRESS) & (addresses > 0)]
        destination[routed] = window.blocks(place[routed] + 8, (">u8", 2))
        step = np.where(kind == _AUTHENTICATION, length * 4 + 8, length * 8 + 8)
        place[left] += np.where(kind == _FRAGMENT, 8, step)
        protocol[left] = header["next"]
    return place, protocol, fragment
