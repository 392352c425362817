"""Link layers: where the IP header of a packet begins, and its IP version."""

from collections.abc import Callable

import numpy as np

from replay.capture.files.counts import FileCounts
from replay.capture.files.window import NO_LINK, Column, FileWindow, Records

NEITHER, IPV4, IPV6 = 0, 4, 6

ETHERTYPES = {0x0800: IPV4, 0x86DD: IPV6}
_VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
_MOST_TAGS = 2
_FAMILIES = {2: IPV4, 10: IPV6, 24: IPV6, 28: IPV6, 30: IPV6}
"""Address families: AF_INET, then AF_INET6 of Linux, of NetBSD and OpenBSD, of FreeBSD, of macOS."""

_Layer = Callable[[FileWindow, Column], tuple[Column, Column]]
"""A function for one link layer. It gets the window and the positions at which the packets begin. It returns
the positions at which IP begins, and for each packet IPV4, IPV6 or NEITHER."""


def _versions(kinds: Column, names: dict[int, int]) -> Column:
    found = np.full(len(kinds), NEITHER, np.int64)
    for kind, version in names.items():
        found[kinds == kind] = version
    return found


def _with_ethertype(header: int, ethertype: int) -> _Layer:
    """Return a reader of a link layer with an EtherType, which VLAN tags may follow.

    `header` is the size of the link layer's header, and `ethertype` is the offset of the EtherType in it.
    """

    def layer(window: FileWindow, at: Column) -> tuple[Column, Column]:
        begin = at + header
        kinds = window.blocks(at + ethertype, ">u2").astype(np.int64)
        for _ in range(_MOST_TAGS):
            tagged = np.flatnonzero(np.isin(kinds, _VLAN_TAGS))
            if not len(tagged):
                break
            kinds[tagged] = window.blocks(begin[tagged] + 2, ">u2")
            begin[tagged] += 4
        return begin, _versions(kinds, ETHERTYPES)

    return layer


def _loopback(window: FileWindow, at: Column) -> tuple[Column, Column]:
    """Read BSD loopback: an address family in the byte order of the capturing machine."""
    family = window.blocks(at, ">u4").astype(np.int64)
    swapped = window.blocks(at, "<u4").astype(np.int64)
    return at + 4, _versions(np.minimum(family, swapped), _FAMILIES)


def _raw(window: FileWindow, at: Column) -> tuple[Column, Column]:
    return at, _versions(window.blocks(at, "u1") >> 4, {4: IPV4, 6: IPV6})


ethernet = _with_ethertype(14, 12)
_LAYERS: dict[int, _Layer] = {
    0: _loopback,
    1: ethernet,
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


def network(window: FileWindow, records: Records, counts: FileCounts) -> tuple[Column, Column]:
    """Return for each record the place of its IP header, and its IP version; NEITHER if it is not IP."""
    begin, version = records.at.copy(), np.full(len(records.at), NEITHER, np.int64)
    for link, packets in zip(
        *(found.tolist() for found in np.unique(records.link, return_counts=True)), strict=True
    ):
        counts.link_types[link] = counts.link_types.get(link, 0) + packets
        layer = _LAYERS.get(link)
        if layer is None:
            counts.unknown_link += packets
            line = f"packets of link type {link}, which is not supported"
            if link == NO_LINK:
                line = "packets of an interface that the file does not describe"
            counts.add_problem(line)
            continue
        rows = np.flatnonzero(records.link == link)
        begin[rows], version[rows] = layer(window, records.at[rows])
        counts.not_ip += int(np.count_nonzero(version[rows] == NEITHER))
    return begin, version
