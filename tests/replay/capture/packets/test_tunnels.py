"""Packets in tunnels (made by scapy) are read like the packets without a tunnel."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scapy.contrib.erspan import ERSPAN_I, ERSPAN_II, ERSPAN_III, ERSPAN_PlatformSpecific
from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import GRE, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

from replay.capture.files.counts import FileCounts
from replay.capture.files.sources import expand, plan
from replay.capture.packets.segments import read
from replay.capture.packets.tcp import EVERYTHING, Filter
from tests.replay.capture.crafting import ETHERNET, Frame, Talk, capture, cut, pcap, take_apart
from tests.replay.capture.slow import Run, runs, told

Around = Callable[[bytes], Packet]


def outer(*, six: bool = False, protocol: int = 0) -> Packet:
    network: Packet = IP(src="192.168.7.1", dst="192.168.7.2")
    if six:
        network = IPv6(src="fd00::a", dst="fd00::b")
    if protocol:
        network.proto = protocol
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / network


def inner(packet: bytes) -> Packet:
    return IP(packet) if packet[0] >> 4 == 4 else IPv6(packet)


def frame(packet: bytes) -> Packet:
    return Ether(src="02:00:00:00:00:03", dst="02:00:00:00:00:04") / inner(packet)


def gpe(following: int) -> Packet:
    """Return the header of VXLAN-GPE that names what follows it."""
    return VXLAN(flags="Instance+NextProtocol", vni=7, NextProtocol=following)


def segments(following: int = 0) -> Packet:
    """Return the IPv6 routing header of a packet whose last segment is fd00::b, after the present one."""
    header = IPv6ExtHdrSegmentRouting(addresses=["fd00::b", "fd00::2"], segleft=1, lastentry=1)
    if following:
        header.nh = following
    return header


TUNNELS: dict[str, Around] = {
    "vxlan": lambda packet: (
        outer() / UDP(sport=51000, dport=4789) / VXLAN(flags="Instance", vni=7) / frame(packet)
    ),
    "vxlan-linux": lambda packet: (
        outer() / UDP(sport=51000, dport=8472) / VXLAN(flags="Instance", vni=7) / frame(packet)
    ),
    "vxlan-gpe": lambda packet: outer() / UDP(sport=51000, dport=4789) / VXLAN(vni=7) / frame(packet),
    "vxlan-gpe-ip": lambda packet: (
        outer() / UDP(sport=51000, dport=4790) / gpe(1 if packet[0] >> 4 == 4 else 2) / Raw(packet)
    ),
    "vxlan-gpe-mpls": lambda packet: (
        outer() / UDP(sport=51000, dport=4790) / gpe(5) / MPLS(label=16, s=1) / inner(packet)
    ),
    "vxlan-ipv6": lambda packet: (
        outer(six=True) / UDP(sport=51000, dport=4789) / VXLAN(flags="Instance", vni=7) / frame(packet)
    ),
    "vxlan-vlan": lambda packet: (
        outer()
        / UDP(sport=51000, dport=4789)
        / VXLAN(flags="Instance", vni=7)
        / Ether()
        / Dot1Q(vlan=5)
        / inner(packet)
    ),
    "geneve": lambda packet: outer() / UDP(sport=51000, dport=6081) / GENEVE(vni=7) / frame(packet),
    "geneve-options": lambda packet: (
        outer()
        / UDP(sport=51000, dport=6081)
        / GENEVE(vni=7, options=[GeneveOptions(classid=0x108, type=1, data=b"12345678")])
        / frame(packet)
    ),
    "geneve-ip": lambda packet: (
        outer()
        / UDP(sport=51000, dport=6081)
        / GENEVE(vni=7, proto=0x0800 if packet[0] >> 4 == 4 else 0x86DD)
        / inner(packet)
    ),
    "gre": lambda packet: outer() / GRE() / inner(packet),
    "gre-ipv6": lambda packet: outer(six=True) / GRE() / inner(packet),
    "gre-ethernet": lambda packet: outer() / GRE(proto=0x6558) / frame(packet),
    "gre-options": lambda packet: (
        outer() / GRE(chksum_present=1, key_present=1, seqnum_present=1, key=9) / inner(packet)
    ),
    "gre-mpls": lambda packet: outer() / GRE(proto=0x8847) / MPLS(label=16, s=1) / inner(packet),
    "erspan-1": lambda packet: outer() / GRE(proto=0x88BE) / ERSPAN_I() / frame(packet),
    "erspan-2": lambda packet: (
        outer() / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(session_id=3) / frame(packet)
    ),
    "erspan-3": lambda packet: (
        outer() / GRE(proto=0x22EB, seqnum_present=1) / ERSPAN_III(session_id=3) / frame(packet)
    ),
    "erspan-3-platform": lambda packet: (
        outer()
        / GRE(proto=0x22EB, seqnum_present=1)
        / ERSPAN_III(session_id=3, o=1)
        / ERSPAN_PlatformSpecific()
        / frame(packet)
    ),
    "ip-in-ip": lambda packet: outer() / IP(src="172.16.0.1", dst="172.16.0.2") / inner(packet),
    "ip-in-ipv4": lambda packet: outer() / inner(packet),
    "ip-in-ipv6": lambda packet: outer(six=True) / inner(packet),
    "mpls-in-ip": lambda packet: outer(protocol=137) / MPLS(label=16, s=1) / inner(packet),
    "srv6": lambda packet: outer(six=True) / segments() / inner(packet),
    "srv6-ethernet": lambda packet: outer(six=True) / segments(143) / Raw(bytes(frame(packet))),
    "two": lambda packet: (
        outer() / GRE() / IP() / UDP(dport=4789) / VXLAN(flags="Instance", vni=7) / frame(packet)
    ),
}
"""Ways to encapsulate an IP packet."""
LAYERS = {"ip-in-ip": 2, "two": 2}

Reading = Callable[..., tuple[dict[tuple[str, str], list[Run]], FileCounts]]


@pytest.fixture(name="reading")
def reading_of_frames(tmp_path: Path) -> Reading:
    def reading(
        frames: list[Frame], keep: Filter = EVERYTHING
    ) -> tuple[dict[tuple[str, str], list[Run]], FileCounts]:
        file = tmp_path / "x.pcap"
        file.write_bytes(pcap(frames, ETHERNET, nano=True))
        found, (counts,) = told(
            batch for part in plan(expand([str(file)]), 1 << 30) for batch in read(part, keep)
        )
        return found, counts

    return reading


def carried(frames: list[Frame], around: Around) -> list[Frame]:
    packets = [bytes(around(one.data)) for one in frames]
    return [
        replace(one, data=packet, length=len(packet)) for one, packet in zip(frames, packets, strict=True)
    ]


TALKS = {
    "ipv4": Talk,
    "ipv6": lambda: Talk(client=("fd00::1", 40000), broker=("fd00::2", 9092)),
}


@pytest.mark.parametrize("family", TALKS)
@pytest.mark.parametrize("name", TUNNELS)
def test_what_is_in_a_tunnel_is_read(reading: Reading, name: str, family: str) -> None:
    talk = TALKS[family]().open().segment(b"a" * 100).segment(b"b" * 700, broker=True).close()

    found, counts = reading(carried(talk.frames, TUNNELS[name]))

    assert found == runs(talk.frames)
    assert counts.tunnelled == LAYERS.get(name, 1) * len(talk.frames)
    assert (counts.not_tcp, counts.malformed, counts.cut_headers) == (0, 0, 0)


def test_a_real_capture_mirrored_is_the_same(reading: Reading) -> None:
    frames = take_apart(capture("librdkafka-100p"))[:400]

    found, counts = reading(carried(frames, TUNNELS["vxlan"]))

    assert found == runs(frames)
    assert counts.tunnelled == counts.packets == 400


def test_filters_are_about_what_is_inside(reading: Reading) -> None:
    frames = carried(Talk().open().segment(b"x").frames, TUNNELS["vxlan"])

    assert reading(frames, Filter(hosts=frozenset({"192.168.7.1"})))[0] == {}
    assert reading(frames, Filter(ports=frozenset({4789})))[0] == {}
    found, _ = reading(frames, Filter(hosts=frozenset({"10.0.0.1"}), ports=frozenset({9092})))
    assert found == runs(Talk().open().segment(b"x").frames)


@pytest.mark.parametrize(
    "packet",
    [
        outer() / UDP(dport=4789) / Raw(bytes(60)),  # the I flag is not set
        outer() / UDP(dport=4790) / VXLAN(flags="Instance", vni=7) / frame(Talk().open().frames[0].data),
        outer() / UDP(dport=6081) / Raw(b"\xc0" + bytes(60)),  # another version
        outer()
        / UDP(dport=4789)
        / VXLAN(flags="Instance", vni=7)
        / Ether(type=0x0806)
        / Raw(bytes(28)),  # ARP
        outer() / GRE(version=1, proto=0x880B) / Raw(bytes(60)),  # PPTP
        outer(protocol=50) / Raw(bytes(60)),
        outer() / UDP(dport=4789),
        outer() / GRE(proto=0x88BE) / Raw(bytes(60)),
    ],
)
def test_what_is_no_known_tunnel_stays_closed(reading: Reading, packet: Packet) -> None:
    data = bytes(packet)

    found, counts = reading([Frame(1_700_000_000_000_000_000, data, len(data))])

    assert found == {}
    assert (counts.packets, counts.not_tcp, counts.tunnelled) == (1, 1, 0)


@pytest.mark.parametrize("name", TUNNELS)
def test_a_packet_cut_anywhere_is_counted_once(reading: Reading, name: str) -> None:
    (whole,) = carried(Talk().segment(b"x" * 50).frames, TUNNELS[name])
    lengths = range(14, len(whole.data))
    _, counts = reading([frame for length in lengths for frame in cut([whole], length)])

    lost = counts.cut_headers + counts.not_tcp + counts.not_ip + counts.malformed
    ports_and_flags = len(whole.data) - 50 - 20 + 14
    assert lost == sum(length < ports_and_flags for length in lengths)


def test_tunnels_without_end_are_not_followed(reading: Reading) -> None:
    packet = Talk().segment(b"x").frames[0].data
    for _ in range(7):
        packet = bytes(IP() / GRE() / inner(packet))
    data = bytes(Ether())[:12] + struct.pack(">H", 0x0800) + packet

    found, counts = reading([Frame(1_700_000_000_000_000_000, data, len(data))])

    assert (found, counts.not_tcp, counts.tunnelled) == ({}, 1, 4)


def test_a_packet_on_its_way_over_segments_belongs_to_its_last_address(reading: Reading) -> None:
    talk = Talk(client=("fd00::1", 40000), broker=("fd00::b", 9092)).open()
    plain = talk.segment(b"asked").segment(b"answered", broker=True).frames
    frames = []
    for one in plain:
        packet = IPv6(one.data)
        if packet.dst == "fd00::b":  # the way back has no segments
            packet = IPv6(src="fd00::1", dst="fd00::2") / segments() / packet.payload
        data = bytes(Ether(dst="02:00:00:00:00:02") / packet)
        frames.append(replace(one, data=data, length=len(data)))

    found, counts = reading(frames)

    assert found == runs(plain)
    assert (counts.malformed, counts.not_tcp) == (0, 0)


UNREAD = {
    "ESP (IPsec)": outer(protocol=50) / Raw(bytes(60)),
    "AH (IPsec)": outer(protocol=51) / Raw(bytes(60)),
    "ESP (IPsec) in UDP": outer() / UDP(sport=4500, dport=4500) / Raw(bytes(60)),
    "GRE of another kind": outer() / GRE(version=1, proto=0x880B) / Raw(bytes(60)),
    "GTP-U": outer() / UDP(sport=40000, dport=2152) / Raw(bytes(60)),
    "L2TP": outer() / UDP(sport=1701, dport=40000) / Raw(bytes(60)),
    "MACsec": Ether(dst="02:00:00:00:00:02", type=0x88E5) / Raw(bytes(60)),
    "NSH": Ether(dst="02:00:00:00:00:02", type=0x894F) / Raw(bytes(60)),
    "VXLAN-GPE": outer() / UDP(dport=4790) / gpe(4) / Raw(bytes(60)),
    "WireGuard": outer() / UDP(sport=40000, dport=51820) / Raw(b"\4\0\0\0" + bytes(60)),
}
"""Packets that may carry TCP, and are not read."""


@pytest.mark.parametrize("name", UNREAD)
def test_a_protocol_that_is_not_read_is_named(reading: Reading, name: str) -> None:
    data = bytes(UNREAD[name])
    frames = [Frame(1_700_000_000_000_000_000, data, len(data))] * 3

    found, counts = reading([*frames, *carried(Talk().open().frames, frame)])

    assert len(found) == 1
    assert (counts.unread, counts.not_tcp + counts.not_ip) == ({name: 3}, 3)


def test_other_protocols_are_not_named(reading: Reading) -> None:
    packets = [
        outer() / UDP(sport=51820, dport=53) / Raw(bytes(60)),
        outer(protocol=1) / Raw(bytes(60)),
        Ether(dst="02:00:00:00:00:02", type=0x806) / Raw(bytes(60)),
    ]

    _, counts = reading([Frame(1_700_000_000_000_000_000, bytes(one), len(one)) for one in packets])

    assert (counts.unread, counts.not_tcp, counts.not_ip) == ({}, 2, 1)
