"""Link layers: where the IP header of a packet begins, and its IP version."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from replay.capture.files.counts import FileCounts
from replay.capture.files.window import NO_LINK, Column, FileWindow, Records

NEITHER, IPV4, IPV6 = 0, 4, 6

ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_MPLS: Final = 0x8847
ETHERTYPE_FRAME: Final = 0x6558
"""The EtherType of an Ethernet frame in GRE and Geneve (RFC 1701)."""
_MPLS_MULTICAST: Final = 0x8848
_PPPOE: Final = 0x8864
_VLAN_TAGS: Final = (0x8100, 0x88A8, 0x9100)
_MOST_HEADERS: Final = 16
"""How many VLAN tags, MPLS labels and other headers before IP are skipped."""
_UNREAD: Final = {0x88E5: "MACsec", 0x894F: "NSH"}
"""EtherTypes that may carry TCP, and are not read."""
_FAMILIES: Final = dict.fromkeys((10, 24, 28, 30), ETHERTYPE_IPV6) | {2: ETHERTYPE_IPV4}
"""Address families: AF_INET, then AF_INET6 of Linux, of NetBSD and OpenBSD, of FreeBSD, of macOS."""
_VERSIONS: Final = {ETHERTYPE_IPV4: IPV4, ETHERTYPE_IPV6: IPV6}
_OF_VERSION: Final = {4: ETHERTYPE_IPV4, 6: ETHERTYPE_IPV6}
_OF_PPP: Final = {0x21: ETHERTYPE_IPV4, 0x57: ETHERTYPE_IPV6, 0x281: ETHERTYPE_MPLS}

_Header = Callable[[FileWindow, Column], tuple[Column, Column]]
"""A function for one kind of header. It gets the window and the positions at which the headers begin. It
returns the positions at which they end, and the EtherTypes of what follows: NEITHER if it has none."""


def renamed(kinds: Column, names: Mapping[int, int]) -> Column:
    """Replace numbers by those that `names` has for them. All other numbers become NEITHER."""
    found = np.full(len(kinds), NEITHER, np.int64)
    for kind, name in names.items():
        found[kinds == kind] = name
    return found


def _with_ethertype(header: int, ethertype: int) -> _Header:
    def layer(window: FileWindow, at: Column) -> tuple[Column, Column]:
        return at + header, window.blocks(at + ethertype, ">u2").astype(np.int64)

    return layer


def _loopback(window: FileWindow, at: Column) -> tuple[Column, Column]:
    """Read BSD loopback: an address family in the byte order of the capturing machine."""
    family = window.blocks(at, ">u4").astype(np.int64)
    swapped = window.blocks(at, "<u4").astype(np.int64)
    return at + 4, renamed(np.minimum(family, swapped), _FAMILIES)


def _raw(window: FileWindow, at: Column) -> tuple[Column, Column]:
    return at, renamed(window.blocks(at, "u1") >> 4, _OF_VERSION)


def _pppoe(window: FileWindow, at: Column) -> tuple[Column, Column]:
    # RFC 2516 4: version 1, type 1, code 0; the session; the length; then the protocol of PPP.
    kinds = renamed(window.blocks(at + 6, ">u2"), _OF_PPP)
    kinds[window.blocks(at, ">u2") != 0x1100] = NEITHER
    return at + 8, kinds


def _mpls(window: FileWindow, at: Column) -> tuple[Column, Column]:
    # RFC 3032 2.1: the last label has the bit S. Nothing says what follows it. IP begins with its version.
    last = window.blocks(at + 2, "u1") & 1 == 1
    first = window.blocks(at + 4, "u1") >> 4
    kinds = renamed(first, _OF_VERSION)
    # RFC 4448 4.6: a control word of 4 bytes, whose first bits are 0, may precede an Ethernet frame.
    kinds[kinds == NEITHER] = ETHERTYPE_FRAME
    kinds[~last] = ETHERTYPE_MPLS
    return at + np.where(last & (first == 0), 8, 4), kinds


_ethernet = _with_ethertype(14, 12)
_HEADERS: Final[dict[int, _Header]] = {
    **dict.fromkeys(_VLAN_TAGS, _with_ethertype(4, 2)),
    ETHERTYPE_FRAME: _ethernet,
    ETHERTYPE_MPLS: _mpls,
    _MPLS_MULTICAST: _mpls,
    _PPPOE: _pppoe,
}
_LAYERS: Final[dict[int, _Header]] = {
    0: _loopback,
    1: _ethernet,
    12: _raw,
    14: _raw,
    101: _raw,
    108: _loopback,
    113: _with_ethertype(16, 14),
    228: _raw,
    229: _raw,
    276: _with_ethertype(20, 0),
}
"""The function for each link type: null, Ethernet, raw IP, OpenBSD loopback, Linux cooked, raw IPv4 and IPv6,
cooked v2."""
_PKTAP: Final = 258
"""The link type of `tcpdump -i any` and of several interfaces on macOS. The link type of the interface is in
the header of each packet."""
LINK_TYPES: Final = {
    0: "null", 1: "Ethernet", 9: "PPP", 12: "raw IP", 14: "raw IP", 50: "PPP", 51: "PPPoE", 101: "raw IP",
    104: "Cisco HDLC", 105: "Wi-Fi", 108: "loopback", 113: "Linux SLL", 127: "Wi-Fi",
    228: "IPv4", 229: "IPv6", 239: "NFLOG", 258: "PKTAP", 276: "Linux SLL2",
}  # fmt: skip
"""The names of link types, by tcpdump's numbers."""
_UNDESCRIBED: Final = "an interface that the file does not describe"


def network(window: FileWindow, records: Records, counts: FileCounts) -> tuple[Column, Column]:
    """Return for each record the place of its IP header, and its IP version; NEITHER if it is not IP."""
    for link, packets in zip(
        *(found.tolist() for found in np.unique(records.link, return_counts=True)), strict=True
    ):
        counts.link_types[link] = counts.link_types.get(link, 0) + packets
    end = records.at + records.captured
    begin, links = _interfaces(window, records, end)
    kinds, known = np.full(len(begin), NEITHER, np.int64), 0
    for link, layer in _LAYERS.items():
        if len(rows := np.flatnonzero(links == link)):
            known += len(rows)
            begin[rows], kinds[rows] = layer(window, begin[rows])
    if known < len(links):
        _count_unknown(links, counts)
    version = ip_within(window, begin, kinds, end)
    counts.not_ip += known - int(np.count_nonzero(version))
    others = kinds[version == NEITHER]
    for kind, name in _UNREAD.items():
        counts.add_unread(name, int(np.count_nonzero(others == kind)))
    return begin, version


def _interfaces(window: FileWindow, records: Records, end: Column) -> tuple[Column, Column]:
    """Return where the link layer of each packet begins, and its link type, behind a header of PKTAP."""
    begin, links = records.at.copy(), records.link
    rows = np.flatnonzero(links == _PKTAP)
    if len(rows):
        # struct pktap_header of XNU: its length, the type of what follows, and the link type.
        length, _, link = (window.blocks(begin[rows] + at, "<u4").astype(np.int64) for at in (0, 4, 8))
        links = links.astype(np.int64)
        links[rows] = link
        begin[rows] = np.minimum(begin[rows] + length, end[rows])
    return begin, links


def _count_unknown(links: Column, counts: FileCounts) -> None:
    unknown = links[~np.isin(links, list(_LAYERS))]
    counts.unknown_link += len(unknown)
    for link, packets in zip(
        *(found.tolist() for found in np.unique(unknown, return_counts=True)), strict=True
    ):
        if link == NO_LINK:
            name, problem = _UNDESCRIBED, f"packets of {_UNDESCRIBED}"
        else:
            name = f"{LINK_TYPES[link]} (link type {link})" if link in LINK_TYPES else f"link type {link}"
            problem = f"packets of {name}, which is not read"
        counts.add_unread(name, packets)
        counts.add_problem(problem)


def ip_within(window: FileWindow, begin: Column, kinds: Column, end: Column) -> Column:
    """Skip VLAN tags, MPLS labels and other headers before IP. Return the IP version of each packet.

    `begin` is moved to the IP headers, and `kinds` becomes the EtherTypes of what it moves to. `end` is where
    the captured bytes end.
    """
    version = renamed(kinds, _VERSIONS)
    rows = np.flatnonzero(version == NEITHER)
    if not len(rows):
        return version
    for _ in range(_MOST_HEADERS):
        rows = rows[np.isin(kinds[rows], list(_HEADERS)) & (begin[rows] + 4 <= end[rows])]
        if not len(rows):
            break
        before = kinds[rows]
        for kind in np.unique(before).tolist():
            chosen = rows[before == kind]
            begin[chosen], kinds[chosen] = _HEADERS[kind](window, begin[chosen])
    return renamed(kinds, _VERSIONS)
