"""Finds the inner packets in tunnels: of mirrored cloud traffic, and between nodes and sites."""

from typing import Final

import numpy as np

from replay.capture.files.counts import FileCounts
from replay.capture.files.window import Column, FileWindow
from replay.capture.packets.links import (
    ETHERTYPE_FRAME,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_MPLS,
    NEITHER,
    ip_within,
    renamed,
)

UDP: Final = 17
GRE: Final = 47
VXLAN_PORTS: Final = (4789, 8472)
"""The UDP ports of VXLAN: the one of RFC 7348 8.1, and the default port of Linux."""
VXLAN_GPE_PORT: Final = 4790
GENEVE_PORT: Final = 6081
_OF_PROTOCOL: Final = {4: ETHERTYPE_IPV4, 41: ETHERTYPE_IPV6, 137: ETHERTYPE_MPLS, 143: ETHERTYPE_FRAME}
"""The EtherTypes of IP protocols whose payload is a packet: IP in IP (RFC 2003), IPv6 (RFC 2473, RFC 4213),
MPLS (RFC 4023), Ethernet (RFC 8986)."""
_UDP_BYTES: Final = 8
_VXLAN_BYTES: Final = 8
_VXLAN_VALID: Final = 0x08000000
_VXLAN_PROTOCOL: Final = 0x04000000
_OF_GPE: Final = {1: ETHERTYPE_IPV4, 2: ETHERTYPE_IPV6, 3: ETHERTYPE_FRAME, 5: ETHERTYPE_MPLS}
_GRE_BYTES: Final = 4
_GRE_SEQUENCE: Final = 0x1000
_GRE_OPTIONS: Final = (0x8000, 0x2000, _GRE_SEQUENCE)
"""Bits of the GRE header for a checksum (with a reserved field), a key, and a sequence number. Each field
adds 4 bytes (RFC 2784, RFC 2890)."""
_GRE_UNKNOWN: Final = 0x4007
"""Bits of the GRE header that show unsupported packets: source routes, and versions other than 0."""
_ERSPAN: Final = 0x88BE
"""The protocol type in GRE of ERSPAN I and II."""
_ERSPAN_III: Final = 0x22EB
_ERSPAN_II_BYTES: Final = 8
_ERSPAN_III_BYTES: Final = 12
_ERSPAN_PLATFORM_BYTES: Final = 8
_UNREAD: Final = {GRE: "GRE of another kind", 50: "ESP (IPsec)", 51: "AH (IPsec)", 115: "L2TP"}
"""IP protocols that may carry TCP, and are not read."""
_UNREAD_UDP: Final = {1701: "L2TP", 2152: "GTP-U", 4500: "ESP (IPsec) in UDP", VXLAN_GPE_PORT: "VXLAN-GPE"}
"""The same by UDP port."""
_WIREGUARD: Final = 0x04000000
"""The first bytes of a packet of WireGuard that carries data."""
_WIREGUARD_BYTES: Final = 4
_WIREGUARD_PORTS: Final = (51820, 51871)
"""The ports of WireGuard: of `wg`, and of Cilium."""


def opened(window: FileWindow, place: Column, protocol: Column, end: Column) -> tuple[Column, Column]:
    """Find the inner IP packets in the payloads of tunnels, by the protocol in the outer IP header.

    Return the offset of each inner IP header, and its IP version. NEITHER means that the payload is no known
    tunnel, or that the tunnel has no IP packet. `end` is where the captured bytes of each packet end.
    """
    begin, kinds = place.copy(), renamed(protocol, _OF_PROTOCOL)
    for rows, opening in (
        ((protocol == UDP) & (place + _UDP_BYTES + _VXLAN_BYTES <= end), _open_udp),
        ((protocol == GRE) & (place + _GRE_BYTES <= end), _open_gre),
    ):
        chosen = np.flatnonzero(rows)
        if len(chosen):
            begin[chosen], kinds[chosen] = opening(window, place[chosen])
    return begin, ip_within(window, begin, kinds, end)


def _open_udp(window: FileWindow, place: Column) -> tuple[Column, Column]:
    port = window.blocks(place + 2, ">u2")
    inside = place + _UDP_BYTES
    head = window.blocks(inside, ">u4")
    # RFC 7348 5: the flag I is set, and other bits are ignored.
    vxlan = np.isin(port, VXLAN_PORTS) & (head & _VXLAN_VALID != 0)
    # draft-ietf-nvo3-vxlan-gpe 3: with the flag P, the last byte says what is inside.
    gpe = (vxlan | (port == VXLAN_GPE_PORT)) & (head & _VXLAN_PROTOCOL != 0)
    # RFC 8926 3.4: version 0; then the length of the options in 4 bytes each; the type of what is inside.
    geneve = (port == GENEVE_PORT) & (head >> 30 == 0)
    options = ((head >> 24 & 0x3F) * 4).astype(np.int64)
    kinds = np.where(vxlan, ETHERTYPE_FRAME, np.where(geneve, head & 0xFFFF, NEITHER)).astype(np.int64)
    kinds = np.where(gpe, renamed(head & 0xFF, _OF_GPE), kinds)
    return inside + _VXLAN_BYTES + np.where(geneve, options, 0), kinds


def _open_gre(window: FileWindow, place: Column) -> tuple[Column, Column]:
    head = window.blocks(place, ">u4")
    flags = head >> 16
    begin = place + _GRE_BYTES
    for option in _GRE_OPTIONS:
        begin += np.where(flags & option != 0, 4, 0)
    kinds = np.where(flags & _GRE_UNKNOWN == 0, head & 0xFFFF, NEITHER).astype(np.int64)
    # draft-foschiano-erspan 4: ERSPAN I has neither a sequence number nor a header of its own.
    frames = kinds == _ERSPAN
    begin[frames & (flags & _GRE_SEQUENCE != 0)] += _ERSPAN_II_BYTES
    kinds[frames] = ETHERTYPE_FRAME
    rows = np.flatnonzero(kinds == _ERSPAN_III)
    if len(rows):
        begin[rows], kinds[rows] = _open_erspan_iii(window, begin[rows])
    return begin, kinds


def _open_erspan_iii(window: FileWindow, place: Column) -> tuple[Column, Column]:
    # draft-foschiano-erspan 4.3: in the last bits of the header, the second to the sixth are 0 if an Ethernet
    # frame is inside, and the last one says whether a header of the platform follows.
    bits = window.blocks(place + _ERSPAN_III_BYTES - 2, ">u2")
    begin = place + _ERSPAN_III_BYTES + np.where(bits & 1 == 1, _ERSPAN_PLATFORM_BYTES, 0)
    return begin, np.where(bits & 0x7C00 == 0, ETHERTYPE_FRAME, NEITHER)


def count_unread(
    window: FileWindow, place: Column, protocol: Column, end: Column, counts: FileCounts
) -> None:
    """Count packets that are no known tunnel (see `opened`), but of protocols that may carry TCP."""
    for number, name in _UNREAD.items():
        counts.add_unread(name, int(np.count_nonzero(protocol == number)))
    place = place[(protocol == UDP) & (place + _UDP_BYTES + _WIREGUARD_BYTES <= end)]
    if not len(place):
        return
    ports = window.blocks(place, (">u2", 2))
    for port, name in _UNREAD_UDP.items():
        counts.add_unread(name, int(np.count_nonzero((ports == port).any(axis=1))))
    wireguard = (window.blocks(place + _UDP_BYTES, ">u4") == _WIREGUARD) & np.isin(
        ports, _WIREGUARD_PORTS
    ).any(axis=1)
    counts.add_unread("WireGuard", int(np.count_nonzero(wireguard)))
