"""The bytes of captured packets as columns of TCP fields, a row a packet; no object a packet.

Link layer, IP and TCP headers are gathered by numpy from where they begin; what is no TCP, or can't be read, is
counted in FileCounts and left out.
"""

import ipaddress
from dataclasses import dataclass

import numpy as np

from replay.capture.counts import FileCounts
from replay.capture.links import IPV4, IPV6, network
from replay.capture.window import Column, Records, Window

FIN, SYN, RST = 1, 2, 4
_TCP = 6
_IPV4 = np.dtype(
    {
        "names": ["head", "total", "fragment", "protocol", "low", "high"],
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
_TCP_HEADER = np.dtype(
    {
        "names": ["source", "destination", "sequence", "offset", "flags"],
        "formats": [">u2", ">u2", ">u4", "u1", "u1"],
        "offsets": [0, 2, 4, 12, 13],
        "itemsize": 14,
    }
)
_FRAGMENT = 44
_AUTHENTICATION = 51
_EXTENSIONS = (0, 43, _FRAGMENT, _AUTHENTICATION, 60, 135, 139, 140)
"""IPv6 headers that may stand before TCP: hop-by-hop, routing, fragment, AH, destination, mobility, HIP, shim6."""
_MOST_EXTENSIONS = 8


@dataclass(frozen=True, slots=True)
class Filter:
    """Which connections are wanted: one of its hosts and one of its ports must be among those named."""

    hosts: frozenset[str] = frozenset()
    """Addresses or networks (`10.0.0.0/8`); none: all."""
    ports: frozenset[int] = frozenset()
    """None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """TCP packets that carry payload, SYN, FIN or RST, in the order of the capture."""

    order: Column
    """Where its record begins in the file."""
    time: Column
    """Nanoseconds since 1970."""
    ends: Column
    """(5, n): the lower address in two halves, the higher one in two, then IP version, lower and higher port."""
    from_low: Column
    sequence: Column
    flags: Column
    """FIN, SYN and RST, as above."""
    begin: Column
    """Where the payload begins in the window."""
    size: Column
    """Bytes of payload that there are."""
    missing: Column
    """Bytes of payload that were on the wire behind these, cut by the snap length."""


class _Transport:
    """Where TCP begins in each record (0: nowhere), where it ended on the wire, and between which addresses."""

    def __init__(self, packets: int) -> None:
        self.begin = np.zeros(packets, np.int64)
        self.wire_end = np.zeros(packets, np.int64)
        self.version = np.zeros(packets, np.uint64)
        self.source = np.zeros((2, packets), np.uint64)
        self.destination = np.zeros((2, packets), np.uint64)


def decode(window: Window, records: Records, keep: Filter, counts: FileCounts) -> Packets:
    """Read the headers of captured packets."""
    _count(records, counts)
    begin, version = network(window, records, counts)
    found = _Transport(len(begin))
    end = records.at + records.captured
    wire_end = records.at + np.maximum(records.length, records.captured)
    cut = records.captured < records.length
    short = begin + np.where(version == IPV6, 40, 20) > end
    _unreadable(short & (version > 0), cut, counts)
    _read_ipv4(window, np.flatnonzero((version == IPV4) & ~short), begin, wire_end, found, counts)
    _read_ipv6(window, np.flatnonzero((version == IPV6) & ~short), begin, end, wire_end, found, counts)
    short = found.begin + _TCP_HEADER.itemsize > end
    _unreadable(short & (found.begin > 0), cut, counts)
    return _read_tcp(window, records, np.flatnonzero((found.begin > 0) & ~short), found, keep, counts)


def _count(records: Records, counts: FileCounts) -> None:
    counts.packets += len(records.at)
    counts.captured_bytes += int(records.captured.sum())
    counts.wire_bytes += int(records.length.sum())
    counts.cut_packets += int(np.count_nonzero(records.captured < records.length))
    if len(records.time):
        counts.saw(int(records.time.min()), int(records.time.max()))


def _unreadable(rows: Column, cut: Column, counts: FileCounts) -> None:
    """Count packets that end within a header: cut by the snap length, or else malformed."""
    counts.cut_headers += int(np.count_nonzero(rows & cut))
    counts.malformed += int(np.count_nonzero(rows & ~cut))


def _read_ipv4(
    window: Window, rows: Column, begin: Column, wire_end: Column, found: _Transport, counts: FileCounts
) -> None:
    header = window.blocks(begin[rows], _IPV4)
    size = (header["head"] & 15).astype(np.int64) * 4
    total = header["total"].astype(np.int64)
    # A total length of 0 is what offloading leaves in segments longer than the field can tell.
    stop = np.where(total > 0, begin[rows] + total, wire_end[rows])
    sane = (header["head"] >> 4 == IPV4) & (size >= 20) & (begin[rows] + size <= stop)
    fragment = sane & ((header["fragment"] & 0x3FFF) != 0)
    tcp = header["protocol"] == _TCP
    counts.malformed += int(np.count_nonzero(~sane))
    counts.fragments += int(np.count_nonzero(fragment))
    counts.not_tcp += int(np.count_nonzero(sane & ~fragment & ~tcp))
    good = np.flatnonzero(sane & ~fragment & tcp)
    chosen = rows[good]
    found.begin[chosen] = begin[chosen] + size[good]
    found.wire_end[chosen] = stop[good]
    found.version[chosen] = IPV4
    found.source[1, chosen] = header["low"][good]
    found.destination[1, chosen] = header["high"][good]


def _read_ipv6(
    window: Window,
    rows: Column,
    begin: Column,
    end: Column,
    wire_end: Column,
    found: _Transport,
    counts: FileCounts,
) -> None:
    if not len(rows):
        return
    header = window.blocks(begin[rows], _IPV6)
    payload = header["payload"].astype(np.int64)
    # 0 stands for a jumbogram, and for what offloading leaves, as in IPv4.
    stop = np.where(payload > 0, begin[rows] + 40 + payload, wire_end[rows])
    sane = header["head"] >> 4 == IPV6
    place, protocol, fragment = _extensions(window, begin[rows] + 40, end[rows], header["next"], sane)
    sane &= place <= stop
    tcp = protocol == _TCP
    counts.malformed += int(np.count_nonzero(~sane))
    counts.fragments += int(np.count_nonzero(sane & fragment))
    counts.not_tcp += int(np.count_nonzero(sane & ~fragment & ~tcp))
    good = np.flatnonzero(sane & ~fragment & tcp)
    chosen = rows[good]
    found.begin[chosen] = place[good]
    found.wire_end[chosen] = stop[good]
    found.version[chosen] = IPV6
    found.source[:, chosen] = header["source"][good].T
    found.destination[:, chosen] = header["destination"][good].T


def _extensions(
    window: Window, place: Column, end: Column, protocol: Column, sane: Column
) -> tuple[Column, Column, Column]:
    """Step over IPv6 extension headers: where what they carry begins, its protocol, and whether it's a fragment.

    An atomic fragment (RFC 6946: the whole packet behind a fragment header) is none.
    """
    protocol, fragment = protocol.copy(), np.zeros(len(place), np.bool_)
    for _ in range(_MOST_EXTENSIONS):
        left = np.flatnonzero(np.isin(protocol, _EXTENSIONS) & sane & ~fragment & (place + 8 <= end))
        if not len(left):
            break
        head = window.blocks(place[left], "V4").view(np.uint8).reshape(-1, 4).astype(np.int64)
        kind = protocol[left]
        split = (head[:, 2] << 8 | head[:, 3]) & 0xFFF9
        fragment[left] = (kind == _FRAGMENT) & (split != 0)
        step = np.where(kind == _AUTHENTICATION, head[:, 1] * 4 + 8, head[:, 1] * 8 + 8)
        place[left] += np.where(kind == _FRAGMENT, 8, step)
        protocol[left] = head[:, 0]
    return place, protocol, fragment


def _read_tcp(
    window: Window, records: Records, rows: Column, found: _Transport, keep: Filter, counts: FileCounts
) -> Packets:
    header = window.blocks(found.begin[rows], _TCP_HEADER)
    offset = (header["offset"] >> 4).astype(np.int64) * 4
    begin = found.begin[rows] + offset
    wire = found.wire_end[rows] - begin
    sane = (offset >= 20) & (wire >= 0)
    counts.malformed += int(np.count_nonzero(~sane))
    wanted = sane & _wanted(keep, rows, header, found)
    counts.filtered += int(np.count_nonzero(sane & ~wanted))
    flags = header["flags"] & (FIN | SYN | RST)
    # RFC 9293 3.5.3: what a RST carries is no part of the stream.
    wire[flags & RST != 0] = 0
    good = np.flatnonzero(wanted & ((wire > 0) | (flags != 0)))
    rows, wire, begin, flags, header = rows[good], wire[good], begin[good], flags[good], header[good]
    size = np.clip(records.at[rows] + records.captured[rows] - begin, 0, wire)
    ends, from_low = _ends(rows, header, found)
    return Packets(
        order=records.offset[rows],
        time=records.time[rows],
        ends=ends,
        from_low=from_low,
        # RFC 9293 3.4: a SYN takes a number of its own before the payload.
        sequence=header["sequence"].astype(np.uint32) + ((flags & SYN != 0) & (wire > 0)).astype(np.uint32),
        flags=flags,
        begin=np.where(size > 0, begin, 0),
        size=size,
        missing=wire - size,
    )


def _ends(rows: Column, header: Column, found: _Transport) -> tuple[Column, Column]:
    """Put the two ends of each packet in canonical order: the columns of `Packets.ends`, and `from_low`."""
    (high_a, low_a), (high_b, low_b) = found.source[:, rows], found.destination[:, rows]
    port_a, port_b = header["source"].astype(np.uint64), header["destination"].astype(np.uint64)
    from_low = (high_a < high_b) | (
        (high_a == high_b) & ((low_a < low_b) | ((low_a == low_b) & (port_a <= port_b)))
    )
    ports = np.where(from_low, port_a << np.uint64(16) | port_b, port_b << np.uint64(16) | port_a)
    ends = np.stack(
        [
            np.where(from_low, high_a, high_b),
            np.where(from_low, low_a, low_b),
            np.where(from_low, high_b, high_a),
            np.where(from_low, low_b, low_a),
            found.version[rows] << np.uint64(32) | ports,
        ]
    )
    return ends, from_low


def _wanted(keep: Filter, rows: Column, header: Column, found: _Transport) -> Column:
    wanted = np.ones(len(rows), np.bool_)
    if keep.ports:
        ports = sorted(keep.ports)
        wanted &= np.isin(header["source"], ports) | np.isin(header["destination"], ports)
    if keep.hosts:
        version = found.version[rows]
        wanted &= _within(keep, version, found.source[:, rows]) | _within(
            keep, version, found.destination[:, rows]
        )
    return wanted


def _within(keep: Filter, version: Column, address: Column) -> Column:
    inside = np.zeros(len(version), np.bool_)
    for host in keep.hosts:
        network_ = ipaddress.ip_network(host, strict=False)
        mask, wanted = int(network_.netmask), int(network_.network_address)
        match = version == network_.version
        for half, shift in ((0, 64), (1, 0)):
            bits = np.uint64(mask >> shift & (1 << 64) - 1)
            match &= (address[half] & bits) == np.uint64(wanted >> shift & (1 << 64) - 1)
        inside |= match
    return inside
