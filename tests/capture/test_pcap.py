"""The gateway writes forwarded bytes as packets that other programs can read.

In these tests the other program is dpkt. In the integration tests it is tcpdump.
"""

import struct
from ipaddress import ip_address
from typing import Any

import pytest
from dpkt import dpkt
from hypothesis import given
from hypothesis import strategies as st

from proxy.capture.no_tap import BROKER, CLIENT
from proxy.capture.pcap import MAX_SEGMENT, PcapConnection, TcpPeer, file_header
from proxy.protocol.primitives import Buffer
from tests.captured import ACK, FIN, PSH, RST, SYN, Packet, read, streams

NOW = 1_795_215_250_123_456_789
ENDS = ("10.1.2.3:40000", "10.1.2.4:9092")


def _conversation(client: str = "10.1.2.3", broker: str = "10.1.2.4", now: int = NOW) -> PcapConnection:
    return PcapConnection(TcpPeer(ip_address(client), 40_000), TcpPeer(ip_address(broker), 9092), now)


def _packets(*records: list[Buffer]) -> list[Packet]:
    return read(file_header() + b"".join(b"".join(some) for some in records))


def _told(packet: Packet) -> tuple[Any, ...]:
    return packet.ends, packet.flags, packet.payload, packet.missing


def test_a_file_begins_as_pcap_with_nanoseconds_and_raw_ip() -> None:
    assert file_header() == struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 101)


def test_a_connection_from_its_beginning_to_its_end() -> None:
    talk = _conversation()

    packets = _packets(
        talk.opened(NOW),
        talk.sent(CLIENT, [(b"ask", 0)], NOW + 1),
        talk.sent(BROKER, [(b"answer", 0)], NOW + 2_000_000_000),
        talk.ended(CLIENT, NOW + 3),
        talk.ended(BROKER, NOW + 4),
    )

    there, back = ENDS, ENDS[::-1]
    assert [_told(packet) for packet in packets] == [
        (there, SYN, b"", 0),
        (back, SYN | ACK, b"", 0),
        (there, ACK, b"", 0),
        (there, PSH | ACK, b"ask", 0),
        (back, PSH | ACK, b"answer", 0),
        (there, FIN | ACK, b"", 0),
        (back, FIN | ACK, b"", 0),
    ]
    start = packets[0].sequence
    assert [(packet.sequence - start, packet.acknowledged - start) for packet in packets] == [
        (0, -start),
        (0, 1),
        (1, 1),
        (1, 1),
        (1, 4),
        (4, 7),
        (7, 5),
    ]
    assert [packet.time - NOW for packet in packets] == [0, 0, 0, 1, 2_000_000_000, 3, 4]


def test_a_connection_that_is_broken_off() -> None:
    talk = _conversation()

    packets = _packets(talk.sent(BROKER, [(b"xy", 0)], NOW), talk.reset(CLIENT, NOW))

    assert _told(packets[1]) == (ENDS, RST | ACK, b"", 0)
    assert packets[1].acknowledged == packets[0].sequence + 2


def test_what_left_the_packet_is_shorter_than_the_packet_was() -> None:
    talk = _conversation()

    packets = _packets(
        talk.opened(NOW), talk.sent(BROKER, [(b"head", 10), (b"tail", 0)], NOW), talk.sent(BROKER, [], NOW)
    )

    assert [_told(packet)[1:] for packet in packets[3:]] == [
        (PSH | ACK, b"head", 10),
        (PSH | ACK, b"tail", 0),
    ]
    assert packets[4].sequence - packets[3].sequence == 14
    assert packets[3].ip.len == 40 + 14
    assert streams(packets)[ENDS[::-1]] == b"head" + bytes(10) + b"tail"


@pytest.mark.parametrize(
    ("kept", "cut", "expected"),
    [
        (MAX_SEGMENT, 0, [(MAX_SEGMENT, 0)]),
        (MAX_SEGMENT + 1, 0, [(MAX_SEGMENT, 0), (1, 0)]),
        (5, MAX_SEGMENT, [(5, MAX_SEGMENT - 5), (0, 5)]),
        (0, 2 * MAX_SEGMENT, [(0, MAX_SEGMENT), (0, MAX_SEGMENT)]),
        (MAX_SEGMENT, 7, [(MAX_SEGMENT, 0), (0, 7)]),
        (MAX_SEGMENT + 2, 7, [(MAX_SEGMENT, 0), (2, 7)]),
        (0, 0, []),
    ],
)
def test_a_packet_has_room_for_so_much(kept: int, cut: int, expected: list[tuple[int, int]]) -> None:
    packets = _packets(_conversation().sent(CLIENT, [(b"k" * kept, cut)], NOW))

    assert [(len(packet.payload), packet.missing) for packet in packets] == expected
    assert all(packet.ip.len <= 65_535 for packet in packets)


def test_sequence_numbers_start_by_the_clock_and_wrap() -> None:
    last = (1 << 32) * 4_000 - 1  # the clock of initial sequence numbers stands at its highest
    talk = _conversation(now=last)

    packets = _packets(talk.opened(last), talk.sent(CLIENT, [(b"a", 0), (b"b", 0)], last))

    assert [packet.sequence for packet in packets] == [0xFFFF_FFFF, 0xFFFF_FFFF, 0, 0, 1]
    assert streams(packets) == {ENDS: b"ab"}


def test_an_ipv4_header_has_its_checksum() -> None:
    talk = _conversation("255.255.255.254", "255.255.255.255")
    records = [talk.sent(CLIENT, [(b"x" * size, 0)], NOW) for size in (1, 100, 40_000, MAX_SEGMENT)]

    for some in records:
        assert dpkt.in_cksum(bytes(some[0])[16:36]) == 0
    assert len({bytes(some[0])[26:28] for some in records}) == len(records)


def test_ipv6() -> None:
    talk = _conversation("fd00::1", "fd00::2")

    packets = _packets(talk.opened(NOW), talk.sent(BROKER, [(b"answer", 3)], NOW))

    ends = ("[fd00::2]:9092", "[fd00::1]:40000")
    assert _told(packets[-1]) == (ends, PSH | ACK, b"answer", 3)
    assert packets[-1].ip.plen == 20 + 9
    assert streams(packets) == {ends: b"answer" + bytes(3)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CLIENT, BROKER]),
            st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 200_000)), max_size=4),
        ),
        max_size=12,
    ),
    st.integers(0, (1 << 32) * 4_000_000),
)
def test_the_streams_are_what_passed(passed: list[tuple[int, list[tuple[bytes, int]]]], now: int) -> None:
    talk = _conversation(now=now)
    records = [talk.opened(now), *(talk.sent(by, list(pieces), now) for by, pieces in passed)]

    found = streams(_packets(*records))

    for by, ends in ((CLIENT, ENDS), (BROKER, ENDS[::-1])):
        expected = b"".join(kept + bytes(cut) for who, pieces in passed if who == by for kept, cut in pieces)
        assert found.get(ends, b"") == expected
