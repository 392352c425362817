"""Finds the inner packets in tunnels (VXLAN, Geneve, GRE) of mirrored cloud traffic.

Many packets are processed at once, with numpy.
"""

from typing import Final

import numpy as np

from replay.capture.files.window import Column, FileWindow
from replay.capture.packets.links import ETHERTYPES, NEITHER, ethernet

UDP: Final = 17
GRE: Final = 47
VXLAN_PORTS: Final = (4789, 8472)
"""The UDP ports of VXLAN: the one of RFC 7348 8.1, and the default port of Linux."""
GENEVE_PORT: Final = 6081
_BRIDGED: Final = 0x6558
"""The protocol type in GRE and Geneve headers for an Ethernet frame (RFC 1701)."""
_UDP_BYTES: Final = 8
_VXLAN_BYTES: Final = 8
_VXLAN_VALID: Final = 0x08000000
_VXLAN_PROTOCOL: Final = 0x04000000
_VXLAN_ETHERNET: Final = 3
_GRE_BYTES: Final = 4
_GRE_OPTIONS: Final = (0x8000, 0x2000, 0x1000)
"""Bits of the GRE header for three optional fields: checksum (with a reserved field), key, and sequence
number.

Each field adds 4 bytes (RFC 2784, RFC 2890).
"""
_GRE_UNKNOWN: Final = 0x4007
"""Bits of the GRE header that show unsupported packets: source routes, and versions other than 0."""


def opened(window: FileWindow, place: Column, protocol: Column, end: Column) -> tuple[Column, Column]:
    """Find the inner IP packets in the payloads of tunnels.

    Args:
        window: the part of the file that has the packets.
        place: the offset of each payload.
        protocol: the protocol of each payload, as given in the outer IP header.
        end: the offset at which the captured bytes of each packet end.

    Returns:
        The offset of the inner IP header, and its IP version. The version NEITHER means that the payload is
        no known tunnel, or that the tunnel has no IP packet.
    """
    begin, kind = place.copy(), np.full(len(place), NEITHER, np.int64)
    for rows, opening in (
        ((protocol == UDP) & (place + _UDP_BYTES + _VXLAN_BYTES <= end), _open_udp),
        ((protocol == GRE) & (place + _GRE_BYTES <= end), _open_gre),
    ):
        chosen = np.flatnonzero(rows)
        if len(chosen):
            begin[chosen], kind[chosen] = opening(window, place[chosen])
    version = np.full(len(place), NEITHER, np.int64)
    for ethertype, number in ETHERTYPES.items():
        version[kind == ethertype] = number
    frames = np.flatnonzero((kind == _BRIDGED) & (begin <= end))
    if len(frames):
        begin[frames], version[frames] = ethernet(window, begin[frames])
    return begin, version


def _open_udp(window: FileWindow, place: Column) -> tuple[Column, Column]:
    port = window.blocks(place + 2, ">u2")
    inside = place + _UDP_BYTES
    head = window.blocks(inside, ">u4")
    # RFC 7348 5: the flag I is set, and other bits are ignored.
    vxlan = np.isin(port, VXLAN_PORTS) & (head & _VXLAN_VALID != 0)
    # draft-ietf-nvo3-vxlan-gpe 3: with the flag P, the last byte says what is inside.
    vxlan &= (head & _VXLAN_PROTOCOL == 0) | (head & 0xFF == _VXLAN_ETHERNET)
    # RFC 8926 3.4: version 0; then the length of the options in 4 bytes each; the type of what is inside.
    geneve = (port == GENEVE_PORT) & (head >> 30 == 0)
    options = ((head >> 24 & 0x3F) * 4).astype(np.int64)
    kind = np.where(vxlan, _BRIDGED, np.where(geneve, head & 0xFFFF, NEITHER)).astype(np.int64)
    return inside + _VXLAN_BYTES + np.where(geneve, options, 0), kind


def _open_gre(window: FileWindow, place: Column) -> tuple[Column, Column]:
    head = window.blocks(place, ">u4")
    flags = head >> 16
    size = np.full(len(place), _GRE_BYTES, np.int64)
    for option in _GRE_OPTIONS:
        size += np.where(flags & option != 0, 4, 0)
    kind = np.where(flags & _GRE_UNKNOWN == 0, head & 0xFFFF, NEITHER).astype(np.int64)
    return place + size, kind
