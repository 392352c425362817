"""TCP headers in columns: one row for each packet, but no Python object.

numpy reads the headers of all packets in a window at once. Packets without TCP, and unreadable packets, are
counted in FileCounts and left out.
"""

import ipaddress
from dataclasses import dataclass

import numpy as np

from replay.capture.files.counts import PAUSE, FileCounts
from replay.capture.files.window import Column, FileWindow, Records
from replay.capture.packets.ip import TcpHeaders, transport, unreadable

FIN, SYN, RST = 1, 2, 4
_ACK = 16
NO_ACK = -1
"""Used as the ACK number of packets whose ACK number is not valid."""
_HEADER = np.dtype(
    {
        "names": ["source", "destination", "sequence", "ack", "offset", "flags"],
        "formats": [">u2", ">u2", ">u4", ">u4", "u1", "u1"],
        "offsets": [0, 2, 4, 8, 12, 13],
        "itemsize": 14,
    }
)
_HALF = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""A factor for hashing: multiplication carries the low bits into the high bits (Knuth 6.4: the golden
ratio)."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects connections. One of the two hosts must be in `hosts`, and one of the two ports in `ports`."""

    hosts: frozenset[str] = frozenset()
    """Addresses or networks (`10.0.0.0/8`). If empty, all hosts."""
    ports: frozenset[int] = frozenset()
    """If empty, all ports."""
    parts: int = 1
    """The number of parts into which the connections are divided, by a hash of each connection's two ends."""
    part: int = 0
    """The number of the part that is read, from 0."""


EVERYTHING = Filter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """TCP packets with payload, SYN, FIN or RST, in the order of the capture."""

    order: Column
    """The position of each packet's record in the file."""
    time: Column
    """In nanoseconds since 1970."""
    ends: Column
    """The two ends of each packet, as an array of shape (5, n). Its rows: the lower address in two halves,
    the higher address in two halves, and a number with the IP version, the lower end's port and the higher
    end's port."""
    from_low: Column
    sequence: Column
    ack: Column
    """The next sequence number that the packet's sender expected from the other direction, or `NO_ACK`."""
    flags: Column
    """FIN, SYN and RST; other flags are cleared."""
    begin: Column
    """Where the payload begins in the window."""
    size: Column
    """Captured bytes of payload."""
    missing: Column
    """Bytes of payload that the snap length cut from the end of the packet."""


def decode(window: FileWindow, records: Records, keep: Filter, counts: FileCounts) -> Packets:
    """Read the headers of captured packets."""
    _count(records, counts)
    found = transport(window, records, counts)
    tcp = found.begin > 0
    short = tcp & (found.begin + _HEADER.itemsize > records.at + records.captured)
    unreadable(records, short, counts)
    rows = np.flatnonzero(tcp & ~short)
    rows = rows[_sane(window, rows, found, counts)]
    header = window.blocks(found.begin[rows], _HEADER)
    if keep.ports:
        _count_others(header[~_of_ports(keep.ports, header)], counts)
    wanted = _wanted(keep, header, found, rows)
    counts.filtered += len(rows) - int(np.count_nonzero(wanted))
    return _segments(window, records, rows[wanted], found)


def _count(records: Records, counts: FileCounts) -> None:
    counts.packets += len(records.at)
    counts.captured_bytes += int(records.captured.sum())
    counts.wire_bytes += int(records.length.sum())
    counts.cut_packets += int(np.count_nonzero(records.captured < records.length))
    if len(records.time):
        times = np.sort(records.time)
        breaks = np.flatnonzero(np.diff(times) > PAUSE)
        begins, ends = times[np.append(0, breaks + 1)], times[np.append(breaks, -1)]
        counts.add_stretches(np.stack([begins, ends], axis=1).tolist())


def _sane(window: FileWindow, rows: Column, found: TcpHeaders, counts: FileCounts) -> Column:
    """Return which packets have a complete TCP header. The others are counted as malformed."""
    offset = (window.blocks(found.begin[rows], _HEADER)["offset"] >> 4).astype(np.int64) * 4
    sane: Column = (offset >= 20) & (found.begin[rows] + offset <= found.wire_end[rows])
    counts.malformed += int(np.count_nonzero(~sane))
    return sane


def _segments(window: FileWindow, records: Records, rows: Column, found: TcpHeaders) -> Packets:
    header = window.blocks(found.begin[rows], _HEADER)
    begin = found.begin[rows] + (header["offset"] >> 4).astype(np.int64) * 4
    wire = found.wire_end[rows] - begin
    flags = header["flags"] & (FIN | SYN | RST)
    # RFC 9293 3.5.3: the payload of a RST does not belong to the stream.
    wire[flags & RST != 0] = 0
    good = np.flatnonzero((wire > 0) | (flags != 0))
    rows, wire, begin, flags, header = rows[good], wire[good], begin[good], flags[good], header[good]
    size = np.clip(records.at[rows] + records.captured[rows] - begin, 0, wire)
    ends, from_low = _ends(header, found, rows)
    # RFC 9293 3.4: a SYN has a sequence number of its own, before the payload.
    opening = (flags & SYN != 0) & (wire > 0)
    return Packets(
        order=records.offset[rows],
        time=records.time[rows],
        ends=ends,
        from_low=from_low,
        sequence=header["sequence"].astype(np.uint32) + opening.astype(np.uint32),
        ack=np.where(header["flags"] & _ACK != 0, header["ack"].astype(np.int64), NO_ACK),
        flags=flags,
        begin=begin,
        size=size,
        missing=wire - size,
    )


def _ends(header: Column, found: TcpHeaders, rows: Column) -> tuple[Column, Column]:
    """Put the two ends of each packet in canonical order. Return `Packets.ends` and `Packets.from_low`."""
    (high_a, low_a), (high_b, low_b) = found.source[:, rows], found.destination[:, rows]
    port_a, port_b = header["source"].astype(np.uint64), header["destination"].astype(np.uint64)
    less, same = low_a < low_b, low_a == low_b
    from_low = (high_a < high_b) | ((high_a == high_b) & (less | (same & (port_a <= port_b))))
    ports = np.where(from_low, port_a << 16 | port_b, port_b << 16 | port_a)
    ends = np.stack(
        [
            np.where(from_low, high_a, high_b),
            np.where(from_low, low_a, low_b),
            np.where(from_low, high_b, high_a),
            np.where(from_low, low_b, low_a),
            found.version[rows] << 32 | ports,
        ]
    )
    return ends, from_low


def _of_ports(ports: frozenset[int], header: Column) -> Column:
    listed = sorted(ports)
    found: Column = np.isin(header["source"], listed) | np.isin(header["destination"], listed)
    return found


def _count_others(header: Column, counts: FileCounts) -> None:
    ports, packets = np.unique(
        np.concatenate([header["source"], header["destination"]]).astype(np.uint16), return_counts=True
    )
    counts.add_other_ports(dict(zip(ports.tolist(), packets.tolist(), strict=True)))


def _wanted(keep: Filter, header: Column, found: TcpHeaders, rows: Column) -> Column:
    wanted = np.ones(len(rows), np.bool_)
    if keep.ports:
        wanted &= _of_ports(keep.ports, header)
    if keep.hosts:
        version = found.version[rows]
        source, destination = found.source[:, rows], found.destination[:, rows]
        wanted &= _within(keep.hosts, version, source) | _within(keep.hosts, version, destination)
    if keep.parts > 1:
        source = _mixed(found.source[:, rows], header["source"])
        destination = _mixed(found.destination[:, rows], header["destination"])
        both = _spread(source + destination)  # the same in both directions
        wanted &= both % np.uint64(keep.parts) == keep.part
    return wanted


def _mixed(address: Column, port: Column) -> Column:
    return _spread(_spread(address[0]) + address[1] + (port.astype(np.uint64) << np.uint64(48)))


def _spread(values: Column) -> Column:
    """Return a hash of each number. Similar numbers have very different hashes."""
    mixed = (values ^ (values >> np.uint64(31))) * _ODD
    found: Column = mixed ^ (mixed >> np.uint64(29))
    return found


def _within(hosts: frozenset[str], version: Column, address: Column) -> Column:
    inside = np.zeros(len(version), np.bool_)
    for host in hosts:
        wanted = ipaddress.ip_network(host, strict=False)
        mask, prefix = int(wanted.netmask), int(wanted.network_address)
        matches = version == wanted.version
        for half, shift in enumerate((64, 0)):
            matches &= address[half] & np.uint64(mask >> shift & _HALF) == np.uint64(prefix >> shift & _HALF)
        inside |= matches
    return inside
