import gzip
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from replay.capture.files import window
from replay.capture.files.counts import MOST_PROBLEMS, FileCounts
from replay.capture.files.sources import expand, plan
from replay.capture.packets import segments
from replay.capture.packets.segments import SEGMENTS, connection_key, endpoints, read
from replay.capture.packets.tcp import EVERYTHING, Filter
from tests.examples import examples
from tests.replay.capture import crafting
from tests.replay.capture.crafting import DRESSES, NAMES, Talk, capture, pcap, pcapng, relink, take_apart
from tests.replay.capture.slow import Run, runs, told

Found = tuple[dict[tuple[str, str], list[Run]], list[FileCounts]]
Reading = Callable[..., Found]


@pytest.fixture(name="reading")
def reading_of_files(tmp_path: Path) -> Reading:
    def reading(
        *files: bytes, share: int = 1 << 30, keep: Filter = EVERYTHING, name: str = "x.pcap"
    ) -> Found:
        names = []
        for number, data in enumerate(files):
            path = tmp_path / f"{number}-{name}"
            path.write_bytes(data)
            names.append(str(path))
        return told(batch for part in plan(expand(names), share) for batch in read(part, keep))

    return reading


REAL = {name: take_apart(capture(name)) for name in NAMES}
TRUTH = {name: runs(frames) for name, frames in REAL.items()}


@pytest.mark.parametrize("name", NAMES)
def test_real_captures_give_what_the_slow_reader_gives(reading: Reading, name: str) -> None:
    found, (counts,) = reading(capture(name))

    assert found == TRUTH[name]
    frames = REAL[name]
    assert counts.packets == len(frames)
    assert (counts.first_time, counts.last_time) == (frames[0].time, frames[-1].time)
    assert counts.file_bytes == len(capture(name))
    assert (counts.problems, counts.not_ip, counts.not_tcp, counts.malformed) == ([], 0, 0, 0)


@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("dress", DRESSES)
def test_every_link_layer_gives_the_same(reading: Reading, name: str, dress: str) -> None:
    frames, link = relink(REAL[name], dress)

    found, (counts,) = reading(pcap(frames, link))

    assert found == TRUTH[name]
    assert counts.link_types == {link: len(frames)}


FORMATS: dict[str, Callable[[list[crafting.Frame], int], bytes]] = {
    "big-endian": lambda frames, link: pcap(frames, link, order=">"),
    "nanoseconds": lambda frames, link: pcap(frames, link, nano=True),
    "nanoseconds-big-endian": lambda frames, link: pcap(frames, link, nano=True, order=">"),
    "modified": lambda frames, link: pcap(frames, link, modified=True),
    "frame-check-sequence": lambda frames, link: pcap(frames, link | 0x14000000),
    "pcapng": pcapng,
    "pcapng-big-endian": lambda frames, link: pcapng(frames, link, order=">"),
    "pcapng-nanoseconds": lambda frames, link: pcapng(frames, link, resolution=9),
    "pcapng-picoseconds": lambda frames, link: pcapng(frames, link, resolution=12, offset=1_780_000_000),
    "pcapng-offset": lambda frames, link: pcapng(frames, link, offset=3600),
    "gzip": lambda frames, link: gzip.compress(pcap(frames, link)),
    "gzip-in-parts": lambda frames, link: b"".join(
        gzip.compress(part) for part in (pcap(frames, link)[:5000], pcap(frames, link)[5000:])
    ),
    "zstd": lambda frames, link: zstandard.compress(pcap(frames, link)),
    "zstd-pcapng": lambda frames, link: zstandard.compress(pcapng(frames, link)),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dress", ["ethernet", "sll2"])
def test_every_format_gives_the_same(reading: Reading, form: str, dress: str) -> None:
    frames, link = relink(REAL["librdkafka-midstream"], dress)

    # The name says nothing: what a file is and how it is compressed is told by its bytes.
    found, (counts,) = reading(FORMATS[form](frames, link), name="capture")

    assert found == TRUTH["librdkafka-midstream"]
    assert counts.format == ("pcapng" if "pcapng" in form else "pcap")
    assert counts.problems == []


@pytest.mark.parametrize("claimed", [100, 1 << 31])
def test_a_packet_ends_with_its_block_at_the_latest(reading: Reading, claimed: int) -> None:
    """The block says that more bytes were captured than it has."""
    whole = Talk().segment(b"a" * 100).frames[0]
    frame = replace(whole, data=whole.data[:60])
    fields = struct.pack("<5I", 0, *divmod(frame.time // 1000, 1 << 32), claimed, frame.length)

    start = crafting.section() + crafting.interface(crafting.RAW)
    found, _ = reading(start + crafting.block(6, fields + frame.data))

    assert found == runs([frame])


def test_a_binary_resolution_is_exact_to_its_unit(reading: Reading) -> None:
    talk = Talk().segment(b"a")
    frame = talk.frames[0]

    found, _ = reading(pcapng([frame], crafting.RAW, resolution=0x80 | 20))

    ((run,),) = found.values()
    units = frame.time * 2**20 // 10**9
    assert run.time == units // 2**20 * 10**9 + units % 2**20 * 10**9 // 2**20


@pytest.mark.parametrize(
    "name", ["librdkafka-midstream", pytest.param("many-clients-any", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("share", [9_000, 70_000, 500_000])
def test_shares_of_any_size_give_the_same(reading: Reading, name: str, share: int) -> None:
    found, counts = reading(capture(name), share=share)

    assert found == TRUTH[name]
    assert len(counts) >= len(capture(name)) // max(share, 70_000) // 2
    whole = counts[0]
    for part in counts[1:]:
        whole.add(part)
    assert whole.packets == len(REAL[name])
    assert whole.file_bytes == len(capture(name))
    assert whole.link_types.popitem()[1] == len(REAL[name])


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_that_a_capture_was_cut_into_give_the_same(reading: Reading, data: st.DataObject) -> None:
    frames, link = relink(REAL["librdkafka-midstream"], "ethernet")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(frames)), max_size=6)))
    parts = [frames[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(frames)], strict=True)]
    files = [pcap(part, link) if data.draw(st.booleans()) else pcapng(part, link) for part in parts if part]
    named = data.draw(st.permutations(files))

    found, counts = reading(*named, share=data.draw(st.sampled_from([1 << 30, 100_000])))

    assert found == TRUTH["librdkafka-midstream"]
    assert sum(part.packets for part in counts) == len(frames)


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    snaplen=st.sampled_from([60, 400, 2000, 1 << 18]),
    lost=st.sampled_from([0, 0.05]),
    twice=st.sampled_from([0, 0.3, 1]),
    swapped=st.sampled_from([0, 0.1]),
    added=st.integers(0, 2**32 - 1),
)
def test_harmed_captures_give_what_the_slow_reader_gives(
    reading: Reading, seed: int, snaplen: int, lost: float, twice: float, swapped: float, added: int
) -> None:
    frames = crafting.lose(REAL["java-100p"][:700], lost, seed)
    frames = crafting.wrap(crafting.swap(crafting.repeat(frames, twice, seed), swapped, seed), added)
    frames = crafting.cut(frames, snaplen)

    found, (counts,) = reading(pcap(frames, crafting.RAW))

    assert found == runs(frames)
    assert counts.cut_packets == sum(len(frame.data) < frame.length for frame in frames)


def test_windows_of_any_size_give_the_same(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, link = relink(REAL["librdkafka-100p"], "vlan")
    monkeypatch.setattr(window, "SIZE", 300_000)
    monkeypatch.setattr("replay.capture.files.reading.SIZE", 300_000)

    for data in (pcap(frames, link), pcapng(frames, link)):
        found, _ = reading(data)
        assert found == TRUTH["librdkafka-100p"]


def test_batches_are_bounded_and_valid(tmp_path: Path) -> None:
    talk = Talk()
    for _ in range(400):
        talk.segment(bytes(60_000), broker=True)
    path = tmp_path / "bulk.pcap"
    path.write_bytes(pcap(talk.frames, crafting.RAW))

    batches = [batch for share in plan(expand([str(path)]), 1 << 30) for batch in read(share)]

    for batch in batches:
        assert batch.schema == SEGMENTS
        batch.validate(full=True)
        assert sum(len(value.as_py()) for value in batch["payload"]) <= segments.MAX_BATCH
    rows = [row for batch in batches for row in batch.to_pylist() if row["connection"]]
    assert b"".join(row["payload"] for row in rows) == bytes(400 * 60_000)
    assert max(len(row["payload"]) for row in rows) < segments.MAX_RUN + (1 << 16)
    assert len(rows) < 400 / 10


def test_order_is_file_number_and_offset(tmp_path: Path) -> None:
    talk = Talk().segment(b"question").segment(b"answer", broker=True).segment(b"more")
    first, second = tmp_path / "b.pcap", tmp_path / "a.pcap"
    first.write_bytes(pcap(talk.frames[:2], crafting.RAW))
    second.write_bytes(pcap(talk.frames[2:], crafting.RAW))

    (share,) = plan(expand([str(second), str(first)]), 1 << 30)
    rows = [row for batch in read(share) for row in batch.to_pylist()]

    size = 16 + 40 + len(b"question")
    assert [row["order"] for row in rows] == [24, 24 + size, 0, (1 << 40) + 24, 1 << 40]
    assert [row["payload"] for row in rows if row["connection"]] == [b"question", b"answer", b"more"]


def test_endpoints_are_in_canonical_order(reading: Reading) -> None:
    one = Talk(client=("10.0.0.9", 1), broker=("10.0.0.10", 9092)).segment(b"x").frames
    two = Talk(client=("fd00::2", 5), broker=("fd00::1", 9092)).segment(b"y").frames
    three = Talk(client=("10.0.0.9", 7), broker=("10.0.0.9", 6)).segment(b"z").frames

    found, _ = reading(pcap(one + two + three, crafting.RAW))

    assert {ends: rows[0].from_low for ends, rows in found.items()} == {
        ("10.0.0.9:1", "10.0.0.10:9092"): True,
        ("[fd00::1]:9092", "[fd00::2]:5"): False,
        ("10.0.0.9:6", "10.0.0.9:7"): False,
    }
    assert endpoints(bytes([4, 1, 2, 3, 4, 0, 5, 6, 7, 8, 9, 1, 0])) == ("1.2.3.4:5", "6.7.8.9:256")
    for low, high in found:
        assert endpoints(connection_key(low, high)) == endpoints(connection_key(high, low)) == (low, high)


@pytest.mark.parametrize(
    ("keep", "ports"),
    [
        (Filter(ports=frozenset({9092})), {1, 2}),
        (Filter(hosts=frozenset({"10.0.0.1"})), {1, 3}),
        (Filter(hosts=frozenset({"10.0.0.0/30"}), ports=frozenset({9092})), {1}),
        (Filter(hosts=frozenset({"fd00::/16"})), {2}),
        (Filter(hosts=frozenset({"fd00::1", "10.0.0.1"}), ports=frozenset({80, 9092})), {1, 2, 3}),
        (Filter(hosts=frozenset({"10.9.9.9"})), set()),
    ],
)
def test_a_filter_keeps_connections_by_host_and_port(reading: Reading, keep: Filter, ports: set[int]) -> None:
    frames = (
        Talk(client=("10.0.0.1", 1)).segment(b"x").frames
        + Talk(client=("fd00::1", 2), broker=("fd00::2", 9092)).segment(b"x").frames
        + Talk(client=("10.0.0.1", 3), broker=("10.1.0.1", 80)).segment(b"x").frames
    )

    found, (counts,) = reading(pcap(frames, crafting.RAW), keep=keep)

    assert {int(end.rsplit(":")[-1]) for ends in found for end in ends} - {80, 9092} == ports
    assert counts.filtered == 3 - len(ports)


def test_counts_of_parts_add_up() -> None:
    one = FileCounts(file="a", packets=2, link_types={1: 2}, problems=["x"])
    one.add_stretches([[5, 9]])
    two = FileCounts(file="a", packets=3, link_types={1: 1, 101: 2}, problems=["x", "y"])
    two.add_stretches([[3, 7]])
    two = FileCounts.from_json(two.to_json())

    one.add(two)
    one.add(FileCounts(file="a"))

    assert (one.packets, one.link_types, one.first_time, one.last_time) == (5, {1: 3, 101: 2}, 3, 9)
    assert one.problems == ["x", "y"]


@pytest.mark.slow
def test_problems_without_end_are_told_in_few_lines(reading: Reading) -> None:
    frames, link = relink(REAL["many-clients-any"], "ethernet")
    good = pcap(frames, link)[24:]
    bad = struct.pack("<4I", 1, 1, 0x7FFFFFFF, 1)

    _, (counts,) = reading(pcap([], link) + (bad + good) * 30)

    assert (counts.bad_records, counts.skipped_bytes) == (30, 30 * 16)
    assert counts.packets == 30 * len(frames)
    assert len(counts.problems) == MOST_PROBLEMS + 1


def test_hostile_lengths_do_not_break_what_follows(reading: Reading) -> None:
    frames, link = relink(REAL["librdkafka-100p"], "ethernet")
    data = bytearray(pcap(frames, link))
    place = 24 + sum(16 + len(frame.data) for frame in frames[:300])
    struct.pack_into("<I", data, place + 8, 0xFFFFFFFF)

    found, (counts,) = reading(bytes(data))

    assert counts.packets == len(frames) - 1
    assert found == runs([frame for place, frame in enumerate(REAL["librdkafka-100p"]) if place != 300])
    assert (counts.bad_records, counts.skipped_bytes) == (1, 16 + len(frames[300].data))
    assert counts.problems == [
        f"at byte {place} a record claims 4294967295 bytes; reading continued at the next one found"
    ]
    assert isinstance(counts.to_json(), str)
    assert pa.types.is_binary(SEGMENTS.field("payload").type)


def test_a_pause_that_no_client_makes_is_a_gap_in_the_capture(reading: Reading) -> None:
    talk = Talk().open()
    talk.time += 2000 * 1_000_000_000
    talk.segment(b"x").segment(b"y")
    times = [frame.time for frame in talk.frames]
    _, (counts,) = reading(pcap(talk.frames, crafting.RAW, nano=True))

    assert counts.stretches == [[times[0], times[2]], [times[3], times[4]]]
