"""The format of a capture file, by its first bytes: pcap or pcapng, byte order, time unit, link type."""

from dataclasses import dataclass
from typing import Final

import dpkt

HEADER = 24
MAX_RECORD = 1 << 18
"""The longest packet, in bytes, that libpcap captures, unless the snap length in the file header is
larger."""
_MAX_SNAPLEN = 8 << 20
"""The largest valid snap length, in bytes. A larger value in a file header is ignored."""
_LINK = (1 << 26) - 1
"""Mask for the link type. The bits above it hold the length of a frame check sequence."""
_NANOSECONDS = frozenset({dpkt.pcap.TCPDUMP_MAGIC_NANO})
_CONVERT: Final = "convert it first: editcap -F pcap FILE NEW.pcap"
_OTHERS: Final = (
    (0, b"\xfd7zXZ\0", "compressed with xz", "unpack it first: xz -dk FILE"),
    (0, b"BZh", "compressed with bzip2", "unpack it first: bzip2 -dk FILE"),
    (0, b"PK\3\4", "a zip archive", "unpack it first: unzip FILE"),
    (257, b"ustar", "a tar archive", "unpack it first: tar -xf FILE"),
    (0, b"snoop\0\0\0", "a snoop file", _CONVERT),
    (0, b"RTSS", "a file of Microsoft Network Monitor", _CONVERT),
    (0, b"GMBU", "a file of Microsoft Network Monitor", _CONVERT),
)
"""Files that are not read: bytes at an offset, what the file is, and what to do about it."""


class NotACaptureError(ValueError):
    """The file is not a capture, or is cut within its header. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The properties that all records of a file share."""

    kind: str
    order: str
    """`<` (little-endian) or `>` (big-endian). For pcapng, that of the first section."""
    fraction: int = 1_000_000
    """Time units per second in the file's timestamps: a million or a billion (pcap only)."""
    link: int = 0
    record_header: int = 16
    """The size of the header before each packet, in bytes (pcap only)."""
    max_record: int = MAX_RECORD
    """The maximum of packet bytes in a record. A header that claims more is not the header of a record."""


def identify(head: bytes) -> Format:
    """Return the format of a file that begins with `head` (24 bytes are enough for a capture).

    Raises:
        NotACaptureError: the file is neither pcap nor pcapng, or its header is incomplete.
    """
    if not head:
        raise NotACaptureError("the file is empty")
    if head[:4] == dpkt.pcapng.PCAPNG_BT_SHB.to_bytes(4, "big"):
        return _section(head)
    magic = int.from_bytes(head[:4], "big")
    if magic not in dpkt.pcap.MAGIC_TO_PKT_HDR:
        for offset, magic_bytes, what, remedy in _OTHERS:
            if head.startswith(magic_bytes, offset):
                raise NotACaptureError(f"{what}, which is not read; {remedy}")
        raise NotACaptureError("neither pcap nor pcapng")
    return _pcap(head)


def _pcap(head: bytes) -> Format:
    if len(head) < HEADER:
        raise NotACaptureError(f"cut within the file header, after {len(head)} bytes")
    record = dpkt.pcap.MAGIC_TO_PKT_HDR[int.from_bytes(head[:4], "big")]
    little = record.__hdr_fmt__.startswith("<")
    header = (dpkt.pcap.LEFileHdr if little else dpkt.pcap.FileHdr)(head[:HEADER])
    return Format(
        kind="pcap",
        order="<" if little else ">",
        fraction=1_000_000_000 if header.magic in _NANOSECONDS else 1_000_000,
        link=header.linktype & _LINK,
        record_header=record.__hdr_len__,
        max_record=header.snaplen if MAX_RECORD < header.snaplen <= _MAX_SNAPLEN else MAX_RECORD,
    )


def _section(head: bytes) -> Format:
    magic = int.from_bytes(head[8:12], "big")
    if len(head) < 12:
        raise NotACaptureError(f"cut within the section header, after {len(head)} bytes")
    if magic not in {dpkt.pcapng.BYTE_ORDER_MAGIC, dpkt.pcapng.BYTE_ORDER_MAGIC_LE}:
        raise NotACaptureError("begins like a pcapng file, but has no known byte order")
    return Format(kind="pcapng", order=">" if magic == dpkt.pcapng.BYTE_ORDER_MAGIC else "<")
