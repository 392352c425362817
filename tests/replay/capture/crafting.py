"""Captures for tests: real ones, taken apart and written in another form, and conversations made by scapy.

A capture is a list of `Frame`s. `take_apart` reads one without replay's own code. Some functions damage a
capture (`lose`, `cut`, `repeat`, `swap`, `wrap`), others change its form (`relink`, `pcap`, `pcapng`).
"""

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

ETHERNET, RAW, NULL, LOOP, SLL, PKTAP, SLL2 = 1, 101, 0, 108, 113, 258, 276
CAPTURES = Path(__file__).parents[3] / "captures"
NAMES = ("librdkafka-100p", "java-100p", "librdkafka-midstream", "many-clients-any")
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Frame:
    """One captured packet."""

    time: int
    """The time of the packet, in nanoseconds since 1970."""
    data: bytes
    """The bytes of an IP packet. After `relink`, they begin with a link layer."""
    length: int
    """The size of the packet on the wire, in bytes."""


def capture(name: str) -> bytes:
    """Read one of the real captures."""
    return (CAPTURES / f"{name}.pcap").read_bytes()


def take_apart(data: bytes) -> list[Frame]:
    """Read a little-endian capture of Ethernet, SLL2 or raw IP, down to its IP packets."""
    header = {ETHERNET: 14, SLL2: 20, RAW: 0}[int.from_bytes(data[20:24], "little")]
    unit = 1 if data.startswith(b"\x4d\x3c\xb2\xa1") else 1000
    frames, place = [], 24
    while place < len(data):
        second, fraction, captured, length = struct.unpack_from("<4I", data, place)
        time = second * _SECOND + fraction * unit
        place += 16
        frames.append(Frame(time, data[place + header : place + captured], length - header))
        place += captured
    return frames


def pcap(
    frames: Iterable[Frame],
    link: int = ETHERNET,
    *,
    order: str = "<",
    nano: bool = False,
    snaplen: int = 262144,
    modified: bool = False,
) -> bytes:
    """Write a classic pcap file.

    `modified` means the modified format, whose packet headers have 24 bytes.
    """
    magic = 0xA1B2CD34 if modified else 0xA1B23C4D if nano else 0xA1B2C3D4
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    for frame in frames:
        second, rest = divmod(frame.time, _SECOND)
        fraction = rest if nano else rest // 1000
        parts.append(struct.pack(f"{order}4I", second, fraction, len(frame.data), frame.length))
        parts.append(bytes(8 if modified else 0))
        parts.append(frame.data)
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Write one pcapng block."""
    body += bytes(-len(body) % 4)
    size = len(body) + 12
    return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)


def section(order: str = "<") -> bytes:
    """Write a section header block, with the name of an application as an option."""
    options = struct.pack(f"{order}HH4sI", 4, 4, b"test", 0)
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1) + options, order)


def interface(link: int, order: str = "<", *, resolution: int | None = None, offset: int = 0) -> bytes:
    """Write an interface description block of pcapng.

    `resolution` is the value of its option if_tsresol. `offset` is the value of its option if_tsoffset, in
    seconds.
    """
    options = struct.pack(f"{order}HH4s", 2, 4, b"eth0")
    if resolution is not None:
        options += struct.pack(f"{order}HHB3x", 9, 1, resolution)
    if offset:
        options += struct.pack(f"{order}HHq", 14, 8, offset)
    return block(1, struct.pack(f"{order}HHI", link, 0, 0) + options + bytes(4), order)


def enhanced(
    frame: Frame, number: int = 0, order: str = "<", *, units: int = 1_000_000, offset: int = 0
) -> bytes:
    """Write an enhanced packet block of interface `number`, with a comment as an option."""
    stamp = (frame.time - offset * _SECOND) * units // _SECOND
    head = struct.pack(f"{order}5I", number, stamp >> 32, stamp & 0xFFFFFFFF, len(frame.data), frame.length)
    data = frame.data + bytes(-len(frame.data) % 4)
    return block(6, head + data + struct.pack(f"{order}HH4sI", 1, 4, b"note", 0), order)


def pcapng(
    frames: Iterable[Frame],
    link: int = ETHERNET,
    *,
    order: str = "<",
    resolution: int | None = None,
    offset: int = 0,
) -> bytes:
    """Write a pcapng with one section and one interface, and statistics at its end."""
    units = 1_000_000
    if resolution is not None:
        units = 1 << (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    return b"".join(
        [
            section(order),
            interface(link, order, resolution=resolution, offset=offset),
            *(enhanced(frame, order=order, units=units, offset=offset) for frame in frames),
            block(5, bytes(12), order),
        ]
    )


def _family(frame: Frame) -> int:
    return 0x86DD if frame.data[0] >> 4 == 6 else 0x0800


def _ethernet(frame: Frame, *tags: int) -> bytes:
    vlan = b"".join(struct.pack(">HH", tag, 100 + place) for place, tag in enumerate(tags))
    return bytes(range(12)) + vlan + struct.pack(">H", _family(frame))


def _pppoe(frame: Frame) -> bytes:
    protocol = 0x57 if _family(frame) == 0x86DD else 0x21
    return bytes(range(12)) + struct.pack(">HBBHHH", 0x8864, 0x11, 0, 7, len(frame.data) + 2, protocol)


def _mpls(_frame: Frame, behind: bytes = b"") -> bytes:
    labels = struct.pack(">II", 16 << 12 | 64, 17 << 12 | 1 << 8 | 64)
    return bytes(range(12)) + struct.pack(">H", 0x8847) + labels + behind


def _pktap(link: int, inside: bytes) -> bytes:
    """Write the header that macOS puts before a packet: its length, 1 for a packet, and the link type."""
    return struct.pack("<III24s", 108, 1, link, b"en0").ljust(108, b"\0") + inside


def _null(frame: Frame, order: str) -> bytes:
    return struct.pack(f"{order}I", 30 if _family(frame) == 0x86DD else 2)


DRESSES: dict[str, tuple[int, Callable[[Frame], bytes]]] = {
    "ethernet": (ETHERNET, _ethernet),
    "vlan": (ETHERNET, lambda frame: _ethernet(frame, 0x8100)),
    "qinq": (ETHERNET, lambda frame: _ethernet(frame, 0x88A8, 0x8100)),
    "vlan-3": (ETHERNET, lambda frame: _ethernet(frame, 0x88A8, 0x8100, 0x8100)),
    "pppoe": (ETHERNET, _pppoe),
    "mpls": (ETHERNET, _mpls),
    "mpls-ethernet": (ETHERNET, lambda frame: _mpls(frame, bytes(4) + _ethernet(frame))),
    "pktap": (PKTAP, lambda frame: _pktap(ETHERNET, _ethernet(frame))),
    "pktap-loopback": (PKTAP, lambda frame: _pktap(NULL, _null(frame, "<"))),
    "pktap-raw": (PKTAP, lambda _frame: _pktap(12, b"")),
    "sll": (SLL, lambda frame: struct.pack(">HHH8sH", 0, 1, 6, bytes(8), _family(frame))),
    "sll2": (SLL2, lambda frame: struct.pack(">HHIHBB8s", _family(frame), 0, 3, 1, 0, 6, bytes(8))),
    "null-little": (NULL, lambda frame: _null(frame, "<")),
    "null-big": (NULL, lambda frame: _null(frame, ">")),
    "loop": (LOOP, lambda frame: _null(frame, ">")),
    "raw": (RAW, lambda _frame: b""),
}
"""For each link layer, its link type, and a function that returns the bytes before an IP packet."""


def relink(frames: Iterable[Frame], dress: str, padding: int = 0) -> tuple[list[Frame], int]:
    """Add a link-layer header before each IP packet, and padding after short packets.

    Return the packets, and the link type.
    """
    link, head = DRESSES[dress]
    dressed = []
    for frame in frames:
        data = head(frame) + frame.data
        data += b"\xee" * max(padding - len(data), 0)
        dressed.append(Frame(frame.time, data, max(frame.length + len(head(frame)), padding)))
    return dressed, link


def as_ipv6(frames: Iterable[Frame], extensions: bytes = b"", protocol: int = 6) -> list[Frame]:
    """Convert IPv4 packets to IPv6: addresses in fd00::, and `extensions` between IP and TCP.

    Args:
        frames: IPv4 packets without options, of a length that IPv6 allows.
        extensions: Extension headers. The last one says that TCP follows.
        protocol: The type of the first extension.
    """
    prefix = bytes.fromhex("fd00") + bytes(10)
    made = []
    for frame in frames:
        (total,) = struct.unpack_from(">H", frame.data, 2)
        size = total - 20 + len(extensions)
        head = struct.pack(">IHBB", 6 << 28, size, protocol, 64)
        addresses = prefix + frame.data[12:16] + prefix + frame.data[16:20]
        data = head + addresses + extensions + frame.data[20:total]
        made.append(Frame(frame.time, data, len(data)))
    return made


def cut(frames: Iterable[Frame], snaplen: int) -> list[Frame]:
    """Keep `snaplen` bytes of each packet."""
    return [replace(frame, data=frame.data[:snaplen]) for frame in frames]


def lose(frames: Iterable[Frame], share: float, seed: int) -> list[Frame]:
    """Leave out a share of the packets."""
    chance = random.Random(seed)
    return [frame for frame in frames if chance.random() >= share]


def repeat(frames: Iterable[Frame], share: float, seed: int) -> list[Frame]:
    """Duplicate a share of the packets. Captures on the interface `any` have such duplicates."""
    chance = random.Random(seed)
    return [again for frame in frames for again in [frame] * (1 + (chance.random() < share))]


def swap(frames: Sequence[Frame], share: float, seed: int) -> list[Frame]:
    """Swap a share of the packets with the next packet, but not their times."""
    chance = random.Random(seed)
    made = list(frames)
    place = 0
    while place + 1 < len(made):
        if chance.random() < share:
            first, second = made[place], made[place + 1]
            made[place] = replace(second, time=first.time)
            made[place + 1] = replace(first, time=second.time)
            place += 1
        place += 1
    return made


def wrap(frames: Iterable[Frame], added: int) -> list[Frame]:
    """Add a number to the sequence and acknowledgment numbers of every IPv4 TCP packet, modulo 2**32."""
    made = []
    for frame in frames:
        data = bytearray(frame.data)
        place = (data[0] & 15) * 4
        for number_at in (4, 8):
            (number,) = struct.unpack_from(">I", data, place + number_at)
            struct.pack_into(">I", data, place + number_at, (number + added) & 0xFFFFFFFF)
        made.append(replace(frame, data=bytes(data)))
    return made


@dataclass(slots=True)
class Talk:
    """A TCP connection made of scapy's packets. Each method makes one segment and adds it to `frames`."""

    client: tuple[str, int] = ("10.0.0.1", 40000)
    broker: tuple[str, int] = ("10.0.0.2", 9092)
    time: int = 1_700_000_000 * _SECOND
    client_next: int = 1000
    broker_next: int = 5000
    frames: list[Frame] = field(default_factory=list)

    def open(self) -> "Talk":
        """Add SYN, SYN-ACK and ACK."""
        self.segment(flags="S")
        self.segment(flags="SA", broker=True)
        return self.segment(flags="A")

    def close(self) -> "Talk":
        """Add a FIN in both directions."""
        self.segment(flags="FA")
        self.segment(flags="FA", broker=True)
        return self.segment(flags="A")

    def segment(
        self, payload: bytes = b"", *, broker: bool = False, flags: str = "PA", skew: int = 0, **ip: Any
    ) -> "Talk":
        """Add a segment. `skew` changes its sequence number, but not those of later segments."""
        (source, port), (destination, other) = (
            (self.broker, self.client) if broker else (self.client, self.broker)
        )
        mine, theirs = self.client_next, self.broker_next
        if broker:
            mine, theirs = theirs, mine
        tcp = TCP(sport=port, dport=other, seq=(mine + skew) % 2**32, ack=theirs % 2**32, flags=flags) / Raw(
            payload
        )
        layer = IPv6 if ":" in source else IP
        data = bytes(layer(src=source, dst=destination, **ip) / tcp)
        self.frames.append(Frame(self.time, data, len(data)))
        self.time += 1_000_000
        if not skew:
            taken = len(payload) + ("S" in flags) + ("F" in flags)
            if broker:
                self.broker_next += taken
            else:
                self.client_next += taken
        return self
