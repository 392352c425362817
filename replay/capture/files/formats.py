"""What the first bytes of a file say: pcap or pcapng, byte order, unit of time, link type."""

from dataclasses import dataclass

import dpkt

HEADER = 24
"""Bytes of a pcap file header."""
MAX_RECORD = 1 << 18
"""Most bytes of one packet that libpcap captures, unless a file's own snap length says more."""
_MAX_SNAPLEN = 8 << 20
"""Snap lengths beyond this are taken for nonsense."""
_LINK = (1 << 26) - 1
"""The bits above carry the length of a frame check sequence."""
_NANOSECONDS = frozenset({dpkt.pcap.TCPDUMP_MAGIC_NANO})


class NotACaptureError(ValueError):
    """The first bytes are of no capture; the text says what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What holds for all records of a file."""

    kind: str
    """`pcap` or `pcapng`."""
    order: str
    """`<` or `>`; of a pcapng its first section's."""
    fraction: int = 1_000_000
    """Parts of a second that record headers count (pcap)."""
    link: int = 0
    """Link type (pcap)."""
    record_header: int = 16
    """Bytes before each packet (pcap)."""
    max_record: int = MAX_RECORD
    """Longest packet that can be one."""


def identify(head: bytes) -> Format:
    """Tell what file begins with `head` (24 bytes of it are enough).

    Raises:
        NotACaptureError: Neither pcap nor pcapng, or cut within its header.
    """
    if not head:
        raise NotACaptureError("the file is empty")
    if head[:4] == dpkt.pcapng.PCAPNG_BT_SHB.to_bytes(4, "big"):
        return _section(head)
    magic = int.from_bytes(head[:4], "big")
    if magic not in dpkt.pcap.MAGIC_TO_PKT_HDR:
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
        raise NotACaptureError("begins like a pcapng, but its byte order can't be told")
    return Format(kind="pcapng", order=">" if magic == dpkt.pcapng.BYTE_ORDER_MAGIC else "<")
