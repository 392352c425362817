import io
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from replay.capture.files.counts import FileCounts
from replay.capture.files.formats import NotACaptureError, identify
from replay.capture.files.pcap import PcapRecords, RecordSearch
from replay.capture.files.sources import FilePiece, TaskInput, expand, plan
from replay.capture.files.window import Column, FileWindow
from replay.capture.packets.segments import read
from tests.replay.capture.crafting import NAMES, RAW, Talk, capture, pcap, pcapng
from tests.replay.capture.slow import told


def places(data: bytes) -> list[int]:
    found, place = [], 24
    while place < len(data):
        found.append(place)
        place += 16 + int(struct.unpack_from("<I", data, place + 8)[0])
    return found


def starts(path: Path, size: int) -> list[int]:
    return [piece.start for share in plan(expand([str(path)]), size) for piece in share.pieces]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_split_where_records_begin(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.pcap"
    data = capture(name)
    path.write_bytes(data)
    sizes = random.Random(name).sample(range(70_000, len(data)), 30)

    found = {start for size in sizes for start in starts(path, size)}

    assert found <= {0, *places(data)}
    assert len(found) > 4


def test_captures_within_a_capture_mislead_nobody(tmp_path: Path) -> None:
    inner = pcap(
        Talk().open().segment(bytes(500)).segment(b"answer" * 50, broker=True).close().frames * 40, RAW
    )
    talk = Talk()
    for begin in range(0, len(inner), 1400):
        talk.segment(inner[begin : begin + 1400])
    data = pcap(talk.frames * 20, RAW)
    path = tmp_path / "x.pcap"
    path.write_bytes(data)

    found = starts(path, 40_000)

    assert set(found) <= {0, *places(data)}
    assert len(found) > 15


@pytest.mark.slow
def test_a_capture_without_a_clock_is_split_too(tmp_path: Path) -> None:
    talk = Talk(time=5_000_000_000)
    for _ in range(2000):
        talk.segment(bytes(300))
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(talk.frames, RAW))

    assert len(starts(path, 100_000)) > 4


def test_a_split_within_a_record_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(capture("java-100p"))
    (source,) = expand([str(path)])
    third, fourth = places(capture("java-100p"))[2:4]

    _, (counts,) = told(read(TaskInput(pieces=(FilePiece(source=source, stop=third + 5),))))

    assert counts.packets == 3
    line = f"split at byte {third + 5}, where no record begins; the next one is at {fourth}"
    assert counts.problems == [line]


@pytest.mark.parametrize(
    "unit", [struct.pack("<4I", 1, 1, 1, 1) + b"\xff", b"\4\0\0\0"], ids=["tiny", "dense"]
)
def test_a_search_looks_at_each_record_of_broken_chains_once(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (unit * (100_000 // len(unit)) + b"\xff" * 300_000) * 2
    window = FileWindow(0)
    window.fill(io.BytesIO(data))
    search = RecordSearch(identify(pcap([])), 0)
    unpack, looked = search._unpack, Counter[int]()

    def counted(data: memoryview, place: int) -> tuple[Any, ...]:
        looked[place] += 1
        return unpack(data, place)

    monkeypatch.setattr(search, "_unpack", counted)

    assert search.next(window, final=True) == (len(data), False)
    # Once as a record, and once more as the end of each chain that another one passes.
    assert looked.total() < 2 * len(data)


def test_a_broken_record_ends_the_chain_that_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    record = struct.pack("<4I", 1_700_000_000, 1, 0, 0)
    broken = struct.pack("<4I", 1_700_000_000, 1, 300_000, 0)
    data = pcap([]) + record * 5 + broken + record * 100_000
    window = FileWindow(0)
    window.fill(io.BytesIO(data))
    records = PcapRecords(identify(data[:24]), FileCounts(file="x"), first_time=1_700_000_000_000_000_000)
    followed: list[int] = []
    checked = PcapRecords._checked

    def counted(self: PcapRecords, window: FileWindow, places: Column, position: int) -> object:
        followed.append(len(places))
        return checked(self, window, places, position)

    monkeypatch.setattr(PcapRecords, "_checked", counted)
    found = records.read(window, final=True)

    assert found is not None
    assert len(found.at) == 5
    assert followed == [6]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
@pytest.mark.parametrize("modified", [False, True])
def test_what_a_pcap_header_says(order: str, nano: bool, modified: bool) -> None:
    form = identify(
        pcap([], 276 | 1 << 28, order=order, nano=nano and not modified, snaplen=0, modified=modified)
    )

    assert (form.kind, form.order, form.link) == ("pcap", order, 276)
    assert form.fraction == (1_000_000_000 if nano and not modified else 1_000_000)
    assert form.record_header == (24 if modified else 16)


@pytest.mark.parametrize(
    ("snaplen", "longest"), [(0, 262144), (96, 262144), (1 << 20, 1 << 20), (0xFFFFFFFF, 262144)]
)
def test_a_snap_length_allows_longer_records(snaplen: int, longest: int) -> None:
    assert identify(pcap([], snaplen=snaplen)).max_record == longest


def test_what_a_section_header_says() -> None:
    assert [identify(pcapng([], order=order)).order for order in "<>"] == ["<", ">"]


def test_whatever_is_no_capture_says_so() -> None:
    for head in (b"", b"\0", bytes(24), b"\n\r\r\n", capture("java-100p")[:23]):
        with pytest.raises(NotACaptureError):
            identify(head)
