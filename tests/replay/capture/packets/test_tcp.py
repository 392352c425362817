import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from replay.capture.files.counts import MOST_UNREAD, FileCounts
from replay.capture.files.sources import expand, plan
from replay.capture.packets.segments import read
from replay.capture.packets.tcp import FIN, RST, SYN
from tests.examples import examples
from tests.replay.capture.crafting import (
    DRESSES,
    ETHERNET,
    NULL,
    PKTAP,
    RAW,
    SLL2,
    Frame,
    Talk,
    as_ipv6,
    capture,
    enhanced,
    interface,
    pcap,
    pcapng,
    relink,
    section,
    take_apart,
)
from tests.replay.capture.slow import Run, join, runs, told

Reading = Callable[[bytes], tuple[list[Run], FileCounts]]
TIME = 1_700_000_000_000_000_000


@pytest.fixture(name="reading")
def reading_of_one_file(tmp_path: Path) -> Reading:
    def reading(data: bytes) -> tuple[list[Run], FileCounts]:
        path = tmp_path / "x.pcap"
        path.write_bytes(data)
        found, (counts,) = told(
            batch for share in plan(expand([str(path)]), 1 << 30) for batch in read(share)
        )
        return [run for rows in found.values() for run in rows], counts

    return reading


def packet(data: bytes, length: int | None = None) -> Frame:
    return Frame(TIME, data, len(data) if length is None else length)


def patched(frame: Frame, place: int, form: str, *values: int) -> Frame:
    data = bytearray(frame.data)
    struct.pack_into(form, data, place, *values)
    return packet(bytes(data), frame.length)


ONE = Talk().segment(b"payload").frames[0]
SIX = Talk(client=("fd00::1", 1), broker=("fd00::2", 2)).segment(b"payload").frames[0]


def test_syn_fin_and_rst_make_rows_of_their_own(reading: Reading) -> None:
    talk = Talk().open().segment(b"ab").segment(b"cd").segment(b"e", broker=True).close()

    rows, counts = reading(pcap(talk.frames, RAW))

    assert [(row.from_low, row.flags, row.sequence, row.packets, row.payload) for row in rows] == [
        (True, SYN, 1000, 1, b""),
        (False, SYN, 5000, 1, b""),
        (True, 0, 1001, 2, b"abcd"),
        (False, 0, 5001, 1, b"e"),
        (True, FIN, 1005, 1, b""),
        (False, FIN, 5002, 1, b""),
    ]
    assert counts.packets == len(talk.frames)


def test_flags_of_segments_with_payload(reading: Reading) -> None:
    talk = Talk().segment(b"early", flags="S").segment(b"ab").segment(b"last", flags="FA")
    talk.segment(b"reason", flags="R")

    rows, _ = reading(pcap(talk.frames, RAW))

    # A SYN takes a number before its payload, a FIN one behind it; a RST's payload is none.
    assert [(row.flags, row.sequence, row.missing, row.payload) for row in rows] == [
        (SYN, 1001, 0, b"early"),  # without an ACK, so not of one run with what follows
        (FIN, 1006, 0, b"ablast"),
        (RST, 1013, 0, b""),
    ]


@pytest.mark.parametrize("dress", DRESSES)
def test_padding_is_no_payload(reading: Reading, dress: str) -> None:
    talk = Talk().open().segment(b"a").segment(b"b", broker=True)
    frames, link = relink(talk.frames, dress, padding=64)

    rows, _ = reading(pcap(frames, link))

    assert join(rows) == next(iter(runs(talk.frames).values()))
    assert {bytes(row.payload) for row in rows} == {b"", b"a", b"b"}


@pytest.mark.parametrize("dress", DRESSES)
def test_a_packet_cut_by_the_snap_length_leaves_a_gap(reading: Reading, dress: str) -> None:
    talk = Talk().segment(bytes(range(200))).segment(b"more")
    frames, link = relink(talk.frames, dress)
    header = len(frames[0].data) - 200
    frames[0] = Frame(frames[0].time, frames[0].data[: header + 50], frames[0].length)

    rows, counts = reading(pcap(frames, link))

    assert [(row.payload, row.missing) for row in rows] == [(bytes(range(50)), 150), (b"more", 0)]
    assert (counts.cut_packets, counts.cut_headers) == (1, 0)


@pytest.mark.parametrize(("kept", "missing"), [(40, 7), (34, 7), (33, None), (20, None), (5, None)])
def test_headers_cut_by_the_snap_length(reading: Reading, kept: int, missing: int | None) -> None:
    rows, counts = reading(pcap([packet(ONE.data[:kept], ONE.length)], RAW))

    assert [(row.payload, row.missing) for row in rows] == ([] if missing is None else [(b"", missing)])
    assert (counts.cut_packets, counts.cut_headers, counts.malformed) == (1, missing is None, 0)


@pytest.mark.parametrize("frame", [patched(ONE, 2, ">H", 0), patched(SIX, 4, ">H", 0)])
def test_an_offloaded_segment_may_have_no_length(reading: Reading, frame: Frame) -> None:
    rows, _ = reading(pcap([frame], RAW))

    assert [row.payload for row in rows] == [b"payload"]


def test_offloaded_segments_of_64_kilobytes(reading: Reading) -> None:
    payload = bytes(range(256)) * 255
    frames, link = relink(Talk().segment(payload).segment(payload).frames, "ethernet")

    rows, _ = reading(pcap(frames, link))

    assert [row.payload for row in rows] == [payload * 2]


EXTENSIONS = {
    "none": (6, b""),
    "hop-by-hop": (0, bytes([6, 0, *bytes(6)])),
    "routing, destination": (43, bytes([60, 1, *bytes(14)]) + bytes([6, 0, *bytes(6)])),
    "authentication": (51, bytes([6, 4, *bytes(22)])),
    "atomic fragment": (44, bytes([6, 0, 0, 0, 1, 2, 3, 4])),
    "all": (0, bytes([43, 0, *bytes(6), 60, 0, *bytes(6), 44, 0, *bytes(6), 6, 0, 0, 0, 1, 2, 3, 4])),
}


@pytest.mark.parametrize("name", EXTENSIONS)
@pytest.mark.parametrize(
    "dress", ["ethernet", "vlan", "qinq", "sll", "sll2", "null-little", "null-big", "raw"]
)
def test_ipv6_with_extension_headers(reading: Reading, name: str, dress: str) -> None:
    protocol, extensions = EXTENSIONS[name]
    plain = take_apart(capture("java-100p"))[:60]
    frames, link = relink(as_ipv6(plain, extensions, protocol), dress, padding=90)

    rows, counts = reading(pcap(frames, link))

    wanted = [run for found in runs(as_ipv6(plain)).values() for run in found]
    assert sorted(rows, key=repr) == sorted(wanted, key=repr)
    assert (counts.fragments, counts.malformed, counts.not_tcp) == (0, 0, 0)
    assert rows[0].low.startswith("[fd00::")


@pytest.mark.parametrize("family", [10, 24, 28, 30])
def test_ipv6_on_loopback_of_every_system(reading: Reading, family: int) -> None:
    for order in "<>":
        rows, _ = reading(pcap([packet(struct.pack(f"{order}I", family) + SIX.data)], NULL))
        assert [row.payload for row in rows] == [b"payload"]


FRAGMENT = bytes([6, 0, 0, 9, 1, 2, 3, 4])
NOT_SEGMENTS = {
    "more fragments": (patched(ONE, 6, ">H", 0x2000), "fragments"),
    "last fragment": (patched(ONE, 6, ">H", 0x0003), "fragments"),
    "IPv6 fragment": (as_ipv6([ONE], FRAGMENT, 44)[0], "fragments"),
    "UDP": (patched(ONE, 9, ">B", 17), "not_tcp"),
    "ICMPv6": (patched(SIX, 6, ">B", 58), "not_tcp"),
    "ESP": (patched(SIX, 6, ">B", 50), "not_tcp"),
    "neither IPv4 nor IPv6": (patched(ONE, 0, ">B", 0x95), "not_ip"),
    "short IPv4 header": (patched(ONE, 0, ">B", 0x44), "malformed"),
    "IPv4 shorter than its header": (patched(ONE, 2, ">H", 19), "malformed"),
    "IPv4 ends within TCP": (patched(ONE, 2, ">H", 39), "malformed"),
    "short TCP header": (patched(ONE, 32, ">B", 0x40), "malformed"),
    "TCP header behind the packet": (patched(ONE, 32, ">B", 0xF0), "malformed"),
    "IPv6 ends within TCP": (patched(SIX, 4, ">H", 10), "malformed"),
    "IPv4 stub": (packet(ONE.data[:19]), "malformed"),
    "TCP stub": (packet(ONE.data[:30]), "malformed"),
    "IPv6 stub": (packet(SIX.data[:39]), "malformed"),
    "empty": (packet(b""), "not_ip"),
}


@pytest.mark.parametrize("name", NOT_SEGMENTS)
@pytest.mark.parametrize("link", [RAW, ETHERNET])
def test_what_is_no_segment_is_counted_once(reading: Reading, name: str, link: int) -> None:
    frame, reason = NOT_SEGMENTS[name]
    frames = [frame, ONE]
    if link == ETHERNET:
        if reason == "not_ip":
            frame = patched(ONE, 0, ">B", 0x95)
            reason = "malformed"
        frames, link = relink([frame, ONE], "ethernet")

    rows, counts = reading(pcap(frames, link))

    assert [row.payload for row in rows] == [b"payload"]
    names = ("fragments", "not_tcp", "not_ip", "malformed", "cut_headers", "filtered", "unknown_link")
    assert {one: getattr(counts, one) for one in names if getattr(counts, one)} == {reason: 1}


@pytest.mark.parametrize("ethertype", [0x0806, 0x8847, 0x0026, 0x86DC])
def test_ethernet_without_ip(reading: Reading, ethertype: int) -> None:
    frame = packet(bytes(12) + struct.pack(">H", ethertype) + ONE.data)

    rows, counts = reading(pcap([frame], ETHERNET))

    assert (rows, counts.not_ip) == ([], 1)


@pytest.mark.parametrize(("link", "name"), [(239, "NFLOG (link type 239)"), (147, "link type 147")])
def test_a_link_type_that_is_not_read_is_named_once(reading: Reading, link: int, name: str) -> None:
    rows, counts = reading(pcap([ONE] * 3, link))

    assert (rows, counts.unknown_link, counts.link_types) == ([], 3, {link: 3})
    assert (counts.unread, counts.problems) == ({name: 3}, [f"packets of {name}, which is not read"])


def test_an_interface_within_pktap_may_be_one_that_is_not_read(reading: Reading) -> None:
    frames, link = relink([ONE] * 2, "pktap")
    frames[1] = patched(frames[1], 8, "<I", 105)

    rows, counts = reading(pcap(frames, link))

    assert ([row.payload for row in rows], counts.link_types) == ([b"payload"], {258: 2})
    assert (counts.unread, counts.not_ip) == ({"Wi-Fi (link type 105)": 1}, 0)


def test_many_link_types_within_pktap_have_one_name_together(reading: Reading) -> None:
    headers = [packet(struct.pack("<III", 12, 1, 1000 + number)) for number in range(1000)]

    rows, counts = reading(pcap(headers, PKTAP))

    assert (rows, counts.unknown_link, counts.not_ip) == ([], 1000, 0)
    assert (len(counts.unread), counts.unread["other protocols"]) == (MOST_UNREAD + 1, 1000 - MOST_UNREAD)


def test_pcapng_of_several_interfaces_sections_and_orders(reading: Reading) -> None:
    talk = Talk().open().segment(b"question").segment(b"answer", broker=True).segment(b"again").close()
    one = relink(talk.frames, "ethernet")[0]
    two = relink(talk.frames, "sll2")[0]
    data = b"".join(
        [
            section("<"),
            interface(ETHERNET, "<"),
            interface(SLL2, "<", resolution=9),
            enhanced(one[0], 0, "<"),
            enhanced(two[1], 1, "<", units=10**9),
            enhanced(one[2], 0, "<"),
            section(">"),
            interface(SLL2, ">"),
            enhanced(two[3], 0, ">"),
            interface(ETHERNET, ">"),
            *(enhanced(frame, 1, ">") for frame in one[4:]),
        ]
    )

    rows, counts = reading(data)

    assert [rows] == list(runs(talk.frames).values())
    assert (counts.link_types, counts.problems) == ({1: len(one) - 2, 276: 2}, [])
    assert counts.file_bytes == len(data)


def test_simple_and_old_packet_blocks(reading: Reading) -> None:
    data = ONE.data
    old = struct.pack("<HHIIII", 0, 7, 0, 5_000_000, len(data), len(data)) + data + bytes(-len(data) % 4)
    simple = struct.pack("<I", len(data)) + data + bytes(-len(data) % 4)

    def block(kind: int, body: bytes) -> bytes:
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    rows, counts = reading(section() + interface(RAW) + block(2, old) + block(3, simple))

    # A simple packet has no time of its own.
    assert [(row.time, row.payload, row.packets) for row in rows] == [(5_000_000_000, b"payload", 1)] * 2
    assert counts.packets == 2


def test_packets_of_an_interface_that_is_not_described(reading: Reading) -> None:
    rows, counts = reading(section() + interface(RAW) + enhanced(ONE, 3) + enhanced(ONE, 0))

    assert (len(rows), counts.unknown_link) == (1, 1)
    assert counts.problems == ["packets of an interface that the file does not describe"]


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_holds_it_is_read_to_its_end(reading: Reading, data: st.DataObject) -> None:
    frames = Talk().open().segment(b"question").segment(b"answer", broker=True).close().frames
    dressed, link = relink(frames + as_ipv6(frames), data.draw(st.sampled_from(sorted(DRESSES))))
    whole = bytearray(pcap(dressed, link) if data.draw(st.booleans()) else pcapng(dressed, link))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(24, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.integers(30, len(whole)))]

    _, counts = reading(bytes(whole))

    assert counts.file_bytes == len(whole)
    accounted = counts.not_ip + counts.not_tcp + counts.fragments + counts.malformed + counts.cut_headers
    assert accounted + counts.unknown_link <= counts.packets
